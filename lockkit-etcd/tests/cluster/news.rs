//! Who waits is told, whatever becomes of the stream on which it is told.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use etcd_client::{Txn, TxnOp};
use futures_util::future::join_all;
use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Claim, Driver, Renewal};
use lockkit_core::{AcquireOptions, DistributedLock, Lease, LockExt as _, Renew};
use lockkit_testkit::{ETCD, GrpcProxy, Proxy, Server, Unavailable, trial};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{LONG, Raw, claim, driver, granted, locker, millis, named, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_release_hands_over_without_a_request", || ETCD.start(), handed_over),
        trial("a_crowd_takes_three_requests_a_grant", || ETCD.start(), a_crowd),
        trial("a_crowd_in_order_takes_two_requests_a_grant", || ETCD.start(), a_crowd_in_order),
        trial("those_who_come_together_look_together", || ETCD.start(), together),
        trial(
            "holds_that_are_renewed_at_about_the_same_time_are_read_together",
            || ETCD.start(),
            read,
        ),
        trial(
            "holds_are_read_for_in_parts_where_that_is_too_much_at_once",
            few_operations,
            in_parts,
        ),
        trial("a_waiter_in_the_middle_looks_again", || ETCD.start(), in_the_middle),
        trial("a_waiter_watches_two_keys_that_nobody_beside_it_watches", || ETCD.start(), two_keys),
        trial("a_watch_lingers_for_the_next_one_of_its_key", || ETCD.start(), lingering),
        trial("what_is_written_meanwhile_is_noticed", || ETCD.start(), written_meanwhile),
        trial("a_watch_that_is_cut_at_the_release_misses_nothing", || ETCD.start(), cut),
        trial("a_compaction_is_got_over", || ETCD.start(), compacted),
        trial("a_watch_that_a_compaction_ends_is_set_up_anew", || ETCD.start(), overtaken),
        trial("a_revoked_lease_is_a_loss", || ETCD.start(), revoked),
        trial("a_deleted_key_is_a_loss", || ETCD.start(), deleted),
        trial("a_loss_while_nothing_is_watched_is_told", || ETCD.start(), unwatched),
        trial("a_waiter_learns_that_its_place_is_gone", || ETCD.start(), place_gone),
        trial("ended_streams_lose_nothing", || ETCD.start(), ended),
        trial("a_proxy_that_numbers_watches_grants_nothing", behind_grpc_proxy, renumbered),
    ]
}

/// How many messages have come to the server on streams on which keys are watched.
fn watch_messages(raw: &Raw) -> u64 {
    raw.count(
        "grpc_server_msg_received_total{grpc_method=\"Watch\",\
         grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"}",
    )
}

/// Waits until the server watches so many keys.
pub(crate) async fn watched(raw: &Raw, keys: u64) {
    while raw.watchers() != keys {
        tokio::time::sleep(millis(5)).await;
    }
}

async fn handed_over(server: Server) {
    let (one, other) = (driver(&server.url()).await, driver(&server.url()).await);
    let raw = Raw::on(server.port()).await;
    let (held, waiting) = (claim(LONG), claim(LONG).fair());
    take(&one, &held).await;
    refused(&other, &waiting).await;
    watched(&raw, 2).await;
    one.release(&held).await.unwrap();
    let txns = raw.requests("KV", "Txn");
    let Change::Granted(grant) = other.changed(&waiting).await else { panic!("not granted") };
    assert_eq!(raw.requests("KV", "Txn"), txns, "it took a request");
    assert_eq!(grant.fencing_token().unwrap(), take(&other, &waiting).await);
    assert!(matches!(other.renew(&waiting).await.unwrap(), Renewal::Held(_)));
}

async fn in_the_middle(server: Server) {
    let driver = driver(&server.url()).await;
    let held = claim(LONG);
    let [first, second] = [claim(LONG).fair(), claim(LONG).fair()];
    take(&driver, &held).await;
    refused(&driver, &first).await;
    refused(&driver, &second).await;
    driver.release(&first).await.unwrap();
    assert_eq!(driver.changed(&second).await, Change::AskAgain);
    refused(&driver, &second).await;
    driver.release(&held).await.unwrap();
    granted(&driver, &second).await;
}

