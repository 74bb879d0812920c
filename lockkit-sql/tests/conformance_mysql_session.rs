//! The conformance suite, against the sessions of one MariaDB; or of one MySQL, where tests are given one:
//! `with-servers mysql -- cargo test -p lockkit-sql --test conformance_mysql_session`.

use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_sql::mysql::session::{CAPABILITIES, MysqlSessionDriver};
use lockkit_testkit::{Backend, MARIADB, MYSQL, Server, Unavailable};
use sqlx::mysql::{MySqlConnection, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};

fn main() -> ExitCode {
    static BACKEND: LazyLock<&Backend> =
        LazyLock::new(|| match std::env::var_os(MYSQL.url_variable()) {
            Some(_) => &MYSQL,
            None => &MARIADB,
        });
    static SERVER: LazyLock<Result<Server, Unavailable>> = LazyLock::new(|| BACKEND.start());

    fn server() -> Result<&'static Server, lockkit_core::BoxError> {
        SERVER.as_ref().map_err(|unavailable| unavailable.clone().into())
    }

    /// Ends all sessions but the one that does it.
    async fn sever() -> Result<(), lockkit_core::BoxError> {
        let mut raw = MySqlConnection::connect(&server()?.url()).await?;
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

    Suite::new("mysql", CAPABILITIES)
        .skip_unless(|| server().map(|_| ()))
        .connect(|| async {
            let url = format!("{}?hold=session&ttl=2s&call_limit=5s", server()?.url());
            Ok(MysqlSessionDriver::connect(&url.parse()?).await?)
        })
        .sever(sever)
        .restart(|| async { Ok(server()?.restart()?) })
        .ttl(Duration::from_secs(2))
        .main()
}

/// Whether no session has the number any more.
fn is_gone(error: &sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref());
    error.is_some_and(|error: &MySqlDatabaseError| error.number() == 1094)
}
