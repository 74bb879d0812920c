//! Sessions that end, connections that break, and what both mean for holds.

use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, ErrorKind, Inspect, Release, Renewal, Vouch,
};
use lockkit_core::{Error, LockName, Locker, Namespace};
use lockkit_testkit::{Proxy, Server, Unavailable, ZOOKEEPER, trial};
use lockkit_zk::ZooKeeperDriver;
use tokio::runtime::Builder;
use tokio::select;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::support::{
    FOLDER, LONG, NAME, Place, addr, ask, causes, claim, claim_for, driver, impatient_driver, kind,
    millis, refused, take, take_in_the_end, with,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("an_expired_session_takes_hold_and_place_along", || ZOOKEEPER.url(), expired),
        trial("what_a_session_took_along_is_released_without_an_answer", || ZOOKEEPER.url(), alone),
        trial("a_guard_is_lost_before_the_session_ends", || ZOOKEEPER.url(), in_time),
        trial("a_hold_that_is_watched_is_kept_without_asking", || ZOOKEEPER.start(), kept),
        trial("a_cut_is_cause_to_doubt_and_no_loss", || ZOOKEEPER.url(), cut),
        trial("a_cut_costs_none_of_many_holds_with_long_names", patient, many_hold),
        trial("a_cut_costs_none_of_many_waiters_for_long_names", patient, many_wait),
        trial("a_restarted_server_keeps_the_holds", patient, restarted),
        trial("a_session_that_a_reconnect_cuts_short_is_given_up", patient, shortened),
        trial("nothing_more_is_vouched_for_until_the_length_is_known_again", patient, in_doubt),
        trial("doubt_that_nobody_can_end_ends_the_session", one_connection, in_vain),
        trial("the_session_is_as_long_as_granted", || ZOOKEEPER.url(), granted),
        trial("sessions_that_are_too_short_are_refused", short, too_short),
        trial("a_closed_driver_leaves_no_session", || ZOOKEEPER.url(), closed),
        trial("who_shares_a_closed_driver_is_told_before_others_hold", || ZOOKEEPER.url(), shared),
        trial("who_waits_on_a_closed_driver_leaves_no_place", || ZOOKEEPER.url(), waits_on_closed),
        trial("nothing_is_granted_by_a_closed_driver", || ZOOKEEPER.url(), granted_by_closed),
        trial("a_hold_whose_runtime_has_ended_is_removed", || ZOOKEEPER.url(), runtime_ended),
        trial("what_outlives_its_runtime_is_told_and_released", || ZOOKEEPER.url(), outlives),
        trial("many_that_outlive_their_runtime_are_told", || ZOOKEEPER.url(), many_outlive),
        trial("a_dropped_driver_leaves_no_session", patient, dropped),
    ]
}

async fn expired(server: String) {
    let place = Place::on(&server).await;
    let proxy = Proxy::start(addr(&server)).await;
    let driver = driver(&with(&place.url_by(proxy.addr()), "ttl=3s")).await;
    let (held, waiting, behind) = (claim(), claim().fair(), claim().fair());
    let first = take(&driver, &held).await;
    refused(&driver, &waiting).await;
    refused(&driver, &behind).await;
    let mut listening = pin!(driver.changed(&behind));
    assert!(poll!(&mut listening).is_pending());
    proxy.refuse().await;
    proxy.reset().await;
    place.nodes_come_to(0).await;
    proxy.accept().await;
    let mut change = driver.changed(&held).await;
    if change == Change::AskAgain {
        change = driver.changed(&held).await;
    }
    assert_eq!(change, Change::Lost);
    assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.changed(&waiting).await, Change::Lost);
    assert_eq!(listening.await, Change::Lost);
    // Another session has begun by itself.
    assert!(take(&driver, &waiting).await > first);
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
    assert_eq!(place.nodes().await.len(), 1);
    assert_eq!(driver.release(&waiting).await.unwrap(), Release::Freed);
}

