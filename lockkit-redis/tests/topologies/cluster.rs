//! A cluster, whose slots move and whose members die.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{Attempt, Change, Claim, Driver, ErrorKind, Inspect, Renewal};
use lockkit_core::{Error, Grade, LockName, Namespace};
use lockkit_redis::RedisDriver;
use lockkit_testkit::{REDIS, RedisCluster, Server, Unavailable, free_port, trial};

use crate::documented;
use crate::replicas::ask_of_many;
use crate::support::{
    LONG, NAME, Raw, causes, claim, driver, impatient_driver, kind, listen, millis, refused, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_member_that_refuses_to_tell_news_is_left_alone", patient, deaf),
        trial("a_member_that_takes_no_connection_is_asked_with_pauses", patient, full),
        trial("a_lock_is_kept_in_one_slot_and_its_news_too", patient, in_one_slot),
        trial("a_slot_that_moves_takes_its_holder_and_waiters_along", patient, moved),
        trial("a_slot_that_has_moved_by_half_is_waited_for", patient, half_moved),
        trial("a_script_that_loses_a_key_to_a_move_is_run_again", patient, lost_half_way),
        trial("a_slot_that_nobody_has_is_waited_for", patient, nobodys),
        trial("members_that_are_behind_end_no_request_where_the_slot_is", patient, behind),
        trial("members_that_send_on_to_one_another_are_asked_with_pauses", patient, sent_around),
        trial("who_is_sent_on_to_a_silent_member_may_try_again", patient, moved_to_silence),
        trial("a_killed_member_of_a_cluster_is_replaced", quick, killed),
        trial("a_killed_member_of_an_encrypted_cluster_is_replaced", quick_with_tls, killed),
        trial("an_encrypted_cluster_is_reached_by_tls_alone", patient_with_tls, encrypted),
        trial("a_member_that_is_silent_leaves_the_outcome_unknown", quick, silent),
        trial("locks_of_all_members_are_listed", patient, listed),
        trial("a_cluster_counts_replicas_of_the_member", patient, replicated),
        trial("who_has_no_turn_at_a_member_is_told_so", patient, without_turn),
        trial("documented_rights_are_enough_in_a_cluster", patient, rights),
        trial("a_host_that_knows_no_member_is_not_believed", patient, forgotten),
        trial("what_is_no_cluster_is_said", || REDIS.start(), wrong),
    ]
}

fn patient() -> Result<RedisCluster, Unavailable> {
    RedisCluster::start(Duration::from_secs(30))
}

fn quick() -> Result<RedisCluster, Unavailable> {
    RedisCluster::start(millis(1500))
}

fn quick_with_tls() -> Result<RedisCluster, Unavailable> {
    RedisCluster::start_with_tls(millis(1500))
}

fn patient_with_tls() -> Result<RedisCluster, Unavailable> {
    RedisCluster::start_with_tls(Duration::from_secs(30))
}

async fn raw(cluster: &RedisCluster, member: usize) -> Raw {
    Raw::connect(&cluster.members()[member].url()).await
}

/// The slot of the lock that all claims here are for.
async fn slot(cluster: &RedisCluster) -> u16 {
    raw(cluster, 0).await.ask(&["CLUSTER", "KEYSLOT", "{lockkit:362}"]).await
}

async fn handed_over(driver: &RedisDriver, waiter: &Claim) -> u64 {
    loop {
        match driver.changed(waiter).await {
            Change::Granted(grant) => break grant.fencing_token().unwrap().get(),
            Change::AskAgain => match driver.try_acquire(waiter).await {
                Ok(Attempt::Granted(grant)) => break grant.fencing_token().unwrap().get(),
                Ok(_) => (),
                Err(error) => assert!(error.kind().is_transient(), "{error}"),
            },
            change => panic!("{change:?}"),
        }
    }
}

