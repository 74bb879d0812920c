use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::FencingToken;
use lockkit_core::driver::{
    Attempt, Change, Claim, DriverError, ErrorKind, Grant, OwnerId, Release, Renewal, Taken, Vouch,
};

use crate::error::Failure;
use crate::keepalive::Keepalive;
use crate::layout::Queue;
use crate::leases::{Lease, Leases};
use crate::members::Members;
use crate::queue::{self, Ahead, Place, Seen};
use crate::reader::Reader;
use crate::watch::{News, Watch};

/// What this process asked for and has not released: which lease a claim has, and what the cluster
/// may know of it.
#[derive(Debug)]
pub(crate) struct Claims {
    members: Arc<Members>,
    keepalive: Arc<Keepalive>,
    leases: Leases,
    reader: Reader,
    watch: Watch,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    all: HashMap<OwnerId, Arc<Entry>>,
    /// How many there have to be for the next sweep.
    many: usize,
}

#[derive(Debug)]
struct Entry {
    owner: OwnerId,
    queue: Queue,
    key: String,
    /// What stands in the key: what the owner is called.
    value: Box<[u8]>,
    traces: Mutex<Traces>,
}

/// What the cluster may know of a claim.
#[derive(Clone, Debug, Default)]
struct Traces {
    /// What the key hangs on, or may hang on yet.
    lease: Option<Arc<Lease>>,
    /// A longer one that was asked for.
    longer: Option<Arc<Lease>>,
    /// When the key was created, once that was answered.
    created: Option<i64>,
    /// Who was just before it at the last look.
    ahead: Option<Ahead>,
    is_granted: bool,
    /// Whether a request that names a lease was not answered, and may be carried out yet.
    in_doubt: bool,
}

impl Claims {
    pub(crate) fn new(members: Arc<Members>) -> Self {
        let keepalive = Arc::new(Keepalive::new(Arc::clone(&members)));
        let leases = Leases::new(Arc::clone(&members), Arc::clone(&keepalive));
        let reader = Reader::new(Arc::clone(&members));
        let watch = Watch::new(Arc::clone(&members));
        Self { members, keepalive, leases, reader, watch, entries: Mutex::default() }
    }

