//! Many waiters of one process for one lock, which goes through the hands of all.

use std::time::Duration;

use lockkit_bench::{Result, Unit};

use super::client::{Client, Process, Task};
use super::{Extent, Findings, Measured, Site, Subject, figure};

/// The name of the study.
pub(super) const NAME: &str = "waiters";

pub(super) async fn study(site: &Site<'_>, extent: &Extent) -> Findings {
    let case = |&(number, lease)| {
        let url = site.subject.url(&site.servers.url());
        let is_fair = site.subject == Subject::Fair;
        let client = Client { task: Task::Waiters, url, is_fair, number, lease };
        (format!("{number} waiters"), client)
    };
    site.each(extent.waiters.iter().map(case).collect(), NAME, extent, measure).await
}

async fn measure(site: &Site<'_>, client: &Client, extent: &Extent) -> Result<Measured> {
    let servers = site.servers;
    let mut process = Process::start(&site.program, client, extent.limit)?;
    let connected = process.stage().await?;
    let idle = servers.usage()?;
    process.go_on().await?;
    process.stage().await?;
    let count = servers.count().await?;
    process.go_on().await?;
    let waited = process.stage().await?;
    let while_waiting = match count {
        Some(count) => Some(count.end().await?),
        None => None,
    };
    let waiting = servers.usage()?;
    let count = servers.count().await?;
    process.go_on().await?;
    let served = process.stage().await?;
    let requests = match count {
        Some(count) => Some(count.end().await?),
        None => None,
    };
    process.end().await?;

    let waiters = client.number as f64;
    let grown = |before: u64, after: u64| after.saturating_sub(before) as f64 / waiters;
    let mut figures = vec![
        figure("grants", Unit::PerSecond, waiters / served.seconds),
        figure("client memory a waiter", Unit::Bytes, grown(connected.memory, waited.memory)),
        figure("client CPU while waiting", Unit::Ratio, waited.cpu / waited.seconds),
        figure("asks a grant", Unit::Count, served.asks as f64 / waiters),
    ];
    if servers.folder().is_none() {
        figures.extend([
            figure("server memory a waiter", Unit::Bytes, grown(idle.memory, waiting.memory)),
            figure("connections", Unit::Count, waiting.connections as f64),
        ]);
    }
    if let (Some(while_waiting), Some(requests)) = (while_waiting, requests) {
        let thirds = waited.seconds / (client.lease / 3).as_secs_f64();
        let while_waiting = while_waiting as f64 / waiters / thirds;
        figures.extend([
            figure("requests a grant", Unit::Count, requests as f64 / waiters),
            figure("requests a waiter and third of a lease", Unit::Count, while_waiting),
        ]);
    }
    Ok(Measured { figures, took: Duration::from_secs_f64(served.seconds) })
}
