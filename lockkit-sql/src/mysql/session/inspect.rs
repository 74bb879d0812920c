//! Who holds a lock, as the server's locks and our rows tell.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{DriverError, ErrorKind, Inspect, Limit, OwnerId};
use lockkit_core::{Diagnosis, Holder, LockName, LockStatus, Namespace};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;
use tokio::time::sleep;

use super::diagnosis;
use super::driver::MysqlSessionDriver;
use crate::micros::duration;
use crate::mysql::claims;
use crate::mysql::connections::{Steps, Transaction, Value};
use crate::mysql::error::Failure;
use crate::mysql::inspect::{bytes_of, name_of, owner_of};
use crate::mysql::kill::{END, NO_SUCH_SESSION};
use crate::seats::Urgency;
use crate::session::Server as _;

const STATUS: &str = include_str!("../sql/session_status.sql");
const HELD: &str = include_str!("../sql/session_held.sql");
const OTHERS: &str = include_str!("../sql/session_others.sql");
const IF_IT_HOLDS: &str = include_str!("../sql/session_end.sql");

#[async_trait]
impl Inspect for MysqlSessionDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let look = async {
            let status = LockStatus::free(name.clone());
            Ok(match self.status(name, self.inspection_limit()).await? {
                Some(row) => status.held_by(holder(name, &row)?),
                None => status,
            })
        };
        look.await.map_err(Failure::without_effect)
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let values = [Value::text(namespace.as_str())];
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
        self.end_session(name, owner).await.map_err(Failure::of_a_request)
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        diagnosis::diagnose(self, namespace).await.map_err(Failure::without_effect)
    }
}

impl MysqlSessionDriver {
    /// A request that only reads.
    pub(super) async fn read(
        &self,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<Vec<MySqlRow>, Failure> {
        self.lookout.read(statement, values, self.inspection_limit()).await
    }

    async fn end_session(
        &self,
        name: &LockName,
        mut owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, Failure> {
        const PAUSE: Duration = Duration::from_millis(1);
        let within = self.inspection_limit();
        let key = self.sessions.server().key(name)?;
        loop {
            let Some(row) = self.status(name, within).await? else { return Ok(None) };
            let (id, held) = (row.try_get::<i64, _>("id")?, holder(name, &row)?);
            if owner.is_some_and(|owner| owner != held.owner()) {
                return Ok(None);
            }
            let Some(session) = row.try_get::<Option<&[u8]>, _>("session")? else {
                return Err(Failure::found(
                    ErrorKind::Unsupported,
                    format!("another program holds it, by the session {id}"),
                ));
            };
            self.holds_nothing_else(id, session, key.as_str(), within).await?;
            let end = End { key: key.as_str(), session, owner: bytes_of(&row, "owner")? };
            if self.lookout.transact(&end, Urgency::Releases, within).await? {
                // It takes the server a moment.
                while let Some(row) = self.status(name, within).await?
                    && row.try_get::<i64, _>("id")? == id
                {
                    sleep(PAUSE).await;
                }
                return Ok(Some(held));
            }
            // By then, it was no longer as it had been seen. Whoever holds the lock next is left
            // alone.
            owner = Some(held.owner());
            sleep(PAUSE).await;
        }
    }

    async fn holds_nothing_else(
        &self,
        id: i64,
        session: &[u8],
        key: &str,
        within: Limit,
    ) -> Result<(), Failure> {
        let values = [Value::Bytes(session), Value::text(key)];
        let others = self.lookout.read(OTHERS, &values, within).await?;
        if others.is_empty() {
            return Ok(());
        }
        let others: Vec<_> = others
            .iter()
            .map(|row| Ok(String::from_utf8_lossy(bytes_of(row, "name")?).into_owned()))
            .collect::<Result<_, Failure>>()?;
        Err(Failure::found(
            ErrorKind::Unsupported,
            format!(
                "a hold ends with its session only, and the session {id} holds these locks as \
                 well: {}; KILL {id} ends all",
                others.join(", ")
            ),
        ))
    }

    async fn status(&self, name: &LockName, within: Limit) -> Result<Option<MySqlRow>, Failure> {
        let key = self.sessions.server().key(name)?;
        let values = [Value::text(key.as_str()), Value::text(key.as_str())];
        Ok(self.lookout.read(STATUS, &values, within).await?.into_iter().next())
    }

    pub(super) fn inspection_limit(&self) -> Limit {
        Limit::new(self.call_limit.of_a_look())
    }
}

/// Ends the session with this mark, if it holds the owner's lock and no other; the answer is
/// whether it did.
struct End<'a> {
    key: &'a str,
    session: &'a [u8],
    owner: &'a [u8],
}

impl Steps for End<'_> {
    type Answer = bool;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<bool, Failure> {
        let (key, session) = (Value::text(self.key), Value::Bytes(self.session));
        let values = [key, session, Value::Bytes(self.owner), session, key];
        transaction.write(IF_IT_HOLDS, &values).await?;
        match transaction.say(END).await {
            Err(failure) if failure.number() == Some(NO_SUCH_SESSION) => Ok(false),
            answer => answer.map(|()| true),
        }
    }
}

/// Who holds the lock of this name. Of a session that took it otherwise, for another program or
/// under another name, only the id is known, which stands in for that of an owner.
fn holder(name: &LockName, row: &MySqlRow) -> Result<Holder, Failure> {
    let row_is_of: (Option<&[u8]>, Option<&[u8]>) =
        (row.try_get("namespace")?, row.try_get("name")?);
    let ours = (name.namespace().as_str().as_bytes(), name.as_str().as_bytes());
    if row_is_of != (Some(ours.0), Some(ours.1)) {
        let id: i64 = row.try_get("id")?;
        let owner = owner_of(format!("{id:032x}").as_bytes())?;
        return Ok(Holder::new(owner).labelled(format!("session {id}")));
    }
    Ok(Holder::new(owner_of(bytes_of(row, "owner")?)?)
        .labelled(bytes_of(row, "label")?)
        .with_token(claims::token(row.try_get("token")?)?)
        .with_held_for(duration(row.try_get("age")?)))
}
