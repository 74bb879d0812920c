//! Finds out whether a server is fit to keep locks. It only asks; what the server does not tell is
//! a finding, too.

mod cluster;
mod pace;
mod rights;
mod sentinels;
mod server;

use std::collections::HashMap;
use std::time::Duration;

use lockkit_core::driver::DriverError;
use lockkit_core::{Diagnosis, Grade, Namespace};
use redis::{FromRedisValue, cmd};
use tokio::time::sleep;

use self::pace::Reading;
use self::server::{SETTINGS, Server, Wish};
use crate::driver::{RedisDriver, parse};
use crate::endpoint::{Endpoint, Mode};
use crate::request::Request;
use crate::servers::Servers;

/// How often to measure a round trip; the quickest counts.
const ROUND_TRIPS: usize = 3;
/// How long to watch the server's clock.
const WATCH: Duration = Duration::from_millis(50);

/// What a server is to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It alone decides who has the lock.
    Alone,
    /// A driver over several servers decides, and grants no fencing tokens.
    OneOfSeveral,
}

/// What is right and what is wrong with the server, for locks of `namespace`.
///
/// # Errors
///
/// The server gave no answer to one of the questions.
pub(crate) async fn diagnose(
    driver: &RedisDriver,
    namespace: &Namespace,
    part: Part,
) -> Result<Vec<Diagnosis>, DriverError> {
    let mut findings = Vec::new();
    if let Some(sentinels) = driver.target.sentinels() {
        findings.extend(sentinels::findings(sentinels.group(), &sentinels.sights().await));
    }
    let members = driver.servers.members().await?;
    let uncovered = match &driver.servers {
        Servers::One(_) => None,
        Servers::Cluster(cluster) => Some(cluster.uncovered()),
    };
    let mut wants_all = None;
    for member in &members {
        let mut found = Vec::new();
        let server = server(driver, member.as_ref(), part, &mut found).await?;
        wants_all = server.and_then(|server| server.wants_all_slots()).or(wants_all);
        merge(&mut findings, found, member.as_ref());
    }
    if let Some(uncovered) = uncovered {
        let sight = cluster::Sight { primaries: members.len(), uncovered, wants_all };
        findings.extend(cluster::findings(sight));
    }
    findings.extend(rights::findings(driver, &members, namespace).await?);
    pace(driver, &mut findings).await?;
    Ok(findings)
}

/// Adds what was found out about a server. If it is one of several: what is not good with its
/// address, and what is good only once.
fn merge(findings: &mut Vec<Diagnosis>, found: Vec<Diagnosis>, member: Option<&Endpoint>) {
    let Some(address) = member.map(Endpoint::address) else { return findings.extend(found) };
    for it in found {
        let advice = it.advice().unwrap_or_default();
        let finding = format!("{address}: {}", it.finding());
        let it = match it.grade() {
            Grade::Warning => Diagnosis::warning(it.topic(), finding, advice),
            Grade::Error => Diagnosis::error(it.topic(), finding, advice),
            _ => it,
        };
        if !findings.contains(&it) {
            findings.push(it);
        }
    }
}

/// What the server says about itself, if it says anything.
async fn server(
    driver: &RedisDriver,
    member: Option<&Endpoint>,
    part: Part,
    findings: &mut Vec<Diagnosis>,
) -> Result<Option<Server>, DriverError> {
    let not_told = |what, refusal, right| {
        let user = driver.target.user();
        Diagnosis::warning(
            "rights",
            format!("the server does not tell user `{user}` {what}: {refusal}"),
            format!("`ACL SETUSER {user} {right}`, or diagnose as a user who has the right"),
        )
    };
    let mut server = match ask_at::<String>(driver, member, cmd("INFO")).await? {
        Ok(info) => Server::of_info(&info),
        Err(refusal) => {
            let what = "its version, role, eviction, persistence and replication";
            findings.push(not_told(what, refusal, "+info"));
            return Ok(None);
        }
    };
    // One by one, since Redis 6 knows no other way.
    for name in SETTINGS {
        let mut question = cmd("CONFIG");
        question.arg("GET").arg(name);
        match ask_at::<HashMap<String, String>>(driver, member, question).await? {
            Ok(setting) => server.add(setting),
            Err(refusal) => {
                findings.push(not_told("its settings", refusal, "+config|get"));
                break;
            }
        }
    }
    findings.extend(server.findings(Wish {
        mode: if member.is_some() { Mode::ClusterNode } else { Mode::Single },
        is_watched: driver.target.sentinels().is_some(),
        replicas: driver.replicas.map_or(0, |replicas| replicas.wanted),
        part,
    }));
    Ok(Some(server))
}

/// How far away the server is, and how its clock runs.
async fn pace(driver: &RedisDriver, findings: &mut Vec<Diagnosis>) -> Result<(), DriverError> {
    let mut first: Option<Reading> = None;
    for _ in 0..ROUND_TRIPS {
        let Some(reading) = Reading::take(driver).await? else { return Ok(()) };
        if first.as_ref().is_none_or(|first| reading.round_trip() < first.round_trip()) {
            first = Some(reading);
        }
    }
    sleep(WATCH).await;
    let last = Reading::take(driver).await?;
    if let (Some(first), Some(last)) = (first, last) {
        findings.extend([pace::latency(first.round_trip()), pace::clock(&first, &last)]);
    }
    Ok(())
}

/// The answer, or why the server gives none.
///
/// # Errors
///
/// The server cannot be reached.
async fn ask<T: FromRedisValue>(
    driver: &RedisDriver,
    request: impl Request,
) -> Result<Result<T, String>, DriverError> {
    ask_at(driver, None, request).await
}

/// The same, from one member of a cluster.
async fn ask_at<T: FromRedisValue>(
    driver: &RedisDriver,
    member: Option<&Endpoint>,
    request: impl Request,
) -> Result<Result<T, String>, DriverError> {
    match driver.read_at(member, request).await {
        Ok(answer) => parse(answer).map(Ok),
        Err(error) if error.kind().is_transient() => Err(error),
        Err(error) => Ok(Err(error.into_source().to_string())),
    }
}
