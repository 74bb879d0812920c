//! What is stored, what is foreign, and how many requests it takes.

use futures_util::StreamExt;
use libtest_mimic::Trial;
use lockkit_core::driver::{Driver, ErrorKind, Release, Renewal};
use lockkit_core::{Label, LockName, Namespace};
use lockkit_testkit::{REDIS, Server, trial};

use crate::support::{LONG, NAME, Raw, claim, driver, kind, listen, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("what_is_stored_is_as_it_was", || REDIS.start(), stored),
        trial("what_is_published_is_as_it_was", || REDIS.start(), published),
        trial("something_foreign_is_reported_and_left_alone", || REDIS.start(), foreign),
        trial("an_unknown_layout_is_left_alone", || REDIS.start(), unknown_layout),
        trial("a_claim_costs_two_requests", || REDIS.start(), requests),
        trial("forgotten_scripts_are_sent_again", || REDIS.start(), forgotten),
        trial("other_databases_are_apart", || REDIS.start(), databases),
    ]
}

async fn stored(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let label = Label::new("web-3:4711 \"ü\"").unwrap();
    let (holder, waiter) = (claim(LONG), claim(millis(20_000)).fair().with_label(label.clone()));
    let unordered = claim(millis(20_000)).waiting().with_label(label);
    let before = micros(&mut raw).await;
    let token = take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    refused(&driver, &unordered).await;
    let after = micros(&mut raw).await;

    let keys = ["deadlines", "lock", "queue", "unordered"]
        .map(|kind| format!("{{lockkit:362}}:{kind}:{NAME}"));
    assert_eq!(raw.keys().await, keys);
    let [deadlines, lock, queue, unordered_key] = keys.each_ref().map(String::as_str);
    let channels: Vec<String> = raw.ask(&["PUBSUB", "CHANNELS"]).await;
    let [channel] = &*channels else { panic!("{channels:?}") };
    let inbox = channel.strip_prefix("{lockkit:362}:inbox:").unwrap();
    assert!(inbox.len() == 16 && inbox.bytes().all(|it| it.is_ascii_hexdigit()), "{inbox}");

    let fields: Vec<String> = raw.ask(&["HGETALL", lock]).await;
    let (owner, token) = (holder.owner().to_string(), token.to_string());
    let (label, since) = (holder.label().as_str(), fields[7].clone());
    assert_eq!(fields, ["owner", &owner, "token", &token, "label", label, "since", &since]);
    assert!((before / 1000..=after / 1000).contains(&since.parse().unwrap()), "{since}");
    let ends: u64 = raw.ask(&["PTTL", lock]).await;
    assert!((25_000..=30_000).contains(&ends), "{ends}");

    let bucket: Vec<String> = raw.ask(&["HGETALL", "{lockkit:362}:bucket"]).await;
    assert_eq!(bucket, ["layout", "1", "token", &token]);
    assert_eq!(raw.ask::<i64>(&["PTTL", "{lockkit:362}:bucket"]).await, -1);

    let mut last = 0;
    for (key, claim) in [(queue, &waiter), (unordered_key, &unordered)] {
        let waits = format!("{} {inbox} web-3:4711 \"ü\"", claim.owner());
        let places: Vec<(String, u64)> = raw.ask(&["ZRANGE", key, "0", "-1", "WITHSCORES"]).await;
        let [(who, arrival)] = &*places else { panic!("{places:?}") };
        assert_eq!(*who, waits);
        assert!((before..=after).contains(arrival), "{arrival}");
        let deadline: u64 = raw.ask(&["ZSCORE", deadlines, &waits]).await;
        assert!((before / 1000 + 20_000..=after / 1000 + 20_000).contains(&deadline), "{deadline}");
        assert!((deadline - 5_000..=deadline).contains(&raw.ask(&["PEXPIRETIME", key]).await));
        last = deadline.max(last);
    }
    assert_eq!(raw.ask::<u64>(&["ZCARD", deadlines]).await, 2);
    assert_eq!(raw.ask::<u64>(&["PEXPIRETIME", deadlines]).await, last);

    let other = LockName::new(&Namespace::new("other").unwrap(), NAME).unwrap();
    take(&driver, &lockkit_core::driver::Claim::new(other, LONG)).await;
    let keys: Vec<String> = raw.ask(&["KEYS", "{other:*}:lock:*"]).await;
    assert_eq!(keys.len(), 1);
}