async fn two_keys(server: Server) {
    let driver = driver(&server.url()).await;
    let raw = Raw::on(server.port()).await;
    let held = claim(LONG);
    take(&driver, &held).await;
    let waiting: Vec<Claim> = (0..5).map(|_| claim(LONG).fair()).collect();
    for waiting in &waiting {
        refused(&driver, waiting).await;
    }
    // The own one and the one before, each once for all who need to know of it.
    watched(&raw, 6).await;
    let (other, alone) = (crate::support::driver(&server.url()).await, claim(LONG).fair());
    refused(&other, &alone).await;
    watched(&raw, 8).await;
    other.release(&alone).await.unwrap();
    for waiting in &waiting {
        driver.release(waiting).await.unwrap();
    }
    watched(&raw, 0).await;
}

const CROWD: u64 = 100;

/// What all of a crowd asks of the server, from its coming to its end, and how much of that before
/// the lock is let go of the first time.
async fn messages_of_a_crowd(server: &Server, is_fair: bool, places: u64) -> [u64; 2] {
    let raw = Raw::on(server.port()).await;
    let messages = || {
        let of = |service: &str, method: &str| {
            raw.count(&format!(
                "grpc_server_msg_received_total{{grpc_method=\"{method}\",\
                 grpc_service=\"etcdserverpb.{service}\",grpc_type=\"bidi_stream\"}}"
            ))
        };
        raw.requests("KV", "Txn")
            + raw.requests("Lease", "LeaseRevoke")
            + of("Watch", "Watch")
            + of("Lease", "LeaseKeepAlive")
    };
    let lock = locker(&server.url(), LONG).await.lock("orders/42").unwrap();
    let held = lock.acquire().await.unwrap();
    let before = messages();
    let lock: Arc<dyn DistributedLock> = match is_fair {
        true => Arc::new(lock.fair().unwrap()),
        false => Arc::new(lock),
    };
    let mut waiting = JoinSet::new();
    for _ in 0..CROWD {
        let lock = Arc::clone(&lock);
        waiting.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    watched(&raw, places + 1).await;
    let placed = messages();
    held.release().await.unwrap();
    waiting.join_all().await;
    [messages() - before, placed - before]
}

/// Whoever is next of a locker has the lock when the one before releases it, and nobody looks.
async fn a_crowd(server: Server) {
    let [all, _] = messages_of_a_crowd(&server, false, 16).await;
    // To look as well, or to watch for each apart, would be more.
    assert!(all < CROWD * 7 / 2, "{all} messages for {CROWD} grants");
}

async fn a_crowd_in_order(server: Server) {
    let [all, placed] = messages_of_a_crowd(&server, true, CROWD).await;
    assert!(all - placed <= 2 * CROWD, "{} messages for {CROWD} grants", all - placed);
    // For some the one before them has to be watched, and for all their own key.
    assert!(placed < CROWD * 5 / 2, "{placed} messages for {CROWD} places");
}

/// And each finds its own place.
async fn together(server: Server) {
    const WAITERS: usize = 100;
    let driver = driver(&server.url()).await;
    let mut raw = Raw::on(server.port()).await;
    let held = claim(LONG);
    take(&driver, &held).await;
    let waiting: Vec<_> = (0..WAITERS).map(|_| claim(LONG).fair()).collect();
    let before = raw.count("etcd_mvcc_range_total");
    join_all(waiting.iter().map(|claim| refused(&driver, claim))).await;
    // One for each to see that its key is new.
    let looks = raw.count("etcd_mvcc_range_total") - before;
    assert!(looks < WAITERS as u64 * 3 / 2, "{WAITERS} places took {looks} looks");

    let keys = raw.keys().await;
    let mut order = Vec::new();
    for claim in waiting {
        let key = raw.key_of(claim.owner()).await;
        order.push((keys.iter().position(|(other, _)| *other == key).unwrap(), claim));
    }
    order.sort_by_key(|(at, _)| *at);
    let mut waiting: Vec<_> = order.into_iter().map(|(_, claim)| claim).collect();
    let leaves = waiting.remove(WAITERS / 2);
    driver.release(&leaves).await.unwrap();
    assert_eq!(driver.changed(&waiting[WAITERS / 2]).await, Change::AskAgain);
    refused(&driver, &waiting[WAITERS / 2]).await;

    driver.release(&held).await.unwrap();
    for (at, next) in waiting.iter().enumerate() {
        granted(&driver, next).await;
        for other in &waiting[at + 1..] {
            let news = poll!(pin!(driver.changed(other)));
            assert!(!matches!(news, Poll::Ready(Change::Granted(_))), "two have the lock");
        }
        driver.release(next).await.unwrap();
    }
}

async fn read(server: Server) {
    const HOLDS: u64 = 100;
    let driver = Arc::new(driver(&server.url()).await);
    let raw = Raw::on(server.port()).await;
    let claims: Vec<_> = (0..HOLDS).map(|it| named(&format!("orders/{it}"), LONG)).collect();
    for claim in &claims {
        take(&driver, claim).await;
    }
    let before = raw.requests("KV", "Txn");
    let mut renewing = JoinSet::new();
    for claim in claims {
        let driver = Arc::clone(&driver);
        renewing.spawn(async move { driver.renew(&claim).await });
        tokio::time::sleep(millis(1)).await;
    }
    for renewed in renewing.join_all().await {
        assert!(matches!(renewed.unwrap(), Renewal::Held(_)));
    }
    let reads = raw.requests("KV", "Txn") - before;
    assert!(reads < HOLDS / 2, "{HOLDS} renewals took {reads} reads");
}

fn few_operations() -> Result<Server, Unavailable> {
    ETCD.start_with(&["--max-txn-ops", "8"])
}

async fn in_parts(server: Server) {
    const HOLDS: usize = 100;
    let driver = driver(&server.url()).await;
    let claims: Vec<_> = (0..HOLDS).map(|it| named(&format!("orders/{it}"), LONG)).collect();
    for claim in &claims {
        take(&driver, claim).await;
    }
    for renewed in join_all(claims.iter().map(|claim| driver.renew(claim))).await {
        assert!(matches!(renewed.unwrap(), Renewal::Held(_)));
    }
}

/// Where two take turns, their keys come again, and hardly anything is watched anew.
async fn lingering(server: Server) {
    const TURNS: u64 = 20;
    let (one, other) = (driver(&server.url()).await, driver(&server.url()).await);
    let raw = Raw::on(server.port()).await;
    let mut held = claim(LONG).fair();
    take(&one, &held).await;
    let (mut holder, mut next) = (&one, &other);
    for _ in 0..TURNS {
        let waiting = claim(LONG).fair();
        refused(next, &waiting).await;
        while raw.watchers() < 2 {
            tokio::time::sleep(millis(5)).await;
        }
        holder.release(&held).await.unwrap();
        granted(next, &waiting).await;
        (holder, next, held) = (next, holder, waiting);
    }
    // To watch two keys and to end that would be four for each turn.
    let messages = watch_messages(&raw);
    assert!(messages < 2 * TURNS, "{messages} messages");
}

async fn written_meanwhile(server: Server) {
    let (one, other) = (driver(&server.url()).await, driver(&server.url()).await);
    let proxy = Proxy::start(server.addr()).await;
    let behind = driver(&server.url_at(proxy.addr())).await;
    let (held, waiting) = (claim(LONG), claim(LONG).fair());
    take(&one, &held).await;
    // The release comes in after the look and before the watch.
    let watch = proxy.requests().hold(Raw::on(server.port()).await.key_of(held.owner()).await);
    refused(&behind, &waiting).await;
    watch.caught().await;
    one.release(&held).await.unwrap();
    refused(&other, &claim(LONG)).await;
    watch.go_on();
    granted(&behind, &waiting).await;
}

async fn cut(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (one, other) = (driver(&server.url()).await, driver(&server.url_at(proxy.addr())).await);
    let raw = Raw::on(server.port()).await;
    let (held, waiting) = (claim(LONG), claim(LONG).fair());
    take(&one, &held).await;
    refused(&other, &waiting).await;
    watched(&raw, 2).await;
    proxy.answers().swallow();
    one.release(&held).await.unwrap();
    proxy.reset().await;
    proxy.answers().pass();
    granted(&other, &waiting).await;
}

async fn compacted(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (one, other) = (driver(&server.url()).await, driver(&server.url_at(proxy.addr())).await);
    let mut raw = Raw::on(server.port()).await;
    let (held, waiting) = (claim(LONG), claim(LONG).fair());
    take(&one, &held).await;
    refused(&other, &waiting).await;
    watched(&raw, 2).await;
    proxy.refuse().await;
    proxy.reset().await;
    for _ in 0..10 {
        raw.client.put("other", "", None).await.unwrap();
    }
    one.release(&held).await.unwrap();
    let revision = raw.revision().await;
    raw.client.compact(revision, None).await.unwrap();
    proxy.accept().await;
    granted(&other, &waiting).await;
}

/// What a stream does not take, the server keeps for later, and ends the watches whose news are no
/// longer in its history by then.
async fn overtaken(server: Server) {
    const HOLDS: u64 = 100;
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&server.url_at(proxy.addr())).await;
    let mut raw = Raw::on(server.port()).await;
    // Long names, so that the stream is soon full.
    let name = |number| format!("{number}{}", "/".repeat(500));
    let held: Vec<_> = (0..HOLDS).map(|number| named(&name(number), LONG)).collect();
    join_all(held.iter().map(|claim| take(&driver, claim))).await;
    for claim in &held {
        assert!(poll!(pin!(driver.changed(claim))).is_pending());
    }
    watched(&raw, HOLDS).await;
    let keys = raw.keys().await.into_iter();
    let (deletes, puts): (Vec<_>, Vec<_>) =
        keys.map(|(key, _)| (TxnOp::delete(&*key, None), TxnOp::put(&*key, "", None))).unzip();
    let [delete, put] = [deletes, puts].map(|all| Txn::new().and_then(all));

    let stream = proxy.answers().hold("lockkit/v1/");
    let mut more = true;
    while more {
        // Once more after all are behind, so that all have missed something.
        more = raw.count("etcd_debugging_mvcc_slow_watcher_total") < HOLDS;
        raw.client.txn(delete.clone()).await.unwrap();
        raw.client.txn(put.clone()).await.unwrap();
    }
    let revision = raw.revision().await;
    raw.client.compact(revision, None).await.unwrap();
    let before = watch_messages(&raw);
    stream.go_on();
    while watch_messages(&raw) < before + HOLDS {
        tokio::time::sleep(millis(5)).await;
    }
    for claim in &held {
        assert!(poll!(pin!(driver.changed(claim))).is_ready(), "what came before");
    }
    let mut told = pin!(join_all(held.iter().map(|claim| driver.changed(claim))));
    let news = loop {
        // The last of the watches may have come in, and be not set up.
        raw.client.txn(delete.clone()).await.unwrap();
        raw.client.txn(put.clone()).await.unwrap();
        if let Ok(news) = timeout(millis(50), &mut told).await {
            break news;
        }
    };
    assert!(news.iter().all(|news| *news == Change::Lost), "{news:?}");
}

