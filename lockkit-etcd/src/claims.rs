mod asking;
mod moving;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::driver::{
    Backoff, Change, Claim, DriverError, Limit, Looks, OwnerId, Release, Renewal, Turnstile, Vouch,
};
use tokio::select;
use tokio::time::sleep;

pub(crate) use self::asking::Begun;
use crate::board::News;
use crate::entry::{Entries, Entry, Standing, Traces};
use crate::error::Failure;
use crate::keepalive::Keepalive;
use crate::layout::Dialect;
use crate::leases::{Lease, Leases};
use crate::members::Members;
use crate::queue::{self, Last, Place, Seen};
use crate::reader::{Haste, Reader};
use crate::watch::Watch;

/// What the driver does for its claims.
#[derive(Debug)]
pub(crate) struct Claims {
    members: Arc<Members>,
    dialect: Dialect,
    keepalive: Arc<Keepalive>,
    leases: Leases,
    reader: Reader,
    watch: Watch,
    entries: Mutex<Entries>,
    /// The looks at the last keys of a queue, by those who take places.
    looks: Looks<Last>,
    /// Limits those who look, should they not wait for one another.
    looking: Turnstile,
}

/// How many of those who take places look at queues at the same time.
const MOST_LOOKS: usize = 4;

impl Claims {
    pub(crate) fn new(members: Arc<Members>, dialect: Dialect) -> Self {
        let keepalive = Arc::new(Keepalive::new(Arc::clone(&members)));
        let leases = Leases::new(Arc::clone(&members), Arc::clone(&keepalive));
        let reader = Reader::new(Arc::clone(&members));
        let watch = Watch::new(Arc::clone(&members));
        let entries = Mutex::default();
        let (looks, looking) = (Looks::default(), Turnstile::new(MOST_LOOKS));
        Self { members, dialect, keepalive, leases, reader, watch, entries, looks, looking }
    }

    /// Where the claim stands now, with a lease that is long enough if it is first; `None` if it
    /// does no longer.
    async fn look(
        &self,
        entry: &Entry,
        stands: Standing,
        claim: &Claim,
        limit: Limit,
    ) -> Result<Option<Place>, Failure> {
        let (seen, is_alive) =
            tokio::join!(self.see(entry, &stands, limit), self.refresh(&stands.lease, limit));
        match seen? {
            Seen::Present(place) => {
                if !is_alive? {
                    // The server is about to remove the key, and has let nobody pass yet.
                    self.hang(entry, &stands, claim, limit).await?;
                }
                entry.stands_at(&place);
                if place.ahead.is_none()
                    && !self.is_long_enough(entry, claim)
                    && !self.lengthen(entry, claim, limit).await?
                {
                    self.displaced(entry);
                    return Err(Failure::Displaced);
                }
                Ok(Some(place))
            }
            Seen::Absent => {
                self.displaced(entry);
                Ok(None)
            }
        }
    }

    /// Where the key stands. As long as the key that was just before it at the last look is there,
    /// it still stands right behind that one: this much is read together with what others ask.
    async fn see(&self, entry: &Entry, stands: &Standing, limit: Limit) -> Result<Seen, Failure> {
        let Standing { key, created, .. } = stands;
        let (known, haste) = entry.looks();
        if let Some(ahead) = known.and_then(|created| self.watch.ahead(entry.owner, created)) {
            let (own, before) = tokio::try_join!(
                self.reader.stands(Arc::clone(key), *created, haste, limit),
                self.reader.stands(Arc::clone(&ahead.key), ahead.created, haste, limit),
            )?;
            match (own, before) {
                (None, _) => return Ok(Seen::Absent),
                (Some(own), Some(before)) => {
                    let (key, revision) = (Arc::clone(key), own.min(before));
                    let place = Place { key, created: *created, ahead: Some(ahead), revision };
                    return Ok(Seen::Present(place));
                }
                (Some(_), None) => (),
            }
        }
        queue::look(&self.members, &entry.queue, key, *created, limit).await.outcome
    }

    /// Makes what the claim holds last for another TTL; returns whether it holds anything.
    pub(crate) async fn renew(&self, claim: &Claim, limit: Limit) -> Result<Renewal, DriverError> {
        let Some(entry) = self.find(claim.owner()) else { return Ok(Renewal::Lost) };
        if !entry.traces().is_granted {
            return Ok(Renewal::Lost);
        }
        let asked = claim.now();
        let outcome = match self.is_long_enough(&entry, claim) {
            true => self.keep(&entry, limit).await,
            false => self.lengthen(&entry, claim, limit).await,
        };
        match outcome {
            Ok(true) => match entry.vouch() {
                // The lease may have been refreshed long after the key was seen.
                Some(Vouch::Lease { since, ttl }) => {
                    Ok(Renewal::Held(Vouch::Lease { since: since.min(asked), ttl }))
                }
                Some(vouch) => Ok(Renewal::Held(vouch)),
                None => Ok(Renewal::Lost),
            },
            Ok(false) => Ok(Renewal::Lost),
            Err(failure) => Err(failure.of_a_request()),
        }
    }

