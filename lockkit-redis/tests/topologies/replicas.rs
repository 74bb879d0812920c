//! Replicas that are waited for.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, ErrorKind, Inspect, Renewal,
};
use lockkit_core::{Error, Grade, LockName, Locker, Namespace};
use lockkit_redis::{RedisDriver, TooFewReplicas};
use lockkit_testkit::{Proxy, REDIS, RedisSentinels, Server, Unavailable, trial};
use tokio::select;
use tokio::time::timeout;

use crate::sentinel::cut_replication;
use crate::support::{LONG, Raw, claim, impatient_driver, kind, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_grant_tells_how_many_replicas_acknowledged", primary_and_two, counted),
        trial("too_few_replicas_are_an_error_and_the_claim_may_ask_again", primary_and_two, cut),
        trial("a_renewal_that_is_not_replicated_is_none", primary_and_two, renewed),
        trial("a_hand_over_counts_when_replicas_have_it", primary_and_two, handed_over),
        trial("who_waits_for_replicas_keeps_nobody_waiting", primary_and_two, apart),
        trial("who_has_no_turn_to_wait_is_told_so", || REDIS.start(), without_turn),
        trial("a_wait_whose_connection_breaks_costs_no_other", primary_and_two, broken),
        trial("without_the_right_to_wait_it_is_denied", primary_and_two, denied),
        trial("a_server_that_cannot_wait_is_misconfigured", without_wait, misconfigured),
        trial("what_may_not_be_waited_for_and_is_not_given_back", primary_and_two, cut_off),
        trial("a_failover_forgets_no_grant_that_replicas_had", sentinels, kept),
        trial("a_grant_is_of_the_run_that_is_told", two_primaries, another_run),
    ]
}

fn primary_and_two() -> Result<Vec<Server>, Unavailable> {
    let primary = REDIS.start_with(&["--repl-diskless-sync-delay", "0"])?;
    let port = primary.port().to_string();
    let replica = || REDIS.start_with(&["--replicaof", "127.0.0.1", &port]);
    Ok(vec![replica()?, replica()?, primary])
}

/// As some managed servers are.
fn without_wait() -> Result<Server, Unavailable> {
    REDIS.start_with(&["--rename-command", "WAIT", ""])
}

fn two_primaries() -> Result<[Vec<Server>; 2], Unavailable> {
    Ok([primary_and_two()?, primary_and_two()?])
}

fn sentinels() -> Result<RedisSentinels, Unavailable> {
    RedisSentinels::start(millis(1000))
}

/// A driver that waits for two replicas, which follow, and what can cut them off.
async fn start(servers: &[Server], parameters: &str) -> (RedisDriver, Raw, Proxy) {
    let [replicas @ .., primary] = servers else { panic!("{servers:?}") };
    let proxy = Proxy::start(primary.addr()).await;
    for replica in replicas {
        let port = proxy.addr().port().to_string();
        let mut replica = Raw::connect(&replica.url()).await;
        replica.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    }
    let mut raw = Raw::connect(&primary.url()).await;
    raw.ask::<()>(&["SET", "mark", "1"]).await;
    while raw.ask::<u32>(&["WAIT", "2", "100"]).await < 2 {}
    raw.ask::<()>(&["DEL", "mark"]).await;
    (waiting_driver(servers, parameters).await, raw, proxy)
}

async fn waiting_driver(servers: &[Server], parameters: &str) -> RedisDriver {
    let [.., primary] = servers else { panic!("{servers:?}") };
    let url = format!("{}?call_limit=10s&replicas=2{parameters}", primary.url());
    impatient_driver(&url).await
}

fn too_few(error: DriverError) -> (ErrorKind, TooFewReplicas) {
    let (kind, source) = (error.kind(), error.into_source());
    (kind, *source.downcast_ref().unwrap_or_else(|| panic!("{kind}: {source}")))
}

async fn counted(servers: Vec<Server>) {
    let (driver, _raw, _proxy) = start(&servers, "").await;
    let locker = Locker::new(driver);
    let guard = locker.lock("a").unwrap().acquire().await.unwrap();
    assert_eq!(guard.acknowledged_by(), Some(2));
    guard.release().await.unwrap();
    let plain = Locker::new(impatient_driver(&servers[2].url()).await);
    let guard = plain.lock("a").unwrap().acquire().await.unwrap();
    assert_eq!(guard.acknowledged_by(), None);
}

