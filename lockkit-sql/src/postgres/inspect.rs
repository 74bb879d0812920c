//! Who holds a lock and who waits for it, as the rows tell.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{DriverError, ErrorKind, Inspect, OwnerId};
use lockkit_core::{Diagnosis, Holder, LockName, LockStatus, Namespace, Waiter};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::claims;
use super::connections::Value;
use super::diagnosis;
use super::driver::PostgresDriver;
use super::error::Failure;
use crate::micros::duration;
use crate::seats::Urgency;

const STATUS: &str = include_str!("sql/status.sql");
const HELD: &str = include_str!("sql/held.sql");
const BREAK: &str = "SELECT owner, label, token, age, remaining \
     FROM lockkit_break($1::text, $2::text, $3::text, $4::boolean, $5::integer)";

#[async_trait]
impl Inspect for PostgresDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let rows = self.read(STATUS, &claims::of(name)).await.map_err(Failure::without_effect)?;
        status_of(name.clone(), &rows).map_err(Failure::without_effect)
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let values = [Value::Text(namespace.as_str())];
        let rows = self.read(HELD, &values).await.map_err(Failure::without_effect)?;
        rows.chunk_by(|row, next| text_of(row).ok() == text_of(next).ok())
            .map(|rows| status_of(name_of(namespace, &rows[0])?, rows))
            .collect::<Result<_, _>>()
            .map_err(Failure::without_effect)
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        let limit = self.inspection_limit();
        let [namespace, lock] = claims::of(name);
        let owner = Value::Owner(owner);
        let observes = Value::Boolean(self.sights.is_some());
        let values = [namespace, lock, owner, observes, Value::Patience];
        let broken = self.connections.request(BREAK, &values, Urgency::Releases, limit).await;
        let rows = broken.map_err(Failure::of_a_request)?;
        rows.first().map(leased_by).transpose().map_err(Failure::of_a_request)
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        diagnosis::diagnose(self, namespace).await.map_err(Failure::without_effect)
    }
}

impl PostgresDriver {
    /// A request that only reads.
    pub(super) async fn read(
        &self,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<Vec<PgRow>, Failure> {
        let limit = self.inspection_limit();
        self.connections.request_of_tables(statement, values, limit).await
    }

    fn inspection_limit(&self) -> Duration {
        self.call_limit.of_a_look()
    }
}

/// The status of the lock whose rows these are.
fn status_of(name: LockName, rows: &[PgRow]) -> Result<LockStatus, Failure> {
    let mut status = LockStatus::free(name);
    let mut waiters = Vec::new();
    for row in rows {
        match row.try_get("kind")? {
            "hold" => status = status.held_by(leased_by(row)?),
            "place" => waiters.push(waiter_of(row)?),
            _ => {
                let listeners: i64 = row.try_get("listeners")?;
                status = status.listened_to_by(listeners.try_into().unwrap_or(0));
            }
        }
    }
    Ok(status.waited_for_by(waiters))
}

fn leased_by(row: &PgRow) -> Result<Holder, Failure> {
    Ok(holder_of(row)?.with_remaining(duration(row.try_get("remaining")?)))
}

/// Who holds the lock whose row this is, whatever it is that ends the hold.
pub(super) fn holder_of(row: &PgRow) -> Result<Holder, Failure> {
    Ok(Holder::new(owner_of(row)?)
        .labelled(label_of(row)?)
        .with_token(claims::token(row.try_get("token")?)?)
        .with_held_for(duration(row.try_get("age")?)))
}

fn waiter_of(row: &PgRow) -> Result<Waiter, Failure> {
    Ok(Waiter::new(owner_of(row)?)
        .labelled(label_of(row)?)
        .with_waiting_for(duration(row.try_get("age")?)))
}

pub(super) fn owner_of(row: &PgRow) -> Result<OwnerId, Failure> {
    row.try_get::<&str, _>("owner")?
        .parse()
        .map_err(|error| Failure::found(ErrorKind::Foreign, format!("an owner in a row: {error}")))
}

/// Nothing, if there is none.
fn label_of(row: &PgRow) -> Result<&str, sqlx::Error> {
    Ok(row.try_get::<Option<_>, _>("label")?.unwrap_or_default())
}

fn text_of(row: &PgRow) -> Result<&str, sqlx::Error> {
    row.try_get("name")
}

pub(super) fn name_of(namespace: &Namespace, row: &PgRow) -> Result<LockName, Failure> {
    LockName::new(namespace, text_of(row)?)
        .map_err(|error| Failure::found(ErrorKind::Foreign, format!("a name in a row: {error}")))
}
