//! Requests that are lost, answers that are, and those that land late.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Driver, ErrorKind, Release, Renewal};
use lockkit_core::{Error, Locker};
use lockkit_testkit::{Proxy, Server, Unavailable, ZOOKEEPER, trial};
use lockkit_zk::ZooKeeperDriver;
use tokio::time::timeout;

use crate::sessions::with_settings;
use crate::support::{
    FOLDER, LONG, NAME, Place, claim, claim_for, driver, impatient_driver, kind, millis, refused,
    take, with,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_create_without_an_answer_is_adopted", || ZOOKEEPER.start(), swallowed),
        trial("a_create_that_a_cut_left_open_is_adopted", || ZOOKEEPER.start(), cut_off),
        trial("a_node_of_a_session_before_is_not_adopted", || ZOOKEEPER.start(), older),
        trial("a_node_that_goes_before_it_is_looked_at_is_made_anew", || ZOOKEEPER.start(), gone),
        trial("a_node_that_goes_before_it_is_adopted_is_made_anew", || ZOOKEEPER.start(), gone_too),
        trial("a_place_that_was_given_up_is_granted_no_more", || ZOOKEEPER.start(), given_up),
        trial("a_create_behind_a_release_is_removed", || ZOOKEEPER.start(), behind),
        trial("a_create_on_a_connection_that_was_left_never_lands", || ZOOKEEPER.start(), left),
        trial("a_release_at_the_moment_of_a_cut_frees", || ZOOKEEPER.start(), releasing),
        trial("a_release_that_a_waiter_misses_is_made_up_for", || ZOOKEEPER.start(), missed),
        trial("a_hung_server_ends_in_the_limit", || ZOOKEEPER.start(), hung),
        trial("a_request_that_was_not_sent_is_not_unknown", || ZOOKEEPER.start(), away),
        trial("a_request_for_a_connection_that_broke_at_once_is_not_sent", lasting, broken),
        trial("nobody_there_is_unreachable", || ZOOKEEPER.start(), nobody),
        trial("who_asks_through_an_outage_keeps_its_place", lasting, outage),
        trial("who_falls_silent_is_left_for_another", two, another),
    ]
}

async fn swallowed(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let driver = impatient_driver(&place.url_by(proxy.addr())).await;
    let claim = claim_for(millis(2500));
    proxy.answers().swallow();
    let start = Instant::now();
    let (kind, text) = kind(driver.try_acquire(&claim).await);
    assert_eq!(kind, ErrorKind::Unknown, "{text}");
    assert!(start.elapsed() >= millis(500), "the limit is a fifth of the lease");
    proxy.answers().pass();
    place.nodes_come_to(1).await;
    let czxid = place.node(&place.nodes().await[0]).await.1.czxid;
    // With time for a machine under load.
    let claim = claim.with_ttl(LONG);
    assert_eq!(take(&driver, &claim).await.get(), u64::try_from(czxid).unwrap());
    assert_eq!(place.nodes().await.len(), 1);
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    assert_eq!(place.nodes().await, [""; 0]);
}

async fn cut_off(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let driver = driver(&place.url_by(proxy.addr())).await;
    let (claim, other) = (claim(), claim().fair());
    proxy.answers().swallow();
    let asking = driver.try_acquire(&claim);
    let cutting = async {
        place.nodes_come_to(1).await;
        // In this order: the answer is on its way.
        proxy.reset().await;
        proxy.answers().pass();
    };
    let (answer, ()) = tokio::join!(asking, cutting);
    assert_eq!(kind(answer).0, ErrorKind::Unknown);
    take(&driver, &claim).await;
    assert_eq!(place.nodes().await.len(), 1);
    // A claim that is given up instead leaves nothing either.
    refused(&driver, &other).await;
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
}

