//! Many locks of one process, kept for some leases.

use std::time::Duration;

use lockkit_bench::{Result, Unit};

use super::client::{Client, Process, Task};
use super::{Extent, Findings, Measured, Site, Subject, figure};

/// The name of the study.
pub(super) const NAME: &str = "many-names";

pub(super) async fn study(site: &Site<'_>, extent: &Extent) -> Findings {
    // Nobody waits for them: a place in a queue is nothing to a hold.
    if site.subject == Subject::Fair {
        return Findings::default();
    }
    let case = |&(number, lease)| {
        let url = url(site, lease);
        let client = Client { task: Task::Holds, url, is_fair: false, number, lease };
        (format!("{number} holds, leases of {lease:?}"), client)
    };
    site.each(extent.names.iter().map(case).collect(), NAME, extent, measure).await
}

/// A session has its length from the URL.
fn url(site: &Site<'_>, lease: Duration) -> String {
    let url = site.subject.url(&site.servers.url());
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}ttl={}ms", lease.as_millis())
}

async fn measure(site: &Site<'_>, client: &Client, extent: &Extent) -> Result<Measured> {
    let servers = site.servers;
    let mut process = Process::start(&site.program, client, extent.limit)?;
    let connected = process.stage().await?;
    let idle = servers.usage()?;
    process.go_on().await?;
    let taken = process.stage().await?;
    let before = servers.usage()?;
    process.go_on().await?;
    let kept = process.stage().await?;
    let after = servers.usage()?;
    // Counting costs a server something, so that its time was taken before.
    let count = servers.count().await?;
    process.go_on().await?;
    let kept_on = process.stage().await?;
    let requests = match count {
        Some(count) => Some(count.end().await?),
        None => None,
    };
    process.go_on().await?;
    let released = process.stage().await?;
    process.end().await?;

    let holds = client.number as f64;
    let leases = kept_on.seconds / client.lease.as_secs_f64();
    let grown = |before: u64, after: u64| after.saturating_sub(before) as f64 / holds;
    let mut figures = vec![
        figure("taken", Unit::PerSecond, holds / taken.seconds),
        figure("released", Unit::PerSecond, holds / released.seconds),
        figure("client CPU", Unit::Ratio, kept.cpu / kept.seconds),
        figure("client memory", Unit::Bytes, kept_on.memory as f64),
        figure("client memory a hold", Unit::Bytes, grown(connected.memory, kept_on.memory)),
        figure("asks a hold and lease", Unit::Count, kept_on.asks as f64 / holds / leases),
        figure("late renewals", Unit::Count, (kept.late + kept_on.late) as f64),
        figure("holds lost", Unit::Count, (kept.lost.max(kept_on.lost)) as f64),
    ];
    if servers.folder().is_none() {
        let cpu = (after.cpu - before.cpu).as_secs_f64();
        figures.extend([
            figure("server CPU", Unit::Ratio, cpu / kept.seconds),
            figure("server memory", Unit::Bytes, after.memory as f64),
            figure("server memory a hold", Unit::Bytes, grown(idle.memory, after.memory)),
            figure("connections", Unit::Count, after.connections as f64),
        ]);
    }
    if let Some(requests) = requests {
        let requests = requests as f64 / holds / leases;
        figures.push(figure("requests a hold and lease", Unit::Count, requests));
    }
    let took = Duration::from_secs_f64(taken.seconds.max(released.seconds));
    Ok(Measured { figures, took })
}
