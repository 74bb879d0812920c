//! Whether the cluster is fit to keep locks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmType, Client, GetOptions, MemberListResponse, StatusResponse,
    WatchFilterType, WatchOptions,
};
use futures_util::future::join_all;
use lockkit_core::driver::ErrorKind;
use lockkit_core::{Diagnosis, Namespace};
use tokio::time::Instant;

use crate::board::RENUMBERED;
use crate::driver::EtcdDriver;
use crate::error::Failure;
use crate::versions;

/// What a cluster keeps at most unless it is told otherwise: 2 GiB.
const USUAL_QUOTA: i64 = 2 * 1024 * 1024 * 1024;

/// More changes than this make a long history.
const LONG_HISTORY: i64 = 100_000;

/// A member with more changes than this to make up for is far behind.
const LONG_LAG: u64 = 1000;

/// A member that takes longer than this for a request is slow: this is a hundred times what is
/// usual.
const SLOW: Duration = Duration::from_millis(500);

/// Looks, and changes nothing.
pub(crate) async fn diagnose(
    driver: &EtcdDriver,
    namespace: &Namespace,
) -> Result<Vec<Diagnosis>, Failure> {
    let members = &driver.members;
    let status = |member| {
        members.ask(member, driver.inspection_limit(), async move |client: Arc<Client>| {
            client.maintenance_client().status().await
        })
    };
    let statuses: Vec<Result<StatusResponse, Failure>> =
        join_all((0..members.len()).map(status)).await;
    let failures: Vec<&Failure> =
        statuses.iter().filter_map(|status| status.as_ref().err()).collect();
    let refused = match failures[..] {
        [first, ..] if failures.len() == statuses.len() => {
            // Later releases tell only a user who may do everything.
            let refused = failures.into_iter().find(is_about_rights);
            Some(refused.ok_or_else(|| first.clone())?)
        }
        _ => None,
    };
    let alarm = |client: Arc<Client>| async move {
        client.maintenance_client().alarm(AlarmAction::Get, AlarmType::None, None).await
    };
    let alarms = members
        .call(driver.inspection_limit(), alarm)
        .await
        .outcome
        .map(|answer| answer.alarms().iter().map(|alarm| alarm.alarm()).collect::<Vec<_>>());
    let list = |client: Arc<Client>| async move { client.cluster_client().member_list().await };
    let listed = members.call(driver.inspection_limit(), list).await.outcome;
    let voters = |answer: MemberListResponse| {
        answer.members().iter().filter(|member| !member.is_learner()).count()
    };
    let listed = listed.map(voters);
    let rights = rights(driver, namespace).await;
    let (history, pace, news) = tokio::join!(
        history_of(driver, namespace),
        pace_of(driver, namespace, &statuses),
        news_of(driver, namespace),
    );
    let mut findings = match refused {
        Some(failure) => vec![Diagnosis::warning(
            "members",
            format!("what they say of themselves cannot be seen: {failure}"),
            "look with a user who has the role root",
        )],
        None => of_members(driver, &statuses),
    };
    findings.extend([size(driver, listed), alarm_of(alarms), history, pace, news, rights]);
    Ok(findings)
}

/// The findings from what the members say of themselves.
fn of_members(driver: &EtcdDriver, statuses: &[Result<StatusResponse, Failure>]) -> Vec<Diagnosis> {
    let answers: Vec<&StatusResponse> = statuses.iter().flatten().collect();
    vec![
        versions::found(&answers),
        reachable(driver, statuses),
        cluster(&answers),
        leader(&answers),
        quota(&answers),
        lag(driver, statuses),
    ]
}

fn is_about_rights(failure: &&Failure) -> bool {
    failure.kind() == ErrorKind::Denied
}

fn reachable(driver: &EtcdDriver, statuses: &[Result<StatusResponse, Failure>]) -> Diagnosis {
    let silent: Vec<String> = statuses
        .iter()
        .enumerate()
        .filter_map(|(member, status)| {
            let failure = status.as_ref().err()?;
            Some(format!("{} ({failure})", driver.members.name(member)))
        })
        .collect();
    match silent[..] {
        [] => Diagnosis::good("members", "all members of the URL answer"),
        _ => Diagnosis::warning(
            "members",
            format!("members of the URL do not answer: {}", silent.join(", ")),
            "bring them back, or take them out of the URL",
        ),
    }
}

fn cluster(answers: &[&StatusResponse]) -> Diagnosis {
    let ids = answers.iter().filter_map(|answer| Some(answer.header()?.cluster_id()));
    match ids.collect::<HashSet<_>>().len() {
        0 | 1 => Diagnosis::good("cluster", "the members of the URL are of one cluster"),
        clusters => Diagnosis::error(
            "cluster",
            format!("the members of the URL are of {clusters} clusters, each with its own locks"),
            "name the members of one cluster only",
        ),
    }
}