/// Somebody holds the lock, and somebody waits and listens.
async fn awaited(cluster: &RedisCluster) -> (RedisDriver, [Claim; 2]) {
    let driver = driver(&cluster.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    (driver, [holder, waiter])
}

async fn in_one_slot(cluster: RedisCluster) {
    let (driver, [holder, waiter]) = awaited(&cluster).await;
    let slot = slot(&cluster).await;
    let owner = cluster.owner(slot);
    let mut raw_owner = raw(&cluster, owner).await;
    assert_eq!(raw_owner.keys().await.len(), 3);
    let channels: Vec<String> = raw_owner.ask(&["PUBSUB", "SHARDCHANNELS"]).await;
    assert!(matches!(&*channels, [it] if it.starts_with("{lockkit:362}:inbox:")), "{channels:?}");
    for member in 0..6 {
        let mut raw = raw(&cluster, member).await;
        // What every member hears would cost more the more there are.
        let all: Vec<String> = raw.ask(&["PUBSUB", "CHANNELS"]).await;
        assert!(all.iter().all(|channel| !channel.contains("lockkit")), "{all:?}");
    }
    driver.release(&holder).await.unwrap();
    assert!(matches!(driver.changed(&waiter).await, Change::Granted(_)));
    driver.release(&waiter).await.unwrap();
    while !raw_owner.ask::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]).await.is_empty() {}
}

async fn moved(cluster: RedisCluster) {
    let (one, other) = (driver(&cluster.url()).await, driver(&cluster.url()).await);
    let (holder, waiters) = (claim(LONG), [claim(LONG).fair(), claim(LONG).fair()]);
    let token = take(&one, &holder).await;
    // One who waits in no order, too: a question about keys of which one is nowhere has to wait.
    let unordered = claim(LONG).waiting();
    listen(&other, &waiters[0]).await;
    refused(&other, &waiters[1]).await;
    refused(&other, &unordered).await;
    let slot = slot(&cluster).await;
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    cluster.begin_to_move(slot, to);
    assert_ne!(one.renew(&holder).await.unwrap(), Renewal::Lost);
    let mut source = raw(&cluster, from).await;
    let keys = keys(&mut source, slot).await;
    assert_eq!(keys.len(), 5, "{keys:?}");
    for key in &keys {
        migrate(&mut source, key, &cluster, to).await;
        // Whichever of the two has the key of the lock by now.
        assert_ne!(one.renew(&holder).await.unwrap(), Renewal::Lost);
    }
    // All keys are there, though the slot is not yet: one more question leads there.
    refused(&other, &waiters[0]).await;
    cluster.end_move(slot, to);
    assert_ne!(one.renew(&holder).await.unwrap(), Renewal::Lost);
    one.release(&holder).await.unwrap();
    let second = handed_over(&other, &waiters[0]).await;
    assert!(second > token.get(), "{second} after {token}");
    // The subscription has followed: this one comes by push.
    listened_to(&cluster, to).await;
    refused(&other, &waiters[1]).await;
    other.release(&waiters[0]).await.unwrap();
    let granted = loop {
        match other.changed(&waiters[1]).await {
            // That the subscription stands may be told late.
            Change::AskAgain => (),
            change => break change,
        }
    };
    assert!(matches!(granted, Change::Granted(_)), "{granted:?}");
    other.release(&unordered).await.unwrap();
    assert_eq!(raw(&cluster, to).await.keys().await.len(), 1);
}

async fn keys(member: &mut Raw, slot: u16) -> Vec<String> {
    member.ask(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]).await
}

/// The name has a space in it, which the kit cannot send.
async fn migrate(source: &mut Raw, key: &str, cluster: &RedisCluster, to: usize) {
    let port = cluster.members()[to].port().to_string();
    source.ask::<()>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
}

/// Waits until somebody listens at that member.
async fn listened_to(cluster: &RedisCluster, member: usize) {
    let mut raw = raw(cluster, member).await;
    while raw.ask::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]).await.is_empty() {
        tokio::time::sleep(millis(5)).await;
    }
}

