//! Who holds and who waits, and ending a hold from outside.

use std::time::Duration;

use futures_util::StreamExt;
use libtest_mimic::Trial;
use lockkit_core::driver::{Claim, Driver, ErrorKind, Inspect, Release, Renewal};
use lockkit_core::{Label, LockName, LockStatus, Locker, Namespace};
use lockkit_redis::RedisDriver;
use lockkit_testkit::{Proxy, REDIS, Server, trial};
use tokio::time::sleep;

use crate::support::{
    LONG, NAME, Raw, claim, driver, granted, impatient_driver, kind, listen, millis, refused, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_hold_is_seen_with_label_token_and_times", || REDIS.start(), hold),
        trial("living_places_are_seen_in_order", || REDIS.start(), places),
        trial("a_hold_that_was_handed_over_has_its_label", || REDIS.start(), handed_over),
        trial("what_ran_out_is_seen_free", || REDIS.start(), ran_out),
        trial("arrivals_stay_in_order_while_the_clock_is_behind", || REDIS.start(), behind),
        trial("listeners_are_counted", || REDIS.start(), listeners),
        trial("every_held_lock_of_the_namespace_is_listed", || REDIS.start(), list),
        trial(
            "a_list_misses_nothing_when_the_server_is_restarted",
            || REDIS.start_with(&["--appendonly", "yes"]),
            restarted,
        ),
        trial("looking_writes_nothing", || REDIS.start(), reads_only),
        trial("looking_at_something_foreign_says_so", || REDIS.start(), foreign),
        trial("a_broken_hold_is_over", || REDIS.start(), broken),
        trial("a_break_for_an_owner_spares_every_other", || REDIS.start(), other_owner),
        trial("a_break_hands_over_to_the_first_place", || REDIS.start(), break_hands_over),
        trial("a_break_hands_the_lock_to_a_plain_waiter", || REDIS.start(), break_serves),
        trial("the_guard_of_a_broken_hold_learns_it", || REDIS.start(), guard),
        trial("inspection_is_bounded", || REDIS.start(), bounded),
    ]
}

fn name() -> LockName {
    claim(LONG).name().clone()
}

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

async fn look(driver: &RedisDriver) -> LockStatus {
    driver.look(&name()).await.unwrap()
}

async fn hold(server: Server) {
    let driver = driver(&server.url()).await;
    assert_eq!(look(&driver).await.holder(), None);
    for text in ["web-3:4711", " a b  c ", "ü \"quoted\" 'so' \\ {x} %s", &"ß".repeat(64)] {
        let claim = claim(LONG).with_label(label(text));
        let token = take(&driver, &claim).await;
        sleep(millis(30)).await;
        let status = look(&driver).await;
        assert_eq!(status.name(), claim.name());
        let holder = status.holder().unwrap();
        assert_eq!(holder.owner(), claim.owner());
        assert_eq!(holder.label(), Some(claim.label()));
        assert_eq!(holder.fencing_token(), Some(token));
        let (since, remaining) = (holder.held_for().unwrap(), holder.remaining().unwrap());
        assert!((millis(29)..millis(20_000)).contains(&since), "{since:?}");
        assert!(remaining <= LONG - since + millis(1), "{remaining:?} {since:?}");
        assert!(remaining > millis(10_000), "{remaining:?}");

        // A renewal prolongs the hold that there is; the grant is as old as it was.
        sleep(millis(20)).await;
        driver.renew(&claim).await.unwrap();
        assert!(look(&driver).await.holder().unwrap().held_for().unwrap() >= since + millis(19));
        driver.release(&claim).await.unwrap();
        assert_eq!(look(&driver).await, LockStatus::free(name()).listened_to_by(0));
    }
}