async fn micros(raw: &mut Raw) -> u64 {
    let (seconds, micros): (u64, u64) = raw.ask(&["TIME"]).await;
    seconds * 1_000_000 + micros
}

async fn published(server: Server) {
    let driver = driver(&server.url()).await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut news = client.get_async_pubsub().await.unwrap();
    news.psubscribe("{lockkit:362}:inbox:*").await.unwrap();
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    let (other, told) = (claim(LONG).waiting(), claim(LONG).listening());
    let token = take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    refused(&driver, &told).await;
    refused(&driver, &other).await;
    driver.release(&holder).await.unwrap();
    let next = take(&driver, &waiter).await;
    assert!(next > token);
    // Of those who wait in no order first the one who came first.
    driver.release(&waiter).await.unwrap();
    driver.release(&told).await.unwrap();
    let last = take(&driver, &other).await;
    assert!(last > next);
    let heard: Vec<String> =
        news.on_message().take(3).map(|message| message.get_payload().unwrap()).collect().await;
    assert_eq!(
        heard,
        [
            format!("granted {} {next}", waiter.owner()),
            format!("free {}", told.owner()),
            format!("granted {} {last}", other.owner()),
        ]
    );
}

async fn foreign(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let [lock, queue, unordered, deadlines] = ["lock", "queue", "unordered", "deadlines"]
        .map(|kind| format!("{{lockkit:362}}:{kind}:{NAME}"));
    let (lock, queue, unordered, deadlines) = (&*lock, &*queue, &*unordered, &*deadlines);
    let bucket = "{lockkit:362}:bucket";
    let cases: &[(&str, &[&str])] = &[
        (lock, &["SET", lock, "of somebody else"]),
        (lock, &["HSET", lock, "mine", "1"]),
        (lock, &["HSET", lock, "owner", "x"]),
        (lock, &["HSET", lock, "owner", "x", "token", "7"]), // without an expiry
        (lock, &["HSET", lock, "owner", "x", "token", "seven"]),
        (queue, &["SET", queue, "of somebody else"]),
        (unordered, &["SET", unordered, "of somebody else"]),
        (bucket, &["SET", bucket, "7"]),
        (bucket, &["HSET", bucket, "mine", "1"]),
        (bucket, &["HSET", bucket, "layout", "1", "token", "-7"]),
    ];
    for (key, tampering) in cases {
        raw.ask::<()>(&["FLUSHALL"]).await;
        raw.ask::<()>(tampering).await;
        let before: Vec<u8> = raw.ask(&["DUMP", key]).await;
        for claim in [claim(LONG), claim(LONG).waiting(), claim(LONG).fair()] {
            let (kind, text) = kind(driver.try_acquire(&claim).await);
            assert_eq!(kind, ErrorKind::Foreign, "{tampering:?}: {text}");
            // Nothing to release, and nothing is harmed by trying.
            _ = driver.release(&claim).await;
        }
        let after: Vec<u8> = raw.ask(&["DUMP", key]).await;
        assert_eq!(before, after, "{tampering:?}");
        assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "*"]).await, [*key], "{tampering:?}");
    }

    // Beside a hold, too: nobody releases an ask that failed, and nothing of it may stay.
    for key in [queue, unordered] {
        raw.ask::<()>(&["FLUSHALL"]).await;
        take(&driver, &claim(LONG)).await;
        raw.ask::<()>(&["SET", key, "of somebody else"]).await;
        for claim in [claim(LONG).waiting(), claim(LONG).fair(), claim(LONG)] {
            let (kind, text) = kind(driver.try_acquire(&claim).await);
            assert_eq!(kind, ErrorKind::Foreign, "{key}: {text}");
            assert_eq!(raw.keys().await, [lock, key]);
        }
    }

    // And where a release will look for who waits.
    raw.ask::<()>(&["FLUSHALL"]).await;
    raw.ask::<()>(&["ZADD", unordered, "1", "somebody"]).await;
    raw.ask::<()>(&["SET", deadlines, "of somebody else"]).await;
    for claim in [claim(LONG).waiting(), claim(LONG).fair(), claim(LONG)] {
        let (kind, text) = kind(driver.try_acquire(&claim).await);
        assert_eq!(kind, ErrorKind::Foreign, "{text}");
        assert_eq!(raw.keys().await, [deadlines, unordered]);
    }

    // Where only the places by deadline are foreign, whoever needs none is not concerned.
    raw.ask::<()>(&["FLUSHALL"]).await;
    raw.ask::<()>(&["SET", deadlines, "of somebody else"]).await;
    let holder = claim(LONG);
    take(&driver, &holder).await;
    let (kind, _) = kind(driver.try_acquire(&claim(LONG).fair()).await);
    assert_eq!(kind, ErrorKind::Foreign);
    assert_eq!(raw.keys().await, [deadlines, lock]);
    assert_eq!(driver.release(&holder).await.unwrap(), Release::Freed);

    // A holder whose lock was overwritten has lost it, and is told why.
    take(&driver, &holder).await;
    raw.ask::<()>(&["SET", lock, "of somebody else"]).await;
    assert_eq!(crate::support::kind(driver.renew(&holder).await).0, ErrorKind::Foreign);
    assert_eq!(crate::support::kind(driver.release(&holder).await).0, ErrorKind::Foreign);
    assert_eq!(raw.ask::<String>(&["GET", lock]).await, "of somebody else");
}

