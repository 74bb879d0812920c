//! The SQLite driver, on a database that all connections share.

use std::process::ExitCode;

use lockkit_conformance::Suite;
use lockkit_sql::sqlite::{CAPABILITIES, SqliteDriver};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

fn main() -> ExitCode {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("locks.db");
    let database = path.clone();
    Suite::new("sqlite", CAPABILITIES)
        .connect(move || {
            // The default limit for the shortest leases is too short for a disk under load.
            let url = format!("sqlite:{}?call_limit=5s", path.display());
            async move { Ok(SqliteDriver::connect(&url.parse()?).await?) }
        })
        .revoke(move |name| {
            let database = database.clone();
            async move {
                let options = SqliteConnectOptions::new().filename(database);
                let mut connection = options.connect().await?;
                sqlx::query("DELETE FROM lockkit_hold WHERE namespace = $1 AND name = $2")
                    .bind(name.namespace().as_str())
                    .bind(name.as_str())
                    .execute(&mut connection)
                    .await?;
                Ok(connection.close().await?)
            }
        })
        .main()
}
