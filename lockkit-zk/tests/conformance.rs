//! The conformance suite, against one ZooKeeper, or against those that
//! `LOCKKIT_TEST_ZOOKEEPER_URL` names.

use std::future::ready;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_core::BoxError;
use lockkit_testkit::{Proxied, Unavailable, ZOOKEEPER};
use lockkit_zk::{CAPABILITIES, ZooKeeperDriver};

fn main() -> ExitCode {
    static PLACE: LazyLock<Result<Proxied, Unavailable>> = LazyLock::new(|| {
        let server = ZOOKEEPER.start()?;
        // Sessions that outlast the moments in which a machine under load does nothing.
        std::fs::write(server.data().join("settings"), "maxSessionTimeout=10000\n")
            .expect("settings of a server of ours");
        server.restart()?;
        Ok(Proxied::new(server))
    });

    fn place() -> Result<&'static Proxied, BoxError> {
        PLACE.as_ref().map_err(|unavailable| unavailable.clone().into())
    }

    // Servers that are shared with others are neither cut off nor restarted.
    match std::env::var(ZOOKEEPER.url_variable()) {
        Ok(url) if !url.is_empty() => {
            return Suite::new("zookeeper", CAPABILITIES)
                .connect(move || {
                    let url = format!("{url}?ttl=4s&call_limit=5s");
                    async move { Ok(ZooKeeperDriver::connect(&url.parse()?).await?) }
                })
                .ttl(Duration::from_millis(1000))
                .main();
        }
        _ => (),
    }
    Suite::new("zookeeper", CAPABILITIES)
        .skip_unless(|| place().map(|_| ()))
        .connect(|| async {
            // The default limits for the shortest leases are too short for a machine under load.
            let url = format!("{}?ttl=10s&tick=200ms&call_limit=5s", place()?.url());
            Ok(ZooKeeperDriver::connect(&url.parse()?).await?)
        })
        .sever(|| async {
            place()?.proxy().reset().await;
            Ok(())
        })
        .silence(
            || ready(place().map(|it| it.proxy().requests().block())),
            || ready(place().map(|it| it.proxy().requests().unblock())),
        )
        .restart(|| async { Ok(place()?.server().restart()?) })
        .ttl(Duration::from_secs(2))
        .main()
}