async fn places(server: Server) {
    let driver = driver(&server.url()).await;
    take(&driver, &claim(LONG)).await;
    let texts = ["first", "a b  c", "ü \"quoted\"", "gives up", "dies", "last"];
    let waiters = texts.map(|text| {
        let ttl = if text == "dies" { millis(60) } else { LONG };
        claim(ttl).fair().with_label(label(text))
    });
    refused(&driver, &waiters[0]).await;
    sleep(millis(30)).await;
    for waiter in &waiters[1..] {
        refused(&driver, waiter).await;
    }
    // Neither asking again nor a wait without a place changes the order.
    refused(&driver, &waiters[0]).await;
    refused(&driver, &claim(LONG).waiting()).await;
    driver.release(&waiters[3]).await.unwrap();
    sleep(millis(80)).await;

    let status = look(&driver).await;
    let seen: Vec<_> = status.waiters().iter().map(|it| (it.owner(), it.label())).collect();
    let expected = [0, 1, 2, 5].map(|at| (waiters[at].owner(), Some(waiters[at].label())));
    assert_eq!(seen, expected);
    let since = |at: usize| status.waiters()[at].waiting_for().unwrap();
    assert!(since(0) >= since(1) + millis(29), "since the first ask: {status:?}");
    assert!((millis(79)..millis(20_000)).contains(&since(3)), "{status:?}");
}

async fn handed_over(server: Server) {
    let driver = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair().with_label(label("the \"next\" one")));
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    sleep(millis(50)).await;
    let before = std::time::Instant::now();
    driver.release(&holder).await.unwrap();
    let status = look(&driver).await;
    let next = status.holder().unwrap();
    assert_eq!((next.owner(), next.label()), (waiter.owner(), Some(waiter.label())));
    assert!(
        next.held_for().unwrap() <= before.elapsed() + millis(1),
        "since the grant, not the ask"
    );
    assert_eq!(next.fencing_token(), Some(take(&driver, &waiter).await));
    assert_eq!(status.waiters(), []);
}

async fn ran_out(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    take(&driver, &claim(LONG)).await;
    refused(&driver, &claim(millis(50)).fair()).await;
    sleep(millis(70)).await;
    raw.expire_lock().await;
    assert_eq!(look(&driver).await.holder(), None);
    assert_eq!(look(&driver).await.waiters(), []);
    assert_eq!(driver.held(name().namespace()).await.unwrap(), []);
    assert_eq!(driver.break_hold(&name(), None).await.unwrap(), None);
}

/// What came before has a later time on it: order goes before time.
async fn behind(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let (first, second) = (claim(LONG).fair(), claim(LONG).fair());
    take(&driver, &claim(LONG)).await;
    refused(&driver, &first).await;
    let queue = format!("{{lockkit:362}}:queue:{NAME}");
    let [place]: [String; 1] = raw.ask(&["ZRANGE", &queue, "0", "-1"]).await;
    raw.ask::<()>(&["ZINCRBY", &queue, "60000000", &place]).await;
    refused(&driver, &second).await;
    let status = look(&driver).await;
    let seen: Vec<_> = status.waiters().iter().map(|it| it.owner()).collect();
    assert_eq!(seen, [first.owner(), second.owner()]);
    assert_eq!(status.waiters()[0].waiting_for(), Some(Duration::ZERO));
}

async fn listeners(server: Server) {
    let (one, other) = (driver(&server.url()).await, driver(&server.url()).await);
    take(&one, &claim(LONG)).await;
    assert_eq!(look(&one).await.listeners(), Some(0));
    listen(&one, &claim(LONG).waiting()).await;
    listen(&other, &claim(LONG).fair()).await;
    refused(&other, &claim(LONG).waiting()).await;
    assert_eq!(look(&one).await.listeners(), Some(2), "connections, not claims");
}

