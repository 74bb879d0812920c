//! The conformance suite, against one etcd, or against the cluster that `LOCKKIT_TEST_ETCD_URL`
//! names.

use std::env;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_core::BoxError;
use lockkit_etcd::{CAPABILITIES, EtcdDriver};
use lockkit_testkit::{ETCD, Proxy, Server, Unavailable};
use tokio::runtime::Runtime;

/// A server whose connections can be cut.
struct Private {
    server: Server,
    proxy: Proxy,
    /// Where the proxy runs: each check has a runtime of its own, which ends with it.
    _runtime: Runtime,
}

fn main() -> ExitCode {
    static PRIVATE: LazyLock<Result<Private, Unavailable>> = LazyLock::new(|| {
        let server = ETCD.start()?;
        let runtime = Runtime::new().expect("threads can be started");
        let proxy = runtime.block_on(Proxy::start(server.addr()));
        Ok(Private { server, proxy, _runtime: runtime })
    });

    fn private() -> Result<&'static Private, BoxError> {
        PRIVATE.as_ref().map_err(|unavailable| unavailable.clone().into())
    }

    fn url() -> Result<String, BoxError> {
        match env::var(ETCD.url_variable()) {
            Ok(url) if !url.is_empty() => Ok(url),
            _ => private().map(|it| it.server.url_at(it.proxy.addr())),
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
                private()?.proxy.reset().await;
                Ok(())
            })
            .silence(
                || async {
                    private()?.proxy.requests().block();
                    Ok(())
                },
                || async {
                    private()?.proxy.requests().unblock();
                    Ok(())
                },
            )
            .restart(|| async { Ok(private()?.server.restart()?) }),
    }
    .main()
}
