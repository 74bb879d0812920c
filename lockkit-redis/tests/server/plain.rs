//! The dialect that shares locks with whoever sets a key where it is missing.

use libtest_mimic::Trial;
use lockkit_core::driver::{Claim, Driver, ErrorKind, Inspect, Release, Renewal};
use lockkit_core::{Error, Fairness, Grade, LockName, LockStatus, Locker, Namespace};
use lockkit_redis::{PLAIN_CAPABILITIES, RedisDriver};
use lockkit_testkit::{REDIS, Server, trial};

use crate::documented::rights as rights_of;
use crate::support::{LONG, NAME, Raw, claim, kind, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("plain_what_is_stored_is_as_it_was", || REDIS.start(), stored),
        trial("plain_locks_exclude_whoever_sets_a_missing_key", || REDIS.start(), excluding),
        trial("plain_locks_are_excluded_by_any_value", || REDIS.start(), excluded),
        trial("plain_holds_of_others_are_left_alone", || REDIS.start(), left_alone),
        trial("plain_tokens_rise_past_lost_keys", || REDIS.start(), tokens),
        trial("plain_claims_cost_a_request_each", || REDIS.start(), requests),
        trial("plain_waiters_cannot_be_served_in_order", || REDIS.start(), unordered),
        trial("plain_holds_are_seen_and_broken", || REDIS.start(), inspected),
        trial("plain_documented_rights_are_enough", || REDIS.start(), documented),
    ]
}

async fn plain(url: &str) -> RedisDriver {
    crate::support::driver(&format!("{url}?dialect=plain")).await
}

async fn stored(server: Server) {
    let (driver, mut raw) = (plain(&server.url()).await, Raw::connect(&server.url()).await);
    assert_eq!(driver.capabilities(), PLAIN_CAPABILITIES);
    let holder = claim(LONG);
    let token = take(&driver, &holder).await;
    let known = format!("{{lockkit:362}}:holder:{NAME}");
    assert_eq!(raw.keys().await, [NAME, &known]);
    assert_eq!(raw.ask::<String>(&["GET", NAME]).await, format!("{}.{token}", holder.owner()));
    let told: String = raw.ask(&["GET", &known]).await;
    let expected = format!("{} {} {}", holder.owner(), token.get() / 1000, holder.label());
    assert_eq!(told, expected, "the token is the time of the grant");
    assert!((25_000..=30_000).contains(&raw.ask::<u64>(&["PTTL", NAME]).await));
    let bucket: Vec<String> = raw.ask(&["HGETALL", "{lockkit:362}:bucket"]).await;
    assert_eq!(bucket, ["layout", "1", "token", &token.to_string()]);

    assert_eq!(take(&driver, &holder).await, token, "the same claim, the same grant");
    raw.ask::<()>(&["PEXPIRE", NAME, "1000"]).await;
    assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    for key in [NAME, &known] {
        assert!(raw.ask::<u64>(&["PTTL", key]).await > 25_000);
    }
    assert_eq!(driver.release(&holder).await.unwrap(), Release::Freed);
    assert_eq!(raw.keys().await, Vec::<String>::new());
    assert_eq!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(&holder).await.unwrap(), Release::NotHeld);
}

async fn excluding(server: Server) {
    let (driver, mut raw) = (plain(&server.url()).await, Raw::connect(&server.url()).await);
    let holder = claim(LONG);
    take(&driver, &holder).await;
    let set = ["SET", NAME, "mine", "NX", "PX", "1000"];
    assert_eq!(raw.ask::<Option<String>>(&set).await, None);
    driver.release(&holder).await.unwrap();
    assert_eq!(raw.ask::<Option<String>>(&set).await.as_deref(), Some("OK"));
    refused(&driver, &holder).await;
}