async fn half_moved(cluster: RedisCluster) {
    let driver = driver(&cluster.url()).await;
    let holder = claim(LONG);
    take(&driver, &holder).await;
    let slot = slot(&cluster).await;
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    cluster.begin_to_move(slot, to);
    // Some of the keys of the lock are missing here, and all are there: neither can carry it out.
    let mut source = raw(&cluster, from).await;
    let hasty = impatient_driver(&format!("{}?call_limit=100ms", cluster.url())).await;
    loop {
        match kind(hasty.release(&holder).await) {
            // The time was up just while it was asked again.
            (ErrorKind::Unknown, _) => (),
            (ErrorKind::Unreachable, text) if text.contains("no connection") => (),
            (kind, text) => {
                assert_eq!(kind, ErrorKind::Unreachable, "{text}");
                break assert!(text.contains("TryAgain"), "{text}");
            }
        }
    }
    let before = errors(&mut source, "TRYAGAIN").await;
    let releasing = driver.release(&holder);
    let moving = async {
        while errors(&mut source, "TRYAGAIN").await < before + 3 {}
        for key in keys(&mut source, slot).await {
            migrate(&mut source, &key, &cluster, to).await;
        }
        cluster.end_move(slot, to);
    };
    let (released, ()) = futures_util::join!(releasing, moving);
    assert_eq!(released.unwrap(), lockkit_core::driver::Release::Freed);
}

/// While a slot moves, what a script empties counts as moved, for that script as well.
async fn lost_half_way(cluster: RedisCluster) {
    let driver = driver(&cluster.url()).await;
    let slot = slot(&cluster).await;
    for asks in [true, false] {
        let (holder, dead, waiter) = (claim(LONG), claim(LONG).fair(), claim(LONG).waiting());
        let token = take(&driver, &holder).await;
        refused(&driver, &dead).await;
        refused(&driver, &waiter).await;
        let from = cluster.owner(slot);
        let to = (from + 1) % 3;
        let mut source = raw(&cluster, from).await;
        // The only place in order has run out.
        let [queue, deadlines] =
            ["queue", "deadlines"].map(|key| format!("{{lockkit:362}}:{key}:{NAME}"));
        let [place]: [String; 1] =
            source.ask::<Vec<String>>(&["ZRANGE", &queue, "0", "-1"]).await.try_into().unwrap();
        source.ask::<()>(&["ZADD", &deadlines, "1", &place]).await;
        cluster.begin_to_move(slot, to);
        let before = errors(&mut source, "TRYAGAIN").await;
        let asking = async {
            match asks {
                true => _ = refused(&driver, &waiter).await,
                false => _ = driver.release(&holder).await.unwrap(),
            }
        };
        let moving = async {
            // Whoever asks again finds that a key is missing.
            while errors(&mut source, "TRYAGAIN").await < before + 3 {}
            let keys = keys(&mut source, slot).await;
            assert!(keys.len() == 4 && !keys.contains(&queue), "{keys:?}");
            for key in &keys {
                migrate(&mut source, key, &cluster, to).await;
            }
            cluster.end_move(slot, to);
        };
        futures_util::join!(asking, moving);
        if asks {
            driver.release(&holder).await.unwrap();
        }
        let second = handed_over(&driver, &waiter).await;
        assert!(second > token.get(), "{second} after {token}");
        driver.release(&waiter).await.unwrap();
        assert_eq!(raw(&cluster, to).await.keys().await, Vec::<String>::new());
    }
}

/// As where a member was given up with its slots, and has come back.
async fn nobodys(cluster: RedisCluster) {
    let (driver, [holder, waiter]) = awaited(&cluster).await;
    let slot = slot(&cluster).await;
    let owner = cluster.owner(slot);
    let slot = slot.to_string();
    for member in (0..6).map(|at| (owner + at) % 6) {
        let mut raw = raw(&cluster, member).await;
        raw.ask::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
        raw.ask::<()>(&["CLUSTER", "DELSLOTS", &slot]).await;
    }
    let hasty = impatient_driver(&format!("{}?call_limit=100ms", cluster.url())).await;
    let (kind, text) = kind(hasty.renew(&holder).await);
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");

    // The one still asks whom it knows to have had it, the other has never heard of anybody.
    let other = self::driver(&cluster.url()).await;
    let renewing = join_all([&driver, &other].map(|driver| driver.renew(&holder)));
    let mending = async {
        let asked = asked_who_has_which_slot(&cluster, owner).await;
        while asked_who_has_which_slot(&cluster, owner).await < asked + 5 {}
        raw(&cluster, owner).await.ask::<()>(&["CLUSTER", "ADDSLOTS", &slot]).await;
    };
    let (renewed, ()) = futures_util::join!(renewing, mending);
    for renewed in renewed {
        assert_ne!(renewed.unwrap(), Renewal::Lost);
    }
    driver.release(&holder).await.unwrap();
    handed_over(&driver, &waiter).await;
}

