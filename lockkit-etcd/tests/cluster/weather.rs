//! Servers that die, hang, refuse or are full, and a network that loses things.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use etcd_client::{
    Client, ConnectOptions, Permission, PermissionType, RoleRevokePermissionOptions,
};
use futures_util::future::{join, join_all};
use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::driver::{Attempt, Claim, Driver, ErrorKind, Release, Renewal};
use lockkit_core::{Error, Grade, Hold, LockName, Namespace};
use lockkit_etcd::EtcdDriver;
use lockkit_testkit::{Authority, ETCD, Proxy, Server, trial};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::support::{
    LONG, Raw, causes, claim, driver, granted, impatient_driver, kind, locker, millis, named,
    refused, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_swallowed_answer_is_unknown_and_found_again", || ETCD.start(), swallowed),
        trial("an_ask_of_several_requests_ends_in_time", || ETCD.start(), slow_ask),
        trial("a_release_of_several_requests_ends_in_time", || ETCD.start(), slow_release),
        trial("a_put_that_lands_after_the_release_is_refused", || ETCD.start(), late),
        trial("a_refusal_in_doubt_is_unknown", || ETCD.start(), in_doubt),
        trial("a_lease_that_was_not_answered_is_given_back", || ETCD.start(), unanswered_lease),
        trial("a_keepalive_that_is_cut_off_is_asked_again", || ETCD.start(), cut_off),
        trial("a_request_that_was_not_sent_is_not_unknown", || ETCD.start(), away),
        trial("a_server_that_drops_connections_is_left_alone", || ETCD.start(), left_alone),
        trial("a_server_without_its_data_is_got_over", || ETCD.start(), emptied),
        trial("a_severed_holder_is_lost_before_another_holds", || ETCD.start(), severed),
        trial("a_connection_that_falls_silent_is_replaced", || ETCD.start(), fell_silent),
        trial("a_silent_connection_may_be_replaced_by_another", || ETCD.start(), stayed_silent),
        trial("streams_leave_a_connection_that_fell_silent", || ETCD.start(), streams_too),
        trial("a_short_lease_does_not_wait_for_a_long_one", || ETCD.start(), short_and_long),
        trial("a_short_lease_does_not_wait_for_a_stream", || ETCD.start(), short_and_stream),
        trial("a_long_lease_waits_where_a_short_one_does_not", || ETCD.start(), short_beside_long),
        trial("a_server_that_is_slow_is_connected_to_once_more", || ETCD.start(), slow),
        trial("a_full_database_is_capacity_and_lets_go", full, nospace),
        trial("what_a_full_database_refuses_is_not_in_doubt", full, nospace_in_doubt),
        trial("a_wrong_password_is_denied_and_not_told", || ETCD.start(), password),
        trial("a_token_that_ran_out_is_renewed", || ETCD.start(), renewed_token),
        trial("signed_tokens_survive_changes_of_rights", with_signed_tokens, changed_rights),
        trial("holds_survive_that_users_are_demanded", || ETCD.start(), demanded),
        trial(
            "a_right_that_was_taken_away_is_missing_for_its_locks_alone",
            || ETCD.start(),
            lost_right,
        ),
        trial("a_missing_right_is_denied", || ETCD.start(), rights),
        trial("who_may_only_lock_is_told_what_can_be_seen", || ETCD.start(), few_rights),
        trial("tls_is_spoken_and_checked", with_tls, tls),
        trial("who_does_not_speak_as_the_server_does_is_told", apart, mismatch),
        trial("a_certificate_that_was_replaced_is_shown", with_authority, replaced_certificate),
        trial("certificates_that_cannot_be_used_are_named", with_authority, unfit_certificates),
        trial("certificates_that_are_gone_remain_in_use", with_authority, emptied_roots),
        trial("members_of_two_clusters_are_told_apart", two_clusters, other_cluster),
        trial("what_is_no_etcd_is_told_in_time", || Ok(()), no_etcd),
        trial("members_that_are_away_for_a_moment_are_asked_again", || ETCD.start(), back_again),
    ]
}

async fn swallowed(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr())).await;
    let mut raw = Raw::on(server.port()).await;
    let claim = claim(millis(15_000));
    take(&driver, &claim).await;
    driver.release(&claim).await.unwrap();

    proxy.answers().swallow();
    let start = Instant::now();
    let (kind, text) = kind(driver.try_acquire(&claim).await);
    assert_eq!(kind, ErrorKind::Unknown, "{text}");
    assert!(start.elapsed() >= millis(3000), "the limit is a fifth of the lease");
    proxy.reset().await;
    proxy.answers().pass();

    let (key, _) = raw.keys().await.remove(0);
    let put = raw.client.get(key, None).await.unwrap();
    while driver.try_acquire(&claim).await.is_err() {}
    let found = take(&driver, &claim).await;
    assert_eq!(found.to_string(), put.kvs()[0].create_revision().to_string());
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    assert!(raw.keys().await.is_empty());
}

