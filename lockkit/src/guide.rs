//! Guides, compiled with the crate.

#[doc = include_str!("../docs/safety.md")]
pub mod safety {}

#[cfg(feature = "redis")]
#[doc = include_str!("../docs/choosing.md")]
pub mod choosing {}

#[doc = include_str!("../docs/urls.md")]
pub mod urls {}

#[doc = include_str!("../docs/metrics.md")]
pub mod metrics {}

#[doc = include_str!("../docs/file.md")]
pub mod file {}

#[doc = include_str!("../docs/sqlite.md")]
pub mod sqlite {}

#[doc = include_str!("../docs/postgres.md")]
pub mod postgres {}

#[doc = include_str!("../docs/mysql.md")]
pub mod mysql {}

#[doc = include_str!("../docs/sql-sessions.md")]
pub mod sql_sessions {}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#[doc = include_str!("../docs/transactions.md")]
pub mod transactions {}

#[cfg(feature = "redis")]
#[doc = include_str!("../docs/redis.md")]
pub mod redis {}

#[doc = include_str!("../docs/redlock.md")]
pub mod redlock {}

#[doc = include_str!("../docs/etcd.md")]
pub mod etcd {}

#[doc = include_str!("../docs/zookeeper.md")]
pub mod zookeeper {}

#[doc = include_str!("../docs/run.md")]
pub mod run {}

#[doc = include_str!("../docs/command.md")]
pub mod command {}
