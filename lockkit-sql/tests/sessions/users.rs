//! Users for whom the administrator has set something.

use libtest_mimic::Trial;
use lockkit_core::driver::{Release, Renewal};
use lockkit_testkit::{POSTGRES, Server, trial};

use crate::network::Network;
use crate::support::{Raw, claim, driver, refused, take, take_in_the_end};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial(
        "postgres::a_user_with_the_role_of_another_ends_its_own_sessions",
        || POSTGRES.start(),
        role_of_another,
    )]
}

/// As programs that make users for a time set it: the tables they make are then one user's.
async fn role_of_another(server: Server) {
    let (near, mut raw) = (driver(&server.url(), "").await, Raw::to(&server).await);
    raw.run(
        "CREATE ROLE owner; GRANT ALL ON lockkit_layout, lockkit_session TO owner; \
         CREATE ROLE app LOGIN IN ROLE owner; ALTER ROLE app SET role = 'owner'",
    )
    .await;
    let network = Network::start(server.addr()).await;
    let url = server.url_at(network.addr).replace("//postgres@", "//app@");
    let (far, held) = (driver(&url, "ttl=1h").await, claim("orders"));
    take(&*far, &held).await;
    network.forget_clients().await;
    assert_eq!(far.renew(&held).await.unwrap(), Renewal::Lost);
    let other = claim("other");
    take(&*far, &other).await;
    // The mark may be unlocked before that.
    take_in_the_end(&*near, &claim("orders")).await;
    // A wait is broken off.
    let waiting = claim("orders").waiting();
    refused(&*far, &waiting).await;
    raw.until_waiting(1).await;
    assert_eq!(far.release(&waiting).await.unwrap(), Release::NotHeld);
    assert_eq!(raw.waiting().await, 0);
    // A hold is broken.
    let break_hold = far.inspect().unwrap().break_hold(other.name(), None);
    assert_eq!(break_hold.await.unwrap().unwrap().owner(), other.owner());
    assert_eq!(far.renew(&other).await.unwrap(), Renewal::Lost);
}
