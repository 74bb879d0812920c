//! What a session holds, and what stands in front of it.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{ErrorKind, Release, Renewal};
use lockkit_core::{Error, Namespace};
use lockkit_testkit::{POSTGRES, Server, trial};

use crate::support::{
    Raw, claim, claim_in, driver, kind, locker, millis, on_each, refused, take, take_in_the_end,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("postgres::a_full_lock_table_is_capacity", || POSTGRES.start_with(SMALL), full),
        trial("postgres::a_failed_ask_leaves_no_lock", || POSTGRES.start(), failed),
        trial("postgres::a_failed_ask_leaves_the_holders_lock_alone", || POSTGRES.start(), alone),
        trial("postgres::an_interrupted_ask_is_answered", || POSTGRES.start(), interrupted),
        trial("postgres::an_interrupted_release_unlocks", || POSTGRES.start(), released),
    ];
    trials.extend(on_each("many_locks_are_one_session", many));
    trials.extend(on_each("another_program_shares_exact_keys", shared));
    trials.extend(on_each("an_exact_key_is_one_lock_in_every_namespace", exact));
    trials.extend(on_each("a_name_that_is_no_key_is_refused", no_key));
    trials.extend(on_each("a_dropped_acquisition_leaves_nothing_on_the_server", dropped));
    trials.extend(on_each("a_lease_of_its_own_is_refused", leases));
    trials.extend(on_each("a_closed_driver_leaves_nothing", closed));
    trials
}

async fn many(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let claims: Vec<_> = (0..500).map(|number| claim(&number.to_string())).collect();
    let tokens = join_all(claims.iter().map(|claim| take(&*driver, claim))).await;
    assert_eq!(tokens.len(), 500);
    assert_eq!(raw.locks().await, 500);
    let holders = (
        "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory'",
        "SELECT count(DISTINCT IS_USED_LOCK(locked)) FROM lockkit_session",
    );
    assert_eq!(raw.ask(holders.0, holders.1).await, 1);
    for claim in &claims {
        assert_eq!(driver.release(claim).await.unwrap(), Release::Freed);
    }
    assert_eq!(raw.locks().await, 0);
}

async fn shared(server: Server) {
    const NUMBER: &str = "-4611686018427387904";
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "keys=exact").await);
    assert!(raw.takes(NUMBER).await);
    let claim = claim(NUMBER);
    refused(&*driver, &claim).await;
    raw.gives_back(NUMBER).await;
    take(&*driver, &claim).await;
    assert!(!raw.takes(NUMBER).await, "another program got in");
    driver.release(&claim).await.unwrap();
    assert!(raw.takes(NUMBER).await);
}

/// The session would let itself in.
async fn exact(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "keys=exact").await);
    let (one, other) = (claim("42"), claim_in(&Namespace::new("other").unwrap(), "42"));
    let first = take(&*driver, &one).await;
    refused(&*driver, &other).await;
    assert_eq!(driver.renew(&other).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(&other).await.unwrap(), Release::NotHeld);
    assert_eq!(driver.release(&one).await.unwrap(), Release::Freed);
    assert!(take(&*driver, &other).await > first, "tokens go with the key");
    driver.release(&other).await.unwrap();
    assert!(raw.takes("42").await, "it was locked more often than unlocked");
}

async fn no_key(server: Server) {
    let exact = driver(&server.url(), "keys=exact").await;
    let name = match server.url().starts_with("postgres") {
        true => "orders/42".into(),
        false => "x".repeat(65),
    };
    let (kind, text) = kind(exact.try_acquire(&claim(&name)).await);
    assert_eq!(kind, ErrorKind::Unsupported, "{text}");
    assert_eq!(exact.release(&claim(&name)).await.unwrap(), Release::NotHeld);
    let hashed = driver(&server.url(), "").await;
    take(&*hashed, &claim(&name)).await;
}

async fn dropped(server: Server) {
    let mut raw = Raw::to(&server).await;
    let (one, other) =
        (locker(&server.url(), millis(10_000)).await, locker(&server.url(), millis(10_000)).await);
    let (free, held) = (one.lock("free").unwrap(), one.lock("held").unwrap());
    let holder = other.lock("held").unwrap().acquire().await.unwrap();
    let (mut polls, mut is_done) = (0, false);
    while !is_done {
        is_done = poll_times(polls, free.acquire()).await;
        poll_times(polls, held.acquire()).await;
        // The one that is held, and nothing else, as soon as the answers have come.
        while raw.locks().await > 1 || raw.transactions().await > 0 {
            tokio::time::sleep(millis(1)).await;
        }
        // A slow server is polled often, while there is nothing new.
        polls += if polls < 20 { 1 } else { 1 + polls / 4 };
    }
    // One session each, and one for news.
    assert!(raw.sessions().await <= 4);
    holder.release().await.unwrap();
    one.shutdown().await;
    other.shutdown().await;
    while raw.sessions().await > 0 {
        tokio::time::sleep(millis(1)).await;
    }
}

/// Polls so often at the most, with time for others in between; whether it was done.
async fn poll_times<T>(polls: usize, future: impl Future<Output = T>) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        let poll = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if poll.is_ready() {
            return true;
        }
        tokio::time::sleep(millis(1)).await;
    }
    false
}

async fn leases(server: Server) {
    let locker = locker(&server.url(), millis(5_000)).await;
    let lock = locker.lock("orders").unwrap();
    let options = lockkit_core::AcquireOptions::new().ttl(millis(5_000));
    let error = lock.acquire_with(options).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    let guard = lock.acquire().await.unwrap();
    assert!(guard.valid_for().unwrap() <= millis(5_000));
    guard.release().await.unwrap();
}