fn size(driver: &EtcdDriver, listed: Result<usize, Failure>) -> Diagnosis {
    let named = driver.members.len();
    match listed {
        Err(failure) => Diagnosis::warning(
            "size",
            format!("how many members the cluster has cannot be seen: {failure}"),
            "look with a user who may",
        ),
        Ok(1) => Diagnosis::warning(
            "size",
            "the cluster has one member: no locks while it is down",
            "add two more",
        ),
        Ok(members) if members % 2 == 0 => Diagnosis::warning(
            "size",
            format!(
                "the cluster has {members} members, of which no more may fail than of one less"
            ),
            "add one, or remove one",
        ),
        Ok(members) if named < members => Diagnosis::warning(
            "size",
            format!("the URL names {named} of {members} members"),
            "name all of them, so that one that fails can be gone from",
        ),
        Ok(members) => Diagnosis::good("size", format!("the cluster has {members} members")),
    }
}

fn leader(answers: &[&StatusResponse]) -> Diagnosis {
    let led = answers.iter().filter(|answer| answer.leader() != 0).count();
    if led < answers.len() {
        return Diagnosis::error(
            "leader",
            format!("{} of {} members know no leader", answers.len() - led, answers.len()),
            "look whether a majority of the members runs and reaches one another",
        );
    }
    match answers.iter().any(|answer| answer.is_learner()) {
        true => Diagnosis::warning(
            "leader",
            "the URL names a member that only learns, which takes no requests",
            "promote it, or take it out of the URL",
        ),
        false => Diagnosis::good("leader", "the members have a leader"),
    }
}

fn alarm_of(alarms: Result<Vec<AlarmType>, Failure>) -> Diagnosis {
    match alarms {
        Err(failure) => Diagnosis::warning(
            "alarms",
            format!("whether there are alarms cannot be seen: {failure}"),
            "look with a user who may",
        ),
        Ok(alarms) if alarms.contains(&AlarmType::Corrupt) => Diagnosis::error(
            "alarms",
            "members differ in their data",
            "stop the cluster, and restore it",
        ),
        Ok(alarms) if alarms.contains(&AlarmType::Nospace) => Diagnosis::error(
            "alarms",
            "the database is full: no lock can be taken",
            "compact and defragment it, then `etcdctl alarm disarm`",
        ),
        Ok(_) => Diagnosis::good("alarms", "there are none"),
    }
}

fn quota(answers: &[&StatusResponse]) -> Diagnosis {
    let size = answers.iter().map(|answer| answer.db_size()).max().unwrap_or(0);
    let told = answers.iter().map(|answer| answer.db_size_quota()).filter(|&quota| quota > 0).min();
    let quota = told.unwrap_or(USUAL_QUOTA);
    let megabytes = |bytes: i64| bytes / (1024 * 1024);
    let found = format!(
        "the database has {} MiB of {}{} MiB",
        megabytes(size),
        if told.is_some() { "" } else { "usually " },
        megabytes(quota),
    );
    match size < quota / 10 * 8 {
        true => Diagnosis::good("quota", found),
        false => Diagnosis::warning(
            "quota",
            found,
            "compact and defragment it, or raise --quota-backend-bytes",
        ),
    }
}

/// How much of the past is kept. Whether the cluster compacts by itself cannot be asked, but it can
/// be seen if it has not done so for long.
async fn history_of(driver: &EtcdDriver, namespace: &Namespace) -> Diagnosis {
    let prefix = driver.dialect.prefix_of(namespace);
    let read = async |revision: i64| {
        let prefix = &prefix;
        let read = |client: Arc<Client>| async move {
            let options = GetOptions::new().with_count_only().with_revision(revision);
            client.kv_client().get(prefix.as_str(), Some(options)).await
        };
        driver.members.call(driver.inspection_limit(), read).await.outcome
    };
    let now = match read(0).await {
        Ok(answer) => answer.header().map_or(0, |header| header.revision()),
        Err(failure) => return history(Err(failure)),
    };
    let is_long = match now - LONG_HISTORY {
        ..=0 => Ok(false),
        then => match read(then).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.is_about_compaction() => Ok(false),
            Err(failure) => Err(failure),
        },
    };
    history(is_long)
}

fn history(is_long: Result<bool, Failure>) -> Diagnosis {
    match is_long {
        Ok(false) => {
            Diagnosis::good("history", format!("no more than {LONG_HISTORY} changes are kept"))
        }
        Ok(true) => Diagnosis::warning(
            "history",
            format!(
                "more than {LONG_HISTORY} changes are kept: keys that were deleted slow down the \
                 locks that they were for, and fill the database"
            ),
            "--auto-compaction-mode=periodic --auto-compaction-retention=5m",
        ),
        Err(failure) => Diagnosis::warning(
            "history",
            format!("how long it is cannot be seen: {failure}"),
            "look with a user who may read the namespace",
        ),
    }
}

