//! Whether the user has the rights to all that the driver does, and the server knows it.

use lockkit_core::driver::DriverError;
use lockkit_core::{Diagnosis, Grade, LockName, Namespace};

use super::{ask_at, merge};
use crate::dialect::Dialect;
use crate::driver::RedisDriver;
use crate::endpoint::Endpoint;
use crate::layout::{Inbox, Layout};
use crate::plain::{self, PlainLayout};
use crate::script::{self, RIGHTS};

const TOPIC: &str = "rights";
/// Needed if replicas are waited for.
const WAIT: &str = "wait";
/// Needed while a slot moves.
const ASKING: &str = "asking";

/// A lock that rights are asked for.
const ANY: &str = "any";

/// What cannot be done with locks without which rights. Who cannot take a free lock is not told that
/// it cannot wait for one.
type Uses = [(&'static str, &'static [&'static str])];

const USES: &Uses = &[
    ("taken", &["evalsha", "eval", "time", "exists", "hmget", "hset", "pexpireat", WAIT]),
    ("waited for", &["pttl", "zadd", "zrem", "zrange", "zrangebyscore", "zscore", "zcard"]),
    ("kept", &["evalsha", "eval", "hget", "pttl", "pexpire", WAIT]),
    ("released", &["evalsha", "eval", "hget", "exists", "del"]),
];

const PLAIN_USES: &Uses = &[
    ("taken", &["evalsha", "eval", "time", "exists", "hmget", "hset", "get", "set"]),
    ("waited for", &["pttl"]),
    ("kept", &["evalsha", "eval", "get", "pttl", "pexpire"]),
    ("released", &["evalsha", "eval", "get", "pttl", "del"]),
];

const WITHOUT_LOOKS: &str = "held locks are not listed";

/// What the user may not send, and what the server does not know: for locks, for waiting without
/// polling, and for looking.
type Missing = [[Vec<String>; 2]; 3];

/// Which rights are missing for what the driver does. Each member of a cluster has users of its own.
pub(super) async fn findings(
    driver: &RedisDriver,
    members: &[Option<Endpoint>],
    namespace: &Namespace,
) -> Result<Vec<Diagnosis>, DriverError> {
    let mut findings = Vec::new();
    for member in members {
        let found = of_one(driver, member.as_ref(), namespace).await?;
        merge(&mut findings, found, member.as_ref());
    }
    // The user has all rights if that is so everywhere.
    if findings.iter().any(|it| it.grade() != Grade::Good) {
        findings.retain(|it| it.grade() != Grade::Good);
    }
    Ok(findings)
}

/// Which rights are missing at one server for what the driver does.
async fn of_one(
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
        Dialect::Plain if names_are_keys(namespace) => format!(" ~{{{namespace}:*"),
        Dialect::Plain => format!(" ~{{{namespace}:* ~{}", plain::pattern(namespace)),
    };
    let channels = format!(" &{{{namespace}:*");
    let missing = match missing(driver, member, namespace).await? {
        Ok(Some(missing)) => missing,
        Ok(None) => {
            findings.push(Diagnosis::warning(
                TOPIC,
                format!("the server cannot tell which rights user `{user}` has"),
                "compare what `ACL LIST` shows with the rights in `docs/redis.md`",
            ));
            return Ok(findings);
        }
        Err(refusal) => {
            findings.push(Diagnosis::error(
                TOPIC,
                format!("user `{user}` cannot run scripts, so acquisitions are denied: {refusal}"),
                advice(&keys, &["evalsha".into(), "eval".into()]),
            ));
            return Ok(findings);
        }
    };
    findings.extend(unknown(driver.dialect, &missing));
    let [[locks, _], [news, _], [looks, _]] = missing;
    let (asking, locks): (Vec<_>, Vec<_>) = locks.into_iter().partition(|right| right == ASKING);
    let lacks = |rights: &[String], so: &str| {
        let rights = rights.join(" +");
        format!("user `{user}` lacks +{rights}, or the keys and channels of `{namespace}`: {so}")
    };
    // If a key may be read or written, it is not for want of keys that the rest is missing. A
    // server refuses a further pattern for a user who has all of them.
    let has =
        |rights: &[String], none: [&str; 2]| none.iter().any(|it| !rights.contains(&(*it).into()));
    if locks.is_empty()
        && driver.dialect == Dialect::Plain
        && names_are_keys(namespace)
        && !may_use_any_key(driver, member, namespace).await?
    {
        findings.push(Diagnosis::warning(
            TOPIC,
            format!("user `{user}` may not use every key: a lock called `{ANY}` would be denied"),
            format!("`ACL SETUSER {user} ~PATTERN`, if that does not cover the names of the locks"),
        ));
    }
    if !locks.is_empty() {
        let finding = lacks(&locks, &without(driver.dialect, &locks));
        let keys = if has(&locks, ["pttl", "del"]) { "" } else { &keys };
        findings.push(Diagnosis::error(TOPIC, finding, advice(keys, &locks)));
    }
    if !asking.is_empty() {
        let finding = lacks(&asking, "while a slot moves, its new owner denies requests");
        findings.push(Diagnosis::error(TOPIC, finding, advice("", &asking)));
    }
    if !news.is_empty() {
        let finding = lacks(&news, without_news(&news));
        let channels = if has(&news, ["publish", "subscribe"]) { "" } else { &channels };
        findings.push(Diagnosis::warning(TOPIC, finding, advice(channels, &news)));
    }
    if !looks.is_empty() {
        let finding = lacks(&looks, WITHOUT_LOOKS);
        findings.push(Diagnosis::warning(TOPIC, finding, advice("", &looks)));
    }
    if findings.is_empty() {
        let finding =
            format!("user `{user}` has all rights that are needed in namespace `{namespace}`");
        findings.push(Diagnosis::good(TOPIC, finding));
    }
    Ok(findings)
}

/// What is wrong where the server does not know a command, so that no right helps.
fn unknown(dialect: Dialect, [[_, locks], [_, news], [_, looks]]: &Missing) -> Vec<Diagnosis> {
    let finding = |commands: &[String], so: &str| {
        let commands = commands.join(", ").to_uppercase().replace('|', " ");
        format!("the server does not know {commands}: {so}")
    };
    let advice = "use a server where it is neither renamed nor disabled";
    let mut findings = Vec::new();
    if !locks.is_empty() {
        let finding = finding(locks, &without(dialect, locks));
        findings.push(match locks.iter().all(|it| it == WAIT) {
            true => Diagnosis::error(TOPIC, finding, format!("leave out `replicas`, or {advice}")),
            false => Diagnosis::error(TOPIC, finding, advice),
        });
    }
    if !news.is_empty() {
        findings.push(Diagnosis::warning(TOPIC, finding(news, without_news(news)), advice));
    }
    if !looks.is_empty() {
        findings.push(Diagnosis::warning(TOPIC, finding(looks, WITHOUT_LOOKS), advice));
    }
    findings
}

/// What comes of it that these are missing for locks.
fn without(dialect: Dialect, missing: &[String]) -> String {
    let uses = match dialect {
        Dialect::Lockkit => USES,
        Dialect::Plain => PLAIN_USES,
    };
    let needs = |commands: &[&str]| missing.iter().any(|it| commands.contains(&&**it));
    let cannot = uses.iter().filter(|(_, commands)| needs(commands)).map(|(use_of, _)| *use_of);
    match &*Vec::from_iter(cannot) {
        [] => "locks are denied".into(),
        [one] => format!("locks cannot be {one}"),
        [first @ .., last] => format!("locks cannot be {} or {last}", first.join(", ")),
    }
}

/// What comes of it that these are missing for waiting without polling.
fn without_news(missing: &[String]) -> &'static str {
    match missing.iter().all(|it| it.starts_with("pubsub")) {
        true => "a release cannot tell which waiters are dead",
        false => "waiters do not hear of releases, and poll",
    }
}

/// What is missing; `None` if the server cannot tell.
async fn missing(
    driver: &RedisDriver,
    member: Option<&Endpoint>,
    namespace: &Namespace,
) -> Result<Result<Option<Missing>, String>, DriverError> {
    // Rights are given for a namespace, so any lock in it will do.
    let name = any(namespace);
    match driver.dialect {
        Dialect::Lockkit => {
            let layout = Layout::of(&name);
            let [lock, queue, unordered, deadlines, bucket] = layout.keys();
            let channel = layout.channel(&Inbox::new());
            let mut arguments = vec![lock, queue, unordered, deadlines, bucket, &channel];
            arguments.extend(driver.replicas.map(|_| "wait 1 1"));
            arguments.extend(member.map(|_| ASKING));
            ask_at(driver, member, RIGHTS.on(&[], &arguments)).await
        }
        Dialect::Plain => {
            let layout = PlainLayout::of(&name);
            let [lock, bucket, holder] = layout.keys();
            // What applies to one of all keys says nothing about another.
            let lock = if names_are_keys(namespace) { bucket } else { lock };
            ask_at(driver, member, script::plain::RIGHTS.on(&[], &[lock, bucket, holder])).await
        }
    }
}

/// Whether the user may use the key of a lock whose name nothing is known of.
async fn may_use_any_key(
    driver: &RedisDriver,
    member: Option<&Endpoint>,
    namespace: &Namespace,
) -> Result<bool, DriverError> {
    let layout = PlainLayout::of(&any(namespace));
    let keys = layout.keys();
    let rights = script::plain::RIGHTS.on(&[], &keys);
    let missing: Result<Option<Missing>, String> = ask_at(driver, member, rights).await?;
    Ok(missing.is_ok_and(|missing| missing.is_some_and(|[[locks, _], ..]| locks.is_empty())))
}

fn any(namespace: &Namespace) -> LockName {
    LockName::new(namespace, ANY).expect("this is a good name")
}

/// Whether nothing stands before a name in the dialect `plain`.
fn names_are_keys(namespace: &Namespace) -> bool {
    *namespace == Namespace::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_right_has_a_use() {
        for (dialect, script, uses) in [
            (Dialect::Lockkit, include_str!("../scripts/rights.lua"), USES),
            (Dialect::Plain, include_str!("../scripts/plain/rights.lua"), PLAIN_USES),
        ] {
            let (_, locks) = script.split_once("missing({").unwrap();
            let (locks, _) = locks.split_once("missing({").unwrap();
            let commands = locks.lines().filter_map(|line| line.trim().strip_prefix('\''));
            let mut needed: Vec<_> =
                commands.map(|line| line.split([' ', '\'']).next().unwrap()).collect();
            needed.extend((dialect == Dialect::Lockkit).then_some(WAIT));
            let mut used: Vec<_> =
                uses.iter().flat_map(|(_, commands)| *commands).copied().collect();
            for list in [&mut needed, &mut used] {
                list.sort_unstable();
                list.dedup();
            }
            assert_eq!(used, needed, "{dialect:?}");
        }
    }
}