async fn alone(server: String) {
    let place = Place::on(&server).await;
    let proxy = Proxy::start(addr(&server)).await;
    let driver = impatient_driver(&with(&place.url_by(proxy.addr()), "ttl=3s")).await;
    let soon = || claim_for(millis(500));
    let (held, waiting, unsent) = (soon(), soon().fair(), soon());
    take(&driver, &held.clone().with_ttl(LONG)).await;
    refused(&driver, &waiting.clone().with_ttl(LONG)).await;
    proxy.refuse().await;
    proxy.reset().await;
    while driver.changed(&held).await != Change::Lost {
        assert!(driver.try_acquire(&unsent).await.is_err());
    }
    for claim in [&held, &waiting, &unsent] {
        assert_eq!(driver.release(claim).await.unwrap(), Release::NotHeld);
    }
    place.nodes_come_to(0).await;
}

async fn in_time(server: String) {
    let place = Place::on(&server).await;
    let proxy = Proxy::start(addr(&server)).await;
    let url = with(&place.url_by(proxy.addr()), "ttl=3s").parse().unwrap();
    let locker = Locker::new(ZooKeeperDriver::connect(&url).await.unwrap());
    let guard = locker.lock(NAME).unwrap().acquire().await.unwrap();
    let [node] = &place.nodes().await[..] else { panic!("no node") };
    let path = place.path(&format!("{}/{node}", FOLDER));
    let (_, _, watch) = place.raw.get_and_watch_data(&path).await.unwrap();
    // Neither way: each side believes that the other is silent.
    proxy.requests().swallow();
    proxy.answers().swallow();
    tokio::select! {
        biased;
        // Seen first where both are seen late: the clock tells what the holder believes.
        _ = watch.changed() => (),
        () = guard.lost() => (),
    }
    assert!(!guard.is_held(), "the session has ended while its holder believes in it");
    place.nodes_come_to(0).await;
}

async fn cut(server: String) {
    let place = Place::on(&server).await;
    let proxy = Proxy::start(addr(&server)).await;
    let driver = driver(&place.url_by(proxy.addr())).await;
    let (held, waiting) = (claim(), claim().fair());
    let token = take(&driver, &held).await;
    refused(&driver, &waiting).await;
    proxy.reset().await;
    assert_eq!(driver.changed(&held).await, Change::AskAgain);
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    assert_eq!(take(&driver, &held).await, token);
    refused(&driver, &waiting).await;
    assert_eq!(place.nodes().await.len(), 2);
    driver.release(&held).await.unwrap();
    assert!(matches!(driver.changed(&waiting).await, Change::Granted(_)));
}

/// So many of those have more than twice the paths that the client library watches again at once.
const MANY: u32 = 200;

/// With a node whose path has more than 1600 bytes.
fn long_named(number: u32) -> Claim {
    let text = format!("{number:03}{}", "ü".repeat(254));
    Claim::new(LockName::new(&Namespace::default(), &text).unwrap(), LONG)
}

async fn many_hold(server: Server) {
    let place = Place::on(&server.url()).await;
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&place.url_by(proxy.addr())).await;
    let held: Vec<_> = (0..MANY).map(long_named).collect();
    join_all(held.iter().map(|claim| take(&driver, claim))).await;
    let listen = || join_all(held.iter().map(|claim| driver.changed(claim)));
    let mut listening = pin!(listen());
    select! {
        changes = &mut listening => panic!("nothing has happened, but {changes:?}"),
        // As many as there is room for.
        () = place.watches_reach(40) => (),
    }
    proxy.reset().await;
    assert!(listening.await.iter().all(|change| *change == Change::AskAgain));
    for claim in &held {
        assert!(matches!(driver.renew(claim).await.unwrap(), Renewal::Held(_)));
    }
    // Who is not watched is looked for.
    select! {
        changes = listen() => panic!("nothing has happened, but {changes:?}"),
        () = place.watches_reach(40) => (),
    }
    let watched = place.watched().await;
    let is_watched = |claim: &&Claim| {
        let owner = claim.owner().to_string();
        watched.iter().any(|path| path.contains(&owner))
    };
    let broken = held.iter().find(|claim| !is_watched(claim)).expect("room for them all");
    driver.break_hold(broken.name(), None).await.unwrap().unwrap();
    assert_eq!(driver.renew(broken).await.unwrap(), Renewal::Lost);
}

