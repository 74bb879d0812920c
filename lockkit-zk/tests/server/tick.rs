//! Servers that do not tell their tick, so that it has to be found out when a session begins.

use std::time::Duration;

use libtest_mimic::Trial;
use lockkit_core::Error;
use lockkit_core::driver::{Attempt, Claim, Driver, Grant, Vouch};
use lockkit_testkit::{Proxy, Server, Unavailable, trial};
use lockkit_zk::ZooKeeperDriver;
use tokio::time::{sleep, timeout};

use crate::diagnosis::{set_silent, silent, silent_with};
use crate::support::{causes, claim, driver, millis, take, with};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_longest_session_that_was_raised_is_taken_for_no_tick", raised, refused),
        trial("a_longest_session_that_was_raised_later_tells_no_other_tick", silent, raised_later),
        trial("a_longest_session_that_was_lowered_is_no_obstacle", lowered, long),
        trial("a_server_that_takes_its_time_grants_a_session", silent, slow),
        trial("a_server_that_takes_its_time_grants_the_next_session", patient, slow_later),
        trial("who_falls_silent_is_left_for_another_that_tells_nothing", two, another),
    ]
}

/// Guards a test that would wait for ever.
const SOON: Duration = Duration::from_secs(60);

fn raised() -> Result<Server, Unavailable> {
    silent_with("maxSessionTimeout=60000000\n")
}

/// A dead holder would keep its lock for three of those ticks.
async fn refused(server: Server) {
    let url = with(&server.url(), "ttl=4s");
    let error = ZooKeeperDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    let text = causes(&error);
    assert!(text.contains("400ms to 1200s") && text.contains("give `tick`"), "{text}");

    let driver = sure(&url).await;
    let Attempt::Granted(grant) = driver.try_acquire(&claim()).await.unwrap() else {
        panic!("not granted");
    };
    assert_eq!(length(&grant), millis(4000 - 200), "a tick less than the session");
}

/// A session that is running has a tick, and so has the one after it.
async fn raised_later(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (driver, held) = (driver(&with(&server.url_at(proxy.addr()), "ttl=4s")).await, claim());
    take(&driver, &held).await;
    proxy.refuse().await;
    proxy.reset().await;
    set_silent(&server, "maxSessionTimeout=60000000\n").unwrap();
    let (other, next) = (sure(&with(&server.url(), "ttl=4s")).await, claim().fair());
    // Until the session has ended.
    granted(&other, &next).await;
    other.close().await;
    proxy.accept().await;
    assert_eq!(length(&granted(&driver, &claim()).await), millis(4000 - 200));
}

/// Whose tick is known: of a server that tells none.
async fn sure(url: &str) -> ZooKeeperDriver {
    driver(&with(url, "tick=200ms")).await
}

/// Asks until it is granted the lock.
async fn granted(driver: &ZooKeeperDriver, claim: &Claim) -> Grant {
    let grant = async {
        loop {
            match driver.try_acquire(claim).await {
                Ok(Attempt::Granted(grant)) => break grant,
                Ok(_) => sleep(millis(20)).await,
                Err(error) => assert!(error.kind().is_transient(), "{error}"),
            }
        }
    };
    timeout(SOON, grant).await.expect("it is granted")
}

/// As far out of line as can be told: half the least is more than the tick.
fn lowered() -> Result<Server, Unavailable> {
    silent_with("minSessionTimeout=4000\nmaxSessionTimeout=20000\n")
}

/// The least session is not much shorter than three ticks of that.
async fn long(server: Server) {
    let driver = driver(&with(&server.url(), "ttl=5s")).await;
    let grant = granted(&driver, &claim()).await;
    assert_eq!(length(&grant), millis(6000 - 2000), "a tick less than the session");
}

async fn slow(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    proxy.answers().delay(millis(400));
    let driver = driver(&with(&server.url_at(proxy.addr()), "ttl=4s")).await;
    proxy.answers().pass();
    take(&driver, &claim()).await;
}

/// With sessions that outlast what is slow.
fn patient() -> Result<Server, Unavailable> {
    silent_with("maxSessionTimeout=60000\n")
}

/// There is no time for finding out the tick as well.
async fn slow_later(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&server.url_at(proxy.addr())).await;
    proxy.answers().delay(millis(1500));
    // The session is given up for its length.
    set_silent(&server, "maxSessionTimeout=20000\n").unwrap();
    let granted = async {
        let claim = claim();
        loop {
            match driver.try_acquire(&claim).await {
                Ok(Attempt::Granted(grant)) if length(&grant) < millis(20_000) => break,
                Ok(_) => while driver.release(&claim).await.is_err() {},
                Err(error) => assert!(error.kind().is_transient(), "{error}"),
            }
        }
    };
    timeout(SOON, granted).await.expect("another session begins");
}

/// How long a hold is good for.
fn length(grant: &Grant) -> Duration {
    let Vouch::Lease { ttl, .. } = grant.vouched() else { panic!("{grant:?}") };
    ttl
}

fn two() -> Result<(Server, Server), Unavailable> {
    Ok((silent()?, silent()?))
}

/// Whichever server is tried first.
async fn another((one, other): (Server, Server)) {
    // A server is slow with its first session.
    driver(&one.url()).await.close().await;
    other.stop().unwrap();
    let url = format!("zookeeper://{},{}?ttl=4s", other.addr(), one.addr());
    for _ in 0..6 {
        let driver = driver(&url).await;
        take(&driver, &claim()).await;
        driver.close().await;
    }
}
