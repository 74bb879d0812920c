//! Servers that die, hang, refuse or turn into something else, and a network that loses things.

use std::time::Instant;

use libtest_mimic::Trial;
use lockkit_core::Error;
use lockkit_core::driver::{Change, Driver, ErrorKind, Release, Renewal};
use lockkit_redis::RedisDriver;
use lockkit_testkit::{Hold, Proxy, REDIS, Server, Unavailable, trial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::patient;
use crate::support::{
    LONG, Raw, causes, claim, driver, impatient_driver, kind, listen, millis, refused, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_restarted_server_is_found_again", || REDIS.start(), restarted),
        trial(
            "a_swallowed_answer_is_unknown_and_replaces_the_connection",
            || REDIS.start(),
            swallowed,
        ),
        trial("a_server_that_does_not_say_what_it_is_is_asked_anew", || REDIS.start(), speechless),
        trial("a_call_under_way_outlives_the_replacement", || REDIS.start(), replaced),
        trial("a_hung_server_ends_in_the_limit", || REDIS.start(), hung),
        trial("a_request_that_was_not_sent_is_not_unknown", || REDIS.start(), away),
        trial("attempts_to_connect_are_few", || REDIS.start(), attempts),
        trial("a_demoted_primary_is_unreachable_until_it_is_back", || REDIS.start(), demoted),
        trial("a_replica_without_its_primary_is_left", two, left),
        trial("a_replica_is_refused", two, replica),
        trial(
            "a_wrong_password_is_denied",
            || REDIS.start_with(&["--requirepass", "pw"]),
            password,
        ),
        trial(
            "a_password_is_not_repeated",
            || REDIS.start_with(&["--rename-command", "AUTH", ""]),
            repeated,
        ),
        trial("a_server_that_hangs_up_says_why", || Ok(()), turned_away),
        trial("a_busy_server_is_unreachable_in_any_database", || REDIS.start(), busy),
        trial("missing_rights_are_denied", || REDIS.start(), rights),
        trial("no_memory_is_capacity", || REDIS.start(), memory),
        trial("a_database_that_is_not_there_is_a_matter_of_the_url", || REDIS.start(), database),
        trial("what_is_no_redis_is_told_apart", || Ok(()), no_redis),
        trial("a_late_request_leaves_one_lease_at_most", || REDIS.start(), late),
        trial("a_closed_driver_leaves_no_connection", || REDIS.start(), closed),
    ]
}

async fn restarted(server: Server) {
    let driver = driver(&server.url()).await;
    let waiter = claim(LONG).fair();
    take(&driver, &claim(LONG)).await;
    listen(&driver, &waiter).await;
    server.restart().unwrap();
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    take(&driver, &waiter).await;
    assert_eq!(driver.release(&waiter).await.unwrap(), Release::Freed);
}

async fn swallowed(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr())).await;
    // Whatever is to succeed has a longer one.
    let claim = claim(millis(10_000));
    let patient = claim.clone().with_ttl(LONG);
    take(&driver, &patient).await;
    driver.release(&patient).await.unwrap();
    let before = proxy.connections();

    proxy.answers().swallow();
    let start = Instant::now();
    let (kind, text) = kind(driver.try_acquire(&claim).await);
    assert_eq!(kind, ErrorKind::Unknown, "{text}");
    assert!(start.elapsed() >= millis(2000), "the limit is a fifth of the lease");
    proxy.answers().pass();

    let mut raw = Raw::connect(&server.url()).await;
    let lock = &raw.keys().await[0];
    let token: u64 = raw.ask(&["HGET", lock, "token"]).await;
    assert_eq!(take(&driver, &patient).await.get(), token, "the grant whose answer was lost");
    assert_eq!(proxy.connections(), before + 1);
}

async fn speechless(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr())).await;
    let run = driver.node().unwrap();
    proxy.answers().swallow();
    let (unheard, text) = kind(run.run(millis(200)).await);
    assert_eq!(unheard, ErrorKind::Unreachable, "{text}");
    assert!(text.contains("no answer within 200ms"), "{text}");
    proxy.answers().pass();
    assert!(run.run(LONG).await.unwrap().is_primary());

    server.kill();
    // A broken connection is noticed by itself.
    let reason = loop {
        match run.run(millis(200)).await {
            Ok(_) => sleep(millis(1)).await,
            failed => break kind(failed).1,
        }
    };
    assert!(reason.contains("no connection within 200ms"), "{reason}");
}

