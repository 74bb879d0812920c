//! Who holds a lock, as the server's locks and our rows tell.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{DriverError, ErrorKind, Inspect, OwnerId};
use lockkit_core::{Diagnosis, Holder, LockName, LockStatus, Namespace};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::diagnosis;
use super::driver::PostgresSessionDriver;
use crate::postgres::connections::Value;
use crate::postgres::error::Failure;
use crate::postgres::inspect::{holder_of, name_of};
use crate::seats::Urgency;
use crate::session::Server as _;

const STATUS: &str = "SELECT pid, program, namespace, name, owner, label, token, age \
     FROM lockkit_session_status($1::bigint)";
const HELD: &str = include_str!("../sql/sessions.sql");
/// Before the function looks at the table, it is said how long to wait for that.
const BREAK: &str = "SELECT pid, program, namespace, name, owner, label, token, age, others, is_over \
     FROM (SELECT $3::bigint AS patience, set_config('lock_timeout', $3::text, true) OFFSET 0) AS begun, \
          LATERAL lockkit_session_break($1::bigint, $2::text, begun.patience)";

#[async_trait]
impl Inspect for PostgresSessionDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let look = async {
            let key = self.sessions.server().key(name)?;
            let rows = self.read(STATUS, &[Value::Integer(key)]).await?;
            let status = LockStatus::free(name.clone());
            Ok(match rows.first() {
                Some(row) => status.held_by(holder(name, row)?),
                None => status,
            })
        };
        look.await.map_err(Failure::without_effect)
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let values = [Value::Text(namespace.as_str())];
        let rows = self.read(HELD, &values).await.map_err(Failure::without_effect)?;
        rows.iter()
            .map(|row| {
                let name = name_of(namespace, row)?;
                let holder = holder(&name, row)?;
                Ok(LockStatus::free(name).held_by(holder))
            })
            .collect::<Result<_, _>>()
            .map_err(Failure::without_effect)
    }

    /// Ends the session, so this is done only where it holds nothing else.
    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        let limit = self.inspection_limit();
        let broken = async {
            let key = self.sessions.server().key(name)?;
            let values = [Value::Integer(key), Value::Owner(owner), Value::Patience];
            let rows = self.lookout.request(BREAK, &values, Urgency::Releases, limit).await?;
            let Some(row) = rows.first() else {
                return self.nobody_to_break(key, owner).await;
            };
            let pid: i32 = row.try_get("pid")?;
            let others: Option<&str> = row.try_get("others")?;
            match (row.try_get("is_over")?, row.try_get::<Option<&str>, _>("owner")?, others) {
                (true, ..) => holder(name, row).map(Some),
                (false, None, _) => Err(Failure::found(
                    ErrorKind::Unsupported,
                    format!("another program holds it, by the session {pid}"),
                )),
                (false, Some(_), Some(others)) => Err(Failure::found(
                    ErrorKind::Unsupported,
                    format!(
                        "a hold ends with its session only, and the session {pid} holds these \
                         locks as well: {others}; SELECT pg_terminate_backend({pid}) ends all"
                    ),
                )),
                (false, Some(_), None) => Err(Failure::NoAnswer(limit)),
            }
        };
        broken.await.map_err(Failure::of_a_request)
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        diagnosis::diagnose(self, namespace).await.map_err(Failure::without_effect)
    }
}

impl PostgresSessionDriver {
    /// After a break that found no session to end. A prepared transaction is of none.
    async fn nobody_to_break(
        &self,
        key: i64,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, Failure> {
        if owner.is_none()
            && let Some(row) = self.read(STATUS, &[Value::Integer(key)]).await?.first()
            && row.try_get::<Option<i32>, _>("pid")?.is_none()
        {
            return Err(Failure::found(
                ErrorKind::Unsupported,
                "a prepared transaction holds it: see pg_prepared_xacts",
            ));
        }
        Ok(None)
    }

    /// A request that only reads.
    pub(super) async fn read(
        &self,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<Vec<PgRow>, Failure> {
        let limit = self.inspection_limit();
        self.lookout.request_of_tables(statement, values, limit).await
    }

    fn inspection_limit(&self) -> Duration {
        self.call_limit.of_a_look()
    }
}

/// Who holds the lock of this name. Of a session that took the key otherwise, for another program
/// or under another name, only the process is known: its id stands in for that of an owner. A
/// prepared transaction has none.
fn holder(name: &LockName, row: &PgRow) -> Result<Holder, Failure> {
    let row_is_of: (Option<&str>, Option<&str>) = (row.try_get("namespace")?, row.try_get("name")?);
    if row_is_of == (Some(name.namespace().as_str()), Some(name.as_str())) {
        return holder_of(row);
    }
    let pid: Option<i32> = row.try_get("pid")?;
    let program: Option<&str> = row.try_get("program")?;
    let called = match (pid, program) {
        (None, _) => "a prepared transaction".to_owned(),
        (Some(pid), None | Some("")) => format!("session {pid}"),
        (Some(pid), Some(program)) => format!("session {pid} of {program}"),
    };
    let owner = format!("{:032x}", pid.unwrap_or_default()).parse().map_err(|error| {
        Failure::found(ErrorKind::Foreign, format!("no id for {called}: {error}"))
    })?;
    Ok(Holder::new(owner).labelled(called))
}
