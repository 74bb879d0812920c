//! Finds out whether a server is fit to keep locks. It only asks; what the server does not tell is
//! a finding, too.

mod cluster;
mod pace;
mod sentinels;
mod server;

use std::collections::HashMap;
use std::time::Duration;

use lockkit_core::driver::DriverError;
use lockkit_core::{Diagnosis, Grade, LockName, Namespace};
use redis::{FromRedisValue, cmd};
use tokio::time::sleep;

use self::pace::Reading;
use self::server::{SETTINGS, Server, Wish};
use crate::dialect::Dialect;
use crate::driver::{RedisDriver, parse};
use crate::endpoint::{Endpoint, Mode};
use crate::layout::{Inbox, Layout};
use crate::plain::{self, PlainLayout};
use crate::request::Request;
use crate::script::{self, RIGHTS};
use crate::servers::Servers;

/// How often to measure a round trip; the quickest counts.
const ROUND_TRIPS: usize = 3;
/// How long to watch the server's clock.
const WATCH: Duration = Duration::from_millis(50);

/// What is right and what is wrong with the server, for locks of `namespace`.
///
/// # Errors
///
/// The server gave no answer to one of the questions.
pub(crate) async fn diagnose(
    driver: &RedisDriver,
    namespace: &Namespace,
) -> Result<Vec<Diagnosis>, DriverError> {
    let mut findings = Vec::new();
    if let Some(sentinels) = driver.target.sentinels() {
        findings.extend(sentinels::findings(sentinels.group(), &sentinels.sights().await));
    }
    let uncovered = match &driver.servers {
        Servers::One(_) => None,
        Servers::Cluster(cluster) => Some(cluster.uncovered().await?),
    };
    let members = driver.servers.members();
    let mut wants_all = None;
    for member in &members {
        let mut found = Vec::new();
        let server = server(driver, member.as_ref(), &mut found).await?;
        wants_all = server.and_then(|server| server.wants_all_slots()).or(wants_all);
        merge(&mut findings, found, member.as_ref());
    }
    if let Some(uncovered) = uncovered {
        let sight = cluster::Sight { primaries: members.len(), uncovered, wants_all };
        findings.extend(cluster::findings(sight));
    }
    // Each has users of its own.
    for member in &members {
        let found = rights(driver, member.as_ref(), namespace).await?;
        merge(&mut findings, found, member.as_ref());
    }
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
    }));
    Ok(Some(server))
}

/// Which rights are missing for what the driver does.
async fn rights(
    driver: &RedisDriver,
    member: Option<&Endpoint>,
    namespace: &Namespace,
) -> Result<Vec<Diagnosis>, DriverError> {
    let mut findings = Vec::new();
    let user = driver.target.user();
    let advice = |patterns: &str, rights: &[String]| {
        let rights: String = rights.iter().map(|right| format!(" +{right}")).collect();
        format!("`ACL SETUSER {user}{patterns}{rights}`")
    };
    let keys = match driver.dialect {
        Dialect::Lockkit => format!(" ~{{{namespace}:*"),
        // Lock names may be anything, and nothing may follow the pattern that means all keys.
        Dialect::Plain if *namespace == Namespace::default() => " ~*".into(),
        Dialect::Plain => format!(" ~{{{namespace}:* ~{}", plain::pattern(namespace)),
    };
    let channels = format!(" &{{{namespace}:*");
    let [locks, news, looks] = match missing(driver, member, namespace).await? {
        Ok(Some(missing)) => missing,
        Ok(None) => {
            findings.push(Diagnosis::warning(
                "rights",
                format!("the server cannot tell which rights user `{user}` has"),
                "compare what `ACL LIST` shows with the rights in `docs/redis.md`",
            ));
            return Ok(findings);
        }
        Err(refusal) => {
            findings.push(Diagnosis::error(
                "rights",
                format!("user `{user}` cannot run scripts, so acquisitions are denied: {refusal}"),
                advice(&keys, &["evalsha".into(), "eval".into()]),
            ));
            return Ok(findings);
        }
    };
    let lacks = |rights: &[String], so: &str| {
        let rights = rights.join(" +");
        format!("user `{user}` lacks +{rights}, or the keys and channels of `{namespace}`: {so}")
    };
    // If a key may be read or written, it is not for want of keys that the rest is missing. A
    // server refuses a further pattern for a user who has all of them.
    let has =
        |rights: &[String], none: [&str; 2]| none.iter().any(|it| !rights.contains(&(*it).into()));
    if !locks.is_empty() {
        let finding = lacks(&locks, "acquisitions are denied");
        let keys = if has(&locks, ["pttl", "del"]) { "" } else { &keys };
        findings.push(Diagnosis::error("rights", finding, advice(keys, &locks)));
    }
    if !news.is_empty() {
        let so = match news.iter().all(|right| right.starts_with("pubsub")) {
            true => "a release cannot tell which waiters are dead",
            false => "waiters do not hear of releases, and poll",
        };
        let finding = lacks(&news, so);
        let channels = if has(&news, ["publish", "subscribe"]) { "" } else { &channels };
        findings.push(Diagnosis::warning("rights", finding, advice(channels, &news)));
    }
    if !looks.is_empty() {
        let finding = lacks(&looks, "held locks are not listed");
        findings.push(Diagnosis::warning("rights", finding, advice("", &looks)));
    }
    if locks.is_empty() && news.is_empty() && looks.is_empty() {
        let finding =
            format!("user `{user}` has all rights that are needed in namespace `{namespace}`");
        findings.push(Diagnosis::good("rights", finding));
    }
    Ok(findings)
}

/// The rights that are missing for locks, for waiting without polling and for looking; `None` if
/// the server cannot tell.
async fn missing(
    driver: &RedisDriver,
    member: Option<&Endpoint>,
    namespace: &Namespace,
) -> Result<Result<Option<[Vec<String>; 3]>, String>, DriverError> {
    // Rights are given for a namespace, so any lock in it will do.
    let name = LockName::new(namespace, "any").expect("this is a good name");
    match driver.dialect {
        Dialect::Lockkit => {
            let layout = Layout::of(&name);
            let [lock, queue, unordered, deadlines, bucket] = layout.keys();
            let channel = layout.channel(&Inbox::new());
            let mut arguments = vec![lock, queue, unordered, deadlines, bucket, &channel];
            arguments.extend(driver.replicas.map(|_| "wait 1 1"));
            arguments.extend(member.map(|_| "asking"));
            ask_at(driver, member, RIGHTS.on(&[], &arguments)).await
        }
        Dialect::Plain => {
            let layout = PlainLayout::of(&name);
            ask_at(driver, member, script::plain::RIGHTS.on(&[], &layout.keys())).await
        }
    }
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
