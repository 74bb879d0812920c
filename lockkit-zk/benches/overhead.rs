//! What lockkit costs over ZooKeeper itself: `cargo bench -p lockkit-zk [-- PART...]`, the parts
//! being `pairs`, `hand-overs` and `crowd`.
//!
//! Client and server share one CPU, because their placement alone changes a round trip fivefold.
//! Each figure is a ratio of two things measured in the same run, alternately, each on the same
//! client library: lockkit, and exactly the requests that it sends, sent by hand. The server does
//! not wait for its disk.
#![expect(clippy::print_stdout, reason = "a benchmark reports")]

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lockkit_core::driver::{Claim, Driver as _, OwnerId};
use lockkit_core::{BackendUrl, Locker};
use lockkit_testkit::{Server, ZOOKEEPER};
use lockkit_zk::ZooKeeperDriver;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zookeeper_client::{Acls, Client, CreateMode};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 11;
const PAIRS: usize = 300;
const HAND_OVERS: usize = 60;
const CROWD: usize = 8;
const CROWDED_FOR: Duration = Duration::from_secs(3);

fn main() -> Result<()> {
    share_one_cpu()?;
    let server = ZOOKEEPER.start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if is_wanted("pairs") {
            pairs(&server).await?;
        }
        if is_wanted("hand-overs") {
            hand_overs(&server).await?;
        }
        if is_wanted("crowd") {
            crowd(&server).await?;
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
async fn pairs(server: &Server) -> Result<()> {
    let raw = Raw::connect(server, "pair").await?;
    let by_itself = driver(server).await?;
    let lock = Locker::new(driver(server).await?).lock("pair")?;
    let (mut by_hand, mut by_driver, mut by_lockkit) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let [mut hand, mut through_driver, mut lockkit] =
            [(); 3].map(|()| Vec::with_capacity(PAIRS));
        for _ in 0..PAIRS {
            let start = Instant::now();
            let (node, _) = raw.take().await?;
            raw.release(&node).await?;
            hand.push(start.elapsed());

            let start = Instant::now();
            let claim = Claim::new(lock.name().clone(), Duration::from_secs(30));
            by_itself.try_acquire(&claim).await?;
            by_itself.release(&claim).await?;
            through_driver.push(start.elapsed());

            let start = Instant::now();
            lock.acquire().await?.release().await?;
            lockkit.push(start.elapsed());
        }
        // The first rounds warm up, the server's compiler too.
        if round > 2 {
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

/// From the call of release to the guard of a waiter in another session.
async fn hand_overs(server: &Server) -> Result<()> {
    let (holder, waiter) =
        (Raw::connect(server, "hand-over").await?, Raw::connect(server, "hand-over").await?);
    let locks = (
        Locker::new(driver(server).await?).lock("hand-over")?,
        Locker::new(driver(server).await?).lock("hand-over")?,
    );
    let (mut by_hand, mut by_lockkit) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let [mut hand, mut lockkit] = [(); 2].map(|()| Vec::with_capacity(HAND_OVERS));
        for _ in 0..HAND_OVERS {
            let (node, _) = holder.take().await?;
            let path = format!("{}/{node}", holder.folder);
            let (_, _, watch) = waiter.client.get_and_watch_data(&path).await?;
            let waiting = tokio::spawn(async move {
                watch.changed().await;
                Instant::now()
            });
            tokio::time::sleep(SETTLE).await;
            let start = Instant::now();
            holder.release(&node).await?;
            hand.push(waiting.await? - start);

            let guard = locks.0.acquire().await?;
            let waiting = tokio::spawn({
                let waiter = locks.1.clone();
                async move { waiter.acquire().await.map(|guard| (guard, Instant::now())) }
            });
            tokio::time::sleep(SETTLE).await;
            let start = Instant::now();
            guard.release().await?;
            let (guard, granted) = waiting.await??;
            lockkit.push(granted - start);
            guard.release().await?;
        }
        if round > 2 {
            let hand = median(&mut hand);
            by_hand.push(hand);
            by_lockkit.push(ratio(median(&mut lockkit), hand));
        }
    }
    println!(
        "hand-over, p50: a write and its event by hand {:?}; lockkit {} of it",
        median(&mut by_hand),
        spread(&mut by_lockkit)
    );
    Ok(())
}

/// Several sessions that take one lock again and again.
async fn crowd(server: &Server) -> Result<()> {
    let raws = try_join_all((0..CROWD).map(|_| Raw::connect(server, "crowd"))).await?;
    let lockers = try_join_all((0..CROWD).map(|_| driver(server))).await?;
    let locks: Vec<_> = lockers
        .into_iter()
        .map(|driver| Locker::new(driver).lock("crowd"))
        .collect::<std::result::Result<_, _>>()?;
    let (mut by_hand, mut by_lockkit) = (Vec::new(), Vec::new());
    for round in 0..4 {
        let until = Instant::now() + CROWDED_FOR;
        let hand = try_join_all(raws.iter().map(async |raw| {
            let mut count = 0_u32;
            while Instant::now() < until {
                let node = raw.acquire().await?;
                raw.release(&node).await?;
                count += 1;
            }
            Result::Ok(count)
        }))
        .await?;
        let until = Instant::now() + CROWDED_FOR;
        let lockkit = try_join_all(locks.iter().map(async |lock| {
            let mut count = 0_u32;
            while Instant::now() < until {
                lock.acquire().await?.release().await?;
                count += 1;
            }
            Result::Ok(count)
        }))
        .await?;
        if round > 0 {
            by_hand.push(hand);
            by_lockkit.push(lockkit);
        }
    }
    report("by hand", &by_hand);
    report("lockkit", &by_lockkit);
    curator(server)
}

fn report(who: &str, rounds: &[Vec<u32>]) {
    let mut totals: Vec<u32> = rounds.iter().map(|round| round.iter().sum()).collect();
    let all = || rounds.iter().flatten();
    println!(
        "{CROWD} sessions on one lock, {who}: {:.0} a second, each client {} to {}",
        f64::from(median(&mut totals)) / CROWDED_FOR.as_secs_f64(),
        all().min().unwrap_or(&0),
        all().max().unwrap_or(&0)
    );
}

/// The same by Curator, if it is there.
fn curator(server: &Server) -> Result<()> {
    let jars = ["curator-recipes", "curator-framework", "curator-client", "guava", "slf4j-api"];
    let jars = jars.iter().chain(&["zookeeper"]).map(|jar| format!("/usr/share/java/{jar}.jar"));
    let path = std::env::join_paths(jars)?;
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/Crowd.java");
    let seconds = CROWDED_FOR.as_secs().to_string();
    let output = Command::new("java")
        .arg("-cp")
        .arg(path)
        .arg(program)
        .args([&server.addr().to_string(), &CROWD.to_string(), &seconds])
        .output();
    match output {
        Ok(output) if output.status.success() => {
            print!("{}", String::from_utf8_lossy(&output.stdout));
        }
        Ok(_) | Err(_) => println!("Curator is not there to be measured"),
    }
    Ok(())
}

/// How long a waiter gets to take its place and to set its watch.
const SETTLE: Duration = Duration::from_millis(5);

async fn driver(server: &Server) -> Result<ZooKeeperDriver> {
    let url: BackendUrl = server.url().parse()?;
    Ok(ZooKeeperDriver::connect(&url).await?)
}

/// What the driver sends, sent by hand.
struct Raw {
    client: Client,
    folder: String,
}

impl Raw {
    async fn connect(server: &Server, name: &str) -> Result<Self> {
        let client = Client::connect(&server.addr().to_string()).await?;
        let folder = format!("/lockkit/{name}");
        // Of the kind that stays, so that nobody has to make it anew.
        client.mkdir(&folder, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(Self { client, folder })
    }

    /// Makes a node, and lists all.
    async fn take(&self) -> Result<(String, Vec<String>)> {
        let prefix = format!("{}-", OwnerId::random());
        let path = format!("{}/{prefix}", self.folder);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (created, listed) = tokio::join!(
            self.client.create(&path, b"by hand", &options),
            self.client.list_children(&self.folder)
        );
        Ok((format!("{prefix}{}", created?.1), listed?))
    }

    /// Waits until the node is the first.
    async fn acquire(&self) -> Result<String> {
        let (node, mut nodes) = self.take().await?;
        let place = |node: &str| node[33..].parse::<u32>();
        loop {
            let own = place(&node)?;
            let before = nodes
                .iter()
                .filter(|other| place(other).is_ok_and(|other| other < own))
                .max_by_key(|other| place(other).ok());
            let Some(before) = before else { return Ok(node) };
            let is_next =
                nodes.iter().filter(|other| place(other).is_ok_and(|other| other < own)).count()
                    == 1;
            let path = format!("{}/{before}", self.folder);
            match self.client.get_and_watch_data(&path).await {
                Ok((_, _, watch)) => _ = watch.changed().await,
                Err(zookeeper_client::Error::NoNode) => (),
                Err(error) => return Err(error.into()),
            }
            if is_next {
                return Ok(node);
            }
            nodes = self.client.list_children(&self.folder).await?;
        }
    }

    async fn release(&self, node: &str) -> Result<()> {
        Ok(self.client.delete(&format!("{}/{node}", self.folder), None).await?)
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
