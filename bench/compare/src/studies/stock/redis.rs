//! A stock in Redis.

use std::sync::LazyLock;

use async_trait::async_trait;
use lockkit::redis::gate::{self, redis};
use lockkit_bench::Result;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, Client, Script};

use super::{Locked, Sale, Seller, Shop, Way, token};

/// Where the stock is.
const STOCK: &str = "shop:stock";
const GATE: &str = "shop:gate";

pub(super) struct Redis {
    url: String,
    /// The server that has the stock: of several, the first.
    client: Client,
}

/// A seller has a connection that no other has.
struct Holder {
    locked: Locked,
    connection: MultiplexedConnection,
}

struct Taker(MultiplexedConnection);

struct Trier(MultiplexedConnection);

impl Redis {
    pub(super) async fn open(url: String, servers: &[String]) -> Result<Self> {
        let server = servers.first().ok_or("no server")?;
        Ok(Self { url, client: Client::open(server.as_str())? })
    }

    async fn connection(&self) -> Result<MultiplexedConnection> {
        Ok(self.client.get_multiplexed_async_connection().await?)
    }
}

#[async_trait]
impl Shop for Redis {
    async fn fill(&self, _: Way, pieces: u64) -> Result<()> {
        Ok(self.connection().await?.set(STOCK, pieces).await?)
    }

    async fn left(&self, _: Way) -> Result<u64> {
        Ok(self.connection().await?.get(STOCK).await?)
    }

    async fn seller(&self, way: Way) -> Result<Box<dyn Seller>> {
        let connection = self.connection().await?;
        Ok(match way {
            Way::Lock(subject) => {
                Box::new(Holder { locked: Locked::at(&self.url, subject).await?, connection })
            }
            Way::Atomic => Box::new(Taker(connection)),
            Way::Version => Box::new(Trier(connection)),
        })
    }
}

#[async_trait]
impl Seller for Holder {
    async fn sell(&mut self) -> Result<Sale> {
        let guard = self.locked.lock.acquire().await?;
        let connection = &mut self.connection;
        let sale = match guard.fencing_token() {
            Some(_) => {
                let token = token(&guard)?;
                // Nothing of an earlier holder is written from then on.
                let look = redis::pipe().get(STOCK).to_owned();
                let (left,): (u64,) = gate::pass(connection, GATE, token, &look).await?;
                match left.checked_sub(1) {
                    Some(fewer) => {
                        let write = redis::pipe().set(STOCK, fewer).to_owned();
                        let (): () = gate::pass(connection, GATE, token, &write).await?;
                        Sale::Sold(1)
                    }
                    None => Sale::SoldOut,
                }
            }
            // A majority gives no tokens.
            None => {
                let left: u64 = connection.get(STOCK).await?;
                match left.checked_sub(1) {
                    Some(fewer) => {
                        let (): () = connection.set(STOCK, fewer).await?;
                        Sale::Sold(1)
                    }
                    None => Sale::SoldOut,
                }
            }
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
        static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("take.lua")));
        let mut call = TAKE.prepare_invoke();
        let is_sold: bool = call.key(STOCK).invoke_async(&mut self.0).await?;
        Ok(if is_sold { Sale::Sold(1) } else { Sale::SoldOut })
    }

    async fn close(self: Box<Self>) {}
}

#[async_trait]
impl Seller for Trier {
    async fn sell(&mut self) -> Result<Sale> {
        for tries in 1.. {
            let (_, left): ((), u64) =
                redis::pipe().cmd("WATCH").arg(STOCK).get(STOCK).query_async(&mut self.0).await?;
            let Some(fewer) = left.checked_sub(1) else {
                let (): () = redis::cmd("UNWATCH").query_async(&mut self.0).await?;
                break;
            };
            // Nothing, if somebody has written meanwhile.
            let mut write = redis::pipe();
            write.atomic().set(STOCK, fewer);
            let done: Option<((),)> = write.query_async(&mut self.0).await?;
            if done.is_some() {
                return Ok(Sale::Sold(tries));
            }
        }
        Ok(Sale::SoldOut)
    }

    async fn close(self: Box<Self>) {}
}
