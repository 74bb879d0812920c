//! Those who wait in order tell each other, as far as they are of one process.
//!
//! A database that tells nobody of a release is asked again and again. Who has a place just behind
//! another of the same process need not: nothing changes for it before that one goes, and then it is
//! told. Only who is next after the holder asks on, since a hold can end in other ways. As long as
//! the other's place stands, it is enough to keep one's own.

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
    /// Who was found just before this one.
    ahead: Option<OwnerId>,
    /// Whom to tell when this one goes.
    behind: Option<OwnerId>,
    /// It was found behind a place, and told nothing since.
    relies: bool,
    /// Until when its place stands, unless it is removed.
    stands_until: Option<Instant>,
    /// It stood just behind a claim that held the lock and has gone.
    is_next: bool,
    /// Keeps one piece of news until it is fetched.
    news: Arc<Notify>,
}

/// Who is just before a claim that has a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    pub(crate) owner: OwnerId,
    /// It has a place, too; otherwise it holds the lock.
    pub(crate) waits: bool,
    /// The claim is known to have had no place before, or none any more.
    pub(crate) is_new: bool,
}

impl Neighbours {
    /// Takes note of a claim that is about to ask; whether it was noted already.
    pub(crate) fn come(&self, owner: OwnerId) -> bool {
        let mut claims = self.claims();
        let is_known = claims.contains_key(&owner);
        claims.entry(owner).or_default();
        is_known
    }

    /// Has `owner` told when `ahead` goes, which was found just before it; whether it need not ask
    /// until then.
    pub(crate) fn follow(&self, owner: OwnerId, ahead: Ahead) -> bool {
        let mut claims = self.claims();
        let Some(own) = claims.get_mut(&owner) else { return false };
        let has_moved = own.ahead.replace(ahead.owner) != Some(ahead.owner);
        (own.relies, own.is_next) = (false, false);
        if has_moved || ahead.is_new {
            // Its place may be no more before that of who stood behind it.
            let behind = own.behind.take();
            tell(&mut claims, behind);
        }
        let Some(neighbour) = claims.get_mut(&ahead.owner) else { return false };
        let before = neighbour.behind.replace(owner).filter(|before| *before != owner);
        // Somebody else stands there by now.
        tell(&mut claims, before);
        if let Some(own) = claims.get_mut(&owner) {
            own.relies = ahead.waits;
        }
        ahead.waits
    }

    /// Takes note of a place that stands until then, or of one that is no more, its owner having
    /// been granted the lock.
    pub(crate) fn stand(&self, owner: OwnerId, until: Option<Instant>) {
        if let Some(own) = self.claims().get_mut(&owner) {
            own.stands_until = until;
        }
    }

    /// Whether `owner` was found behind a place that stands still, and has been told nothing since.
    pub(crate) fn relies(&self, owner: OwnerId) -> bool {
        let claims = self.claims();
        let Some(own) = claims.get(&owner).filter(|own| own.relies) else { return false };
        let ahead = own.ahead.and_then(|ahead| claims.get(&ahead));
        ahead.and_then(|ahead| ahead.stands_until).is_some_and(|until| until > Instant::now())
    }

    /// Whether it is probably the turn of `owner`.
    #[cfg(feature = "mysql")]
    pub(crate) fn is_next(&self, owner: OwnerId) -> bool {
        self.claims().get(&owner).is_some_and(|own| own.is_next)
    }

    /// Forgets a claim that neither holds nor waits any more, and tells the next, if there is one.
    pub(crate) fn go(&self, owner: OwnerId) -> Option<OwnerId> {
        let mut claims = self.claims();
        let gone = claims.remove(&owner)?;
        let next = claims.get_mut(&gone.behind?)?;
        next.is_next = gone.stands_until.is_none();
        tell(&mut claims, gone.behind)
    }

