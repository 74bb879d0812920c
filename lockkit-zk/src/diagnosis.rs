//! Whether the servers are fit to keep locks. A diagnosis leaves nothing behind; what the servers
//! do not tell is a finding, too.

use std::time::{Duration, Instant};

use lockkit_core::driver::OwnerId;
use lockkit_core::{Diagnosis, Namespace};
use zookeeper_client::{CreateMode, Error, MultiWriteError};

use crate::driver::Shared;
use crate::endpoint::{longest_tick, millis};
use crate::error::Failure;
use crate::session::{Session, within};

/// How often to measure a round trip; the quickest counts.
const ROUND_TRIPS: usize = 3;
/// A round trip that takes this long is slow.
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
    let (told, settings, figures) =
        tokio::join!(endpoint.ask_all("srvr"), endpoint.ask_all("conf"), endpoint.ask_all("mntr"));
    let session = shared.sessions.connected(shared.inspection_limit()).await?;
    let mut findings = vec![
        version(&told),
        members(&told, endpoint.hosts()),
        ensemble(shared, &session, &figures).await?,
        tick(shared, &settings, &session).await,
        length(&session, endpoint.wish()),
        rights(shared, &session, namespace).await?,
        latency(shared, &session).await?,
    ];
    findings.extend(bounds(&settings));
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
        Some(oldest) if numbers(oldest) < (3, 8, 0) => Diagnosis::warning(
            TOPIC,
            format!("ZooKeeper {oldest} gets no more fixes"),
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

/// How many servers vote, and how many of them can be spared.
async fn ensemble(
    shared: &Shared,
    session: &Session,
    figures: &[String],
) -> Result<Diagnosis, Failure> {
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
    let voters = text.lines().filter(is_voter).count();
    Ok(strength(voters, in_step(figures), shared.sessions.endpoint().hosts()))
}

/// How much that many voters can stand, given how many others the leader says are in step with it.
fn strength(voters: usize, in_step: Option<usize>, named: usize) -> Diagnosis {
    const TOPIC: &str = "ensemble";
    let majority = voters / 2 + 1;
    match voters {
        0 | 1 => Diagnosis::warning(
            TOPIC,
            "one server: while it is away, no lock can be taken or kept",
            "three servers go on without any one of them",
        ),
        _ if in_step.is_some_and(|others| others < majority) => Diagnosis::warning(
            TOPIC,
            format!(
                "{} of {voters} voters are in step with each other: none of these can be spared",
                in_step.unwrap_or(0) + 1
            ),
            "see to the others before one more is lost",
        ),
        _ if voters.is_multiple_of(2) => Diagnosis::warning(
            TOPIC,
            format!("{voters} servers vote, which stand no more losses than {}", voters - 1),
            "use an odd number",
        ),
        _ if named < majority => Diagnosis::warning(
            TOPIC,
            format!("{voters} servers vote, and the URL names {named}"),
            "name them all, so that one is found whichever is away",
        ),
        voters => Diagnosis::good(TOPIC, format!("{voters} servers vote")),
    }
}

/// How many voters follow the leader and are not behind, if the leader was among those asked.
fn in_step(figures: &[String]) -> Option<usize> {
    let figure = |line: &str| {
        let number = line.strip_prefix("zk_synced_followers")?.trim();
        number.parse::<f64>().ok().map(|number| number as usize)
    };
    figures.iter().flat_map(|answer| answer.lines()).find_map(figure)
}

/// Whether the tick is known: how long a hold is known to stand depends on it.
async fn tick(shared: &Shared, settings: &[String], session: &Session) -> Diagnosis {
    const TOPIC: &str = "tick";
    let used = session.tick();
    let told = longest_tick(settings);
    let endpoint = shared.sessions.endpoint();
    match told {
        Some(tick) if tick > used => Diagnosis::error(
            TOPIC,
            format!("the servers' tick is {tick:?}, and {used:?} is reckoned with"),
            "correct `tick` in the URL; without it, connect again",
        ),
        Some(tick) => Diagnosis::good(TOPIC, format!("the servers' tick is {tick:?}")),
        None if endpoint.says_tick() => {
            Diagnosis::good(TOPIC, format!("a tick of {used:?} is reckoned with, as the URL says"))
        }
        None if endpoint.bounds().await.is_ok_and(|bounds| bounds.agree_on(used)) => {
            Diagnosis::good(
                TOPIC,
                format!("the bounds of sessions are those of a tick of {used:?}"),
            )
        }
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

/// Whether each server treats sessions in its own way: sessions that move are then cut short.
fn bounds(settings: &[String]) -> Option<Diagnosis> {
    let told = |answer: &String| {
        let names = ["tickTime", "minSessionTimeout", "maxSessionTimeout"];
        let [Some(tick), Some(least), Some(most)] = names.map(|name| millis(answer, name)) else {
            return None;
        };
        Some(format!("{least:?} to {most:?} with a tick of {tick:?}"))
    };
    let mut ways: Vec<_> = settings.iter().filter_map(told).collect();
    ways.sort();
    ways.dedup();
    (ways.len() > 1).then(|| {
        Diagnosis::warning(
            "bounds",
            format!("the servers differ in how long sessions are: {}", ways.join("; ")),
            "give all of them the same `tickTime`, `minSessionTimeout` and `maxSessionTimeout`",
        )
    })
}

/// Whether locks can be taken and released, found out by doing it in one step that leaves nothing.
async fn rights(
    shared: &Shared,
    session: &Session,
    namespace: &Namespace,
) -> Result<Diagnosis, Failure> {
    const TOPIC: &str = "rights";
    let folder = shared.layout.namespace(namespace);
    let seen = session.read(shared.inspection_limit(), session.client().list_children(&folder));
    let foreign = |finding: String| {
        Diagnosis::error(
            TOPIC,
            finding,
            "use the credentials of whoever it belongs to, another namespace, or another path",
        )
    };
    match seen.await {
        Ok(_) | Err(Failure::Client(Error::NoNode)) => (),
        Err(Failure::Client(Error::NoAuth)) => {
            return Ok(foreign(format!(
                "`{folder}` belongs to others, so acquisitions are denied"
            )));
        }
        Err(failure) => return Err(failure),
    }
    // What is missing above a lock is made inside what there is.
    let mut place = folder.as_str();
    loop {
        match try_out(shared, session, place).await {
            Ok(()) => return Ok(Diagnosis::good(TOPIC, format!("`{place}` can be written to"))),
            Err(Failure::Client(Error::NoNode)) if place != "/" => {
                place = match place.rsplit_once('/') {
                    Some(("", _)) | None => "/",
                    Some((above, _)) => above,
                };
            }
            Err(Failure::Client(Error::NoAuth)) => {
                return Ok(foreign(format!(
                    "nothing can be made or removed in `{place}`, so acquisitions are denied"
                )));
            }
            Err(Failure::Client(error)) if Failure::from(error.clone()).is_answer() => {
                return Ok(Diagnosis::error(
                    TOPIC,
                    format!("nothing can be made or removed in `{place}`: {error}"),
                    "see to the quota, or to how the servers treat sessions",
                ));
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Makes an ephemeral node and removes it, without anybody seeing it.
async fn try_out(shared: &Shared, session: &Session, place: &str) -> Result<(), Failure> {
    let path = [place.trim_end_matches('/'), "/", &OwnerId::random().to_string()].concat();
    let mut writer = session.client().new_multi_writer();
    let acls = shared.sessions.endpoint().acls();
    writer.add_create(&path, b"", &CreateMode::Ephemeral.with_acls(acls))?;
    writer.add_delete(&path, None)?;
    match within(shared.inspection_limit(), writer.commit()).await? {
        Ok(_) => Ok(()),
        Err(
            MultiWriteError::RequestFailed { source }
            | MultiWriteError::OperationFailed { source, .. },
        ) => Err(source.into()),
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

    use super::{bounds, in_step, members, strength, version, version_in};

    const SRVR: &str =
        "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2022-07-08\nMode: standalone\n";

    #[test]
    fn versions_are_read() {
        assert_eq!(version_in(SRVR).as_deref(), Some("3.8.0"));
        let told = |number: &str| vec![format!("Zookeeper version: {number}-abc, built on x")];
        for (number, grade) in
            [("3.4.14", Grade::Error), ("3.7.2", Grade::Warning), ("3.10.1", Grade::Good)]
        {
            assert_eq!(version(&told(number)).grade(), grade, "{number}");
        }
        assert_eq!(version(&[]).grade(), Grade::Warning);
    }

    #[test]
    fn what_an_ensemble_stands_is_reckoned() {
        let told = ["zk_version\t3.8\n".into(), "zk_synced_followers\t2\nzk_x\t1\n".to_owned()];
        assert_eq!(in_step(&told), Some(2));
        assert_eq!(in_step(&told[..1]), None);
        for (voters, others, named, grade) in [
            (1, None, 1, Grade::Warning),
            (3, Some(2), 3, Grade::Good),
            (3, Some(1), 3, Grade::Warning),
            (5, Some(3), 5, Grade::Good),
            (5, Some(2), 5, Grade::Warning),
            (4, Some(3), 4, Grade::Warning),
            (3, None, 3, Grade::Good),
            (3, None, 1, Grade::Warning),
        ] {
            let found = strength(voters, others, named);
            assert_eq!(found.grade(), grade, "{voters} {others:?} {named}: {found:?}");
        }
    }

    #[test]
    fn servers_that_differ_in_their_sessions_are_noticed() {
        let conf = |most: u32| {
            format!("tickTime=2000\nminSessionTimeout=4000\nmaxSessionTimeout={most}\n")
        };
        assert!(bounds(&[conf(40_000), conf(40_000)]).is_none());
        assert!(bounds(&[conf(40_000), "conf is not executed\n".into()]).is_none());
        let found = bounds(&[conf(40_000), conf(5000), conf(40_000)]).unwrap();
        assert_eq!(found.grade(), Grade::Warning);
        assert!(found.finding().contains("4s to 5s"), "{found:?}");
    }

    #[test]
    fn who_does_not_serve_is_noticed() {
        let away = "This ZooKeeper instance is not currently serving requests\n".to_owned();
        assert_eq!(members(&[SRVR.into()], 1).grade(), Grade::Good);
        assert_eq!(members(&[SRVR.into(), away], 2).grade(), Grade::Warning);
    }
}
