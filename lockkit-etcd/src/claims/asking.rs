//! How a claim asks for the lock, and takes its place in the queue.

use std::sync::Arc;

use lockkit_core::driver::{Attempt, Claim, DriverError, ErrorKind, Limit, Line, Taken};

use super::Claims;
use crate::entry::Entry;
use crate::error::Failure;
use crate::keepalive::Refresh;
use crate::leases::Lease;
use crate::queue::{self, Last, Own, Place, Seen};

/// What an ask has come to. If nothing is said yet, it goes on with [`Claims::find_place`].
pub(crate) enum Begun {
    Answered(Attempt),
    Arrived(Arrival),
}

/// A key that was put among many others, and whose place nobody knows yet.
pub(crate) struct Arrival {
    entry: Arc<Entry>,
    /// What was in doubt before.
    doubts: (bool, bool),
    put: Put,
    limit: Limit,
}

/// A key that was put, and who else looks at the queue.
struct Put {
    line: Line<Last>,
    key: Arc<str>,
    created: i64,
    /// The refresh of its lease, if one is under way.
    refresh: Option<Refresh>,
}

enum Asked {
    /// The claim does not wait, and leaves nothing.
    Refused,
    /// The refresh of the lease may still be under way.
    At(Place, Option<Refresh>),
    Put(Put),
}

impl Claims {
    /// Takes the lock if it is free and it is the claim's turn; otherwise, leaves a place if the
    /// claim waits.
    pub(crate) async fn take(&self, claim: &Claim, limit: Limit) -> Result<Attempt, DriverError> {
        match self.begin(claim, limit).await? {
            Begun::Answered(attempt) => Ok(attempt),
            Begun::Arrived(arrival) => self.find_place(claim, arrival).await,
        }
    }

    /// As [`take`](Self::take), except for the last step of a claim that takes a place among many.
    pub(crate) async fn begin(&self, claim: &Claim, limit: Limit) -> Result<Begun, DriverError> {
        let entry = self.entry(claim);
        let doubts = entry.doubts();
        match self.ask(&entry, claim, limit).await {
            Ok(Asked::Put(put)) => Ok(Begun::Arrived(Arrival { entry, doubts, put, limit })),
            Ok(Asked::At(place, refresh)) => {
                refreshed(&place, refresh, limit).await;
                self.answer(&entry, doubts, place).map(Begun::Answered)
            }
            // Refused, but an earlier attempt of this request may yet be carried out.
            Ok(Asked::Refused) if entry.traces().in_doubt => {
                Err(Failure::NoAnswer(limit.length()).of_a_request())
            }
            Ok(Asked::Refused) => {
                self.forget(&entry);
                Ok(Begun::Answered(Attempt::Taken(Taken::new())))
            }
            Err(failure) => Err(self.failed(&entry, doubts, failure)),
        }
    }

    /// That last step: looks at the queue together with the others.
    pub(crate) async fn find_place(
        &self,
        claim: &Claim,
        arrival: Arrival,
    ) -> Result<Attempt, DriverError> {
        let Arrival { entry, doubts, put: Put { line, key, created, refresh }, limit } = arrival;
        let (members, queue) = (&self.members, &entry.queue);
        let look = async {
            let last = || self.looking.pass(claim, || queue::last(members, queue, limit));
            if let Some(place) = line.look(limit.left() / 2, last).await?.place(&key, created) {
                return Ok(Seen::Present(place));
            }
            // The key is gone again, or others came in between.
            let look = || queue::look(members, queue, &key, created, limit);
            self.looking.pass(claim, look).await.outcome
        };
        match limit.bound(look).await.unwrap_or(Err(Failure::NoAnswer(limit.length()))) {
            Ok(Seen::Present(place)) => {
                entry.stands_at(&place);
                refreshed(&place, refresh, limit).await;
                self.answer(&entry, doubts, place)
            }
            Ok(Seen::Absent) => {
                self.displaced(&entry);
                Err(self.failed(&entry, doubts, Failure::Displaced))
            }
            Err(failure) => Err(self.failed(&entry, doubts, failure)),
        }
    }

    /// What it means to stand there.
    fn answer(
        &self,
        entry: &Entry,
        doubts: (bool, bool),
        place: Place,
    ) -> Result<Attempt, DriverError> {
        match (place.ahead.as_ref(), entry.grant()) {
            (None, Some(grant)) => {
                self.watch.granted(entry.owner);
                Ok(Attempt::Granted(grant?))
            }
            (Some(ahead), _) => {
                self.watch.wait(entry.owner, &place, ahead);
                Ok(Attempt::Taken(Taken::new()))
            }
            (None, None) => Err(self.failed(entry, doubts, Failure::Displaced)),
        }
    }