async fn many_wait(server: Server) {
    let place = Place::on(&server.url()).await;
    let proxy = Proxy::start(server.addr()).await;
    let (near, far) = (driver(&place.url).await, driver(&place.url_by(proxy.addr())).await);
    let kept = claim();
    take(&far, &kept).await;
    let held: Vec<_> = (0..MANY).map(long_named).collect();
    let waiting: Vec<_> = (0..MANY).map(|number| long_named(number).fair()).collect();
    join_all(held.iter().map(|claim| take(&near, claim))).await;
    join_all(waiting.iter().map(|claim| refused(&far, claim))).await;
    let granted = async |claim| loop {
        match far.changed(claim).await {
            Change::Granted(_) => break,
            Change::AskAgain => match far.try_acquire(claim).await {
                Ok(Attempt::Granted(_)) => break,
                Ok(_) => (),
                Err(error) => assert!(error.kind().is_transient(), "{error}"),
            },
            change => panic!("{change:?}"),
        }
    };
    let mut granted = pin!(join_all(waiting.iter().map(granted)));
    select! {
        _ = &mut granted => panic!("all are held by others"),
        () = place.watches_reach(60) => (),
    }
    proxy.reset().await;
    // All watches are set again by the answer, and the session is the same.
    let renewal = loop {
        if let Ok(renewal) = far.renew(&kept).await {
            break renewal;
        }
    };
    assert!(matches!(renewal, Renewal::Held(_)), "{renewal:?}");
    let releasing = join_all(held.iter().map(|claim| near.release(claim)));
    tokio::join!(granted, releasing);
}

async fn kept(server: Server) {
    const RENEWALS: usize = 200;
    let place = Place::on(&server.url()).await;
    let driver = driver(&place.url).await;
    let held = claim();
    take(&driver, &held).await;
    {
        let mut listening = pin!(driver.changed(&held));
        select! {
            change = &mut listening => panic!("nothing has happened, but {change:?}"),
            () = place.watches_come_to(1) => (),
        }
        // Its answer comes after that to the watch.
        assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
        assert!(poll!(&mut listening).is_pending());
    }
    let before = place.packets().await;
    for _ in 0..RENEWALS {
        assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    }
    let asked = place.packets().await - before;
    assert!(asked < RENEWALS / 2, "{RENEWALS} renewals took {asked} packets");

    let [node] = &place.nodes().await[..] else { panic!("no node") };
    place.raw.delete(&format!("{}/{node}", place.path(FOLDER)), None).await.unwrap();
    while driver.renew(&held).await.unwrap() != Renewal::Lost {
        tokio::task::yield_now().await;
    }
}

async fn restarted(server: Server) {
    let place = Place::on(&server.url()).await;
    let driver = driver(&place.url).await;
    let (held, waiting) = (claim(), claim().fair());
    let token = take(&driver, &held).await;
    refused(&driver, &waiting).await;
    server.restart().unwrap();
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    assert_eq!(take(&driver, &held).await, token);
    // The watch is set again.
    refused(&driver, &waiting).await;
    driver.release(&held).await.unwrap();
    assert!(matches!(driver.changed(&waiting).await, Change::Granted(_)));
}

/// Guards a test that would wait for ever.
const SOON: Duration = Duration::from_secs(20);

