//! Who holds, who waits, and what breaking a hold does.

use std::time::{Duration, Instant};

use lockkit_core::driver::{
    Claim, Driver as _, ErrorKind, Inspect as _, OwnerId, Release, Renewal,
};
use lockkit_core::{LockName, LockStatus, Locker, Namespace};
use lockkit_sql::sqlite::SqliteDriver;
use tokio::time::timeout;

use crate::support::{
    Fixture, HANG, LONG, claim, execute, granted, has_news, name, number, refused, token,
    told_by_driver,
};

fn owners(status: &LockStatus) -> Vec<OwnerId> {
    status.waiters().iter().map(|waiter| waiter.owner()).collect()
}

#[tokio::test]
async fn a_hold_is_seen_by_every_driver_until_it_ends() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    assert_eq!(b.look(&name("a")).await.unwrap(), LockStatus::free(name("a")));

    let label = "Jürgen's \"build\"; DROP TABLE lockkit_hold; --";
    let holding = claim("a").with_label(label.parse().unwrap());
    let start = Instant::now();
    let token = token(&a, &holding).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let status = b.look(&name("a")).await.unwrap();
    let elapsed = start.elapsed();
    let holder = status.holder().unwrap();
    assert_eq!(holder.owner(), holding.owner());
    assert_eq!(holder.label().unwrap().as_str(), label);
    assert_eq!(holder.fencing_token().unwrap().get(), token);
    let (since, remaining) = (holder.held_for().unwrap(), holder.remaining().unwrap());
    // Both begin just before the row was written, and are told by one reading of the clock.
    assert!(since >= Duration::from_millis(20) && since <= elapsed, "{since:?} of {elapsed:?}");
    assert_eq!(since + remaining, LONG);

    // A renewal makes it last, but not begin anew.
    a.renew(&holding).await.unwrap();
    let status = b.look(&name("a")).await.unwrap();
    let holder = status.holder().unwrap();
    assert!(holder.held_for().unwrap() + holder.remaining().unwrap() > LONG);

    a.release(&holding).await.unwrap();
    assert_eq!(b.look(&name("a")).await.unwrap().holder(), None);
}

#[tokio::test]
async fn what_has_run_out_is_not_seen() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let (holder, dead, alive) = (claim("a"), claim("a").fair(), claim("a").fair());
    granted(&driver, &holder).await;
    refused(&driver, &dead).await;
    refused(&driver, &alive).await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, "UPDATE lockkit_hold SET expires = expires - ttl").await;
    execute(&mut raw, "UPDATE lockkit_place SET expires = expires - ttl WHERE arrival = 1").await;
    let status = driver.look(&name("a")).await.unwrap();
    assert_eq!(status.holder(), None);
    assert_eq!(owners(&status), [alive.owner()]);
    assert_eq!(driver.held(&Namespace::default()).await.unwrap(), []);
    // Nobody was deprived of anything.
    assert_eq!(driver.break_hold(&name("a"), None).await.unwrap(), None);
}

/// Those that others would have to watch for a TTL before they take the lock.
#[tokio::test]
async fn a_hold_on_another_clock_is_seen_without_times() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let (holding, waiting) = (claim("a"), claim("a").fair());
    for change in ["clock = 'other', expires = 1", "expires = 9223372036854775807"] {
        granted(&driver, &holding).await;
        refused(&driver, &waiting).await;
        let mut raw = fixture.raw().await;
        let changes = [
            format!("UPDATE lockkit_hold SET {change}"),
            format!("UPDATE lockkit_place SET {change}"),
        ];
        for change in changes {
            execute(&mut raw, sqlx::AssertSqlSafe(change)).await;
        }
        let status = driver.look(&name("a")).await.unwrap();
        let holder = status.holder().unwrap();
        assert_eq!(holder.owner(), holding.owner());
        assert_eq!((holder.held_for(), holder.remaining()), (None, None));
        assert_eq!(owners(&status), [waiting.owner()]);
        assert_eq!(status.waiters()[0].waiting_for(), None);
        assert_eq!(driver.held(&Namespace::default()).await.unwrap(), [status]);
        let broken = driver.break_hold(&name("a"), None).await.unwrap().unwrap();
        assert_eq!((broken.owner(), broken.remaining()), (holding.owner(), None));
        driver.release(&waiting).await.unwrap();
    }
}

