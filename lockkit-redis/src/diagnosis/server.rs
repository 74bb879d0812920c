//! What a server says about itself, and what that means for locks.

use std::cmp::Ordering;
use std::collections::HashMap;

use lockkit_core::Diagnosis;

use super::Part;
use crate::endpoint::Mode;

/// The settings that matter.
pub(super) const SETTINGS: [&str; 8] = [
    "appendfsync",
    "cluster-require-full-coverage",
    "min-replicas-to-write",
    "no-appendfsync-on-rewrite",
    "save",
    "stop-writes-on-bgsave-error",
    "tcp-keepalive",
    "timeout",
];

/// If idle connections are closed sooner than this, in seconds, they are closed between two
/// renewals.
const SHORT_TIMEOUT: u64 = 60;

/// What a server says about itself: the fields of `INFO`, and those of [`SETTINGS`] that it tells.
#[derive(Debug)]
pub(super) struct Server(HashMap<String, String>);

/// What is wanted of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) mode: Mode,
    /// Whether sentinels make another one the primary when this one is gone.
    pub(super) is_watched: bool,
    /// How many replicas must acknowledge.
    pub(super) replicas: u32,
    pub(super) part: Part,
}

impl Server {
    pub(super) fn of_info(info: &str) -> Self {
        let fields = info.lines().filter_map(|line| line.trim().split_once(':'));
        Self(fields.map(|(field, value)| (field.into(), value.into())).collect())
    }

    pub(super) fn add(&mut self, settings: HashMap<String, String>) {
        self.0.extend(settings);
    }

    pub(super) fn findings(&self, wish: Wish) -> Vec<Diagnosis> {
        let mut findings = vec![self.version(), self.role(wish.mode)];
        findings.extend([self.refusal(), self.memory()].into_iter().flatten());
        findings.extend([self.eviction(), self.persistence(wish.part), self.replication(wish)]);
        findings.extend(self.cut_off(wish.is_watched));
        findings.extend(self.connections());
        findings
    }

    fn version(&self) -> Diagnosis {
        // The others say in Redis's field which Redis they resemble.
        if let Some(version) = self.says("valkey_version") {
            return Diagnosis::good("version", format!("Valkey {version}"));
        }
        let version = self.says("redis_version").unwrap_or_default();
        let other = match self.says("dragonfly_version") {
            Some(version) => Some(format!("Dragonfly {version}")),
            None => self.says("mvcc_depth").map(|_| format!("KeyDB {version}")),
        };
        if let Some(other) = other {
            return Diagnosis::warning(
                "version",
                format!("{other} speaks the protocol of Redis, but lockkit was not tried with it"),
                "try it: `lockkit conformance`",
            );
        }
        let major = version.split('.').next().and_then(|major| major.parse().ok());
        match major {
            Some(6_u32..) => Diagnosis::good("version", format!("Redis {version}")),
            Some(5) => Diagnosis::warning(
                "version",
                format!("Redis {version} is older than those that lockkit was tried with"),
                "upgrade to Redis 7 or newer",
            ),
            Some(_) => Diagnosis::error(
                "version",
                format!("in Redis {version} no script may write that has asked for the time"),
                "upgrade to Redis 7 or newer",
            ),
            None => Diagnosis::warning(
                "version",
                "the server does not say which version it is",
                "try it: `lockkit conformance`",
            ),
        }
    }

