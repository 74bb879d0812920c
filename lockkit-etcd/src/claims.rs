mod moving;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::driver::{
    Attempt, Change, Claim, DriverError, ErrorKind, Line, Looks, OwnerId, Release, Renewal, Taken,
    Turnstile,
};
use tokio::time::{Instant, timeout_at};

use crate::board::News;
use crate::entry::{Entries, Entry, Standing, Traces};
use crate::error::Failure;
use crate::keepalive::{Keepalive, Refresh};
use crate::layout::Dialect;
use crate::leases::{Lease, Leases};
use crate::members::Members;
use crate::queue::{self, Last, Own, Place, Seen};
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
    /// Of those who take places, at the last of a queue.
    looks: Looks<Last>,
    /// Should those who look not wait for one another.
    looking: Turnstile,
}

/// How many of those who take places look at queues at the same time.
const MOST_LOOKS: usize = 4;

/// What an ask has come to, which is to go on by [`Claims::find_place`] if nothing is said yet.
pub(crate) enum Begun {
    Answered(Attempt),
    Arrived(Arrival),
}

/// A key that was put among many others, and stands nobody knows where.
pub(crate) struct Arrival {
    entry: Arc<Entry>,
    /// Those of before.
    doubts: (bool, bool),
    put: Put,
    limit: Duration,
}

/// A key that was put, and who else looks at the queue.
struct Put {
    line: Line<Last>,
    key: Arc<str>,
    created: i64,
    /// Of its lease, if that is under way.
    refresh: Option<Refresh>,
    /// By when the look is to be over.
    end: Instant,
}

