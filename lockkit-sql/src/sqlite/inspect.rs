//! Who holds a lock and who waits for it, as the rows tell.

use async_trait::async_trait;
use lockkit_core::driver::{DriverError, Inspect, OwnerId};
use lockkit_core::{Diagnosis, Holder, LockName, LockStatus, Namespace, Waiter};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use tokio::time::Instant;

use super::claims::{Entry, owner};
use super::database::Value;
use super::diagnosis;
use super::driver::SqliteDriver;
use super::time::HostClock;
use crate::micros::duration;

const STATUS: &str = include_str!("status.sql");
const HELD: &str = include_str!("held.sql");
const BREAK: &str = include_str!("break.sql");

/// What counts on another clock, or expires later than its TTL from now, keeps others out until one
/// of them has watched it for its TTL. So it is shown, but without times.
#[async_trait]
impl Inspect for SqliteDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let rows = self.database.observe(STATUS, &about(name), self.inspection_deadline()).await?;
        let clock = self.database.clock();
        self.database.read(|| status_of(name.clone(), &rows, clock))
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let values = [Value::Text(namespace.as_str().into())];
        let rows = self.database.observe(HELD, &values, self.inspection_deadline()).await?;
        let clock = self.database.clock();
        self.database.read(|| {
            let mut held = Vec::new();
            for rows in rows.chunk_by(|row, next| text_of(row).ok() == text_of(next).ok()) {
                let status = status_of(name_of(namespace, &rows[0])?, rows, clock)?;
                held.extend(Some(status).filter(|status| status.holder().is_some()));
            }
            Ok(held)
        })
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        // Ending a hold in a file that others do not see would tell somebody that the hold is over.
        self.database.check_file()?;
        let [namespace, lock] = about(name);
        let clock = self.database.clock();
        let owner = Value::Text(owner.map_or_else(String::new, |owner| owner.to_string()));
        let values =
            [namespace, lock, owner, Value::Text(clock.id().into()), Value::Integer(clock.now())];
        let rows = self.database.request(BREAK, &values, self.inspection_deadline()).await?;
        let broken = self.database.read(|| Broken::read(&rows, clock))?;
        if broken.was_there {
            self.wakeups.wake(name, broken.next);
        }
        Ok(broken.holder)
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        Ok(diagnosis::diagnose(&self.database, namespace).await)
    }
}

impl SqliteDriver {
    fn inspection_deadline(&self) -> Instant {
        Instant::now() + self.call_limit.of_a_look()
    }
}

fn about(name: &LockName) -> [Value; 2] {
    [name.namespace().as_str(), name.as_str()].map(|text| Value::Text(text.into()))
}

/// What breaking a hold found.
struct Broken {
    /// Whether there was a row, even one that had run out.
    was_there: bool,
    holder: Option<Holder>,
    /// The owner whose place is the first one now.
    next: Option<OwnerId>,
}

impl Broken {
    fn read(rows: &[SqliteRow], clock: &HostClock) -> Result<Self, sqlx::Error> {
        let now = clock.now();
        let mut broken = Self { was_there: false, holder: None, next: None };
        for row in rows {
            match row.try_get("kind")? {
                "hold" => (broken.was_there, broken.holder) = (true, holder_of(row, clock, now)?),
                _ => broken.next = Some(owner(row)?),
            }
        }
        Ok(broken)
    }
}

/// The status of the lock whose rows these are.
fn status_of(
    name: LockName,
    rows: &[SqliteRow],
    clock: &HostClock,
) -> Result<LockStatus, sqlx::Error> {
    // Read after the rows, so that nothing in them is from later.
    let now = clock.now();
    let mut status = LockStatus::free(name);
    let mut waiters = Vec::new();
    for row in rows {
        match row.try_get("kind")? {
            "hold" => {
                if let Some(holder) = holder_of(row, clock, now)? {
                    status = status.held_by(holder);
                }
            }
            _ => waiters.extend(waiter_of(row, clock, now)?),
        }
    }
    Ok(status.waited_for_by(waiters))
}

/// Who holds the lock, unless the hold has run out.
fn holder_of(row: &SqliteRow, clock: &HostClock, now: i64) -> Result<Option<Holder>, sqlx::Error> {
    let hold = Entry::read(row)?;
    if hold.has_run_out(clock, now) {
        return Ok(None);
    }
    let mut holder = Holder::new(hold.owner).labelled(label_of(row)?);
    if let Some(token) = hold.fencing_token() {
        holder = holder.with_token(token);
    }
    if !hold.is_doubtful(clock, now) {
        let since: i64 = row.try_get("since")?;
        holder = holder
            .with_held_for(duration(now.saturating_sub(since)))
            .with_remaining(duration(hold.expires.saturating_sub(now)));
    }
    Ok(Some(holder))
}

/// Who has the place, unless it has run out.
fn waiter_of(row: &SqliteRow, clock: &HostClock, now: i64) -> Result<Option<Waiter>, sqlx::Error> {
    let place = Entry::read(row)?;
    if place.has_run_out(clock, now) {
        return Ok(None);
    }
    let mut waiter = Waiter::new(place.owner).labelled(label_of(row)?);
    if !place.is_doubtful(clock, now) {
        let since: i64 = row.try_get("since")?;
        waiter = waiter.with_waiting_for(duration(now.saturating_sub(since)));
    }
    Ok(Some(waiter))
}

fn label_of(row: &SqliteRow) -> Result<&str, sqlx::Error> {
    row.try_get("label")
}

fn text_of(row: &SqliteRow) -> Result<&str, sqlx::Error> {
    row.try_get("name")
}

fn name_of(namespace: &Namespace, row: &SqliteRow) -> Result<LockName, sqlx::Error> {
    LockName::new(namespace, text_of(row)?).map_err(|error| sqlx::Error::ColumnDecode {
        index: "name".into(),
        source: Box::new(error),
    })
}
