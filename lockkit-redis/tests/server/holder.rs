//! What a holder sees of servers that forget, hang up, fill up or are demoted, and that nothing hangs.

use libtest_mimic::Trial;
use lockkit_core::{Error, Lease, Locker};
use lockkit_testkit::{REDIS, Server, trial};
use tokio::time::{Instant, timeout};

use crate::support::{Raw, driver, impatient_driver, millis};

/// As long as a machine under load may need, and short enough to be waited for once.
const TTL: u64 = 6_000;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_holder_does_not_notice_forgotten_scripts", || REDIS.start(), forgotten),
        trial("a_holder_survives_killed_connections", || REDIS.start(), killed),
        trial("a_holder_keeps_its_lock_where_memory_has_run_out", || REDIS.start(), no_memory),
        trial("a_holder_on_a_demoted_server_is_told", || REDIS.start(), demoted),
        trial("a_waiter_outlasts_a_save_that_failed", || REDIS.start(), unsaved),
    ]
}

fn lease() -> Lease {
    Lease::new(millis(TTL))
}

async fn forgotten(server: Server) {
    let (locker, mut raw) =
        (Locker::new(driver(&server.url()).await), Raw::connect(&server.url()).await);
    let guard = locker.lock("a").unwrap().leased(lease()).unwrap().acquire().await.unwrap();
    let flushing = async {
        loop {
            raw.ask::<()>(&["SCRIPT", "FLUSH"]).await;
            tokio::time::sleep(millis(1)).await;
        }
    };
    tokio::select! {
        _ = guard.lost() => panic!("it was lost"),
        never = timeout(millis(TTL), flushing) => never.map(|(): ()| ()).unwrap_err(),
    };
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert_eq!(raw.keys().await, Vec::<String>::new());
}

async fn killed(server: Server) {
    let locker = Locker::new(driver(&server.url()).await);
    let another = Locker::new(driver(&server.url()).await);
    let mut raw = Raw::connect(&server.url()).await;
    // Pauses between attempts to connect grow to a second.
    let ttl = 10_000;
    let fair = move |locker: &Locker| {
        locker.lock("a").unwrap().leased(Lease::new(millis(ttl))).unwrap().fair().unwrap()
    };
    let guard = fair(&locker).acquire().await.unwrap();
    let token = guard.fencing_token();
    let waiter = tokio::spawn(async move { fair(&another).acquire().await });
    let start = Instant::now();
    // The last answer is waited for, so that none is killed later.
    let killing = async {
        while start.elapsed() < millis(ttl * 2 / 5) {
            for kind in ["normal", "pubsub"] {
                raw.ask::<i64>(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).await;
            }
            tokio::time::sleep(millis(100)).await;
        }
    };
    tokio::select! {
        _ = guard.lost() => panic!("it was lost"),
        () = killing => (),
    };
    assert!(guard.is_held() && !waiter.is_finished());
    // A release is repeated that went over a connection that was killed. It is not the lease that
    // ends.
    let left = guard.valid_for().unwrap();
    drop(guard);
    let next = timeout(left, waiter).await.unwrap().unwrap().unwrap();
    assert!(next.fencing_token() > token);
    let left = next.valid_for().unwrap();
    drop(next);
    let last = timeout(left, fair(&locker).acquire()).await.unwrap().unwrap();
    last.release().await.unwrap();
}

async fn no_memory(server: Server) {
    let (locker, mut raw) =
        (Locker::new(driver(&server.url()).await), Raw::connect(&server.url()).await);
    let lock = locker.lock("a").unwrap().leased(lease()).unwrap();
    let guard = lock.acquire().await.unwrap();
    raw.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    // Renewals go on; what needs room is refused at once, also to those who would wait.
    let other = locker.lock("b").unwrap();
    let error = other.acquire().await.unwrap_err();
    assert!(matches!(error, Error::Capacity(_)), "{error:?}");
    assert!(timeout(millis(TTL), guard.lost()).await.is_err());
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(matches!(lock.acquire().await, Err(Error::Capacity(_))));
    raw.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    lock.acquire().await.unwrap().release().await.unwrap();
}

async fn demoted(server: Server) {
    let (locker, mut raw) =
        (Locker::new(impatient_driver(&server.url()).await), Raw::connect(&server.url()).await);
    // Two of these are waited for.
    let short = Lease::new(millis(1_500));
    let lock = locker.lock("a").unwrap().leased(short).unwrap();
    let (guard, kept) = (lock.acquire().await.unwrap(), lock.acquire());
    let token = guard.fencing_token().unwrap();
    raw.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    guard.lost().await;
    assert!(!guard.is_held());
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost { .. } | Error::Unreachable(_))), "{released:?}");
    // Who waits goes on to wait for a server that takes writes, for a lease.
    let error = kept.await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    raw.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    let lock = locker.lock("a").unwrap().leased(lease()).unwrap();
    let next = loop {
        match lock.acquire().await {
            Ok(next) => break next,
            Err(error) => assert!(matches!(error, Error::Unreachable(_)), "{error:?}"),
        }
    };
    assert!(next.fencing_token().unwrap() > token);
    next.release().await.unwrap();
}

async fn unsaved(server: Server) {
    let (locker, mut raw) =
        (Locker::new(driver(&server.url()).await), Raw::connect(&server.url()).await);
    let lock = locker.lock("a").unwrap();
    raw.fail_to_save(&server).await;
    // Whoever does not wait is told.
    let error = lock.try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    let mut acquiring = std::pin::pin!(lock.acquire());
    let asked_again = async {
        let before = refusals(&mut raw).await;
        while refusals(&mut raw).await < before + 3 {}
    };
    tokio::select! {
        ended = &mut acquiring => panic!("{ended:?}"),
        () = asked_again => (),
    }
    raw.save(&server).await;
    acquiring.await.unwrap().release().await.unwrap();
}

/// How often the server has refused to write what it could not save.
async fn refusals(raw: &mut Raw) -> u32 {
    let stats: String = raw.ask(&["INFO", "errorstats"]).await;
    let count = stats.lines().find_map(|line| line.strip_prefix("errorstat_MISCONF:count="));
    count.map_or(0, |count| count.trim().parse().unwrap())
}