/// How often a member has answered with an error of that code.
async fn errors(member: &mut Raw, code: &str) -> u32 {
    let stats: String = member.ask(&["INFO", "errorstats"]).await;
    let begins = format!("errorstat_{code}:count=");
    let count = stats.lines().find_map(|line| line.strip_prefix(&*begins));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// A member that has lost a slot says so before the others have heard of it.
async fn behind(cluster: RedisCluster) {
    // Each asks other members who has which slot.
    let urls = [(); 8].map(|()| cluster.url());
    let drivers = join_all(urls.iter().map(|url| driver(url))).await;
    let holder = claim(LONG);
    take(&drivers[0], &holder).await;
    let slot = slot(&cluster).await;
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    cluster.begin_to_move(slot, to);
    let (mut source, mut target) = (raw(&cluster, from).await, raw(&cluster, to).await);
    for key in keys(&mut source, slot).await {
        migrate(&mut source, &key, &cluster, to).await;
    }
    // Known to all by now, so that what is asked next is sent at once.
    join_all(drivers.iter().map(|driver| driver.renew(&holder))).await;
    let id: String = target.ask(&["CLUSTER", "MYID"]).await;
    let end = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id];
    let asked = asked_who_has_which_slot(&cluster, to).await;
    cluster.members()[to].stop().unwrap();
    source.ask::<()>(&end).await;

    let renewing = join_all(drivers.iter().map(|driver| driver.renew(&holder)));
    let telling = async {
        while asked_who_has_which_slot(&cluster, to).await < asked + drivers.len() {}
        cluster.members()[to].cont().unwrap();
        // Each of the two says now that the other has it, which is asked again with pauses.
        let (before, start) = (errors(&mut source, "MOVED").await, Instant::now());
        while errors(&mut source, "MOVED").await < before + 80 {}
        assert!(start.elapsed() >= millis(100), "{:?}", start.elapsed());
        target.ask::<()>(&end).await;
    };
    let (renewed, ()) = futures_util::join!(renewing, telling);
    for renewed in renewed {
        assert_ne!(renewed.unwrap(), Renewal::Lost);
    }
}

/// A move that only the source has heard of: it sends on who asks, and the target sends back.
async fn sent_around(cluster: RedisCluster) {
    let hasty = impatient_driver(&format!("{}?call_limit=1s", cluster.url())).await;
    let slot = slot(&cluster).await;
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    let mut source = raw(&cluster, from).await;
    let target: String = raw(&cluster, to).await.ask(&["CLUSTER", "MYID"]).await;
    let slot = slot.to_string();
    source.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await;
    let (wanted, mut is_told) = (claim(LONG), false);
    for _ in 0..3 {
        let before = errors(&mut source, "ASK").await;
        let (kind, text) = kind(hasty.try_acquire(&wanted).await);
        let asked = errors(&mut source, "ASK").await - before;
        // Once in two pauses, for a second.
        assert!(asked <= 60, "{asked}");
        assert!(kind.is_transient(), "{text}");
        // The time may be up just while it is asked again.
        is_told |= kind == ErrorKind::Unreachable && text.contains("on and on");
    }
    assert!(is_told, "why nobody has carried it out");
    source.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "STABLE"]).await;
    take(&hasty, &wanted).await;
}

/// How often the members but one were asked.
async fn asked_who_has_which_slot(cluster: &RedisCluster, except: usize) -> usize {
    let mut asked = 0;
    for member in (0..6).filter(|member| *member != except) {
        let stats: String = raw(cluster, member).await.ask(&["INFO", "commandstats"]).await;
        let calls = stats.lines().find_map(|it| it.strip_prefix("cmdstat_cluster|slots:calls="));
        let count = calls.and_then(|calls| calls.split(',').next());
        asked += count.map_or(0, |count| count.parse::<usize>().unwrap());
    }
    asked
}

