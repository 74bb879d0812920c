//! A server whose wall clock is stepped.

use std::time::Duration;

use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Driver, Release, Renewal};
use lockkit_core::{AnyOrder, Lease, Leased, Lock, Locker, Renew};
use lockkit_sql::postgres::PostgresDriver;
use lockkit_testkit::{POSTGRES, Server, trial};
use tokio::time::sleep;

use crate::support::{Database, LONG, NAME, claim, driver, listen, millis, named, refused, take};
use crate::sweeps::draw_a_sweep;

pub(crate) fn trials() -> Vec<Trial> {
    let stepped = || POSTGRES.start_with_clock();
    vec![
        trial("a_clock_set_forward_makes_two_believe", stepped, trusted),
        trial("who_observes_takes_over_only_what_nobody_believes_in", stepped, observed),
        trial("who_observes_takes_what_is_released_or_broken_at_once", stepped, at_once),
        trial("a_renewal_behind_a_clock_set_back_is_seen", stepped, set_back),
        trial("who_observes_keeps_the_order_of_places", stepped, in_order),
        trial("who_observes_removes_no_row_of_a_hold", stepped, swept),
    ]
}

const TTL: Duration = Duration::from_secs(3);
const HOUR: i64 = 60 * 60;

/// A lock of a locker of its own, the holds on which are not renewed: the holder hears nothing.
async fn deaf(url: &str) -> Lock<AnyOrder, Leased> {
    let locker = Locker::new(driver(url).await);
    locker.lock(NAME).unwrap().leased(Lease::new(TTL).renew(Renew::Never)).unwrap()
}

/// What `observe` is for.
async fn trusted(server: Server) {
    let (one, other) = (deaf(&server.url()).await, deaf(&server.url()).await);
    let first = one.try_acquire().await.unwrap().unwrap();
    assert!(other.try_acquire().await.unwrap().is_none());
    server.step_clock(HOUR).unwrap();
    let second = other.try_acquire().await.unwrap().unwrap();
    assert!(first.is_held() && second.is_held(), "two believe that they have it");
    assert!(second.fencing_token() > first.fencing_token());
}

async fn observed(server: Server) {
    let url = format!("{}?observe=true", server.url());
    let (one, other) = (deaf(&url).await, deaf(&url).await);
    let first = one.try_acquire().await.unwrap().unwrap();
    server.step_clock(HOUR).unwrap();
    let second = loop {
        match other.try_acquire().await.unwrap() {
            Some(second) => break second,
            None => sleep(millis(10)).await,
        }
        // Neither does a step that undoes the first one help.
        server.step_clock(0).unwrap();
        assert!(other.try_acquire().await.unwrap().is_none() || !first.is_held());
        server.step_clock(HOUR).unwrap();
    };
    assert!(second.is_held() && !first.is_held(), "never two at once");
    assert!(second.fencing_token() > first.fencing_token());
}

async fn at_once(server: Server) {
    let driver = driver(&format!("{}?observe=true", server.url())).await;
    let (released, broken, next) = (claim(LONG), claim(LONG), claim(LONG));
    take(&driver, &released).await;
    server.step_clock(HOUR).unwrap();
    refused(&driver, &next).await;
    assert_eq!(driver.release(&released).await.unwrap(), Release::NotHeld, "it had run out");
    take(&driver, &broken).await;
    server.step_clock(2 * HOUR).unwrap();
    let left = refused(&driver, &next).await.remaining().unwrap();
    assert!(left > millis(29_000) && left <= LONG, "a lease from the first look: {left:?}");
    let inspection = driver.inspect().unwrap();
    let holder = inspection.break_hold(broken.name(), None).await.unwrap().unwrap();
    assert_eq!(holder.owner(), broken.owner());
    take(&driver, &next).await;
    assert_eq!(driver.renew(&broken).await.unwrap(), Renewal::Lost);
}

/// The clock is set back: renewals leave the end of the lease where it is. Then the clock is right
/// again, and the end over.
async fn set_back(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let driver = driver(&format!("{}?observe=true", server.url())).await;
    let (holder, next) = (claim(TTL), claim(TTL));
    let first = take(&driver, &holder).await;
    server.step_clock(HOUR).unwrap();
    refused(&driver, &next).await;
    server.step_clock(-HOUR).unwrap();
    let end = "SELECT expires - lockkit_now() FROM lockkit_lock";
    for _ in 0..3 {
        sleep(TTL / 3).await;
        assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    }
    assert!(database.ask::<i64>(end).await > HOUR * 1_000_000 / 2);
    // Longer ago than a lease it was first seen to have run out, and it lives.
    sleep(millis(50)).await;
    server.step_clock(HOUR).unwrap();
    assert!(database.ask::<i64>(end).await < 0);
    let left = refused(&driver, &next).await.remaining().unwrap();
    assert!(left > TTL / 2, "it was renewed: {left:?}");
    sleep(left).await;
    assert!(take(&driver, &next).await > first);
}

/// A dead holder's lock goes to the first place, a lease after it was seen to have run out; not
/// before that either if a place leaves.
async fn in_order(server: Server) {
    let driver = driver(&format!("{}?observe=true", server.url())).await;
    let dead = claim(millis(4000));
    let [first, second, leaving] = [(); 3].map(|()| claim(LONG).fair());
    take(&driver, &dead).await;
    listen(&driver, &first).await;
    refused(&driver, &second).await;
    refused(&driver, &leaving).await;
    sleep(millis(4020)).await;
    let left = refused(&driver, &first).await.remaining().unwrap();
    assert!(left <= millis(4000) && left > millis(2000), "{left:?}");
    assert_eq!(driver.release(&leaving).await.unwrap(), Release::NotHeld);
    refused(&driver, &first).await;
    sleep(left).await;
    // Another's ask finds it free by now, and the place before it.
    refused(&driver, &claim(LONG)).await;
    assert!(matches!(driver.changed(&first).await, Change::Granted(_)));
    take(&driver, &first).await;
    driver.release(&first).await.unwrap();
    take(&driver, &second).await;
}

/// A row that nobody has used for over a day, by the clock, may be that of a hold.
async fn swept(server: Server) {
    let url = format!("{}?observe=true", server.url());
    let mut database = Database::at(&server.url()).await;
    let driver = driver(&url).await;
    let (held, free) = (claim(LONG), named("swept", LONG));
    take(&driver, &held).await;
    take(&driver, &free).await;
    driver.release(&free).await.unwrap();
    server.step_clock(26 * HOUR).unwrap();
    let url = url.parse().unwrap();
    draw_a_sweep();
    let _sweeping = PostgresDriver::connect(&url).await.unwrap();
    let is_there = "SELECT COUNT(*) FROM lockkit_lock WHERE name = 'swept'";
    while database.ask::<i64>(is_there).await > 0 {
        sleep(millis(5)).await;
    }
    refused(&driver, &claim(LONG)).await;
}