    fn role(&self, wanted: Mode) -> Diagnosis {
        let mode = match (self.says("redis_mode"), self.number("cluster_enabled")) {
            (Some("cluster"), _) | (_, Some(1)) => Mode::ClusterNode,
            (Some("sentinel"), _) => Mode::Sentinel,
            _ => Mode::Single,
        };
        if mode != wanted {
            let (is, wanted) = (mode.name(), wanted.name());
            let finding = format!("the server is a {is}, not a {wanted}");
            return Diagnosis::error("role", finding, format!("choose a {wanted}"));
        }
        if let Some("slave" | "replica") = self.says("role") {
            let advice = match (self.says("master_host"), self.says("master_port")) {
                (Some(host), Some(port)) => format!("choose its primary, {host} port {port}"),
                _ => "choose its primary".into(),
            };
            return Diagnosis::error(
                "role",
                "the server is a replica, which takes no writes",
                advice,
            );
        }
        match self.says("role") {
            Some(_) if mode == Mode::ClusterNode => {
                Diagnosis::good("role", "the server is a primary of a cluster")
            }
            Some(_) => Diagnosis::good("role", "the server is a single primary"),
            None => {
                let finding = "the server does not say whether it is a primary";
                Diagnosis::warning("role", finding, "try it: `lockkit conformance`")
            }
        }
    }

    /// Why it takes no writes, if it says so.
    fn refusal(&self) -> Option<Diagnosis> {
        let look = "look at its log and at its disk";
        if self.says("aof_last_write_status") == Some("err") {
            let finding = "the server takes no writes: it could not append to its file";
            return Some(Diagnosis::error("persistence", finding, look));
        }
        if self.says("rdb_last_bgsave_status") == Some("err")
            && self.says("stop-writes-on-bgsave-error") == Some("yes")
            && self.saves()?
        {
            let finding = "the server takes no writes: it could not save its last snapshot";
            return Some(Diagnosis::error("persistence", finding, look));
        }
        let wanted = self.number("min-replicas-to-write")?;
        let there = self.number("min_slaves_good_slaves")?;
        (there < wanted).then(|| {
            Diagnosis::error(
                "replication",
                format!("the server takes no writes: {there} of {wanted} replicas keep up"),
                "bring replicas back, or lower `min-replicas-to-write`",
            )
        })
    }

    fn memory(&self) -> Option<Diagnosis> {
        let (used, most) = (self.number("used_memory")?, self.number("maxmemory")?);
        let advice = "raise `maxmemory`, or keep locks on a server of their own";
        let used_up = format!("{used} of {most} bytes are used");
        // Eviction makes room, and is an error by itself.
        let is_full = used >= most && self.says("maxmemory_policy") == Some("noeviction");
        match most {
            0 => None,
            _ if is_full => {
                let finding = format!("{used_up}: no lock can be taken");
                Some(Diagnosis::error("memory", finding, advice))
            }
            _ if used >= most - most / 10 => {
                let finding = format!("{used_up}; without room, no lock can be taken");
                Some(Diagnosis::warning("memory", finding, advice))
            }
            _ => None,
        }
    }

    fn eviction(&self) -> Diagnosis {
        let advice = "`CONFIG SET maxmemory-policy noeviction`, or that among the parameters of a \
                      managed server; here or on a server for locks alone";
        match self.says("maxmemory_policy") {
            Some("noeviction") => Diagnosis::good("eviction", "no key is evicted: `noeviction`"),
            Some(policy) => {
                let when = match self.number("maxmemory") {
                    Some(0) => "once `maxmemory` is set and reached",
                    _ => "when memory runs out",
                };
                let finding = format!("locks are evicted while they are held, {when}: `{policy}`");
                Diagnosis::error("eviction", finding, advice)
            }
            None => {
                let finding = "the server does not say whether it evicts keys";
                Diagnosis::warning("eviction", finding, advice)
            }
        }
    }

