//! Tokens that are no longer good, rights that come and go, and who hears of its key all the same.

use std::pin::pin;

use etcd_client::{Permission, PermissionType, RoleRevokePermissionOptions};
use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Claim, Driver, Renewal};
use lockkit_core::{LockName, Namespace};
use lockkit_testkit::{ETCD, Proxy, Server, trial};
use tokio::time::{sleep, timeout};

use crate::support::{LONG, Raw, claim, driver, millis, named, take};
use crate::weather::{demand_a_user, root_of, url_of, with_signed_tokens};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("each_stream_that_is_refused_logs_in_anew", with_signed_tokens, refused_again),
        trial("a_key_is_watched_once_the_right_is_given_back", || ETCD.start(), given_back),
    ]
}

/// Waits until so many streams of watches have ended, and so many keys are watched.
async fn moved(raw: &Raw, ended: u64, keys: u64) {
    while raw.begun_and_ended("Watch").1 < ended || raw.watchers() != keys {
        sleep(millis(5)).await;
    }
}

async fn refused_again(server: Server) {
    let mut raw = Raw::on(server.port()).await;
    demand_a_user(&mut raw).await;
    let (driver, mut root) =
        (driver(&url_of(&server, "app:hunter2")).await, root_of(&server).await);
    let held = ["one", "two", "three"].map(|name| named(name, LONG));
    for claim in &held {
        take(&driver, claim).await;
    }
    let watch = async |claim| assert!(poll!(pin!(driver.changed(claim))).is_pending());
    watch(&held[0]).await;
    moved(&raw, 0, 1).await;
    // Signed tokens are good until users or roles change. First a watch is refused, and then a
    // request, for whose new connection the stream is left.
    root.role_add("one").await.unwrap();
    watch(&held[1]).await;
    moved(&raw, 1, 2).await;
    root.role_add("two").await.unwrap();
    assert!(matches!(driver.renew(&held[0]).await.unwrap(), Renewal::Held(_)));
    moved(&raw, 2, 2).await;
    root.role_add("three").await.unwrap();
    watch(&held[2]).await;
    // What is left as it is, is asked for again after 30 s.
    timeout(millis(15_000), moved(&raw, 3, 3)).await.expect("it is not watched");
}

async fn given_back(server: Server) {
    let elsewhere = "lockkit/v1/elsewhere/";
    let mut raw = Raw::on(server.port()).await;
    demand_a_user(&mut raw).await;
    let mut root = root_of(&server).await;
    let right = || Permission::new(PermissionType::Readwrite, elsewhere).with_prefix();
    root.role_grant_permission("app", right()).await.unwrap();
    let proxy = Proxy::start(server.addr()).await;
    let url = server.url_at(proxy.addr()).replace("etcd://", "etcd://app:hunter2@");
    let (driver, held) = (driver(&url).await, claim(LONG));
    let namespace = Namespace::new("elsewhere").unwrap();
    let other = Claim::new(LockName::new(&namespace, "orders/42").unwrap(), LONG);
    for claim in [&held, &other] {
        take(&driver, claim).await;
        assert!(poll!(pin!(driver.changed(claim))).is_pending());
    }
    moved(&raw, 0, 2).await;
    let all = RoleRevokePermissionOptions::new().with_prefix();
    root.role_revoke_permission("app", elsewhere, Some(all)).await.unwrap();
    // Both are watched anew, of which one is refused, and then once more by another login.
    let (logins, ended) = (raw.requests("Auth", "Authenticate"), raw.begun_and_ended("Watch").1);
    proxy.reset().await;
    while raw.requests("Auth", "Authenticate") == logins {
        sleep(millis(5)).await;
    }
    moved(&raw, ended + 2, 1).await;

    root.role_grant_permission("app", right()).await.unwrap();
    while poll!(pin!(driver.changed(&other))).is_ready() {}
    // Nobody has cause to look at it any more.
    assert!(matches!(driver.renew(&other).await.unwrap(), Renewal::Held(_)));
    let all = etcd_client::DeleteOptions::new().with_prefix();
    root.delete(elsewhere, Some(all)).await.unwrap();
    let lost = async { while driver.changed(&other).await != Change::Lost {} };
    timeout(millis(120_000), lost).await.expect("it is told nothing");
}
