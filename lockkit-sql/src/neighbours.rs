//! Waiters that are served in order tell each other of changes, as far as they are in one process.
//!
//! A database that tells nobody of a release has to be asked again and again. A waiter whose place
//! is just behind another one of the same process need not ask: nothing changes for it until the
//! waiter ahead goes, and then it is told. Only the waiter next after the holder keeps asking,
//! since a hold can end in other ways. As long as the place ahead stands, it is enough for a waiter
//! to keep its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::driver::{Change, OwnerId};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The claims of one process that hold a lock, or have a place in its queue.
#[derive(Debug, Default)]
pub(crate) struct Neighbours(Mutex<HashMap<OwnerId, Neighbour>>);

#[derive(Debug, Default)]
struct Neighbour {
    has: Has,
    /// The owner that was found just ahead of it.
    ahead: Option<OwnerId>,
    /// Whom to tell when this one goes.
    behind: Option<OwnerId>,
    /// Whether it was found behind a place and has been told nothing since.
    relies: bool,
    /// Whether it stood just behind a claim that held the lock and has gone.
    is_next: bool,
    /// Whether it is about to go: its turn would be of no use to it.
    leaves: bool,
    /// Keeps one piece of news until it is fetched.
    news: Arc<Notify>,
}

/// What a claim has, as far as this process knows.
#[derive(Clone, Copy, Debug, Default)]
enum Has {
    #[default]
    Nothing,
    Place(Place),
    /// It has not been found in the queue since.
    Lock,
}

impl Has {
    fn place(self) -> Option<Place> {
        match self {
            Self::Place(place) => Some(place),
            Self::Nothing | Self::Lock => None,
        }
    }
}

/// A place in the queue.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Greater than that of every place before it.
    arrival: i64,
    /// It stands at least until then, unless it is removed.
    until: Instant,
}

/// Where a claim was found in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) arrival: i64,
    /// The claim just ahead of it.
    pub(crate) ahead: Option<Ahead>,
}

/// The claim just ahead of one that has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) owner: OwnerId,
    /// Whether it has a place, too; otherwise it holds the lock.
    pub(crate) waits: bool,
}

impl Neighbours {
    /// Takes note of a claim that is about to ask; returns whether it was noted already.
    pub(crate) fn come(&self, owner: OwnerId) -> bool {
        let mut claims = self.claims();
        let is_known = claims.contains_key(&owner);
        claims.entry(owner).or_default().leaves = false;
        is_known
    }

    /// Takes note of where `owner` was found and until when its place stands, and has it told when
    /// the claim ahead of it goes. Returns whether it need not ask before that.
    pub(crate) fn stand(&self, owner: OwnerId, standing: Standing, until: Instant) -> bool {
        let mut claims = self.claims();
        let Some(own) = claims.get_mut(&owner) else { return false };
        let place = Place { arrival: standing.arrival, until };
        let before = own.has.place().map(|place| place.arrival);
        own.has = Has::Place(place);
        (own.relies, own.is_next) = (false, false);
        let is_behind = |owner| standing.ahead.is_none_or(|ahead| Some(ahead.owner) == owner);
        if before != Some(place.arrival) || !is_behind(own.ahead) {
            // Its place may no longer be ahead of the claim that stood behind it.
            let behind = own.behind.take();
            tell(&mut claims, behind);
        }
        let Some(ahead) = standing.ahead else { return false };
        if let Some(own) = claims.get_mut(&owner) {
            own.ahead = Some(ahead.owner);
        }
        let Some(neighbour) = claims.get_mut(&ahead.owner) else { return false };
        // An answer that was read before the grant may arrive after it.
        let relies = ahead.waits && !matches!(neighbour.has, Has::Lock);
        let before = neighbour.behind.replace(owner).filter(|before| *before != owner);
        // Another claim stands there by now.
        tell(&mut claims, before);
        if let Some(own) = claims.get_mut(&owner) {
            own.relies = relies;
        }
        relies
    }

