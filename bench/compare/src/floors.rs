//! The floor under each backend: the requests of lockkit's driver, sent raw on the same client
//! library, by somebody who counts on nothing going wrong.
//!
//! A hand-over is one such request, from its call to the push that it causes. Where servers push
//! nothing there is none.

mod etcd;
mod mysql;
mod postgres;
mod redis;
mod redlock;
mod sqlite;
mod zookeeper;

use std::time::Duration;

use lockkit::driver::OwnerId;
use lockkit::{BackendUrl, Label};
use lockkit_bench::Result;

use crate::agent::serve;

/// The leases that are asked for.
const TTL: Duration = Duration::from_secs(30);

/// Where their locks are: in as many characters as the drivers', so that no request is shorter.
const NAMESPACE: &str = "by-hand";

/// Answers as the agent of the floor under a backend at these URLs, until its input ends.
///
/// # Errors
///
/// If the input cannot be read, or there is no floor of that name.
pub async fn run(backend: &str, urls: &[String]) -> Result<()> {
    let first = || -> Result<String> { Ok(urls.first().ok_or("no URL")?.clone()) };
    match backend {
        "redis" => serve("floor", "", redis::Floor::at(first()?)).await,
        "redlock" => serve("floor", "", redlock::Floor::at(urls)).await,
        "postgres" => serve("floor", "", postgres::Rows::at(first()?).await).await,
        "postgres-session" => serve("floor", "", postgres::Sessions::at(first()?).await).await,
        "mariadb" => serve("floor", "", mysql::Rows::at(first()?).await).await,
        "mariadb-session" => serve("floor", "", mysql::Sessions::at(first()?).await).await,
        "sqlite" => serve("floor", "", sqlite::Floor::at(first()?).await).await,
        "zookeeper" => serve("floor", "", zookeeper::Floor::at(urls)).await,
        "etcd" => Box::pin(serve("floor", "", etcd::Floor::at(urls))).await,
        other => Err(format!("there is no floor `{other}`").into()),
    }
}

/// Whoever asks, somebody else each time, as the drivers make them.
fn owner() -> (String, String) {
    (OwnerId::random().to_string(), Label::of_this_process().as_str().to_owned())
}

/// Makes the tables that the requests need, where there are none.
async fn prepare(url: &str) -> Result<()> {
    lockkit::connect(url).await?.shutdown().await;
    Ok(())
}

/// `host:port` of each.
fn hosts(urls: &[String]) -> Result<Vec<String>> {
    let host = |url: &String| -> Result<Vec<String>> {
        let url: BackendUrl = url.parse()?;
        Ok(url.hosts().iter().map(ToString::to_string).collect())
    };
    Ok(urls.iter().map(host).collect::<Result<Vec<_>>>()?.concat())
}

/// Why there is no hand-over.
fn nothing_is_pushed<T>() -> Result<T> {
    Err("nothing is pushed there: whoever waits asks again and again".into())
}