async fn excluded(server: Server) {
    let (driver, mut raw) = (plain(&server.url()).await, Raw::connect(&server.url()).await);
    let others = ["", "mine", "42", "6f2a5f0e-7f6c-4c33-9a4f-61a9a1f4c9d1", "VGhpcyBpcyBub3QgdXM="];
    for value in others {
        raw.ask::<()>(&["SET", NAME, value, "PX", "20000"]).await;
        let free_in = refused(&driver, &claim(LONG)).await.remaining().unwrap();
        assert!(free_in > millis(15_000) && free_in <= millis(20_000), "{free_in:?}");
    }
    // Held for good, and not foreign: some set no expiry.
    raw.ask::<()>(&["SET", NAME, "mine"]).await;
    assert_eq!(refused(&driver, &claim(LONG)).await.remaining(), None);
    // What others than those who set strings have there is no hold, but no free lock either.
    for tampering in [["HSET", NAME, "a:1", "1"].as_slice(), &["SADD", NAME, "x"]] {
        raw.ask::<()>(&["DEL", NAME]).await;
        raw.ask::<()>(tampering).await;
        assert_eq!(kind(driver.try_acquire(&claim(LONG)).await).0, ErrorKind::Foreign);
        assert_eq!(kind(driver.release(&claim(LONG)).await).0, ErrorKind::Foreign);
        assert_eq!(raw.keys().await, [NAME]);
    }
}

async fn left_alone(server: Server) {
    let (driver, mut raw) = (plain(&server.url()).await, Raw::connect(&server.url()).await);
    let holder = claim(LONG);
    take(&driver, &holder).await;
    // Its lease ran out, and another took the lock, who may even begin as it does.
    for value in ["another".into(), holder.owner().to_string(), format!("{}.", holder.owner())] {
        raw.ask::<()>(&["SET", NAME, &value, "PX", "20000"]).await;
        assert_eq!(driver.renew(&holder).await.unwrap(), Renewal::Lost, "{value}");
        assert_eq!(driver.release(&holder).await.unwrap(), Release::NotHeld, "{value}");
        refused(&driver, &holder).await;
        assert_eq!(raw.ask::<String>(&["GET", NAME]).await, value);
        assert!(raw.ask::<u64>(&["PTTL", NAME]).await <= 20_000);
    }
}

async fn tokens(server: Server) {
    let (driver, mut raw) = (plain(&server.url()).await, Raw::connect(&server.url()).await);
    let mut last = take(&driver, &claim(LONG)).await;
    for lost in [vec!["DEL", NAME], vec!["SET", NAME, "x", "PX", "1"], vec!["FLUSHALL"]] {
        raw.ask::<()>(&lost).await;
        while raw.ask::<bool>(&["EXISTS", NAME]).await {}
        let next = take(&driver, &claim(LONG)).await;
        assert!(next > last, "{lost:?}: {next} after {last}");
        last = next;
    }
    // Also if the server's clock is behind the last one.
    raw.ask::<()>(&["DEL", NAME]).await;
    raw.ask::<()>(&["HSET", "{lockkit:362}:bucket", "token", "9000000000000000"]).await;
    assert_eq!(take(&driver, &claim(LONG)).await.get(), 9_000_000_000_000_001);
}

async fn requests(server: Server) {
    let (driver, mut raw) = (plain(&server.url()).await, Raw::connect(&server.url()).await);
    let once = async || {
        let holder = claim(LONG).waiting();
        take(&driver, &holder).await;
        driver.renew(&holder).await.unwrap();
        driver.release(&holder).await.unwrap();
    };
    once().await;
    let calls = async |raw: &mut Raw| -> u64 {
        let commands: redis::InfoDict = raw.ask(&["INFO", "commandstats"]).await;
        let line: String = commands.get("cmdstat_evalsha").unwrap();
        line.split(['=', ',']).nth(1).unwrap().parse().unwrap()
    };
    raw.ask::<()>(&["CONFIG", "RESETSTAT"]).await;
    once().await;
    assert_eq!(calls(&mut raw).await, 3);
    assert_eq!(raw.info("connected_clients").await, "2", "no connection for news");
}

async fn unordered(server: Server) {
    assert_eq!(PLAIN_CAPABILITIES.fairness, Fairness::Unordered);
    let locker = Locker::new(plain(&server.url()).await);
    let error = locker.lock("a").unwrap().fair().unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
}

