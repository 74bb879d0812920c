//! The suite itself: what it shows when there is nothing to check, or too much goes wrong.

use std::future::{pending, ready};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::libtest_mimic::Arguments;
use lockkit_conformance::{Check, Outcome, Suite};
use lockkit_core::driver::{
    Attempt, Claim, Driver, DriverError, ErrorKind, Grant, Inspect, Release, Renewal, Taken, Vouch,
};
use lockkit_core::memory::{CAPABILITIES, MemoryDriver};
use lockkit_core::{BoxError, Capabilities, Error, Liveness, Namespace};

fn check(name: &str) -> &'static Check {
    Suite::checks().iter().find(|check| check.name() == name).expect("there is such a check")
}

fn memory() -> Suite {
    let server = MemoryDriver::new();
    Suite::new("memory", CAPABILITIES).connect(move || ready(Ok(server.clone()))).virtual_time()
}

#[test]
fn what_is_not_declared_or_not_hooked_is_ignored_with_the_reason() {
    let plain = Suite::new("memory", Capabilities::new(Liveness::Process));
    for (suite, name, reason) in [
        (&plain, "driver::a_lease_runs_out", "the driver's holds are no leases"),
        (&plain, "driver::tokens_rise_over_releases", "the driver gives no fencing tokens"),
        (&plain, "driver::a_release_is_not_missed", "the driver tells of no release"),
        (&plain, "driver::places_are_served_in_order", "the driver serves waiters in no order"),
        (&plain, "driver::a_hold_is_seen", "the driver cannot be inspected"),
        (&plain, "user::a_revoked_hold_is_reported", "the suite was given no `revoke`"),
        (&memory(), "user::a_wait_outlives_a_cut", "the suite was given no `sever`"),
        (&memory(), "user::a_restart_is_got_over", "the suite was given no `restart`"),
    ] {
        assert_eq!(suite.run(check(name)), Outcome::Ignored(reason.into()), "{name}");
    }
}

/// Also run by the next test, with `LOCKKIT_REQUIRE` set.
#[test]
fn without_a_server_checks_are_ignored_unless_required() {
    let suite = Suite::new("mine", CAPABILITIES).skip_unless(|| Err("no server".into()));
    let outcome = suite.run(check("driver::a_free_lock_is_granted"));
    match std::env::var("LOCKKIT_REQUIRE").as_deref() {
        Ok("redis,mine") => assert_eq!(outcome, Outcome::Failed("no server".into())),
        Ok("reddis") => {
            let Outcome::Failed(reason) = outcome else { panic!("{outcome:?}") };
            assert!(reason.contains("`reddis`, which is no driver"), "{reason}");
        }
        _ => assert_eq!(outcome, Outcome::Ignored("no server".into())),
    }
}

#[test]
fn a_required_server_must_be_there() {
    for required in ["redis,mine", "reddis", "redis"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "without_a_server_checks_are_ignored_unless_required"])
            .env("LOCKKIT_REQUIRE", required)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{required}: {text}");
    }
}

#[test]
fn the_server_is_looked_for_once() {
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = looks.clone();
    let suite = memory().skip_unless(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    for _ in 0..3 {
        assert_eq!(suite.run(check("driver::a_free_lock_is_granted")), Outcome::Passed);
    }
    assert_eq!(looks.load(Ordering::SeqCst), 1);
}

#[test]
fn a_check_has_no_more_connections_than_it_may() {
    let name = "user::sixty_four_lockers_take_turns";
    for (most, expected) in [(16, 16), (usize::MAX, 64)] {
        let made = Arc::new(AtomicUsize::new(0));
        let (server, counted) = (MemoryDriver::new(), made.clone());
        let suite = Suite::new("memory", CAPABILITIES).virtual_time().connect(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            ready(Ok(server.clone()))
        });
        assert_eq!(suite.connections(most).run(check(name)), Outcome::Passed);
        assert_eq!(made.load(Ordering::SeqCst), expected);
    }
}

#[test]
fn a_list_of_checks_does_no_io() {
    let suite = Suite::new("memory", CAPABILITIES)
        .skip_unless(|| panic!("looked for the server"))
        .connect(|| -> std::future::Ready<Result<MemoryDriver, BoxError>> { panic!("connected") });
    let logfile = Some("/dev/null".into());
    let list = Arguments { list: true, logfile, ..Arguments::default() };
    let code = suite.run_with(list);
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
}

#[test]
fn a_driver_that_cannot_connect_panics_or_hangs_fails() {
    let free = check("driver::a_free_lock_is_granted");
    let failed = |suite: Suite| match suite.virtual_time().run(free) {
        Outcome::Failed(reason) => reason,
        other => panic!("{other:?}"),
    };
    let suite = || Suite::new("memory", CAPABILITIES);
    let refused = suite().connect(|| ready(Err::<MemoryDriver, _>("refused".into())));
    assert_eq!(failed(refused), "no connection: refused");
    let panicking = suite()
        .connect(|| -> std::future::Ready<Result<MemoryDriver, BoxError>> { panic!("oh no") });
    assert_eq!(failed(panicking), "it panicked: oh no");
    let hanging = suite().connect(pending::<Result<MemoryDriver, BoxError>>);
    assert_eq!(failed(hanging), "it was not done after 900s");
}

