//! What the suites on PostgreSQL have in common.

use std::future::ready;
use std::sync::LazyLock;

use lockkit_conformance::Suite;
use lockkit_core::BoxError;
use lockkit_testkit::{POSTGRES, Proxied, Unavailable};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};

/// Through a proxy, since it would not be silent if one process of it was suspended: each session has
/// one of its own.
static PLACE: LazyLock<Result<Proxied, Unavailable>> =
    LazyLock::new(|| POSTGRES.start().map(Proxied::new));

fn place() -> Result<&'static Proxied, BoxError> {
    PLACE.as_ref().map_err(|unavailable| unavailable.clone().into())
}

/// The URL without parameters.
pub(crate) fn url() -> Result<String, BoxError> {
    place().map(Proxied::url)
}

/// What can be done to the server.
pub(crate) fn with_hooks(suite: Suite) -> Suite {
    suite
        .skip_unless(|| place().map(|_| ()))
        .sever(|| async {
            let mut raw = PgConnection::connect(&place()?.server().url()).await?;
            raw.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
            )
            .await?;
            Ok(raw.close().await?)
        })
        .silence(
            || ready(place().map(|it| it.proxy().requests().block())),
            || ready(place().map(|it| it.proxy().requests().unblock())),
        )
        .restart(|| async { Ok(place()?.server().restart()?) })
}
