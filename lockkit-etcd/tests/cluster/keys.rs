//! What stands in the cluster: keys, leases, and how many requests it takes.

use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{
    Attempt, Claim, Clock, Driver, ErrorKind, Inspect, OwnerId, Release, Renewal, Vouch,
};
use lockkit_core::{Label, LockStatus, Namespace};
use lockkit_testkit::{ETCD, Proxy, Server, trial};
use tokio::time::sleep;

use crate::support::{LONG, Raw, claim, driver, locker, millis, named, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("keys_are_as_they_were", || ETCD.start(), layout),
        trial("an_uncontended_acquisition_is_one_request", || ETCD.start(), one_request),
        trial("a_lock_that_is_often_taken_leaves_one_key_behind", || ETCD.start(), few_keys),
        trial("claims_have_leases_of_their_own", || ETCD.start(), own_leases),
        trial("a_longer_lease_takes_the_key_along", || ETCD.start(), longer),
        trial("a_key_moves_to_no_lease_that_may_be_over", || ETCD.start(), refreshed),
        trial("overlapping_lengthenings_end_no_lease_in_use", || ETCD.start(), overlapping),
        trial("a_grant_counts_from_its_ask", || ETCD.start(), from_the_ask),
        trial("what_the_server_grants_counts", || ETCD.start(), granted),
        trial("leases_that_nobody_uses_are_kept_alive", || ETCD.start(), kept_alive),
        trial("drops_at_every_poll_leave_nothing", || ETCD.start(), dropped),
        trial("a_closed_driver_gives_everything_back", || ETCD.start(), closed),
        trial("leases_of_another_length_find_room_in_the_pool", || ETCD.start(), room),
        trial("leases_beyond_the_pool_are_given_back_before_the_end", || ETCD.start(), beyond),
        trial("very_many_locks_are_listed", || ETCD.start(), many),
        trial("a_strange_key_hides_no_other_lock", || ETCD.start(), strange),
    ]
}

async fn layout(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let claim = claim(LONG).with_label(Label::new("web 3").unwrap());
    let token = take(&driver, &claim).await;
    let lease = raw.leases().await[0];
    let key = format!("lockkit/v1/lockkit/orders%2f42/{lease:x}");
    let found = raw.client.get(key, None).await.unwrap();
    let kv = &found.kvs()[0];
    assert_eq!(kv.value_str().unwrap(), format!("{} web 3", claim.owner()));
    assert_eq!(kv.create_revision().to_string(), token.to_string());
    assert_eq!(kv.lease(), lease);
}