/// The node of a session that ends is as good as gone, whoever sees it still.
async fn older(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let driver = driver(&place.url_by(proxy.addr())).await;
    let claim = claim();
    let first = take(&driver, &claim).await;
    // As one that a session before has left: same owner, other session.
    let name = place.nodes().await.remove(0);
    driver.release(&claim).await.unwrap();
    let path = format!("{}/{}", place.path(crate::support::FOLDER), &name[..33]);
    let options = zookeeper_client::CreateMode::EphemeralSequential
        .with_acls(zookeeper_client::Acls::anyone_all());
    place.raw.create(&path, b"", &options).await.unwrap();
    let second = take(&driver, &claim).await;
    assert!(second > first);
    one_is_left(&place).await;
    // The same after a create in doubt.
    driver.release(&claim).await.unwrap();
    let held = proxy.requests().hold(&name[..33]);
    let (answer, ()) = tokio::join!(driver.try_acquire(&claim), async {
        held.caught().await;
        place.raw.create(&path, b"", &options).await.unwrap();
        proxy.reset().await;
    });
    assert_eq!(kind(answer).0, ErrorKind::Unknown);
    take(&driver, &claim).await;
    one_is_left(&place).await;
    driver.release(&claim).await.unwrap();
    // And after one that was answered, where the nodes could not be listed, or not be removed.
    for to_remove in [false, true] {
        let older = place.raw.create(&path, b"", &options).await.unwrap().1.to_string();
        let older = format!("{}{older}", &name[..33]);
        let held = match to_remove {
            true => proxy.requests().hold(older),
            false => proxy.requests().hold(list()),
        };
        let before = proxy.answers().bytes();
        let (answer, ()) = tokio::join!(driver.try_acquire(&claim), async {
            held.caught().await;
            place.nodes_come_to(2).await;
            proxy.answers().bytes_reach(before + 1).await;
            proxy.reset().await;
        });
        assert_eq!(kind(answer).0, ErrorKind::Unknown);
        take(&driver, &claim).await;
        one_is_left(&place).await;
        driver.release(&claim).await.unwrap();
    }
}

/// Of the driver's own session.
async fn one_is_left(place: &Place) {
    let nodes = place.nodes().await;
    let [node] = &nodes[..] else { panic!("{nodes:?}") };
    assert_ne!(place.node(node).await.1.ephemeral_owner, place.raw.session_id().0);
}

/// What is in a request that lists the nodes of the lock, and in none about one of them.
fn list() -> String {
    format!("{FOLDER}\0")
}

async fn gone(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let driver = driver(&place.url_by(proxy.addr())).await;
    let claim = claim().fair();
    let look = proxy.requests().hold(list());
    let (answer, ()) = tokio::join!(driver.try_acquire(&claim), async {
        look.caught().await;
        place.nodes_come_to(1).await;
        place.remove(&place.nodes().await[0]).await;
        look.go_on();
    });
    let (kind, text) = kind(answer);
    assert_eq!(kind, ErrorKind::Unknown, "{text}");
    assert!(text.contains("removed by somebody else"), "{text}");
    take(&driver, &claim).await;
    assert_eq!(place.nodes().await.len(), 1);
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
}

async fn gone_too(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let driver = driver(&place.url_by(proxy.addr())).await;
    let claim = claim();
    proxy.answers().swallow();
    let (answer, ()) = tokio::join!(driver.try_acquire(&claim), async {
        place.nodes_come_to(1).await;
        // In this order: the answer is on its way.
        proxy.reset().await;
        proxy.answers().pass();
    });
    assert_eq!(kind(answer).0, ErrorKind::Unknown);
    let node = place.nodes().await.remove(0);
    let look = proxy.requests().hold(&node);
    let (token, ()) = tokio::join!(take(&driver, &claim), async {
        look.caught().await;
        place.remove(&node).await;
        look.go_on();
    });
    let nodes = place.nodes().await;
    assert_ne!(nodes, [node]);
    let czxid = place.node(&nodes[0]).await.1.czxid;
    assert_eq!(token.get(), u64::try_from(czxid).unwrap());
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
}

/// Its answer comes so late that what it may have left is about to be removed.
async fn given_up(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let driver = driver(&with(&place.url_by(proxy.addr()), "ttl=4s")).await;
    let claim = claim_for(millis(200));
    let look = proxy.requests().hold(list());
    let (answer, sweep) = tokio::join!(driver.try_acquire(&claim), async {
        look.caught().await;
        let sweep = proxy.requests().hold(list());
        sweep.caught().await;
        look.go_on();
        sweep
    });
    assert_eq!(kind(answer).0, ErrorKind::Unknown);
    sweep.go_on();
    place.nodes_come_to(0).await;
    take(&driver, &claim_for(LONG)).await;
}