/// The client library goes on with it, and does not tell.
async fn shortened(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let held = Locker::new(driver(&with(&server.url_at(proxy.addr()), "ttl=30s")).await);
    let lock = held.lock(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    // One who waits for another lock, of a holder who stays.
    let elsewhere = || Claim::new(LockName::new(&Namespace::default(), "b").unwrap(), LONG);
    let (stays, other) = (driver(&with(&server.url(), "ttl=5s")).await, elsewhere().fair());
    take(&stays, &elsewhere()).await;
    let waiter = driver(&with(&server.url(), "ttl=30s")).await;
    refused(&waiter, &other).await;
    {
        let mut listening = pin!(waiter.changed(&other));
        let addr = server.addr();
        while !ask(addr, "wchs").await.contains("Total watches:2") {
            _ = poll!(&mut listening);
        }
        set_longest_session(&server, 5000).unwrap();
        timeout(SOON, guard.lost()).await.expect("its session is shorter than it believes");
        timeout(SOON, listening).await.expect("its place is gone");
    }
    // What is left of the session before is removed.
    let guard = timeout(SOON, lock.acquire()).await.unwrap().unwrap();
    // The next session is as long as it is taken for.
    let last = claim().fair();
    refused(&waiter, &last).await;
    proxy.refuse().await;
    proxy.reset().await;
    let grant = loop {
        match waiter.changed(&last).await {
            Change::Granted(grant) => break grant,
            Change::AskAgain => match waiter.try_acquire(&last).await.unwrap() {
                Attempt::Granted(grant) => break grant,
                _ => continue,
            },
            change => panic!("{change:?}"),
        }
    };
    assert!(!guard.is_held(), "two hold it at once");
    let Vouch::Lease { ttl, .. } = grant.vouched() else { panic!("{grant:?}") };
    assert_eq!(ttl, millis(5000 - 200), "a tick less than the session");
}

/// The servers count a length that nobody knows.
async fn in_doubt(server: Server) {
    /// That, and no session yet.
    const A_SESSION_OF_30_S: &[u8] = b"\x00\x00\x75\x30\x00\x00\x00\x00\x00\x00\x00\x00";
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&with(&server.url_at(proxy.addr()), "ttl=30s")).await;
    let held = claim();
    take(&driver, &held).await;
    let since = async || match driver.renew(&held).await.unwrap() {
        Renewal::Held(Vouch::Lease { since, .. }) => since,
        other => panic!("{other:?}"),
    };
    let before = since().await;
    let asking = proxy.requests().hold(A_SESSION_OF_30_S);
    proxy.reset().await;
    timeout(SOON, asking.caught()).await.expect("the servers are asked");
    // Writes, which prove that the session stands, over several ticks.
    let start = Instant::now();
    while start.elapsed() < millis(1000) {
        refused(&driver, &claim()).await;
    }
    assert_eq!(since().await, before);
    asking.go_on();
    while since().await == before {
        refused(&driver, &claim()).await;
    }
}

/// Which leaves none for asking how long sessions are.
fn one_connection() -> Result<Server, Unavailable> {
    with_settings("maxClientCnxns=1\n")
}

async fn in_vain(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let url = with(&server.url_at(proxy.addr()), "tick=200ms&ttl=2s");
    let driver = impatient_driver(&url).await;
    let (held, waiting) = (claim(), claim().fair());
    take(&driver, &held).await;
    refused(&driver, &waiting).await;
    proxy.reset().await;
    let lost = async {
        for claim in [&held, &waiting] {
            while driver.changed(claim).await != Change::Lost {}
        }
    };
    timeout(SOON, lost).await.expect("nobody believes in it any more");
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
    let grant = take_in_the_end(&driver, &waiting);
    let grant = timeout(SOON, grant).await.expect("there is room for another session");
    let Vouch::Lease { since, ttl } = grant.vouched() else { panic!("{grant:?}") };
    assert!(since + ttl > waiting.now(), "its hold is over before it begins");
}