    /// Takes note that the place of `owner` was kept and stands `until` then.
    pub(crate) fn keep(&self, owner: OwnerId, until: Instant) {
        if let Some(Neighbour { has: Has::Place(place), .. }) = self.claims().get_mut(&owner) {
            place.until = until;
        }
    }

    /// Takes note that `owner` holds the lock and no longer has a place.
    pub(crate) fn hold(&self, owner: OwnerId) {
        if let Some(own) = self.claims().get_mut(&owner) {
            (own.has, own.relies) = (Has::Lock, false);
        }
    }

    /// Tells the claim that relies on `owner` that `owner` holds the lock by now, so that it keeps
    /// asking: where another process breaks a hold, nobody tells of that.
    #[cfg(feature = "sqlite")]
    pub(crate) fn tell_of_hold(&self, owner: OwnerId) {
        let mut claims = self.claims();
        let behind = claims.get(&owner).and_then(|own| own.behind);
        if behind.and_then(|behind| claims.get(&behind)).is_some_and(|behind| behind.relies) {
            tell(&mut claims, behind);
        }
    }

    /// Whether `owner` may have a place. Nothing is known of a claim that has gone, so that one
    /// may.
    #[cfg(feature = "mysql")]
    pub(crate) fn may_have_place(&self, owner: OwnerId) -> bool {
        self.claims().get(&owner).is_none_or(|own| own.has.place().is_some())
    }

    /// Whether `owner` was found behind a place that still stands, and has been told nothing since.
    ///
    /// In a chain of places, each behind another, none is ever behind itself: however late
    /// something was heard, a place counts as behind only those that came before it.
    pub(crate) fn relies(&self, owner: OwnerId) -> bool {
        let claims = self.claims();
        let Some(own) = claims.get(&owner).filter(|own| own.relies) else { return false };
        let ahead = own.ahead.and_then(|ahead| claims.get(&ahead));
        match (own.has.place(), ahead.and_then(|ahead| ahead.has.place())) {
            (Some(own), Some(ahead)) => ahead.arrival < own.arrival && ahead.until > Instant::now(),
            _ => false,
        }
    }

    /// Whether it is probably `owner`'s turn. Says so only once: a claim that is then refused had
    /// better look.
    pub(crate) fn is_next(&self, owner: OwnerId) -> bool {
        let mut claims = self.claims();
        claims.get_mut(&owner).is_some_and(|own| std::mem::take(&mut own.is_next))
    }

    /// Takes note that `owner` is about to go. Its place may be gone before that.
    #[cfg(feature = "mysql")]
    pub(crate) fn leave(&self, owner: OwnerId) {
        if let Some(own) = self.claims().get_mut(&owner) {
            own.leaves = true;
        }
    }

    /// Forgets a claim that neither holds nor waits any more, and tells the next, if there is one
    /// that is to stay.
    pub(crate) fn go(&self, owner: OwnerId) -> Option<OwnerId> {
        let mut claims = self.claims();
        let gone = claims.remove(&owner)?;
        let next = claims.get_mut(&gone.behind?).filter(|next| !next.leaves)?;
        next.is_next = gone.has.place().is_none();
        tell(&mut claims, gone.behind)
    }

