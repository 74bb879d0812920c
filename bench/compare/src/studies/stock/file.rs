//! A stock in a file.

use std::fs;
use std::path::PathBuf;

use async_trait::async_trait;
use lockkit_bench::Result;
use tempfile::TempDir;

use super::{Locked, Sale, Seller, Shop, Way, nonsense};

pub(super) struct Folder {
    url: String,
    folder: TempDir,
}

/// A file cannot refuse a stale token.
struct Holder {
    locked: Locked,
    path: PathBuf,
}

impl Folder {
    pub(super) fn open(url: String) -> Result<Self> {
        Ok(Self { url, folder: TempDir::with_prefix("lockkit-compare-")? })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("stock")
    }
}

#[async_trait]
impl Shop for Folder {
    async fn fill(&self, _: Way, pieces: u64) -> Result<()> {
        Ok(fs::write(self.path(), pieces.to_string())?)
    }

    async fn left(&self, _: Way) -> Result<u64> {
        read(&self.path())
    }

    async fn seller(&self, way: Way) -> Result<Box<dyn Seller>> {
        match way {
            Way::Lock(subject) => {
                let locked = Locked::at(&self.url, subject).await?;
                Ok(Box::new(Holder { locked, path: self.path() }))
            }
            Way::Atomic | Way::Version => {
                Err("a file has no operation that looks and writes at once".into())
            }
        }
    }
}

fn read(path: &PathBuf) -> Result<u64> {
    let text = fs::read_to_string(path)?;
    text.parse().map_err(|_| nonsense(text))
}

#[async_trait]
impl Seller for Holder {
    async fn sell(&mut self) -> Result<Sale> {
        let guard = self.locked.lock.acquire().await?;
        let sale = match read(&self.path)?.checked_sub(1) {
            Some(fewer) => {
                fs::write(&self.path, fewer.to_string())?;
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