/// The server's bounds are 2 and 20 ticks of 200 ms; ours is 3 at least.
async fn granted(server: String) {
    for (wish, granted) in [(500, 600), (1000, 1000), (30_000, 4000)] {
        // Nobody else's, since a session that a busy machine has lost may be there for a while.
        let place = Place::on(&server).await;
        let (driver, claim) = (driver(&with(&place.url, &format!("ttl={wish}ms"))).await, claim());
        let mut tries = 1..=20;
        let grant = loop {
            match driver.try_acquire(&claim).await {
                Ok(Attempt::Granted(grant)) => break grant,
                Ok(other) => panic!("not granted: {other:?}"),
                Err(error) => {
                    assert!(error.kind().is_transient() && tries.next().is_some(), "{error}")
                }
            }
        };
        let Vouch::Lease { ttl, .. } = grant.vouched() else { panic!("{grant:?}") };
        assert_eq!(ttl, millis(granted - 200), "a tick less than the session");
        driver.close().await;
    }
}

/// With sessions of half a second at most.
fn short() -> Result<Server, Unavailable> {
    with_longest_session(500)
}

/// With sessions that outlast a slow start.
fn patient() -> Result<Server, Unavailable> {
    with_longest_session(60_000)
}

fn with_longest_session(millis: u64) -> Result<Server, Unavailable> {
    with_settings(&longest_session(millis))
}

/// With these settings.
pub(crate) fn with_settings(settings: &str) -> Result<Server, Unavailable> {
    let server = ZOOKEEPER.start()?;
    set(&server, settings)?;
    Ok(server)
}

fn set_longest_session(server: &Server, millis: u64) -> Result<(), Unavailable> {
    set(server, &longest_session(millis))
}

fn longest_session(millis: u64) -> String {
    format!("maxSessionTimeout={millis}\n")
}

pub(crate) fn set(server: &Server, settings: &str) -> Result<(), Unavailable> {
    std::fs::write(server.data().join("settings"), settings).unwrap();
    server.restart()
}

async fn too_short(server: Server) {
    let error = ZooKeeperDriver::connect(&server.url().parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("500ms"), "{}", causes(&error));
}

async fn closed(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let held = claim();
    take(&driver, &held).await;
    driver.close().await;
    assert_eq!(place.nodes().await, [""; 0]);
    // Whoever comes late to listen is told as well.
    let change = timeout(SOON, driver.changed(&held)).await.expect("there is news");
    assert_eq!(change, Change::Lost);
    assert!(driver.try_acquire(&claim()).await.is_err());
    driver.close().await;
}

/// Too young a hold to have a keeper that listens.
async fn shared(server: String) {
    let place = Place::on(&server).await;
    let (ours, theirs) = (Arc::new(driver(&place.url).await), driver(&place.url).await);
    let [closing, holding] = [(); 2].map(|()| Locker::from_arc(ours.clone()));
    let guard = holding.lock(NAME).unwrap().acquire().await.unwrap();
    let next = claim().fair();
    refused(&theirs, &next).await;
    let granted = async {
        while !matches!(theirs.changed(&next).await, Change::Granted(_)) {}
        assert!(!guard.is_held(), "two hold it at once");
    };
    tokio::join!(closing.shutdown(), granted);
}

async fn waits_on_closed(server: String) {
    let place = Place::on(&server).await;
    let (ours, theirs) = (driver(&place.url).await, driver(&place.url).await);
    let (held, waiting, behind) = (claim(), claim().fair(), claim().fair());
    take(&theirs, &held).await;
    refused(&ours, &waiting).await;
    refused(&ours, &behind).await;
    let told = async |claim| {
        while ours.changed(claim).await != Change::Lost {}
        assert!(ours.try_acquire(claim).await.is_err());
    };
    let mut listening = pin!(join_all([&waiting, &behind].map(told)));
    while place.watched().await.is_empty() {
        assert!(poll!(&mut listening).is_pending());
    }
    tokio::join!(ours.close(), async {
        timeout(SOON, listening).await.expect("their places are gone");
    });
    place.nodes_come_to(1).await;
}

