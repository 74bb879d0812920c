//! A stock in this process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use lockkit::FencedCell;
use lockkit_bench::Result;

use super::{Locked, Sale, Seller, Shop, Way, token};
use crate::studies::Subject;

pub(super) struct Memory {
    url: String,
    stock: Arc<Stock>,
    /// Fills the shelves under the lock, as everybody writes there.
    keeper: Locked,
}

/// A shelf for each way, since each protects its own.
#[derive(Default)]
struct Stock {
    fenced: FencedCell<u64>,
    atomic: AtomicU64,
    versioned: Mutex<Versioned>,
}

#[derive(Clone, Copy, Default)]
struct Versioned {
    version: u64,
    pieces: u64,
}

struct Holder {
    locked: Locked,
    stock: Arc<Stock>,
}

struct Taker(Arc<Stock>);

struct Trier(Arc<Stock>);

impl Memory {
    pub(super) async fn open(url: &str) -> Result<Self> {
        let keeper = Locked::at(url, Subject::Usual).await?;
        Ok(Self { url: url.into(), stock: Arc::default(), keeper })
    }
}

impl Stock {
    fn versioned<T>(&self, look: impl FnOnce(&mut Versioned) -> T) -> T {
        look(&mut self.versioned.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Shop for Memory {
    async fn fill(&self, _: Way, pieces: u64) -> Result<()> {
        let guard = self.keeper.lock.acquire().await?;
        self.stock.fenced.write(token(&guard)?, |left| *left = pieces)?;
        guard.release().await?;
        self.stock.atomic.store(pieces, Ordering::Relaxed);
        self.stock.versioned(|stock| *stock = Versioned { version: stock.version + 1, pieces });
        Ok(())
    }

    async fn left(&self, way: Way) -> Result<u64> {
        Ok(match way {
            Way::Lock(_) => self.stock.fenced.read(|left| *left),
            Way::Atomic => self.stock.atomic.load(Ordering::Relaxed),
            Way::Version => self.stock.versioned(|stock| stock.pieces),
        })
    }

    async fn seller(&self, way: Way) -> Result<Box<dyn Seller>> {
        let stock = self.stock.clone();
        Ok(match way {
            Way::Lock(subject) => {
                Box::new(Holder { locked: Locked::at(&self.url, subject).await?, stock })
            }
            Way::Atomic => Box::new(Taker(stock)),
            Way::Version => Box::new(Trier(stock)),
        })
    }
}

#[async_trait]
impl Seller for Holder {
    async fn sell(&mut self) -> Result<Sale> {
        let guard = self.locked.lock.acquire().await?;
        let token = token(&guard)?;
        self.stock.fenced.touch(token)?;
        let left = self.stock.fenced.read(|left| *left);
        let sale = match left.checked_sub(1) {
            Some(fewer) => {
                self.stock.fenced.write(token, |left| *left = fewer)?;
                Sale::Sold(1)
            }
            None => Sale::SoldOut,
        };
        guard.release().await?;
        Ok(sale)
    }

    async fn close(self: Box<Self>) {
        self.locked.locker.shutdown().await;
    }
}

#[async_trait]
impl Seller for Taker {
    async fn sell(&mut self) -> Result<Sale> {
        let fewer = |left: u64| left.checked_sub(1);
        let done = self.0.atomic.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        Ok(done.map_or(Sale::SoldOut, |_| Sale::Sold(1)))
    }

    async fn close(self: Box<Self>) {}
}

#[async_trait]
impl Seller for Trier {
    async fn sell(&mut self) -> Result<Sale> {
        for tries in 1.. {
            let seen = self.0.versioned(|stock| *stock);
            let Some(pieces) = seen.pieces.checked_sub(1) else { break };
            let is_done = self.0.versioned(|stock| {
                let is_as_seen = stock.version == seen.version;
                if is_as_seen {
                    *stock = Versioned { version: seen.version + 1, pieces };
                }
                is_as_seen
            });
            if is_done {
                return Ok(Sale::Sold(tries));
            }
        }
        Ok(Sale::SoldOut)
    }

    async fn close(self: Box<Self>) {}
}