    fn persistence(&self, part: Part) -> Diagnosis {
        let skips = self.says("no-appendfsync-on-rewrite") == Some("yes");
        let forgets = match (self.number("aof_enabled"), self.says("appendfsync")) {
            (Some(1), Some("always")) if skips => {
                "a crash of its host during a rewrite or a snapshot forgets what was written since \
                 it began"
            }
            (Some(1), Some("always")) => {
                let finding = "every write is on disk before it is answered";
                return Diagnosis::good("persistence", finding);
            }
            (Some(1), Some("everysec")) => "a crash of its host forgets the last second or two",
            (Some(1), _) => "a crash of its host may forget the last seconds",
            _ => match self.saves() {
                Some(true) => "a restart forgets what is newer than the last snapshot",
                Some(false) => "a restart forgets everything",
                None => "a restart forgets everything, or what is newer than the last snapshot",
            },
        };
        let keep = "`CONFIG SET appendonly yes`, `CONFIG SET appendfsync always` and `CONFIG SET \
                    no-appendfsync-on-rewrite no`";
        match part {
            Part::Alone => Diagnosis::warning(
                "persistence",
                format!(
                    "{forgets}; what is held can then be taken, though with higher fencing tokens"
                ),
                format!("{keep}, or have resources check fencing tokens"),
            ),
            Part::OneOfSeveral => Diagnosis::warning("persistence", forgets, keep),
        }
    }

    fn replication(&self, Wish { replicas: wanted, part, .. }: Wish) -> Diagnosis {
        let there = self.number("connected_slaves");
        if let (Some(there), 1..) = (there, wanted) {
            return match there.cmp(&wanted.into()) {
                Ordering::Less => Diagnosis::error(
                    "replication",
                    format!(
                        "{there} replicas follow, and `replicas={wanted}` must acknowledge: \
                         nothing is granted"
                    ),
                    "bring replicas back, or want fewer",
                ),
                Ordering::Equal => Diagnosis::good(
                    "replication",
                    format!("all {there} replicas acknowledge what is granted"),
                ),
                Ordering::Greater => Diagnosis::warning(
                    "replication",
                    format!(
                        "{wanted} of {there} replicas acknowledge what is granted: a failover to \
                         another may forget it"
                    ),
                    match part {
                        Part::Alone => "wait for more, or have resources check fencing tokens",
                        Part::OneOfSeveral => "wait for more, or let no replica take over",
                    },
                ),
            };
        }
        match there {
            Some(0) => {
                let finding = "there is no replica, so no failover that forgets grants";
                Diagnosis::good("replication", finding)
            }
            replicas => {
                let replicas = match replicas {
                    Some(1) => "a replica follows".into(),
                    Some(number) => format!("{number} replicas follow"),
                    None => "replicas may follow".to_owned(),
                };
                Diagnosis::warning(
                    "replication",
                    format!("{replicas} without being waited for: a failover may forget grants"),
                    match part {
                        Part::Alone => {
                            "have resources check fencing tokens, or let no replica take over"
                        }
                        Part::OneOfSeveral => "let no replica take over",
                    },
                )
            }
        }
    }

    /// Whether it goes on granting while no replica follows that might take over.
    fn cut_off(&self, is_watched: bool) -> Option<Diagnosis> {
        let wanted = self.number("min-replicas-to-write").filter(|_| is_watched)?;
        (wanted == 0).then(|| {
            Diagnosis::warning(
                "replication",
                "a primary that is cut off from its replicas and sentinels goes on granting what \
                 its successor grants too",
                "`CONFIG SET min-replicas-to-write 1` and `CONFIG SET min-replicas-max-lag 10`, on \
                 each server",
            )
        })
    }

    /// Whether no slot is served while one is nobody's, if it says so.
    pub(super) fn wants_all_slots(&self) -> Option<bool> {
        Some(self.says("cluster-require-full-coverage")? == "yes")
    }

    fn connections(&self) -> Vec<Diagnosis> {
        let (timeout, keepalive) = (self.number("timeout"), self.number("tcp-keepalive"));
        let mut findings = Vec::new();
        if let Some(seconds @ 1..SHORT_TIMEOUT) = timeout {
            findings.push(Diagnosis::warning(
                "connections",
                format!(
                    "connections are closed when idle for {seconds} s, so renewals may be late"
                ),
                "`CONFIG SET timeout 0`",
            ));
        }
        if keepalive == Some(0) {
            findings.push(Diagnosis::warning(
                "connections",
                "connections of hosts that are gone stay open",
                "`CONFIG SET tcp-keepalive 300`",
            ));
        }
        if findings.is_empty() && timeout.is_some() && keepalive.is_some() {
            let finding = "idle connections are kept, those of hosts that are gone are closed";
            findings.push(Diagnosis::good("connections", finding));
        }
        findings
    }

