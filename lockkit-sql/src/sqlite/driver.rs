use std::fmt;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, ErrorKind, Grant, Inspect, Release,
    Renewal, Taken, Turnstile, Vouch,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Fairness, Liveness, Result};
use tokio::select;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::claims::{self, Answer};
use super::config::{Config, ID};
use super::database::Database;
use super::doubt::Doubts;
use super::wakeup::Wakeups;
use crate::neighbours::Neighbours;
use crate::renewals::Renewals;
use crate::stays::Stays;
use crate::together::MOST;

/// How many claims ask at a time, when many ask at once: one, and those that are next.
const MOST_ASKS: usize = 8;
/// How many claims ask at a time, including those that only try: what is held is renewed and
/// released in between.
const MOST_AT_ONCE: usize = 16;

/// What the SQLite driver promises.
///
/// A release wakes the waiters of its own process; those of other processes poll, so no
/// notification is declared. A lease of 200 ms leaves 40 ms for a request, which includes syncing
/// the disk.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .fairness(Fairness::OnRequest)
    .fencing()
    .inspection()
    .ttl(Duration::from_millis(200), Capabilities::MAX_TTL);

/// Locks in an SQLite database file, for the processes of one host.
///
/// It keeps one connection, which is a thread of SQLite's client, and uses it for one request after
/// another.
pub struct SqliteDriver {
    pub(super) database: Database,
    doubts: Doubts,
    pub(super) wakeups: Wakeups,
    /// The claims that want to be served in order.
    neighbours: Neighbours,
    stays: Stays,
    renewals: Renewals,
    /// Asks made all at once would leave the process larger.
    asks: Turnstile,
    at_once: Semaphore,
    pub(super) call_limit: CallLimit,
}

impl SqliteDriver {
    /// Opens the database that `url` names, and creates it if there is none.
    ///
    /// `sqlite:locks.db` is relative to the current directory, `sqlite:/var/lib/app/locks.db` and
    /// `sqlite:///var/lib/app/locks.db` are absolute.
    ///
    /// What `url` says about a locker, such as its `namespace`, is only checked here:
    /// [`Locker::from_url`](lockkit_core::Locker::from_url) applies it, and
    /// [`Locker::new`](lockkit_core::Locker::new) does not.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the URL names no file or has parameters that the driver does not know,
    /// and the errors of [`open`](Self::open).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a database that was created stays.
    pub async fn connect(url: &BackendUrl) -> Result<Self> {
        let Config { path, call_limit } = Config::from_url(url)?;
        Ok(Self { call_limit, ..Self::open(path).await? })
    }