/// A lease is granted, and then the key is put: each is answered within the limit, and both are not.
async fn slow_ask(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let url = format!("{}?call_limit=1s", server.url_at(proxy.addr()));
    let (driver, claim) = (impatient_driver(&url).await, claim(LONG));
    proxy.answers().delay(millis(700));
    assert_eq!(kind(driver.try_acquire(&claim).await).0, ErrorKind::Unknown);
    proxy.answers().pass();
    while driver.try_acquire(&claim).await.is_err() {}
    while driver.release(&claim).await.is_err() {}
    assert!(Raw::on(server.port()).await.keys().await.is_empty());
}

/// The key is removed, and then the lease is revoked that an unanswered ask has named: each is
/// answered within the limit, and both are not.
async fn slow_release(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let url = format!("{}?call_limit=1s", server.url_at(proxy.addr()));
    let driver = impatient_driver(&url).await;
    let mut raw = Raw::on(server.port()).await;
    let claim = claim(LONG);
    // Its lease is there then, and is all that the ask names.
    take(&driver, &claim).await;
    driver.release(&claim).await.unwrap();
    proxy.answers().swallow();
    assert_eq!(kind(driver.try_acquire(&claim).await).0, ErrorKind::Unknown);
    proxy.reset().await;
    proxy.answers().pass();
    while driver.try_acquire(&claim).await.is_err() {}

    proxy.answers().delay(millis(700));
    assert_eq!(kind(driver.release(&claim).await).0, ErrorKind::Unknown);
    proxy.answers().pass();
    while driver.release(&claim).await.is_err() {}
    assert_eq!((raw.keys().await, raw.leases().await), (vec![], vec![]));
}

/// Two ways to one server, so that one can be slow and the other not; the one in use comes first.
pub(crate) async fn two_ways(server: &Server, query: &str) -> ([Proxy; 2], EtcdDriver) {
    let [one, other] = [Proxy::start(server.addr()).await, Proxy::start(server.addr()).await];
    let ports = [one.addr().port(), other.addr().port()];
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}{query}", ports[0], ports[1]);
    let driver = impatient_driver(&url).await;
    let ways = if one.connections() > 0 { [one, other] } else { [other, one] };
    (ways, driver)
}

async fn late(server: Server) {
    let ([slow, _fast], driver) = two_ways(&server, "").await;
    let mut raw = Raw::on(server.port()).await;
    let claim = claim(millis(15_000));
    let put = slow.requests().hold(claim.owner().to_string());
    // The put is held on the one way, and carried out on the other.
    take(&driver, &claim).await;
    put.caught().await;
    let lease = raw.keys().await[0].1;
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    assert!(!raw.leases().await.contains(&lease), "the lease that it named goes on");
    let (before, _) = raw.begun_and_ended("Txn");
    put.go_on();
    // We may have hung up by now, but the server has it.
    loop {
        let (begun, ended) = raw.begun_and_ended("Txn");
        if begun > before && ended == begun {
            break;
        }
        sleep(millis(5)).await;
    }
    assert!(raw.keys().await.is_empty());
}

async fn in_doubt(server: Server) {
    let ([slow, _fast], driver) = two_ways(&server, "").await;
    let mut raw = Raw::on(server.port()).await;
    let (held, tried) = (claim(LONG), claim(millis(15_000)));
    take(&driver, &held).await;
    let put = slow.requests().hold(tried.owner().to_string());
    let (kind, text) = kind(driver.try_acquire(&tried).await);
    assert_eq!(kind, ErrorKind::Unknown, "the first attempt may yet be carried out: {text}");
    assert_eq!(driver.release(&tried).await.unwrap(), Release::NotHeld);
    let lease = raw.keys().await[0].1;
    assert_eq!(raw.leases().await, [lease], "the lease that the attempt named goes on");
    put.go_on();
}

async fn unanswered_lease(server: Server) {
    let ([slow, _fast], driver) = two_ways(&server, "").await;
    let mut raw = Raw::on(server.port()).await;
    slow.answers().swallow();
    // The one way grants a lease, and so does the other.
    take(&driver, &claim(LONG)).await;
    let lease = raw.keys().await[0].1;
    while raw.leases().await != [lease] {}
}

async fn cut_off(server: Server) {
    let (ways, driver) = two_ways(&server, "?call_limit=10s").await;
    let claim = claim(millis(5000));
    let Attempt::Granted(grant) = driver.try_acquire(&claim).await.unwrap() else { panic!() };
    let lease = Raw::on(server.port()).await.leases().await[0];
    let mut vouched = grant.vouched();
    let renewed = async || match driver.renew(&claim).await.unwrap() {
        Renewal::Held(vouched) => vouched,
        other => panic!("{other:?}"),
    };
    // First the ask that opens the stream, then one on a stream.
    for way in &ways {
        let ask = way.requests().hold(keepalive(lease));
        let (before, is_cut) = (vouched, Cell::new(false));
        let until_answered = async {
            // A lease that was refreshed a moment ago is not refreshed.
            while vouched == before || !is_cut.get() {
                vouched = renewed().await;
            }
        };
        tokio::join!(until_answered, async {
            ask.caught().await;
            is_cut.set(true);
            way.reset().await;
        });
    }
}

