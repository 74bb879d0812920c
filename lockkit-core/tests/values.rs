//! What people write and read: URLs, names, labels, findings.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{DriverError, OwnerId};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{
    AcquireOptions, BackendUrl, Diagnosis, Error, ErrorKind, Grade, Holder, Label, LockName,
    Locker, Namespace, Wait, Waiter,
};

fn url(text: &str) -> BackendUrl {
    text.parse().unwrap()
}

#[test]
fn each_part_of_a_url_is_decoded_for_itself() {
    let whole = url("redis://a%40b:c%3Ad@h/e%3Ff?label=g%26h");
    assert_eq!((whole.user(), whole.password()), (Some("a@b"), Some("c:d")));
    assert_eq!((whole.path(), whole.parameter("label")), ("/e?f", Some("g&h")));
    assert_eq!(url("redis://a%40b@h").user(), Some("a@b"));
    // What comes after the last one is a host.
    let careless = url("redis://me:a@b@h");
    assert_eq!((careless.password(), careless.hosts()[0].name()), (Some("a@b"), "h"));
}

#[test]
fn a_host_or_a_port_that_is_none_is_refused() {
    for bad in ["m://a b", "m://a:+80", "m://a:-1", "m://a:", "m://[::1", "m://[]"] {
        assert!(bad.parse::<BackendUrl>().is_err(), "{bad:?} was accepted");
    }
    assert_eq!(url("m://a:65535").hosts()[0].port(), Some(65_535));
}

#[test]
fn what_is_shown_is_one_line_and_the_same_url() {
    for text in [
        "sqlite:/var/a%0Ab%25c%3Fd%23e",
        "redis://a%40b%3Ac%2F:***@h/e%40f%26g%3Dh?label=one%26ttl%3D1s%0Atwo%C2%85",
        "file:/srv/zürich?label=a=b",
    ] {
        let shown = url(text).to_string();
        assert!(!shown.contains(char::is_control), "{shown:?}");
        assert_eq!(url(&shown), url(text), "{shown}");
    }
}

#[test]
fn a_url_is_shown_as_it_was_written() {
    for text in
        ["memory:", "sqlite:///a/b.db?ttl=1s", "redis://me:***@a:1,[::1]:2,c/0?ttl=1s&label=me"]
    {
        assert_eq!(url(text).to_string(), text);
    }
    assert_eq!(url("redis://:hunter2@h").to_string(), "redis://:***@h");
    // A user without a password may be a password without its colon.
    assert_eq!(url("redis://hunter2@h").to_string(), "redis://***@h");
}

#[test]
fn what_may_be_a_secret_is_not_shown_whatever_it_is_called() {
    for name in [
        "Password",
        "passphrase",
        "sentinel_pas",
        "pw",
        "PWD",
        "secret",
        "Token",
        "api_key",
        "auth",
        "credentials",
    ] {
        let shown = url(&format!("redis://h/0?{name}=hunter2&ttl=1s")).to_string();
        assert_eq!(shown, format!("redis://h/0?{name}=***&ttl=1s"));
    }
    // The host is a part of the password, or of the label.
    assert_eq!(url("redis://me:12?label=hunter2@h").to_string(), "redis://me:12?label=***");
    let labelled = "redis://me:***@h?label=me@work";
    assert_eq!(url(labelled).to_string(), labelled);
}

#[test]
fn names_and_labels_may_be_as_long_as_they_say() {
    let name = |length| LockName::new(&Namespace::default(), &"x".repeat(length));
    assert!(name(LockName::MAX_LEN).is_ok());
    let label = |length| Label::new(&"x".repeat(length));
    assert!(label(Label::MAX_LEN).is_ok());
    for refused in [label(0), label(Label::MAX_LEN + 1), Label::new("a\nb"), "".parse()] {
        assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    }
    // Bytes count, not characters.
    assert!(Label::new(&"ä".repeat(Label::MAX_LEN / 2 + 1)).is_err());
}

#[test]
fn what_is_no_label_hides_nobody() {
    let owner = OwnerId::random();
    let holder = |text: &[u8]| Holder::new(owner).labelled(text);
    let label = Label::new("web-3 ü").unwrap();
    assert_eq!(holder("web-3 ü".as_bytes()), Holder::new(owner).with_label(label.clone()));
    let waiter = Waiter::new(owner).with_label(label);
    assert_eq!(Waiter::new(owner).labelled("web-3 ü"), waiter);
    for none in ["".as_bytes(), b"a\nb", b"\xff", &[b'x'; Label::MAX_LEN + 1]] {
        assert_eq!(holder(none), Holder::new(owner), "{none:?}");
        assert_eq!(Waiter::new(owner).labelled(none), Waiter::new(owner), "{none:?}");
    }
}

