//! Renewals of holds: those that are due at about the same time go in one request.
//!
//! Of ten thousand holds with leases of six seconds, five thousand are renewed each second. With a
//! transaction for each, and its write to the disk, that is more than many databases carry out.

use std::collections::HashSet;
use std::time::Duration;

use lockkit_core::driver::{Claim, DriverError, OwnerId};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::together::{BatchWindow, Gathered, Outcome, Together, longest};

/// The claims that are gathering at present, by their lease.
#[derive(Debug)]
pub(crate) struct Renewals {
    together: Together<Duration>,
    /// A claim that comes while a request is under way gathers until that is done, if it is soon.
    turn: Semaphore,
    /// So does a claim that comes soon after a request for several, which shows that there are
    /// many.
    crowd: BatchWindow,
}

impl Renewals {
    /// For at most `most` claims in one request.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            together: Together::new(most),
            turn: Semaphore::new(1),
            crowd: BatchWindow::default(),
        }
    }

    /// Makes the claim's hold last for another lease; returns whether there is one. This happens at
    /// once if no other hold is being renewed, and otherwise together with those that come within a
    /// sixty-fourth of a lease, 20 ms at most.
    ///
    /// `several` returns whose holds it has certainly renewed. A hold that it left out is left to
    /// `one`: whatever keeps one lock's row busy does not hold up the others.
    ///
    /// # Errors
    ///
    /// Those of `one` and `several`; if another claim's request failed, an error of the same kind.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: if the request was this claim's, the others ask by themselves.
    pub(crate) async fn renew<O, S>(
        &self,
        claim: &Claim,
        limit: Duration,
        one: impl FnOnce(Duration) -> O,
        several: impl FnOnce(Vec<Claim>, Duration) -> S,
    ) -> Result<bool, DriverError>
    where
        O: Future<Output = Result<bool, DriverError>>,
        S: Future<Output = Result<HashSet<OwnerId>, DriverError>>,
    {
        let start = Instant::now();
        let longest = longest(claim.ttl());
        let mut turn = None;
        let its_turn = async {
            let alone = async {
                self.crowd.gather().await;
                self.turn.acquire().await
            };
            turn = timeout(longest, alone).await.ok();
        };
        match self.together.gather(claim.ttl(), claim, its_turn, longest, limit).await {
            Gathered::First(party) if party.claims().len() == 1 => return one(limit).await,
            Gathered::First(party) => {
                self.crowd.note(longest);
                let renewed = several(party.claims().to_vec(), limit).await;
                party.tell(renewed.as_ref());
                if renewed?.contains(&claim.owner()) {
                    return Ok(true);
                }
            }
            Gathered::Later(Outcome::Done) => return Ok(true),
            Gathered::Later(Outcome::Failed(kind)) => {
                return Err(DriverError::new(kind, "the renewal of several holds at once failed"));
            }
            Gathered::Later(Outcome::Unknown) => (),
        }
        drop(turn);
        one(limit.saturating_sub(start.elapsed()).max(limit / 2)).await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashSet;
    use std::future::pending;
    use std::pin::pin;

    use futures_util::future::join_all;
    use futures_util::poll;
    use lockkit_core::driver::{Claim, DriverError, ErrorKind, OwnerId};
    use lockkit_core::{LockName, Namespace};
    use tokio::time::{Duration, Instant, sleep};

    use super::{Renewals, longest};

    const LEASE: Duration = Duration::from_secs(10);
    const LIMIT: Duration = Duration::from_secs(2);
    /// How long a request takes.
    const TRIP: Duration = Duration::from_millis(5);

    fn claims<const N: usize>() -> [Claim; N] {
        [(); N].map(|()| Claim::new(LockName::new(&Namespace::default(), "a").unwrap(), LEASE))
    }

    async fn held(_: Duration) -> Result<bool, DriverError> {
        sleep(TRIP).await;
        Ok(true)
    }

    async fn lost(_: Duration) -> Result<bool, DriverError> {
        Ok(false)
    }

    async fn refused(_: Duration) -> Result<bool, DriverError> {
        Err(DriverError::new(ErrorKind::Denied, "a request of its own"))
    }

    async fn all(claims: Vec<Claim>, _: Duration) -> Result<HashSet<OwnerId>, DriverError> {
        sleep(TRIP).await;
        Ok(claims.iter().map(Claim::owner).collect())
    }

    async fn fails(_: Vec<Claim>, _: Duration) -> Result<HashSet<OwnerId>, DriverError> {
        Err(DriverError::new(ErrorKind::Unreachable, "for several"))
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_while_another_is_renewed_shares_the_next_request() {
        let renewals = Renewals::new(64);
        let [alone, first, second] = claims();
        let start = Instant::now();
        let several = async |claims: Vec<Claim>, limit| {
            assert_eq!(start.elapsed(), TRIP, "the one before was not done");
            assert_eq!(claims.len(), 2);
            assert_eq!(limit, LIMIT);
            all(claims, limit).await
        };
        let (alone, first, second) = tokio::join!(
            renewals.renew(&alone, LIMIT, held, fails),
            renewals.renew(&first, LIMIT, refused, several),
            renewals.renew(&second, LIMIT, refused, fails),
        );
        assert!(alone.unwrap() && first.unwrap() && second.unwrap());
        assert_eq!(start.elapsed(), 2 * TRIP);
        // There may be more of them.
        let [third, fourth] = claims();
        tokio::join!(
            async { assert!(renewals.renew(&third, LIMIT, refused, all).await.unwrap()) },
            async {
                sleep(TRIP).await;
                assert!(renewals.renew(&fourth, LIMIT, refused, fails).await.unwrap());
            },
        );
        assert_eq!(start.elapsed(), TRIP + longest(LEASE) + TRIP);
        // Nobody waits for long for claims that do not come.
        let [claim] = claims();
        for _ in 0..3 {
            assert!(renewals.renew(&claim, LIMIT, held, fails).await.unwrap());
        }
        assert_eq!(start.elapsed(), TRIP + 2 * longest(LEASE) + 3 * TRIP);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_long_for_a_request_that_hangs() {
        let renewals = Renewals::new(64);
        let [hangs, first, second] = claims();
        let silent = async |_| pending().await;
        let start = Instant::now();
        tokio::select! {
            biased;
            _ = renewals.renew(&hangs, LIMIT, silent, fails) => unreachable!(),
            renewed = join_all([
                renewals.renew(&first, LIMIT, refused, all),
                renewals.renew(&second, LIMIT, refused, all),
            ]) => assert!(renewed.into_iter().all(Result::unwrap)),
        }
        assert_eq!(start.elapsed(), longest(LEASE) + TRIP);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_one_that_gathers_and_is_not_polled() {
        let renewals = Renewals::new(64);
        let [hangs, parked, claim] = claims();
        let silent = async |_| pending().await;
        let start = Instant::now();
        let mut hanging = pin!(renewals.renew(&hangs, LIMIT, silent, fails));
        let mut parked = pin!(renewals.renew(&parked, LIMIT, refused, fails));
        assert!(poll!(&mut hanging).is_pending() && poll!(&mut parked).is_pending());
        sleep(longest(LEASE) + TRIP).await;
        assert!(renewals.renew(&claim, LIMIT, held, fails).await.unwrap());
        assert_eq!(start.elapsed(), 2 * longest(LEASE) + 2 * TRIP);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_renewed_with_others_is_renewed_alone() {
        let renewals = Renewals::new(64);
        let [alone, first, second] = claims();
        for (slow, left) in [(Duration::ZERO, LIMIT - TRIP), (LIMIT, LIMIT / 2)] {
            let one = |limit| {
                assert_eq!(limit, left);
                held(limit)
            };
            let none = async |_, _| {
                sleep(slow).await;
                Ok(HashSet::new())
            };
            let (_, first, second) = tokio::join!(
                renewals.renew(&alone, LIMIT, held, fails),
                renewals.renew(&first, LIMIT, one, none),
                renewals.renew(&second, LIMIT, lost, fails),
            );
            assert!(first.unwrap());
            assert!(!second.unwrap());
            // They are no longer a crowd.
            sleep(longest(LEASE)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_fails_does_so_for_all() {
        let renewals = Renewals::new(64);
        let [alone, first, second] = claims();
        let (_, first, second) = tokio::join!(
            renewals.renew(&alone, LIMIT, held, fails),
            renewals.renew(&first, LIMIT, refused, fails),
            renewals.renew(&second, LIMIT, refused, fails),
        );
        assert_eq!(first.unwrap_err().kind(), ErrorKind::Unreachable);
        assert_eq!(second.unwrap_err().kind(), ErrorKind::Unreachable);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_comes_in_parts() {
        let renewals = Renewals::new(64);
        let crowd: [Claim; 129] = claims();
        let requests = Cell::new(0);
        let renewed = join_all(crowd.iter().map(|claim| {
            renewals.renew(claim, LIMIT, held, async |claims, limit| {
                assert_eq!(claims.len(), 64);
                requests.set(requests.get() + 1);
                all(claims, limit).await
            })
        }));
        assert!(renewed.await.into_iter().all(Result::unwrap));
        assert_eq!(requests.get(), 2);
    }
}
