//! How many requests many waiters cost the server.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use libtest_mimic::Trial;
use lockkit_core::driver::{Claim, Driver};
use lockkit_core::{Lease, LockName, Locker, Namespace};
use lockkit_redis::RedisDriver;
use lockkit_testkit::{REDIS, Server, trial};
use tokio::time::{Instant, sleep};

use crate::support::{LONG, Raw, driver, millis, refused, take};

/// How many wait for one lock; `LOCKKIT_TEST_WAITERS` has another number.
const WAITERS: usize = 1_000;
/// How many lockers, with connections of their own, they belong to where they are apart: as many as
/// a machine can have that allows 256 open files; `LOCKKIT_TEST_LOCKERS` has another number.
const LOCKERS: usize = 50;
const TTL: Duration = Duration::from_secs(30);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("waiters_of_one_locker_cost_few_requests", || REDIS.start(), of_one_locker),
        trial("waiters_of_many_lockers_cost_few_requests", || REDIS.start(), of_many_lockers),
        trial("fair_waiters_of_many_lockers_cost_few_requests", || REDIS.start(), fair),
        trial("waiters_for_many_locks_cost_few_requests", || REDIS.start(), for_many_locks),
        trial("the_pace_goes_by_how_many_wait_by_now", || REDIS.start(), pace),
    ]
}

async fn of_one_locker(server: Server) {
    cost(&server, 1, false).await;
}

async fn of_many_lockers(server: Server) {
    cost(&server, number("LOCKKIT_TEST_LOCKERS", LOCKERS), false).await;
}

async fn fair(server: Server) {
    cost(&server, number("LOCKKIT_TEST_LOCKERS", LOCKERS), true).await;
}

/// At most four requests for each grant, beside one for each waiter in a third of its lease.
async fn cost(server: &Server, lockers: usize, is_fair: bool) {
    let waiters = number("LOCKKIT_TEST_WAITERS", WAITERS);
    let url = format!("{}?call_limit=10s", server.url()).parse().unwrap();
    let connect = async || -> lockkit_core::Result<_> {
        Locker::builder(RedisDriver::connect(&url).await?).ttl(TTL).build()
    };
    let lockers = try_join_all((0..lockers).map(|_| connect())).await.unwrap();
    let holder = connect().await.unwrap().lock("hot").unwrap().acquire().await.unwrap();
    let mut raw = Raw::connect(&server.url()).await;
    let sections: Vec<_> = (0..waiters)
        .map(|number| {
            let lock = lockers[number % lockers.len()].lock("hot").unwrap();
            tokio::spawn(async move {
                // Twice, so that somebody who has just released comes back.
                for _ in 0..2 {
                    let guard = match is_fair {
                        true => lock.clone().fair().unwrap().acquire().await.unwrap(),
                        false => lock.acquire().await.unwrap(),
                    };
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    // Those who ask at the server are there.
    let asking = if is_fair { waiters } else { lockers.len() };
    let deadlines = "*:deadlines:hot";
    loop {
        let keys: Vec<String> = raw.ask(&["KEYS", deadlines]).await;
        sleep(Duration::from_millis(5)).await;
        let Some(key) = keys.first() else { continue };
        if raw.ask::<usize>(&["ZCARD", key]).await >= asking {
            break;
        }
    }
    let (before, start) = (requests(&mut raw).await, Instant::now());
    holder.release().await.unwrap();
    join_all(sections).await.into_iter().for_each(|ended| ended.unwrap());
    let (sent, grants) = (requests(&mut raw).await - before, 2 * waiters);
    let thirds = start.elapsed().as_secs_f64() / (TTL / 3).as_secs_f64();
    // They ask at 80 to 100 % of two fifths, so as not to do it in step.
    let allowed = 4.0 * grants as f64 + waiters as f64 * thirds / 0.96;
    let each = sent as f64 / grants as f64;
    assert!(
        sent as f64 <= allowed,
        "{each} requests for each of {grants} grants, in {thirds} thirds"
    );
}

/// A process that waits for many locks, one waiter each.
async fn for_many_locks(server: Server) {
    const LOCKS: usize = 500;
    const WHILE: Duration = Duration::from_secs(6);
    let url = format!("{}?call_limit=10s", server.url()).parse().unwrap();
    let connect = async || -> lockkit_core::Result<_> {
        let lease = Lease::new(Duration::from_secs(600));
        Locker::builder(RedisDriver::connect(&url).await?).lease(lease).build()
    };
    let [holding, waiting] = [connect().await.unwrap(), connect().await.unwrap()];
    let acquire = |locker: &Locker| {
        let locks: Vec<_> =
            (0..LOCKS).map(|number| locker.lock(&number.to_string()).unwrap()).collect();
        locks.into_iter().map(|lock| tokio::spawn(async move { lock.acquire().await }))
    };
    let held = join_all(acquire(&holding)).await;
    let mut raw = Raw::connect(&server.url()).await;
    let waiters: Vec<_> = acquire(&waiting).collect();
    let refused = requests(&mut raw).await + LOCKS as u64;
    while requests(&mut raw).await < refused {
        sleep(Duration::from_millis(5)).await;
    }
    let before = requests(&mut raw).await;
    sleep(WHILE).await;
    let sent = requests(&mut raw).await - before;
    // Once more when their news have come to stand, and those who came first after a shorter pause.
    assert!(sent <= 4 * LOCKS as u64, "{sent} requests");
    // They hear of a release all the same.
    drop(held);
    join_all(waiters).await.into_iter().for_each(|ended| drop(ended.unwrap().unwrap()));
}

async fn pace(server: Server) {
    let (near, far) = (driver(&server.url()).await, driver(&server.url()).await);
    let claims_of = |number: usize| {
        let name = LockName::new(&Namespace::default(), &number.to_string()).unwrap();
        [Claim::new(name.clone(), LONG), Claim::new(name, LONG).waiting()]
    };
    let claims: Vec<_> = (0..400).map(claims_of).collect();
    let mut paces = Vec::new();
    for [holder, waiter] in &claims {
        take(&far, holder).await;
        paces.push(refused(&near, waiter).await.asks_within().unwrap().as_secs());
    }
    assert_eq!([paces[0], paces[198], paces[199], paces[399]], [1, 1, 2, 4]);
    // Another process has few.
    let (other, [holder, waiter]) = (driver(&server.url()).await, claims_of(400));
    take(&far, &holder).await;
    assert_eq!(refused(&other, &waiter).await.asks_within(), Some(millis(1_000)));
    // And who has gone counts no more.
    for [_, waiter] in &claims[1..] {
        near.release(waiter).await.unwrap();
    }
    assert_eq!(refused(&near, &claims[0][1]).await.asks_within(), Some(millis(1_000)));
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// How many requests the server has had from locks: scripts, and subscriptions.
async fn requests(raw: &mut Raw) -> u64 {
    let info: String = raw.ask(&["INFO", "commandstats"]).await;
    let calls = |verb: &str| -> u64 {
        let line = info.lines().find_map(|it| it.strip_prefix(&format!("cmdstat_{verb}:calls=")));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    ["evalsha", "eval", "subscribe", "unsubscribe"].map(calls).iter().sum()
}
