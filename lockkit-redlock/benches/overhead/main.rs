//! What Redlock costs over five servers: `cargo bench -p lockkit-redlock [-- WEATHER...]`, the
//! weathers being `healthy`, `hung` and `down`: what one of the five is.
//!
//! Client and servers share one CPU, because their placement alone changes a round trip fivefold.
//! Each figure is a ratio of two things measured in the same run, alternately: lockkit, and exactly
//! the requests that it sends, sent by hand to all five and answered at three. Beside them the
//! library `rslock`, which is built in a workspace of its own the first time.
#![expect(clippy::print_stdout, reason = "a benchmark reports")]

mod majority;
mod rslock;

use std::error::Error;
use std::time::{Duration, Instant};

use lockkit_core::driver::{Attempt, Claim, Driver as _};
use lockkit_core::{BackendUrl, Lock, Locker};
use lockkit_redis::RedisDriver;
use lockkit_redlock::{PARAMETERS, RedlockDriver, Settings};
use lockkit_testkit::overhead::{is_wanted, median, ratio, share_one_cpu, spread};
use lockkit_testkit::{REDIS, Server};

use crate::majority::Majority;
use crate::rslock::Rslock;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 15;
const PAIRS: usize = 200;
/// Where each takes a second.
const SLOW_PAIRS: usize = 2;

fn main() -> Result<()> {
    let rslock = Rslock::build()?;
    share_one_cpu()?;
    let servers = (0..5).map(|_| REDIS.start()).collect::<std::result::Result<Vec<_>, _>>()?;
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut bench = Bench {
            by_hand: Majority::connect(&urls).await?,
            driver: redlock(&urls, "").await?,
            lock: Locker::new(redlock(&urls, "").await?).lock("pair")?,
            plain: Locker::new(redlock(&urls, "?dialect=plain").await?).lock("pair")?,
            rslock: rslock.start(&urls)?,
        };
        let mut healthy = None;
        for weather in Weather::ALL.into_iter().filter(|weather| is_wanted(weather.name())) {
            weather.begin(&servers[4])?;
            let acquire = bench.run(weather).await?;
            weather.end(&servers[4])?;
            let than_healthy = ratio(acquire, *healthy.get_or_insert(acquire));
            println!(
                "{}: lockkit's acquire {acquire:?}, {than_healthy:.2} of the first",
                weather.name()
            );
        }
        Ok(())
    })
}

/// What one of the servers is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weather {
    Healthy,
    Hung,
    Down,
}

impl Weather {
    const ALL: [Self; 3] = [Self::Healthy, Self::Hung, Self::Down];

    fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Hung => "hung",
            Self::Down => "down",
        }
    }

    fn begin(self, server: &Server) -> Result<()> {
        match self {
            Self::Healthy => (),
            Self::Hung => server.stop()?,
            Self::Down => server.kill(),
        }
        Ok(())
    }

    fn end(self, server: &Server) -> Result<()> {
        match self {
            Self::Healthy => (),
            Self::Hung => server.cont()?,
            Self::Down => server.restart()?,
        }
        Ok(())
    }
}

/// All that is measured, on the same servers.
struct Bench {
    by_hand: Majority,
    driver: RedlockDriver,
    lock: Lock,
    /// With the same requests as `rslock` has.
    plain: Lock,
    rslock: Rslock,
}

impl Bench {
    /// Reports, and returns the median of lockkit's acquisitions.
    async fn run(&mut self, weather: Weather) -> Result<Duration> {
        let [mut by_hand, mut acquisitions] = [(); 2].map(|()| Vec::new());
        let [mut by_driver, mut by_lockkit, mut by_plain, mut by_rslock] =
            [(); 4].map(|()| Vec::new());
        for round in 0..ROUNDS {
            let [mut hand, mut driver, mut lockkit, mut acquire, mut plain] =
                [(); 5].map(|()| Vec::with_capacity(PAIRS));
            // In a row, so that each pays for its own answers that come after the third.
            for _ in 0..PAIRS {
                let start = Instant::now();
                self.by_hand.pair().await?;
                hand.push(start.elapsed());
            }
            for _ in 0..PAIRS {
                let start = Instant::now();
                self.pair_of_driver().await?;
                driver.push(start.elapsed());
            }
            for _ in 0..PAIRS {
                let start = Instant::now();
                let guard = self.lock.acquire().await?;
                acquire.push(start.elapsed());
                guard.release().await?;
                lockkit.push(start.elapsed());
            }
            for _ in 0..PAIRS {
                let start = Instant::now();
                self.plain.acquire().await?.release().await?;
                plain.push(start.elapsed());
            }
            let is_slow = weather == Weather::Hung;
            let mut rslock = self.rslock.pairs(if is_slow { SLOW_PAIRS } else { PAIRS })?;
            // The first round warms up.
            if round > 0 {
                let hand = median(&mut hand);
                by_hand.push(hand);
                by_driver.push(ratio(median(&mut driver), hand));
                by_lockkit.push(ratio(median(&mut lockkit), hand));
                by_plain.push(ratio(median(&mut plain), hand));
                by_rslock.push(ratio(median(&mut rslock), hand));
                acquisitions.push(median(&mut acquire));
            }
        }
        println!(
            "{}: uncontended pair, p50: by hand {:?}; driver {} of it; lockkit {} of it; \
             lockkit in dialect plain {} of it; rslock {} of it",
            weather.name(),
            median(&mut by_hand),
            spread(&mut by_driver),
            spread(&mut by_lockkit),
            spread(&mut by_plain),
            spread(&mut by_rslock),
        );
        Ok(median(&mut acquisitions))
    }

    /// Tries again where the machine was too busy for an answer in time, as the engine does.
    async fn pair_of_driver(&self) -> Result<()> {
        let claim = Claim::new(self.lock.name().clone(), Duration::from_secs(30));
        while !matches!(self.driver.try_acquire(&claim).await, Ok(Attempt::Granted(_))) {}
        self.driver.release(&claim).await?;
        Ok(())
    }
}

async fn redlock(urls: &[String], parameters: &str) -> Result<RedlockDriver> {
    // They were started just now.
    let url: BackendUrl = "redlock:?delayed_restart=false".parse()?;
    let settings = Settings::from_url(&url, PARAMETERS)?;
    let mut driver = RedlockDriver::builder().settings(settings);
    for url in urls {
        let url: BackendUrl = format!("{url}{parameters}").parse()?;
        driver = driver.node_at(url.to_string(), move || {
            let url = url.clone();
            async move { RedisDriver::connect(&url).await }
        });
    }
    Ok(driver.connect().await?)
}