async fn unknown_layout(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    raw.ask::<()>(&["HSET", "{lockkit:362}:bucket", "layout", "2", "token", "7"]).await;
    let (kind, text) = kind(driver.try_acquire(&claim(LONG)).await);
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(text.contains("layout"), "{text}");
    assert_eq!(raw.keys().await, Vec::<String>::new());
}

async fn requests(server: Server) {
    let driver = driver(&server.url()).await;
    let warm = claim(LONG);
    take(&driver, &warm).await;
    driver.renew(&warm).await.unwrap();
    driver.release(&warm).await.unwrap();

    let client = redis::Client::open(server.url()).unwrap();
    let monitor = client.get_async_monitor().await.unwrap();
    // Whether or not it would wait: nobody is in its way.
    for claim in [claim(LONG), claim(LONG).waiting(), claim(LONG).fair()] {
        take(&driver, &claim).await;
        assert_ne!(driver.renew(&claim).await.unwrap(), Renewal::Lost);
        driver.release(&claim).await.unwrap();
    }
    let mut raw = Raw::connect(&server.url()).await;
    raw.ask::<String>(&["ECHO", "the end"]).await;

    let lines = monitor.into_on_message::<String>();
    let lines: Vec<String> =
        lines.take_while(|line| std::future::ready(!line.contains("the end"))).collect().await;
    let sent = |line: &&String| !line.contains(" lua] ");
    let (evaluated, other): (Vec<_>, Vec<_>) =
        lines.iter().filter(sent).partition(|line| line.contains("\"EVALSHA\""));
    assert_eq!(evaluated.len(), 9, "{lines:#?}");
    assert!(other.iter().all(|line| line.contains("\"CLIENT\"")), "{other:#?}");
}

async fn forgotten(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let claim = claim(LONG);
    let token = take(&driver, &claim).await;
    raw.ask::<()>(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(take(&driver, &claim).await, token);
    raw.ask::<()>(&["SCRIPT", "FLUSH"]).await;
    assert_ne!(driver.renew(&claim).await.unwrap(), Renewal::Lost);
    raw.ask::<()>(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    assert_eq!(raw.keys().await, Vec::<String>::new());
}

async fn databases(server: Server) {
    let one = driver(&server.url()).await;
    let other = driver(&format!("{}/1", server.url())).await;
    take(&one, &claim(LONG)).await;
    take(&other, &claim(LONG)).await;
}