    /// The next news for `owner`; none ever if it is not known.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news are taken only when this returns.
    pub(crate) async fn changed(&self, owner: OwnerId) -> Change {
        let news = self.claims().get(&owner).map(|neighbour| Arc::clone(&neighbour.news));
        match news {
            Some(news) => news.notified().await,
            None => std::future::pending().await,
        }
        Change::AskAgain
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<OwnerId, Neighbour>> {
        // Every change is one call of the map, or of one entry.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells `owner`, if it is there still.
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

    use super::{Ahead, Neighbours};

    async fn has_news(neighbours: &Neighbours, owner: OwnerId) -> bool {
        select! {
            biased;
            _ = neighbours.changed(owner) => true,
            () = ready(()) => false,
        }
    }

    /// Behind the place of `owner`.
    fn place(owner: OwnerId) -> Ahead {
        Ahead { owner, waits: true, is_new: false }
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
        assert!(neighbours.follow(b, place(a)) && neighbours.follow(c, place(b)));
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

    #[tokio::test]
    async fn who_stands_behind_a_hold_is_told_and_asks_on() {
        let neighbours = Neighbours::default();
        let [a, b] = known(&neighbours);
        assert!(!neighbours.follow(b, Ahead { waits: false, ..place(a) }));
        neighbours.go(a);
        assert!(has_news(&neighbours, b).await);
    }

    #[tokio::test]
    async fn nobody_waits_for_the_word_of_a_stranger() {
        let neighbours = Neighbours::default();
        let ([b], a) = (known(&neighbours), OwnerId::random());
        assert!(!neighbours.follow(b, place(a)));
        assert!(!neighbours.follow(a, place(b)), "who would be told?");
        neighbours.come(a);
        assert!(neighbours.follow(b, place(a)));
        neighbours.go(a);
        assert!(!neighbours.follow(b, place(a)), "it has gone");
    }

    #[tokio::test]
    async fn who_is_not_the_next_any_more_learns_of_it() {
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        neighbours.follow(b, place(a));
        neighbours.follow(b, place(a));
        assert!(!has_news(&neighbours, b).await);
        neighbours.follow(c, place(a));
        assert!(has_news(&neighbours, b).await);
        neighbours.go(a);
        assert!(has_news(&neighbours, c).await);
    }

    /// The place of the first one ran out, and it has another one.
    #[tokio::test]
    async fn who_comes_back_tells_who_stood_behind_it() {
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        assert!(neighbours.follow(b, place(a)) && neighbours.follow(c, place(b)));
        neighbours.follow(a, place(c));
        assert!(has_news(&neighbours, b).await);
        neighbours.follow(a, place(c));
        assert!(!has_news(&neighbours, b).await && !has_news(&neighbours, c).await);
        // Behind the same one, and not where it was.
        neighbours.follow(b, place(a));
        neighbours.follow(a, Ahead { is_new: true, ..place(c) });
        assert!(has_news(&neighbours, b).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_behind_a_place_relies_on_it_while_it_stands() {
        const LEASE: Duration = Duration::from_secs(3);
        let neighbours = Neighbours::default();
        let [a, b, c] = known(&neighbours);
        let stand = |owner| neighbours.stand(owner, Some(Instant::now() + LEASE));
        [a, b, c].iter().copied().for_each(stand);
        neighbours.follow(b, place(a));
        neighbours.follow(c, place(b));
        assert!(!neighbours.relies(a), "nobody is before it");
        assert!(neighbours.relies(b) && neighbours.relies(c));
        advance(LEASE).await;
        assert!(!neighbours.relies(b), "the place before it has run out");
        [a, b, c].iter().copied().for_each(stand);
        assert!(neighbours.relies(b));

        neighbours.stand(a, None);
        assert!(!neighbours.relies(b), "that is a hold now");
        neighbours.follow(b, Ahead { waits: false, ..place(a) });
        stand(a);
        assert!(!neighbours.relies(b), "it was not a place");
        neighbours.go(b);
        assert!(!neighbours.relies(c), "it was told");
        neighbours.follow(c, place(a));
        assert!(neighbours.relies(c));
    }
}
