//! Who holds and who waits, according to the keys.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, GetOptions, KeyValue, SortOrder, SortTarget};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use lockkit_core::driver::{DriverError, ErrorKind, Inspect, Limit, OwnerId};
use lockkit_core::{Diagnosis, FencingToken, Holder, LockName, LockStatus, Namespace, Waiter};

use crate::diagnosis;
use crate::driver::EtcdDriver;
use crate::error::Failure;
use crate::layout::Queue;
use crate::{members, queue};

/// How many leases are asked about at once.
const MOST_AT_ONCE: usize = 16;

#[async_trait]
impl Inspect for EtcdDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let keys = self
            .keys(Queue::of(name, self.dialect).prefix(), 0)
            .await
            .map_err(Failure::without_effect)?;
        self.status_of(name.clone(), &keys).await.map_err(Failure::without_effect)
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let keys = self
            .keys(&self.dialect.prefix_of(namespace), 0)
            .await
            .map_err(Failure::without_effect)?;
        let mut queues: Vec<(LockName, Vec<KeyValue>)> = Vec::new();
        let mut named: Vec<_> = keys
            .into_iter()
            .filter_map(|kv| self.dialect.name_at(kv.key(), namespace).map(|name| (name, kv)))
            .collect();
        // The sort is stable, so that each queue stays in its order.
        named.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (name, kv) in named {
            match queues.last_mut() {
                Some((last, queue)) if *last == name => queue.push(kv),
                _ => queues.push((name, vec![kv])),
            }
        }
        let statuses = queues.into_iter().map(|(name, queue)| async move {
            match self.status_of(name.clone(), &queue).await {
                // Something else is where the holder's key would be; that hides no other lock.
                Err(Failure::Foreign(_)) => Ok(LockStatus::free(name)),
                status => status,
            }
        });
        let statuses: Result<Vec<_>, _> =
            stream::iter(statuses).buffered(MOST_AT_ONCE).try_collect().await;
        let is_held = |status: &LockStatus| status.holder().is_some();
        statuses
            .map(|statuses| statuses.into_iter().filter(is_held).collect())
            .map_err(Failure::without_effect)
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        let queue = Queue::of(name, self.dialect);
        let all = self.inspection_limit();
        // Another claim may hold the lock by the time the hold is broken.
        while !all.left().is_zero() {
            let keys = self.keys(queue.prefix(), 1).await.map_err(Failure::without_effect)?;
            let Some(first) = keys.first() else { return Ok(None) };
            let holder = self.holder_of(first).await.map_err(Failure::without_effect)?;
            if owner.is_some_and(|owner| holder.owner() != owner) {
                return Ok(None);
            }
            let (key, created) = (first.key(), first.create_revision());
            let limit = self.inspection_limit();
            let left = queue::leave(&self.members, key, created, limit).await;
            // If the key was gone, but an attempt was not answered, that attempt has done it.
            if left.outcome.map_err(Failure::of_a_request)? || left.in_doubt {
                return Ok(Some(holder));
            }
        }
        let text = "the lock changes hands faster than a hold can be broken";
        Err(DriverError::new(ErrorKind::Unreachable, text))
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        diagnosis::diagnose(self, namespace).await.map_err(Failure::without_effect)
    }
}

impl EtcdDriver {
    /// The keys that begin with `prefix`, in the order of their creation: all of them, or as many
    /// as `limit` says.
    async fn keys(&self, prefix: &str, limit: i64) -> Result<Vec<KeyValue>, Failure> {
        let options = GetOptions::new().with_prefix().with_limit(limit);
        let options = options.with_sort(SortTarget::Create, SortOrder::Ascend);
        let read = |client: Arc<Client>| {
            let options = options.clone();
            async move { members::kv(&client).get(prefix, Some(options)).await }
        };
        let mut answer = self.members.call(self.inspection_limit(), read).await.outcome?;
        self.members.check(answer.header())?;
        Ok(answer.take_kvs())
    }

    /// The status of the lock whose keys these are.
    async fn status_of(&self, name: LockName, keys: &[KeyValue]) -> Result<LockStatus, Failure> {
        let status = LockStatus::free(name);
        let Some((first, others)) = keys.split_first() else { return Ok(status) };
        let holder = self.holder_of(first).await?;
        // By what is behind the holder and is not ours, nobody waits.
        let waiters = others.iter().filter_map(|kv| self.waiter_of(kv).ok()).collect();
        Ok(status.held_by(holder).waited_for_by(waiters))
    }

    async fn holder_of(&self, kv: &KeyValue) -> Result<Holder, Failure> {
        let token = FencingToken::try_from(kv.create_revision()).ok();
        let (owner, label) = self.dialect.owner_of(kv)?;
        let holder = Holder::new(owner)
            .labelled(label)
            .with_token(token.ok_or(Failure::Foreign("a revision that is not positive"))?);
        Ok(match self.remaining(kv.lease()).await? {
            Some(remaining) => holder.with_remaining(remaining),
            None => holder,
        })
    }

    /// How much longer a lease lasts; `None` for a key without one.
    async fn remaining(&self, lease: i64) -> Result<Option<Duration>, Failure> {
        /// The server counts only seconds that are over: this is the middle of what is meant.
        const HALF: Duration = Duration::from_millis(500);
        if lease == 0 {
            return Ok(None);
        }
        let ask = |client: Arc<Client>| async move {
            client.lease_client().time_to_live(lease, None).await
        };
        let answer = self.members.call(self.inspection_limit(), ask).await.outcome?;
        let seconds = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        // Below zero is a lease that is over, whose keys go any moment.
        Ok(Some(match answer.ttl() {
            ..0 => Duration::ZERO,
            left => (seconds(left) + HALF).min(seconds(answer.granted_ttl())),
        }))
    }

    fn waiter_of(&self, kv: &KeyValue) -> Result<Waiter, Failure> {
        let (owner, label) = self.dialect.owner_of(kv)?;
        Ok(Waiter::new(owner).labelled(label))
    }

    /// The limit for one request, from now on.
    pub(crate) fn inspection_limit(&self) -> Limit {
        Limit::new(self.call_limit.of_a_look())
    }
}