async fn revoked(server: Server) {
    let locker = locker(&server.url(), LONG).await;
    let mut raw = Raw::on(server.port()).await;
    let guard = locker.lock("orders/42").unwrap().acquire().await.unwrap();
    watched(&raw, 1).await;
    let lease = raw.leases().await[0];
    raw.client.lease_revoke(lease).await.unwrap();
    guard.lost().await;
    assert!(!guard.is_held());

    let driver = driver(&server.url()).await;
    let claim = claim(LONG);
    take(&driver, &claim).await;
    let lease = raw.keys().await[0].1;
    raw.client.lease_revoke(lease).await.unwrap();
    assert_eq!(driver.renew(&claim).await.unwrap(), Renewal::Lost);
}

async fn deleted(server: Server) {
    let locker = locker(&server.url(), LONG).await;
    let mut raw = Raw::on(server.port()).await;
    let guard = locker.lock("orders/42").unwrap().acquire().await.unwrap();
    watched(&raw, 1).await;
    let key = raw.key_of(guard.owner()).await;
    raw.client.delete(key, None).await.unwrap();
    guard.lost().await;
}

/// Neither of these holds would be renewed before long.
async fn unwatched(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let locker = locker(&server.url_at(proxy.addr()), LONG).await;
    let mut raw = Raw::on(server.port()).await;
    let (renewed, not_renewed) = (Lease::new(LONG), Lease::new(LONG).renew(Renew::Never));
    let mut guards = Vec::new();
    for (name, lease) in [("one", renewed), ("two", not_renewed)] {
        let lock = locker.lock(name).unwrap().leased(lease).unwrap();
        guards.push(lock.acquire_leased(AcquireOptions::new()).await.unwrap());
    }
    watched(&raw, 2).await;
    proxy.refuse().await;
    proxy.reset().await;
    for (key, _) in raw.keys().await {
        raw.client.delete(key, None).await.unwrap();
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
    proxy.accept().await;
    for guard in guards {
        guard.lost().await;
    }
}

async fn place_gone(server: Server) {
    let driver = driver(&server.url()).await;
    let mut raw = Raw::on(server.port()).await;
    let (held, waiting) = (claim(LONG), claim(LONG).fair());
    take(&driver, &held).await;
    refused(&driver, &waiting).await;
    watched(&raw, 2).await;
    let key = raw.key_of(waiting.owner()).await;
    raw.client.delete(key, None).await.unwrap();
    assert_eq!(driver.changed(&waiting).await, Change::Lost);
    refused(&driver, &waiting).await;
    assert_eq!(raw.keys().await.len(), 2, "it has a place again");
}

async fn ended(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let locker = locker(&server.url_at(proxy.addr()), millis(5000)).await;
    let mut raw = Raw::on(server.port()).await;
    let guard = locker.lock("orders/42").unwrap().acquire().await.unwrap();
    // Time goes by at the server for longer than the lease lasts.
    let other = raw.client.lease_grant(10, None).await.unwrap().id();
    while raw.leases().await.contains(&other) {
        proxy.reset().await;
        assert!(guard.is_held());
        tokio::time::sleep(millis(300)).await;
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

pub(crate) fn behind_grpc_proxy() -> Result<(Server, GrpcProxy), Unavailable> {
    let server = ETCD.start()?;
    let proxy = GrpcProxy::start(&server)?;
    Ok((server, proxy))
}

/// It gives watches ids of its own, so that news of one key seems to be of another.
async fn renumbered((server, proxy): (Server, GrpcProxy)) {
    let (one, behind) = (driver(&server.url()).await, driver(&server.url_at(proxy.addr())).await);
    let raw = Raw::on(server.port()).await;
    let (held, waiting, other) = (claim(LONG), claim(LONG).fair(), named("other", LONG));
    take(&one, &held).await;
    refused(&behind, &waiting).await;
    take(&behind, &other).await;
    assert!(poll!(pin!(behind.changed(&other))).is_pending());
    // All three keys are watched, or none any more since the proxy was found out.
    while raw.watchers() < 3 && raw.begun_and_ended("Watch").1 == 0 {
        tokio::time::sleep(millis(5)).await;
    }
    // So that nothing seems to be missed.
    refused(&behind, &waiting).await;
    behind.release(&other).await.unwrap();
    let told = async {
        loop {
            match behind.changed(&waiting).await {
                Change::AskAgain => (),
                other => panic!("{other:?}, while another holds the lock"),
            }
        }
    };
    assert!(timeout(millis(500), told).await.is_err());
    one.release(&held).await.unwrap();
    take(&behind, &waiting).await;
}