#[tokio::test]
async fn places_are_seen_in_order_of_arrival() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    let holder = claim("a");
    granted(&a, &holder).await;
    let waiters = ["first", "zweiter ½", "'third'"]
        .map(|label| claim("a").fair().with_label(label.parse().unwrap()));
    for waiter in &waiters {
        refused(&a, waiter).await;
    }
    // Who waits without a place leaves no trace, and asking again no other.
    refused(&b, &claim("a").waiting()).await;
    for waiter in waiters.iter().rev() {
        refused(&b, waiter).await;
    }
    let status = b.look(&name("a")).await.unwrap();
    assert_eq!(owners(&status), waiters.each_ref().map(Claim::owner));
    for (seen, waiter) in status.waiters().iter().zip(&waiters) {
        assert_eq!(seen.label().unwrap(), waiter.label());
    }
    let since: Vec<_> =
        status.waiters().iter().map(|waiter| waiter.waiting_for().unwrap()).collect();
    assert!(since.is_sorted_by(|one, next| one > next), "{since:?}");

    // Who was first now holds, since it was granted, under its own label.
    a.release(&holder).await.unwrap();
    let start = Instant::now();
    granted(&a, &waiters[0]).await;
    let status = b.look(&name("a")).await.unwrap();
    let holder = status.holder().unwrap();
    assert_eq!(holder.label().unwrap(), waiters[0].label());
    assert!(holder.held_for().unwrap() <= start.elapsed(), "counted from the first ask");
    assert_eq!(owners(&status), [waiters[1].owner(), waiters[2].owner()]);
}

#[tokio::test]
async fn every_held_lock_of_the_namespace_is_listed_by_name() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let other = Namespace::new("lockkit.").unwrap();
    let long = "ü".repeat(256);
    let mut names = ["a", "A", "a/b", "%61", "'; --", "\"", "_", "*", " ", "ß", "日本", &long];
    for text in names {
        granted(&driver, &claim(text)).await;
    }
    let elsewhere = Claim::new(LockName::new(&other, "a").unwrap(), LONG);
    granted(&driver, &elsewhere).await;
    let waiter = claim("a").fair();
    refused(&driver, &waiter).await;
    // Free: released, or only waited for.
    let free = claim("free");
    granted(&driver, &free).await;
    refused(&driver, &claim("free").fair()).await;
    driver.release(&free).await.unwrap();

    names.sort_unstable();
    let held = fixture.driver().await.held(&Namespace::default()).await.unwrap();
    let listed: Vec<_> = held.iter().map(|status| status.name().as_str()).collect();
    assert_eq!(listed, names);
    for status in &held {
        assert_eq!(*status.name(), name(status.name().as_str()));
        let waiters = if status.name().as_str() == "a" { vec![waiter.owner()] } else { vec![] };
        assert_eq!(owners(status), waiters);
    }
    let [status] = &driver.held(&other).await.unwrap()[..] else { panic!("not one") };
    assert_eq!(status.name(), elsewhere.name());
    assert_eq!(status.holder().unwrap().owner(), elsewhere.owner());
    assert_eq!(owners(status), []);
}

#[tokio::test]
async fn a_broken_hold_is_over() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    assert_eq!(b.break_hold(&name("a"), None).await.unwrap(), None);
    let (broken, next) = (claim("a"), claim("a"));
    let before = token(&a, &broken).await;
    let seen = b.look(&name("a")).await.unwrap();
    let holder = b.break_hold(&name("a"), None).await.unwrap().unwrap();
    assert_eq!(holder.owner(), broken.owner());
    assert_eq!(holder.label(), seen.holder().unwrap().label());
    assert_eq!(holder.fencing_token().unwrap().get(), before);
    assert!(holder.remaining().unwrap() > LONG / 2 && holder.held_for().is_some());

    assert_eq!(b.look(&name("a")).await.unwrap(), LockStatus::free(name("a")));
    assert_eq!(a.renew(&broken).await.unwrap(), Renewal::Lost);
    assert!(token(&b, &next).await > before);
    assert_eq!(a.renew(&broken).await.unwrap(), Renewal::Lost);
    assert_eq!(a.release(&broken).await.unwrap(), Release::NotHeld);
    assert_eq!(b.release(&next).await.unwrap(), Release::Freed);
}

#[tokio::test]
async fn only_the_named_owner_is_broken() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let (holder, waiter) = (claim("a"), claim("a").fair());
    let elsewhere = claim("b");
    granted(&driver, &holder).await;
    granted(&driver, &elsewhere).await;
    refused(&driver, &waiter).await;
    for other in [OwnerId::random(), waiter.owner(), elsewhere.owner()] {
        assert_eq!(driver.break_hold(&name("a"), Some(other)).await.unwrap(), None);
        assert!(!has_news(&driver, &waiter).await, "somebody was woken for nothing");
    }
    assert!(matches!(driver.renew(&holder).await.unwrap(), Renewal::Held(_)));
    let broken = driver.break_hold(&name("a"), Some(holder.owner())).await.unwrap().unwrap();
    assert_eq!(broken.owner(), holder.owner());
    assert!(matches!(driver.renew(&elsewhere).await.unwrap(), Renewal::Held(_)));
}

