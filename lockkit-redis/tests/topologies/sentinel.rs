//! Sentinels, which make a replica the primary when that is gone.

use std::time::Duration;

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{Attempt, Change, Claim, Driver, ErrorKind, Renewal};
use lockkit_core::{Error, FencingToken, LockName, Namespace};
use lockkit_redis::{RedisDriver, gate};
use lockkit_testkit::{Hold, Proxy, REDIS, RedisSentinels, Server, Unavailable, trial};

use crate::documented;
use crate::support::{
    LONG, NAME, Raw, causes, claim, driver, impatient_driver, kind, listen, millis, refused, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_killed_primary_is_followed_by_holder_and_waiters", quick, killed),
        trial("a_killed_primary_is_followed_by_tls_alone", quick_with_tls, killed_with_tls),
        trial("a_demoted_primary_is_left_within_the_call", patient, demoted),
        trial("who_has_no_turn_at_a_new_primary_is_not_told_of_the_old_one", patient, queued),
        trial("a_planned_failover_is_followed_before_the_old_primary_knows", patient, planned),
        trial("a_primary_that_is_silent_is_left_for_another", quick, silent),
        trial("a_failover_that_lost_the_grant_leaves_two_holders", quick, forgotten),
        trial("sentinels_that_are_down_or_behind_mislead_nobody", patient, outvoted),
        trial("a_sentinel_that_is_behind_takes_nobody_back", patient, behind),
        trial("a_sentinel_that_is_left_alone_can_name_another_primary", patient, repaired),
        trial("passwords_of_servers_and_sentinels_are_two", patient, passwords),
        trial("what_is_no_sentinel_or_unknown_to_it_is_said", patient, wrong),
    ]
}

/// With a failover as soon as a primary is silent.
fn quick() -> Result<RedisSentinels, Unavailable> {
    RedisSentinels::start(millis(1000))
}

fn quick_with_tls() -> Result<RedisSentinels, Unavailable> {
    RedisSentinels::start_with_tls(millis(1000))
}

/// With a failover only when it is asked for, whatever a busy machine does.
fn patient() -> Result<RedisSentinels, Unavailable> {
    RedisSentinels::start(Duration::from_secs(60))
}

fn url(set: &RedisSentinels) -> String {
    set.url()
}

/// Waits until all replicas have what the primary has.
async fn replicated(primary: &mut Raw, replicas: u32) {
    while primary.ask::<u32>(&["WAIT", &replicas.to_string(), "100"]).await < replicas {}
}

/// Waits until the claim has the lock: as the news say, or as it finds when it is told that some may
/// have been missed. It may be told of the end of one subscription, and of the next.
async fn handed_over(driver: &RedisDriver, waiter: &Claim) -> FencingToken {
    loop {
        match driver.changed(waiter).await {
            Change::Granted(grant) => return grant.fencing_token().unwrap(),
            Change::AskAgain => match driver.try_acquire(waiter).await.unwrap() {
                Attempt::Granted(grant) => return grant.fencing_token().unwrap(),
                Attempt::Taken(_) => (),
                attempt => panic!("{attempt:?}"),
            },
            change => panic!("{change:?}"),
        }
    }
}