#[test]
fn a_process_is_called_by_its_host_and_its_id() {
    let label = Label::of_this_process();
    let (host, id) = label.as_str().rsplit_once(':').unwrap();
    assert_eq!(id, std::process::id().to_string());
    assert!(!host.is_empty());
    assert_eq!(label.as_str().parse::<Label>().unwrap(), label);
}

#[test]
fn findings_are_graded() {
    let findings = [
        Diagnosis::good("clock", "it runs"),
        Diagnosis::warning("clock", "it drifts", "mend it"),
        Diagnosis::error("clock", "it stands", "mend it"),
    ];
    let grades = findings.each_ref().map(Diagnosis::grade);
    assert_eq!(grades, [Grade::Good, Grade::Warning, Grade::Error]);
    assert!(grades.is_sorted());
    assert_eq!(grades.map(|grade| grade.to_string()), ["good", "warning", "error"]);
    assert_eq!(
        findings.each_ref().map(Diagnosis::advice),
        [None, Some("mend it"), Some("mend it")]
    );
}

#[test]
fn a_name_is_another_one_in_another_namespace() {
    let [one, other] = ["one", "other"].map(|namespace| Namespace::new(namespace).unwrap());
    let name = |namespace, name| LockName::new(namespace, name).unwrap();
    assert_ne!(name(&one, "a"), name(&other, "a"));
    assert_eq!(name(&one, "a"), name(&one, "a"));
    let mut names = [name(&other, "a"), name(&one, "b"), name(&one, "a")];
    names.sort();
    assert_eq!(names, [name(&one, "a"), name(&other, "a"), name(&one, "b")]);
    assert_eq!(format!("{:?}", name(&one, "a")), r#""a" in one"#);
}

#[tokio::test]
async fn a_locker_heeds_what_the_url_of_its_driver_says() {
    let locker = |text: &str| {
        let url = url(text);
        Locker::from_url(Arc::new(MemoryDriver::connect(&url)?), &url)
    };
    let whole = locker("memory:a?namespace=shop&ttl=5s&max_hold=1m&label=me").unwrap();
    assert_eq!(whole.namespace().as_str(), "shop");
    assert_eq!(whole.lease().ttl(), Duration::from_secs(5));
    assert_eq!(whole.lease().longest_hold(), Some(Duration::from_secs(60)));
    let guard = whole.lock("orders").unwrap().acquire().await.unwrap();
    let status = whole.look("orders").await.unwrap();
    assert_eq!(status.holder().unwrap().label().unwrap().as_str(), "me");
    // Another tenant's, on the same driver, until that is closed.
    let other = whole.in_namespace("other".parse().unwrap());
    let elsewhere = other.lock("orders").unwrap();
    assert!(elsewhere.try_acquire().await.unwrap().is_some());
    assert_eq!(other.lease(), whole.lease());
    other.shutdown().await;
    assert!(!guard.is_held());

    for bad in ["memory:?namespace=a/b", "memory:?ttl=soon", "memory:?ttl=0s"] {
        let error = locker(bad).unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains(bad), "{error}");
    }
}

#[test]
fn what_changes_nothing_is_never_unknown() {
    let without_effect = |kind| DriverError::new(kind, "a reason").without_effect();
    assert_eq!(without_effect(ErrorKind::Unknown).kind(), ErrorKind::Unreachable);
    assert_eq!(without_effect(ErrorKind::Denied).kind(), ErrorKind::Denied);
    assert_eq!(without_effect(ErrorKind::Unknown).into_source().to_string(), "a reason");
}

#[tokio::test]
async fn an_error_tells_its_driver_and_its_lock() {
    let name = LockName::new(&Namespace::default(), "orders").unwrap();
    assert_eq!(Error::config("a", "b").driver(), None);
    assert_eq!(Error::unsupported("redis", "that").driver(), Some("redis"));
    let failed = Error::connecting("etcd", DriverError::new(ErrorKind::Denied, "no"));
    assert_eq!((failed.driver(), failed.lock()), (Some("etcd"), None));
    let lock = Locker::new(MemoryDriver::new()).lock("orders").unwrap();
    let _guard = lock.acquire().await.unwrap();
    let options = AcquireOptions::new().wait(Wait::No);
    let taken = lock.acquire_with(options).await.unwrap_err();
    assert_eq!((taken.driver(), taken.lock()), (Some("memory"), Some(&name)));
}