async fn one_request(server: Server) {
    let (driver, raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let warm = claim(LONG);
    take(&driver, &warm).await;
    driver.release(&warm).await.unwrap();
    let (txns, grants) = (raw.requests("KV", "Txn"), raw.requests("Lease", "LeaseGrant"));
    for number in 0..10 {
        let claim = if number % 2 == 0 { claim(LONG) } else { claim(LONG).waiting() };
        take(&driver, &claim).await;
        assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    }
    assert_eq!(raw.requests("KV", "Txn") - txns, 20, "one to take and one to release");
    assert_eq!(raw.requests("Lease", "LeaseGrant"), grants, "leases come from the pool");
}

/// Also where the lease was made for somebody else, a while ago: who does not renew has nothing else.
async fn from_the_ask(server: Server) {
    const TTL: Duration = Duration::from_secs(30);
    /// As old as it may be and count as new.
    const NEW: Duration = Duration::from_millis(150);
    let proxy = Proxy::start(server.addr()).await;
    let mut raw = Raw::on(server.port()).await;
    // In some rounds the ask comes through before the refresh, in others behind it.
    for number in 0..12 {
        let driver = driver(&server.url_at(proxy.addr())).await;
        let before = claim(TTL);
        take(&driver, &before).await;
        let lease = raw.keys().await[0].1;
        driver.release(&before).await.unwrap();
        sleep(NEW * 2).await;
        let refresh = proxy.requests().hold(keepalive(lease));
        let claim = if number % 2 == 0 { claim(TTL) } else { claim(TTL).waiting() };
        let asked = Clock::system().now();
        let (answer, ()) = tokio::join!(driver.try_acquire(&claim), async {
            refresh.caught().await;
            // Until the ask is answered, unless it is behind that.
            for _ in 0..5 {
                raw.client.put("x", "y", None).await.unwrap();
            }
            refresh.go_on();
        });
        let Attempt::Granted(grant) = answer.unwrap() else { panic!("not granted") };
        let Vouch::Lease { since, ttl } = grant.vouched() else { panic!("{grant:?}") };
        assert_eq!(ttl, TTL);
        assert!(since + NEW >= asked, "{number}: {:?}", asked.saturating_duration_since(since));
        driver.release(&claim).await.unwrap();
    }
}

/// What asks for another TTL of that lease: its number, as Protocol Buffers have it.
fn keepalive(lease: i64) -> Vec<u8> {
    let (mut message, mut rest) = (vec![0x08], lease.cast_unsigned());
    while rest >= 0x80 {
        message.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    message.push(rest as u8);
    message
}

/// etcd keeps each key that was deleted in its index until its history is compacted, and visits all
/// in a queue to read it.
async fn few_keys(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let mut keys = std::collections::HashSet::new();
    for _ in 0..50 {
        let claim = claim(LONG).waiting();
        take(&driver, &claim).await;
        keys.extend(raw.keys().await);
        driver.release(&claim).await.unwrap();
    }
    assert_eq!(keys.len(), 1, "{keys:?}");
}

async fn own_leases(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let (one, other) = (named("one", LONG), named("other", LONG));
    take(&driver, &one).await;
    take(&driver, &other).await;
    let keys = raw.keys().await;
    assert_ne!(keys[0].1, keys[1].1);
    driver.release(&one).await.unwrap();
    for name in ["third", "fourth"] {
        take(&driver, &named(name, LONG)).await;
    }
    let now: Vec<i64> = raw.keys().await.into_iter().map(|(_, lease)| lease).collect();
    assert_eq!(now[1], keys[0].1, "a lease is used again");
    assert!(now[2] != now[0] && now[2] != now[1], "two have one lease: {now:?}");
}

async fn longer(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let short = claim(millis(5000));
    let token = take(&driver, &short).await;
    let before = raw.keys().await[0].1;
    driver.renew(&short.clone().with_ttl(LONG)).await.unwrap();
    let (key, after) = raw.keys().await.remove(0);
    assert_ne!(before, after);
    let lease = raw.client.lease_time_to_live(after, None).await.unwrap();
    assert_eq!(lease.granted_ttl(), 600);
    assert_eq!(take(&driver, &short).await, token, "it is the same hold");
    // The key is called after the lease that it hung on first, which nobody else may get: its next
    // claim would take the key for its own.
    let waiting = claim(millis(5000)).fair();
    refused(&driver, &waiting).await;
    let keys = raw.keys().await;
    assert!(keys.len() == 2 && keys[0].0 == key && keys[1].1 != before, "{keys:?}");
    driver.release(&waiting).await.unwrap();
    assert_eq!(driver.release(&short).await.unwrap(), Release::Freed);
    assert!(raw.keys().await.is_empty());
}

/// One that lay idle may have less left than the hold is vouched for.
async fn refreshed(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let idle = named("idle", millis(12_000));
    take(&driver, &idle).await;
    driver.release(&idle).await.unwrap();
    let lease = raw.leases().await[0];
    raw.client.lease_revoke(lease).await.unwrap();
    // What was asked for a moment ago is not asked for again.
    tokio::time::sleep(millis(100)).await;
    let short = claim(millis(5000));
    take(&driver, &short).await;
    let renewal = driver.renew(&short.clone().with_ttl(millis(12_000))).await.unwrap();
    assert!(matches!(renewal, Renewal::Held(_)), "{renewal:?}");
}

async fn overlapping(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let short = claim(millis(5000));
    take(&driver, &short).await;
    let longer = short.clone().with_ttl(LONG);
    // As when a call of `extend` was given up and is repeated, and a renewal is due meanwhile.
    let (one, other, third) =
        tokio::join!(driver.renew(&longer), driver.renew(&longer), driver.renew(&short));
    for renewal in [one, other, third] {
        assert!(matches!(renewal.unwrap(), Renewal::Held(_)));
    }
    // What was let go of is ended some time after.
    while raw.leases().await.len() > 1 {
        tokio::time::sleep(millis(20)).await;
    }
    let (key, lease) = raw.keys().await.remove(0);
    assert_eq!(raw.leases().await, [lease], "{key}");
    assert_eq!(driver.release(&longer).await.unwrap(), Release::Freed);
}

async fn granted(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    // The server grants 2 s at the least.
    let short = claim(millis(1000));
    take(&driver, &short).await;
    let lease = raw.leases().await[0];
    let lease = raw.client.lease_time_to_live(lease, None).await.unwrap();
    assert_eq!(lease.granted_ttl(), 2);
    let locker = locker(&server.url(), millis(1000)).await;
    let guard = locker.lock("other").unwrap().acquire().await.unwrap();
    assert!(guard.valid_for().unwrap() > millis(1000));
}

async fn kept_alive(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let claim = claim(millis(12_000));
    take(&driver, &claim).await;
    driver.release(&claim).await.unwrap();
    let idle = raw.leases().await;
    let grants = raw.requests("Lease", "LeaseGrant");
    // Another lease, which nobody keeps alive, tells how time goes by at the server.
    let other = raw.client.lease_grant(16, None).await.unwrap().id();
    while raw.leases().await.contains(&other) {
        tokio::time::sleep(millis(50)).await;
    }
    assert_eq!(raw.leases().await, idle);
    take(&driver, &claim).await;
    assert_eq!(raw.requests("Lease", "LeaseGrant"), grants + 1, "only the other one");
}

async fn dropped(server: Server) {
    let mut raw = Raw::on(server.port()).await;
    let holder = driver(&server.url()).await;
    for is_held in [false, true] {
        let held: Claim = claim(LONG);
        if is_held {
            take(&holder, &held).await;
        }
        let locker = locker(&server.url(), LONG).await;
        let lock = locker.lock("orders/42").unwrap();
        for polls in 1..12 {
            let mut acquiring = Box::pin(lock.acquire());
            for _ in 0..polls {
                let step = tokio::time::timeout(millis(3), &mut acquiring).await;
                if step.is_ok() {
                    break;
                }
            }
        }
        locker.shutdown().await;
        if is_held {
            assert_eq!(raw.keys().await.len(), 1, "the holder's");
            holder.release(&held).await.unwrap();
        }
    }
    holder.close().await;
    raw.is_clean().await;
}

async fn closed(server: Server) {
    let (one, other) = (driver(&server.url()).await, driver(&server.url()).await);
    let mut raw = Raw::on(server.port()).await;
    let (held, waiting) = (claim(LONG), claim(LONG).fair());
    take(&one, &held).await;
    refused(&other, &waiting).await;
    one.release(&held).await.unwrap();
    take(&other, &waiting).await;
    other.release(&waiting).await.unwrap();
    one.close().await;
    other.close().await;
    raw.is_clean().await;
    assert!(one.try_acquire(&claim(LONG)).await.is_err());
}

async fn room(server: Server) {
    const ROOM: usize = 64;
    let (driver, raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let held: Vec<_> = (0..ROOM).map(|number| named(&number.to_string(), LONG)).collect();
    join_all(held.iter().map(|claim| take(&driver, claim))).await;
    join_all(held.iter().map(|claim| driver.release(claim))).await;
    for _ in 0..3 {
        let shorter = claim(LONG / 2);
        take(&driver, &shorter).await;
        assert_eq!(driver.release(&shorter).await.unwrap(), Release::Freed);
    }
    assert_eq!(raw.requests("Lease", "LeaseGrant") as usize, ROOM + 1);
}

/// Those that the pool has no room for are given back one after the other.
async fn beyond(server: Server) {
    const HOLDS: usize = 160;
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let held: Vec<_> = (0..HOLDS).map(|number| named(&number.to_string(), LONG)).collect();
    join_all(held.iter().map(|claim| take(&driver, claim))).await;
    for released in join_all(held.iter().map(|claim| driver.release(claim))).await {
        assert_eq!(released.unwrap(), Release::Freed);
    }
    driver.close().await;
    assert_eq!(raw.leases().await.len(), 0);
}

/// More than a client takes in one answer, unless it is told to.
async fn many(server: Server) {
    const LOCKS: usize = 128 * 200;
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let value = format!("{} {}", OwnerId::random(), "x".repeat(Label::MAX_LEN));
    let put = |number| TxnOp::put(format!("lockkit/v1/lockkit/{number}/1"), &*value, None);
    for first in (0..LOCKS).step_by(128) {
        let puts: Vec<_> = (first..first + 128).map(put).collect();
        raw.client.txn(Txn::new().and_then(puts)).await.unwrap();
    }
    assert_eq!(driver.held(&Namespace::default()).await.unwrap().len(), LOCKS);
}

async fn strange(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::on(server.port()).await);
    let (held, other) = (named("held", LONG), named("other", LONG));
    take(&driver, &held).await;
    raw.client.put("lockkit/v1/lockkit/other/mine", "hi", None).await.unwrap();
    // Behind a holder it hides nobody.
    raw.client.put("lockkit/v1/lockkit/held/mine", "hi", None).await.unwrap();
    refused(&driver, &other).await;
    assert_eq!(driver.look(other.name()).await.unwrap_err().kind(), ErrorKind::Foreign);
    let listed = driver.held(&Namespace::default()).await.unwrap();
    assert_eq!(listed.iter().map(LockStatus::name).collect::<Vec<_>>(), [held.name()]);
    let seen = driver.look(held.name()).await.unwrap();
    assert_eq!((seen.holder(), seen.waiters()), (listed[0].holder(), &[][..]));
}