/// What is in a request that keeps a lease alive or revokes it, and in no other: its first field.
pub(crate) fn keepalive(lease: i64) -> Vec<u8> {
    let mut rest = u64::try_from(lease).unwrap();
    let mut bytes = vec![0x08];
    while rest > 0x7f {
        bytes.push(0x80 | u8::try_from(rest & 0x7f).unwrap());
        rest >>= 7;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}

async fn away(server: Server) {
    let driver = impatient_driver(&server.url()).await;
    let claim = claim(LONG);
    take(&driver, &claim).await;
    server.kill();
    while kind(driver.try_acquire(&named("other", LONG)).await).0 == ErrorKind::Unknown {}
    let (kind, text) = kind(driver.try_acquire(&named("other", LONG)).await);
    assert_eq!(kind, ErrorKind::Unreachable);
    assert!(text.contains("refused"), "{text}");
    server.restart().unwrap();
    while driver.try_acquire(&claim).await.is_err() {}
}

/// As a balancer without servers: it accepts, and hangs up.
async fn left_alone(server: Server) {
    const WAITERS: usize = 1000;
    let proxy = Proxy::start(server.addr()).await;
    let locker = locker(&server.url_at(proxy.addr()), millis(60_000)).await;
    locker.lock("before").unwrap().acquire().await.unwrap().release().await.unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    proxy.switch_upstream(closed);
    proxy.reset().await;
    let before = proxy.connections();
    let waiters = (0..WAITERS).map(|number| {
        let lock = locker.lock(&number.to_string()).unwrap();
        tokio::spawn(async move { lock.acquire().await })
    });
    let waiters: Vec<_> = waiters.collect();
    sleep(millis(4000)).await;
    // The pauses grow to an eighth of a second at least. Some were on their way before the first.
    let tried = proxy.connections() - before;
    assert!((2..=60).contains(&tried), "{tried} connections in 4 s");
    proxy.switch_upstream(server.addr());
    for acquired in join_all(waiters).await {
        drop(acquired.unwrap().unwrap());
    }
}

async fn emptied(server: Server) {
    let driver = impatient_driver(&server.url()).await;
    // One lease in the pool, and one in use.
    for number in ["one", "two"] {
        take(&driver, &named(number, LONG)).await;
    }
    let held = named("three", LONG);
    take(&driver, &held).await;
    let idle = named("four", LONG);
    take(&driver, &idle).await;
    driver.release(&idle).await.unwrap();
    server.restart_empty().unwrap();
    while driver.renew(&held).await.is_err() {}
    assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    take(&driver, &named("five", LONG)).await;
}

async fn severed(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let cut_off = locker(&server.url_at(proxy.addr()), millis(3000)).await;
    let other = locker(&server.url(), millis(3000)).await;
    let guard = cut_off.lock("orders/42").unwrap().acquire().await.unwrap();
    // It is renewed, with a new stream and then on it, so that it counts from a keepalive.
    renewed(&guard).await;
    renewed(&guard).await;
    proxy.requests().swallow();
    proxy.answers().swallow();
    let next = other.lock("orders/42").unwrap().acquire().await.unwrap();
    assert!(!guard.is_held(), "two believe to hold it");
    assert!(next.fencing_token() > guard.fencing_token());
    proxy.reset().await;
    proxy.requests().pass();
    proxy.answers().pass();
    assert!(matches!(guard.release().await, Err(Error::Lost { .. } | Error::Unreachable { .. })));
    assert!(next.is_held());
}

/// As when a balancer of connections loses those that there are.
async fn fell_silent(server: Server) {
    let present = Proxy::start(server.addr()).await;
    let proxy = Proxy::start(present.addr()).await;
    let url = server.url_at(proxy.addr());
    let locker = locker(&url, millis(6000)).await;
    let guard = locker.lock("orders/42").unwrap().acquire().await.unwrap();
    // It is renewed, so that the streams are open.
    renewed(&guard).await;
    present.requests().swallow();
    present.answers().swallow();
    proxy.switch_upstream(server.addr());
    renewed(&guard).await;
    renewed(&guard).await;
    assert_eq!(proxy.connections(), 2);
    guard.release().await.unwrap();
}

/// As when a balancer has not noticed yet that a server is gone.
async fn stayed_silent(server: Server) {
    let [present, silent] = [Proxy::start(server.addr()).await, Proxy::start(server.addr()).await];
    let proxy = Proxy::start(present.addr()).await;
    let locker = locker(&server.url_at(proxy.addr()), millis(20_000)).await;
    let guard = locker.lock("orders/42").unwrap().acquire().await.unwrap();
    renewed(&guard).await;
    silent.answers().swallow();
    present.requests().swallow();
    present.answers().swallow();
    proxy.switch_upstream(silent.addr());
    silent.connections_reach(1).await;
    proxy.switch_upstream(server.addr());
    renewed(&guard).await;
    assert_eq!(proxy.connections(), 3);
    guard.release().await.unwrap();
}

async fn streams_too(server: Server) {
    let present = Proxy::start(server.addr()).await;
    let proxy = Proxy::start(present.addr()).await;
    let holder = driver(&server.url()).await;
    let waiter = impatient_driver(&server.url_at(proxy.addr())).await;
    let (raw, held, waiting) = (Raw::on(server.port()).await, claim(LONG), claim(LONG).fair());
    take(&holder, &held).await;
    refused(&waiter, &waiting).await;
    // Its own key and the holder's.
    while raw.watchers() < 2 {
        sleep(millis(5)).await;
    }
    present.requests().swallow();
    present.answers().swallow();
    proxy.switch_upstream(server.addr());
    while waiter.try_acquire(&waiting).await.is_err() {}
    holder.release(&held).await.unwrap();
    // The connection's own pings find out after 15 s.
    timeout(millis(5000), granted(&waiter, &waiting)).await.unwrap();
}

async fn short_and_long(server: Server) {
    let ([silent, _other], driver) = two_ways(&server, "").await;
    let mut raw = Raw::on(server.port()).await;
    let (long, short) = (named("long", LONG), named("short", millis(5000)));
    for claim in [&long, &short] {
        take(&driver, claim).await;
        driver.renew(claim).await.unwrap();
    }
    silent.answers().swallow();
    let look = silent.requests().hold(raw.key_of(long.owner()).await);
    let renewals = join(driver.renew(&long), async {
        look.caught().await;
        driver.renew(&short).await
    });
    let (of_long, of_short) = renewals.await;
    assert!(matches!(of_short.unwrap(), Renewal::Held(_)));
    assert!(matches!(of_long.unwrap(), Renewal::Held(_)));
}

/// The ask of a long lease opens the stream, on a connection that is silent from then on.
async fn short_and_stream(server: Server) {
    let ([silent, _other], driver) = two_ways(&server, "").await;
    let mut raw = Raw::on(server.port()).await;
    let (long, short) = (named("long", millis(30_000)), named("short", millis(5000)));
    take(&driver, &long).await;
    let opening = silent.requests().hold(keepalive(raw.keys().await[0].1));
    take(&driver, &short).await;
    let (opens, mut of_long) = (opening.caught(), None);
    let is_caught = AtomicBool::new(false);
    let of_short = async {
        opens.await;
        is_caught.store(true, Ordering::Relaxed);
        driver.renew(&short).await
    };
    let until_caught = async {
        // A lease that was granted just now is not asked for.
        while !is_caught.load(Ordering::Relaxed) {
            of_long = Some(driver.renew(&long).await);
        }
    };
    let (of_short, ()) = join(of_short, until_caught).await;
    assert!(matches!(of_short.unwrap(), Renewal::Held(_)));
    assert!(matches!(of_long, Some(Ok(Renewal::Held(_)))));
}

/// They are read for together.
async fn short_beside_long(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr())).await;
    let mut raw = Raw::on(server.port()).await;
    let (before, long) = (named("before", LONG), named("long", LONG));
    let short = named("short", millis(3000));
    for claim in [&before, &long, &short] {
        take(&driver, claim).await;
    }
    let read = proxy.requests().hold(raw.key_of(short.owner()).await);
    // Those who come a moment after it gather for the next read.
    driver.renew(&before).await.unwrap();
    let of_short = async {
        let (kind, text) = kind(driver.renew(&short).await);
        assert_eq!(kind, ErrorKind::Unknown, "{text}");
        // By another connection, as of one that is silent.
        while driver.renew(&short).await.is_err() {}
        read.go_on();
    };
    let (of_long, ()) = join(driver.renew(&long), of_short).await;
    assert!(matches!(of_long.unwrap(), Renewal::Held(_)));
}