/// Members that are late to carry out what was decided answer late, and lead badly.
fn lag(driver: &EtcdDriver, statuses: &[Result<StatusResponse, Failure>]) -> Diagnosis {
    let applied = |status: &Result<StatusResponse, Failure>| {
        status.as_ref().ok().map(StatusResponse::raft_applied_index)
    };
    let most = statuses.iter().filter_map(applied).max().unwrap_or(0);
    let behind = statuses.iter().enumerate().filter_map(|(member, status)| {
        let behind = most - applied(status)?;
        let name = driver.members.name(member);
        (behind > LONG_LAG).then(|| format!("{name} by {behind} changes"))
    });
    match behind.collect::<Vec<_>>()[..] {
        [] => Diagnosis::good("lag", "no member is far behind the others"),
        ref behind => Diagnosis::warning(
            "lag",
            format!("members are behind the others: {}", behind.join(", ")),
            "look at their disks, processors and network",
        ),
    }
}

/// How long each member takes to answer a request such as locks make, which a majority has to agree
/// to.
async fn pace_of(
    driver: &EtcdDriver,
    namespace: &Namespace,
    statuses: &[Result<StatusResponse, Failure>],
) -> Diagnosis {
    let prefix = &driver.dialect.prefix_of(namespace);
    let answers = |member: &usize| match &statuses[*member] {
        Ok(_) => true,
        Err(failure) => is_about_rights(&failure),
    };
    let times = (0..statuses.len()).filter(answers).map(async |member| {
        let read = async move |client: Arc<Client>| {
            let options = GetOptions::new().with_count_only();
            client.kv_client().get(prefix.as_str(), Some(options)).await
        };
        let start = Instant::now();
        let answer = driver.members.ask(member, driver.inspection_limit(), read).await;
        (member, answer.map(|_| start.elapsed()))
    });
    let times = join_all(times).await;
    let slow = times.iter().filter_map(|(member, time)| {
        let name = driver.members.name(*member);
        match time {
            Ok(time) if *time < SLOW => None,
            Ok(time) => Some(format!("{name} ({time:.0?})")),
            Err(failure) => Some(format!("{name} ({failure})")),
        }
    });
    match slow.collect::<Vec<_>>()[..] {
        [] => Diagnosis::good("pace", format!("each member answers within {SLOW:?}")),
        ref slow => Diagnosis::warning(
            "pace",
            format!("members take long to answer: {}", slow.join(", ")),
            "look at the disks, processors and network of all members",
        ),
    }
}

/// Whether keys can be watched: by a watch of which nothing comes, whatever is written.
async fn news_of(driver: &EtcdDriver, namespace: &Namespace) -> Diagnosis {
    /// Not what anybody begins to count with.
    const ID: i64 = 7;
    let prefix = driver.dialect.prefix_of(namespace);
    let watch = |client: Arc<Client>| {
        let nothing = [WatchFilterType::NoPut, WatchFilterType::NoDelete];
        let options = WatchOptions::new().with_prefix().with_watch_id(ID).with_filters(nothing);
        let prefix = prefix.clone();
        async move {
            let mut stream = client.watch_client().watch(prefix, Some(options)).await?;
            stream.message().await
        }
    };
    let answer = driver.members.call(driver.inspection_limit(), watch).await.outcome;
    let watched = answer.and_then(|answer| match answer {
        Some(answer) if answer.canceled() => {
            Err(Failure::WatchRefused(answer.cancel_reason().into()))
        }
        Some(answer) if answer.watch_id() == ID => Ok(()),
        Some(_) => Err(Failure::WatchRefused(RENUMBERED.into())),
        None => Err(Failure::Ended),
    });
    match watched {
        Ok(()) => Diagnosis::good("news", "keys can be watched"),
        Err(failure) => Diagnosis::warning(
            "news",
            format!("waiters poll: {failure}"),
            "name the members themselves, and a user who may read the namespace",
        ),
    }
}

async fn rights(driver: &EtcdDriver, namespace: &Namespace) -> Diagnosis {
    let prefix = driver.dialect.prefix_of(namespace);
    let read = |client: Arc<Client>| {
        let options = GetOptions::new().with_prefix().with_count_only();
        let prefix = prefix.clone();
        async move { client.kv_client().get(prefix, Some(options)).await }
    };
    match driver.members.call(driver.inspection_limit(), read).await.outcome {
        Ok(_) => Diagnosis::good("rights", format!("keys under {prefix} can be read")),
        Err(failure) => Diagnosis::error(
            "rights",
            format!("keys under {prefix} cannot be read: {failure}"),
            format!("etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}"),
        ),
    }
}
