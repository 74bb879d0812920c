//! A server whose wall clock is stepped.

use std::time::Duration;

use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Release};
use lockkit_testkit::{MARIADB, POSTGRES, Server, trial};
use tokio::time::sleep;

use crate::support::{Raw, claim, driver, millis, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(
            "postgres::a_clock_set_forward_may_end_a_session",
            || POSTGRES.start_with_clock(),
            ended,
        ),
        trial("mariadb::a_clock_set_forward_ends_no_session", || MARIADB.start_with_clock(), kept),
    ]
}

const HOUR: i64 = 60 * 60;

/// Sets the clock forward by an hour each time.
async fn step(server: &Server, pause: Duration) {
    for hours in 1.. {
        server.step_clock(hours * HOUR).unwrap();
        sleep(pause).await;
    }
}

/// The server sets an alarm, which it leaves to go off where statements come before that, and compares
/// the time then. The alarm that follows a step comes 4.5 s after a heartbeat, half a second after
/// another. At 4.7 s one of a few steps comes in between: they shift by 0.3 s from beat to beat.
async fn ended(server: Server) {
    let driver = driver(&server.url(), "ttl=4500ms").await;
    let held = claim("orders");
    take(&*driver, &held).await;
    tokio::select! {
        () = step(&server, millis(4_700)) => unreachable!(),
        change = driver.changed(&held) => assert_eq!(change, Change::Lost),
    }
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
}

async fn kept(server: Server) {
    let driver = driver(&server.url(), "ttl=8s").await;
    let mut raw = Raw::to(&server).await;
    let held = claim("orders");
    take(&*driver, &held).await;
    let session = raw.session().await;
    tokio::select! {
        () = step(&server, millis(100)) => unreachable!(),
        () = sleep(millis(10_000)) => (),
    }
    assert_eq!(raw.session().await, session, "the session was ended");
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
}
