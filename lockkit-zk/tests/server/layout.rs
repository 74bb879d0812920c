//! What is stored: a change here is a change of layout.

use libtest_mimic::Trial;
use lockkit_core::driver::{Claim, Driver, ErrorKind, Inspect, Release};
use lockkit_core::{Label, LockName, Namespace};
use lockkit_testkit::{ZOOKEEPER, trial};
use tokio::time::sleep;
use zookeeper_client::{Acls, CreateMode};

use crate::support::{FOLDER, LONG, NAME, Place, claim, driver, kind, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("what_is_stored_is_as_it_was", || ZOOKEEPER.url(), stored),
        trial("what_is_above_the_nodes_goes_by_itself", || ZOOKEEPER.url(), containers),
        trial("a_node_of_somebody_else_is_foreign", || ZOOKEEPER.url(), foreign),
        trial("nodes_belong_to_whoever_has_the_credentials", || ZOOKEEPER.url(), credentials),
        trial("a_lock_that_one_may_not_see_hides_no_other", || ZOOKEEPER.url(), hidden),
    ]
}

async fn stored(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let (held, waiting) = (claim().with_label(Label::new("web-3 ü").unwrap()), claim().fair());
    let token = take(&driver, &held).await;
    refused(&driver, &waiting).await;
    let mut nodes = place.nodes().await;
    nodes.sort_by_key(|node| node[33..].to_owned());
    let names = [format!("{}-0000000000", held.owner()), format!("{}-0000000001", waiting.owner())];
    assert_eq!(nodes, names);
    let (label, stat) = place.node(&names[0]).await;
    assert_eq!(label, "web-3 ü".as_bytes());
    assert_ne!(stat.ephemeral_owner, 0);
    assert_eq!(stat.czxid, i64::try_from(token.get()).unwrap());
    let (acl, _) = place.raw.get_acl(&place.path(FOLDER)).await.unwrap();
    assert_eq!(acl, Acls::anyone_all().to_vec());
}

/// The server removes containers that have become empty, in these tests within a second.
async fn containers(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let held = claim();
    let first = take(&driver, &held).await;
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    while place.raw.check_stat(&place.path("")).await.unwrap().is_some() {
        sleep(millis(20)).await;
    }
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
    let second = take(&driver, &held).await;
    assert!(second > first, "the sequence began anew, and the token must not");
}

async fn foreign(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let held = claim();
    take(&driver, &held).await;
    driver.release(&held).await.unwrap();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let alien = format!("{}/alien", place.path(FOLDER));
    place.raw.create(&alien, b"", &options).await.unwrap();
    for claim in [claim(), claim().fair()] {
        let (kind, text) = kind(driver.try_acquire(&claim).await);
        assert_eq!(kind, ErrorKind::Foreign);
        assert!(text.contains("alien"), "{text}");
    }
    assert_eq!(place.nodes().await, ["alien"]);
    assert_eq!(kind(driver.look(held.name()).await).0, ErrorKind::Foreign);
    assert_eq!(driver.held(held.name().namespace()).await.unwrap(), []);
}

async fn credentials(server: String) {
    let place = Place::on(&server).await;
    let url = |user: &str| place.url.replace("zookeeper://", &format!("zookeeper://{user}@"));
    let (ours, theirs) = (driver(&url("app:secret")).await, driver(&url("app:guess")).await);
    let (held, other) = (claim(), claim());
    take(&ours, &held).await;
    for driver in [&theirs, &driver(&place.url).await] {
        assert_eq!(kind(driver.try_acquire(&other).await).0, ErrorKind::Denied);
        assert_eq!(kind(driver.look(held.name()).await).0, ErrorKind::Denied);
    }
    let friend = driver(&url("app:secret")).await;
    refused(&friend, &other).await;
    assert!(!format!("{friend:?}").contains("secret"));
    assert_eq!(ours.release(&held).await.unwrap(), Release::Freed);
    assert_eq!(NAME, held.name().as_str());
}

/// What is not for everybody to see hides nothing that is.
async fn hidden(server: String) {
    let place = Place::on(&server).await;
    let ours = driver(&place.url.replace("zookeeper://", "zookeeper://app:secret@")).await;
    let everybody = driver(&place.url).await;
    let namespace = Namespace::default();
    for (who, name) in [(&everybody, "seen"), (&ours, "hidden")] {
        let name = LockName::new(&namespace, name).unwrap();
        take(who, &Claim::new(name, LONG)).await;
    }
    let listed = everybody.held(&namespace).await.unwrap();
    let names: Vec<_> = listed.iter().map(|status| status.name().as_str()).collect();
    assert_eq!(names, ["seen"]);
}
