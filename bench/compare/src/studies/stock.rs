//! Several sell a stock, a piece at a time: under a lock, by an operation of the backend that takes
//! one if there is one, and by writing only what nobody has changed meanwhile.
//!
//! The stock is in the backend that has the lock, and a write under the lock carries its fencing token
//! where the backend can check it. After each pass what was sold is compared with what there was.

mod etcd;
mod file;
mod memory;
mod redis;
mod sql;
mod zookeeper;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use fastrand::Rng;
use lockkit::{FencingToken, LockGuard, Locker};
use lockkit_bench::{AnyLock, Result, Unit};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Extent, Findings, Subject, What, figure};
use crate::run::{Figure, Role, Round};
use crate::servers::{Backend, Servers};

/// The name of the study.
pub(super) const NAME: &str = "stock";

/// How a piece is sold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Look, and write what is left, under the backend's lock.
    Lock(Subject),
    /// By an operation of the backend that does both.
    Atomic,
    /// Look, write if nobody has changed it meanwhile, else again.
    Version,
}

/// Where the stock is.
#[async_trait]
trait Shop: Send + Sync {
    /// Has so many pieces from now on, to be sold that way.
    async fn fill(&self, way: Way, pieces: u64) -> Result<()>;

    /// How many are left.
    async fn left(&self, way: Way) -> Result<u64>;

    /// Another one who sells, with connections of its own; why there is none, if the backend has no
    /// such way.
    async fn seller(&self, way: Way) -> Result<Box<dyn Seller>>;
}

/// One who sells.
#[async_trait]
trait Seller: Send {
    /// A piece.
    async fn sell(&mut self) -> Result<Sale>;

    /// Ends its connections.
    async fn close(self: Box<Self>);
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sale {
    /// One was sold, at that many tries.
    Sold(u32),
    /// There were none.
    SoldOut,
}

pub(super) async fn study(servers: &Servers, extent: &Extent) -> Findings {
    let mut findings = Findings::default();
    let locks = match servers.backend() {
        Backend::Redis => vec![Subject::Usual, Subject::Fair],
        Backend::Postgres | Backend::Mariadb => vec![Subject::Usual, Subject::Session],
        _ => vec![Subject::Usual],
    };
    let ways: Vec<_> =
        locks.into_iter().map(Way::Lock).chain([Way::Atomic, Way::Version]).collect();
    let shop = match open(servers).await {
        Ok(shop) => shop,
        Err(error) => {
            let reason = error.to_string();
            for way in ways {
                findings.note(&what(servers, way, ""), Err(reason.clone().into()));
            }
            return findings;
        }
    };
    let mut found: Vec<(Way, Result<Vec<Round>>)> =
        ways.into_iter().map(|way| (way, Ok(Vec::new()))).collect();
    let mut rng = Rng::with_seed(extent.seed);
    for _ in 0..extent.rounds {
        rng.shuffle(&mut found);
        for (way, found) in &mut found {
            let Ok(rounds) = found else { continue };
            match timeout(extent.limit, round(&*shop, *way, extent)).await {
                Ok(Ok(figures)) => rounds.push(Round { figures, ..Round::default() }),
                Ok(Err(error)) => *found = Err(error),
                Err(_) => *found = Err(format!("not done within {:?}", extent.limit).into()),
            }
        }
    }
    let case = format!("{} sellers", extent.sellers);
    found.sort_by_key(|(way, _)| way.place());
    for (way, found) in found {
        findings.note(&what(servers, way, &case), found);
    }
    findings
}

fn what<'a>(servers: &Servers, way: Way, case: &'a str) -> What<'a> {
    let (subject, role) = match way {
        Way::Lock(subject) => (subject.name(), Role::Lockkit),
        Way::Atomic => ("no lock: one operation", Role::Peer),
        Way::Version => ("no lock: version and retry", Role::Peer),
    };
    What { workload: NAME, backend: servers.backend(), subject, role, case }
}

impl Way {
    fn place(self) -> u8 {
        match self {
            Self::Lock(Subject::Usual) => 0,
            Self::Lock(Subject::Fair) => 1,
            Self::Lock(Subject::Session) => 2,
            Self::Atomic => 3,
            Self::Version => 4,
        }
    }
}

async fn open(servers: &Servers) -> Result<Box<dyn Shop>> {
    let url = servers.url();
    Ok(match servers.backend() {
        Backend::Memory => Box::new(memory::Memory::open(&url).await?),
        Backend::File => Box::new(file::Folder::open(url)?),
        Backend::Sqlite => Box::new(sql::Sqlite::open(&url).await?),
        Backend::Postgres => Box::new(sql::Postgres::open(&url).await?),
        Backend::Mariadb => Box::new(sql::Mariadb::open(&url).await?),
        Backend::Redis | Backend::Redlock(_) => {
            Box::new(redis::Redis::open(url, &servers.urls()).await?)
        }
        Backend::ZooKeeper(_) => Box::new(zookeeper::ZooKeeper::open(servers).await?),
        Backend::Etcd(_) => Box::new(etcd::Etcd::open(servers)?),
    })
}