#[test]
fn what_is_behind_an_error_is_told() {
    let failed = |suite: Suite, name| match suite.virtual_time().run(check(name)) {
        Outcome::Failed(reason) => reason,
        other => panic!("{other:?}"),
    };
    let error = || {
        let refused = DriverError::new(ErrorKind::Unreachable, "connection refused");
        Err::<(), BoxError>(Error::connecting("memory", refused).into())
    };
    let connecting = Suite::new("memory", CAPABILITIES)
        .connect(move || ready(error().map(|()| MemoryDriver::new())));
    let hooked = memory().revoke(move |_| ready(error()));
    for (suite, name) in
        [(connecting, "driver::a_free_lock_is_granted"), (hooked, "driver::a_revoked_hold_is_lost")]
    {
        let reason = failed(suite, name);
        assert!(reason.ends_with(": connection refused"), "{reason}");
    }
}

/// What a hook would do, a driver that breaks holds does itself.
#[test]
fn who_can_be_inspected_needs_no_hook_to_lose_a_hold() {
    for name in ["driver::a_revoked_hold_is_lost", "user::a_revoked_hold_is_reported"] {
        assert_eq!(memory().run(check(name)), Outcome::Passed, "{name}");
    }
}

/// How a driver with slow answers fails until it is connected to once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    RefusesAll,
    GrantsToAll,
    GrantsToAllInShortSessions,
}

#[derive(Debug)]
struct Slow {
    memory: MemoryDriver,
    fault: Option<Fault>,
}

#[async_trait]
impl Driver for Slow {
    fn id(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        tokio::time::sleep(Duration::from_millis(60)).await;
        let grant = Grant::new();
        Ok(match self.fault {
            None => return self.memory.try_acquire(claim).await,
            Some(Fault::RefusesAll) => Attempt::Taken(Taken::new()),
            Some(Fault::GrantsToAll) => Attempt::Granted(grant),
            Some(Fault::GrantsToAllInShortSessions) => {
                let ttl = Duration::from_millis(200);
                Attempt::Granted(grant.vouch(Vouch::Lease { since: claim.now(), ttl }))
            }
        })
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.memory.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.memory.release(claim).await
    }
}

/// What a check comes to whose first run has the fault, and how often it was run.
fn outcome_after(fault: Fault, name: &str) -> (Outcome, usize) {
    let made = Arc::new(AtomicUsize::new(0));
    let (memory, counted) = (MemoryDriver::new(), made.clone());
    let suite = Suite::new("memory", CAPABILITIES).ttl(Duration::from_millis(200));
    let suite = suite.connect(move || {
        let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        ready(Ok(Slow { memory: memory.clone(), fault: is_first.then_some(fault) }))
    });
    (suite.run(check(name)), made.load(Ordering::SeqCst))
}

/// Also run by the next test, which reads what it says.
#[test]
fn what_slowness_may_explain_is_tried_again() {
    let free = outcome_after(Fault::RefusesAll, "driver::a_free_lock_is_granted");
    assert_eq!(free, (Outcome::Passed, 2));
    let name = "driver::two_claims_of_one_connection_exclude_each_other";
    assert_eq!(outcome_after(Fault::GrantsToAllInShortSessions, name), (Outcome::Passed, 2));
}

#[test]
fn what_is_tried_again_is_told() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_slowness_may_explain_is_tried_again"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let told = "a_free_lock_is_granted: is tried again: a lock that was free";
    assert!(text.contains(told), "{text}");
}

#[test]
fn two_grants_of_long_leases_are_not_excused_by_slowness() {
    let name = "driver::two_claims_of_one_connection_exclude_each_other";
    let (outcome, runs) = outcome_after(Fault::GrantsToAll, name);
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    assert_eq!(runs, 1);
}

/// Fails to release the first of its claims.
#[derive(Debug)]
struct Stubborn {
    memory: MemoryDriver,
    has_failed: AtomicBool,
}

#[async_trait]
impl Driver for Stubborn {
    fn id(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.memory.try_acquire(claim).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.memory.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        if !self.has_failed.swap(true, Ordering::SeqCst) {
            return Err(DriverError::new(ErrorKind::Denied, "no"));
        }
        self.memory.release(claim).await
    }
}

/// Also run by the next test, which reads what it says.
#[tokio::test]
async fn what_a_check_left_is_released_whatever_fails() {
    let memory = MemoryDriver::new();
    let server = memory.clone();
    let suite = Suite::new("memory", CAPABILITIES).virtual_time().connect(move || {
        ready(Ok(Stubborn { memory: server.clone(), has_failed: AtomicBool::new(false) }))
    });
    let run = move || suite.run(check("driver::different_names_are_different_locks"));
    assert_eq!(tokio::task::spawn_blocking(run).await.unwrap(), Outcome::Passed);
    let left = memory.held(&Namespace::new("conformance").unwrap()).await.unwrap();
    assert_eq!(left.len(), 1);
}

#[test]
fn what_a_check_leaves_is_told() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_a_check_left_is_released_whatever_fails"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let told = "could not clean up: the backend refuses: no; 1 locks or places stay for up to 600s";
    assert!(text.contains(told), "{text}");
}

#[tokio::test]
async fn who_stops_a_suite_knows_where_its_locks_are() {
    let suite = Arc::new(memory());
    let run = |name| {
        let suite = suite.clone();
        tokio::task::spawn_blocking(move || suite.run(check(name)))
    };
    let apart = run("driver::namespaces_are_apart").await.unwrap();
    assert_eq!(apart, Outcome::Passed);
    let namespaces = suite.namespaces();
    assert!(namespaces.len() > 5, "{namespaces:?}");
    suite.stop().await;
    match run("driver::a_free_lock_is_granted").await.unwrap() {
        Outcome::Failed(reason) => assert!(reason.contains("stopped"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(suite.namespaces(), namespaces);
}
