//! What lockkit costs over etcd itself: `cargo bench -p lockkit-etcd [-- PART...]`, the parts being
//! `pairs`, `hand-overs` and `contended`.
//!
//! Client and server share one CPU, because their placement alone changes a round trip fivefold.
//! Each figure is a ratio of two things measured in the same run, alternately, each on the same
//! client library: lockkit, and exactly the requests that it sends, sent by hand.
#![expect(clippy::print_stdout, reason = "a benchmark reports")]

use std::error::Error;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, LockOptions, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp, WatchOptions,
};
use lockkit_core::driver::{Claim, Driver as _, OwnerId};
use lockkit_core::{BackendUrl, Locker};
use lockkit_etcd::EtcdDriver;
use lockkit_testkit::ETCD;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 9;
const PAIRS: usize = 500;
const HAND_OVERS: usize = 60;
const CLIENTS: usize = 8;
const CONTENDED: Duration = Duration::from_secs(3);

fn main() -> Result<()> {
    share_one_cpu()?;
    let server = ETCD.start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let url: BackendUrl = server.url().parse()?;
        let raw = Raw::connect(server.port()).await?;
        if is_wanted("pairs") {
            Box::pin(pairs(&raw, &url)).await?;
        }
        if is_wanted("hand-overs") {
            Box::pin(hand_overs(&raw, &url)).await?;
        }
        if is_wanted("contended") {
            Box::pin(contended(server.port(), &url)).await?;
        }
        Ok(())
    })
}

fn is_wanted(part: &str) -> bool {
    let mut parts = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    parts.peek().is_none() || parts.any(|word| word == part)
}

/// Servers that are started from here on inherit it.
fn share_one_cpu() -> Result<()> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| allowed.is_set(cpu)).ok_or("no CPU")?;
    let mut one = CpuSet::new();
    one.set(last);
    Ok(sched_setaffinity(None, &one)?)
}

/// Acquire and release, nobody else about.
async fn pairs(raw: &Raw, url: &BackendUrl) -> Result<()> {
    let driver = EtcdDriver::connect(url).await?;
    // A queue for each of them: etcd visits deleted keys as well until its history is compacted.
    let locker = Locker::new(EtcdDriver::connect(url).await?);
    let (lock, other) = (locker.lock("pair")?, locker.lock("pair-of-driver")?);
    let (mut by_hand, mut by_driver, mut by_lockkit) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        raw.compact().await?;
        let [mut hand, mut through_driver, mut lockkit] =
            [(); 3].map(|()| Vec::with_capacity(PAIRS));
        for _ in 0..PAIRS {
            let start = Instant::now();
            let key = format!("by-hand/pair/{}", OwnerId::random());
            let created = raw.enter("by-hand/pair/", &key).await?;
            raw.leave(&key, created).await?;
            hand.push(start.elapsed());

            let start = Instant::now();
            let claim = Claim::new(other.name().clone(), Duration::from_secs(30)).waiting();
            driver.try_acquire(&claim).await?;
            driver.release(&claim).await?;
            through_driver.push(start.elapsed());

            let start = Instant::now();
            lock.acquire().await?.release().await?;
            lockkit.push(start.elapsed());
        }
        // The first round warms up.
        if round > 0 {
            let hand = median(&mut hand);
            by_hand.push(hand);
            by_driver.push(ratio(median(&mut through_driver), hand));
            by_lockkit.push(ratio(median(&mut lockkit), hand));
        }
    }
    println!(
        "uncontended pair, p50: by hand {:?}; driver {} of it; lockkit {} of it",
        median(&mut by_hand),
        spread(&mut by_driver),
        spread(&mut by_lockkit)
    );
    Ok(())
}

/// From the call of release to the guard of a waiter on another connection.
async fn hand_overs(raw: &Raw, url: &BackendUrl) -> Result<()> {
    let (one, other) = (EtcdDriver::connect(url).await?, EtcdDriver::connect(url).await?);
    let holder = Locker::new(one).lock("hand-over")?;
    let waiter = Locker::new(other).lock("hand-over")?;
    let (mut by_hand, mut by_lockkit) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        raw.compact().await?;
        let [mut hand, mut lockkit] = [(); 2].map(|()| Vec::with_capacity(HAND_OVERS));
        for _ in 0..HAND_OVERS {
            let key = format!("by-hand/hand-over/{}", OwnerId::random());
            let created = raw.enter("by-hand/hand-over/", &key).await?;
            let mut client = raw.client.clone();
            let mut news = client.watch(&*key, Some(WatchOptions::new())).await?;
            let waiting = tokio::spawn(async move {
                while let Some(message) = news.message().await? {
                    let deletes =
                        |event: &etcd_client::Event| event.event_type() == EventType::Delete;
                    if message.events().iter().any(deletes) {
                        return Result::Ok(Instant::now());
                    }
                }
                Err("the stream ended".into())
            });
            tokio::time::sleep(SETTLE).await;
            let start = Instant::now();
            raw.leave(&key, created).await?;
            hand.push(waiting.await?? - start);

            let guard = holder.acquire().await?;
            let waiting = tokio::spawn({
                let waiter = waiter.clone();
                async move { waiter.acquire().await.map(|guard| (guard, Instant::now())) }
            });
            tokio::time::sleep(SETTLE).await;
            let start = Instant::now();
            guard.release().await?;
            let (guard, granted) = waiting.await??;
            lockkit.push(granted - start);
            guard.release().await?;
        }
        if round > 0 {
            let hand = median(&mut hand);
            by_hand.push(hand);
            by_lockkit.push(ratio(median(&mut lockkit), hand));
        }
    }
    println!(
        "hand-over, p50: one write and one event by hand {:?}; lockkit {} of it",
        median(&mut by_hand),
        spread(&mut by_lockkit)
    );
    Ok(())
}