    /// Takes the lock if it is free and the claim's turn; else leaves a place if the claim waits.
    pub(crate) async fn take(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Attempt, DriverError> {
        let entry = self.entry(claim);
        let was_in_doubt = entry.traces().in_doubt;
        match self.ask(&entry, claim, limit).await {
            Ok(Some(place)) => match (place.ahead.as_ref(), entry.grant()) {
                (None, Some(grant)) => {
                    self.watch.granted(entry.owner);
                    Ok(Attempt::Granted(grant?))
                }
                (Some(ahead), _) => {
                    self.watch.wait(entry.owner, &entry.key, &place, ahead);
                    Ok(Attempt::Taken(Taken::new()))
                }
                (None, None) => Err(Failure::Displaced.of_a_request()),
            },
            // Refused, but an earlier attempt of this request may yet be carried out.
            Ok(None) if entry.traces().in_doubt => Err(Failure::NoAnswer(limit).of_a_request()),
            Ok(None) => {
                self.forget(&entry);
                Ok(Attempt::Taken(Taken::new()))
            }
            Err(failure) => {
                let (is_in_doubt, has_place) = entry.doubts();
                // Nobody releases a claim that was not carried out.
                if !is_in_doubt && !has_place {
                    self.forget(&entry);
                }
                Err(match is_in_doubt && !was_in_doubt {
                    true => DriverError::new(ErrorKind::Unknown, failure),
                    false => failure.of_a_request(),
                })
            }
        }
    }

    /// Where the claim stands in the queue; `None` if it does not wait and was refused.
    async fn ask(
        &self,
        entry: &Entry,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Option<Place>, Failure> {
        if let Some(place) = self.look(entry, claim, limit).await? {
            if place.ahead.is_none() && !self.is_long_enough(entry, claim) {
                self.lengthen(entry, claim, limit).await?;
            }
            return Ok(Some(place));
        }
        let mut from_pool = true;
        loop {
            let lease = self.lease(entry, claim, from_pool, limit).await?;
            let place = self.enter(entry, claim, lease.id(), limit).await;
            match &place {
                // It was put with another one, which this driver does not keep alive.
                Ok(Some(place)) if place.lease != lease.id() => {
                    self.hang(entry, place.created, &lease, limit).await?;
                }
                Err(failure) if failure.is_a_lost_lease() => {
                    lease.is_over();
                    // A cluster that lost its data has lost those in the pool, too.
                    if std::mem::take(&mut from_pool) {
                        continue;
                    }
                }
                _ => (),
            }
            return place;
        }
    }

    /// The lease of the claim. It is on its way to be refreshed, which takes no waiting: what it is
    /// good for is known from before.
    async fn lease(
        &self,
        entry: &Entry,
        claim: &Claim,
        from_pool: bool,
        limit: Duration,
    ) -> Result<Arc<Lease>, Failure> {
        let lease = match entry.place().0.filter(|lease| !lease.is_gone()) {
            Some(lease) => lease,
            None if from_pool => self.leases.take(claim.ttl(), limit).await?,
            None => self.leases.grant(claim.ttl(), limit).await?,
        };
        entry.traces().lease = Some(Arc::clone(&lease));
        if !lease.is_fresh() {
            self.keepalive.touch(&lease, limit);
        }
        Ok(lease)
    }

    async fn enter(
        &self,
        entry: &Entry,
        claim: &Claim,
        lease: i64,
        limit: Duration,
    ) -> Result<Option<Place>, Failure> {
        let Entry { queue, key, value, .. } = entry;
        let (place, in_doubt) = if claim.waits() {
            let reply = queue::enter(&self.members, queue, key, value, lease, limit).await;
            (reply.outcome.map(Some), reply.in_doubt)
        } else {
            let reply = queue::try_enter(&self.members, queue, key, value, lease, limit).await;
            (reply.outcome, reply.in_doubt)
        };
        entry.note(&place, in_doubt);
        place
    }

    /// Where the claim stands that has a place; `None` if it has none, or has it no longer.
    async fn look(
        &self,
        entry: &Entry,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Option<Place>, Failure> {
        let (Some(lease), Some(created)) = entry.place() else { return Ok(None) };
        let known = entry.traces().ahead.clone();
        let look = queue::look(&self.members, &entry.queue, &entry.key, created, known, limit);
        let (seen, is_alive) = tokio::join!(look, self.refresh(&lease, limit));
        match seen.outcome? {
            Seen::Present(place) => {
                if !is_alive? {
                    // The server is about to remove it, and has let nobody pass yet.
                    let lease = self.lease(entry, claim, true, limit).await?;
                    self.hang(entry, created, &lease, limit).await?;
                }
                entry.stands_at(&place);
                Ok(Some(place))
            }
            Seen::Absent => {
                entry.displaced();
                self.watch.leave(entry.owner);
                Ok(None)
            }
        }
    }

    /// Hangs the key, which is there, on the lease of the claim.
    async fn hang(
        &self,
        entry: &Entry,
        created: i64,
        lease: &Lease,
        limit: Duration,
    ) -> Result<(), Failure> {
        let Entry { key, value, .. } = entry;
        let change = queue::change_lease(&self.members, key, created, value, lease.id(), limit);
        let changed = change.await;
        entry.traces().in_doubt |= changed.in_doubt;
        match changed.outcome? {
            true => Ok(()),
            false => {
                entry.displaced();
                Err(Failure::Displaced)
            }
        }
    }

    /// Makes what the claim holds last for another TTL; whether it holds anything.
    pub(crate) async fn renew(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Renewal, DriverError> {
        let Some(entry) = self.find(claim.owner()) else { return Ok(Renewal::Lost) };
        if !entry.traces().is_granted {
            return Ok(Renewal::Lost);
        }
        let outcome = match self.is_long_enough(&entry, claim) {
            true => self.keep(&entry, limit).await,
            false => self.lengthen(&entry, claim, limit).await,
        };
        match outcome {
            Ok(true) => match entry.vouch() {
                Some(vouch) => Ok(Renewal::Held(vouch)),
                None => Ok(Renewal::Lost),
            },
            Ok(false) => Ok(Renewal::Lost),
            Err(failure) => Err(failure.of_a_request()),
        }
    }

    /// Refreshes the lease, and makes sure that the key is there: a hold may be broken whose lease
    /// goes on.
    async fn keep(&self, entry: &Entry, limit: Duration) -> Result<bool, Failure> {
        let (Some(lease), Some(created)) = entry.place() else { return Ok(false) };
        let stands = self.reader.stands(&entry.key, created, limit);
        let (stands, is_alive) = tokio::join!(stands, self.refresh(&lease, limit));
        match (stands, is_alive) {
            // Either is enough to know.
            (Ok(false), _) | (_, Ok(false)) => Ok(false),
            (Ok(true), Ok(true)) => Ok(true),
            (Err(failure), _) | (_, Err(failure)) => Err(failure),
        }
    }

    /// Hangs the key on a lease of the length that the claim wishes for.
    async fn lengthen(
        &self,
        entry: &Entry,
        claim: &Claim,
        limit: Duration,
    ) -> Result<bool, Failure> {
        let (Some(_), Some(created)) = entry.place() else { return Ok(false) };
        let longer = entry.traces().longer.clone().filter(|longer| longer.ttl() >= claim.ttl());
        let longer = match longer {
            Some(longer) => longer,
            None => self.leases.take(claim.ttl(), limit).await?,
        };
        entry.traces().longer = Some(Arc::clone(&longer));
        let Entry { key, value, .. } = entry;
        let change = queue::change_lease(&self.members, key, created, value, longer.id(), limit);
        let (changed, is_alive) = tokio::join!(change, self.refresh(&longer, limit));
        entry.traces().in_doubt |= changed.in_doubt;
        if !is_alive? || !changed.outcome? {
            return Ok(false);
        }
        let (before, in_doubt) = entry.moves_to(longer);
        match before {
            // An ask that was not answered may name it.
            Some(before) if in_doubt => self.leases.revoke(&before, limit).await?,
            Some(before) => self.leases.give_back(before),
            None => (),
        }
        Ok(true)
    }

    /// Removes every trace of the claim.
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Release, DriverError> {
        let Some(entry) = self.find(claim.owner()) else { return Ok(Release::NotHeld) };
        self.watch.leave(entry.owner);
        let held = entry.traces().is_granted;
        let removed = self.remove(&entry, limit).await;
        let was_there = removed.map_err(|failure| failure.of_a_request())?;
        self.forget(&entry);
        Ok(match held && was_there {
            true => Release::Freed,
            false => Release::NotHeld,
        })
    }

    /// Removes the key, and makes sure that nothing puts it back; whether it was there.
    async fn remove(&self, entry: &Entry, limit: Duration) -> Result<bool, Failure> {
        let traces = entry.traces().clone();
        let was_there = match traces.created {
            Some(created) => {
                let left = queue::leave(&self.members, &*entry.key, created, limit).await;
                // Whether an earlier attempt had removed it, nobody can tell.
                left.outcome? || left.in_doubt
            }
            None => false,
        };
        if traces.in_doubt {
            for lease in [&traces.lease, &traces.longer].into_iter().flatten() {
                self.leases.revoke(lease, limit).await?;
            }
        }
        for lease in [traces.lease, traces.longer].into_iter().flatten() {
            match was_there || traces.created.is_none() {
                true => self.leases.give_back(lease),
                // Its key was taken away, perhaps since it is over.
                false => self.leases.retire(&lease),
            }
        }
        *entry.traces() = Traces::default();
        Ok(was_there)
    }

    /// The next news for whoever holds or waits.
    pub(crate) async fn changed(&self, claim: &Claim) -> Change {
        let Some(entry) = self.find(claim.owner()) else { return std::future::pending().await };
        let created = entry.traces().created;
        if let Some(created) = created
            && entry.traces().is_granted
        {
            self.watch.hold(entry.owner, &entry.key, created);
        }
        match self.watch.changed(entry.owner).await {
            News::LookAgain => Change::AskAgain,
            News::Moved => {
                entry.traces().ahead = None;
                Change::AskAgain
            }
            News::Lost => Change::Lost,
            News::Granted => {
                entry.first();
                self.watch.granted(entry.owner);
                match entry.grant() {
                    Some(Ok(grant)) => Change::Granted(grant),
                    _ => Change::AskAgain,
                }
            }
        }
    }

    /// Ends all streams and gives back the leases that nobody uses.
    pub(crate) async fn close(&self) {
        self.watch.close();
        self.reader.close();
        self.leases.close().await;
        self.keepalive.close();
    }

    /// Makes the lease last for a full TTL from now; whether there is such a lease.
    async fn refresh(&self, lease: &Arc<Lease>, limit: Duration) -> Result<bool, Failure> {
        match lease.is_fresh() && !lease.is_gone() {
            true => Ok(true),
            false => self.keepalive.renew(lease, limit).await,
        }
    }

    fn is_long_enough(&self, entry: &Entry, claim: &Claim) -> bool {
        let traces = entry.traces();
        traces.longer.is_none()
            && traces.lease.as_ref().is_none_or(|lease| lease.ttl() >= claim.ttl())
    }

    fn entry(&self, claim: &Claim) -> Arc<Entry> {
        let mut entries = self.entries();
        entries.sweep();
        let entry = || {
            let (queue, owner) = (Queue::of(claim.name()), claim.owner());
            let value = claim.label().as_str().as_bytes().into();
            Arc::new(Entry { key: queue.key(owner), owner, queue, value, traces: Mutex::default() })
        };
        Arc::clone(entries.all.entry(claim.owner()).or_insert_with(entry))
    }

    fn find(&self, owner: OwnerId) -> Option<Arc<Entry>> {
        self.entries().all.get(&owner).cloned()
    }

    /// Forgets a claim of which nothing is left, but for a lease that no request can name.
    fn forget(&self, entry: &Entry) {
        self.entries().all.remove(&entry.owner);
        self.watch.leave(entry.owner);
        let Traces { lease, longer, .. } = std::mem::take(&mut *entry.traces());
        for lease in [lease, longer].into_iter().flatten() {
            self.leases.give_back(lease);
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // Nothing panics while it holds the lock.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Forgets the claims whose releases were never answered, a good while after the cluster has.
    fn sweep(&mut self) {
        const FEW: usize = 64;
        if self.all.len() >= self.many.max(FEW) {
            self.all.retain(|_, entry| !entry.is_forgotten());
            self.many = self.all.len() * 2;
        }
    }
}

impl Entry {
    /// Whether the lease must have run out long ago, and so whatever hung on it.
    fn is_forgotten(&self) -> bool {
        let (lease, _) = self.place();
        lease.is_some_and(|lease| lease.age() > lease.ttl() * 4 + Duration::from_secs(10))
    }

    /// Whether something may yet be carried out, and whether the claim has a place.
    fn doubts(&self) -> (bool, bool) {
        let traces = self.traces();
        (traces.in_doubt, traces.created.is_some())
    }

    fn traces(&self) -> MutexGuard<'_, Traces> {
        // Nothing panics while it holds the lock.
        self.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what an ask came to.
    fn note(&self, place: &Result<Option<Place>, Failure>, in_doubt: bool) {
        self.traces().in_doubt |= in_doubt;
        if let Ok(Some(place)) = place {
            self.stands_at(place);
        }
    }

    fn stands_at(&self, place: &Place) {
        let mut traces = self.traces();
        traces.created = Some(place.created);
        traces.ahead.clone_from(&place.ahead);
        traces.is_granted |= place.ahead.is_none();
    }

    /// Takes note that nobody is ahead any more.
    fn first(&self) {
        let mut traces = self.traces();
        (traces.ahead, traces.is_granted) = (None, true);
    }

    /// Takes note that the key is gone.
    fn displaced(&self) {
        let mut traces = self.traces();
        (traces.created, traces.ahead, traces.is_granted) = (None, None, false);
        if traces.lease.as_ref().is_some_and(|lease| lease.is_gone()) {
            traces.lease = None;
        }
    }

    /// Takes note of the lease that the key hangs on now. Returns the one before, and whether an
    /// unanswered request may name it.
    fn moves_to(&self, lease: Arc<Lease>) -> (Option<Arc<Lease>>, bool) {
        let mut traces = self.traces();
        traces.longer = None;
        (traces.lease.replace(lease), traces.in_doubt)
    }

    fn place(&self) -> (Option<Arc<Lease>>, Option<i64>) {
        let traces = self.traces();
        (traces.lease.clone(), traces.created)
    }

    fn vouch(&self) -> Option<Vouch> {
        let lease = self.traces().lease.clone()?;
        (!lease.is_gone()).then(|| Vouch::Lease { since: lease.since(), ttl: lease.ttl() })
    }

    /// What the claim has that is first.
    fn grant(&self) -> Option<Result<Grant, DriverError>> {
        let created = self.traces().created?;
        let token = u64::try_from(created).ok().and_then(FencingToken::new);
        let vouch = self.vouch()?;
        Some(match token {
            Some(token) => Ok(Grant::new().token(token).vouch(vouch)),
            None => Err(Failure::Foreign("a revision that is not positive").of_a_request()),
        })
    }
}
