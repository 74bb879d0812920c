//! What the suites on PostgreSQL have in common.

use std::sync::LazyLock;

use lockkit_conformance::Suite;
use lockkit_core::BoxError;
use lockkit_testkit::{POSTGRES, Proxy, Server, Unavailable};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};
use tokio::runtime::Runtime;

/// A server, and what it is reached through: a process that is suspended is not enough, since each
/// session has one of its own.
struct Place {
    server: Server,
    proxy: Proxy,
    /// Where the proxy runs: each check has a runtime of its own, which ends with it.
    _runtime: Runtime,
}

static PLACE: LazyLock<Result<Place, Unavailable>> = LazyLock::new(|| {
    let server = POSTGRES.start()?;
    let runtime = Runtime::new().expect("a runtime for the proxy");
    let proxy = runtime.block_on(Proxy::start(server.addr()));
    Ok(Place { server, proxy, _runtime: runtime })
});

fn place() -> Result<&'static Place, BoxError> {
    PLACE.as_ref().map_err(|unavailable| unavailable.clone().into())
}

/// The URL without parameters.
pub(crate) fn url() -> Result<String, BoxError> {
    place().map(|it| it.server.url_at(it.proxy.addr()))
}

/// What can be done to the server.
pub(crate) fn with_hooks(suite: Suite) -> Suite {
    suite
        .skip_unless(|| place().map(|_| ()))
        .sever(|| async {
            let mut raw = PgConnection::connect(&place()?.server.url()).await?;
            raw.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
            )
            .await?;
            Ok(raw.close().await?)
        })
        .silence(
            || async {
                place()?.proxy.requests().block();
                Ok(())
            },
            || async {
                place()?.proxy.requests().unblock();
                Ok(())
            },
        )
        .restart(|| async { Ok(place()?.server.restart()?) })
}