/// Being sent on says nothing of how the cluster is set up.
async fn moved_to_silence(cluster: RedisCluster) {
    let driver = impatient_driver(&cluster.url()).await;
    let slot = slot(&cluster).await;
    let to = (cluster.owner(slot) + 1) % 3;
    cluster.begin_to_move(slot, to);
    cluster.members()[to].stop().unwrap();
    // Two limits end at the same time, that of the call and that of its last part.
    let claims: Vec<_> = (0..5000).map(|_| claim(millis(50))).collect();
    for attempt in join_all(claims.iter().map(|claim| driver.try_acquire(claim))).await {
        let error = attempt.unwrap_err();
        assert!(error.kind().is_transient(), "{error}");
    }
    cluster.members()[to].cont().unwrap();
}

async fn killed(cluster: RedisCluster) {
    let (one, other) = (driver(&cluster.url()).await, driver(&cluster.url()).await);
    let holder = claim(LONG);
    let token = take(&one, &holder).await.get();
    let waiters: Vec<Claim> = (0..5).map(|_| claim(LONG).fair()).collect();
    for waiter in &waiters {
        refused(&other, waiter).await;
    }
    let slot = slot(&cluster).await;
    let owner = cluster.owner(slot);
    let mut primary = raw(&cluster, owner).await;
    // A write of this connection, to be waited for.
    primary.ask::<()>(&["HSET", "{lockkit:362}:bucket", "layout", "1"]).await;
    while primary.ask::<u32>(&["WAIT", "1", "100"]).await < 1 {}
    cluster.members()[owner].kill();

    loop {
        match one.renew(&holder).await {
            Ok(renewed) => break assert_ne!(renewed, Renewal::Lost),
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    }
    assert_ne!(cluster.owner(slot), owner);
    for waiter in &waiters {
        while let Err(error) = other.try_acquire(waiter).await {
            assert!(error.kind().is_transient(), "{error}");
        }
    }
    let (mut holder, mut last, mut releasing) = (holder, token, &one);
    for waiter in waiters {
        releasing.release(&holder).await.unwrap();
        let granted = handed_over(&other, &waiter).await;
        assert!(granted > last, "{granted} after {last}");
        (holder, last, releasing) = (waiter, granted, &other);
    }
    other.release(&holder).await.unwrap();
}

/// The request is not sent to anybody else meanwhile.
async fn silent(cluster: RedisCluster) {
    let hasty = impatient_driver(&cluster.url()).await;
    let (warm, holder) = (claim(LONG), claim(millis(2500)));
    take(&hasty, &warm).await;
    hasty.release(&warm).await.unwrap();
    let owner = cluster.owner(slot(&cluster).await);
    cluster.members()[owner].stop().unwrap();
    let error = hasty.try_acquire(&holder).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{}", error.into_source());
    // The others replace it, and it comes too late with what it was asked.
    let token = loop {
        match hasty.try_acquire(&holder).await {
            Ok(Attempt::Granted(grant)) => break grant.fencing_token().unwrap(),
            Ok(refused) => panic!("{refused:?}"),
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    };
    cluster.members()[owner].cont().unwrap();
    match hasty.try_acquire(&holder).await.unwrap() {
        Attempt::Granted(grant) => assert_eq!(grant.fencing_token(), Some(token)),
        refused => panic!("{refused:?}"),
    }
}

async fn listed(cluster: RedisCluster) {
    let driver = driver(&cluster.url()).await;
    let name = |number: usize| LockName::new(&Namespace::default(), &number.to_string()).unwrap();
    for number in 0..30 {
        take(&driver, &Claim::new(name(number), LONG)).await;
    }
    let held = driver.inspect().unwrap().held(&Namespace::default()).await.unwrap();
    assert_eq!(held.len(), 30);
    for member in 0..3 {
        assert!(!raw(&cluster, member).await.keys().await.is_empty());
    }
    // Nothing that this driver asks leads to a member that has slots only since.
    cluster.free_replica(3);
    let slot = slot(&cluster).await;
    cluster.begin_to_move(slot, 3);
    cluster.end_move(slot, 3);
    assert_eq!(cluster.owner(slot), 3);
    let other = self::driver(&cluster.url()).await;
    take(&other, &claim(LONG)).await;
    let held = driver.inspect().unwrap().held(&Namespace::default()).await.unwrap();
    assert_eq!(held.len(), 31);
    assert!(driver.node().is_none());
}

/// Also where a member told of the others, and for news.
async fn encrypted(cluster: RedisCluster) {
    let driver = driver(&cluster.url()).await;
    let name = |number: usize| LockName::new(&Namespace::default(), &number.to_string()).unwrap();
    for number in 0..30 {
        take(&driver, &Claim::new(name(number), LONG)).await;
        refused(&driver, &Claim::new(name(number), LONG).fair()).await;
    }
    for member in 0..3 {
        let list: String = raw(&cluster, member).await.ask(&["CLIENT", "LIST"]).await;
        // Beside the replica, and who asks.
        let others = ["flags=S ", "cmd=client|list "];
        let is_ours = |line: &&str| !others.iter().any(|other| line.contains(other));
        let ours: Vec<_> = list.lines().filter(is_ours).collect();
        let port = format!(" laddr=127.0.0.1:{} ", cluster.port(member));
        assert!(ours.len() >= 2 && ours.iter().all(|line| line.contains(&port)), "{list}");
    }
    let stranger = cluster.url().split('?').next().unwrap().to_owned();
    let error = RedisDriver::connect(&stranger.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("UnknownIssuer"), "{}", causes(&error));
}

/// A user who may not subscribe, where each refusal would be a reason to ask who has the slot.
async fn deaf(cluster: RedisCluster) {
    let user = "ACL SETUSER deaf on >pw ~* resetchannels +@all";
    for member in 0..6 {
        let words: Vec<_> = user.split(' ').collect();
        raw(&cluster, member).await.ask::<()>(&words).await;
    }
    let driver = driver(&cluster.url().replace("://", "://deaf:pw@")).await;
    let holder = claim(LONG);
    take(&driver, &holder).await;
    refused(&driver, &claim(LONG).fair()).await;
    let mut owner = raw(&cluster, cluster.owner(slot(&cluster).await)).await;
    let mut refusals = async || -> u32 {
        let info: String = owner.ask(&["INFO", "commandstats"]).await;
        let line = info.lines().find(|line| line.starts_with("cmdstat_ssubscribe"));
        let count = line.and_then(|line| line.split("rejected_calls=").nth(1));
        count.map_or(0, |count| count.split(',').next().unwrap().parse().unwrap())
    };
    while refusals().await == 0 {}
    // Others who come to wait are no reason to ask again, nor is time, for half a minute.
    for number in 0..20 {
        let other = LockName::new(&Namespace::default(), &format!("{{{number}}}")).unwrap();
        take(&driver, &Claim::new(other.clone(), LONG)).await;
        refused(&driver, &Claim::new(other, LONG).fair()).await;
        tokio::time::sleep(millis(25)).await;
    }
    assert_eq!(refusals().await, 1);
}

/// One to which those are connected already who make requests.
async fn full(cluster: RedisCluster) {
    let driver = driver(&cluster.url()).await;
    take(&driver, &claim(LONG)).await;
    let mut owner = raw(&cluster, cluster.owner(slot(&cluster).await)).await;
    owner.ask::<()>(&["CONFIG", "SET", "maxclients", "1"]).await;
    refused(&driver, &claim(LONG).fair()).await;
    let mut attempts =
        async || -> u32 { owner.info("rejected_connections").await.parse().unwrap() };
    while attempts().await == 0 {}
    let before = attempts().await;
    // Whoever else comes to wait is no reason to try again before its time.
    let (mut came, mut now) = (0, before);
    while now < before + 10 {
        let other = LockName::new(&Namespace::default(), &came.to_string()).unwrap();
        take(&driver, &Claim::new(other.clone(), LONG)).await;
        refused(&driver, &Claim::new(other, LONG).fair()).await;
        (came, now) = (came + 1, attempts().await);
        tokio::time::sleep(millis(25)).await;
    }
    assert!(came > 15, "ten attempts for {came} who came");
}

async fn replicated(cluster: RedisCluster) {
    // All of it is waited for where one is missing.
    let url = |wanted: u32| {
        format!("{}?call_limit=10s&replicas={wanted}&replica_timeout=3s", cluster.url())
    };
    let driver = impatient_driver(&url(1)).await;
    match driver.try_acquire(&claim(LONG)).await.unwrap() {
        Attempt::Granted(grant) => assert_eq!(grant.acknowledged_by(), Some(1)),
        refused => panic!("{refused:?}"),
    }
    // There are three replicas, and one of the member that has the lock.
    let other = Claim::new(LockName::new(&Namespace::default(), "other").unwrap(), LONG);
    let error = impatient_driver(&url(2)).await.try_acquire(&other).await.unwrap_err();
    let source = error.into_source();
    let told: &lockkit_redis::TooFewReplicas = source.downcast_ref().unwrap();
    assert_eq!((told.wanted, told.acknowledged), (2, 1));
}

async fn without_turn(cluster: RedisCluster) {
    let owner = cluster.owner(slot(&cluster).await);
    // Each member has one.
    let url = format!("{}?replicas=2", cluster.url());
    let (kind, text) = ask_of_many(&url, &cluster.members()[owner]).await;
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    assert!(text.contains("no turn in time") && text.contains("16 requests"), "{text}");
}

async fn rights(cluster: RedisCluster) {
    let [.., least, more, _] = &*documented::rights("lockkit:") else { panic!("three blocks") };
    let give = async |words: &[String]| {
        for member in 0..6 {
            let words = words.iter().map(String::as_str);
            let command: Vec<_> = ["ACL", "SETUSER", "app"].into_iter().chain(words).collect();
            raw(&cluster, member).await.ask::<()>(&command).await;
        }
    };
    give(&["reset".into()]).await;
    give(least).await;
    let app = driver(&cluster.url().replace("://", "://app:pw@")).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&app, &holder).await;
    listen(&app, &waiter).await;
    assert_ne!(app.renew(&holder).await.unwrap(), Renewal::Lost);
    app.release(&holder).await.unwrap();
    // By push, so that both the right to publish and that to subscribe are there.
    assert!(matches!(app.changed(&waiter).await, Change::Granted(_)));
    let found = async || -> Vec<String> {
        let findings = app.diagnose(&Namespace::default()).await.unwrap();
        let rights = findings.iter().filter(|it| it.topic() == "rights");
        rights.map(|it| format!("{} {}", it.grade(), it.finding())).collect()
    };
    assert!(found().await.iter().any(|it| !it.starts_with("good")));
    give(more).await;
    let all_is_good = async || {
        let found = found().await;
        assert!(matches!(&*found, [it] if it.starts_with("good")), "{found:?}");
    };
    all_is_good().await;
    // Each member has users of its own.
    for (member, right, so) in [
        (1, "hset", "locks cannot be taken"),
        (2, "asking", "while a slot moves, its new owner denies requests"),
    ] {
        let mut raw = raw(&cluster, member).await;
        raw.ask::<()>(&["ACL", "SETUSER", "app", &format!("-{right}")]).await;
        let at = cluster.members()[member].addr();
        let expected = format!("error {at}: user `app` lacks +{right},");
        let found = found().await;
        let is_it = |it: &str| it.starts_with(&expected) && it.ends_with(so);
        assert!(matches!(&*found, [it] if is_it(it)), "{found:?}");
        raw.ask::<()>(&["ACL", "SETUSER", "app", &format!("+{right}")]).await;
        all_is_good().await;
    }
    let status = app.look(claim(LONG).name()).await.unwrap();
    assert_eq!(status.listeners(), Some(0));
    app.release(&waiter).await.unwrap();
}

async fn wrong(server: Server) {
    let url = server.url().replace("redis:", "redis+cluster:");
    let error = RedisDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    let text = causes(&error);
    assert!(text.contains("single server, not a node of a cluster"), "{text}");
    server.kill();
    let error = RedisDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
}

/// As a member that came back without its configuration: it has nothing to do, and answers first.
async fn forgotten(cluster: RedisCluster) {
    let bus = free_port().unwrap().to_string();
    let forgotten =
        REDIS.start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus]).unwrap();
    let host = forgotten.addr();
    for _ in 0..8 {
        let driver =
            driver(&format!("redis+cluster://{host},{}", cluster.members()[0].addr())).await;
        for _ in 0..3 {
            let found = driver.diagnose(&Namespace::default()).await.unwrap();
            assert!(found.iter().all(|it| it.grade() < Grade::Error), "{found:#?}");
            let claim = claim(LONG);
            take(&driver, &claim).await;
            driver.release(&claim).await.unwrap();
        }
    }
}
