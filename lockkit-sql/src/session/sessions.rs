use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::FencingToken;
use lockkit_core::driver::{
    Attempt, Change, Claim, Grant, Limit, OwnerId, Release, Renewal, Taken, Vouch,
};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use super::one::Session;
use super::post::{self, Post};
use super::registry::Outcome;
use super::server::Server;

/// The sessions of a driver: one for all locks, and a few that wait.
#[derive(Debug)]
pub(crate) struct Sessions<S: Server> {
    main: Arc<Session<S>>,
    posts: Mutex<Posts<S>>,
    most_posts: usize,
}

#[derive(Debug)]
struct Posts<S: Server> {
    all: Vec<Attended<S>>,
    /// The owners whose post serves another claim by now, until they ask again.
    displaced: HashSet<OwnerId>,
}

/// A post, and what attends to it.
#[derive(Debug)]
struct Attended<S: Server> {
    post: Arc<Post<S>>,
    attendant: AbortOnDropHandle<()>,
}

/// How an ask went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted {
        token: FencingToken,
        vouch: Vouch,
    },
    /// Somebody else holds the lock.
    Taken {
        /// Whether a session waits for the claim in the server's queue.
        is_queued: bool,
    },
}

impl Answer {
    /// What the engine is told; `unqueued` if no session waits.
    pub(crate) fn attempt(self, unqueued: Taken) -> Attempt {
        match self {
            Self::Granted { token, vouch } => {
                Attempt::Granted(Grant::new().token(token).vouch(vouch))
            }
            // Asking would break the wait off, so there is no hurry.
            Self::Taken { is_queued: true } => {
                Attempt::Taken(Taken::new().ask_within(Duration::MAX))
            }
            Self::Taken { is_queued: false } => Attempt::Taken(unqueued),
        }
    }
}

impl<S: Server> Sessions<S> {
    /// Connects for the first time, with one attempt. At most `waiting` other sessions wait.
    pub(crate) async fn open(server: S, ttl: Duration, waiting: usize) -> Result<Self, S::Failure> {
        let server = Arc::new(server);
        let main = Arc::new(Session::new(server.clone(), ttl, Handle::current()));
        main.open().await?;
        let posts = Mutex::new(Posts { all: Vec::new(), displaced: HashSet::new() });
        Ok(Self { main, posts, most_posts: waiting })
    }

    pub(crate) fn server(&self) -> &S {
        &self.main.shared.server
    }

    /// After how long without an answer a session is over.
    pub(crate) fn ttl(&self) -> Duration {
        self.main.ttl()
    }

    /// Takes the lock if it is free or already the claim's. If it is not, and the claim waits, a
    /// session waits for the lock from now on, unless all are in use.
    pub(crate) async fn take(&self, claim: &Claim, limit: Duration) -> Result<Answer, S::Failure> {
        let key = self.server().key(claim.name())?;
        let post = self.posts().for_a_request_of(claim.owner());
        if let Some(post) = &post
            && let Some(outcome) = post.ask(&self.main, &key, claim, limit).await
        {
            return Ok(answer(outcome?, true));
        }
        let post = post.filter(|post| post.serves(claim.owner()));
        let may_queue = claim.waits() && (post.is_some() || self.has_room(&key));
        // A claim that waits in the server's queue need not be told.
        let listens = claim.waits() && !may_queue;
        let mut outcome = self.main.take(key.clone(), claim, listens, limit).await;
        if may_queue && matches!(outcome, Ok(Outcome::Taken)) {
            let is_queued = match &post {
                Some(post) => post.go_on(claim),
                None => self.queue(claim, &key),
            };
            if is_queued {
                return Ok(Answer::Taken { is_queued });
            }
            outcome = self.main.take(key, claim, true, limit).await;
        }
        if let Some(post) = post {
            post.dismiss(claim.owner());
        }
        Ok(answer(outcome?, false))
    }