async fn cut(servers: Vec<Server>) {
    let (patient, mut raw, proxy) = start(&servers, "").await;
    let hasty = waiting_driver(&servers, "&replica_timeout=100ms").await;
    take(&patient, &Claim::new(LockName::new(&Namespace::default(), "b").unwrap(), LONG)).await;
    proxy.answers().swallow();
    let (kind, told) = too_few(hasty.try_acquire(&claim(LONG)).await.unwrap_err());
    // It was not taken, or not for long.
    assert_eq!(kind, ErrorKind::Unreachable);
    assert_eq!((told.wanted, told.acknowledged, told.timeout), (2, 0, millis(100)));
    assert_eq!(raw.keys().await.len(), 1, "the one that was taken before");
    // A release from the driver could come late, and end what a claim is granted that asks again.
    let waiting = claim(LONG).waiting();
    assert_eq!(too_few(hasty.try_acquire(&waiting).await.unwrap_err()).0, ErrorKind::Unknown);
    assert_eq!(raw.keys().await.len(), 2);
    hasty.release(&waiting).await.unwrap();

    let locker = Locker::new(hasty);
    let error = locker.lock("a").unwrap().try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |it| it.source());
    let told = causes.filter_map(|cause| cause.downcast_ref::<TooFewReplicas>()).next();
    assert_eq!(told.map(|told| told.acknowledged), Some(0), "{error:?}");
    assert_eq!(raw.keys().await.len(), 1);

    // The network is back, and with it the replicas.
    proxy.answers().pass();
    proxy.reset().await;
    let locker = Locker::new(patient);
    let guard = locker.lock("a").unwrap().acquire().await.unwrap();
    assert_eq!(guard.acknowledged_by(), Some(2));
}

async fn renewed(servers: Vec<Server>) {
    let (patient, _raw, proxy) = start(&servers, "").await;
    let hasty = waiting_driver(&servers, "&replica_timeout=100ms").await;
    let holder = claim(LONG);
    take(&patient, &holder).await;
    proxy.answers().swallow();
    let (kind, told) = too_few(hasty.renew(&holder).await.unwrap_err());
    assert_eq!((kind, told.acknowledged), (ErrorKind::Unknown, 0));
    proxy.answers().pass();
    proxy.reset().await;
    while let Err(error) = patient.renew(&holder).await {
        assert_eq!(too_few(error).0, ErrorKind::Unknown);
    }
    patient.release(&holder).await.unwrap();
    assert_eq!(patient.renew(&holder).await.unwrap(), Renewal::Lost);
}

async fn handed_over(servers: Vec<Server>) {
    let (driver, _raw, _proxy) = start(&servers, "").await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    refused(&driver, &waiter).await;
    driver.release(&holder).await.unwrap();
    // The lock is the waiter's, and told as a reason to ask.
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    match driver.try_acquire(&waiter).await.unwrap() {
        Attempt::Granted(grant) => assert_eq!(grant.acknowledged_by(), Some(2)),
        other => panic!("{other:?}"),
    }
}

/// More at once than there are connections for it, all of which wait.
async fn apart(servers: Vec<Server>) {
    const SOON: Duration = Duration::from_secs(20);
    let (driver, mut raw, proxy) = start(&servers, "&replica_timeout=30s").await;
    // A server that does not know the script waits before it says so.
    let warm = claim(LONG);
    take(&driver, &warm).await;
    driver.release(&warm).await.unwrap();
    proxy.answers().swallow();
    let claims = (0..20).map(|number| {
        Claim::new(LockName::new(&Namespace::default(), &number.to_string()).unwrap(), LONG)
    });
    let claims: Vec<_> = claims.collect();
    let mut asking = pin!(join_all(claims.iter().map(|claim| driver.try_acquire(claim))));
    let others = async {
        while raw.keys().await.len() < 16 {}
        // What waits for nobody goes its way meanwhile.
        driver.release(&claim(LONG)).await.unwrap();
        clients(&mut raw).await.len()
    };
    let connections = select! {
        answers = &mut asking => panic!("they have not waited: {answers:?}"),
        passed = timeout(SOON, others) => passed.expect("it waits with the others"),
    };
    assert_eq!(connections, 18, "one of them is ours, and one for what waits for nobody");
    // The waits end as they would in half a minute.
    let answers = select! {
        answers = asking => answers,
        () = async { loop { end_waits(&mut raw).await; } } => unreachable!(),
    };
    for answer in answers {
        assert_eq!(too_few(answer.unwrap_err()).0, ErrorKind::Unreachable);
    }
    assert_eq!(raw.keys().await, Vec::<String>::new());
}

async fn without_turn(server: Server) {
    let url = format!("{}?replicas=1", server.url());
    let (kind, text) = ask_of_many(&url, &server).await;
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    assert!(text.contains("no turn in time") && text.contains("16 requests"), "{text}");
}

