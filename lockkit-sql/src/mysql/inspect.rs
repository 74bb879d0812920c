//! Who holds a lock and who waits for it, as the rows tell.

use async_trait::async_trait;
use lockkit_core::driver::{DriverError, ErrorKind, Inspect, Limit, OwnerId};
use lockkit_core::{Diagnosis, Holder, LockName, LockStatus, Namespace, Waiter};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::claims::{self, RELEASE};
use super::connections::{Steps, Transaction, Value};
use super::diagnosis;
use super::driver::MysqlDriver;
use super::error::Failure;
use super::queue::Lock;
use crate::micros::duration;
use crate::seats::Urgency;

const STATUS: &str = include_str!("sql/status.sql");
const HELD: &str = include_str!("sql/held.sql");

#[async_trait]
impl Inspect for MysqlDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let ([namespace, lock], [of_namespace, of_lock]) = (claims::of(name), claims::of(name));
        let values = [namespace, lock, of_namespace, of_lock];
        let rows = self.read(STATUS, &values).await.map_err(Failure::without_effect)?;
        status_of(name.clone(), &rows).map_err(Failure::without_effect)
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let value = Value::text(namespace.as_str());
        let rows = self.read(HELD, &[value, value]).await.map_err(Failure::without_effect)?;
        rows.chunk_by(|row, next| bytes_of(row, "name").ok() == bytes_of(next, "name").ok())
            .map(|rows| status_of(name_of(namespace, &rows[0])?, rows))
            .collect::<Result<_, _>>()
            .map_err(Failure::without_effect)
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        let steps = Break { name, owner, run_out: self.sights.is_some() };
        let within = self.inspection_limit();
        let broken = self.connections.transact(&steps, Urgency::Releases, within).await;
        let broken = broken.map_err(Failure::of_a_request)?;
        if let Some(holder) = &broken {
            self.neighbours.go(holder.owner());
            self.bell.ring(name, true, true, within).await;
        }
        Ok(broken)
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        diagnosis::diagnose(self, namespace).await.map_err(Failure::without_effect)
    }
}

impl MysqlDriver {
    /// A request that only reads.
    pub(super) async fn read(
        &self,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<Vec<MySqlRow>, Failure> {
        self.connections.read(statement, values, self.inspection_limit()).await
    }

    pub(super) fn inspection_limit(&self) -> Limit {
        Limit::new(self.call_limit.of_a_look())
    }
}

/// Ends the hold, if it is that of `owner` or no owner is named, and says whose it was.
struct Break<'a> {
    name: &'a LockName,
    owner: Option<OwnerId>,
    /// Whether to end even a hold that has run out, which nobody may take over yet.
    run_out: bool,
}

impl Steps for Break<'_> {
    type Answer = Option<Holder>;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<Option<Holder>, Failure> {
        let lock = Lock::locked(transaction, self.name).await?;
        if lock.is_none() {
            claims::check_takes_writes(transaction).await?;
        }
        let lock = lock.filter(|lock| self.run_out || lock.is_held());
        let Some((lock, held_by)) = lock.and_then(|mut lock| {
            let owner = lock.owner.take()?;
            Some((lock, owner))
        }) else {
            return Ok(None);
        };
        let owner = owner_of(&held_by)?;
        if self.owner.is_some_and(|named| named != owner) {
            return Ok(None);
        }
        let [namespace, name] = claims::of(self.name);
        transaction.write(RELEASE, &[namespace, name, Value::Bytes(&held_by)]).await?;
        let times = (lock.time - lock.since, lock.expires - lock.time);
        holder(owner, lock.label.as_deref(), lock.token, times).map(Some)
    }
}

/// The status of the lock whose rows these are.
fn status_of(name: LockName, rows: &[MySqlRow]) -> Result<LockStatus, Failure> {
    let mut status = LockStatus::free(name);
    let mut waiters = Vec::new();
    for row in rows {
        let owner = owner_of(bytes_of(row, "owner")?)?;
        let label: Option<&[u8]> = row.try_get("label")?;
        let age: i64 = row.try_get("age")?;
        match row.try_get::<i64, _>("is_place")? {
            0 => {
                let times = (age, row.try_get("remaining")?);
                status = status.held_by(holder(owner, label, row.try_get("token")?, times)?);
            }
            _ => {
                let waiter = Waiter::new(owner).labelled(label.unwrap_or_default());
                waiters.push(waiter.with_waiting_for(duration(age)));
            }
        }
    }
    Ok(status.waited_for_by(waiters))
}

/// Who holds the lock; the last parameter is the age of the hold and what remains of it.
fn holder(
    owner: OwnerId,
    label: Option<&[u8]>,
    token: i64,
    (age, remaining): (i64, i64),
) -> Result<Holder, Failure> {
    Ok(Holder::new(owner)
        .labelled(label.unwrap_or_default())
        .with_token(claims::token(token)?)
        .with_held_for(duration(age))
        .with_remaining(duration(remaining)))
}

pub(super) fn owner_of(bytes: &[u8]) -> Result<OwnerId, Failure> {
    let owner = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    owner.ok_or(Failure::found(ErrorKind::Foreign, "an owner in a row is none"))
}

pub(super) fn name_of(namespace: &Namespace, row: &MySqlRow) -> Result<LockName, Failure> {
    let name = std::str::from_utf8(bytes_of(row, "name")?).ok();
    name.and_then(|name| LockName::new(namespace, name).ok())
        .ok_or(Failure::found(ErrorKind::Foreign, "a name in a row is none"))
}

pub(super) fn bytes_of<'r>(row: &'r MySqlRow, column: &str) -> Result<&'r [u8], Failure> {
    Ok(row.try_get(column)?)
}