    /// Whether it saves snapshots by itself.
    fn saves(&self) -> Option<bool> {
        self.says("save").map(|points| !points.is_empty())
    }

    fn says(&self, what: &str) -> Option<&str> {
        self.0.get(what).map(String::as_str)
    }

    fn number(&self, what: &str) -> Option<u64> {
        self.says(what)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::Grade::{self, Error, Good, Warning};

    use super::{Part, Server, Wish};
    use crate::endpoint::Mode;

    const WISH: Wish =
        Wish { mode: Mode::Single, is_watched: false, replicas: 0, part: Part::Alone };

    const SOUND: &str = "\
        # Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\n\
        connected_slaves:0\r\ncluster_enabled:0\r\nused_memory:900\r\nmaxmemory:0\r\n\
        maxmemory_policy:noeviction\r\naof_enabled:1\r\naof_last_write_status:ok\r\n\
        rdb_last_bgsave_status:ok\r\n";
    const SETTINGS: [(&str, &str); 7] = [
        ("appendfsync", "always"),
        ("min-replicas-to-write", "0"),
        ("no-appendfsync-on-rewrite", "no"),
        ("save", "3600 1"),
        ("stop-writes-on-bgsave-error", "yes"),
        ("tcp-keepalive", "300"),
        ("timeout", "0"),
    ];

    /// The findings about a sound server that differs in some of its answers, without those that
    /// are good.
    fn bad(otherwise: &[(&str, &str)]) -> Vec<(Grade, &'static str, String)> {
        bad_for(WISH, otherwise)
    }

    fn bad_for(wish: Wish, otherwise: &[(&str, &str)]) -> Vec<(Grade, &'static str, String)> {
        let mut server = Server::of_info(SOUND);
        let said = SETTINGS.iter().chain(otherwise);
        server.add(said.map(|&(what, value)| (what.into(), value.into())).collect());
        let findings = server.findings(wish).into_iter().filter(|finding| finding.grade() > Good);
        findings.map(|it| (it.grade(), it.topic(), it.finding().to_owned())).collect()
    }

    #[test]
    fn a_sound_server_is_called_sound() {
        assert_eq!(bad(&[]), []);
        assert_eq!(bad(&[("valkey_version", "8.1.0"), ("redis_version", "7.2.4")]), []);
        assert_eq!(bad(&[("timeout", "300")]), []);
    }

    #[test]
    fn what_is_wrong_is_found() {
        type Case<'a> = (&'a [(&'a str, &'a str)], Grade, &'a str, &'a str);
        let cases: &[Case<'_>] = &[
            (&[("redis_version", "4.0.14")], Error, "version", "no script may write"),
            (&[("redis_version", "5.0.3")], Warning, "version", "older"),
            (&[("redis_version", "")], Warning, "version", "does not say"),
            (&[("dragonfly_version", "df-v1.40.1")], Warning, "version", "Dragonfly df-v1.40.1"),
            (&[("mvcc_depth", "0")], Warning, "version", "KeyDB 7.0.15"),
            (&[("role", "slave")], Error, "role", "replica"),
            (&[("redis_mode", "cluster")], Error, "role", "cluster"),
            (&[("redis_mode", "sentinel")], Error, "role", "sentinel"),
            (&[("maxmemory_policy", "volatile-ttl")], Error, "eviction", "once `maxmemory` is set"),
            (
                &[("maxmemory_policy", "allkeys-lru"), ("maxmemory", "9999")],
                Error,
                "eviction",
                "when memory runs out",
            ),
            (&[("maxmemory", "1000")], Warning, "memory", "900 of 1000"),
            (&[("maxmemory", "900")], Error, "memory", "no lock can be taken"),
            (&[("appendfsync", "everysec")], Warning, "persistence", "last second"),
            (&[("appendfsync", "no")], Warning, "persistence", "last seconds"),
            (&[("no-appendfsync-on-rewrite", "yes")], Warning, "persistence", "during a rewrite"),
            (&[("aof_enabled", "0")], Warning, "persistence", "last snapshot"),
            (&[("aof_enabled", "0"), ("save", "")], Warning, "persistence", "everything;"),
            (&[("aof_last_write_status", "err")], Error, "persistence", "append"),
            (&[("rdb_last_bgsave_status", "err")], Error, "persistence", "snapshot"),
            (&[("connected_slaves", "2")], Warning, "replication", "2 replicas follow"),
            (
                &[("min-replicas-to-write", "2"), ("min_slaves_good_slaves", "1")],
                Error,
                "replication",
                "1 of 2",
            ),
            (&[("timeout", "5")], Warning, "connections", "5 s"),
            (&[("tcp-keepalive", "0")], Warning, "connections", "stay open"),
        ];
        for &(otherwise, grade, topic, word) in cases {
            let found = bad(otherwise);
            let [(is_grade, is_topic, finding)] = &*found else {
                panic!("{otherwise:?}: {found:?}")
            };
            assert_eq!((*is_grade, *is_topic), (grade, topic), "{otherwise:?}: {finding}");
            assert!(finding.contains(word), "{otherwise:?}: {finding}");
        }
    }