/// Waits until the hold is vouched for longer than it was.
async fn renewed(hold: &Hold) {
    let mut left = hold.valid_for().unwrap();
    while hold.valid_for().unwrap() <= left {
        assert!(hold.is_held(), "it is lost");
        left = hold.valid_for().unwrap();
        sleep(millis(5)).await;
    }
}

async fn slow(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr())).await;
    let claim = claim(millis(6000));
    take(&driver, &claim).await;
    let before = proxy.connections();
    proxy.answers().delay(millis(2500));
    for _ in 0..4 {
        let (kind, text) = kind(driver.renew(&claim).await);
        assert_eq!(kind, ErrorKind::Unknown, "{text}");
    }
    assert_eq!(proxy.connections(), before + 1);
}

pub(crate) fn full() -> Result<Server, lockkit_testkit::Unavailable> {
    ETCD.start_with(&["--quota-backend-bytes", "8388608"])
}

async fn nospace(server: Server) {
    let driver = driver(&server.url()).await;
    let mut raw = Raw::on(server.port()).await;
    let (held, before) = (named("held", LONG), named("before", LONG));
    take(&driver, &held).await;
    take(&driver, &before).await;
    // Its lease is left for the next claim.
    driver.release(&before).await.unwrap();
    assert_eq!(raw.leases().await.len(), 2);
    fill(&mut raw).await;
    let findings = driver.inspect().unwrap().diagnose(held.name().namespace()).await.unwrap();
    let alarms = findings.iter().find(|finding| finding.topic() == "alarms").unwrap();
    assert_eq!(alarms.grade(), lockkit_core::Grade::Error, "{alarms:?}");
    let (kind, text) = kind(driver.try_acquire(&claim(LONG)).await);
    assert_eq!(kind, ErrorKind::Capacity, "{text}");
    // What has filled the database was carried out, and answered so all the same.
    assert_eq!(raw.leases().await.len(), 1, "a key could hang on a lease that is kept");
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
}

