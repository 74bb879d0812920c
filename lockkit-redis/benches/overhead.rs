//! What lockkit costs over Redis itself: `cargo bench -p lockkit-redis [-- PART...]`, the parts
//! being `pairs`, `hand-overs` and `holds`.
//!
//! Client and server share one CPU, because their placement alone changes a round trip fivefold.
//! Each figure is a ratio of two things measured in the same run, alternately, each on the same
//! client library: lockkit, and exactly the requests that it sends, sent by hand.
#![expect(clippy::print_stdout, reason = "a benchmark reports")]

use std::error::Error;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use lockkit_core::driver::{Claim, Driver as _, OwnerId};
use lockkit_core::{BackendUrl, Label, Locker};
use lockkit_redis::{RedisDriver, scripts};
use lockkit_testkit::REDIS;
use lockkit_testkit::overhead::{is_wanted, median, ratio, share_one_cpu, spread};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{Client, IntoConnectionInfo as _, Script};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 15;
const PAIRS: usize = 2_000;
const HAND_OVERS: usize = 150;
const HOLDS: usize = 10_000;

fn main() -> Result<()> {
    share_one_cpu()?;
    let server = REDIS.start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let raw = Raw::connect(&server.url()).await?;
        let url: BackendUrl = server.url().parse()?;
        if is_wanted("pairs") {
            pairs(&raw, &url).await?;
        }
        if is_wanted("hand-overs") {
            hand_overs(&raw, &url).await?;
        }
        if is_wanted("holds") {
            holds(&url).await?;
        }
        Ok(())
    })
}

/// Acquire and release, nobody else about.
async fn pairs(raw: &Raw, url: &BackendUrl) -> Result<()> {
    let driver = RedisDriver::connect(url).await?;
    let lock = Locker::new(RedisDriver::connect(url).await?).lock("pair")?;
    let keys = Keys::of("pair");
    let (mut by_hand, mut by_driver, mut by_lockkit) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let [mut hand, mut through_driver, mut lockkit] =
            [(); 3].map(|()| Vec::with_capacity(PAIRS));
        for _ in 0..PAIRS {
            let start = Instant::now();
            let claimant = claimant();
            raw.take(&keys, &claimant, "no order").await?;
            raw.release(&keys, &claimant).await?;
            hand.push(start.elapsed());

            let start = Instant::now();
            let claim = Claim::new(lock.name().clone(), Duration::from_secs(30));
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

/// From the call of release to the guard of a fair waiter on another connection.
async fn hand_overs(raw: &Raw, url: &BackendUrl) -> Result<()> {
    let (one, other) = (RedisDriver::connect(url).await?, RedisDriver::connect(url).await?);
    let holder = Locker::new(one).lock("hand-over")?;
    let waiter = Locker::new(other).lock("hand-over")?.fair()?;
    let keys = Keys::of("hand-over/by-hand");
    let mut news = Client::open(raw.url.as_str())?.get_async_pubsub().await?;
    news.subscribe(format!("{{lockkit:0}}:inbox:{INBOX}")).await?;
    let (mut by_hand, mut by_lockkit) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let [mut hand, mut lockkit] = [(); 2].map(|()| Vec::with_capacity(HAND_OVERS));
        for _ in 0..HAND_OVERS {
            let (first, second) = (claimant(), claimant());
            raw.take(&keys, &first, "no order").await?;
            raw.take(&keys, &second, "order").await?;
            let waiting = tokio::spawn(async move {
                let message = news.on_message().next().await;
                (message, Instant::now(), news)
            });
            tokio::time::sleep(SETTLE).await;
            let start = Instant::now();
            raw.release(&keys, &first).await?;
            let (message, heard, returned) = waiting.await?;
            message.ok_or("the subscription ended")?;
            news = returned;
            hand.push(heard - start);
            raw.release(&keys, &second).await?;

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
        "hand-over, p50: a pushed grant by hand {:?}; lockkit {} of it",
        median(&mut by_hand),
        spread(&mut by_lockkit)
    );
    Ok(())
}

/// Many holds of one process, kept for several leases.
async fn holds(url: &BackendUrl) -> Result<()> {
    const TTL: Duration = Duration::from_secs(10);
    let locker = Locker::builder(RedisDriver::connect(url).await?).ttl(TTL).build()?;
    let mut guards = Vec::with_capacity(HOLDS);
    for number in 0..HOLDS {
        guards.push(locker.lock(&number.to_string())?.acquire().await?);
    }
    tokio::time::sleep(TTL * 3).await;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    println!("{HOLDS} holds kept for three leases of {TTL:?}: {lost} lost");
    locker.shutdown().await;
    if lost > 0 { Err("holds were lost".into()) } else { Ok(()) }
}

/// How long a waiter gets to take its place and to have its subscription confirmed.
const SETTLE: Duration = Duration::from_millis(2);

/// What the driver sends, sent by hand.
struct Raw {
    url: String,
    connection: MultiplexedConnection,
    take: Script,
    release: Script,
}

impl Raw {
    async fn connect(url: &str) -> Result<Self> {
        let settings = TcpSettings::default().set_nodelay(true);
        let client = Client::open(url.into_connection_info()?.set_tcp_settings(settings))?;
        Ok(Self {
            url: url.into(),
            connection: client
                .get_multiplexed_async_connection_with_config(
                    &redis::AsyncConnectionConfig::new().set_response_timeout(None),
                )
                .await?,
            take: Script::new(scripts::take()),
            release: Script::new(scripts::release()),
        })
    }

    async fn take(&self, keys: &Keys, claimant: &str, place: &str) -> Result<()> {
        let mut call = self.take.prepare_invoke();
        keys.all.iter().for_each(|key| _ = call.key(key));
        call.arg(claimant).arg("30000").arg(place);
        let _: redis::Value = call.invoke_async(&mut self.connection.clone()).await?;
        Ok(())
    }

    async fn release(&self, keys: &Keys, claimant: &str) -> Result<()> {
        let mut call = self.release.prepare_invoke();
        keys.all.iter().for_each(|key| _ = call.key(key));
        call.arg(claimant);
        let _: redis::Value = call.invoke_async(&mut self.connection.clone()).await?;
        Ok(())
    }
}

/// Where it is told what happens to it.
const INBOX: &str = "0123456789abcdef";

/// Somebody else each time, as the scripts have it.
fn claimant() -> String {
    format!("{} {INBOX} {}", OwnerId::random(), Label::of_this_process())
}

/// The keys of a lock, as `docs/redis.md` has them.
struct Keys {
    all: [String; 5],
}

impl Keys {
    fn of(name: &str) -> Self {
        let key = |kind| format!("{{lockkit:0}}:{kind}:{name}");
        let [lock, queue, unordered, deadlines] =
            ["lock", "queue", "unordered", "deadlines"].map(key);
        Self { all: [lock, queue, unordered, deadlines, "{lockkit:0}:bucket".into()] }
    }
}