async fn closed(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let held = claim("orders");
    take(&*driver, &held).await;
    driver.inspect().unwrap().look(held.name()).await.unwrap();
    driver.close().await;
    while raw.sessions().await > 0 {
        tokio::time::sleep(millis(1)).await;
    }
    assert_eq!(raw.locks().await, 0);
    assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    let (kind, text) = kind(driver.try_acquire(&held).await);
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
}

const SMALL: &[&str] = &[
    "-c",
    "max_locks_per_transaction=10",
    "-c",
    "max_connections=10",
    "-c",
    "max_wal_senders=0",
    "-c",
    "fsync=off",
];

async fn full(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let mut held = Vec::new();
    let (kind, text) = loop {
        let claim = claim(&held.len().to_string());
        match driver.try_acquire(&claim).await {
            Ok(_) => held.push(claim),
            Err(error) => break kind::<()>(Err(error)),
        }
        assert!(held.len() < 20_000, "the table has no end");
    };
    assert_eq!(kind, ErrorKind::Capacity, "{text}");
    assert!(text.contains("shared memory"), "{text}");
    // The session is none the worse for it,
    assert_ne!(driver.renew(&held[0]).await.unwrap(), Renewal::Lost);
    assert_eq!(usize::try_from(raw.locks().await).unwrap(), held.len());
    // and goes on as soon as there is room.
    let freed = held.split_off(held.len() - 20);
    for claim in &freed {
        assert_eq!(driver.release(claim).await.unwrap(), Release::Freed);
    }
    take(&*driver, &freed[0]).await;
}

/// A session's lock outlives the failure of the statement that took it.
async fn failed(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let claim = claim("orders");
    take(&*driver, &claim).await;
    driver.release(&claim).await.unwrap();
    raw.run("ALTER TABLE lockkit_session ADD CHECK (owner = '') NOT VALID").await;
    let (kind, text) = kind(driver.try_acquire(&claim).await);
    assert!(text.contains("violates check constraint"), "{kind:?}: {text}");
    assert_eq!(raw.locks().await, 0, "the lock was left behind");
    raw.run("ALTER TABLE lockkit_session DROP CONSTRAINT lockkit_session_owner_check").await;
    take_in_the_end(&*driver, &claim).await;
    let other = crate::support::driver(&server.url(), "").await;
    refused(&*other, &crate::support::claim("orders")).await;
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    take(&*other, &claim).await;
}

async fn alone(server: Server) {
    let url = server.url();
    let (mut raw, driver) = (Raw::to(&server).await, driver(&url, "ttl=1h&keys=exact").await);
    let (held, other) = (claim("42"), claim("42"));
    take(&*driver, &held).await;
    for asking in [&held, &other] {
        raw.hold_up_statements().await;
        // Once more than what came late for a wait would.
        let (answer, ()) = tokio::join!(driver.try_acquire(asking), raw.cancel_statements(2));
        let (kind, text) = kind(answer);
        assert!(text.contains("canceling statement"), "{kind:?}: {text}");
        assert!(!raw.takes("42").await, "another program got in");
    }
    assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    assert!(raw.takes("42").await);
}

async fn interrupted(server: Server) {
    let url = server.url();
    let (mut raw, driver) = (Raw::to(&server).await, driver(&url, "ttl=1h&keys=exact").await);
    let held = claim("42");
    let token = take(&*driver, &held).await;
    raw.hold_up_statements().await;
    let (again, ()) = tokio::join!(take(&*driver, &held), raw.cancel_statements(1));
    assert_eq!(again, token);
    assert!(!raw.takes("42").await, "another program got in");
}

/// Whatever else of it fails.
async fn released(server: Server) {
    let (url, mut raw) = (server.url(), Raw::to(&server).await);
    for cancelled in 1..=3 {
        let (driver, held) = (driver(&url, "ttl=1h&keys=exact").await, claim("42"));
        take(&*driver, &held).await;
        raw.hold_up_statements().await;
        let (release, ()) = tokio::join!(driver.release(&held), raw.cancel_statements(cancelled));
        let is_given_up = cancelled == 3;
        match is_given_up {
            false => assert_eq!(release.unwrap(), Release::Freed),
            true => assert!(kind(release).1.contains("canceling statement")),
        }
        // The lock goes with its session.
        while !raw.takes("42").await {
            assert!(is_given_up, "the lock was left behind");
        }
        raw.gives_back("42").await;
        assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
        take(&*driver, &held).await;
        assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    }
}

impl Raw {
    /// Has all statements wait that are new to their sessions, which look for functions anew and find
    /// the table locked.
    async fn hold_up_statements(&mut self) {
        self.run("GRANT EXECUTE ON FUNCTION pg_backend_pid() TO PUBLIC").await;
        self.run("BEGIN; LOCK TABLE pg_catalog.pg_proc").await;
    }

    /// Cancels the next so many that wait, one after the other, and lets all others pass.
    async fn cancel_statements(&mut self, count: u32) {
        const WAITING: &str = "SELECT COALESCE(max(split_part(virtualtransaction, '/', 2)::bigint), 0) \
             FROM pg_locks WHERE relation = 'pg_catalog.pg_proc'::regclass AND NOT granted";
        let mut last = 0;
        for _ in 0..count {
            last = loop {
                match self.ask(WAITING, WAITING).await {
                    waiting if waiting > last => break waiting,
                    _ => tokio::time::sleep(millis(1)).await,
                }
            };
            self.run(
                "SELECT pg_cancel_backend(pid) FROM pg_locks \
                 WHERE relation = 'pg_catalog.pg_proc'::regclass AND NOT granted",
            )
            .await;
        }
        self.run("COMMIT").await;
    }
}
