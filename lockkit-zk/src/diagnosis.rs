//! Whether the servers are fit to keep locks. Only asks; what they do not tell is a finding, too.

use std::time::{Duration, Instant};

use lockkit_core::{Diagnosis, Namespace};
use zookeeper_client::Error;

use crate::driver::Shared;
use crate::endpoint::millis;
use crate::error::Failure;
use crate::session::Session;

/// How often to measure a round trip; the quickest counts.
const ROUND_TRIPS: usize = 3;
/// What is slow for one.
const SLOW: Duration = Duration::from_millis(100);

/// What is right and what is wrong with the servers, for locks of `namespace`.
///
/// # Errors
///
/// The servers gave no answer.
pub(crate) async fn diagnose(
    shared: &Shared,
    namespace: &Namespace,
) -> Result<Vec<Diagnosis>, Failure> {
    let endpoint = shared.sessions.endpoint();
    let (told, settings) = tokio::join!(endpoint.ask_all("srvr"), endpoint.ask_all("conf"));
    let session = shared.sessions.connected(shared.inspection_limit()).await?;
    let mut findings = vec![
        version(&told),
        members(&told, endpoint.hosts()),
        ensemble(shared, &session).await?,
        tick(&settings, &session),
        length(&session, endpoint.wish()),
        rights(shared, &session, namespace).await?,
        latency(shared, &session).await?,
    ];
    findings.extend(read_only(&told));
    Ok(findings)
}

fn version(told: &[String]) -> Diagnosis {
    const TOPIC: &str = "version";
    let mut versions: Vec<_> = told.iter().filter_map(|answer| version_in(answer)).collect();
    versions.sort();
    versions.dedup();
    let numbers = |version: &str| {
        let mut parts = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        (next(), next(), next())
    };
    match versions.first() {
        None => Diagnosis::warning(
            TOPIC,
            "the servers do not tell their version",
            "allow the command `srvr` (`4lw.commands.whitelist`)",
        ),
        Some(oldest) if numbers(oldest) < (3, 5, 3) => Diagnosis::error(
            TOPIC,
            format!("ZooKeeper {oldest}, which has no containers: lockkit is tested with 3.8"),
            "use ZooKeeper 3.8 or later",
        ),
        Some(oldest) if numbers(oldest) < (3, 6, 0) => Diagnosis::warning(
            TOPIC,
            format!("ZooKeeper {oldest} is no longer maintained"),
            "use ZooKeeper 3.8 or later",
        ),
        Some(_) => Diagnosis::good(TOPIC, format!("ZooKeeper {}", versions.join(", "))),
    }
}

fn version_in(answer: &str) -> Option<String> {
    let rest = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: "))?;
    Some(rest.split(['-', ',', ' ']).next()?.into())
}

/// Which of the servers that the URL names are there.
fn members(told: &[String], hosts: usize) -> Diagnosis {
    const TOPIC: &str = "servers";
    let serving = told.iter().filter(|answer| !answer.contains("not currently serving")).count();
    match serving == hosts {
        true => Diagnosis::good(TOPIC, format!("all {hosts} that the URL names serve")),
        false => Diagnosis::warning(
            TOPIC,
            format!("{serving} of the {hosts} that the URL names say that they serve"),
            "see to the others, or allow the command `srvr`",
        ),
    }
}

/// How many servers vote.
async fn ensemble(shared: &Shared, session: &Session) -> Result<Diagnosis, Failure> {
    const TOPIC: &str = "ensemble";
    let config = session.read(shared.inspection_limit(), session.client().get_config()).await;
    let text = match &config {
        Ok((data, _)) => String::from_utf8_lossy(data),
        Err(Failure::Client(Error::NoAuth | Error::NoNode)) => {
            return Ok(Diagnosis::warning(
                TOPIC,
                "the servers do not tell who belongs to the ensemble",
                "let this user read `/zookeeper/config`",
            ));
        }
        Err(failure) => return Err(failure.clone()),
    };
    let is_voter = |line: &&str| line.starts_with("server.") && !line.contains(":observer");
    Ok(match text.lines().filter(is_voter).count() {
        0 | 1 => Diagnosis::warning(
            TOPIC,
            "one server: while it is away, no lock can be taken or kept",
            "three servers go on without any one of them",
        ),
        voters if voters % 2 == 0 => Diagnosis::warning(
            TOPIC,
            format!("{voters} servers vote, which stand no more losses than {}", voters - 1),
            "use an odd number",
        ),
        voters => Diagnosis::good(TOPIC, format!("{voters} servers vote")),
    })
}

