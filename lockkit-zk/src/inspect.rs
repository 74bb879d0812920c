use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use lockkit_core::driver::{DriverError, ErrorKind, Inspect, Limit, OwnerId};
use lockkit_core::{Diagnosis, Holder, LockName, LockStatus, Namespace, Waiter};
use zookeeper_client::{CreateMode, Error, MultiWriteError, MultiWriteResult, Stat};

use crate::diagnosis;
use crate::driver::{Shared, ZooKeeperDriver};
use crate::error::Failure;
use crate::queue::{children_synced, in_order, token};
use crate::session::within;

/// A node of a lock: it holds, or it waits.
#[derive(Debug)]
struct Contender {
    /// What its node is called.
    node: String,
    owner: Option<OwnerId>,
}

/// How many nodes are asked for in one go.
const AT_ONCE: usize = 64;

#[async_trait]
impl Inspect for ZooKeeperDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let (now, queue) = tokio::join!(self.shared.now(name.namespace()), self.shared.queue(name));
        self.shared.look(name, queue, now).await
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let shared = &self.shared;
        let folder = shared.layout.namespace(namespace);
        let (now, listed) = tokio::join!(shared.now(namespace), shared.list(&folder));
        let listed = listed.map_err(Failure::without_effect)?;
        let names = listed.iter().filter_map(|segment| shared.layout.name(namespace, segment));
        let mut names: Vec<_> = names.collect();
        names.sort();
        let mut held = Vec::new();
        for names in names.chunks(AT_ONCE) {
            let looks = names.iter().map(|name| async move {
                match shared.look(name, shared.queue(name).await, now).await {
                    // Something of somebody else's, where a lock would be, or a lock that is not for
                    // this user to see.
                    Err(error) if is_for_others(&error) => {
                        tracing::debug!(lock = %name, %error, "not listed");
                        Ok(None)
                    }
                    status => status.map(Some),
                }
            });
            let found = try_join_all(looks).await?.into_iter().flatten();
            held.extend(found.filter(|status| status.holder().is_some()));
        }
        Ok(held)
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        let (shared, all) = (&self.shared, self.shared.inspection_limit());
        let folder = shared.layout.lock(name);
        // Another claim may hold the lock by the time the hold is broken.
        while !all.left().is_zero() {
            let (now, queue) = tokio::join!(shared.now(name.namespace()), shared.queue(name));
            let queue = queue.map_err(Failure::without_effect)?;
            let Some(first) = queue.first() else { return Ok(None) };
            if owner.is_some() && first.owner != owner {
                return Ok(None);
            }
            let node = shared.node(&folder, first).await.map_err(Failure::without_effect)?;
            let Some((data, stat)) = node else { continue };
            let holder = holder(first, &data, &stat, now)?;
            let path = [&folder, "/", &first.node].concat();
            let session = shared.sessions.connected(all).await.map_err(Failure::without_effect)?;
            // The name of a node is used only once, so this is nobody else's.
            let delete = session.send(|| session.client().delete(&path, None));
            match session.write(all, delete).await {
                Ok(()) => return Ok(Some(holder)),
                Err(failure) if failure.is_no_node() => (),
                Err(failure) => return Err(failure.of_a_request()),
            }
        }
        let text = "the lock changes hands faster than a hold can be broken";
        Err(DriverError::new(ErrorKind::Unreachable, text))
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        diagnosis::diagnose(&self.shared, namespace).await.map_err(Failure::without_effect)
    }
}

impl Shared {
    async fn look(
        &self,
        name: &LockName,
        queue: Result<Vec<Contender>, Failure>,
        now: Option<i64>,
    ) -> Result<LockStatus, DriverError> {
        let queue = queue.map_err(Failure::without_effect)?;
        let folder = self.layout.lock(name);
        let mut nodes = Vec::with_capacity(queue.len());
        for contenders in queue.chunks(AT_ONCE) {
            let read = contenders.iter().map(|contender| self.node(&folder, contender));
            nodes.extend(try_join_all(read).await.map_err(Failure::without_effect)?);
        }
        // Whoever has left meanwhile is left out.
        let mut there =
            queue.iter().zip(nodes).filter_map(|(contender, node)| Some((contender, node?)));
        let mut status = LockStatus::free(name.clone());
        if let Some((contender, (data, stat))) = there.next() {
            status = status.held_by(holder(contender, &data, &stat, now)?);
        }
        let waiters = there.map(|(contender, (data, stat))| waiter(contender, &data, &stat, now));
        Ok(status.waited_for_by(waiters.collect::<Result<_, _>>()?))
    }