async fn list(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let awkward = [
        " ",
        "*",
        "?[a-z]\\",
        "}:lock:",
        "{lockkit:1}:lock:x",
        "a:lock:b",
        "ü/ä 日本",
        "\"quoted\"",
        "%2f",
        &"x".repeat(512),
    ];
    let mut names: Vec<String> = awkward.map(String::from).into();
    names.extend((0..60).map(|number| format!("orders/{number}")));
    let namespaces = ["lockkit", "lockkit2", "lock", "a.b"].map(|it| Namespace::new(it).unwrap());
    for (at, namespace) in namespaces.iter().enumerate() {
        for text in names.iter().skip(at) {
            let claim = Claim::new(LockName::new(namespace, text).unwrap(), LONG);
            take(&driver, &claim.with_label(label(namespace.as_str()))).await;
        }
    }
    // More keys than are searched at a time, and some that look alike.
    let mut others = redis::pipe();
    for number in 0..5_000 {
        others.set(format!("{{lockkit:{number}}}:sock:{number}"), "");
    }
    for key in ["{lockkit:362}:lock:", "{lockkit:1}:lock:orders/1", "{lockkit:x}:lock:y"] {
        others.hset(key, "owner", "somebody");
    }
    others.set(format!("{{lockkit:362}}:lock:{NAME}"), "of somebody else");
    others.hset(b"{lockkit:1}:lock:\xff", "owner", "somebody");
    raw.pipe(&others).await;
    refused(&driver, &Claim::new(LockName::new(&namespaces[0], " ").unwrap(), LONG).fair()).await;

    names.sort();
    for (at, namespace) in namespaces.iter().enumerate() {
        let held = driver.held(namespace).await.unwrap();
        let mut expected: Vec<&str> = names.iter().map(String::as_str).collect();
        expected.retain(|text| !awkward[..at].contains(text));
        let listed: Vec<&str> = held.iter().map(|status| status.name().as_str()).collect();
        assert_eq!(listed, expected, "{namespace}");
        for status in &held {
            assert_eq!(status.name().namespace(), namespace);
            let called = status.holder().unwrap().label().unwrap();
            assert_eq!(called.as_str(), namespace.as_str());
        }
        let waiting: usize = held.iter().map(|status| status.waiters().len()).sum();
        assert_eq!(waiting, usize::from(at == 0));
    }
    assert_eq!(driver.held(&Namespace::new("empty").unwrap()).await.unwrap(), []);
}

/// What one run says of how far a search has come means nothing to the next.
async fn restarted(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&server.url_at(proxy.addr())).await;
    let namespace = Namespace::default();
    let names: Vec<_> = (100..300).map(|number| format!("orders/{number}")).collect();
    for text in &names {
        take(&driver, &Claim::new(LockName::new(&namespace, text).unwrap(), LONG)).await;
    }
    let mut others = redis::pipe();
    for number in 0..5_000 {
        others.set(format!("other/{number}"), "");
    }
    Raw::connect(&server.url()).await.pipe(&others).await;

    let page = proxy.answers().hold(":lock:");
    let restarting = async {
        page.caught().await;
        server.restart().unwrap();
        // The search goes on by another connection: this one does not answer.
        driver.node().unwrap().run(millis(200)).await.unwrap_err();
        while driver.look(&name()).await.is_err() {}
        page.go_on();
    };
    let (held, ()) = tokio::join!(driver.held(&namespace), restarting);
    let held = held.unwrap();
    let listed: Vec<_> = held.iter().map(|status| status.name().as_str()).collect();
    assert_eq!(listed, names);
}