    /// The next news for `owner`; if it is not known, there never is any.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news is taken only when this returns.
    pub(crate) async fn changed(&self, owner: OwnerId) -> Change {
        let news = self.claims().get(&owner).map(|neighbour| Arc::clone(&neighbour.news));
        match news {
            Some(news) => news.notified().await,
            None => std::future::pending().await,
        }
        Change::AskAgain
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<OwnerId, Neighbour>> {
        // Every change is one call on the map, or on one entry.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells `owner`, if it is still there.
fn tell(claims: &mut HashMap<OwnerId, Neighbour>, owner: Option<OwnerId>) -> Option<OwnerId> {
    let owner = owner?;
    let told = claims.get_mut(&owner)?;
    told.relies = false;
    told.news.notify_one();
    Some(owner)
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use lockkit_core::driver::OwnerId;
    use tokio::select;
    use tokio::time::{Duration, Instant, advance};

    use super::{Ahead, Neighbours, Standing};

    const LEASE: Duration = Duration::from_secs(3);

    async fn has_news(neighbours: &Neighbours, owner: OwnerId) -> bool {
        select! {
            biased;
            _ = neighbours.changed(owner) => true,
            () = ready(()) => false,
        }
    }

    /// Notes that `owner` stands behind the place of `ahead`.
    fn stand(neighbours: &Neighbours, owner: OwnerId, arrival: i64, ahead: OwnerId) -> bool {
        behind(neighbours, owner, arrival, Some(Ahead { owner: ahead, waits: true }))
    }

    fn behind(neighbours: &Neighbours, owner: OwnerId, arrival: i64, ahead: Option<Ahead>) -> bool {
        neighbours.stand(owner, Standing { arrival, ahead }, Instant::now() + LEASE)
    }

    /// Claims that are about to ask.
    fn known<const N: usize>(neighbours: &Neighbours) -> [OwnerId; N] {
        [(); N].map(|()| {
            let owner = OwnerId::random();
            assert!(!neighbours.come(owner));
            owner
        })
    }

    #[tokio::test]
    async fn who_goes_tells_the_next_and_no_other() {
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        assert!(neighbours.come(b), "forgotten");
        assert!(stand(&neighbours, b, 2, a) && stand(&neighbours, c, 3, b));
        for owner in [a, b, c] {
            assert!(!has_news(&neighbours, owner).await);
        }
        neighbours.go(a);
        assert!(!has_news(&neighbours, c).await);
        assert!(has_news(&neighbours, b).await);
        assert!(!has_news(&neighbours, b).await, "told twice");
        neighbours.go(b);
        assert!(has_news(&neighbours, c).await);
    }

    /// Its place may be gone by now, and nobody else be told of the lock.
    #[cfg(feature = "mysql")]
    #[tokio::test]
    async fn who_is_about_to_go_is_no_next_one() {
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        behind(&neighbours, b, 2, Some(Ahead { owner: a, waits: false }));
        stand(&neighbours, c, 3, b);
        neighbours.leave(b);
        assert_eq!(neighbours.go(a), None);
        assert_eq!(neighbours.go(b), Some(c));
        // It asks all the same.
        let [d] = known(&neighbours);
        behind(&neighbours, c, 3, Some(Ahead { owner: d, waits: false }));
        neighbours.leave(c);
        assert!(neighbours.come(c));
        assert_eq!(neighbours.go(d), Some(c));
    }

    #[tokio::test]
    async fn who_stands_behind_a_hold_is_told_and_asks_on() {
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        assert!(!behind(&neighbours, b, 2, Some(Ahead { owner: a, waits: false })));
        stand(&neighbours, c, 3, b);
        neighbours.go(a);
        assert!(has_news(&neighbours, b).await);
        assert!(neighbours.is_next(b));
        assert!(!neighbours.is_next(b), "it had its turn");
        neighbours.go(b);
        assert!(!neighbours.is_next(c), "that was only a place");
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn who_relied_on_a_place_is_told_that_it_is_a_hold() {
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        behind(&neighbours, a, 1, None);
        assert!(stand(&neighbours, b, 2, a) && stand(&neighbours, c, 3, b));
        neighbours.hold(a);
        neighbours.tell_of_hold(a);
        assert!(has_news(&neighbours, b).await);
        assert!(!has_news(&neighbours, c).await);
        behind(&neighbours, b, 2, Some(Ahead { owner: a, waits: false }));
        // The holder asks again.
        neighbours.tell_of_hold(a);
        assert!(!has_news(&neighbours, b).await, "it knows");
        neighbours.go(a);
        assert!(has_news(&neighbours, b).await);
        assert!(neighbours.is_next(b));
    }

    #[tokio::test]
    async fn nobody_relies_on_a_place_that_is_a_hold_by_now() {
        let neighbours = Neighbours::default();
        let [a, b] = known(&neighbours);
        behind(&neighbours, a, 1, None);
        neighbours.hold(a);
        // The answer was read before that.
        assert!(!stand(&neighbours, b, 2, a));
        assert!(!neighbours.relies(b));
        neighbours.go(a);
        assert!(has_news(&neighbours, b).await);
        // A claim that comes back may have a place again.
        neighbours.come(a);
        behind(&neighbours, a, 3, None);
        assert!(stand(&neighbours, b, 4, a));
    }

    #[tokio::test]
    async fn nobody_waits_for_the_word_of_a_stranger() {
        let neighbours = Neighbours::default();
        let ([b], a) = (known(&neighbours), OwnerId::random());
        assert!(!stand(&neighbours, b, 2, a));
        assert!(!stand(&neighbours, a, 1, b), "who would be told?");
        neighbours.come(a);
        assert!(stand(&neighbours, b, 2, a));
        neighbours.go(a);
        assert!(!stand(&neighbours, b, 2, a), "it has gone");
    }

    #[tokio::test]
    async fn who_is_not_the_next_any_more_learns_of_it() {
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        stand(&neighbours, b, 2, a);
        stand(&neighbours, b, 2, a);
        assert!(!has_news(&neighbours, b).await);
        stand(&neighbours, c, 3, a);
        assert!(has_news(&neighbours, b).await);
        neighbours.go(a);
        assert!(has_news(&neighbours, c).await);
    }

    /// The place of the first claim ran out, and it has another one.
    #[tokio::test]
    async fn who_comes_back_tells_who_stood_behind_it() {
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        behind(&neighbours, a, 1, None);
        assert!(stand(&neighbours, b, 2, a) && stand(&neighbours, c, 3, b));
        stand(&neighbours, a, 4, c);
        assert!(has_news(&neighbours, b).await);
        stand(&neighbours, a, 4, c);
        assert!(!has_news(&neighbours, b).await && !has_news(&neighbours, c).await);
        // It is behind the same claim, but not where it was.
        stand(&neighbours, b, 2, a);
        stand(&neighbours, a, 5, c);
        assert!(has_news(&neighbours, b).await);
    }

    /// Two places that stood one after the other ran out, and a third did not.
    #[tokio::test]
    async fn nobody_relies_on_who_relies_on_it() {
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        behind(&neighbours, a, 1, None);
        assert!(stand(&neighbours, b, 2, a) && stand(&neighbours, c, 3, b));
        assert!(stand(&neighbours, a, 4, c) && stand(&neighbours, b, 5, a));
        assert!(has_news(&neighbours, c).await);
        assert!(neighbours.relies(a) && neighbours.relies(b) && !neighbours.relies(c));
        // An answer that was read before they came back arrives late.
        stand(&neighbours, c, 3, b);
        assert!(!neighbours.relies(c));
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_behind_a_place_relies_on_it_while_it_stands() {
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        behind(&neighbours, a, 1, None);
        stand(&neighbours, b, 2, a);
        stand(&neighbours, c, 3, b);
        assert!(!neighbours.relies(a), "nobody is before it");
        assert!(neighbours.relies(b) && neighbours.relies(c));
        advance(LEASE).await;
        assert!(!neighbours.relies(b), "the place before it has run out");
        for owner in [a, b, c] {
            neighbours.keep(owner, Instant::now() + LEASE);
        }
        assert!(neighbours.relies(b));

        neighbours.hold(a);
        assert!(!neighbours.relies(b), "that is a hold now");
        behind(&neighbours, b, 2, Some(Ahead { owner: a, waits: false }));
        assert!(!neighbours.relies(b), "it was not a place");
        neighbours.go(b);
        assert!(!neighbours.relies(c), "it was told");
        behind(&neighbours, a, 1, None);
        stand(&neighbours, c, 3, a);
        assert!(neighbours.relies(c));
    }
}
