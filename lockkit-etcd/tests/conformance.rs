//! The conformance suite, against one etcd, or against the cluster that `LOCKKIT_TEST_ETCD_URL`
//! names.

use std::env;
use std::future::ready;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_core::BoxError;
use lockkit_etcd::{CAPABILITIES, EtcdDriver};
use lockkit_testkit::{ETCD, Proxied, Unavailable};

fn main() -> ExitCode {
    static PRIVATE: LazyLock<Result<Proxied, Unavailable>> =
        LazyLock::new(|| ETCD.start().map(Proxied::new));

    fn private() -> Result<&'static Proxied, BoxError> {
        PRIVATE.as_ref().map_err(|unavailable| unavailable.clone().into())
    }

    fn url() -> Result<String, BoxError> {
        match env::var(ETCD.url_variable()) {
            Ok(url) if !url.is_empty() => Ok(url),
            _ => private().map(Proxied::url),
        }
    }

    let suite =
        Suite::new("etcd", CAPABILITIES).skip_unless(|| url().map(drop)).connect(|| async {
            // The default limit for the shortest leases is too short for a machine under load.
            let url = format!("{}?call_limit=3s", url()?);
            Ok(EtcdDriver::connect(&url.parse()?).await?)
        });
    // The server grants 2 at the least, but a thousand locks are to be renewed within a third of it,
    // by a build that is not optimised.
    let suite = suite.ttl(Duration::from_secs(5));
    match env::var_os(ETCD.url_variable()) {
        Some(url) if !url.is_empty() => suite,
        _ => suite
            .sever(|| async {
                private()?.proxy().reset().await;
                Ok(())
            })
            .silence(
                || ready(private().map(|it| it.proxy().requests().block())),
                || ready(private().map(|it| it.proxy().requests().unblock())),
            )
            .restart(|| async { Ok(private()?.server().restart()?) }),
    }
    .main()
}