/// What becomes of one more ask, in a hurry, when as many wait for replicas as may. No replica
/// acknowledges anything.
pub(crate) async fn ask_of_many(url: &str, primary: &Server) -> (ErrorKind, String) {
    let driver = impatient_driver(url).await;
    let mut raw = Raw::connect(&primary.url()).await;
    let claims = [(); 16].map(|()| claim(LONG));
    let asking = join_all(claims.iter().map(|claim| driver.try_acquire(claim)));
    let one_more = async {
        let mut clients = async || raw.ask::<String>(&["CLIENT", "LIST", "TYPE", "normal"]).await;
        while clients().await.matches(" flags=b ").count() < 16 {}
        // So that none of them is answered before.
        primary.stop().unwrap();
        let answer = driver.try_acquire(&claim(millis(200))).await;
        primary.cont().unwrap();
        kind(answer)
    };
    select! {
        answers = asking => panic!("they have not waited: {answers:?}"),
        told = one_more => told,
    }
}

/// Which connections of clients there are.
async fn clients(raw: &mut Raw) -> Vec<String> {
    let clients: String = raw.ask(&["CLIENT", "LIST", "TYPE", "normal"]).await;
    let id = |line: &str| line.strip_prefix("id=")?.split(' ').next().map(String::from);
    clients.lines().filter_map(id).collect()
}

/// As if the time of those who wait for replicas were over.
async fn end_waits(raw: &mut Raw) {
    for client in clients(raw).await {
        raw.ask::<u32>(&["CLIENT", "UNBLOCK", &client]).await;
    }
}

async fn broken(servers: Vec<Server>) {
    let (driver, mut raw, proxy) = start(&servers, "&replica_timeout=30s").await;
    // A server that does not know the script waits before it says so.
    let warm = claim(LONG);
    take(&driver, &warm).await;
    driver.release(&warm).await.unwrap();
    proxy.answers().swallow();
    let before = clients(&mut raw).await;
    let claim = claim(LONG);
    let cutting = async {
        let waiting = loop {
            let all: String = raw.ask(&["CLIENT", "LIST", "TYPE", "normal"]).await;
            match all.lines().find(|line| line.contains(" flags=b ")) {
                Some(line) => break line.split(['=', ' ']).nth(1).unwrap().to_owned(),
                None => continue,
            }
        };
        raw.ask::<u32>(&["CLIENT", "KILL", "ID", &waiting]).await;
        waiting
    };
    let (answer, cut) = tokio::join!(driver.try_acquire(&claim), cutting);
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unknown);
    driver.release(&claim).await.unwrap();
    let mut left = before;
    left.retain(|id| *id != cut);
    assert_eq!(clients(&mut raw).await, left);
}

