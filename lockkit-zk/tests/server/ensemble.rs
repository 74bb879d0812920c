//! Ensembles that lose their leader, and servers that fall behind.

use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{Claim, Driver, Renewal, Vouch};
use lockkit_core::{FencingToken, Hold, LockName, Locker, Namespace};
use lockkit_testkit::{Ensemble, Unavailable, ZOOKEEPER, trial};
use tokio::time::sleep;
use zookeeper_client::Client;

use crate::support::{LONG, NAME, ask, driver, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_killed_leader_costs_nobody_the_order", || ZOOKEEPER.start_ensemble(3), killed),
        trial("a_stopped_leader_costs_nobody_the_order", || ZOOKEEPER.start_ensemble(3), stopped),
        trial(
            "a_hold_is_lost_before_a_stopped_follower_costs_the_session",
            long_sessions,
            follower,
        ),
    ]
}

async fn killed(ensemble: Ensemble) {
    one_after_the_other(&ensemble, async |leader| {
        ensemble.members()[leader].kill();
        sleep(millis(1500)).await;
        ensemble.members()[leader].restart().unwrap();
    })
    .await;
}

async fn stopped(ensemble: Ensemble) {
    one_after_the_other(&ensemble, async |leader| {
        ensemble.members()[leader].stop().unwrap();
        // Longer than the session.
        sleep(millis(6000)).await;
        ensemble.members()[leader].cont().unwrap();
    })
    .await;
}

/// One holds and five wait, while something is done to the leader.
async fn one_after_the_other(ensemble: &Ensemble, trouble: impl AsyncFnOnce(usize)) {
    const WAITERS: usize = 5;
    let url = format!("{}?ttl=4s", ensemble.url());
    let grants: Arc<Mutex<Vec<(FencingToken, Hold)>>> = Arc::default();
    let locker = Locker::new(driver(&url).await);
    let first = locker.lock(NAME).unwrap().acquire().await.unwrap();
    note(&grants, first.fencing_token().unwrap(), first.hold());
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        let locker = Locker::new(driver(&url).await);
        let (lock, grants) = (locker.lock(NAME).unwrap(), grants.clone());
        waiting.push(tokio::spawn(async move {
            // An outage that is longer than a lease ends an acquisition.
            let guard = loop {
                match lock.acquire().await {
                    Ok(guard) => break guard,
                    Err(error) => assert!(error.is_transient(), "{error}"),
                }
            };
            note(&grants, guard.fencing_token().unwrap(), guard.hold());
            sleep(millis(20)).await;
            drop(guard);
            locker
        }));
    }
    trouble(ensemble.leader()).await;
    drop(first);
    for waiter in waiting {
        waiter.await.unwrap();
    }
    assert_eq!(grants.lock().unwrap().len(), 1 + WAITERS);
}

/// Nobody else has a hold that is good by then, nor had one that came later.
fn note(grants: &Mutex<Vec<(FencingToken, Hold)>>, token: FencingToken, hold: Hold) {
    let mut grants = grants.lock().unwrap();
    for (earlier, other) in &*grants {
        assert!(*earlier < token, "{earlier} before {token}");
        assert!(!other.is_held() || !hold.is_held(), "{earlier} and {token} are both held");
    }
    grants.push((token, hold));
}

/// With sessions that are long against a tick, so that long passes between two messages of one that
/// is idle.
fn long_sessions() -> Result<Ensemble, Unavailable> {
    let ensemble = ZOOKEEPER.start_ensemble(3)?;
    for member in ensemble.members() {
        std::fs::write(member.data().join("settings"), "maxSessionTimeout=60000\n").unwrap();
        member.restart()?;
    }
    Ok(ensemble)
}

/// A server that is stopped right after a write has not told the leader yet that the session lives,
/// so that the leader counts from what it was told of before: from the message before, where some
/// time lies between both. It takes sessions that are in different moments of being idle.
async fn follower(ensemble: Ensemble) {
    const ROUNDS: usize = 2;
    const SESSIONS: u64 = 20;
    let leader = ensemble.leader();
    let follower = &ensemble.members()[(leader + 1) % 3];
    let raw = Client::connect(&ensemble.members()[leader].addr().to_string()).await.unwrap();
    for _ in 0..ROUNDS {
        // After a round it has to find the others again.
        while !ask(follower.addr(), "srvr").await.contains("Mode: follower") {
            sleep(millis(20)).await;
        }
        let url = format!("{}?ttl=5s", follower.url());
        let begin = |number: u64| {
            let (url, raw) = (&url, &raw);
            async move {
                sleep(millis(40 * number)).await;
                let driver = driver(url).await;
                let folder = format!("/lockkit/{number}");
                let name = LockName::new(&Namespace::default(), &number.to_string()).unwrap();
                let held = Claim::new(name, LONG);
                take(&driver, &held).await;
                raw.sync(&folder).await.unwrap();
                let node = raw.list_children(&folder).await.unwrap().remove(0);
                let (_, _, watch) =
                    raw.get_and_watch_data(&format!("{folder}/{node}")).await.unwrap();
                (driver, held, watch)
            }
        };
        let sessions = join_all((0..SESSIONS).map(begin)).await;
        // Until what was written at the beginning is followed and forgotten.
        sleep(millis(2000)).await;
        // An answered write in each, and what the hold is good for after it.
        let vouched = join_all(sessions.iter().map(async |(driver, held, _)| {
            refused(driver, &claim_like(held)).await;
            match driver.renew(held).await.unwrap() {
                Renewal::Held(Vouch::Lease { since, ttl }) => since + ttl,
                other => panic!("{other:?}"),
            }
        }))
        .await;
        follower.stop().unwrap();
        let ended =
            sessions.into_iter().zip(vouched).map(async |((driver, held, watch), until)| {
                watch.changed().await;
                let now = held.now();
                let early = until.saturating_duration_since(now);
                assert!(until < now, "{:?}: gone {early:?} before its time", held.name());
                driver
            });
        let drivers = join_all(ended).await;
        follower.cont().unwrap();
        for driver in drivers {
            driver.close().await;
        }
    }
}

/// Another one for the same lock, which does not wait: its node is made and removed.
fn claim_like(held: &Claim) -> Claim {
    Claim::new(held.name().clone(), held.ttl())
}
