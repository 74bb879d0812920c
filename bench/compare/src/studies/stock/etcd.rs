//! A stock in etcd.

use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::{Client, Compare, CompareOp, KeyValue, Txn, TxnOp, TxnOpResponse};
use lockkit::{BackendUrl, Lock, Locker};
use lockkit_bench::Result;
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::transaction::{self, etcd_client};

use super::{NAME, Sale, Seller, Shop, Way, nonsense};
use crate::servers::Servers;

/// Where the stock is.
const STOCK: &str = "shop/stock";

pub(super) struct Etcd {
    url: BackendUrl,
    members: Vec<String>,
}

struct Holder {
    driver: Arc<EtcdDriver>,
    locker: Locker,
    lock: Lock,
    client: Client,
}

/// Etcd does not count. What it does at once is to compare, and to write or else to look: what it
/// told last is what is compared with.
struct Taker {
    client: Client,
    seen: Option<Stock>,
}

struct Trier(Client);

#[derive(Clone, Copy)]
struct Stock {
    pieces: u64,
    revision: i64,
}

impl Etcd {
    pub(super) fn open(servers: &Servers) -> Result<Self> {
        let members = servers.addresses().iter().map(|at| format!("http://{at}")).collect();
        Ok(Self { url: servers.url().parse()?, members })
    }

    async fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.members, None).await?)
    }
}

#[async_trait]
impl Shop for Etcd {
    async fn fill(&self, _: Way, pieces: u64) -> Result<()> {
        self.client().await?.put(STOCK, pieces.to_string(), None).await?;
        Ok(())
    }

    async fn left(&self, _: Way) -> Result<u64> {
        Ok(look(&mut self.client().await?).await?.pieces)
    }

    async fn seller(&self, way: Way) -> Result<Box<dyn Seller>> {
        let client = self.client().await?;
        Ok(match way {
            Way::Lock(_) => {
                let driver = Arc::new(EtcdDriver::connect(&self.url).await?);
                let locker = Locker::from_arc(driver.clone());
                let lock = locker.lock(NAME)?;
                Box::new(Holder { driver, locker, lock, client })
            }
            Way::Atomic => Box::new(Taker { client, seen: None }),
            Way::Version => Box::new(Trier(client)),
        })
    }
}

async fn look(client: &mut Client) -> Result<Stock> {
    let answer = client.get(STOCK, None).await?;
    stock(answer.kvs().first())
}

fn stock(pair: Option<&KeyValue>) -> Result<Stock> {
    let pair = pair.ok_or_else(|| nonsense("there is none"))?;
    let text = pair.value_str()?;
    let pieces = text.parse().map_err(|_| nonsense(text))?;
    Ok(Stock { pieces, revision: pair.mod_revision() })
}

fn write(pieces: u64) -> [TxnOp; 1] {
    [TxnOp::put(STOCK, pieces.to_string(), None)]
}

fn is_as_seen(seen: Stock) -> [Compare; 1] {
    [Compare::mod_revision(STOCK, CompareOp::Equal, seen.revision)]
}

#[async_trait]
impl Seller for Holder {
    async fn sell(&mut self) -> Result<Sale> {
        let guard = self.lock.acquire().await?;
        let seen = look(&mut self.client).await?;
        let sale = match seen.pieces.checked_sub(1) {
            Some(fewer) => {
                let held = [transaction::is_held(&self.driver, &guard)];
                let sale = Txn::new().when(held).and_then(write(fewer));
                if !self.client.txn(sale).await?.succeeded() {
                    return Err("the lock was lost".into());
                }
                Sale::Sold(1)
            }
            None => Sale::SoldOut,
        };
        guard.release().await?;
        Ok(sale)
    }

    async fn close(self: Box<Self>) {
        self.locker.shutdown().await;
    }
}

#[async_trait]
impl Seller for Taker {
    async fn sell(&mut self) -> Result<Sale> {
        for tries in 1.. {
            let seen = match self.seen.take() {
                Some(seen) if seen.pieces > 0 => seen,
                // There may be more by now.
                _ => look(&mut self.client).await?,
            };
            let Some(fewer) = seen.pieces.checked_sub(1) else { break };
            let sale = Txn::new().when(is_as_seen(seen)).and_then(write(fewer));
            let sale = sale.or_else([TxnOp::get(STOCK, None)]);
            let answer = self.client.txn(sale).await?;
            if answer.succeeded() {
                let revision = answer.header().ok_or("an answer without a header")?.revision();
                self.seen = Some(Stock { pieces: fewer, revision });
                return Ok(Sale::Sold(tries));
            }
            match answer.op_responses().first() {
                Some(TxnOpResponse::Get(found)) => self.seen = Some(stock(found.kvs().first())?),
                other => return Err(nonsense(other)),
            }
        }
        Ok(Sale::SoldOut)
    }

    async fn close(self: Box<Self>) {}
}

#[async_trait]
impl Seller for Trier {
    async fn sell(&mut self) -> Result<Sale> {
        for tries in 1.. {
            let seen = look(&mut self.0).await?;
            let Some(fewer) = seen.pieces.checked_sub(1) else { break };
            let sale = Txn::new().when(is_as_seen(seen)).and_then(write(fewer));
            if self.0.txn(sale).await?.succeeded() {
                return Ok(Sale::Sold(tries));
            }
        }
        Ok(Sale::SoldOut)
    }

    async fn close(self: Box<Self>) {}
}