enum Asked {
    /// The claim does not wait, and leaves nothing.
    Refused,
    At(Place),
    Put(Put),
}

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

    /// Takes the lock if it is free and the claim's turn; else leaves a place if the claim waits.
    pub(crate) async fn take(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Attempt, DriverError> {
        match self.begin(claim, limit).await? {
            Begun::Answered(attempt) => Ok(attempt),
            Begun::Arrived(arrival) => self.find_place(claim, arrival).await,
        }
    }

    /// The same, but for the last step of one who takes a place among many.
    pub(crate) async fn begin(&self, claim: &Claim, limit: Duration) -> Result<Begun, DriverError> {
        let entry = self.entry(claim);
        let doubts = entry.doubts();
        match self.ask(&entry, claim, limit).await {
            Ok(Asked::Put(put)) => Ok(Begun::Arrived(Arrival { entry, doubts, put, limit })),
            Ok(Asked::At(place)) => self.answer(&entry, doubts, place).map(Begun::Answered),
            // Refused, but an earlier attempt of this request may yet be carried out.
            Ok(Asked::Refused) if entry.traces().in_doubt => {
                Err(Failure::NoAnswer(limit).of_a_request())
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
        let Arrival { entry, doubts, put: Put { line, key, created, refresh, end }, limit } =
            arrival;
        let (members, queue) = (&self.members, &entry.queue);
        let look = async {
            let last = self.looking.pass(claim, || queue::last(members, queue, limit));
            if let Some(place) = line.look(limit / 2, last).await?.place(&key, created) {
                return Ok(Seen::Present(place));
            }
            // It is gone again, or others came in between.
            let look = || queue::look(members, queue, &key, created, limit);
            self.looking.pass(claim, look).await.outcome
        };
        match timeout_at(end, look).await.unwrap_or(Err(Failure::NoAnswer(limit))) {
            Ok(Seen::Present(place)) => {
                entry.stands_at(&place);
                refreshed(&place, refresh).await;
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

    /// The failure of an ask, before which it was known so much.
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
    async fn ask(&self, entry: &Entry, claim: &Claim, limit: Duration) -> Result<Asked, Failure> {
        if let Some(place) = self.look(entry, claim, limit).await? {
            if place.ahead.is_none()
                && !self.is_long_enough(entry, claim)
                && !self.lengthen(entry, claim, limit).await?
            {
                self.displaced(entry);
                return Err(Failure::Displaced);
            }
            return Ok(Asked::At(place));
        }
        let end = Instant::now() + limit;
        let (mut from_pool, was_in_doubt) = (true, entry.traces().in_doubt);
        loop {
            let (lease, refresh) = self.lease(entry, claim, from_pool, limit).await?;
            let asked = self.enter(entry, claim, &lease, limit).await;
            if asked.as_ref().is_err_and(Failure::is_about_space) {
                // Nothing is left of it then.
                let left = end.saturating_duration_since(Instant::now());
                if self.leases.revoke(&lease, left).await.is_ok() {
                    entry.traces().in_doubt = was_in_doubt;
                }
                return asked;
            }
            if let Err(failure) = &asked
                && failure.is_a_lost_lease()
            {
                lease.is_over();
                // A cluster that lost its data has lost those in the pool, too.
                if std::mem::take(&mut from_pool) {
                    continue;
                }
            }
            return match asked? {
                Asked::Put(put) => Ok(Asked::Put(Put { refresh, ..put })),
                Asked::At(place) => {
                    refreshed(&place, refresh).await;
                    Ok(Asked::At(place))
                }
                Asked::Refused => Ok(Asked::Refused),
            };
        }
    }

    /// The lease of the claim, and the request that refreshes it, if it takes one. That is on its way
    /// beside those of the ask.
    async fn lease(
        &self,
        entry: &Entry,
        claim: &Claim,
        from_pool: bool,
        limit: Duration,
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
        limit: Duration,
    ) -> Result<Asked, Failure> {
        let own = Own { key: &entry.asks_with(lease), value: &entry.value, lease: lease.id() };
        if !claim.waits() {
            let reply = queue::try_enter(&self.members, &entry.queue, own, limit).await;
            entry.note(reply.outcome.as_ref().ok().and_then(Option::as_ref), reply.in_doubt);
            return reply.outcome.map(|place| place.map_or(Asked::Refused, Asked::At));
        }
        let line = self.looks.join(entry.queue.prefix());
        if line.is_alone() {
            let reply = queue::enter(&self.members, &entry.queue, own, limit).await;
            entry.note(reply.outcome.as_ref().ok(), reply.in_doubt);
            return reply.outcome.map(Asked::At);
        }
        // Set up before there is something to be seen, a watch misses nothing.
        self.watch.expect(entry.owner, own.key);
        let end = Instant::now() + limit;
        let put = queue::put(&self.members, own, limit).await;
        let created = entry.note_put(put.outcome, put.in_doubt)?;
        Ok(Asked::Put(Put { line, key: Arc::clone(own.key), created, refresh: None, end }))
    }

    /// Where the claim stands that has a place; `None` if it has none, or has it no longer.
    async fn look(
        &self,
        entry: &Entry,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Option<Place>, Failure> {
        let Some(stands) = entry.standing() else { return Ok(None) };
        let (seen, is_alive) =
            tokio::join!(self.see(entry, &stands, limit), self.refresh(&stands.lease, limit));
        match seen? {
            Seen::Present(place) => {
                if !is_alive? {
                    // The server is about to remove it, and has let nobody pass yet.
                    self.hang(entry, &stands, claim, limit).await?;
                }
                entry.stands_at(&place);
                Ok(Some(place))
            }
            Seen::Absent => {
                self.displaced(entry);
                Ok(None)
            }
        }
    }

    /// Where the key stands. As long as the one is there that was just before it at the last look, it
    /// still is: so much is read together with what others ask.
    async fn see(
        &self,
        entry: &Entry,
        stands: &Standing,
        limit: Duration,
    ) -> Result<Seen, Failure> {
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
        let Some(Standing { key, created, lease }) = entry.standing() else { return Ok(false) };
        let stands = self.reader.stands(key, created, Haste::WithOthers, limit);
        let (stands, is_alive) = tokio::join!(stands, self.refresh(&lease, limit));
        match (stands, is_alive) {
            // Either is enough to know.
            (Ok(None), _) | (_, Ok(false)) => Ok(false),
            (Ok(Some(_)), Ok(true)) => Ok(true),
            (Err(failure), _) | (_, Err(failure)) => Err(failure),
        }
    }

    /// Removes every trace of the claim.
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        limit: Duration,
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

    /// Removes the key, and makes sure that nothing puts it back; whether it was there. All of it
    /// takes no longer than one request may.
    async fn remove(&self, entry: &Entry, limit: Duration) -> Result<bool, Failure> {
        let end = Instant::now() + limit;
        let left = || end.saturating_duration_since(Instant::now());
        let _turn = entry.turn(limit).await?;
        let traces = entry.traces().clone();
        let was_there = match traces.created {
            Some(created) => {
                let reply = queue::leave(&self.members, &*traces.key, created, left()).await;
                // Whether an earlier attempt had removed it, nobody can tell.
                reply.outcome? || reply.in_doubt
            }
            None => false,
        };
        if traces.in_doubt {
            for lease in [&traces.lease, &traces.longer].into_iter().flatten() {
                self.leases.revoke(lease, left()).await?;
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

    /// Whether it was answered that whoever waits has a place.
    pub(crate) fn has_place(&self, owner: OwnerId) -> bool {
        self.find(owner).is_some_and(|entry| entry.doubts().1)
    }

    /// The key of whoever holds or waits, if it was answered that there is one.
    pub(crate) fn key_of(&self, owner: OwnerId) -> Option<Arc<str>> {
        Some(self.find(owner)?.standing()?.key)
    }

    /// The next news for whoever holds or waits.
    pub(crate) fn changed(&self, claim: &Claim) -> impl Future<Output = Change> + Send {
        let entry = self.find(claim.owner());
        async move {
            let Some(entry) = entry else { return std::future::pending().await };
            if let Some(Standing { key, created, .. }) = entry.standing()
                && entry.traces().is_granted
            {
                self.watch.hold(entry.owner, key, created);
                // Of what was released just then, nobody ends the watch.
                if entry.standing().is_none() {
                    self.watch.leave(entry.owner);
                }
            }
            match self.watch.changed(entry.owner).await {
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

    /// Forgets a claim of which nothing is left, but for a lease that no request can name.
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

/// Waits until the lease of whoever is granted the lock there lasts for a full TTL from the ask: who
/// does not renew has nothing else. After a failure it is good for what is known from before.
async fn refreshed(place: &Place, refresh: Option<Refresh>) {
    if place.ahead.is_none()
        && let Some(refresh) = refresh
        && let Err(failure) = refresh.answer().await
    {
        tracing::debug!(%failure, "a lease was not refreshed");
    }
}