async fn denied(servers: Vec<Server>) {
    let (_, mut raw, _proxy) = start(&servers, "").await;
    raw.ask::<()>(&["ACL", "SETUSER", "me", "on", ">pw", "~*", "&*", "+@all", "-wait"]).await;
    let url = servers[2].url().replace("redis://", "redis://me:pw@");
    let driver = impatient_driver(&format!("{url}?replicas=2")).await;
    let error = driver.try_acquire(&claim(LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{}", error.into_source());
    assert_eq!(raw.keys().await, Vec::<String>::new());
    let found = complaints(&driver).await;
    assert!(found.iter().any(|it| it.contains("user `me` lacks +wait,")), "{found:?}");
}

/// What a diagnosis says of missing rights.
async fn complaints(driver: &RedisDriver) -> Vec<String> {
    let findings = driver.diagnose(&Namespace::default()).await.unwrap();
    let bad = findings.iter().filter(|it| it.topic() == "rights" && it.grade() == Grade::Error);
    bad.map(|it| it.finding().to_owned()).collect()
}

async fn misconfigured(server: Server) {
    let driver = impatient_driver(&format!("{}?replicas=1", server.url())).await;
    let mut raw = Raw::connect(&server.url()).await;
    for claim in [claim(LONG), claim(LONG).waiting()] {
        let (kind, text) = kind(driver.try_acquire(&claim).await);
        assert_eq!(kind, ErrorKind::Misconfigured, "{text}");
        assert_eq!(raw.keys().await, Vec::<String>::new());
    }
    let findings = driver.diagnose(&Namespace::default()).await.unwrap();
    let found: Vec<_> = findings.iter().filter(|it| it.topic() == "rights").collect();
    let [found] = *found else { panic!("{found:?}") };
    assert_eq!(found.grade(), Grade::Error);
    assert_eq!(found.finding(), "the server does not know WAIT: locks cannot be taken or kept");
    let advice = found.advice().unwrap();
    assert!(advice.starts_with("leave out `replicas`, or use a server"), "{advice}");
}

/// Nor may it be given back: it is not known what is left.
async fn cut_off(servers: Vec<Server>) {
    let (_, mut raw, _proxy) = start(&servers, "").await;
    raw.ask::<()>(&["ACL", "SETUSER", "me", "on", ">pw", "~*", "&*", "+@all", "-wait"]).await;
    let proxy = Proxy::start(servers[2].addr()).await;
    let url = servers[2].url_at(proxy.addr()).replace("redis://", "redis://me:pw@");
    let driver = impatient_driver(&format!("{url}?replicas=2&call_limit=500ms")).await;
    // Which is given back, and teaches the server the scripts.
    let first = driver.try_acquire(&claim(LONG)).await.unwrap_err();
    assert_eq!(first.kind(), ErrorKind::Denied, "{}", first.into_source());
    let waiter = claim(LONG).waiting();
    let refusal = proxy.answers().hold("NOPERM");
    let cutting = async {
        refusal.caught().await;
        proxy.requests().swallow();
        refusal.go_on();
    };
    let (answer, ()) = tokio::join!(driver.try_acquire(&waiter), cutting);
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(raw.keys().await.len(), 1, "the lock is held");
    proxy.requests().pass();
    // So the engine asks again, under the same owner.
    let lasting = loop {
        let error = driver.try_acquire(&waiter).await.unwrap_err();
        if !error.kind().is_transient() {
            break error;
        }
    };
    assert_eq!(lasting.kind(), ErrorKind::Denied, "{}", lasting.into_source());
    assert_eq!(raw.keys().await, Vec::<String>::new());
}

/// The counterpart of `a_failover_that_lost_the_grant_leaves_two_holders`.
async fn kept(set: RedisSentinels) {
    let url = |wanted: &str| format!("{}?call_limit=10s&replica_timeout=1s{wanted}", set.url());
    let one = impatient_driver(&url("&replicas=2")).await;
    let other = impatient_driver(&url("&replicas=1")).await;
    let holder = claim(LONG);
    let token = take(&one, &holder).await;
    let cut = cut_replication(&set).await;
    // While no replica hears of it, nobody is granted anything.
    let late = Claim::new(LockName::new(&Namespace::default(), "late").unwrap(), LONG);
    let (kind, told) = too_few(one.try_acquire(&late).await.unwrap_err());
    assert_eq!((kind, told.acknowledged), (ErrorKind::Unreachable, 0));
    set.servers()[set.primary()].kill();
    drop(cut);
    // The next primary knows the hold that replicas had.
    let rival = claim(LONG);
    loop {
        match other.try_acquire(&rival).await {
            Ok(Attempt::Taken(_)) => break,
            Ok(other) => panic!("{token} is held: {other:?}"),
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    }
    // One replica is left. The first driver wants two, and no longer gets what it wants.
    loop {
        match one.renew(&holder).await {
            Ok(renewed) => panic!("{renewed:?}"),
            Err(error) => {
                assert!(error.kind().is_transient(), "{error}");
                if let Some(told) = error.into_source().downcast_ref::<TooFewReplicas>() {
                    break assert_eq!(told.wanted, 2);
                }
            }
        }
    }
    one.release(&holder).await.unwrap();
    loop {
        match other.try_acquire(&rival).await {
            Ok(Attempt::Granted(grant)) => {
                assert_eq!(grant.acknowledged_by(), Some(1));
                break assert!(grant.fencing_token().unwrap() > token);
            }
            Ok(refused) => panic!("{refused:?}"),
            // The other replica has to find the new primary first.
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    }
}

/// As where a server was restarted, and the connection by which it told of its run is half open.
async fn another_run([one, other]: [Vec<Server>; 2]) {
    let proxy = Proxy::start(one[2].addr()).await;
    let url = format!("{}?call_limit=10s&replicas=2", one[2].url_at(proxy.addr()));
    let driver = impatient_driver(&url).await;
    let node = driver.node().unwrap();
    let before = node.run(LONG).await.unwrap();
    proxy.switch_upstream(other[2].addr());
    let claim = claim(LONG);
    while let Err(error) = driver.try_acquire(&claim).await {
        assert!(error.kind().is_transient(), "{error}");
    }
    let mut raw = Raw::connect(&other[2].url()).await;
    assert_eq!(raw.keys().await.len(), 1, "it was granted there");
    assert_ne!(node.run(LONG).await.unwrap().id(), before.id());
}