async fn behind(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let driver = impatient_driver(&place.url_by(proxy.addr())).await;
    let claim = claim_for(millis(1000));
    let create = proxy.requests().hold(claim.owner().to_string());
    assert_eq!(kind(driver.try_acquire(&claim).await).0, ErrorKind::Unknown);
    create.caught().await;
    // It goes the same way, so that it cannot be known whether it came before.
    assert_eq!(kind(driver.release(&claim).await).0, ErrorKind::Unknown);
    create.go_on();
    while driver.release(&claim).await.is_err() {}
    assert_eq!(place.nodes().await, [""; 0]);
    assert_eq!(driver.release(&claim.with_ttl(LONG)).await.unwrap(), Release::NotHeld);
}

async fn left(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let driver = impatient_driver(&with(&place.url_by(proxy.addr()), "ttl=2s")).await;
    let claim = claim_for(millis(1000));
    let before = proxy.connections();
    let create = proxy.requests().hold(claim.owner().to_string());
    assert_eq!(kind(driver.try_acquire(&claim).await).0, ErrorKind::Unknown);
    create.caught().await;
    // The silence makes the session go another way.
    proxy.connections_reach(before + 1).await;
    while driver.release(&claim).await.is_err() {}
    let bytes = proxy.requests().bytes();
    create.go_on();
    // The session lives, and more of its requests have come through since.
    proxy.requests().bytes_reach(bytes + 200).await;
    assert_eq!(place.nodes().await, [""; 0]);
    take(&driver, &claim_for(LONG)).await;
}

