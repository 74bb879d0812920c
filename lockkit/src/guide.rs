//! Guides, compiled with the crate.
//!
//! Each begins with `links.md`, in which the links between the pages lead here: of two definitions
//! of a link, the first counts, so the one at the end of a page is for readers of the file.

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/safety.md")]
pub mod safety {}

#[doc = include_str!("links.md")]
#[cfg_attr(feature = "redis", doc = include_str!("../docs/choosing.md"))]
#[cfg_attr(
    not(feature = "redis"),
    doc = "This page is there with the feature `redis`, which its examples need."
)]
pub mod choosing {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/urls.md")]
pub mod urls {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/metrics.md")]
pub mod metrics {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/service.md")]
pub mod service {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/testing.md")]
pub mod testing {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/file.md")]
pub mod file {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/sqlite.md")]
pub mod sqlite {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/postgres.md")]
pub mod postgres {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/mysql.md")]
pub mod mysql {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/sql-sessions.md")]
pub mod sql_sessions {}

#[doc = include_str!("links.md")]
#[cfg_attr(any(feature = "mysql", feature = "postgres", feature = "sqlite"), doc = include_str!("../docs/transactions.md"))]
#[cfg_attr(
    not(any(feature = "mysql", feature = "postgres", feature = "sqlite")),
    doc = "This page is there with a feature of a database, which its examples need."
)]
pub mod transactions {}

#[doc = include_str!("links.md")]
#[cfg_attr(feature = "redis", doc = include_str!("../docs/redis.md"))]
#[cfg_attr(
    not(feature = "redis"),
    doc = "This page is there with the feature `redis`, which its examples need."
)]
pub mod redis {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/redlock.md")]
pub mod redlock {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/etcd.md")]
pub mod etcd {}

#[doc = include_str!("links.md")]
#[cfg_attr(feature = "zookeeper", doc = include_str!("../docs/zookeeper.md"))]
#[cfg_attr(
    not(feature = "zookeeper"),
    doc = "This page is there with the feature `zookeeper`, which its example needs."
)]
pub mod zookeeper {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/run.md")]
pub mod run {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/command.md")]
pub mod command {}