    #[test]
    fn it_depends_on_what_is_wanted() {
        let node = Wish { mode: Mode::ClusterNode, ..WISH };
        assert_eq!(bad_for(node, &[("redis_mode", "cluster"), ("cluster_enabled", "1")]), []);
        assert!(bad_for(node, &[])[0].2.contains("single server, not a node"));

        let waits = |replicas| Wish { replicas, ..WISH };
        let two = [("connected_slaves", "2")];
        assert_eq!(bad_for(waits(2), &two), []);
        for (wish, grade, word) in
            [(waits(1), Warning, "1 of 2"), (waits(3), Error, "`replicas=3`")]
        {
            let found = bad_for(wish, &two);
            assert!(found[0].0 == grade && found[0].2.contains(word), "{found:?}");
        }

        let watched = Wish { is_watched: true, ..WISH };
        assert!(bad_for(watched, &[])[0].2.contains("cut off"));
        let safe = [("min-replicas-to-write", "1"), ("min_slaves_good_slaves", "1")];
        assert_eq!(bad_for(watched, &safe), []);
    }

    /// What grants no tokens has nobody check them, and knows by itself what comes of a restart.
    #[test]
    fn one_of_several_servers_says_nothing_of_tokens() {
        let mut server = Server::of_info(SOUND);
        let said = [("appendfsync", "no"), ("connected_slaves", "2")];
        server.add(said.map(|(what, value)| (what.into(), value.into())).into());
        for replicas in [0, 1] {
            let said = |part| {
                let findings = server.findings(Wish { replicas, part, ..WISH });
                findings.iter().map(|it| format!("{it:?}")).collect::<String>()
            };
            let (alone, one) = (said(Part::Alone), said(Part::OneOfSeveral));
            assert_eq!(alone.matches("check fencing tokens").count(), 2, "{alone}");
            assert!(!one.contains("token") && !one.contains("can then be taken"), "{one}");
            assert!(one.contains("may forget the last seconds"), "{one}");
        }
    }

    /// A server that says nothing is not called sound, nor is it called unsound.
    #[test]
    fn what_is_not_said_is_a_warning() {
        let findings = Server::of_info("").findings(WISH);
        let warned: Vec<_> = findings.iter().filter(|finding| finding.grade() == Warning).collect();
        assert_eq!(warned.len(), 5, "{warned:#?}");
        assert!(findings.iter().all(|finding| finding.grade() < Error), "{findings:#?}");
    }
}