async fn releasing(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let locker = Locker::new(driver(&place.url_by(proxy.addr())).await);
    let lock = locker.lock(NAME).unwrap();
    for lands in [false, true] {
        let guard = lock.acquire().await.unwrap();
        let mut delete = Some(proxy.requests().hold(guard.owner().to_string()));
        let cutting = async {
            delete.as_ref().unwrap().caught().await;
            if lands {
                proxy.answers().swallow();
                delete = None;
                place.nodes_come_to(0).await;
                proxy.answers().pass();
            }
            proxy.reset().await;
        };
        let (released, ()) = tokio::join!(guard.release(), cutting);
        // The connection was cut with the answer on its way: unknown, unless it was asked again.
        assert!(matches!(released, Ok(()) | Err(Error::Unreachable(_))), "{released:?}");
        place.nodes_come_to(0).await;
    }
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// The event was on its way when the connection broke, or the lock was freed meanwhile.
async fn missed(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let (holder, waiter) = (driver(&place.url).await, driver(&place.url_by(proxy.addr())).await);
    for is_under_way in [true, false] {
        let (held, waiting) = (claim(), claim().fair());
        take(&holder, &held).await;
        refused(&waiter, &waiting).await;
        let mut listening = pin!(waiter.changed(&waiting));
        while place.watched().await.is_empty() {
            assert!(poll!(&mut listening).is_pending());
        }
        if is_under_way {
            let event = proxy.answers().hold(held.owner().to_string());
            holder.release(&held).await.unwrap();
            event.caught().await;
            proxy.reset().await;
        } else {
            proxy.refuse().await;
            proxy.reset().await;
            holder.release(&held).await.unwrap();
            place.nodes_come_to(1).await;
            proxy.accept().await;
        }
        // No poll of a keeper helps here.
        assert!(matches!(listening.await, Change::Granted(_) | Change::AskAgain));
        take(&waiter, &waiting).await;
        assert_eq!(waiter.release(&waiting).await.unwrap(), Release::Freed);
    }
}

/// How long it takes to connect, at most.
const CONNECTS: Duration = Duration::from_secs(5);

async fn hung(server: Server) {
    let driver = impatient_driver(&server.url()).await;
    let claim = claim_for(millis(1000));
    take(&driver, &claim.clone().with_ttl(LONG)).await;
    server.stop().unwrap();
    let renewed =
        timeout(millis(1000), driver.renew(&claim)).await.expect("it has a fifth of that");
    assert!(kind(renewed).0.is_transient());
    let url = server.url().parse().unwrap();
    let connected =
        timeout(CONNECTS, ZooKeeperDriver::connect(&url)).await.expect("it has a limit");
    assert!(matches!(connected, Err(Error::Unreachable(_))));
    server.cont().unwrap();
    while let Err(error) = driver.release(&claim).await {
        assert!(error.kind().is_transient(), "{error}");
    }
}

async fn away(server: Server) {
    let driver = impatient_driver(&server.url()).await;
    let held = claim_for(millis(1000));
    take(&driver, &held.clone().with_ttl(LONG)).await;
    server.kill();
    // The broken connection is noticed by itself; a call before that is unknown at worst.
    while kind(driver.try_acquire(&claim_for(millis(1000))).await).0 == ErrorKind::Unknown {}
    let (kind, text) = kind(driver.try_acquire(&claim_for(millis(1000))).await);
    assert_eq!(kind, ErrorKind::Unreachable);
    assert!(text.contains("no connection within 200ms"), "{text}");
    server.restart().unwrap();
    loop {
        match driver.renew(&held).await {
            Ok(Renewal::Held(_)) => break,
            // The session had no time left, on a busy machine.
            Ok(Renewal::Lost) => break,
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    }
}

/// The client library believes in a connection whose server has granted the session, and goes on
/// believing while it looks for the next one.
async fn broken(server: Server) {
    /// What it sends first.
    const PING: &[u8] = b"\xff\xff\xff\xfe\x00\x00\x00\x0b";
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let driver = impatient_driver(&place.url_by(proxy.addr())).await;
    let ping = proxy.requests().hold(PING);
    proxy.reset().await;
    ping.caught().await;
    proxy.refuse().await;
    proxy.reset().await;
    let (kind, text) = kind(driver.try_acquire(&claim_for(millis(5000))).await);
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    proxy.accept().await;
    let claim = claim();
    while driver.release(&claim).await.is_err() {}
    assert_eq!(place.nodes().await, [""; 0]);
}

async fn nobody(server: Server) {
    let url = server.url().parse().unwrap();
    server.kill();
    let connected =
        timeout(CONNECTS, ZooKeeperDriver::connect(&url)).await.expect("it has a limit");
    assert!(matches!(connected, Err(Error::Unreachable(_))));
}

fn two() -> Result<(Server, Server), Unavailable> {
    Ok((ZOOKEEPER.start()?, ZOOKEEPER.start()?))
}

/// The first connection, too, finds the server that answers.
async fn another((one, other): (Server, Server)) {
    other.stop().unwrap();
    let url = format!("zookeeper://{},{}", other.addr(), one.addr());
    for _ in 0..3 {
        let driver = driver(&url).await;
        take(&driver, &claim()).await;
        driver.close().await;
    }
}

/// With sessions that outlast an outage and a busy machine, whatever is wished for: how often places
/// are removed for which nobody asks follows from the wish.
pub(crate) fn lasting() -> Result<Server, Unavailable> {
    with_settings("minSessionTimeout=20000\nmaxSessionTimeout=60000\n")
}

/// For longer than its lease, within that of its session.
async fn outage(server: Server) {
    let (place, proxy) = (Place::made_on(&server.url()).await, Proxy::start(server.addr()).await);
    let near = driver(&place.url).await;
    let far = with(&place.url_by(proxy.addr()), "ttl=4s&call_limit=50ms");
    let far = impatient_driver(&far).await;
    let (held, first, second) = (claim(), claim_for(millis(2000)).fair(), claim().fair());
    take(&near, &held).await;
    while far.try_acquire(&first).await.is_err() {}
    refused(&near, &second).await;
    let nodes = place.nodes().await;
    proxy.refuse().await;
    proxy.reset().await;
    let start = Instant::now();
    while start.elapsed() < millis(4000) {
        assert!(far.try_acquire(&first).await.is_err());
    }
    proxy.accept().await;
    while far.try_acquire(&first).await.is_err() {}
    assert_eq!(place.nodes().await, nodes);
    near.release(&held).await.unwrap();
    refused(&near, &second).await;
    while far.try_acquire(&first).await.is_err() {}
    while far.release(&first).await.is_err() {}
    take(&near, &second).await;
}