async fn inspected(server: Server) {
    let (driver, mut raw) = (plain(&server.url()).await, Raw::connect(&server.url()).await);
    let (holder, namespace) = (claim(LONG), Namespace::default());
    let token = take(&driver, &holder).await;
    // Neither data of any type nor locks of others are lockkit's.
    raw.ask::<()>(&["SET", "data", "0123456789abcdef0123456789abcdef"]).await;
    raw.ask::<()>(&["SET", "longer", &format!("{}.{token} and more", holder.owner())]).await;
    raw.ask::<()>(&["HSET", "hash", "field", "value"]).await;
    let held = driver.held(&namespace).await.unwrap();
    let [only] = &*held else { panic!("{held:?}") };
    let seen = only.holder().unwrap();
    assert_eq!((only.name(), seen.owner()), (holder.name(), holder.owner()));
    assert_eq!(seen.fencing_token(), Some(token));
    assert!(seen.remaining().unwrap() <= LONG);

    // A foreign hold is seen by its name, and can be broken by what it is called.
    raw.ask::<()>(&["SET", NAME, "VGhpcyBpcyBub3QgdXM="]).await;
    let seen = driver.look(holder.name()).await.unwrap();
    let foreign = seen.holder().unwrap();
    assert_eq!(foreign.label().unwrap().as_str(), "not lockkit");
    assert_eq!((foreign.fencing_token(), foreign.remaining()), (None, None));
    assert_eq!(driver.held(&namespace).await.unwrap(), []);
    assert_eq!(driver.break_hold(holder.name(), Some(holder.owner())).await.unwrap(), None);
    let broken = driver.break_hold(holder.name(), Some(foreign.owner())).await.unwrap();
    assert_eq!(broken.unwrap().owner(), foreign.owner());
    assert!(driver.look(holder.name()).await.unwrap().holder().is_none());
}

async fn documented(server: Server) {
    let [_, _, locks, looks, ..] = &*rights_of("lockkit:") else { panic!("four blocks of rights") };
    let mut raw = Raw::connect(&server.url()).await;
    // The database is not only for locks.
    raw.ask::<()>(&["SET", "session:1", "somebody else's"]).await;
    let mut give = async |words: &[String]| {
        let words = words.iter().map(String::as_str);
        let command: Vec<_> = ["ACL", "SETUSER", "app"].into_iter().chain(words).collect();
        raw.ask::<()>(&command).await;
    };
    give(&["reset".into()]).await;
    give(locks).await;
    let app = plain(&server.url().replace("redis://", "redis://app:pw@")).await;
    let holder = claim(LONG);
    take(&app, &holder).await;
    app.renew(&holder).await.unwrap();
    app.look(holder.name()).await.unwrap();
    app.release(&holder).await.unwrap();
    take(&app, &holder).await;
    app.break_hold(holder.name(), None).await.unwrap().unwrap();

    let lacking = async || -> Vec<String> {
        let findings = app.diagnose(&Namespace::default()).await.unwrap();
        let bad = findings.iter().filter(|it| it.grade() > Grade::Good && it.topic() == "rights");
        bad.map(|it| it.finding().to_owned()).collect()
    };
    assert_eq!(lacking().await.len(), 2, "what the server tells, and the list");
    give(looks).await;
    assert_eq!(lacking().await, Vec::<String>::new());
    take(&app, &holder).await;
    assert_eq!(app.held(&Namespace::default()).await.unwrap().len(), 1);

    // With a pattern for the names of locks.
    give(&["resetkeys", "~{lockkit:*", "~jobs:*"].map(String::from)).await;
    let job = LockName::new(&Namespace::default(), "jobs:1").unwrap();
    take(&app, &Claim::new(job.clone(), LONG)).await;
    let listed = app.held(&Namespace::default()).await.unwrap();
    assert_eq!(listed.iter().map(LockStatus::name).collect::<Vec<_>>(), [&job]);
    let [narrow] = &*lacking().await else { panic!("one finding") };
    assert!(narrow.contains("may not use every key"), "{narrow}");
    give(&["~*".into()]).await;
    assert_eq!(lacking().await, Vec::<String>::new());

    for word in locks.iter().chain(looks) {
        if let Some(right) = word.strip_prefix('+').filter(|&right| right != "select") {
            give(&[format!("-{right}")]).await;
            assert!(!lacking().await.is_empty(), "{right} is not needed");
            give(std::slice::from_ref(word)).await;
        }
    }
}
