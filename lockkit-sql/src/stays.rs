//! Places that are only to be kept: those of one lock go in one request.
//!
//! A waiter that is served in order has to refresh its place about once in a third of its lease.
//! For ten thousand waiters with leases of ten seconds, that is three thousand transactions a
//! second if each has its own: more than most databases carry out.

use std::collections::HashSet;
use std::time::Duration;

use lockkit_core::LockName;
use lockkit_core::driver::{Claim, DriverError, OwnerId};
use tokio::time::sleep;

use crate::together::{Gathered, MOST, Outcome, Together, longest};

/// The claims that are gathering at present, by what they have in common: the lock and their lease.
#[derive(Debug)]
pub(crate) struct Stays(Together<(LockName, Duration)>);

impl Default for Stays {
    fn default() -> Self {
        Self(Together::new(MOST))
    }
}

impl Stays {
    /// Keeps the claim's place, in one request with all that are due at about the same time: within
    /// a sixty-fourth of a lease, 20 ms at most. Returns whether the place is known to stand.
    /// `keep` is given the owners whose places to keep, and returns those whose places stand; it
    /// has to end within `limit`.
    ///
    /// # Errors
    ///
    /// That of `keep` for the claim whose request it was; an error of the same kind for the others.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: if the request was this claim's, the others learn that nothing is known.
    pub(crate) async fn keep<F>(
        &self,
        claim: &Claim,
        limit: Duration,
        keep: impl FnOnce(Vec<OwnerId>) -> F,
    ) -> Result<bool, DriverError>
    where
        F: Future<Output = Result<HashSet<OwnerId>, DriverError>>,
    {
        let kind = (claim.name().clone(), claim.ttl());
        let together = longest(claim.ttl());
        match self.0.gather(kind, claim, sleep(together), together, limit).await {
            Gathered::First(party) => {
                let kept = keep(party.claims().iter().map(Claim::owner).collect()).await;
                party.tell(kept.as_ref());
                Ok(kept?.contains(&claim.owner()))
            }
            Gathered::Later(Outcome::Failed(kind)) => {
                Err(DriverError::new(kind, "the places that were to be kept together were not"))
            }
            Gathered::Later(outcome) => Ok(outcome == Outcome::Done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::future::pending;

    use futures_util::future::join_all;
    use lockkit_core::driver::{Claim, DriverError, ErrorKind, OwnerId};
    use lockkit_core::{LockName, Namespace};
    use tokio::time::{Duration, Instant, timeout};

    use super::{MOST, Stays, longest};

    type Answer = Result<HashSet<OwnerId>, DriverError>;

    const LEASE: Duration = Duration::from_secs(10);
    const LIMIT: Duration = Duration::from_secs(1);

    fn claim(name: &str) -> Claim {
        Claim::new(LockName::new(&Namespace::default(), name).unwrap(), LEASE).fair()
    }

    /// Keeps all places except that one.
    async fn all_but(places: Vec<OwnerId>, gone: OwnerId) -> Answer {
        Ok(places.into_iter().filter(|place| *place != gone).collect())
    }

    async fn alone(_: Vec<OwnerId>) -> Answer {
        Err(DriverError::new(ErrorKind::Denied, "a request of its own"))
    }

    #[tokio::test(start_paused = true)]
    async fn those_of_one_lock_are_kept_together() {
        let stays = Stays::default();
        let [first, second, gone] = [(); 3].map(|()| claim("a"));
        let (elsewhere, nobody) = (claim("b"), OwnerId::random());
        let start = Instant::now();
        let (kept, others, lost, apart) = tokio::join!(
            stays.keep(&first, LIMIT, async |places| {
                assert_eq!(places, [first.owner(), second.owner(), gone.owner()]);
                all_but(places, gone.owner()).await
            }),
            stays.keep(&second, LIMIT, alone),
            stays.keep(&gone, LIMIT, alone),
            stays.keep(&elsewhere, LIMIT, async |places| {
                assert_eq!(places, [elsewhere.owner()]);
                all_but(places, nobody).await
            }),
        );
        assert!(kept.unwrap() && others.unwrap() && apart.unwrap());
        assert!(!lost.unwrap());
        assert_eq!(start.elapsed(), longest(LEASE));
        // A claim that comes later has a request of its own.
        let asked = stays.keep(&second, LIMIT, async |places| all_but(places, nobody).await);
        assert!(asked.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_left_waiting_by_who_goes_fails_or_gets_no_answer() {
        let stays = Stays::default();
        let [first, second] = [(); 2].map(|()| claim("a"));
        let (dropped, kept) = tokio::join!(
            timeout(longest(LEASE) / 2, stays.keep(&first, LIMIT, alone)),
            stays.keep(&second, LIMIT, alone),
        );
        assert!(dropped.is_err());
        assert!(!kept.unwrap());

        for kind in [ErrorKind::Denied, ErrorKind::Unknown] {
            let fail = async |_| Err(DriverError::new(kind, "failed"));
            let (failed, kept) =
                tokio::join!(stays.keep(&first, LIMIT, fail), stays.keep(&second, LIMIT, alone));
            assert_eq!(failed.unwrap_err().kind(), kind);
            assert_eq!(kept.unwrap_err().kind(), kind, "nobody knows more of it");
        }

        let silent = async |_| pending::<Answer>().await;
        let start = Instant::now();
        tokio::select! {
            biased;
            _ = stays.keep(&first, LIMIT, silent) => unreachable!(),
            kept = stays.keep(&second, LIMIT, alone) => assert!(!kept.unwrap()),
        }
        assert_eq!(start.elapsed(), longest(LEASE) + LIMIT);
        // The silent request goes on, and holds up no other.
        let asked =
            stays.keep(&second, LIMIT, async |places| all_but(places, OwnerId::random()).await);
        assert!(asked.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_comes_in_parts() {
        let stays = Stays::default();
        let claims: Vec<_> = (0..2 * MOST).map(|_| claim("a")).collect();
        let start = Instant::now();
        let kept = join_all(claims.iter().map(|claim| {
            stays.keep(claim, LIMIT, async |places| {
                assert_eq!(places.len(), MOST);
                all_but(places, OwnerId::random()).await
            })
        }));
        assert!(kept.await.into_iter().all(Result::unwrap));
        assert_eq!(start.elapsed(), longest(LEASE), "one waits for the other");
    }
}