    /// Refreshes the lease, and makes sure that the key is there: a hold may be broken while its
    /// lease goes on.
    async fn keep(&self, entry: &Entry, limit: Limit) -> Result<bool, Failure> {
        let Some(Standing { key, created, lease }) = entry.standing() else { return Ok(false) };
        // From now on nobody else needs to look, unless this fails.
        let looks_again = std::mem::take(&mut entry.traces().looks_again);
        let stands = self.reader.stands(key, created, Haste::WithOthers, limit);
        let (stands, is_alive) = tokio::join!(stands, self.refresh(&lease, limit));
        match (stands, is_alive) {
            // Either is enough to know.
            (Ok(None), _) | (_, Ok(false)) => Ok(false),
            (Ok(Some(_)), Ok(true)) => Ok(true),
            (Err(failure), _) | (_, Err(failure)) => {
                entry.traces().looks_again |= looks_again;
                Err(failure)
            }
        }
    }

    /// Removes every trace of the claim.
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        limit: Limit,
    ) -> Result<Release, DriverError> {
        self.watch.leave(claim.owner());
        let Some(entry) = self.find(claim.owner()) else { return Ok(Release::NotHeld) };
        let held = entry.traces().is_granted;
        let removed = self.remove(&entry, limit).await;
        let was_there = removed.map_err(|failure| failure.of_a_request())?;
        self.forget(&entry);
        Ok(match held && was_there {
            true => Release::Freed,
            false => Release::NotHeld,
        })
    }

    /// Removes the key, and makes sure that nothing puts it back; returns whether it was there.
    async fn remove(&self, entry: &Entry, limit: Limit) -> Result<bool, Failure> {
        let _turn = entry.turn(limit).await?;
        let traces = entry.traces().clone();
        let was_there = match traces.created {
            Some(created) => {
                let reply =
                    queue::leave(&self.members, traces.key.as_bytes(), created, limit).await;
                // Nobody can tell whether an earlier attempt had removed it.
                reply.outcome? || reply.in_doubt
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
                // Its key was taken away, perhaps because the lease is over.
                false => self.leases.retire(&lease),
            }
        }
        *entry.traces() = Traces::default();
        Ok(was_there)
    }

    /// Whether it is known from an answer that the owner has a place.
    pub(crate) fn has_place(&self, owner: OwnerId) -> bool {
        self.find(owner).is_some_and(|entry| entry.doubts().1)
    }

    /// The key of an owner that holds or waits, if it is known from an answer that there is one.
    pub(crate) fn key_of(&self, owner: OwnerId) -> Option<Arc<str>> {
        Some(self.find(owner)?.standing()?.key)
    }

    /// The next news for whoever holds or waits. A look that it takes may last for `length`.
    pub(crate) fn changed(
        &self,
        claim: &Claim,
        length: Duration,
    ) -> impl Future<Output = Change> + Send {
        let entry = self.find(claim.owner());
        async move {
            let Some(entry) = entry else { return std::future::pending().await };
            let mut looks = false;
            if let Some(Standing { key, created, .. }) = entry.standing()
                && entry.traces().is_granted
            {
                self.watch.hold(entry.owner, key, created);
                // If the claim was released just then, nobody else ends the watch.
                if entry.standing().is_none() {
                    self.watch.leave(entry.owner);
                }
                looks = entry.traces().looks_again;
            }
            let news = match looks {
                // Boxed, since there is seldom need.
                true => Box::pin(self.told_or_seen(&entry, length)).await,
                false => self.watch.changed(entry.owner).await,
            };
            match news {
                News::LookAgain => {
                    entry.traces().looks_again = true;
                    Change::AskAgain
                }
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
    }

    /// The next news for a holder that may have missed some: it hears of a break that can be seen,
    /// too. One that does not renew when it is told to has no other way to notice.
    async fn told_or_seen(&self, entry: &Entry, length: Duration) -> News {
        select! {
            news = self.watch.changed(entry.owner) => news,
            () = self.broken(entry, length) => News::Lost,
        }
    }

    /// Returns once the key of a holder is seen to be gone. Looks until there is an answer.
    async fn broken(&self, entry: &Entry, length: Duration) {
        let mut backoff = Backoff::default();
        while let Some(Standing { key, created, .. }) = entry.standing() {
            let limit = Limit::new(length);
            match self.reader.stands(key, created, Haste::WithOthers, limit).await {
                Ok(None) => return,
                Ok(Some(_)) => {
                    entry.traces().looks_again = false;
                    break;
                }
                Err(failure) if failure.may_pass() => {
                    tracing::debug!(%failure, "whether a hold was broken is not known yet");
                    backoff.failed();
                    sleep(backoff.pause()).await;
                }
                // The next news has it looked at again.
                Err(_) => break,
            }
        }
        std::future::pending().await
    }

    /// Ends all streams and gives back the leases that nobody uses.
    pub(crate) async fn close(&self) {
        self.watch.close();
        self.reader.close();
        self.leases.close().await;
        self.keepalive.close();
    }

    /// Makes the lease last for a full TTL from now; returns whether there is such a lease.
    async fn refresh(&self, lease: &Arc<Lease>, limit: Limit) -> Result<bool, Failure> {
        match lease.is_fresh() && !lease.is_gone() {
            true => Ok(true),
            false => self.keepalive.renew(lease, limit).await,
        }
    }

    fn entry(&self, claim: &Claim) -> Arc<Entry> {
        self.entries().of(claim, self.dialect)
    }

    fn find(&self, owner: OwnerId) -> Option<Arc<Entry>> {
        self.entries().find(owner)
    }

    /// Takes note that the key is gone.
    fn displaced(&self, entry: &Entry) {
        entry.displaced();
        self.watch.leave(entry.owner);
    }

    /// Forgets a claim of which nothing is left, except for a lease that no request can name.
    fn forget(&self, entry: &Entry) {
        self.entries().remove(entry.owner);
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
