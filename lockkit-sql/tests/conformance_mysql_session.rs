//! The conformance suite, against the sessions of one MariaDB; or of one MySQL, where tests are given one:
//! `with-servers mysql -- cargo test -p lockkit-sql --test conformance_mysql_session`.

#[path = "mysql/sessions.rs"]
mod sessions;

use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_sql::mysql::session::{CAPABILITIES, MysqlSessionDriver};
use lockkit_testkit::{Server, Unavailable, mariadb_or_mysql, or_skip};

fn main() -> ExitCode {
    static SERVER: LazyLock<Result<Server, Unavailable>> =
        LazyLock::new(|| mariadb_or_mysql().start());

    fn server() -> Result<&'static Server, lockkit_core::BoxError> {
        SERVER.as_ref().map_err(|unavailable| unavailable.clone().into())
    }

    Suite::new("mysql", CAPABILITIES)
        // `LOCKKIT_REQUIRE` names the server, not the driver.
        .skip_unless(|| Ok(or_skip(SERVER.as_ref().map(|_| ()).map_err(Clone::clone))?))
        .connect(|| async {
            let url = format!("{}?hold=session&ttl=3s&call_limit=5s", server()?.url());
            Ok(MysqlSessionDriver::connect(&url.parse()?).await?)
        })
        .sever(|| async { sessions::end_sessions(&server()?.url()).await })
        .silence(|| async { Ok(server()?.stop()?) }, || async { Ok(server()?.cont()?) })
        .restart(|| async { Ok(server()?.restart()?) })
        .ttl(Duration::from_secs(3))
        .main()
}
