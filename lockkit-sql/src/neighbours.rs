//! Those who wait in order tell each other, as far as they are of one process.
//!
//! A database that tells nobody of a release is asked again and again. Who has a place just behind
//! another of the same process need not: nothing changes for it before that one goes, and then it is
//! told. Only who is next after the holder asks on, since a hold can end in other ways.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::driver::{Change, OwnerId};
use tokio::sync::Notify;

/// The claims of one process that hold a lock, or have a place in its queue.
#[derive(Debug, Default)]
pub(crate) struct Neighbours(Mutex<HashMap<OwnerId, Neighbour>>);

#[derive(Debug, Default)]
struct Neighbour {
    /// Whom to tell when this one goes.
    behind: Option<OwnerId>,
    /// Keeps one piece of news until it is fetched.
    news: Arc<Notify>,
}

impl Neighbours {
    /// Takes note of a claim that is about to ask; whether it was noted already.
    pub(crate) fn come(&self, owner: OwnerId) -> bool {
        let mut claims = self.claims();
        let is_known = claims.contains_key(&owner);
        claims.entry(owner).or_default();
        is_known
    }

    /// Has `owner` told when `ahead` goes, which was found just before it; whether both are known.
    pub(crate) fn follow(&self, owner: OwnerId, ahead: OwnerId) -> bool {
        let mut claims = self.claims();
        if !claims.contains_key(&owner) {
            return false;
        }
        let Some(neighbour) = claims.get_mut(&ahead) else { return false };
        let before = neighbour.behind.replace(owner).filter(|before| *before != owner);
        // Somebody else stands there by now.
        tell(&claims, before);
        true
    }

    /// Tells who stood behind a claim that has lost its place, and has another one by now.
    #[cfg(feature = "mysql")]
    pub(crate) fn let_pass(&self, owner: OwnerId) {
        let mut claims = self.claims();
        let behind = claims.get_mut(&owner).and_then(|neighbour| neighbour.behind.take());
        tell(&claims, behind);
    }

    /// Forgets a claim that neither holds nor waits any more, and tells the next, if there is one.
    pub(crate) fn go(&self, owner: OwnerId) -> Option<OwnerId> {
        let mut claims = self.claims();
        let gone = claims.remove(&owner);
        tell(&claims, gone.and_then(|gone| gone.behind))
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
fn tell(claims: &HashMap<OwnerId, Neighbour>, owner: Option<OwnerId>) -> Option<OwnerId> {
    let owner = owner?;
    claims.get(&owner)?.news.notify_one();
    Some(owner)
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use lockkit_core::driver::OwnerId;
    use tokio::select;

    use super::Neighbours;

    async fn has_news(neighbours: &Neighbours, owner: OwnerId) -> bool {
        select! {
            biased;
            _ = neighbours.changed(owner) => true,
            () = ready(()) => false,
        }
    }

    #[tokio::test]
    async fn who_goes_tells_the_next_and_no_other() {
        let (neighbours, [a, b, c]) = (Neighbours::default(), [(); 3].map(|()| OwnerId::random()));
        for owner in [a, b, c] {
            assert!(!neighbours.come(owner));
        }
        assert!(neighbours.come(b), "forgotten");
        assert!(neighbours.follow(b, a) && neighbours.follow(c, b));
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
    async fn nobody_waits_for_the_word_of_a_stranger() {
        let (neighbours, [a, b]) = (Neighbours::default(), [(); 2].map(|()| OwnerId::random()));
        neighbours.come(b);
        assert!(!neighbours.follow(b, a));
        assert!(!neighbours.follow(a, b), "who would be told?");
        neighbours.come(a);
        assert!(neighbours.follow(b, a));
        neighbours.go(a);
        assert!(!neighbours.follow(b, a), "it has gone");
    }

    #[tokio::test]
    async fn who_is_not_the_next_any_more_learns_of_it() {
        let (neighbours, [a, b, c]) = (Neighbours::default(), [(); 3].map(|()| OwnerId::random()));
        for owner in [a, b, c] {
            neighbours.come(owner);
        }
        neighbours.follow(b, a);
        neighbours.follow(b, a);
        assert!(!has_news(&neighbours, b).await);
        neighbours.follow(c, a);
        assert!(has_news(&neighbours, b).await);
        neighbours.go(a);
        assert!(has_news(&neighbours, c).await);
    }
}
