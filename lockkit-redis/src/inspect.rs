use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use lockkit_core::driver::{DriverError, ErrorKind, Inspect, OwnerId};
use lockkit_core::{Diagnosis, Holder, LockName, LockStatus, Namespace, Waiter};
use redis::Value;

use crate::diagnosis::{self, Part};
use crate::dialect::Dialect;
use crate::driver::{RedisDriver, parse};
use crate::endpoint::Endpoint;
use crate::layout::Layout;
use crate::plain;
use crate::request::Request;
use crate::script::{BREAK, LOOK};

/// How many keys the server goes through at a time.
const PAGE: usize = 1_000;
/// After how many pages the search is given up: a hundred million keys.
const PAGES: usize = 100_000;
/// How many locks are looked at in one go.
const LOOKS: usize = 64;

#[async_trait]
impl Inspect for RedisDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        if self.dialect == Dialect::Plain {
            return plain::look(self, name).await;
        }
        let layout = Layout::of(name);
        let answer = self.read(LOOK.on(&layout.keys(), &[])).await?;
        let (hold, places, listeners): (Option<Told>, Vec<(String, u64)>, u64) = parse(answer)?;
        let waiters = places.into_iter().map(waiter).collect::<Result<_, _>>()?;
        let mut status =
            LockStatus::free(name.clone()).waited_for_by(waiters).listened_to_by(listeners);
        if let Some(hold) = hold {
            status = status.held_by(holder(hold)?);
        }
        Ok(status)
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let names = Vec::from_iter(self.names(namespace).await?);
        let mut held = Vec::with_capacity(names.len());
        for names in names.chunks(LOOKS) {
            let looks = names.iter().map(|name| async move {
                match self.look(name).await {
                    // Something of somebody else's, at a key that a lock would have.
                    Err(error) if error.kind() == ErrorKind::Foreign => Ok(None),
                    status => status.map(Some),
                }
            });
            let found = try_join_all(looks).await?.into_iter().flatten();
            // A hold that has ended since it was found is left out.
            held.extend(found.filter(|status| status.holder().is_some()));
        }
        Ok(held)
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        if self.dialect == Dialect::Plain {
            return plain::break_hold(self, name, owner).await;
        }
        let layout = Layout::of(name);
        let owner = owner.map(|owner| owner.to_string()).unwrap_or_default();
        let answer = self.write(BREAK.on(&layout.keys(), &[&owner])).await?;
        parse::<Option<Told>>(answer)?.map(holder).transpose()
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        diagnosis::diagnose(self, namespace, Part::Alone).await
    }
}

impl RedisDriver {
    /// Asks for something, on behalf of no claim.
    pub(crate) async fn write(&self, request: impl Request) -> Result<Value, DriverError> {
        self.servers.call(&request, self.inspection_limit()).await
    }

    /// Asks for something that changes nothing, so that its outcome is never unknown.
    pub(crate) async fn read(&self, request: impl Request) -> Result<Value, DriverError> {
        self.read_at(None, request).await
    }

    /// As [`read`](Self::read), from one member of a cluster.
    pub(crate) async fn read_at(
        &self,
        member: Option<&Endpoint>,
        request: impl Request,
    ) -> Result<Value, DriverError> {
        let answer = self.servers.call_at(member, &request, self.inspection_limit()).await;
        answer.map_err(DriverError::without_effect)
    }

    fn inspection_limit(&self) -> Duration {
        self.call_limit.of_a_look()
    }

    /// The locks of the namespace that have a key. The server may name one twice.
    async fn names(&self, namespace: &Namespace) -> Result<BTreeSet<LockName>, DriverError> {
        let pattern = match self.dialect {
            Dialect::Lockkit => Layout::pattern(namespace),
            Dialect::Plain => plain::pattern(namespace),
        };
        let mut names = BTreeSet::new();
        for member in self.servers.members().await? {
            self.names_at(member.as_ref(), namespace, &pattern, &mut names).await?;
        }
        Ok(names)
    }

    async fn names_at(
        &self,
        member: Option<&Endpoint>,
        namespace: &Namespace,
        pattern: &str,
        names: &mut BTreeSet<LockName>,
    ) -> Result<(), DriverError> {
        let mut place = self.servers.place_of(member)?;
        let mut cursor = 0_u64;
        for _ in 0..PAGES {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(PAGE);
            let (next, keys): (u64, Vec<Vec<u8>>) = parse(self.read_at(member, scan).await?)?;
            match self.dialect {
                Dialect::Lockkit => {
                    names.extend(keys.iter().filter_map(|key| Layout::lock_at(key, namespace)));
                }
                Dialect::Plain => names.extend(plain::locks_at(self, &keys, namespace).await?),
            }
            // A cursor means nothing to another server, nor to the same one once it was restarted.
            if place.has_changed().unwrap_or(true) {
                place = self.servers.place_of(member)?;
                cursor = 0;
                continue;
            }
            match next {
                0 => return Ok(()),
                next => cursor = next,
            }
        }
        Err(DriverError::new(ErrorKind::Capacity, "the database has too many keys to search"))
    }
}

/// A hold as the scripts report it: owner, token, label, milliseconds since the grant, milliseconds
/// left.
type Told = (String, String, Option<String>, Option<u64>, u64);

fn holder((owner, token, label, since, remaining): Told) -> Result<Holder, DriverError> {
    let token = token.parse().map_err(foreign)?;
    let mut holder = Holder::new(owner.parse().map_err(foreign)?)
        .labelled(label.unwrap_or_default())
        .with_token(token)
        .with_remaining(Duration::from_millis(remaining));
    if let Some(since) = since {
        holder = holder.with_held_for(Duration::from_millis(since));
    }
    Ok(holder)
}

fn waiter((claimant, since): (String, u64)) -> Result<Waiter, DriverError> {
    let mut parts = claimant.splitn(3, ' ');
    let [owner, _inbox, label] = [(); 3].map(|()| parts.next().unwrap_or_default());
    Ok(Waiter::new(owner.parse().map_err(foreign)?)
        .labelled(label)
        .with_waiting_for(Duration::from_millis(since)))
}

pub(crate) fn foreign(error: impl std::error::Error + Send + Sync + 'static) -> DriverError {
    DriverError::new(ErrorKind::Foreign, error)
}