#[tokio::test]
async fn a_broken_hold_goes_to_the_first_place() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    granted(&a, &claim("a")).await;
    let (plain, first, second) = (claim("a").waiting(), claim("a").fair(), claim("a").fair());
    refused(&a, &plain).await;
    refused(&b, &first).await;
    refused(&a, &second).await;
    a.break_hold(&name("a"), None).await.unwrap().unwrap();
    assert!(!has_news(&a, &plain).await && !has_news(&a, &second).await);
    assert!(has_news(&b, &first).await, "the first place was not woken");
    for overtaking in [&claim("a"), &plain, &second] {
        refused(&a, overtaking).await;
    }
    granted(&b, &first).await;
    assert_eq!(owners(&a.look(&name("a")).await.unwrap()), [second.owner()]);
}

#[tokio::test]
async fn a_broken_hold_wakes_who_waits_without_a_place() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    granted(&a, &claim("a")).await;
    let waiter = claim("a").waiting();
    refused(&b, &waiter).await;
    a.break_hold(&name("a"), None).await.unwrap().unwrap();
    assert!(has_news(&b, &waiter).await);
}

#[tokio::test]
async fn a_broken_guard_learns_it_at_its_next_renewal() {
    let fixture = Fixture::new();
    let ttl = Duration::from_secs(5);
    let locker = Locker::builder(fixture.driver().await).ttl(ttl).build().unwrap();
    let onlooker = Locker::new(fixture.driver().await);
    let guard = locker.lock("a").unwrap().acquire().await.unwrap();
    let broken = onlooker.break_hold("a", Some(guard.owner())).await.unwrap().unwrap();
    assert_eq!(broken.owner(), guard.owner());
    timeout(HANG, guard.lost()).await.unwrap();
    assert!(!guard.is_held());
    assert_eq!(onlooker.look("a").await.unwrap().holder(), None);
}

/// Somebody in the old file, and nobody in the new one, would be told that the hold is over.
#[tokio::test]
async fn in_a_file_that_was_replaced_nothing_is_seen_or_broken() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("a")).await;
    std::fs::rename(fixture.path(), fixture.folder().join("moved.db")).unwrap();
    for error in [
        driver.look(&name("a")).await.unwrap_err(),
        driver.held(&Namespace::default()).await.unwrap_err(),
        driver.break_hold(&name("a"), None).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        assert!(told_by_driver(error).contains("deleted or replaced"));
    }
    std::fs::rename(fixture.folder().join("moved.db"), fixture.path()).unwrap();
    assert!(driver.look(&name("a")).await.unwrap().holder().is_some());
}

/// Neither a driver that is open nor one that is opened meanwhile.
#[tokio::test]
async fn looking_waits_for_no_writer() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("a");
    granted(&driver, &held).await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, "BEGIN IMMEDIATE; DELETE FROM lockkit_hold").await;
    for driver in [driver, fixture.driver().await] {
        let status = driver.look(&name("a")).await.unwrap();
        assert_eq!(status.holder().unwrap().owner(), held.owner());
        assert_eq!(driver.held(&Namespace::default()).await.unwrap().len(), 1);
    }
    execute(&mut raw, "ROLLBACK").await;
}

/// Which may be waiting for a writer, or for a disk that hangs.
#[tokio::test]
async fn looking_waits_for_no_request_of_its_driver() {
    let fixture = Fixture::new();
    let url = format!("sqlite:{}?call_limit=30s", fixture.path().display());
    let driver = SqliteDriver::connect(&url.parse().unwrap()).await.unwrap();
    let (held, wanted, held_name) = (claim("held"), claim("wanted"), name("held"));
    granted(&driver, &held).await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, "BEGIN IMMEDIATE").await;
    tokio::select! {
        biased;
        answer = driver.try_acquire(&wanted) => panic!("answered first: {answer:?}"),
        status = driver.look(&held_name) => {
            assert_eq!(status.unwrap().holder().unwrap().owner(), held.owner());
        }
    }
}

#[tokio::test]
async fn looking_changes_nothing() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("a")).await;
    refused(&driver, &claim("a").fair()).await;
    let mut raw = fixture.raw().await;
    // What has run out would be removed by an ask.
    execute(&mut raw, "UPDATE lockkit_hold SET expires = 1; UPDATE lockkit_place SET expires = 1")
        .await;
    let before = number(&mut raw, "PRAGMA data_version").await;
    driver.look(&name("a")).await.unwrap();
    driver.held(&Namespace::default()).await.unwrap();
    driver.diagnose(&Namespace::default()).await.unwrap();
    assert_eq!(number(&mut raw, "PRAGMA data_version").await, before, "something was written");
    granted(&driver, &claim("a")).await;
    assert_ne!(number(&mut raw, "PRAGMA data_version").await, before);
}