/// So many clients, each on connections of its own, take turns on one name.
async fn contended(port: u16, url: &BackendUrl) -> Result<()> {
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Raw::connect(port).await?.client;
        let lease = client.lease_grant(60, None).await?.id();
        tasks.push(tokio::spawn(async move {
            let (start, mut turns) = (Instant::now(), 0);
            while start.elapsed() < CONTENDED {
                let options = LockOptions::new().with_lease(lease);
                let key = client.lock("v3lock", Some(options)).await?.key().to_vec();
                client.unlock(key).await?;
                turns += 1;
            }
            Result::Ok(turns)
        }));
    }
    let theirs = turns(tasks).await?;
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let lock = Locker::new(EtcdDriver::connect(url).await?).lock("contended")?;
        tasks.push(tokio::spawn(async move {
            let (start, mut turns) = (Instant::now(), 0);
            while start.elapsed() < CONTENDED {
                lock.acquire().await?.release().await?;
                turns += 1;
            }
            Result::Ok(turns)
        }));
    }
    let ours = turns(tasks).await?;
    let all = |turns: &[u32]| f64::from(turns.iter().sum::<u32>());
    println!(
        "{CLIENTS} clients on one name: v3lock {:.0} turns a second {theirs:?}; lockkit {:.0} {ours:?}, \
         {:.1} of it",
        all(&theirs) / CONTENDED.as_secs_f64(),
        all(&ours) / CONTENDED.as_secs_f64(),
        all(&ours) / all(&theirs)
    );
    Ok(())
}

async fn turns(tasks: Vec<tokio::task::JoinHandle<Result<u32>>>) -> Result<Vec<u32>> {
    let mut turns = Vec::new();
    for task in tasks {
        turns.push(task.await??);
    }
    turns.sort_unstable();
    Ok(turns)
}

/// How long a waiter gets to take its place and to have its watch confirmed.
const SETTLE: Duration = Duration::from_millis(10);

/// What the driver sends, sent by hand.
struct Raw {
    client: Client,
    lease: i64,
}

impl Raw {
    async fn connect(port: u16) -> Result<Self> {
        let mut client = Client::connect([format!("127.0.0.1:{port}")], None).await?;
        let lease = client.lease_grant(600, None).await?.id();
        Ok(Self { client, lease })
    }

    async fn compact(&self) -> Result<()> {
        let mut client = self.client.clone();
        let now = client.get("by-hand", None).await?;
        let revision = now.header().ok_or("no header")?.revision();
        let options = etcd_client::CompactionOptions::new().with_physical();
        client.compact(revision, Some(options)).await?;
        Ok(())
    }

    async fn enter(&self, queue: &str, key: &str) -> Result<i64> {
        let last = GetOptions::new().with_prefix().with_limit(3).with_keys_only();
        let last = last.with_sort(SortTarget::Create, SortOrder::Descend);
        let all = GetOptions::new().with_prefix().with_keys_only();
        let all = all.with_sort(SortTarget::Create, SortOrder::Ascend);
        let put = TxnOp::put(key, "by hand", Some(PutOptions::new().with_lease(self.lease)));
        let txn = Txn::new()
            .when([Compare::create_revision(key, CompareOp::Equal, 0)])
            .and_then([put, TxnOp::get(queue, Some(last))])
            .or_else([TxnOp::get(queue, Some(all))]);
        let answer = self.client.kv_client().txn(txn).await?;
        Ok(answer.header().ok_or("no header")?.revision())
    }

    async fn leave(&self, key: &str, created: i64) -> Result<()> {
        let txn = Txn::new()
            .when([Compare::create_revision(key, CompareOp::Equal, created)])
            .and_then([TxnOp::delete(key, None)]);
        let answer = self.client.kv_client().txn(txn).await?;
        if answer.succeeded() { Ok(()) } else { Err("the key was not there".into()) }
    }
}

fn median<T: Copy + PartialOrd>(values: &mut [T]) -> T {
    values.sort_by(|one, other| one.partial_cmp(other).expect("no value is NaN"));
    values[values.len() / 2]
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

fn spread(ratios: &mut [f64]) -> String {
    let middle = median(ratios);
    format!("{middle:.2} ({:.2} to {:.2})", ratios[0], ratios[ratios.len() - 1])
}
