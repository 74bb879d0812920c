use std::time::{Duration, Instant};

use etcd_client::{
    Client as Connected, Compare, CompareOp, ConnectOptions, Event, EventType, GetOptions,
    PutOptions, SortOrder, SortTarget, Txn, TxnOp, WatchOptions,
};
use lockkit_bench::Result;

use super::{NAMESPACE, hosts, owner};
use crate::agent::{Client, Library, let_go_after};

/// A cluster.
pub(super) struct Floor {
    hosts: Vec<String>,
}

/// One client with a lease.
pub(super) struct Raw {
    client: Connected,
    lease: i64,
}

/// A key in a queue, and when it was created.
pub(super) struct Place {
    key: String,
    created: i64,
}

impl Floor {
    pub(super) fn at(urls: &[String]) -> Result<Self> {
        Ok(Self { hosts: hosts(urls)? })
    }
}

impl Library for Floor {
    type Client = Raw;

    async fn connect(&self) -> Result<Raw> {
        // As the driver does.
        let options = ConnectOptions::new()
            .with_require_leader(true)
            .with_keep_alive(Duration::from_secs(10), Duration::from_secs(5))
            .with_keep_alive_while_idle(false);
        let mut client = Connected::connect(&self.hosts, Some(options)).await?;
        let lease = client.lease_grant(600, None).await?.id();
        Ok(Raw { client, lease })
    }
}

impl Client for Raw {
    type Lock = String;
    type Hold = Place;

    fn lock(&self, name: &str) -> Result<String> {
        Ok(format!("lockkit/v1/{NAMESPACE}/{name}/"))
    }

    async fn acquire(&self, queue: &String) -> Result<Place> {
        let key = format!("{queue}{:x}", self.lease);
        let last = GetOptions::new().with_prefix().with_limit(3).with_keys_only();
        let last = last.with_sort(SortTarget::Create, SortOrder::Descend);
        let all = GetOptions::new().with_prefix().with_keys_only();
        let all = all.with_sort(SortTarget::Create, SortOrder::Ascend);
        let (owner, label) = owner();
        let put = TxnOp::put(
            &*key,
            format!("{owner} {label}"),
            Some(PutOptions::new().with_lease(self.lease)),
        );
        let txn = Txn::new()
            .when([Compare::create_revision(&*key, CompareOp::Equal, 0)])
            .and_then([put, TxnOp::get(queue.as_str(), Some(last))])
            .or_else([TxnOp::get(queue.as_str(), Some(all)), TxnOp::get(&*key, None)]);
        let answer = self.client.kv_client().txn(txn).await?;
        let created = answer.header().ok_or("no header")?.revision();
        Ok(Place { key, created })
    }

    async fn release(&self, _: &String, place: Place) -> Result<()> {
        let txn = Txn::new()
            .when([Compare::create_revision(&*place.key, CompareOp::Equal, place.created)])
            .and_then([TxnOp::delete(&*place.key, None)]);
        let answer = self.client.kv_client().txn(txn).await?;
        if answer.succeeded() { Ok(()) } else { Err("the key was not there".into()) }
    }

    /// A delete, and its event in another client's watch.
    async fn hand_overs(
        &self,
        to: &Self,
        name: &str,
        waits: &[Duration],
    ) -> Result<Option<Vec<Duration>>> {
        let queue = self.lock(name)?;
        let mut times = Vec::with_capacity(waits.len());
        for delay in waits {
            let place = self.acquire(&queue).await?;
            let mut client = to.client.clone();
            let mut news = client.watch(&*place.key, Some(WatchOptions::new())).await?;
            let waiting = tokio::spawn(async move {
                let deletes = |event: &Event| event.event_type() == EventType::Delete;
                while let Some(message) = news.message().await? {
                    if message.events().iter().any(deletes) {
                        return Ok(Instant::now());
                    }
                }
                Result::Err("the stream ended".into())
            });
            let start = let_go_after(*delay, || self.release(&queue, place)).await?;
            times.push(waiting.await??.saturating_duration_since(start));
        }
        Ok(Some(times))
    }
}