async fn killed(set: RedisSentinels) {
    let (one, other) = (driver(&url(&set)).await, driver(&url(&set)).await);
    let holder = claim(LONG);
    let token = take(&one, &holder).await;
    let waiters: Vec<Claim> = (0..5).map(|_| claim(LONG).fair()).collect();
    for waiter in &waiters {
        refused(&other, waiter).await;
    }
    let first = &set.servers()[set.primary()];
    // A write of this connection, to be waited for.
    let mut raw = Raw::connect(&first.url()).await;
    raw.ask::<()>(&["SET", "mark", "1"]).await;
    replicated(&mut raw, 2).await;
    first.kill();

    // Nobody calls for the waiters: the subscription moves by itself, and says so.
    for waiter in &waiters {
        while other.changed(waiter).await != Change::AskAgain {}
    }
    loop {
        match one.renew(&holder).await {
            Ok(renewed) => break assert_ne!(renewed, Renewal::Lost),
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    }
    for waiter in &waiters {
        while let Err(error) = other.try_acquire(waiter).await {
            assert!(error.kind().is_transient(), "{error}");
        }
    }
    // The hand-over arrives by the new subscription, in the order of the queue.
    let (mut holder, mut last, mut releasing) = (holder, token, &one);
    for waiter in waiters {
        releasing.release(&holder).await.unwrap();
        let granted = handed_over(&other, &waiter).await;
        assert!(granted > last, "{granted} after {last}");
        (holder, last, releasing) = (waiter, granted, &other);
    }
    other.release(&holder).await.unwrap();
}

async fn killed_with_tls(set: RedisSentinels) {
    let stranger = url(&set).split('?').next().unwrap().to_owned();
    let error = RedisDriver::connect(&stranger.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("UnknownIssuer"), "{}", causes(&error));
    killed(set).await;
}

/// Told to be a replica while no news of that come, a server refuses a write; the same call finds the
/// new primary.
async fn demoted(set: RedisSentinels) {
    let (proxies, ports) = in_front_of(&set).await;
    let driver = driver(&set.url_at(&ports)).await;
    let holder = claim(LONG);
    take(&driver, &holder).await;
    let _kept = keep_news(&set, &proxies).await;
    let mut old = Raw::connect(&set.servers()[set.primary()].url()).await;
    old.ask::<()>(&["SET", "mark", "1"]).await;
    replicated(&mut old, 2).await;
    let after = set.fail_over();
    let port = set.servers()[after].port().to_string();
    old.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    let refused: String = old.ask(&["INFO", "errorstats"]).await;
    assert!(refused.contains("errorstat_READONLY:count=1"), "{refused}");
    driver.release(&holder).await.unwrap();
}

/// More claims than there are connections that wait for replicas, of which there are too few at the
/// new primary: not all have their turn there in time.
async fn queued(set: RedisSentinels) {
    let (proxies, ports) = in_front_of(&set).await;
    let parameters = "?replicas=3&replica_timeout=4s&call_limit=2s";
    let driver = impatient_driver(&format!("{}{parameters}", set.url_at(&ports))).await;
    let _kept = keep_news(&set, &proxies).await;
    let mut old = Raw::connect(&set.servers()[set.primary()].url()).await;
    let after = set.fail_over();
    let port = set.servers()[after].port().to_string();
    old.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    let claims = (0..64).map(|number| {
        Claim::new(LockName::new(&Namespace::default(), &number.to_string()).unwrap(), LONG)
    });
    let claims: Vec<_> = claims.collect();
    let answers = join_all(claims.iter().map(|claim| driver.try_acquire(claim))).await;
    let mut without_turn = 0;
    for answer in answers {
        let (kind, text) = kind(answer);
        assert!(kind.is_transient(), "{kind:?}: {text}");
        assert!(!text.contains("is a replica"), "{kind:?}: {text}");
        assert!(!text.contains("no connection"), "{kind:?}: {text}");
        without_turn += u32::from(text.contains("no turn in time"));
    }
    assert!(without_turn > 0);
}

/// A proxy in front of each sentinel, and the ports of these.
async fn in_front_of(set: &RedisSentinels) -> (Vec<Proxy>, Vec<u16>) {
    let mut proxies = Vec::new();
    for sentinel in set.sentinels() {
        proxies.push(Proxy::start(sentinel.addr()).await);
    }
    let ports = proxies.iter().map(|proxy| proxy.addr().port()).collect();
    (proxies, ports)
}

/// From when somebody listens at each sentinel on, keeps back that there is another primary.
async fn keep_news(set: &RedisSentinels, proxies: &[Proxy]) -> Vec<Hold> {
    for sentinel in set.sentinels() {
        let mut raw = Raw::connect(&plain_url(sentinel)).await;
        while raw.ask::<String>(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.is_empty() {}
    }
    proxies.iter().map(|proxy| proxy.answers().hold("+switch-master")).collect()
}

/// The sentinel itself, to look and to tamper.
fn plain_url(sentinel: &Server) -> String {
    format!("redis://{}", sentinel.addr())
}

async fn silent(set: RedisSentinels) {
    // Sentinels whose votes are split vote again twelve seconds later.
    let driver = impatient_driver(&format!("{}?call_limit=30s", url(&set))).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    let first = &set.servers()[set.primary()];
    let mut raw = Raw::connect(&first.url()).await;
    raw.ask::<()>(&["SET", "mark", "1"]).await;
    replicated(&mut raw, 2).await;
    first.stop().unwrap();
    // The call has thirty seconds; it ends when the sentinels name another, and not with the limit.
    let error = driver.renew(&holder).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    let text = causes(&*error.into_source());
    assert!(text.contains("another server has become the primary"), "{text}");
    assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    // The old primary comes to and takes itself for one, for a while. Nobody believes it.
    first.cont().unwrap();
    assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    driver.release(&holder).await.unwrap();
    handed_over(&driver, &waiter).await;
}

/// What a lock on replicated servers cannot promise: the control to the tests of `replicas`.
async fn forgotten(set: RedisSentinels) {
    let (one, other) = (driver(&url(&set)).await, driver(&url(&set)).await);
    let (first, second) = (claim(LONG), claim(LONG));
    let _cut = cut_replication(&set).await;
    let token = take(&one, &first).await;
    set.servers()[set.primary()].kill();
    let later = loop {
        match other.try_acquire(&second).await {
            Ok(Attempt::Granted(grant)) => {
                break grant.fencing_token().unwrap();
            }
            Ok(refused) => panic!("the grant was to be lost: {refused:?}"),
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    };
    // The first has been granted a lease of 30 s and is not told of the end of it: two hold.
    assert!(later > token, "{later} after {token}");
    // What checks tokens, wherever it is, takes nothing more of the first.
    let resource = REDIS.start().unwrap();
    let mut resource = crate::patient::client(&resource.url()).await.unwrap();
    for (token, passes) in [(token, true), (later, true), (token, false)] {
        let passed = gate::pass::<()>(&mut resource, "gate", token, &redis::pipe()).await;
        match passed {
            Err(gate::Error::Stale { .. }) => assert!(!passes),
            passed => assert!(passed.is_ok() && passes, "{passed:?}"),
        }
    }
    // It learns that at its next renewal.
    assert_eq!(one.renew(&first).await.unwrap(), Renewal::Lost);
}

/// Replicas are connected, and hear nothing more from the primary.
pub(crate) async fn cut_replication(set: &RedisSentinels) -> Proxy {
    let primary = &set.servers()[set.primary()];
    let proxy = Proxy::start(primary.addr()).await;
    let port = proxy.addr().port().to_string();
    let mut raw = Raw::connect(&primary.url()).await;
    for replica in set.servers() {
        if replica.port() != primary.port() {
            let mut replica = Raw::connect(&replica.url()).await;
            replica.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
        }
    }
    raw.ask::<()>(&["SET", "mark", "1"]).await;
    replicated(&mut raw, 2).await;
    proxy.answers().swallow();
    proxy
}

async fn outvoted(set: RedisSentinels) {
    // One that was cut off since before the failover, and tells of the primary before it.
    set.sentinels()[2].stop().unwrap();
    let before = set.primary();
    let now = set.fail_over();
    assert_ne!(now, before);
    set.sentinels()[2].cont().unwrap();
    let driver = driver(&url(&set)).await;
    let mut raw = Raw::connect(&set.servers()[now].url()).await;
    take(&driver, &claim(LONG)).await;
    assert_eq!(raw.keys().await.len(), 1);

    // One is enough to be found, and none is said.
    set.sentinels()[0].kill();
    set.sentinels()[1].kill();
    impatient_driver(&url(&set)).await;
    set.sentinels()[2].kill();
    let error = RedisDriver::connect(&url(&set).parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    assert!(causes(&error).contains("no sentinel says"), "{}", causes(&error));
    // Who is connected goes on without.
    driver.try_acquire(&claim(LONG)).await.unwrap();
}

/// One that was down during a failover comes back when the others are gone.
async fn behind(set: RedisSentinels) {
    let (proxies, ports) = in_front_of(&set).await;
    let [_, now] = fail_over_without_the_last(&set).await;
    let driver = driver(&set.url_at(&ports)).await;
    let holder = claim(LONG);
    take(&driver, &holder).await;
    leave_the_last(&set, &proxies).await;
    for _ in 0..3 {
        assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    }
    let mut now = Raw::connect(&set.servers()[now].url()).await;
    now.ask::<u32>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    assert_ne!(renewed(&driver, &holder).await, Renewal::Lost);
}

/// The primary is lost for good, and so are the sentinels that know of it.
async fn repaired(set: RedisSentinels) {
    let (proxies, ports) = in_front_of(&set).await;
    let [before, now] = fail_over_without_the_last(&set).await;
    let driver = driver(&set.url_at(&ports)).await;
    let holder = claim(LONG);
    take(&driver, &holder).await;
    leave_the_last(&set, &proxies).await;
    let mut sentinel = Raw::connect(&plain_url(&set.sentinels()[2])).await;
    let port = set.servers()[before].port().to_string();
    sentinel.ask::<()>(&["SENTINEL", "REMOVE", "main"]).await;
    let mut left = Raw::connect(&set.servers()[before].url()).await;
    left.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    sentinel.ask::<()>(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, "1"]).await;

    // It still is the primary of those who are connected.
    left.ask::<()>(&["FLUSHALL"]).await;
    assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    set.servers()[now].kill();
    assert_eq!(renewed(&driver, &holder).await, Renewal::Lost);
    take(&driver, &holder).await;
    assert_eq!(left.keys().await.len(), 1);
}

/// The last sentinel is down and learns nothing of it. Returns which server was the primary, and
/// which is.
async fn fail_over_without_the_last(set: &RedisSentinels) -> [usize; 2] {
    set.sentinels()[2].kill();
    let before = set.primary();
    let now = set.fail_over();
    assert_ne!(now, before);
    // While the old primary does not follow the new one, a sentinel that is behind demotes that.
    let mut old = Raw::connect(&set.servers()[before].url()).await;
    let port = set.servers()[now].port().to_string();
    old.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    [before, now]
}

/// The last sentinel is up again, alone, and has told whoever listens to it.
async fn leave_the_last(set: &RedisSentinels, proxies: &[Proxy]) {
    set.sentinels()[0].kill();
    set.sentinels()[1].kill();
    let asked = proxies[2].answers().hold("config-epoch");
    set.sentinels()[2].restart().unwrap();
    asked.caught().await;
    asked.go_on();
    // The connection for the question ends with the answer; the other one is for news.
    while proxies[2].open() > 1 {
        tokio::time::sleep(millis(1)).await;
    }
    // Whoever listens to it asks again only when what it said before was taken note of.
    let asked = proxies[2].answers().hold("config-epoch");
    proxies[2].reset().await;
    asked.caught().await;
    asked.go_on();
}

/// The answer to a renewal, after the connection broke: that may cost a first attempt.
async fn renewed(driver: &RedisDriver, holder: &Claim) -> Renewal {
    match driver.renew(holder).await {
        Err(error) if error.kind() == ErrorKind::Unknown => driver.renew(holder).await.unwrap(),
        renewal => renewal.unwrap(),
    }
}

async fn passwords(set: RedisSentinels) {
    for server in set.servers() {
        let mut raw = Raw::connect(&server.url()).await;
        raw.ask::<()>(&["CONFIG", "SET", "masterauth", "of servers"]).await;
        raw.ask::<()>(&["CONFIG", "SET", "requirepass", "of servers"]).await;
    }
    let mut sentinels = Vec::new();
    for sentinel in set.sentinels() {
        let mut raw = Raw::connect(&plain_url(sentinel)).await;
        raw.ask::<()>(&["SENTINEL", "SET", "main", "auth-pass", "of servers"]).await;
        let rights = documented::rights("lockkit:").pop().unwrap();
        let rights = rights.iter().map(String::as_str);
        raw.ask::<()>(&["ACL", "SETUSER", "me"].into_iter().chain(rights).collect::<Vec<_>>())
            .await;
        raw.ask::<()>(&["ACL", "SETUSER", "me", "resetpass", ">of sentinels"]).await;
        sentinels.push(raw);
    }
    let with = |server: &str, sentinel: &str| {
        let url = set.url().replace("://", &format!("://{server}"));
        format!("{url}?{sentinel}")
    };
    let good = with(":of%20servers@", "sentinel_user=me&sentinel_password=of%20sentinels");
    let driver = RedisDriver::connect(&good.parse().unwrap()).await.unwrap();
    let name = LockName::new(&Namespace::default(), NAME).unwrap();
    let claim = Claim::new(name, LONG);
    take(&driver, &claim).await;
    for raw in &mut sentinels {
        // The rights are enough to listen.
        while !raw.ask::<String>(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.contains("user=me") {}
    }
    let before = set.primary();
    assert_ne!(set.fail_over(), before);
    while let Err(error) = driver.release(&claim).await {
        assert!(error.kind().is_transient(), "{error}");
    }
    for raw in &mut sentinels {
        raw.ask::<()>(&["ACL", "SETUSER", "default", "resetpass", ">other"]).await;
    }
    for bad in [
        with(":of%20servers@", ""),
        with(":of%20servers@", "sentinel_password=of%20servers"),
        with("", "sentinel_user=me&sentinel_password=of%20sentinels"),
        with(":of%20sentinels@", "sentinel_user=me&sentinel_password=of%20sentinels"),
    ] {
        let error = RedisDriver::connect(&bad.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
        assert!(!format!("{error:?}").contains("of servers"), "{error:?}");
    }
}

async fn wrong(set: RedisSentinels) {
    let connect = async |url: String| {
        let error = RedisDriver::connect(&url.parse().unwrap()).await.unwrap_err();
        let text = causes(&error);
        assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
        text
    };
    let text = connect(url(&set).replace("/main", "/other")).await;
    assert!(text.contains("no sentinel knows `other`"), "{text}");
    let server = set.servers()[0].port();
    let text = connect(format!("redis+sentinel://127.0.0.1:{server}/main")).await;
    assert!(text.contains("single server, not a sentinel"), "{text}");
    let sentinel = set.sentinels()[0].port();
    let text = connect(format!("redis://127.0.0.1:{sentinel}")).await;
    assert!(text.contains("sentinel, not a single server"), "{text}");
}

/// The old primary lives, and takes itself for one for seconds more.
async fn planned(set: RedisSentinels) {
    let driver = driver(&url(&set)).await;
    let holder = claim(LONG);
    take(&driver, &holder).await;
    let before = set.primary();
    let mut old = Raw::connect(&set.servers()[before].url()).await;
    old.ask::<()>(&["SET", "mark", "1"]).await;
    replicated(&mut old, 2).await;
    let mut new = Raw::connect(&set.servers()[set.fail_over()].url()).await;
    // The news travel from one sentinel to the others in a tenth of a second.
    let scripts = async |raw: &mut Raw| -> u32 {
        let stats: String = raw.ask(&["INFO", "commandstats"]).await;
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line[22..].split(',').next().unwrap().parse().unwrap())
    };
    while scripts(&mut new).await == 0 {
        while let Err(error) = driver.renew(&holder).await {
            assert!(error.kind().is_transient(), "{error}");
        }
        let role: Vec<redis::Value> = old.ask(&["ROLE"]).await;
        let is_primary = role[0] == redis::Value::BulkString("master".into());
        assert!(is_primary, "it was left only when it was demoted");
    }
    driver.release(&holder).await.unwrap();
    assert_eq!(new.keys().await, ["mark"]);
}
