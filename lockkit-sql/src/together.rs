//! Claims that want the same thing at about the same time, and ask for it in one request.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::driver::{Claim, DriverError, ErrorKind, OwnerId};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

/// How long claims with this lease that are due at about the same time gather at most: they hear
/// nothing meanwhile.
pub(crate) fn longest(lease: Duration) -> Duration {
    (lease / 64).min(Duration::from_millis(20))
}

/// How many claims gather at most, unless a statement has room for fewer: their request keeps
/// others from the rows.
pub(crate) const MOST: usize = 512;

/// Whether many claims want the same thing at present. If so, they leave one another time to come.
#[derive(Debug, Default)]
pub(crate) struct BatchWindow(Mutex<Option<Instant>>);

impl BatchWindow {
    /// Notes that there are many, and that more may come within `longest`.
    pub(crate) fn note(&self, longest: Duration) {
        *self.until() = Some(Instant::now() + longest);
    }

    /// Waits for them, if there are many.
    pub(crate) async fn gather(&self) {
        let until = *self.until();
        if let Some(until) = until {
            sleep_until(until).await;
        }
    }

    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        // Every change is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The claims that are gathering at present, by what they have in common.
#[derive(Debug)]
pub(crate) struct Together<K> {
    open: Mutex<HashMap<K, Arc<Gathering>>>,
    most: usize,
}

/// The claims that gather for one request.
#[derive(Debug)]
struct Gathering {
    since: Instant,
    /// The claims that have come after the first one. `None` once the first one asks, or has gone.
    others: Mutex<Option<Vec<Member>>>,
}

/// A claim that gathers, and where to tell it what came of the request.
type Member = (Claim, oneshot::Sender<Outcome>);

/// What it means for a claim to have gathered.
pub(crate) enum Gathered {
    /// The claim is to ask, for all of them.
    First(Party),
    /// The first one has asked.
    Later(Outcome),
}

/// What came of a claim for which another has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// It was not done, or nothing is known of it.
    Unknown,
    /// The request failed.
    Failed(ErrorKind),
}

impl<K: Clone + Eq + Hash> Together<K> {
    /// For at most `most` claims at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self { open: Mutex::default(), most }
    }

    /// Gathers with the claims that come within `longest` and before the `all_are_there` of the
    /// first one is done. The others wait for `longest` and `limit` together, at most, to be told
    /// what came of the request.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: if the first claim goes, those that gather with it learn that nothing is known.
    pub(crate) async fn gather(
        &self,
        kind: K,
        claim: &Claim,
        all_are_there: impl Future<Output = ()>,
        longest: Duration,
        limit: Duration,
    ) -> Gathered {
        let gathering = match self.join(&kind, claim, longest) {
            Ok(told) => {
                let told = timeout(longest + limit, told).await;
                return Gathered::Later(
                    told.map_or(Outcome::Unknown, |outcome| outcome.unwrap_or(Outcome::Unknown)),
                );
            }
            Err(gathering) => Open { together: self, kind, gathering },
        };
        all_are_there.await;
        let (mut claims, mut others) = (vec![claim.clone()], Vec::new());
        for (claim, tell) in gathering.close() {
            claims.push(claim);
            others.push(tell);
        }
        Gathered::First(Party { claims, others })
    }

    /// Joins the claims that gather, or becomes the first one: even where an earlier first one
    /// should have asked by now, since that one may not be polled for a while.
    fn join(
        &self,
        kind: &K,
        claim: &Claim,
        longest: Duration,
    ) -> Result<oneshot::Receiver<Outcome>, Arc<Gathering>> {
        let mut open = self.open();
        if let Some(gathering) = open.get(kind)
            && gathering.since.elapsed() <= longest
            && let Some(others) = &mut *gathering.others()
            && others.len() + 1 < self.most
        {
            let (tell, told) = oneshot::channel();
            others.push((claim.clone(), tell));
            return Ok(told);
        }
        let (since, others) = (Instant::now(), Mutex::new(Some(Vec::new())));
        let gathering = Arc::new(Gathering { since, others });
        open.insert(kind.clone(), Arc::clone(&gathering));
        Err(gathering)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<K, Arc<Gathering>>> {
        // Every change is one call on the map.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gathering {
    fn others(&self) -> MutexGuard<'_, Option<Vec<Member>>> {
        // Every change is one call.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A gathering that can be joined. If it is dropped before it is closed, it lets those go that have
/// joined it.
struct Open<'a, K: Eq + Hash + Clone> {
    together: &'a Together<K>,
    kind: K,
    gathering: Arc<Gathering>,
}

impl<K: Clone + Eq + Hash> Open<'_, K> {
    /// Returns the claims that have come. Those that come from now on gather anew.
    fn close(self) -> Vec<Member> {
        self.gathering.others().take().unwrap_or_default()
    }
}

impl<K: Clone + Eq + Hash> Drop for Open<'_, K> {
    fn drop(&mut self) {
        self.gathering.others().take();
        let mut open = self.together.open();
        // If there is another by now, this one was full or too old.
        if open.get(&self.kind).is_some_and(|gathering| Arc::ptr_eq(gathering, &self.gathering)) {
            open.remove(&self.kind);
        }
    }
}

/// Claims for which one of them asks.
pub(crate) struct Party {
    /// The one that asks, and then the others.
    claims: Vec<Claim>,
    others: Vec<oneshot::Sender<Outcome>>,
}

impl Party {
    pub(crate) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Tells the others what came of it.
    pub(crate) fn tell(self, done: Result<&HashSet<OwnerId>, &DriverError>) {
        for (claim, tell) in self.claims.iter().skip(1).zip(self.others) {
            // The claim may have gone.
            _ = tell.send(match done {
                Ok(done) if done.contains(&claim.owner()) => Outcome::Done,
                Ok(_) => Outcome::Unknown,
                Err(error) => Outcome::Failed(error.kind()),
            });
        }
    }
}