    /// The failure of an ask, given what was known before it.
    fn failed(&self, entry: &Entry, doubts: (bool, bool), failure: Failure) -> DriverError {
        let ((was_in_doubt, had_place), (is_in_doubt, has_place)) = (doubts, entry.doubts());
        // Nobody releases a claim that was not carried out.
        if !is_in_doubt && !has_place {
            self.forget(entry);
        }
        match is_in_doubt && !was_in_doubt || has_place && !had_place {
            true => DriverError::new(ErrorKind::Unknown, failure),
            false => failure.of_a_request(),
        }
    }

    /// Looks where the claim stands, or enters the queue.
    async fn ask(&self, entry: &Entry, claim: &Claim, limit: Limit) -> Result<Asked, Failure> {
        // Boxed, since whoever asks for the first time has no place.
        if let Some(stands) = entry.standing()
            && let Some(place) = Box::pin(self.look(entry, stands, claim, limit)).await?
        {
            return Ok(Asked::At(place, None));
        }
        let (mut from_pool, was_in_doubt) = (true, entry.traces().in_doubt);
        loop {
            let (lease, refresh) = self.lease(entry, claim, from_pool, limit).await?;
            let asked = self.enter(entry, claim, &lease, limit).await;
            if let Err(failure) = &asked
                && failure.may_be_carried_out()
            {
                // What the ask has put goes with its lease.
                let is_revoked = self.leases.revoke(&lease, limit).await.is_ok();
                let mut traces = entry.traces();
                match is_revoked {
                    // What a member has not answered is refused from now on.
                    true if failure.is_about_space() => traces.in_doubt = was_in_doubt,
                    // That was another cluster, and a member of ours may yet carry it out.
                    true => (),
                    false => traces.in_doubt = true,
                }
                return asked;
            }
            if let Err(failure) = &asked
                && failure.is_a_lost_lease()
            {
                lease.write_off();
                // A cluster that lost its data has lost the leases in the pool, too.
                if std::mem::take(&mut from_pool) {
                    continue;
                }
            }
            return Ok(match asked? {
                Asked::Put(put) => Asked::Put(Put { refresh, ..put }),
                Asked::At(place, _) => Asked::At(place, refresh),
                Asked::Refused => Asked::Refused,
            });
        }
    }

    /// The lease of the claim, and the request that refreshes it, if one is needed. The request is
    /// under way beside those of the ask.
    async fn lease(
        &self,
        entry: &Entry,
        claim: &Claim,
        from_pool: bool,
        limit: Limit,
    ) -> Result<(Arc<Lease>, Option<Refresh>), Failure> {
        let lease = match entry.lease().filter(|lease| !lease.is_gone()) {
            Some(lease) => lease,
            None if from_pool => self.leases.take(claim.ttl(), limit).await?,
            None => self.leases.grant(claim.ttl(), limit).await?,
        };
        entry.traces().lease = Some(Arc::clone(&lease));
        let refresh = (!lease.is_fresh()).then(|| self.keepalive.begin(&lease, limit));
        Ok((lease, refresh))
    }

    async fn enter(
        &self,
        entry: &Entry,
        claim: &Claim,
        lease: &Lease,
        limit: Limit,
    ) -> Result<Asked, Failure> {
        let own = Own { key: &entry.asks_with(lease), claim, lease: lease.id() };
        if !claim.waits() {
            let reply = queue::try_enter(&self.members, &entry.queue, own, limit).await;
            entry.note(reply.outcome.as_ref().ok().and_then(Option::as_ref), reply.in_doubt);
            let at = |place| Asked::At(place, None);
            return reply.outcome.map(|place| place.map_or(Asked::Refused, at));
        }
        let line = self.looks.join(entry.queue.prefix());
        if line.is_alone() {
            let reply = queue::enter(&self.members, &entry.queue, own, limit).await;
            entry.note(reply.outcome.as_ref().ok(), reply.in_doubt);
            return reply.outcome.map(|place| Asked::At(place, None));
        }
        // Set up before there is something to be seen, a watch misses nothing.
        self.watch.expect(entry.owner, own.key);
        let put = queue::put(&self.members, own, limit).await;
        let created = entry.note_put(put.outcome, put.in_doubt)?;
        Ok(Asked::Put(Put { line, key: Arc::clone(own.key), created, refresh: None }))
    }
}

/// Waits until the lease of a claim that is granted the lock there lasts for a full TTL from the
/// ask: a claim that does not renew has nothing else. After a failure, the lease is good for what
/// is known from before.
async fn refreshed(place: &Place, refresh: Option<Refresh>, limit: Limit) {
    if place.ahead.is_none()
        && let Some(refresh) = refresh
        && let answer = limit.bound(refresh.answer()).await
        && !matches!(answer, Ok(Ok(_)))
    {
        tracing::debug!(?answer, "a lease was not refreshed");
    }
}