/// One call has a limit so short that it gives up; another has time.
async fn replaced(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr())).await;
    let (hasty, patient) = (claim(millis(50)), claim(LONG));
    proxy.answers().delay(millis(300));
    let (hasty, patient) =
        tokio::join!(driver.try_acquire(&hasty), async { take(&driver, &patient).await });
    // One of them got the lock; the other was refused, had it been answered in time.
    assert_eq!(kind(hasty).0, ErrorKind::Unknown);
    assert!(patient.get() > 0);
}

async fn hung(server: Server) {
    let driver = impatient_driver(&server.url()).await;
    let claim = claim(millis(1000));
    take(&driver, &claim.clone().with_ttl(LONG)).await;
    server.stop().unwrap();
    assert_eq!(kind(driver.renew(&claim).await).0, ErrorKind::Unknown);
    // The next goes to a new connection, which the kernel makes and nobody greets: not sent.
    assert_eq!(kind(driver.renew(&claim).await).0, ErrorKind::Unreachable);
    let url = server.url().parse().unwrap();
    let connected = timeout(millis(5000), RedisDriver::connect(&url)).await;
    let error = connected.expect("it has a limit").unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    assert!(causes(&error).contains("the server does not answer a greeting"), "{error:?}");
    server.cont().unwrap();
    while let Err(error) = driver.try_acquire(&claim).await {
        assert!(error.kind().is_transient(), "{error}");
    }
}

async fn away(server: Server) {
    let driver = impatient_driver(&server.url()).await;
    let claim = claim(millis(1000));
    take(&driver, &claim.clone().with_ttl(LONG)).await;
    server.kill();
    // The broken connection is noticed by itself; a call before that is unknown at worst.
    while kind(driver.renew(&claim).await).0 == ErrorKind::Unknown {}
    let (kind, text) = kind(driver.renew(&claim).await);
    assert_eq!(kind, ErrorKind::Unreachable);
    assert!(text.contains("no connection within 200ms") && text.contains("refused"), "{text}");
    server.restart().unwrap();
    while driver.try_acquire(&claim).await.is_err() {}
}

async fn attempts(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr())).await;
    let claim = claim(millis(2500));
    take(&driver, &claim.clone().with_ttl(LONG)).await;
    server.kill();
    let (start, before) = (Instant::now(), proxy.connections());
    while start.elapsed() < millis(3000) {
        _ = driver.renew(&claim).await;
    }
    let busy = proxy.connections() - before;
    // The pauses allow for 12; a hammering client makes thousands.
    assert!((2..=20).contains(&busy), "{busy} attempts in 3 s");
    // And none while nobody calls, once those have ended that are under way or due.
    let mut before = 0;
    while proxy.connections() != before {
        before = proxy.connections();
        sleep(millis(1500)).await;
    }
}

async fn demoted(server: Server) {
    let (driver, mut raw) =
        (impatient_driver(&server.url()).await, Raw::connect(&server.url()).await);
    let claim = claim(millis(10_000));
    take(&driver, &claim).await;
    raw.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let (kind_of_first, text) = kind(driver.renew(&claim).await);
    assert_eq!(kind_of_first, ErrorKind::Unreachable);
    assert!(text.contains("read only replica"), "{text}");
    let (kind_of_second, text) = kind(driver.renew(&claim).await);
    assert_eq!(kind_of_second, ErrorKind::Unreachable);
    assert!(text.contains("takes no writes"), "{text}");
    raw.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    while let Err(error) = driver.try_acquire(&claim).await {
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    }
}

fn two() -> Result<(Server, Server), Unavailable> {
    Ok((REDIS.start()?, REDIS.start()?))
}

/// One address leads to another primary by now, as a name or a balancer's does.
async fn left((server, successor): (Server, Server)) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&server.url_at(proxy.addr())).await;
    take(&driver, &claim(LONG)).await;
    let mut raw = Raw::connect(&server.url()).await;
    raw.ask::<()>(&["CONFIG", "SET", "replica-serve-stale-data", "no"]).await;
    raw.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    proxy.switch_upstream(successor.addr());
    let (kind, text) = kind(driver.try_acquire(&claim(LONG)).await);
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    assert!(text.to_lowercase().contains("master is down"), "{text}");
    take(&driver, &claim(LONG)).await;
}

async fn replica((primary, replica): (Server, Server)) {
    let mut raw = Raw::connect(&replica.url()).await;
    raw.ask::<()>(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).await;
    let error = RedisDriver::connect(&replica.url().parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("replica"), "{error:?}");
}