async fn reads_only(server: Server) {
    const READS: [&str; 12] = [
        "CLIENT",
        "EVALSHA",
        "EVAL",
        "SCAN",
        "TIME",
        "PTTL",
        "HMGET",
        "ZRANGE",
        "ZRANGEBYSCORE",
        "PUBSUB",
        "INFO",
        "CONFIG",
    ];
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    take(&driver, &claim(LONG)).await;
    refused(&driver, &claim(millis(400)).fair()).await;
    refused(&driver, &claim(LONG).fair()).await;
    sleep(millis(420)).await;
    let changes = "rdb_changes_since_last_save";
    let before = raw.info(changes).await;

    let client = redis::Client::open(server.url()).unwrap();
    let monitor = client.get_async_monitor().await.unwrap();
    look(&driver).await;
    driver.held(name().namespace()).await.unwrap();
    driver.diagnose(name().namespace()).await.unwrap();
    raw.ask::<String>(&["ECHO", "the end"]).await;
    let lines = monitor.into_on_message::<String>();
    let lines: Vec<String> =
        lines.take_while(|line| std::future::ready(!line.contains("the end"))).collect().await;
    // 1700000000.000000 [0 127.0.0.1:4711] "PTTL" "key"
    let sent = lines.iter().map(|line| line.split('"').nth(1).unwrap().to_uppercase());
    let sent: Vec<_> = sent.collect();
    assert!(sent.iter().any(|command| command == "SCAN"), "{sent:?}");
    assert!(sent.iter().all(|command| READS.contains(&&**command)), "{lines:#?}");

    assert_eq!(raw.info(changes).await, before);
    let queue = format!("{{lockkit:362}}:queue:{NAME}");
    assert_eq!(raw.ask::<u64>(&["ZCARD", &queue]).await, 2, "a dead place is left to others");
}

async fn foreign(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let lock = &*format!("{{lockkit:362}}:lock:{NAME}");
    let owner = &*claim(LONG).owner().to_string();
    let cases: &[(&[&str], bool)] = &[
        (&["SET", lock, "of somebody else"], true),
        (&["HSET", lock, "mine", "1"], true),
        (&["HSET", lock, "owner", "x", "token", "7"], true),
        (&["HSET", lock, "owner", owner, "token", "x"], true),
        (&["HSET", lock, "owner", owner, "token", "7"], false),
    ];
    for (tampering, expires) in cases {
        raw.ask::<()>(&["DEL", lock]).await;
        raw.ask::<()>(tampering).await;
        if *expires {
            raw.ask::<()>(&["PEXPIRE", lock, "30000"]).await;
        }
        let before: Vec<u8> = raw.ask(&["DUMP", lock]).await;
        assert_eq!(kind(driver.look(&name()).await).0, ErrorKind::Foreign, "{tampering:?}");
        let broken = driver.break_hold(&name(), None).await;
        assert_eq!(kind(broken).0, ErrorKind::Foreign, "{tampering:?}");
        assert_eq!(driver.held(name().namespace()).await.unwrap(), [], "{tampering:?}");
        assert_eq!(raw.ask::<Vec<u8>>(&["DUMP", lock]).await, before, "{tampering:?}");
    }

    // What stands in the way of a hand-over stands in the way of a break and of a release.
    raw.ask::<()>(&["DEL", lock]).await;
    let holder = claim(LONG);
    take(&driver, &holder).await;
    raw.ask::<()>(&["SET", &format!("{{lockkit:362}}:queue:{NAME}"), "of somebody else"]).await;
    assert_eq!(kind(driver.break_hold(&name(), None).await).0, ErrorKind::Foreign);
    assert_eq!(kind(driver.release(&holder).await).0, ErrorKind::Foreign);
    assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
}

async fn broken(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let holder = claim(LONG).with_label(label("stuck \"ü\""));
    let token = take(&driver, &holder).await;
    sleep(millis(30)).await;
    let was = driver.break_hold(&name(), None).await.unwrap().unwrap();
    assert_eq!((was.owner(), was.label()), (holder.owner(), Some(holder.label())));
    assert_eq!(was.fencing_token(), Some(token));
    assert!(was.held_for().unwrap() >= millis(29), "{was:?}");
    assert!(was.remaining().unwrap() > millis(10_000), "{was:?}");

    assert_eq!(raw.keys().await, Vec::<String>::new());
    assert_eq!(driver.break_hold(&name(), None).await.unwrap(), None);
    assert_eq!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    let next = claim(LONG);
    assert!(take(&driver, &next).await > token);
    assert_eq!(driver.release(&holder).await.unwrap(), Release::NotHeld);
    assert_eq!(driver.release(&next).await.unwrap(), Release::Freed);
}