pub(crate) async fn fill(raw: &mut Raw) {
    let megabyte = vec![0; 1024 * 1024];
    let mut number = 0;
    while raw.client.put(format!("fill/{number}"), megabyte.clone(), None).await.is_ok() {
        number += 1;
    }
}

/// One way is silent, and by the other it is answered that there is no room.
async fn nospace_in_doubt(server: Server) {
    let (ways, driver) = two_ways(&server, "").await;
    let mut raw = Raw::on(server.port()).await;
    // Their leases are left for the next claims.
    let before = ["one", "two"].map(|name| named(name, LONG));
    for claim in &before {
        take(&driver, claim).await;
    }
    for claim in &before {
        driver.release(claim).await.unwrap();
    }
    fill(&mut raw).await;
    for (silent, claim) in ways.iter().zip([claim(LONG), claim(LONG).waiting()]) {
        let leases = raw.leases().await.len();
        let put = silent.requests().hold(claim.owner().to_string());
        let (kind, text) = kind(driver.try_acquire(&claim).await);
        put.caught().await;
        assert_eq!(kind, ErrorKind::Capacity, "{text}");
        assert_eq!(raw.leases().await.len(), leases - 1, "what is on its way could be carried out");
        assert_eq!(driver.release(&claim).await.unwrap(), Release::NotHeld);
    }
}

/// Sets up `root` and `app`, who may do what locks need, both with the password `hunter2`.
pub(crate) async fn demand_a_user(raw: &mut Raw) {
    let client = &mut raw.client;
    for user in ["root", "app", "stranger"] {
        client.user_add(user, "hunter2", None).await.unwrap();
        client.role_add(user).await.unwrap();
        client.user_grant_role(user, user).await.unwrap();
    }
    let own = "lockkit/v1/lockkit/";
    let all = Permission::new(PermissionType::Readwrite, own).with_prefix();
    client.role_grant_permission("app", all).await.unwrap();
    client.auth_enable().await.unwrap();
}

pub(crate) fn url_of(server: &Server, user: &str) -> String {
    server.url().replace("etcd://", &format!("etcd://{user}@"))
}