    /// The time on the servers' clock, in milliseconds, if they say so.
    ///
    /// The servers tell the time only when something is written. So this makes a node and removes
    /// it again in one step, which nobody sees, beside the locks and not among anybody's nodes.
    async fn now(&self, namespace: &Namespace) -> Option<i64> {
        let told = async {
            let limit = self.inspection_limit();
            let session = self.sessions.connected(limit).await?;
            let path = format!("{}/{}", self.layout.namespace(namespace), OwnerId::random());
            let mut writer = session.client().new_multi_writer();
            let options = CreateMode::Persistent.with_acls(self.sessions.endpoint().acls());
            writer.add_create(&path, b"", &options)?;
            writer.add_set_data(&path, b"", None)?;
            writer.add_delete(&path, None)?;
            let results = within(limit, writer.commit()).await?.map_err(|error| match error {
                MultiWriteError::RequestFailed { source }
                | MultiWriteError::OperationFailed { source, .. } => Failure::from(source),
            })?;
            Ok(results.into_iter().find_map(|result| match result {
                // Only from some versions on does the answer to the creation have a time.
                MultiWriteResult::SetData { stat } => Some(stat.mtime),
                _ => None,
            }))
        };
        told.await.unwrap_or_else(|failure: Failure| {
            // Where there are no locks, or only others may use them, the other requests say so.
            tracing::debug!(%failure, "the servers' time is not known");
            None
        })
    }

    /// The nodes of a lock, in the order in which they are served.
    async fn queue(&self, name: &LockName) -> Result<Vec<Contender>, Failure> {
        let (limit, folder) = (self.inspection_limit(), self.layout.lock(name));
        let session = self.sessions.connected(limit).await?;
        let listed = children_synced(&session, &folder, limit).await?;
        let ordered = in_order(session.client(), &self.layout, &folder, listed);
        let nodes = session.read(limit, ordered).await??;
        let contender = |node: String| Contender { owner: self.layout.owner(&node), node };
        Ok(nodes.into_iter().map(contender).collect())
    }

    /// The nodes in a folder at the time the leader is asked, or later.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<String>, Failure> {
        let limit = self.inspection_limit();
        let session = self.sessions.connected(limit).await?;
        children_synced(&session, folder, limit).await
    }

    /// The data and the stat of a node, if it is still there.
    async fn node(
        &self,
        folder: &str,
        contender: &Contender,
    ) -> Result<Option<(Vec<u8>, Stat)>, Failure> {
        let (limit, path) = (self.inspection_limit(), [folder, "/", &contender.node].concat());
        let session = self.sessions.connected(limit).await?;
        match session.read(limit, session.client().get_data(&path)).await {
            Err(Failure::Client(Error::NoNode)) => Ok(None),
            node => node.map(Some),
        }
    }

    pub(crate) fn inspection_limit(&self) -> Limit {
        Limit::new(self.call_limit.of_a_look())
    }
}

fn is_for_others(error: &DriverError) -> bool {
    matches!(error.kind(), ErrorKind::Foreign | ErrorKind::Denied)
}

fn holder(
    contender: &Contender,
    data: &[u8],
    stat: &Stat,
    now: Option<i64>,
) -> Result<Holder, DriverError> {
    let mut holder = Holder::new(owner(contender)?).labelled(data).with_token(token(stat.czxid)?);
    // A holder that had to wait wrote to its node once the lock was granted.
    if let Some(now) = now {
        holder = holder.with_held_for(since(stat.mtime, now));
    }
    Ok(holder)
}

fn waiter(
    contender: &Contender,
    data: &[u8],
    stat: &Stat,
    now: Option<i64>,
) -> Result<Waiter, DriverError> {
    let mut waiter = Waiter::new(owner(contender)?).labelled(data);
    if let Some(now) = now {
        waiter = waiter.with_waiting_for(since(stat.ctime, now));
    }
    Ok(waiter)
}

/// How long ago `time` was. Whatever came after the clock was asked is new, and so is whatever is
/// later by another server's clock.
fn since(time: i64, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(now.saturating_sub(time)).unwrap_or(0))
}

fn owner(contender: &Contender) -> Result<OwnerId, DriverError> {
    contender.owner.ok_or_else(|| Failure::Foreign(contender.node.clone()).without_effect())
}