/// Whether the tick is known, on which it depends until when a hold is known to stand.
fn tick(settings: &[String], session: &Session) -> Diagnosis {
    const TOPIC: &str = "tick";
    let used = session.tick();
    let told = settings.iter().filter_map(|answer| millis(answer, "tickTime")).max();
    match told {
        Some(tick) if tick > used => Diagnosis::error(
            TOPIC,
            format!("the servers' tick is {tick:?}, and {used:?} is reckoned with"),
            "correct `tick` in the URL; without it, connect again",
        ),
        Some(tick) => Diagnosis::good(TOPIC, format!("the servers' tick is {tick:?}")),
        None => Diagnosis::warning(
            TOPIC,
            format!("the servers do not tell their tick; {used:?} is reckoned with"),
            "allow the command `conf` (`4lw.commands.whitelist`), or give `tick` in the URL",
        ),
    }
}

/// Whether sessions are as long as was asked for.
fn length(session: &Session, wish: Duration) -> Diagnosis {
    const TOPIC: &str = "session";
    let granted = session.timeout();
    match granted == wish {
        true => Diagnosis::good(TOPIC, format!("sessions last {granted:?}, as asked for")),
        false => Diagnosis::warning(
            TOPIC,
            format!("sessions last {granted:?}, and {wish:?} were asked for"),
            "a `ttl` of three to twenty ticks, or other bounds (`minSessionTimeout`, `maxSessionTimeout`)",
        ),
    }
}

/// Whether the locks can be seen. What else is allowed is known only by doing it.
async fn rights(
    shared: &Shared,
    session: &Session,
    namespace: &Namespace,
) -> Result<Diagnosis, Failure> {
    const TOPIC: &str = "rights";
    let folder = shared.layout.namespace(namespace);
    let seen = session.read(shared.inspection_limit(), session.client().list_children(&folder));
    match seen.await {
        Ok(_) | Err(Failure::Client(Error::NoNode)) => {
            Ok(Diagnosis::good(TOPIC, format!("`{folder}` can be read")))
        }
        Err(Failure::Client(Error::NoAuth)) => Ok(Diagnosis::error(
            TOPIC,
            format!("`{folder}` belongs to others, so acquisitions are denied"),
            "use their credentials in the URL, another namespace, or another path",
        )),
        Err(failure) => Err(failure),
    }
}

async fn latency(shared: &Shared, session: &Session) -> Result<Diagnosis, Failure> {
    const TOPIC: &str = "latency";
    let mut quickest = Duration::MAX;
    for _ in 0..ROUND_TRIPS {
        let started = Instant::now();
        session.beat(shared.layout.top(), shared.inspection_limit()).await?;
        quickest = quickest.min(started.elapsed());
    }
    let finding = format!("a write takes {quickest:.1?}");
    Ok(match quickest < SLOW {
        true => Diagnosis::good(TOPIC, finding),
        false => Diagnosis::warning(
            TOPIC,
            finding,
            "be nearer to the servers, or see to their disks: each acquisition and release is a write",
        ),
    })
}

fn read_only(told: &[String]) -> Option<Diagnosis> {
    told.iter().any(|answer| answer.contains("Mode: read-only")).then(|| {
        Diagnosis::warning(
            "read-only",
            "a server serves reads only, since it is cut off from the others",
            "see to its network; locks are taken at the others",
        )
    })
}

#[cfg(test)]
mod tests {
    use lockkit_core::Grade;

    use super::{members, version, version_in};

    const SRVR: &str =
        "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2022-07-08\nMode: standalone\n";

    #[test]
    fn versions_are_read() {
        assert_eq!(version_in(SRVR).as_deref(), Some("3.8.0"));
        let told = |number: &str| vec![format!("Zookeeper version: {number}-abc, built on x")];
        for (number, grade) in
            [("3.4.14", Grade::Error), ("3.5.9", Grade::Warning), ("3.10.1", Grade::Good)]
        {
            assert_eq!(version(&told(number)).grade(), grade, "{number}");
        }
        assert_eq!(version(&[]).grade(), Grade::Warning);
    }

    #[test]
    fn who_does_not_serve_is_noticed() {
        let away = "This ZooKeeper instance is not currently serving requests\n".to_owned();
        assert_eq!(members(&[SRVR.into()], 1).grade(), Grade::Good);
        assert_eq!(members(&[SRVR.into(), away], 2).grade(), Grade::Warning);
    }
}