/// Stocks are sold out one after the other until the time is over.
async fn round(shop: &dyn Shop, way: Way, extent: &Extent) -> Result<Vec<Figure>> {
    let mut sellers = Vec::new();
    for _ in 0..extent.sellers {
        sellers.push(shop.seller(way).await?);
    }
    let mut all = Pass::default();
    while all.took < extent.slice {
        shop.fill(way, extent.pieces).await?;
        let (pass, returned) = sell_out(sellers).await?;
        sellers = returned;
        let left = shop.left(way).await?;
        let accounted = pass.times.len() as u64 + left;
        all.surplus += accounted.abs_diff(extent.pieces);
        all.add(pass);
    }
    for seller in sellers {
        seller.close().await;
    }
    all.figures()
}

/// All sell until nothing is left.
async fn sell_out(sellers: Vec<Box<dyn Seller>>) -> Result<(Pass, Vec<Box<dyn Seller>>)> {
    let ready = Arc::new(Barrier::new(sellers.len() + 1));
    let mut selling = JoinSet::new();
    for mut seller in sellers {
        let ready = ready.clone();
        selling.spawn(async move {
            let mut pass = Pass::default();
            ready.wait().await;
            loop {
                let begun = Instant::now();
                match seller.sell().await? {
                    Sale::Sold(tries) => {
                        pass.tries += u64::from(tries);
                        pass.times.push(begun.elapsed());
                    }
                    Sale::SoldOut => return Result::Ok((pass, seller)),
                }
            }
        });
    }
    ready.wait().await;
    let begun = Instant::now();
    let (mut all, mut sellers) = (Pass::default(), Vec::new());
    while let Some(ended) = selling.join_next().await {
        let (pass, seller) = ended??;
        all.add(pass);
        sellers.push(seller);
    }
    all.took = begun.elapsed();
    Ok((all, sellers))
}

/// What was sold, until there was nothing left.
#[derive(Debug, Default)]
struct Pass {
    took: Duration,
    tries: u64,
    /// How long each sale took.
    times: Vec<Duration>,
    /// How many more or fewer were sold than there were.
    surplus: u64,
}

impl Pass {
    fn add(&mut self, other: Self) {
        self.took += other.took;
        self.tries += other.tries;
        self.times.extend(other.times);
        self.surplus += other.surplus;
    }

    fn figures(mut self) -> Result<Vec<Figure>> {
        self.times.sort_unstable();
        let sold = self.times.len() as f64;
        let at = |share: f64| {
            let time = self.times.get((sold * share) as usize).ok_or("nothing was sold")?;
            Result::Ok(time.as_secs_f64())
        };
        Ok(vec![
            figure("sold", Unit::PerSecond, sold / self.took.as_secs_f64()),
            figure("tries a sale", Unit::Count, self.tries as f64 / sold),
            figure("p50", Unit::Time, at(0.5)?),
            figure("p99", Unit::Time, at(0.99)?),
            figure("sold wrongly", Unit::Count, self.surplus as f64),
        ])
    }
}

/// The lock over the stock, of a client of its own.
struct Locked {
    locker: Locker,
    lock: AnyLock,
}

impl Locked {
    /// At that URL of a backend, used that way.
    async fn at(url: &str, subject: Subject) -> Result<Self> {
        let locker = lockkit::connect(&subject.url(url)).await?;
        let lock = locker.lock(NAME)?;
        let lock = match subject {
            Subject::Fair => AnyLock::Fair(lock.fair()?),
            Subject::Usual | Subject::Session => AnyLock::Plain(lock),
        };
        Ok(Self { locker, lock })
    }
}

/// The token of a backend that gives tokens.
fn token(guard: &LockGuard) -> Result<FencingToken> {
    Ok(guard.fencing_token().ok_or("a hold without a fencing token")?)
}

/// Who has written what was not written by one who sells.
fn nonsense(text: impl std::fmt::Debug) -> lockkit::BoxError {
    format!("the stock is no number: {text:?}").into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::task::yield_now;

    use super::*;

    /// Sells without a lock: looks, and writes what is left by then.
    #[derive(Clone, Default)]
    struct Careless(Arc<AtomicU64>);

    #[async_trait]
    impl Shop for Careless {
        async fn fill(&self, _: Way, pieces: u64) -> Result<()> {
            self.0.store(pieces, Ordering::Relaxed);
            Ok(())
        }

        async fn left(&self, _: Way) -> Result<u64> {
            Ok(self.0.load(Ordering::Relaxed))
        }

        async fn seller(&self, _: Way) -> Result<Box<dyn Seller>> {
            Ok(Box::new(self.clone()))
        }
    }

    #[async_trait]
    impl Seller for Careless {
        async fn sell(&mut self) -> Result<Sale> {
            let left = self.0.load(Ordering::Relaxed);
            yield_now().await;
            match left.checked_sub(1) {
                Some(fewer) => {
                    self.0.store(fewer, Ordering::Relaxed);
                    Ok(Sale::Sold(1))
                }
                None => Ok(Sale::SoldOut),
            }
        }

        async fn close(self: Box<Self>) {}
    }

    #[tokio::test]
    async fn what_is_sold_twice_is_noticed() {
        let slice = Duration::from_nanos(1);
        let wrongly = async |sellers| {
            let extent = Extent { sellers, slice, pieces: 10, ..Extent::quick() };
            let figures = round(&Careless::default(), Way::Atomic, &extent).await.unwrap();
            figures.iter().find(|figure| figure.name == "sold wrongly").unwrap().value
        };
        assert!(wrongly(2).await >= 1.0, "two who look at the same time sell one piece");
        assert_eq!(wrongly(1).await, 0.0);
    }
}
