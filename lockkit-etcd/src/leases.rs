use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{LeaseGrantOptions, LeaseGrantResponse};
use futures_util::future::join_all;
use lockkit_core::driver::{Clock, ErrorKind, Instant, Limit};
use tokio::select;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::error::Failure;
use crate::keepalive::Keepalive;
use crate::members::{Members, Reply};

/// How many leases are kept for the next claims.
const MOST_IDLE: usize = 64;
/// How long a lease is kept that nobody uses.
const LONGEST_IDLE: Duration = Duration::from_secs(600);
/// How long a request about leases may take that nobody waits for.
const UPKEEP_LIMIT: Duration = Duration::from_secs(3);

/// A lease of the server's, which one claim at a time has.
#[derive(Debug)]
pub(crate) struct Lease {
    id: i64,
    /// What was asked for, in the server's unit.
    seconds: i64,
    ttl: Duration,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    since: Instant,
    is_over: bool,
}

impl Lease {
    #[cfg(test)]
    pub(crate) fn of_test() -> Self {
        let clock = Clock::system();
        let state = Mutex::new(State { since: clock.now(), is_over: false });
        Self { id: 1, seconds: 30, ttl: Duration::from_secs(30), clock, state }
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// What the server granted, which may be more than was asked for.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// When the last request left that was answered and made it last for a full TTL.
    pub(crate) fn since(&self) -> Instant {
        self.state().since
    }

    /// Whether it still lasts for a full TTL, to within half a percent.
    pub(crate) fn is_fresh(&self) -> bool {
        self.age() < self.ttl / 200
    }

    /// Whether the server said that there is no such lease.
    pub(crate) fn is_gone(&self) -> bool {
        self.state().is_over
    }

    /// Takes note that a request that left at `since` made it last for a full TTL.
    pub(crate) fn refreshed(&self, since: Instant) {
        let mut state = self.state();
        state.since = state.since.max(since);
    }

    /// Takes note that there is no such lease, or that it is not to be used any more.
    pub(crate) fn write_off(&self) {
        self.state().is_over = true;
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn age(&self) -> Duration {
        self.now().saturating_duration_since(self.since())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leases that are kept alive for the next claims, so that an acquisition need not wait for one to
/// be granted.
#[derive(Debug)]
pub(crate) struct Leases {
    pool: Arc<Pool>,
    retired: mpsc::UnboundedSender<Retired>,
    upkeep: AbortOnDropHandle<()>,
}

/// A lease that is to end.
#[derive(Clone, Copy, Debug)]
struct Retired {
    id: i64,
    /// When it has run out by itself, where that is known.
    over: Option<Instant>,
}

#[derive(Debug)]
struct Pool {
    members: Arc<Members>,
    keepalive: Arc<Keepalive>,
    clock: Clock,
    idle: Mutex<Idle>,
    /// Told when something is to be done sooner than was planned.
    sooner: Notify,
}

#[derive(Debug, Default)]
struct Idle {
    /// By the length that was asked for.
    leases: HashMap<i64, Vec<IdleLease>>,
    count: usize,
    /// When the next look is due.
    planned: Option<Instant>,
    is_closed: bool,
}

#[derive(Debug)]
struct IdleLease {
    lease: Arc<Lease>,
    /// Since when nobody has used it.
    unused_since: Instant,
}

impl Leases {
    pub(crate) fn new(members: Arc<Members>, keepalive: Arc<Keepalive>) -> Self {
        let pool = Arc::new(Pool {
            members,
            keepalive,
            clock: Clock::system(),
            idle: Mutex::default(),
            sooner: Notify::new(),
        });
        let (retired, inbox) = mpsc::unbounded_channel();
        let upkeep = AbortOnDropHandle::new(tokio::spawn(keep_up(Arc::clone(&pool), inbox)));
        Self { pool, retired, upkeep }
    }

    /// A lease that nobody else has, of at least `ttl`: from the pool, or else a new one.
    pub(crate) async fn take(&self, ttl: Duration, limit: Limit) -> Result<Arc<Lease>, Failure> {
        let idle = self.pool.idle().take(seconds(ttl));
        match idle {
            Some(lease) => Ok(lease),
            None => self.grant(ttl, limit).await,
        }
    }

    /// A new lease of at least `ttl`.
    pub(crate) async fn grant(&self, ttl: Duration, limit: Limit) -> Result<Arc<Lease>, Failure> {
        let (clock, members) = (self.pool.clock.clone(), &self.pool.members);
        let (seconds, since) = (seconds(ttl), clock.now());
        // Each attempt asks for another, since one that there is already is refused.
        let asked_for = Mutex::new(Vec::new());
        let granted = members.call(limit, |client| {
            let id = fastrand::i64(1..);
            // Nothing panics while it holds the lock.
            asked_for.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            let options = LeaseGrantOptions::new().with_id(id);
            async move { client.lease_client().grant(seconds, Some(options)).await }
        });
        let reply = granted.await;
        if reply.may_be_carried_out() {
            let answered = reply.outcome.as_ref().ok().map(LeaseGrantResponse::id);
            let asked_for = asked_for.into_inner().unwrap_or_else(PoisonError::into_inner);
            let unanswered = asked_for.into_iter().filter(|id| Some(*id) != answered);
            // One that is granted only after that runs out.
            let over = Some(clock.now() + ttl);
            unanswered.for_each(|id| self.end(Retired { id, over }));
        }
        let granted = reply.outcome?;
        members.check(granted.header())?;
        let Ok(ttl) = u64::try_from(granted.ttl()) else {
            return Err(Failure::Foreign("the server granted a lease that is over already"));
        };
        let state = Mutex::new(State { since, is_over: false });
        let ttl = Duration::from_secs(ttl);
        Ok(Arc::new(Lease { id: granted.id(), seconds, ttl, clock, state }))
    }

    /// Takes back a lease that no request can name any more.
    pub(crate) fn give_back(&self, lease: Arc<Lease>) {
        let due = lease.since() + lease.ttl / 3;
        let mut idle = self.pool.idle();
        if lease.is_gone() {
            return;
        }
        if idle.is_closed {
            self.retire(&lease);
            return;
        }
        // Leases of a length that is no longer asked for make room for others.
        if idle.count >= MOST_IDLE
            && let Some(oldest) = idle.take_oldest()
        {
            self.retire(&oldest);
        }
        let unused_since = self.pool.clock.now();
        idle.leases.entry(lease.seconds).or_default().push(IdleLease { lease, unused_since });
        idle.count += 1;
        if idle.planned.is_none_or(|planned| due < planned) {
            idle.planned = Some(due);
            self.pool.sooner.notify_one();
        }
    }

    /// Ends a lease, sooner or later.
    pub(crate) fn retire(&self, lease: &Lease) {
        lease.write_off();
        self.end(Retired { id: lease.id, over: None });
    }

    fn end(&self, retired: Retired) {
        // If the driver is closed, the task has ended; then the lease runs out.
        _ = self.retired.send(retired);
    }

    /// Ends a lease that an unanswered request named, so that the request is refused should it
    /// still arrive.
    pub(crate) async fn revoke(&self, lease: &Lease, limit: Limit) -> Result<(), Failure> {
        self.pool.revoke(lease.id, limit).await?;
        lease.write_off();
        Ok(())
    }

    /// Gives all leases back to the server, including those that were retired before.
    pub(crate) async fn close(&self) {
        const LIMIT: Duration = Duration::from_secs(1);
        {
            // All under the lock, so that the task does not end in between.
            let mut idle = self.pool.idle();
            idle.is_closed = true;
            idle.count = 0;
            let unused = idle.leases.drain().flat_map(|(_, leases)| leases);
            unused.for_each(|idle| self.retire(&idle.lease));
        }
        self.pool.sooner.notify_one();
        // The task ends when it has done that.
        if timeout(LIMIT, self.retired.closed()).await.is_err() {
            tracing::debug!("leases were not given back within {LIMIT:?}: they run out");
        }
        self.upkeep.abort();
    }
}

impl Pool {
    async fn revoke(&self, id: i64, limit: Limit) -> Result<(), Failure> {
        let revoke = |client: Arc<etcd_client::Client>| async move {
            client.lease_client().revoke(id).await
        };
        let Reply { outcome, .. } = self.members.call(limit, revoke).await;
        match outcome {
            Err(failure) if !failure.is_a_lost_lease() => Err(failure),
            _ => Ok(()),
        }
    }

    /// Keeps alive what is due, lets go of what nobody has used for long, and returns until when
    /// there is nothing more to do.
    fn look_after(&self) -> (Vec<Retired>, Option<Instant>) {
        let now = self.clock.now();
        let mut idle = self.idle();
        let mut retired = Vec::new();
        for leases in idle.leases.values_mut() {
            leases.retain(|IdleLease { lease, unused_since }| {
                if lease.is_gone() {
                    return false;
                }
                let is_old = now.saturating_duration_since(*unused_since) >= LONGEST_IDLE;
                if is_old {
                    retired.push(Retired { id: lease.id, over: None });
                } else if lease.age() >= lease.ttl / 3 {
                    // The lease takes note of the answer.
                    let limit = Limit::new((lease.ttl / 5).min(UPKEEP_LIMIT));
                    drop(self.keepalive.begin(lease, limit));
                }
                !is_old
            });
        }
        idle.leases.retain(|_, leases| !leases.is_empty());
        idle.count = idle.leases.values().map(Vec::len).sum();
        let next = idle.leases.values().flatten().map(|IdleLease { lease, .. }| {
            // What was asked for just now is looked at again soon.
            (lease.since() + lease.ttl / 3).max(now + lease.ttl / 12)
        });
        let next = next.min();
        idle.planned = next;
        (retired, next)
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        // Nothing panics while it holds the lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idle {
    fn take(&mut self, seconds: i64) -> Option<Arc<Lease>> {
        let leases = self.leases.get_mut(&seconds)?;
        while let Some(IdleLease { lease, .. }) = leases.pop() {
            self.count -= 1;
            // A lease that could not be kept alive is left to run out.
            if !lease.is_gone() && lease.age() < lease.ttl / 2 {
                return Some(lease);
            }
        }
        None
    }

    /// The one that nobody has used for the longest.
    fn take_oldest(&mut self) -> Option<Arc<Lease>> {
        // Each came after those before it.
        let unused_since = |leases: &&mut Vec<IdleLease>| leases.first().map(|it| it.unused_since);
        let some = self.leases.values_mut().filter(|leases| !leases.is_empty());
        let oldest = some.min_by_key(unused_since)?.remove(0);
        self.count -= 1;
        Some(oldest.lease)
    }
}

/// Looks after leases that nobody uses, until there are to be none.
async fn keep_up(pool: Arc<Pool>, mut inbox: mpsc::UnboundedReceiver<Retired>) {
    const MOST_AT_ONCE: usize = 32;
    let mut retired = Vec::new();
    loop {
        let (old, next) = pool.look_after();
        retired.extend(old);
        for some in retired.chunks(MOST_AT_ONCE) {
            let (limit, now) = (Limit::new(UPKEEP_LIMIT), pool.clock.now());
            let lasting = some.iter().filter(|retired| retired.over.is_none_or(|over| now < over));
            for outcome in join_all(lasting.map(|retired| pool.revoke(retired.id, limit))).await {
                if let Err(failure) = outcome
                    && failure.kind() != ErrorKind::Unreachable
                {
                    tracing::debug!(%failure, "a lease was not given back: it runs out");
                }
            }
        }
        retired.clear();
        if pool.idle().is_closed && inbox.is_empty() {
            return;
        }
        let rest = async {
            match next {
                Some(next) => pool.clock.sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        select! {
            () = rest => (),
            () = pool.sooner.notified() => (),
            count = inbox.recv_many(&mut retired, MOST_AT_ONCE) => if count == 0 {
                return;
            },
        }
    }
}

/// In the server's unit, not shorter than asked for.
fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX)
}
