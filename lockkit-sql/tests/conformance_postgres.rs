//! The conformance suite, against one PostgreSQL.

use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_sql::postgres::{CAPABILITIES, PostgresDriver};
use lockkit_testkit::{POSTGRES, Server, Unavailable};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};

fn main() -> ExitCode {
    static SERVER: LazyLock<Result<Server, Unavailable>> = LazyLock::new(|| POSTGRES.start());

    fn server() -> Result<&'static Server, lockkit_core::BoxError> {
        SERVER.as_ref().map_err(|unavailable| unavailable.clone().into())
    }

    async fn raw() -> Result<PgConnection, lockkit_core::BoxError> {
        Ok(PgConnection::connect(&server()?.url()).await?)
    }

    Suite::new("postgres", CAPABILITIES)
        .skip_unless(|| server().map(|_| ()))
        .connect(|| async {
            // The default limit for the shortest leases is too short for a machine under load.
            let url = format!("{}?call_limit=5s", server()?.url());
            Ok(PostgresDriver::connect(&url.parse()?).await?)
        })
        .sever(|| async {
            let mut raw = raw().await?;
            raw.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
            )
            .await?;
            Ok(raw.close().await?)
        })
        .restart(|| async { Ok(server()?.restart()?) })
        // Each commit syncs a disk.
        .ttl(Duration::from_secs(3))
        .main()
}