    /// Opens the database at `path`, and creates it if there is none. Its directory has to exist.
    ///
    /// # Errors
    ///
    /// - [`Error::Misconfigured`] if the directory is missing, if the file system is shared
    ///   between hosts, or if the database has an unknown layout version.
    /// - [`Error::Foreign`] if the file is the database of something else, or no database.
    /// - [`Error::Denied`] if this process may not write there.
    /// - [`Error::Capacity`] if the disk is full, or this process has no descriptor left.
    /// - [`Error::Unreachable`] if it cannot be opened within 5 s.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a database that was created stays.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let opened = Database::open(path.as_ref()).await;
        let database = opened.map_err(|error| Error::connecting(ID, error))?;
        let wakeups = Wakeups::on(database.file());
        let (doubts, neighbours) = (Doubts::default(), Neighbours::default());
        let (stays, renewals) = (Stays::default(), Renewals::new(MOST));
        let (asks, at_once) = (Turnstile::new(MOST_ASKS), Semaphore::new(MOST_AT_ONCE));
        let call_limit = CallLimit::default();
        Ok(Self {
            database,
            doubts,
            wakeups,
            neighbours,
            stays,
            renewals,
            asks,
            at_once,
            call_limit,
        })
    }

    /// Where the database is.
    pub fn path(&self) -> &Path {
        self.database.path()
    }

    /// By when a request about the claim has to end.
    fn deadline(&self, claim: &Claim) -> Instant {
        Instant::now() + self.call_limit.of(claim)
    }

    /// Keeps the place of a claim for which nothing can have changed; returns whether the place
    /// stands.
    async fn stay(&self, claim: &Claim) -> Result<bool, DriverError> {
        let (limit, until) = (self.call_limit.of(claim), Instant::now() + claim.ttl());
        let keep = |owners| {
            let deadline = Instant::now() + limit;
            self.asks.pass(claim, move || claims::stay(&self.database, claim, owners, deadline))
        };
        let kept = self.stays.keep(claim, limit, keep).await?;
        // A place in a file that others do not see does not count.
        let stands = kept && self.database.binds()?;
        if stands {
            self.neighbours.keep(claim.owner(), until);
        }
        Ok(stands)
    }

    async fn ask(&self, claim: &Claim, asked_before: bool) -> Result<Attempt, DriverError> {
        let deadline = self.deadline(claim);
        let at_once = timeout_at(deadline, self.at_once.acquire()).await;
        let _at_once = at_once.map_err(|_| self.database.busy())?;
        // The place may have been refreshed a quarter of a lease ago.
        let place_ends = Instant::now() + claim.ttl() / 4 * 3;
        self.database.check_file()?;
        self.forget_the_dead(claim, deadline).await?;

        // A claim that has asked before is likely to be refused again, and reads before it writes.
        let looked = match asked_before && !self.neighbours.is_next(claim.owner()) {
            true => Some(claims::look(&self.database, claim, deadline).await?),
            false => None,
        };
        let now = self.database.clock().now();
        let answer = match looked.filter(|answer| answer.is_final_for(claim, now)) {
            Some(refusal) => refusal,
            None => claims::take(&self.database, claim, deadline).await?,
        };
        // The answer counts only if others still see the same file.
        self.database.check_written()?;
        self.doubts.note(claim.name(), answer.entries(), self.database.clock());
        let Some(hold) = answer.hold_of(claim) else {
            return Ok(self.refusal(claim, &answer, place_ends));
        };
        self.neighbours.hold(claim.owner());
        self.neighbours.tell_of_hold(claim.owner());
        let token = hold.fencing_token().ok_or_else(|| {
            DriverError::new(ErrorKind::Foreign, "the fencing token of the row is not positive")
        })?;
        Ok(Attempt::Granted(Grant::new().token(token)))
    }

    /// Says when the answer may be a different one.
    fn refusal(&self, claim: &Claim, answer: &Answer, place_ends: Instant) -> Attempt {
        let standing = answer.standing(claim);
        let is_told = standing
            .is_some_and(|standing| self.neighbours.stand(claim.owner(), standing, place_ends));
        // A claim that is told has nothing to do at the end of a hold.
        let obstacle = answer.obstacle(claim).filter(|_| !is_told || answer.is_free());
        let taken = obstacle.map_or_else(Taken::new, |obstacle| {
            let clock = self.database.clock();
            Taken::new().free_in(self.doubts.free_in(claim.name(), obstacle, clock))
        });
        Attempt::Taken(if is_told { taken.heard() } else { taken })
    }

    /// Removes what was in doubt and has not changed for the whole of its TTL.
    async fn forget_the_dead(&self, claim: &Claim, deadline: Instant) -> Result<(), DriverError> {
        for dead in self.doubts.dead(claim.name(), self.database.clock()) {
            if claims::forget(&self.database, claim, &dead, deadline).await? {
                tracing::info!(lock = %claim.name(), owner = %dead.owner, clock = dead.clock,
                    "freed what another boot or time namespace has left behind");
            }
        }
        Ok(())
    }

    /// Whether a hold that was found in the file counts: in a file that others do not see, it keeps
    /// nobody out. A request that failed may have failed for that reason, as when a new file has
    /// taken over the log of this one.
    fn still_binds(&self, held: Result<bool, DriverError>) -> Result<bool, DriverError> {
        match (held, self.database.binds()) {
            (_, Ok(false)) => Ok(false),
            (Ok(held), binds) => Ok(held && binds?),
            (Err(error), _) => Err(error),
        }
    }
}

#[async_trait]
impl Driver for SqliteDriver {
    fn id(&self) -> &'static str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        // Before the ask, so that no release after it is missed.
        let asked_before = claim.waits() && self.wakeups.listen(claim);
        let owner = claim.owner();
        if claim.is_fair()
            && self.neighbours.come(owner)
            && self.neighbours.relies(owner)
            && Box::pin(self.stay(claim)).await?
        {
            return Ok(Attempt::Taken(Taken::new().heard()));
        }
        let answer = self.asks.pass(claim, || self.ask(claim, asked_before)).await;
        // A first ask that failed may be the claim's last, with no release to follow.
        let is_gone = answer.is_err() && !asked_before;
        if is_gone || matches!(answer, Ok(Attempt::Granted(_))) {
            self.wakeups.leave(claim);
        }
        if is_gone {
            self.neighbours.go(owner);
        }
        answer
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let one = |limit| claims::renew(&self.database, claim, Instant::now() + limit);
        let several = async |claims: Vec<Claim>, limit| {
            claims::renew_together(&self.database, claim, &claims, Instant::now() + limit).await
        };
        let held = self.renewals.renew(claim, self.call_limit.of(claim), one, several).await;
        if self.still_binds(held)? {
            return Ok(Renewal::Held(Vouch::FromRequest));
        }
        self.neighbours.go(claim.owner());
        Ok(Renewal::Lost)
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let deadline = self.deadline(claim);
        let released = claims::release(&self.database, claim, deadline).await;
        // Even if that failed: whoever comes next finds out, and this may be the last that is heard
        // of the claim.
        let told = self.neighbours.go(claim.owner());
        self.wakeups.leave(claim);
        let stood = released.map(|released| {
            // Even if nothing was held: it may have been this claim that was woken last.
            if told.is_none() || told != released.next {
                self.wakeups.wake(claim.name(), released.next);
            }
            released.stood
        });
        Ok(if self.still_binds(stood)? { Release::Freed } else { Release::NotHeld })
    }

    async fn changed(&self, claim: &Claim) -> Change {
        let Some(news) = self.wakeups.of(claim) else {
            // Only waiting claims get news: one whose hold was broken finds out when it renews.
            return std::future::pending().await;
        };
        select! {
            () = news.changed() => Change::AskAgain,
            change = self.neighbours.changed(claim.owner()) => change,
        }
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        self.database.close().await;
    }
}

impl fmt::Debug for SqliteDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteDriver").field("path", &self.path()).finish_non_exhaustive()
    }
}
