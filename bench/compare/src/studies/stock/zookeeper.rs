//! A stock in ZooKeeper.

use std::sync::Arc;

use async_trait::async_trait;
use client::{Acls, Client, CreateMode, Error};
use lockkit::{BackendUrl, Lock, Locker};
use lockkit_bench::Result;
use lockkit_zk::ZooKeeperDriver;
use lockkit_zk::transaction::{Transaction, client};

use super::{NAME, Sale, Seller, Shop, Way, nonsense};
use crate::servers::Servers;

/// Where the stock is.
const STOCK: &str = "/shop";

pub(super) struct ZooKeeper {
    url: BackendUrl,
    members: String,
    client: Client,
}

struct Holder {
    driver: Arc<ZooKeeperDriver>,
    locker: Locker,
    lock: Lock,
    client: Client,
}

struct Trier(Client);

impl ZooKeeper {
    pub(super) async fn open(servers: &Servers) -> Result<Self> {
        let members = servers.addresses().iter().map(ToString::to_string).collect::<Vec<_>>();
        let members = members.join(",");
        let client = Client::connect(&members).await?;
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create(STOCK, b"0", &options).await?;
        Ok(Self { url: servers.url().parse()?, members, client })
    }
}

#[async_trait]
impl Shop for ZooKeeper {
    async fn fill(&self, _: Way, pieces: u64) -> Result<()> {
        self.client.set_data(STOCK, pieces.to_string().as_bytes(), None).await?;
        Ok(())
    }

    async fn left(&self, _: Way) -> Result<u64> {
        Ok(look(&self.client).await?.0)
    }

    async fn seller(&self, way: Way) -> Result<Box<dyn Seller>> {
        match way {
            Way::Lock(_) => {
                let driver = Arc::new(ZooKeeperDriver::connect(&self.url).await?);
                let locker = Locker::from_arc(driver.clone());
                let lock = locker.lock(NAME)?;
                let client = Client::connect(&self.members).await?;
                Ok(Box::new(Holder { driver, locker, lock, client }))
            }
            Way::Atomic => Err("ZooKeeper does not count: its one operation is the one that \
                                compares versions"
                .into()),
            Way::Version => Ok(Box::new(Trier(Client::connect(&self.members).await?))),
        }
    }
}

/// How many there are, and in which version.
async fn look(client: &Client) -> Result<(u64, i32)> {
    // A member that follows may not have heard yet.
    client.sync(STOCK).await?;
    let (data, stat) = client.get_data(STOCK).await?;
    let text = String::from_utf8(data)?;
    Ok((text.parse().map_err(|_| nonsense(text))?, stat.version))
}

#[async_trait]
impl Seller for Holder {
    async fn sell(&mut self) -> Result<Sale> {
        let guard = self.lock.acquire().await?;
        let (left, _) = look(&self.client).await?;
        let sale = match left.checked_sub(1) {
            Some(fewer) => {
                let mut write = Transaction::new(guard.owner());
                write.set_data(STOCK, fewer.to_string(), None);
                write.commit(&self.driver).await?;
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
impl Seller for Trier {
    async fn sell(&mut self) -> Result<Sale> {
        for tries in 1.. {
            let (left, version) = look(&self.0).await?;
            let Some(fewer) = left.checked_sub(1) else { break };
            match self.0.set_data(STOCK, fewer.to_string().as_bytes(), Some(version)).await {
                Ok(_) => return Ok(Sale::Sold(tries)),
                Err(Error::BadVersion) => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Sale::SoldOut)
    }

    async fn close(self: Box<Self>) {}
}