    /// Finds out whether the session that holds the claim's lock stands.
    pub(crate) async fn renew(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Renewal, S::Failure> {
        let post = self.posts().of(claim.owner());
        match post {
            Some(post) => post.renew(claim, limit).await,
            None => self.main.renew(claim, limit).await,
        }
    }

    /// Unlocks what the claim holds, and no longer has a session wait for it.
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Release, S::Failure> {
        let (owner, limit) = (claim.owner(), Limit::new(limit));
        let post = self.posts().for_a_request_of(owner);
        let mut release = Release::NotHeld;
        if let Some(post) = post {
            release = post.release(&self.main, claim, limit.left()).await?;
        }
        if release == Release::NotHeld {
            release = self.main.release(claim, limit.left()).await?;
        }
        if let Err(failure) = self.settle(owner, limit).await {
            // For whoever repeats the call: nothing is held by then.
            self.main.note_release(owner, release);
            return Err(failure);
        }
        Ok(release)
    }

    /// Sees to it that nothing of an owner is left on sessions that broke, including that of a post
    /// that no longer serves the owner.
    async fn settle(&self, owner: OwnerId, limit: Limit) -> Result<(), S::Failure> {
        self.main.settle(owner, limit.left()).await?;
        let posts = self.posts().in_doubt_about(owner);
        for post in posts {
            post.settle(owner, limit.left()).await?;
        }
        Ok(())
    }

    /// News for a claim: that it was granted the lock for which a session waited, that no session
    /// waits for it any more, or that the session that held the lock has ended. For other claims
    /// there is none.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news is taken only when it is returned.
    pub(crate) async fn changed(&self, claim: &Claim) -> Change {
        let owner = claim.owner();
        let (post, was_displaced) = {
            let mut posts = self.posts();
            (posts.of(owner), posts.displaced.remove(&owner))
        };
        match post {
            _ if was_displaced => Change::AskAgain,
            Some(post) => {
                let change = post.changed(claim).await;
                self.posts().displaced.remove(&owner);
                change
            }
            None => {
                self.main.lost(claim).await;
                Change::Lost
            }
        }
    }

    /// Ends all sessions.
    pub(crate) async fn close(&self) {
        self.main.close().await;
        let posts = std::mem::take(&mut self.posts().all);
        for Attended { post, attendant } in posts {
            attendant.abort();
            post.close().await;
        }
    }

    fn has_room(&self, key: &S::Key) -> bool {
        let posts = self.posts();
        match posts.all.iter().find_map(|attended| attended.post.is_for(key)) {
            Some(displaceable) => displaceable,
            None => {
                let is_free = |attended: &Attended<S>| attended.post.is_free();
                posts.all.len() < self.most_posts || posts.all.iter().any(is_free)
            }
        }
    }

    /// Has a session wait for the claim: one that waits for the lock already, or a free one.
    ///
    /// Of a locker's waiters, only the one whose turn it is asks again, and no other listens. So
    /// the session waits for the one that asked last, until that one listens.
    fn queue(&self, claim: &Claim, key: &S::Key) -> bool {
        let mut posts = self.posts();
        if let Some(post) = posts.find(|post| post.is_for(key).is_some()) {
            let displaced = post.displace(claim);
            posts.displaced.extend(displaced);
            return displaced.is_some();
        }
        if posts.all.iter().any(|attended| attended.post.queue(claim, key)) {
            return true;
        }
        if posts.all.len() >= self.most_posts || self.main.is_closed() {
            return false;
        }
        let main = &self.main.shared;
        let runtime = main.runtime.clone();
        let post = Arc::new(Post::new(main.server.clone(), main.ttl, runtime.clone()));
        let attendant = AbortOnDropHandle::new(runtime.spawn(post::attend(post.clone())));
        let is_queued = post.queue(claim, key);
        posts.all.push(Attended { post, attendant });
        is_queued
    }

    fn posts(&self) -> MutexGuard<'_, Posts<S>> {
        // Nothing panics while it holds the lock.
        self.posts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Server> Posts<S> {
    fn of(&self, owner: OwnerId) -> Option<Arc<Post<S>>> {
        self.find(|post| post.serves(owner))
    }

    /// The same, for an owner that asks without waiting to be told so.
    fn for_a_request_of(&mut self, owner: OwnerId) -> Option<Arc<Post<S>>> {
        self.displaced.remove(&owner);
        self.of(owner)
    }

    fn in_doubt_about(&self, owner: OwnerId) -> Vec<Arc<Post<S>>> {
        let posts = self.all.iter().map(|attended| &attended.post);
        posts.filter(|post| post.is_in_doubt(owner)).cloned().collect()
    }

    fn find(&self, is_meant: impl Fn(&Post<S>) -> bool) -> Option<Arc<Post<S>>> {
        self.all.iter().map(|attended| &attended.post).find(|post| is_meant(post)).cloned()
    }
}

fn answer(outcome: Outcome, is_queued: bool) -> Answer {
    match outcome {
        Outcome::Granted { token, vouch } => Answer::Granted { token, vouch },
        Outcome::Taken => Answer::Taken { is_queued },
    }
}
