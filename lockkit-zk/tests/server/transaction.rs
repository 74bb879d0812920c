//! Writes that are bound to a hold.

use std::sync::Arc;

use libtest_mimic::Trial;
use lockkit_core::Locker;
use lockkit_testkit::{Proxy, ZOOKEEPER, trial};
use lockkit_zk::transaction::{LONGEST, Refused, Transaction, node};
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Error, Permission};

use crate::support::{NAME, Place, addr, driver, with};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_holder_writes_and_a_stale_one_does_not", || ZOOKEEPER.url(), stale),
        trial("a_session_that_has_ended_writes_nothing", || ZOOKEEPER.url(), ended),
        trial("a_transaction_is_carried_out_as_a_whole", || ZOOKEEPER.url(), whole),
        trial("what_is_checked_has_to_be_so", || ZOOKEEPER.url(), checked),
        trial("a_write_without_an_answer_is_unknown", || ZOOKEEPER.url(), unanswered),
        trial("what_is_too_long_is_not_sent", || ZOOKEEPER.url(), long),
        trial("what_is_too_long_for_its_rights_is_unknown", || ZOOKEEPER.url(), long_rights),
    ]
}

async fn stale(server: String) {
    let place = Place::on(&server).await;
    let (one, two) = (Arc::new(driver(&place.url).await), Arc::new(driver(&place.url).await));
    let (lockers, resource) =
        ([&one, &two].map(|driver| Locker::from_arc(driver.clone())), place.path("/stock"));
    let guard = lockers[0].lock(NAME).unwrap().acquire().await.unwrap();
    let mut write = Transaction::new(guard.owner());
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    write.create(&resource, "42", options).set_data(&resource, "41", Some(0));
    assert_eq!(write.commit(&one).await.unwrap().len(), 2);
    assert!(place.raw.check_stat(&node(&one, guard.owner()).unwrap()).await.unwrap().is_some());

    lockers[1].break_hold(NAME, Some(guard.owner())).await.unwrap().unwrap();
    let successor = lockers[1].lock(NAME).unwrap().acquire().await.unwrap();
    let mut late = Transaction::new(guard.owner());
    late.set_data(&resource, "0", None);
    assert!(matches!(late.commit(&one).await, Err(Refused::Lost)));
    assert_eq!(place.raw.get_data(&resource).await.unwrap().0, b"41");
    let mut write = Transaction::new(successor.owner());
    write.set_data(&resource, "40", None);
    write.commit(&two).await.unwrap();
    assert_eq!(place.raw.get_data(&resource).await.unwrap().0, b"40");
    assert!(matches!(write.commit(&one).await, Err(Refused::Lost)), "held on another driver");
}

async fn ended(server: String) {
    let place = Place::on(&server).await;
    let proxy = Proxy::start(addr(&server)).await;
    let driver = Arc::new(driver(&with(&place.url_by(proxy.addr()), "ttl=3s")).await);
    let locker = Locker::from_arc(driver.clone());
    let guard = locker.lock(NAME).unwrap().acquire().await.unwrap();
    proxy.refuse().await;
    proxy.reset().await;
    place.nodes_come_to(0).await;
    proxy.accept().await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let mut late = Transaction::new(guard.owner());
    late.create(place.path("-late"), "", options);
    assert!(matches!(late.commit(&driver).await, Err(Refused::Lost)));
    assert!(place.raw.check_stat(&place.path("-late")).await.unwrap().is_none());
}

