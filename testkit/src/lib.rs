//! Private servers and a fault proxy for lockkit's own tests.
//!
//! - A [`Backend`] such as [`REDIS`] finds its program and starts [`Server`]s on free loopback
//!   ports. They end with the process that started them, even when that is killed.
//! - [`Backend::start_ensemble`] starts several servers that are one backend, each of which can be
//!   killed, stopped and restarted by itself. [`RedisSentinels`] and [`RedisCluster`] are the same
//!   for Redis.
//! - A [`Proxy`] stands between a client and a server and delays, swallows, holds or cuts.
//! - An [`Authority`] signs certificates for servers that speak TLS.
//! - A [`Log`] notes what is logged.
//! - [`trial`] makes a test that shows as ignored, with the reason, where its server is missing.
//!   `LOCKKIT_REQUIRE=redis,...` turns that into a failure.
//!
//! A test binary with `harness = false`:
//!
//! ```no_run
//! use lockkit_testkit::{Proxy, REDIS, trial};
//!
//! fn main() -> std::process::ExitCode {
//!     lockkit_testkit::run(vec![
//!         // One server for all tests of this process, or the one of LOCKKIT_TEST_REDIS_URL.
//!         trial("takes_and_releases", || REDIS.url(), |url| async move {
//!             assert!(url.starts_with("redis://"));
//!         }),
//!         // A server of its own, to be cut off, killed and restarted.
//!         trial("survives_a_restart", || REDIS.start(), |server| async move {
//!             let proxy = Proxy::start(server.addr()).await;
//!             let hold = proxy.requests().hold(b"EVALSHA");
//!             // ... the client asks ...
//!             hold.caught().await;
//!             server.restart().unwrap();
//!             hold.go_on();
//!         }),
//!     ])
//! }
//! ```

mod backend;
mod browser;
mod certificates;
mod clock;
mod ensemble;
mod etcd;
mod grpc_proxy;
mod log;
mod mysql;
pub mod overhead;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod proxied;
mod proxy;
mod redis;
mod require;
mod server;
mod trial;
mod zookeeper;

pub use crate::backend::{Backend, Unavailable};
pub use crate::browser::browser;
pub use crate::certificates::{Authority, Identity};
pub use crate::ensemble::Ensemble;
pub use crate::etcd::ETCD;
pub use crate::grpc_proxy::GrpcProxy;
pub use crate::log::{Log, Logged};
pub use crate::mysql::{MARIADB, MYSQL, mariadb_or_mysql};
pub use crate::pgbouncer::{PgBouncer, PoolMode};
pub use crate::port::free_port;
pub use crate::postgres::POSTGRES;
pub use crate::proxied::Proxied;
pub use crate::proxy::{Direction, Hold, Proxy};
pub use crate::redis::{REDIS, RedisCluster, RedisSentinels};
pub use crate::require::or_skip;
pub use crate::server::Server;
pub use crate::trial::{run, trial};
pub use crate::zookeeper::ZOOKEEPER;

/// Every backend with a server that this crate can start.
pub static BACKENDS: [&Backend; 6] = [&ETCD, &MARIADB, &MYSQL, &POSTGRES, &REDIS, &ZOOKEEPER];