/// It was asked before.
async fn granted_by_closed(server: String) {
    let place = Place::made_on(&server).await;
    let proxy = Proxy::start(addr(&server)).await;
    let driver = driver(&place.url_by(proxy.addr())).await;
    let claim = claim();
    let look = proxy.requests().hold(format!("{FOLDER}\0"));
    let (answer, ()) = tokio::join!(driver.try_acquire(&claim), async {
        look.caught().await;
        let mut closing = pin!(driver.close());
        assert!(poll!(&mut closing).is_pending());
        look.go_on();
        closing.await;
    });
    assert_eq!(kind(answer).0, ErrorKind::Unknown);
    assert_eq!(driver.release(&claim).await.unwrap(), Release::NotHeld);
    place.nodes_come_to(0).await;
}

/// By the driver, which lives on elsewhere.
async fn runtime_ended(server: String) {
    let place = Place::on(&server).await;
    let url = with(&place.url, "ttl=3s").parse().unwrap();
    let driver = Arc::new(ZooKeeperDriver::connect(&url).await.unwrap());
    let shared = driver.clone();
    let elsewhere = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let locker = Locker::from_url(shared, &url).unwrap();
        let guard = runtime.block_on(async { locker.lock(NAME).unwrap().acquire().await.unwrap() });
        std::mem::forget(guard);
    });
    spawn_blocking(|| elsewhere.join()).await.unwrap().unwrap();
    place.nodes_come_to(1).await;
    timeout(SOON, place.nodes_come_to(0)).await.expect("nobody keeps it");
    take(&driver, &claim()).await;
}

/// The runtime in which the driver was connected.
async fn outlives(server: String) {
    let place = Place::on(&server).await;
    let url = place.url.clone();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let driver = runtime.spawn(async move { driver(&url).await }).await.unwrap();
    let (held, waiting, behind) = (claim(), claim().fair(), claim().fair());
    take(&driver, &held).await;
    refused(&driver, &waiting).await;
    refused(&driver, &behind).await;
    let mut listening = pin!(join_all([&held, &waiting, &behind].map(|it| driver.changed(it))));
    assert!(poll!(&mut listening).is_pending());
    runtime.shutdown_background();
    let told = timeout(SOON, listening).await.expect("there is news");
    assert!(told.iter().all(|change| *change == Change::Lost), "{told:?}");
    assert_eq!(kind(driver.try_acquire(&waiting).await).0, ErrorKind::Unreachable);
    for claim in [&held, &waiting, &behind] {
        assert_eq!(driver.release(claim).await.unwrap(), Release::NotHeld);
    }
    driver.close().await;
    place.nodes_come_to(0).await;
}

/// The client library's own tasks may end before the driver's.
async fn many_outlive(server: String) {
    const HOLDS: usize = 200;
    let place = Place::on(&server).await;
    let url = place.url.clone();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let driver = Arc::new(runtime.spawn(async move { driver(&url).await }).await.unwrap());
    let name = |number: usize| LockName::new(&Namespace::default(), &number.to_string()).unwrap();
    let held: Vec<_> = (0..HOLDS).map(|number| Claim::new(name(number), LONG)).collect();
    join_all(held.iter().map(|claim| take(&driver, claim))).await;
    let mut listening = JoinSet::new();
    for claim in held {
        let driver = Arc::clone(&driver);
        listening.spawn(async move { driver.changed(&claim).await });
    }
    place.watches_come_to(HOLDS).await;
    runtime.shutdown_background();
    let told = timeout(SOON, listening.join_all()).await.expect("there is news");
    assert!(told.iter().all(|change| *change == Change::Lost), "{told:?}");
}

/// At once, and not when its time is over.
async fn dropped(server: Server) {
    let place = Place::on(&server.url()).await;
    let driver = driver(&with(&place.url, "ttl=60s")).await;
    take(&driver, &claim()).await;
    drop(driver);
    timeout(SOON, place.nodes_come_to(0)).await.expect("its session is over with it");
}
