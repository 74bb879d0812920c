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
    Client, Compare, CompareOp, ConnectOptions, EventType, GetOptions, LockOptions, PutOptions,
    SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse, WatchOptions,
    WatchRequestSender, WatchResponseStream,
};
use lockkit_core::driver::{Claim, Driver as _};
use lockkit_core::{BackendUrl, Locker};
use lockkit_etcd::EtcdDriver;
use lockkit_testkit::ETCD;
use lockkit_testkit::overhead::{is_wanted, median, ratio, share_one_cpu, spread};
use tokio::task::JoinHandle;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 9;
const PAIRS: usize = 500;
const HAND_OVERS: usize = 60;
const CLIENTS: usize = 8;
const CONTENDED: Duration = Duration::from_secs(1);
const CONTENDED_ROUNDS: usize = 7;

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
            Box::pin(hand_overs(&raw, server.port(), &url)).await?;
        }
        if is_wanted("contended") {
            Box::pin(contended(server.port(), &url)).await?;
        }
        Ok(())
    })
}

/// Acquire and release, nobody else about.
async fn pairs(raw: &Raw, url: &BackendUrl) -> Result<()> {
    let driver = EtcdDriver::connect(url).await?;
    let locker = Locker::new(EtcdDriver::connect(url).await?);
    let (lock, other) = (locker.lock("pair")?, locker.lock("pair-of-driver")?);
    let (mut by_hand, mut by_driver, mut by_lockkit) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let [mut hand, mut through_driver, mut lockkit] =
            [(); 3].map(|()| Vec::with_capacity(PAIRS));
        for _ in 0..PAIRS {
            let start = Instant::now();
            let place = raw.enter("by-hand/pair/").await?;
            raw.leave(&place).await?;
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
async fn hand_overs(raw: &Raw, port: u16, url: &BackendUrl) -> Result<()> {
    let (one, other) = (EtcdDriver::connect(url).await?, EtcdDriver::connect(url).await?);
    let holder = Locker::new(one).lock("hand-over")?;
    let waiter = Locker::new(other).lock("hand-over")?;
    let holding = Raw::connect(port).await?;
    let (mut by_hand, mut by_two, mut by_lockkit) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let [mut hand, mut two, mut lockkit] = [(); 3].map(|()| Vec::with_capacity(HAND_OVERS));
        for _ in 0..HAND_OVERS {
            for is_watched_by_its_holder in [false, true] {
                let place = holding.enter("by-hand/hand-over/").await?;
                let waiting = deletion(&raw.client, &place).await?;
                let own = match is_watched_by_its_holder {
                    true => Some(deletion(&holding.client, &place).await?),
                    false => None,
                };
                tokio::time::sleep(SETTLE).await;
                let start = Instant::now();
                holding.leave(&place).await?;
                let times = if is_watched_by_its_holder { &mut two } else { &mut hand };
                times.push(waiting.await?? - start);
                if let Some(own) = own {
                    own.await??;
                }
            }

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
            by_two.push(ratio(median(&mut two), hand));
            by_lockkit.push(ratio(median(&mut lockkit), hand));
        }
    }
    println!(
        "hand-over, p50: one write and one event by hand {:?}; with an event for the holder as well {} \
         of it; lockkit, which has both, {} of it",
        median(&mut by_hand),
        spread(&mut by_two),
        spread(&mut by_lockkit)
    );
    Ok(())
}

/// When it is heard that the key was deleted.
async fn deletion(client: &Client, place: &Place) -> Result<JoinHandle<Result<Instant>>> {
    let mut client = client.clone();
    let mut news = client.watch(&*place.key, Some(WatchOptions::new())).await?;
    Ok(tokio::spawn(async move {
        while let Some(message) = news.message().await? {
            let deletes = |event: &etcd_client::Event| event.event_type() == EventType::Delete;
            if message.events().iter().any(deletes) {
                return Ok(Instant::now());
            }
        }
        Err("the stream ended".into())
    }))
}

/// So many clients, each on connections of its own, take turns on one name: by the recipe by hand,
/// by the server's own lock service, and by lockkit.
async fn contended(port: u16, url: &BackendUrl) -> Result<()> {
    let (mut by_hand, mut by_v3lock) = (Vec::new(), Vec::new());
    for round in 0..CONTENDED_ROUNDS {
        let mut tasks = Vec::new();
        for _ in 0..CLIENTS {
            let mut turns = Turns::on(Raw::connect(port).await?).await?;
            tasks.push(tokio::spawn(async move {
                let (start, mut count) = (Instant::now(), 0);
                while start.elapsed() < CONTENDED {
                    turns.take("by-hand/contended/").await?;
                    count += 1;
                }
                Result::Ok(count)
            }));
        }
        let hand = turns(tasks).await?;
        let mut tasks = Vec::new();
        for _ in 0..CLIENTS {
            let Raw { mut client, lease, .. } = Raw::connect(port).await?;
            tasks.push(tokio::spawn(async move {
                let (start, mut count) = (Instant::now(), 0);
                while start.elapsed() < CONTENDED {
                    let options = LockOptions::new().with_lease(lease);
                    let key = client.lock("v3lock", Some(options)).await?.key().to_vec();
                    client.unlock(key).await?;
                    count += 1;
                }
                Result::Ok(count)
            }));
        }
        let v3lock = turns(tasks).await?;
        let mut tasks = Vec::new();
        for _ in 0..CLIENTS {
            let lock = Locker::new(EtcdDriver::connect(url).await?).lock("contended")?;
            tasks.push(tokio::spawn(async move {
                let (start, mut count) = (Instant::now(), 0);
                while start.elapsed() < CONTENDED {
                    lock.acquire().await?.release().await?;
                    count += 1;
                }
                Result::Ok(count)
            }));
        }
        let lockkit = turns(tasks).await?;
        let a_second =
            |turns: &[u32]| f64::from(turns.iter().sum::<u32>()) / CONTENDED.as_secs_f64();
        println!(
            "{CLIENTS} clients on one name, round {round}, turns a second: by hand {:.0} {hand:?}; \
             v3lock {:.0} {v3lock:?}; lockkit {:.0} {lockkit:?}",
            a_second(&hand),
            a_second(&v3lock),
            a_second(&lockkit)
        );
        by_hand.push(a_second(&lockkit) / a_second(&hand));
        by_v3lock.push(a_second(&lockkit) / a_second(&v3lock));
    }
    println!(
        "{CLIENTS} clients on one name: lockkit {} of the recipe by hand, {} of v3lock",
        spread(&mut by_hand),
        spread(&mut by_v3lock)
    );
    Ok(())
}

async fn turns(tasks: Vec<JoinHandle<Result<u32>>>) -> Result<Vec<u32>> {
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

/// A place in a queue.
struct Place {
    key: String,
    created: i64,
    /// The key before it, when that was created, and whether it is the first.
    ahead: Option<(Vec<u8>, i64, bool)>,
    revision: i64,
}

impl Raw {
    async fn connect(port: u16) -> Result<Self> {
        // As the driver does.
        let options = ConnectOptions::new()
            .with_require_leader(true)
            .with_keep_alive(Duration::from_secs(10), Duration::from_secs(5))
            .with_keep_alive_while_idle(false);
        let mut client = Client::connect([format!("127.0.0.1:{port}")], Some(options)).await?;
        let lease = client.lease_grant(600, None).await?.id();
        Ok(Self { client, lease })
    }

    async fn enter(&self, queue: &str) -> Result<Place> {
        let key = format!("{queue}{:x}", self.lease);
        let last = GetOptions::new().with_prefix().with_limit(3).with_keys_only();
        let last = last.with_sort(SortTarget::Create, SortOrder::Descend);
        let all = GetOptions::new().with_prefix().with_keys_only();
        let all = all.with_sort(SortTarget::Create, SortOrder::Ascend);
        let put = TxnOp::put(&*key, "by hand", Some(PutOptions::new().with_lease(self.lease)));
        let txn = Txn::new()
            .when([Compare::create_revision(&*key, CompareOp::Equal, 0)])
            .and_then([put, TxnOp::get(queue, Some(last))])
            .or_else([TxnOp::get(queue, Some(all)), TxnOp::get(&*key, None)]);
        let answer = self.client.kv_client().txn(txn).await?;
        let created = answer.header().ok_or("no header")?.revision();
        let ahead = before(&answer, 1, 1)?;
        Ok(Place { key, created, ahead, revision: created })
    }

    async fn look(&self, queue: &str, place: &mut Place) -> Result<()> {
        let own = GetOptions::new().with_keys_only();
        let before_it = GetOptions::new().with_prefix().with_limit(2).with_keys_only();
        let before_it = before_it
            .with_max_create_revision(place.created - 1)
            .with_sort(SortTarget::Create, SortOrder::Descend);
        let reads = [TxnOp::get(&*place.key, Some(own)), TxnOp::get(queue, Some(before_it))];
        let answer = self.client.kv_client().txn(Txn::new().and_then(reads)).await?;
        place.revision = answer.header().ok_or("no header")?.revision();
        place.ahead = before(&answer, 1, 0)?;
        Ok(())
    }

    async fn leave(&self, place: &Place) -> Result<()> {
        let txn = Txn::new()
            .when([Compare::create_revision(&*place.key, CompareOp::Equal, place.created)])
            .and_then([TxnOp::delete(&*place.key, None)]);
        let answer = self.client.kv_client().txn(txn).await?;
        if answer.succeeded() { Ok(()) } else { Err("the key was not there".into()) }
    }
}

/// Who is ahead according to the read at this place of a transaction, but for the first `own` keys.
fn before(answer: &TxnResponse, at: usize, own: usize) -> Result<Option<(Vec<u8>, i64, bool)>> {
    let Some(TxnOpResponse::Get(read)) = answer.op_responses().into_iter().nth(at) else {
        return Err("no such read".into());
    };
    let mut kvs = read.kvs().iter().skip(own);
    let ahead = kvs.next();
    Ok(ahead.map(|kv| (kv.key().to_vec(), kv.create_revision(), kvs.next().is_none())))
}

/// Takes turns as the driver does: who waits watches the key before its own.
struct Turns {
    raw: Raw,
    watcher: WatchRequestSender,
    news: WatchResponseStream,
    watch_id: i64,
}

impl Turns {
    async fn on(raw: Raw) -> Result<Self> {
        let mut client = raw.client.clone();
        let options = WatchOptions::new().with_watch_id(1);
        let (watcher, news) = client.watch("by-hand/nothing", Some(options)).await?.split();
        Ok(Self { raw, watcher, news, watch_id: 1 })
    }

    async fn take(&mut self, queue: &str) -> Result<()> {
        let mut place = self.raw.enter(queue).await?;
        while let Some((key, created, holds)) = place.ahead.take() {
            self.watch_id += 1;
            let options = WatchOptions::new().with_watch_id(self.watch_id);
            self.watcher.watch(key, Some(options)).await?;
            if self.is_gone(created, place.revision).await? && holds {
                self.watcher.cancel(self.watch_id).await?;
                break;
            }
            self.watcher.cancel(self.watch_id).await?;
            self.raw.look(queue, &mut place).await?;
        }
        self.raw.leave(&place).await
    }

    /// Waits until the key that is watched goes, or may have gone before.
    async fn is_gone(&mut self, created: i64, seen: i64) -> Result<bool> {
        while let Some(message) = self.news.message().await? {
            if message.watch_id() != self.watch_id {
                continue;
            }
            let is_gone = |event: &etcd_client::Event| {
                let at = event.kv().map_or(0, etcd_client::KeyValue::mod_revision);
                event.event_type() == EventType::Delete && at > created
            };
            if message.events().iter().any(is_gone) {
                return Ok(true);
            }
            let now = message.header().map_or(0, etcd_client::ResponseHeader::revision);
            if message.created() && now > seen {
                return Ok(false);
            }
        }
        Err("the stream ended".into())
    }
}