async fn other_owner(server: Server) {
    let driver = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    assert_eq!(driver.break_hold(&name(), Some(holder.owner())).await.unwrap(), None);
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    for other in [waiter.owner(), claim(LONG).owner()] {
        assert_eq!(driver.break_hold(&name(), Some(other)).await.unwrap(), None);
    }
    assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    assert_eq!(look(&driver).await.waiters().len(), 1);
    let was = driver.break_hold(&name(), Some(holder.owner())).await.unwrap().unwrap();
    assert_eq!(was.owner(), holder.owner());
    // The one that has it now is another's.
    assert_eq!(driver.break_hold(&name(), Some(holder.owner())).await.unwrap(), None);
    assert_eq!(look(&driver).await.holder().unwrap().owner(), waiter.owner());
}

async fn break_hands_over(server: Server) {
    let (far, near) = (driver(&server.url()).await, driver(&server.url()).await);
    let (holder, dead) = (claim(LONG), claim(millis(50)).fair());
    let (first, second) = (claim(LONG).fair(), claim(LONG).fair());
    let token = take(&near, &holder).await;
    refused(&near, &dead).await;
    listen(&far, &first).await;
    refused(&far, &second).await;
    sleep(millis(70)).await;
    near.break_hold(&name(), Some(holder.owner())).await.unwrap().unwrap();
    let next = granted(&far, &first).await;
    assert!(next > token);
    near.break_hold(&name(), None).await.unwrap().unwrap();
    assert!(granted(&far, &second).await > next);
    assert_eq!(near.renew(&holder).await.unwrap(), Renewal::Lost);
}

async fn break_serves(server: Server) {
    let (far, near) = (driver(&server.url()).await, driver(&server.url()).await);
    take(&near, &claim(LONG)).await;
    let waiters = [claim(LONG).waiting(), claim(LONG).waiting()];
    listen(&far, &waiters[0]).await;
    refused(&far, &waiters[1]).await;
    let broken = near.break_hold(&name(), None).await.unwrap().unwrap();
    assert!(Some(granted(&far, &waiters[0]).await) > broken.fencing_token());
    refused(&far, &waiters[1]).await;
}

async fn guard(server: Server) {
    let url = format!("{}?call_limit=10s", server.url());
    let connect = async || RedisDriver::connect(&url.parse().unwrap()).await.unwrap();
    let holder = Locker::builder(connect().await).ttl(millis(1_500)).build().unwrap();
    let people = Locker::new(connect().await);
    let guard = holder.lock("stuck").unwrap().acquire().await.unwrap();
    let status = people.look("stuck").await.unwrap();
    assert_eq!(status.holder().unwrap().owner(), guard.owner());
    assert_eq!(status.holder().unwrap().label(), Some(&Label::of_this_process()));
    let was = people.break_hold("stuck", Some(guard.owner())).await.unwrap().unwrap();
    assert_eq!(was.fencing_token(), guard.fencing_token());
    guard.lost().await;
    assert!(!guard.is_held());
    assert_eq!(people.look("stuck").await.unwrap().holder(), None);
}

async fn bounded(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let url = format!("{}?call_limit=200ms", server.url_at(proxy.addr()));
    let driver = impatient_driver(&url).await;
    let namespace = Namespace::default();
    proxy.answers().swallow();
    assert_eq!(kind(driver.look(&name()).await).0, ErrorKind::Unreachable);
    assert_eq!(kind(driver.held(&namespace).await).0, ErrorKind::Unreachable);
    assert_eq!(kind(driver.diagnose(&namespace).await).0, ErrorKind::Unreachable);
    proxy.answers().pass();
    while driver.look(&name()).await.is_err() {}
    proxy.answers().swallow();
    assert_eq!(kind(driver.break_hold(&name(), None).await).0, ErrorKind::Unknown);
}