async fn whole(server: String) {
    let place = Place::on(&server).await;
    let driver = Arc::new(driver(&place.url).await);
    let locker = Locker::from_arc(driver.clone());
    let guard = locker.lock(NAME).unwrap().acquire().await.unwrap();
    let options = || CreateMode::Persistent.with_acls(Acls::anyone_all());
    let (one, two) = (place.path("/one"), place.path("/two"));
    let mut write = Transaction::new(guard.owner());
    write.create(&one, "", options()).delete(&two, None);
    match write.commit(&driver).await {
        Err(Refused::Operation { index: 1, source: Error::NoNode }) => (),
        other => panic!("{other:?}"),
    }
    assert!(place.raw.check_stat(&one).await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(matches!(write.commit(&driver).await, Err(Refused::Lost)));
}

async fn checked(server: String) {
    let place = Place::on(&server).await;
    let driver = Arc::new(driver(&place.url).await);
    let locker = Locker::from_arc(driver.clone());
    let guard = locker.lock(NAME).unwrap().acquire().await.unwrap();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let (stock, missing) = (place.path("/stock"), place.path("/missing"));
    place.raw.create(&stock, b"42", &options).await.unwrap();
    let written = async |path: &str, version| {
        let mut write = Transaction::new(guard.owner());
        write.set_data(&stock, "41", None).check(path, version);
        write.commit(&driver).await
    };
    for (path, version, expected) in [
        (&stock, 0, Error::BadVersion),
        (&stock, 2, Error::BadVersion),
        (&missing, 0, Error::NoNode),
    ] {
        match written(path, version).await {
            Err(Refused::Operation { index: 1, source }) => assert_eq!(source, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(place.raw.get_data(&stock).await.unwrap().0, b"42");
    // It is of that version by then.
    assert_eq!(written(&stock, 1).await.unwrap().len(), 2);
    assert_eq!(place.raw.get_data(&stock).await.unwrap().0, b"41");
    // That what is checked first is not there does not say that the hold is not.
    let mut write = Transaction::new(guard.owner());
    write.check(&missing, 0);
    match write.commit(&driver).await {
        Err(Refused::Operation { index: 0, source: Error::NoNode }) => (),
        other => panic!("{other:?}"),
    }
}

async fn unanswered(server: String) {
    let place = Place::on(&server).await;
    let proxy = Proxy::start(addr(&server)).await;
    let driver = Arc::new(driver(&place.url_by(proxy.addr())).await);
    let locker = Locker::from_arc(driver.clone());
    let guard = locker.lock(NAME).unwrap().acquire().await.unwrap();
    let path = place.path("/stock");
    let mut write = Transaction::new(guard.owner());
    write.create(&path, "42", CreateMode::Persistent.with_acls(Acls::anyone_all()));
    proxy.answers().swallow();
    let (answer, ()) = tokio::join!(write.commit(&driver), async {
        while place.raw.check_stat(&path).await.unwrap().is_none() {}
        // In this order: the answer is on its way.
        proxy.reset().await;
        proxy.answers().pass();
    });
    assert!(matches!(answer, Err(Refused::Unknown(_))), "{answer:?}");
    // The session goes on.
    loop {
        match write.commit(&driver).await {
            Err(Refused::Operation { index: 0, source: Error::NodeExists }) => break,
            Err(Refused::Unknown(_) | Refused::Unreachable(_)) => (),
            other => panic!("{other:?}"),
        }
    }
    guard.release().await.unwrap();
}

async fn long(server: String) {
    let place = Place::on(&server).await;
    let driver = Arc::new(driver(&place.url).await);
    let locker = Locker::from_arc(driver.clone());
    let guard = locker.lock(NAME).unwrap().acquire().await.unwrap();
    let options = || CreateMode::Persistent.with_acls(Acls::anyone_all());
    let path = place.path("/long");
    for (length, fits) in [(LONGEST, false), (LONGEST - 1000, true)] {
        let mut write = Transaction::new(guard.owner());
        write.create(&path, vec![0; length], options());
        match write.commit(&driver).await {
            Ok(_) => assert!(fits),
            Err(Refused::TooLong(_)) => assert!(!fits),
            Err(other) => panic!("{other}"),
        }
    }
    assert!(guard.is_held());
}

/// Their length is not known here.
async fn long_rights(server: String) {
    let place = Place::on(&server).await;
    let driver = Arc::new(driver(&place.url).await);
    let locker = Locker::from_arc(driver.clone());
    let guard = locker.lock(NAME).unwrap().acquire().await.unwrap();
    let path = place.path("/long");
    for (length, fits) in [(50_000, false), (40_000, true)] {
        let somebody = AuthId::new("digest", &format!("a:{}", "b".repeat(length)));
        let rights = [Acl::new(Permission::ALL, somebody)];
        let mut write = Transaction::new(guard.owner());
        let options = CreateMode::Persistent.with_acls((&rights[..]).into());
        write.create(&path, vec![0; LONGEST - 1000], options);
        // The connection is another one after that, and the session the same.
        let written = loop {
            match write.commit(&driver).await {
                Err(Refused::Unreachable(_)) => (),
                written => break written,
            }
        };
        match written {
            Ok(_) => assert!(fits),
            Err(Refused::Unknown(_)) => assert!(!fits),
            Err(other) => panic!("{other}"),
        }
        assert_eq!(place.raw.check_stat(&path).await.unwrap().is_some(), fits);
    }
}
