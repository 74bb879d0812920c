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
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lockkit_core::driver::{Claim, Driver as _, OwnerId};
use lockkit_core::{BackendUrl, Locker};
use lockkit_testkit::overhead::{is_wanted, median, ratio, share_one_cpu, spread};
use lockkit_testkit::{Server, ZOOKEEPER};
use lockkit_zk::ZooKeeperDriver;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};
use zookeeper_client::{Acls, Client, CreateMode};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 11;
const PAIRS: usize = 300;
const HAND_OVERS: usize = 60;
const CROWD: usize = 8;
const CROWDED_ROUNDS: usize = 24;
const CROWDED_FOR: Duration = Duration::from_millis(500);

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

/// Several sessions that take one lock again and again: by hand, by lockkit and by Curator, in
/// turns, since whatever else the machine does changes from one second to the next.
async fn crowd(server: &Server) -> Result<()> {
    let raws = try_join_all((0..CROWD).map(|_| Raw::connect(server, "crowd"))).await?;
    let lockers = try_join_all((0..CROWD).map(|_| driver(server))).await?;
    let locks: Vec<_> = lockers
        .into_iter()
        .map(|driver| Locker::new(driver).lock("crowd"))
        .collect::<std::result::Result<_, _>>()?;
    let mut curator = Curator::start(server)?;
    let (mut by_hand, mut by_lockkit, mut by_curator) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..CROWDED_ROUNDS {
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
        let curator = match &mut curator {
            Some(curator) => Some(curator.round().await?),
            None => None,
        };
        // The first rounds warm up, the compilers of the server and of Curator too.
        if round > CROWDED_ROUNDS / 4 {
            by_hand.push(hand);
            by_lockkit.push(lockkit);
            by_curator.extend(curator);
        }
    }
    report("by hand", &by_hand);
    report("lockkit", &by_lockkit);
    println!("lockkit, of by hand: {}", spread(&mut ratios(&by_lockkit, &by_hand)));
    if curator.is_none() {
        println!("Curator is not there to be measured");
        return Ok(());
    }
    report("Curator", &by_curator);
    println!("lockkit, of Curator: {}", spread(&mut ratios(&by_lockkit, &by_curator)));
    Ok(())
}

fn report(who: &str, rounds: &[Vec<u32>]) {
    let mut totals: Vec<_> = rounds.iter().map(|round| total(round)).collect();
    // Jain's index: 1 if all have as much, 1/n if one has all.
    let mut shares: Vec<_> = rounds
        .iter()
        .map(|round| {
            let squares: f64 = round.iter().map(|&count| f64::from(count).powi(2)).sum();
            total(round).powi(2) / (CROWD as f64 * squares)
        })
        .collect();
    println!(
        "{CROWD} sessions on one lock, {who}: {:.0} a second, evenness {}",
        median(&mut totals) / CROWDED_FOR.as_secs_f64(),
        spread(&mut shares)
    );
}

fn ratios(ones: &[Vec<u32>], others: &[Vec<u32>]) -> Vec<f64> {
    ones.iter().zip(others).map(|(one, other)| total(one) / total(other)).collect()
}

fn total(round: &[u32]) -> f64 {
    round.iter().copied().map(f64::from).sum()
}

/// The same by Curator, a process that does a round whenever it is told to. It ends with its input.
struct Curator {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Curator {
    /// None if it is not there.
    fn start(server: &Server) -> Result<Option<Self>> {
        let jars = [
            "curator-recipes",
            "curator-framework",
            "curator-client",
            "guava",
            "slf4j-api",
            "slf4j-nop",
        ];
        let jars = jars.iter().chain(&["zookeeper"]);
        let jars: Vec<_> = jars.map(|jar| format!("/usr/share/java/{jar}.jar")).collect();
        if !jars.iter().all(|jar| Path::new(jar).exists()) {
            return Ok(None);
        }
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/Crowd.java");
        let mut process = Command::new("java")
            .arg("-cp")
            .arg(std::env::join_paths(jars)?)
            .arg(program)
            .args([&server.addr().to_string(), &CROWD.to_string()])
            .arg(CROWDED_FOR.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (input, output) = (input.ok_or("no input")?, output.ok_or("no output")?);
        Ok(Some(Self { input, output: BufReader::new(output).lines() }))
    }

    /// How often each session had the lock.
    async fn round(&mut self) -> Result<Vec<u32>> {
        self.input.write_all(b"\n").await?;
        let line = self.output.next_line().await?.ok_or("Curator has ended")?;
        Ok(line.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?)
    }
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
