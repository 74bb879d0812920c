//! Random weather. Processes share two locks of a real backend while connections are cut, messages
//! are lost or come late, servers stop or are killed, and processes end. Nobody may hold a lock that
//! another holds, unless the end of a session takes it away; fencing tokens rise; and in calm weather
//! everybody gets everything and nothing is left.
//!
//! `LOCKKIT_SEED` repeats the order of events, though not what they meet.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod backend;
mod events;
mod process;
mod witness;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lockkit::{Error, Locker};
use lockkit_testkit::trial;
use tokio::time::sleep;

use self::backend::Backend;
use self::events::Weather;
use self::witness::Witness;

const NAMES: [&str; 2] = ["orders", "stock"];
const PROCESSES: usize = 4;
const EVENTS: usize = 10;

fn main() -> ExitCode {
    lockkit_testkit::run(vec![
        trial("on_redis", Backend::redis, survive),
        trial("on_a_majority_of_redis_servers", Backend::redlock, survive),
        trial("on_postgres", Backend::postgres, survive),
        trial("on_sessions_of_postgres", Backend::postgres_sessions, survive),
        trial("on_mariadb", Backend::mariadb, survive),
        trial("on_sessions_of_mariadb", Backend::mariadb_sessions, survive),
        trial("on_zookeeper", Backend::zookeeper, survive),
        trial("on_etcd", Backend::etcd, survive),
    ])
}

async fn survive(backend: Backend) {
    let seed = std::env::var("LOCKKIT_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let (mut dice, witness) =
        (Rng::with_seed(seed), Arc::new(Witness::of(seed, backend.keeps_holds())));
    let mut weather = Weather::new(&backend, &witness, dice.fork()).await;
    for _ in 0..EVENTS {
        sleep(Duration::from_millis(dice.u64(50..1_000))).await;
        weather.change().await;
        witness.agrees();
    }

    let mut lockers = Vec::new();
    for process in weather.calm() {
        // Whoever waits gets the lock.
        lockers.push(process.finish().await);
    }
    witness.agrees();
    for (locker, _) in &lockers {
        for name in NAMES {
            take_and_let_go(locker, name).await;
        }
    }
    let (last, others) = lockers.split_first().unwrap();
    for (locker, _) in others {
        locker.shutdown().await;
    }
    for name in NAMES {
        nothing_is_left(&last.0, name).await;
    }
}

/// Servers that have only just recovered may leave a request without an answer, though not for ever.
async fn take_and_let_go(locker: &Locker, name: &str) {
    const TRIES: usize = 5;
    let lock = locker.lock(name).unwrap();
    let try_it = async || lock.acquire().await?.release().await;
    for _ in 1..TRIES {
        match try_it().await {
            Ok(()) => return,
            Err(Error::Unreachable(_) | Error::Lost { .. }) => (),
            Err(error) => panic!("{error:?}"),
        }
    }
    try_it().await.unwrap();
}

/// Of those who died, something may be for the length of a lease.
async fn nothing_is_left(locker: &Locker, name: &str) {
    loop {
        let status = locker.look(name).await.unwrap();
        if status.holder().is_none() && status.waiters().is_empty() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
}
