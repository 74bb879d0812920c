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
use lockkit_core::driver::{Claim, OwnerId};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// Those who gather at present.
#[derive(Debug, Default)]
pub(crate) struct Stays(Mutex<HashMap<Kind, Vec<Member>>>);

/// What those have in common who gather: the lock and their lease.
type Kind = (LockName, Duration);

/// One of those who gather, and where to tell it whether its place stands.
type Member = (OwnerId, oneshot::Sender<bool>);

impl Stays {
    /// Keeps the claim's place, by a request with whoever is due within a sixty-fourth of a lease;
    /// whether that place stands. `keep` is told whose places to keep, and says which of them stand.
    ///
    /// If the request of the others takes longer than `patience`, or is not carried out, the answer
    /// is that nothing is known of the place.
    ///
    /// # Errors
    ///
    /// That of `keep`. It goes to the one whose request it was.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: if the request was this one's, the others learn that nothing is known.
    pub(crate) async fn keep<F, E>(
        &self,
        claim: &Claim,
        patience: Duration,
        keep: impl FnOnce(Vec<OwnerId>) -> F,
    ) -> Result<bool, E>
    where
        F: Future<Output = Result<Vec<OwnerId>, E>>,
    {
        let kind = (claim.name().clone(), claim.ttl());
        let told = match self.all().entry(kind.clone()) {
            Entry::Occupied(mut gathering) => {
                let (tell, told) = oneshot::channel();
                gathering.get_mut().push((claim.owner(), tell));
                Some(told)
            }
            Entry::Vacant(gathering) => {
                gathering.insert(Vec::new());
                None
            }
        };
        if let Some(told) = told {
            return Ok(timeout(patience, told).await == Ok(Ok(true)));
        }
        let gathering = Gathering { stays: self, kind: Some(kind) };
        sleep(claim.ttl() / 64).await;
        let others = gathering.close();
        let owners = once(claim.owner()).chain(others.iter().map(|(owner, _)| *owner)).collect();
        let mut kept = keep(owners).await?;
        kept.sort_unstable();
        let stands = |owner| kept.binary_search(&owner).is_ok();
        for (owner, tell) in others {
            // It may have gone.
            _ = tell.send(stands(owner));
        }
        Ok(stands(claim.owner()))
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Kind, Vec<Member>>> {
        // Every change is one call of the map, or of one entry.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    use std::convert::Infallible;
    use std::future::pending;

    use lockkit_core::driver::{Claim, OwnerId};
    use lockkit_core::{LockName, Namespace};
    use tokio::time::{Duration, Instant, timeout};

    use super::Stays;

    const LEASE: Duration = Duration::from_millis(6_400);
    const PATIENCE: Duration = Duration::from_secs(1);

    fn claim(name: &str) -> Claim {
        Claim::new(LockName::new(&Namespace::default(), name).unwrap(), LEASE).fair()
    }

    /// Keeps all places but that one.
    async fn all_but(places: Vec<OwnerId>, gone: OwnerId) -> Result<Vec<OwnerId>, Infallible> {
        Ok(places.into_iter().filter(|place| *place != gone).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn those_of_one_lock_are_kept_together() {
        let stays = Stays::default();
        let [first, second, gone] = [(); 3].map(|()| claim("a"));
        let (elsewhere, nobody) = (claim("b"), OwnerId::random());
        let start = Instant::now();
        let (kept, others, lost, apart) = tokio::join!(
            stays.keep(&first, PATIENCE, async |places| {
                assert_eq!(places, [first.owner(), second.owner(), gone.owner()]);
                all_but(places, gone.owner()).await
            }),
            stays.keep(&second, PATIENCE, async |_| Err("a request of its own")),
            stays.keep(&gone, PATIENCE, async |_| Err("a request of its own")),
            stays.keep(&elsewhere, PATIENCE, async |places| {
                assert_eq!(places, [elsewhere.owner()]);
                all_but(places, nobody).await
            }),
        );
        assert_eq!((kept, others, lost, apart), (Ok(true), Ok(true), Ok(false), Ok(true)));
        assert_eq!(start.elapsed(), LEASE / 64);
        // Whoever comes later has a request of its own.
        let asked = stays.keep(&second, PATIENCE, async |places| all_but(places, nobody).await);
        assert_eq!(asked.await, Ok(true));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_left_waiting_by_who_goes_fails_or_gets_no_answer() {
        let stays = Stays::default();
        let [first, second] = [(); 2].map(|()| claim("a"));
        let alone = async |_| Err("a request of its own");
        let (dropped, kept) = tokio::join!(
            timeout(LEASE / 128, stays.keep(&first, PATIENCE, alone)),
            stays.keep(&second, PATIENCE, alone),
        );
        assert!(dropped.is_err());
        assert_eq!(kept, Ok(false));

        let (failed, kept) = tokio::join!(
            stays.keep(&first, PATIENCE, async |_| Err("no answer")),
            stays.keep(&second, PATIENCE, alone),
        );
        assert_eq!((failed, kept), (Err("no answer"), Ok(false)));

        let silent = async |_| pending::<Result<Vec<OwnerId>, Infallible>>().await;
        let start = Instant::now();
        tokio::select! {
            biased;
            _ = stays.keep(&first, PATIENCE, silent) => unreachable!(),
            kept = stays.keep(&second, PATIENCE, alone) => assert_eq!(kept, Ok(false)),
        }
        assert_eq!(start.elapsed(), PATIENCE);
        // That request goes on, and holds up no other.
        let asked =
            stays.keep(&second, PATIENCE, async |places| all_but(places, OwnerId::random()).await);
        assert_eq!(asked.await, Ok(true));
    }
}