async fn password(server: Server) {
    let at = |user: &str| server.url().replace("redis://", &format!("redis://{user}"));
    for wrong in ["", ":wrong@", "nobody:pw@"] {
        for database in ["", "/1"] {
            let url = format!("{}{database}", at(wrong));
            let error = RedisDriver::connect(&url.parse().unwrap()).await.unwrap_err();
            assert!(matches!(error, Error::Denied(_)), "{url}: {error:?}");
            assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
        }
    }
    // Nothing, and words of the refusal itself.
    for word in ["", "user", "password"] {
        let url = at(&format!(":{word}@"));
        let error = RedisDriver::connect(&url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
        assert!(causes(&error).contains("invalid username-password pair"), "{error:?}");
    }
    for right in [":pw@", "default:pw@"] {
        let (driver, claim) = (driver(&at(right)).await, claim(LONG));
        take(&driver, &claim).await;
        driver.release(&claim).await.unwrap();
    }
}

/// A server says what it does not know, and with what it was sent.
async fn repeated(server: Server) {
    for user in [":hunter2@", "me:hunter2@"] {
        let url = server.url().replace("redis://", &format!("redis://{user}"));
        let error = RedisDriver::connect(&url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
        assert!(causes(&error).contains("does not take a password"), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    // As what stands in front of servers may.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://:hunter2@{}", listener.local_addr().unwrap()).parse().unwrap();
    for reason in ["ERR nobody has the password hunter2", "REFUSED the password hunter2"] {
        let (connected, ()) =
            tokio::join!(RedisDriver::connect(&url), turn_away(&listener, reason));
        let error = connected.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

async fn turn_away(listener: &TcpListener, reason: &str) {
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(format!("-{reason}\r\n").as_bytes()).await.unwrap();
}

/// At its limit, or in protected mode: it does not wait to be asked.
async fn turned_away((): ()) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for (reason, is_denied) in [
        ("ERR max number of clients reached", false),
        ("DENIED Redis is running in protected mode because ...", true),
    ] {
        // No password, none at all in its place, one that the reason happens to have in it.
        for (user, database) in [("", ""), (":@", ""), (":e@", ""), (":pw@", "/1")] {
            let url = format!("redis://{user}{address}{database}").parse().unwrap();
            let turning_away = turn_away(&listener, reason);
            let (connected, ()) = tokio::join!(RedisDriver::connect(&url), turning_away);
            let error = connected.unwrap_err();
            assert_eq!(matches!(error, Error::Denied(_)), is_denied, "{error:?}");
            assert_eq!(matches!(error, Error::Unreachable(_)), !is_denied, "{error:?}");
            let words = reason.split_once(' ').unwrap().1;
            assert!(causes(&error).contains(words), "{error:?}");
        }
    }
}

/// Somebody's script takes long, so that the server answers little else: it cannot even change the
/// database.
async fn busy(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    raw.ask::<()>(&["CONFIG", "SET", "lua-time-limit", "1"]).await;
    let mut other = patient::client(&server.url()).await.unwrap();
    let script = redis::cmd("EVAL").arg("while true do end").arg(0).to_owned();
    let running = tokio::spawn(async move { script.exec_async(&mut other).await });
    while !raw.is_busy().await {}
    for database in ["", "/1"] {
        let url = format!("{}{database}?call_limit=2s", server.url()).parse().unwrap();
        let kind = match RedisDriver::connect(&url).await {
            Ok(driver) => kind(driver.try_acquire(&claim(LONG)).await).0,
            Err(Error::Unreachable(_)) => ErrorKind::Unreachable,
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!(kind, ErrorKind::Unreachable);
    }
    raw.ask::<()>(&["SCRIPT", "KILL"]).await;
    assert!(running.await.unwrap().is_err());
    take(&driver(&format!("{}/1", server.url())).await, &claim(LONG)).await;
}

async fn rights(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    let user = |rights: &str| -> Vec<String> {
        format!("ACL SETUSER me reset on >pw {rights}").split(' ').map(Into::into).collect()
    };
    for rights in [
        "~* -@all",
        "~* +@all -eval -evalsha",
        "~* +@all -hset",
        // A hold without an end would be worse than none.
        "~* +@all -pexpireat",
        "~other:* +@all",
    ] {
        let words = user(rights);
        raw.ask::<()>(&words.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let url = server.url().replace("redis://", "redis://me:pw@");
        let (kind, text) = kind(driver(&url).await.try_acquire(&claim(LONG)).await);
        assert_eq!(kind, ErrorKind::Denied, "{rights}: {text}");
    }
    assert_eq!(raw.keys().await, Vec::<String>::new());
}

async fn memory(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    raw.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(kind(driver.try_acquire(&claim(LONG).fair()).await).0, ErrorKind::Capacity);
    // What there is goes on: renewal, release, hand-over.
    assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(&holder).await.unwrap(), Release::Freed);
    take(&driver, &waiter).await;
    assert_eq!(driver.release(&waiter).await.unwrap(), Release::Freed);
    assert_eq!(kind(driver.try_acquire(&claim(LONG)).await).0, ErrorKind::Capacity);
    assert_eq!(raw.keys().await, Vec::<String>::new());
}

async fn database(server: Server) {
    let url = format!("{}/99", server.url());
    let error = RedisDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("database"), "{error}");
}

async fn no_redis((): ()) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let web = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        _ = stream.read(&mut [0; 1024]).await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let error = RedisDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    web.await.unwrap();
    let error = RedisDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "nobody listens any more: {error:?}");
}

/// A request that the network keeps lands after its claim was given up.
async fn late(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (far, near) =
        (impatient_driver(&server.url_at(proxy.addr())).await, driver(&server.url()).await);
    let mut raw = Raw::connect(&server.url()).await;
    let ttl = millis(2500);
    let land = async |held: Hold| {
        let answered = proxy.answers().bytes();
        held.go_on();
        proxy.answers().bytes_reach(answered + 1).await;
    };

    // A server that did not know the scripts would refuse what lands late.
    let warm = claim(LONG);
    take(&near, &warm).await;
    near.renew(&warm).await.unwrap();
    near.release(&warm).await.unwrap();

    // An ask that lands late holds the lock for a lease,
    let ask = claim(ttl);
    let held = proxy.requests().hold("EVALSHA");
    assert_eq!(kind(far.try_acquire(&ask).await).0, ErrorKind::Unknown);
    // With time to connect anew.
    assert_eq!(far.release(&ask.clone().with_ttl(LONG)).await.unwrap(), Release::NotHeld);
    let start = Instant::now();
    land(held).await;
    assert_eq!(raw.keys().await.len(), 1);
    raw.wait_until_empty().await;
    assert!(start.elapsed() >= ttl);

    // or keeps a place for a lease, whether or not its turn comes;
    let (holder, ask) = (claim(LONG), claim(ttl).fair());
    take(&near, &holder).await;
    let held = proxy.requests().hold("EVALSHA");
    assert_eq!(kind(far.try_acquire(&ask).await).0, ErrorKind::Unknown);
    assert_eq!(far.release(&ask.clone().with_ttl(LONG)).await.unwrap(), Release::NotHeld);
    let start = Instant::now();
    land(held).await;
    near.release(&holder).await.unwrap();
    refused(&near, &claim(LONG)).await;
    raw.wait_until_empty().await;
    assert!(start.elapsed() >= ttl - millis(1));

    // and neither a renewal nor a release leaves anything.
    for renews in [true, false] {
        let holder = claim(millis(10_000));
        take(&far, &holder).await;
        let held = proxy.requests().hold("EVALSHA");
        let (late, _) = match renews {
            true => kind(far.renew(&holder).await),
            false => kind(far.release(&holder).await),
        };
        assert_eq!(late, ErrorKind::Unknown);
        assert_eq!(far.release(&holder).await.unwrap(), Release::Freed);
        let successor = claim(LONG);
        take(&near, &successor).await;
        land(held).await;
        assert_eq!(near.release(&successor).await.unwrap(), Release::Freed);
        assert_eq!(raw.keys().await, Vec::<String>::new());
    }
}

async fn closed(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    for close in [true, false] {
        let driver = driver(&server.url_at(proxy.addr())).await;
        let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
        take(&driver, &holder).await;
        listen(&driver, &waiter).await;
        assert_eq!(proxy.open(), 2);
        for claim in [&holder, &waiter] {
            driver.release(claim).await.unwrap();
        }
        if close {
            driver.close().await;
            assert_eq!(kind(driver.try_acquire(&holder).await).0, ErrorKind::Unreachable);
        }
        // A closed driver has none while it is still there.
        let _kept = close.then_some(driver);
        while proxy.open() > 0 {
            sleep(millis(5)).await;
        }
    }
}
