//! Places that are only to be kept, those of one lock in one request.
//!
//! Who waits in order has to refresh its place in each third of its lease. Of ten thousand waiters
//! with leases of ten seconds that is three thousand transactions a second, if each has one of its
//! own: more than most databases carry out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::iter::once;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::LockName;
use lockkit_core::driver::{Claim, DriverError, ErrorKind, OwnerId};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// For how long those gather at most who are due at about the same time: they hear nothing meanwhile.
const LONGEST: Duration = Duration::from_millis(20);
/// How many gather at most: their request keeps others from the lock's row.
const MOST: usize = 512;

/// Those who gather at present.
#[derive(Debug, Default)]
pub(crate) struct Stays(Mutex<HashMap<Kind, Vec<Member>>>);

/// What those have in common who gather: the lock and their lease.
type Kind = (LockName, Duration);

/// One of those who gather, and where to tell it what came of it.
type Member = (OwnerId, oneshot::Sender<Kept>);

/// What came of a place.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Stands,
    /// It is not there, or nothing is known of it.
    Unknown,
    /// The request failed that was made for it.
    Failed,
}

impl Stays {
    /// Keeps the claim's place, by a request with whoever is due at about the same time: within a
    /// sixty-fourth of a lease, and 20 ms. Returns whether it is known to stand. `keep` is told whose places to keep, and says which of
    /// them stand; it has to end within `limit`.
    ///
    /// # Errors
    ///
    /// That of `keep`, for the one whose request it was; the others are told that it failed.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: if the request was this one's, the others learn that nothing is known.
    pub(crate) async fn keep<F>(
        &self,
        claim: &Claim,
        limit: Duration,
        keep: impl FnOnce(Vec<OwnerId>) -> F,
    ) -> Result<bool, DriverError>
    where
        F: Future<Output = Result<Vec<OwnerId>, DriverError>>,
    {
        let kind = (claim.name().clone(), claim.ttl());
        let together = (claim.ttl() / 64).min(LONGEST);
        loop {
            let told = match self.all().entry(kind.clone()) {
                Entry::Occupied(gathering) if gathering.get().len() >= MOST - 1 => None,
                Entry::Occupied(mut gathering) => {
                    let (tell, told) = oneshot::channel();
                    gathering.get_mut().push((claim.owner(), tell));
                    Some(told)
                }
                Entry::Vacant(gathering) => {
                    gathering.insert(Vec::new());
                    break;
                }
            };
            match told {
                // Who makes the request may not be polled for a while.
                Some(told) => match timeout(together + limit, told).await {
                    Ok(Ok(Kept::Stands)) => return Ok(true),
                    Ok(Ok(Kept::Failed)) => {
                        let text = "the places that were to be kept together were not";
                        return Err(DriverError::new(ErrorKind::Unreachable, text));
                    }
                    _ => return Ok(false),
                },
                None => sleep(together).await,
            }
        }
        let gathering = Gathering { stays: self, kind: Some(kind) };
        sleep(together).await;
        let others = gathering.close();
        let owners = once(claim.owner()).chain(others.iter().map(|(owner, _)| *owner)).collect();
        let mut kept = match keep(owners).await {
            Ok(kept) => kept,
            Err(error) => {
                tell(others, |_| Kept::Failed);
                return Err(error);
            }
        };
        kept.sort_unstable();
        let stands = |owner| kept.binary_search(&owner).is_ok();
        tell(others, |owner| if stands(owner) { Kept::Stands } else { Kept::Unknown });
        Ok(stands(claim.owner()))
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Kind, Vec<Member>>> {
        // Every change is one call of the map, or of one entry.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(members: Vec<Member>, kept: impl Fn(OwnerId) -> Kept) {
    for (owner, tell) in members {
        // It may have gone.
        _ = tell.send(kept(owner));
    }
}

/// Those who gather for one request. Dropped before it is closed, it lets them go.
struct Gathering<'a> {
    stays: &'a Stays,
    kind: Option<Kind>,
}

impl Gathering<'_> {
    /// Who has come. Whoever comes from now on begins anew.
    fn close(mut self) -> Vec<Member> {
        self.take()
    }

    fn take(&mut self) -> Vec<Member> {
        let kind = self.kind.take();
        kind.and_then(|kind| self.stays.all().remove(&kind)).unwrap_or_default()
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::future::join_all;
    use lockkit_core::driver::{Claim, DriverError, ErrorKind, OwnerId};
    use lockkit_core::{LockName, Namespace};
    use tokio::time::{Duration, Instant, timeout};

    use super::{LONGEST, MOST, Stays};

    type Answer = Result<Vec<OwnerId>, DriverError>;

    const LEASE: Duration = Duration::from_secs(10);
    const LIMIT: Duration = Duration::from_secs(1);

    fn claim(name: &str) -> Claim {
        Claim::new(LockName::new(&Namespace::default(), name).unwrap(), LEASE).fair()
    }

    /// Keeps all places but that one.
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
        assert_eq!(start.elapsed(), LONGEST);
        // Whoever comes later has a request of its own.
        let asked = stays.keep(&second, LIMIT, async |places| all_but(places, nobody).await);
        assert!(asked.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_left_waiting_by_who_goes_fails_or_gets_no_answer() {
        let stays = Stays::default();
        let [first, second] = [(); 2].map(|()| claim("a"));
        let (dropped, kept) = tokio::join!(
            timeout(LONGEST / 2, stays.keep(&first, LIMIT, alone)),
            stays.keep(&second, LIMIT, alone),
        );
        assert!(dropped.is_err());
        assert!(!kept.unwrap());

        let (failed, kept) =
            tokio::join!(stays.keep(&first, LIMIT, alone), stays.keep(&second, LIMIT, alone),);
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(kept.unwrap_err().kind(), ErrorKind::Unreachable, "it was not its own");

        let silent = async |_| pending::<Answer>().await;
        let start = Instant::now();
        tokio::select! {
            biased;
            _ = stays.keep(&first, LIMIT, silent) => unreachable!(),
            kept = stays.keep(&second, LIMIT, alone) => assert!(!kept.unwrap()),
        }
        assert_eq!(start.elapsed(), LONGEST + LIMIT);
        // That request goes on, and holds up no other.
        let asked =
            stays.keep(&second, LIMIT, async |places| all_but(places, OwnerId::random()).await);
        assert!(asked.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_comes_in_parts() {
        let stays = Stays::default();
        let claims: Vec<_> = (0..2 * MOST).map(|_| claim("a")).collect();
        let kept = join_all(claims.iter().map(|claim| {
            stays.keep(claim, LIMIT, async |places| {
                assert_eq!(places.len(), MOST);
                all_but(places, OwnerId::random()).await
            })
        }));
        assert!(kept.await.into_iter().all(Result::unwrap));
    }
}