async fn password(server: Server) {
    // A user is not in the way where none is demanded.
    EtcdDriver::connect(&url_of(&server, "app:hunter2").parse().unwrap()).await.unwrap();
    demand_a_user(&mut Raw::on(server.port()).await).await;
    for url in [url_of(&server, "app:hunter3"), server.url()] {
        let error = EtcdDriver::connect(&url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(!causes(&error).contains("hunter"), "{}", causes(&error));
    }
    let driver = driver(&url_of(&server, "app:hunter2")).await;
    assert!(!format!("{driver:?}").contains("hunter2"));
    let (held, waiting) = (claim(LONG), claim(LONG).fair());
    take(&driver, &held).await;
    refused(&driver, &waiting).await;
    driver.release(&held).await.unwrap();
    driver.changed(&waiting).await;
    take(&driver, &waiting).await;
}

async fn renewed_token(server: Server) {
    demand_a_user(&mut Raw::on(server.port()).await).await;
    let driver = driver(&url_of(&server, "app:hunter2")).await;
    let (held, waiting) = (claim(LONG), claim(LONG).fair());
    take(&driver, &held).await;
    refused(&driver, &waiting).await;
    // It forgets all tokens, and keeps the data.
    server.restart().unwrap();
    while let Err(error) = driver.renew(&held).await {
        assert!(error.kind().is_transient(), "{error}");
    }
    driver.release(&held).await.unwrap();
    // Told by a watch on a new stream, with a new token: no poll comes in between.
    granted(&driver, &waiting).await;
}

/// Any file is a secret.
pub(crate) fn with_signed_tokens() -> Result<Server, lockkit_testkit::Unavailable> {
    let tokens = format!("jwt,sign-method=HS256,priv-key={}", file("peer.key"));
    ETCD.start_with(&["--auth-token", &tokens])
}

async fn changed_rights(server: Server) {
    demand_a_user(&mut Raw::on(server.port()).await).await;
    let driver = driver(&url_of(&server, "app:hunter2")).await;
    let (held, other) = (claim(millis(15_000)), named("other", LONG));
    let waiting = claim(LONG).fair();
    take(&driver, &held).await;
    take(&driver, &other).await;
    refused(&driver, &waiting).await;
    let mut root = root_of(&server).await;
    root.role_add("nobody's").await.unwrap();

    // Many find out at once. Logging in takes a tenth of a second of the processor.
    let logins = Raw::on(server.port()).await;
    let before = logins.requests("Auth", "Authenticate");
    let renewals = join_all((0..20).map(|_| driver.renew(&held))).await;
    for renewal in renewals {
        assert!(matches!(renewal.unwrap(), Renewal::Held(_)));
    }
    assert_eq!(driver.release(&other).await.unwrap(), Release::Freed);
    assert_eq!(logins.requests("Auth", "Authenticate") - before, 1);
    // And once more, with streams that are open.
    root.role_delete("nobody's").await.unwrap();
    let last = claim(LONG).fair();
    refused(&driver, &last).await;
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    granted(&driver, &waiting).await;
    assert_eq!(driver.release(&waiting).await.unwrap(), Release::Freed);
    granted(&driver, &last).await;
}

pub(crate) async fn root_of(server: &Server) -> Client {
    let root = ConnectOptions::new().with_user("root", "hunter2");
    Client::connect([format!("127.0.0.1:{}", server.port())], Some(root)).await.unwrap()
}

async fn lost_right(server: Server) {
    let elsewhere = "lockkit/v1/elsewhere/";
    let mut raw = Raw::on(server.port()).await;
    demand_a_user(&mut raw).await;
    let mut root = root_of(&server).await;
    let there = Permission::new(PermissionType::Readwrite, elsewhere).with_prefix();
    root.role_grant_permission("app", there).await.unwrap();
    let proxy = Proxy::start(server.addr()).await;
    let url = server.url_at(proxy.addr()).replace("etcd://", "etcd://app:hunter2@");
    let driver = driver(&url).await;
    let (held, waiting) = (claim(LONG), claim(LONG).fair());
    let namespace = Namespace::new("elsewhere").unwrap();
    let other = Claim::new(LockName::new(&namespace, "orders/42").unwrap(), LONG);
    take(&driver, &held).await;
    take(&driver, &other).await;
    refused(&driver, &waiting).await;
    assert!(poll!(pin!(driver.changed(&other))).is_pending());
    let all = RoleRevokePermissionOptions::new().with_prefix();
    root.role_revoke_permission("app", elsewhere, Some(all)).await.unwrap();

    // Those who come a moment after it gather for the next read.
    driver.renew(&held).await.unwrap();
    let all = (driver.renew(&held), driver.renew(&other), driver.try_acquire(&waiting));
    let (of_held, of_other, of_waiting) = tokio::join!(all.0, all.1, all.2);
    assert!(matches!(of_held.unwrap(), Renewal::Held(_)));
    assert_eq!(kind(of_other).0, ErrorKind::Denied);
    assert!(matches!(of_waiting.unwrap(), Attempt::Taken(_)));

    // The keys are watched anew, and then once more by another login.
    let logins = raw.requests("Auth", "Authenticate");
    proxy.reset().await;
    while raw.requests("Auth", "Authenticate") == logins || raw.watchers() != 2 {
        sleep(millis(5)).await;
    }
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    driver.release(&held).await.unwrap();
    // Whoever is told nothing looks again after 30 s.
    timeout(millis(15_000), granted(&driver, &waiting)).await.unwrap();
}

async fn demanded(server: Server) {
    let driver = driver(&url_of(&server, "app:hunter2")).await;
    let (held, waiting) = (claim(millis(15_000)), claim(LONG).fair());
    take(&driver, &held).await;
    refused(&driver, &waiting).await;
    demand_a_user(&mut Raw::on(server.port()).await).await;
    // A stream that was opened without a user is told nothing more that is asked of it now.
    let last = claim(LONG).fair();
    refused(&driver, &last).await;
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    granted(&driver, &waiting).await;
    assert_eq!(driver.release(&waiting).await.unwrap(), Release::Freed);
    granted(&driver, &last).await;
}

async fn rights(server: Server) {
    demand_a_user(&mut Raw::on(server.port()).await).await;
    let url = url_of(&server, "stranger:hunter2");
    let error = EtcdDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

/// Later releases of etcd tell only root how the members are.
async fn few_rights(server: Server) {
    demand_a_user(&mut Raw::on(server.port()).await).await;
    let driver = driver(&url_of(&server, "app:hunter2")).await;
    let findings = driver.inspect().unwrap().diagnose(&Namespace::default()).await.unwrap();
    for topic in ["history", "pace", "rights"] {
        let finding = findings.iter().find(|finding| finding.topic() == topic).unwrap();
        assert!(!finding.finding().contains("permission denied"), "{finding:?}");
    }
    let rights = findings.last().unwrap();
    assert_eq!(rights.grade(), Grade::Good, "{rights:?}");
}

/// Of an authority made for this: whose key is gone, so that it signs nothing else.
fn file(name: &str) -> String {
    format!("{}/tests/cluster/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// It wants a certificate from its clients, too.
fn with_tls() -> Result<Server, lockkit_testkit::Unavailable> {
    let (ca, cert, key) = (file("ca.pem"), file("peer.pem"), file("peer.key"));
    let https = ["--cert-file", &cert, "--key-file", &key];
    let checked = ["--client-cert-auth", "--trusted-ca-file", &ca];
    let url = "https://127.0.0.1:{port}";
    let urls = ["--listen-client-urls", url, "--advertise-client-urls", url];
    ETCD.start_with(&[&https[..], &checked[..], &urls[..]].concat())
}

async fn tls(server: Server) {
    let url = server.url().replace("etcd:", "etcds:");
    let (cacert, cert, key) = (file("ca.pem"), file("peer.pem"), file("peer.key"));
    let driver = driver_at(&format!("{url}?cacert={cacert}&cert={cert}&key={key}")).await.unwrap();
    let claim = claim(LONG);
    take(&driver, &claim).await;
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    // Without a certificate of ours, with an authority that nobody knows, and without TLS.
    for url in [format!("{url}?cacert={cacert}"), url, server.url()] {
        let error = driver_at(&url).await.unwrap_err();
        assert!(!matches!(error, Error::Config { .. }), "{url}: {error:?}");
    }
}

/// Servers with TLS, without any and with one that asks for no certificate.
fn apart() -> Result<[Server; 3], lockkit_testkit::Unavailable> {
    let (cert, key, url) = (file("peer.pem"), file("peer.key"), "https://127.0.0.1:{port}");
    let urls = ["--listen-client-urls", url, "--advertise-client-urls", url];
    let easy =
        ETCD.start_with(&[&["--cert-file", &cert, "--key-file", &key][..], &urls].concat())?;
    Ok([with_tls()?, ETCD.start()?, easy])
}

async fn mismatch([strict, plain, easy]: [Server; 3]) {
    let cacert = file("ca.pem");
    let with_tls =
        |server: &Server| format!("{}?cacert={cacert}", server.url().replace("etcd:", "etcds:"));
    driver_at(&with_tls(&easy)).await.unwrap();
    let (no_tls, tls) = ("wants TLS (`etcds:`)", "speaks no TLS (`etcd:`)");
    for (url, habit) in [(strict.url(), no_tls), (easy.url(), no_tls), (with_tls(&plain), tls)] {
        // How the connection breaks is not always the same.
        for _ in 0..10 {
            let error = driver_at(&url).await.unwrap_err();
            assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
            assert!(causes(&error).contains(habit), "{url}: {error:?}");
        }
    }
    for _ in 0..10 {
        let error = driver_at(&with_tls(&strict)).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
        assert!(causes(&error).to_lowercase().contains("certificate"), "{error:?}");
    }
    let error = driver_at(&easy.url().replace("etcd:", "etcds:")).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
}

/// It accepts clients of the authority in a file beside that of its own.
fn with_authority() -> Result<(Server, Authority), lockkit_testkit::Unavailable> {
    let authority = Authority::new(&ETCD)?;
    let shown = authority.server("127.0.0.1").unwrap();
    fs::copy(authority.certificate(), accepted(&authority)).unwrap();
    let url = "https://127.0.0.1:{port}";
    let [certificate, key, accepted] =
        [shown.certificate, shown.key, accepted(&authority)].map(|it| it.display().to_string());
    let https = ["--cert-file", &certificate, "--key-file", &key];
    let checked = ["--client-cert-auth", "--trusted-ca-file", &accepted];
    let urls = ["--listen-client-urls", url, "--advertise-client-urls", url];
    Ok((ETCD.start_with(&[&https[..], &checked[..], &urls[..]].concat())?, authority))
}

fn accepted(authority: &Authority) -> PathBuf {
    authority.certificate().with_file_name("accepted.pem")
}

/// The server comes to accept the certificates of another authority alone, as it accepts those alone
/// that have not run out.
async fn replaced_certificate((server, authority): (Server, Authority)) {
    let (next, shown) = (Authority::new(&ETCD).unwrap(), authority.client("app").unwrap());
    let new = next.client("app").unwrap();
    let url = url_with(&server, [&authority.certificate(), &shown.certificate, &shown.key]);
    let (driver, holder) = (driver_at(&url).await.unwrap(), claim(LONG));
    take(&driver, &holder).await;

    fs::copy(next.certificate(), accepted(&authority)).unwrap();
    fs::write(&shown.certificate, "-----BEGIN CERTIFICATE-----").unwrap();
    server.restart().unwrap();
    for _ in 0..10 {
        let (kind, text) = kind(driver.renew(&holder).await);
        assert!(kind.is_transient(), "{text}");
    }
    fs::copy(&new.certificate, &shown.certificate).unwrap();
    fs::copy(&new.key, &shown.key).unwrap();
    renew_in_the_end(&driver, &holder).await;
    assert_eq!(driver.release(&holder).await.unwrap(), Release::Freed);
}

async fn renew_in_the_end(driver: &EtcdDriver, holder: &Claim) {
    let renewing = async {
        loop {
            match driver.renew(holder).await {
                Ok(renewed) => break assert_ne!(renewed, Renewal::Lost),
                Err(error) => assert!(error.kind().is_transient(), "{error:?}"),
            }
        }
    };
    timeout(millis(60_000), renewing).await.unwrap();
}

/// It is being written, or the disk is full.
async fn emptied_roots((server, authority): (Server, Authority)) {
    let (shown, cacert) = (authority.client("app").unwrap(), authority.certificate());
    let url = url_with(&server, [&cacert, &shown.certificate, &shown.key]);
    let (driver, holder) = (driver_at(&url).await.unwrap(), claim(LONG));
    take(&driver, &holder).await;
    fs::write(&cacert, "").unwrap();
    server.kill();
    let (kind, text) = kind(driver.renew(&holder).await);
    assert!(kind.is_transient(), "{text}");
    server.restart().unwrap();
    renew_in_the_end(&driver, &holder).await;
}

async fn unfit_certificates((server, authority): (Server, Authority)) {
    let (shown, other) = (authority.client("app").unwrap(), authority.client("other").unwrap());
    let [ca, cert, key] = [&authority.certificate(), &shown.certificate, &shown.key];
    for (ca, cert, key, named, problem) in [
        (ca, key, cert, key, "private key"),
        (ca, cert, &other.key, &other.key, "Mismatch"),
        (key, cert, key, key, "there is no certificate in it"),
    ] {
        let error = driver_at(&url_with(&server, [ca, cert, key])).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        let text = error.to_string();
        let names = text.contains(&named.display().to_string());
        assert!(names && text.contains(problem), "{text}");
    }
}

/// Who is trusted, and the client's certificate and key.
fn url_with(server: &Server, files: [&PathBuf; 3]) -> String {
    let [ca, cert, key] = files.map(|file| file.display());
    let url = server.url().replace("etcd:", "etcds:");
    format!("{url}?cacert={ca}&cert={cert}&key={key}&call_limit=2s")
}

async fn driver_at(url: &str) -> lockkit_core::Result<EtcdDriver> {
    EtcdDriver::connect(&url.parse().unwrap()).await
}

pub(crate) fn two_clusters() -> Result<(Server, Server), lockkit_testkit::Unavailable> {
    Ok((ETCD.start()?, ETCD.start()?))
}

async fn other_cluster((one, other): (Server, Server)) {
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", one.port(), other.port());
    let driver = driver(&url).await;
    let claim = claim(LONG);
    take(&driver, &claim).await;
    let findings = driver.inspect().unwrap().diagnose(claim.name().namespace()).await.unwrap();
    let cluster = findings.iter().find(|finding| finding.topic() == "cluster").unwrap();
    assert_eq!(cluster.grade(), lockkit_core::Grade::Error, "{cluster:?}");
    match Raw::on(one.port()).await.keys().await.is_empty() {
        true => other.kill(),
        false => one.kill(),
    }
    let (kind, text) = loop {
        let (kind, text) = kind(driver.try_acquire(&claim).await);
        if !kind.is_transient() {
            break (kind, text);
        }
    };
    assert_eq!(kind, ErrorKind::Misconfigured, "{text}");
    assert!(text.contains("another cluster"), "{text}");
}

async fn back_again(server: Server) {
    let proxies = [Proxy::start(server.addr()).await, Proxy::start(server.addr()).await];
    let [one, other] = proxies.each_ref().map(|proxy| proxy.addr().port());
    let url = format!("etcd://127.0.0.1:{one},127.0.0.1:{other}").parse().unwrap();
    for proxy in &proxies {
        proxy.refuse().await;
    }
    let mut connecting = pin!(EtcdDriver::connect(&url));
    let refused = timeout(millis(300), &mut connecting).await;
    assert!(refused.is_err(), "it has given up: {refused:?}");
    for proxy in &proxies {
        proxy.accept().await;
    }
    take(&connecting.await.unwrap(), &claim(LONG)).await;
}

async fn no_etcd(_: ()) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("etcd://{}", silent.local_addr().unwrap());
    let start = Instant::now();
    let error = EtcdDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(start.elapsed() < millis(30_000));
    drop(silent);
    let error = EtcdDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(causes(&error).contains("refused"), "{}", causes(&error));
}
