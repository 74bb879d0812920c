//! What the suites on MySQL and MariaDB have in common.

use lockkit_core::BoxError;
use sqlx::mysql::{MySqlConnection, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};

/// Ends all sessions but the one that does it.
pub(crate) async fn end_sessions(url: &str) -> Result<(), BoxError> {
    let mut raw = MySqlConnection::connect(url).await?;
    let own = raw.fetch_one("SELECT CONNECTION_ID()").await?.try_get::<u64, _>(0)?;
    for session in raw.fetch_all("SHOW PROCESSLIST").await? {
        let id = session
            .try_get::<u64, _>("Id")
            .or_else(|_| session.try_get::<i64, _>("Id").map(i64::cast_unsigned))?;
        if id != own && session.try_get::<&str, _>("User")? == "root" {
            let killed = raw.execute(AssertSqlSafe(format!("KILL {id}"))).await;
            // Some end by themselves after they were listed.
            if killed.as_ref().is_err_and(|error| !is_gone(error)) {
                killed?;
            }
        }
    }
    Ok(raw.close().await?)
}

/// Whether no session has the number any more.
fn is_gone(error: &sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref());
    error.is_some_and(|error: &MySqlDatabaseError| error.number() == 1094)
}
