//! A run as the real ones are: all workloads, many backends and peers, some absent, some ahead.

use lockkit_bench::Unit;
use lockkit_compare::run::{Absence, Entry, Figure, Placement, Role, Round, Run, Setup};

/// Where something is measured, which kind of lockkit, and the microseconds that a request takes.
const BACKENDS: [(&str, &str, f64); 15] = [
    ("memory", "", 0.4),
    ("file", "", 21.0),
    ("sqlite", "", 160.0),
    ("postgres", "", 95.0),
    ("postgres", ", session", 30.0),
    ("mariadb", "", 140.0),
    ("mariadb", ", session", 42.0),
    ("redis", "", 13.0),
    ("redis", ", fair", 13.9),
    ("redlock, 3 servers", "", 45.0),
    ("redlock, 5 servers", "", 71.0),
    ("zookeeper", "", 420.0),
    ("zookeeper, 3 members", "", 760.0),
    ("etcd", "", 210.0),
    ("etcd, 3 members", "", 640.0),
];

/// Who else locks there, how many times the requests it takes, and how it waits (in microseconds).
const PEERS: [(&str, &str, f64, f64); 17] = [
    ("redis", "rslock", 1.21, 48_000.0),
    ("redis", "distributed-lock (redis)", 1.05, 71_000.0),
    ("redis", "distkit", 1.62, 9_000.0),
    ("redis", "ash-lock", 1.33, 31_000.0),
    ("redis", "redis-py Lock", 7.4, 52_000.0),
    ("redis", "python-redis-lock", 9.2, 690.0),
    ("redis", "node-redlock", 6.1, 110_000.0),
    ("redlock, 3 servers", "rslock", 1.38, 61_000.0),
    ("redlock, 3 servers", "node-redlock", 3.2, 98_000.0),
    ("postgres", "sqlx PgAdvisoryLock", 0.29, 310.0),
    ("postgres", "distributed-lock (postgres)", 1.4, 12_000.0),
    ("mariadb", "distributed-lock (mysql)", 0.29, 420.0),
    ("zookeeper", "kazoo Lock", 3.1, 2_900.0),
    ("zookeeper", "Curator InterProcessMutex", 2.2, 2_200.0),
    ("zookeeper", "zookeeper-client lock", 1.3, 1_900.0),
    ("etcd", "etcd-client v3lock", 1.1, 74_000.0),
    ("etcd", "etcdctl lock", 48.0, 88_000.0),
];

/// One of them.
struct At {
    backend: &'static str,
    kind: &'static str,
    request: f64,
}

impl At {
    fn lockkit(&self, placement: Placement) -> Who {
        let subject = format!("lockkit{}", self.kind);
        Who { backend: self.backend, subject, role: Role::Lockkit, placement }
    }

    /// Fair locks have none of their own.
    fn floor(&self, placement: Placement) -> Option<Who> {
        let subject = format!("floor{}", self.kind);
        let floor = Who { backend: self.backend, subject, role: Role::Floor, placement };
        (self.kind != ", fair" && self.backend != "memory").then_some(floor)
    }

    /// Once for all kinds of lockkit.
    fn peers(&self, placement: Placement) -> Vec<(Who, f64, f64)> {
        let here = PEERS.iter().filter(|peer| self.kind.is_empty() && peer.0 == self.backend);
        let peer = |&(backend, subject, factor, waits): &(&'static str, &str, f64, f64)| {
            (Who { backend, subject: subject.into(), role: Role::Peer, placement }, factor, waits)
        };
        here.map(peer).collect()
    }
}

/// A run on a machine of which others used that share.
pub(crate) fn sample(noise: f64) -> Run {
    let mut sample = Sample { random: 7, entries: Vec::new() };
    for (backend, kind, request) in BACKENDS {
        let at = At { backend, kind, request };
        for placement in [Placement::Pinned, Placement::Unpinned] {
            sample.uncontended(&at, placement);
            sample.hand_over(&at, placement);
        }
        sample.contended(&at);
        sample.recovery(&at);
        sample.alone(&at);
        sample.stock(&at);
    }
    sample.granularity();
    Run { setup: setup(noise), entries: sample.entries, absences: absences() }
}

struct Sample {
    random: u64,
    entries: Vec<Entry>,
}

impl Sample {
    /// The same for each run of the tests.
    fn around(&mut self, value: f64) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let unit = (self.random >> 33) as f64 / f64::from(1 << 31);
        value * (0.95 + 0.1 * unit)
    }

    fn push(&mut self, workload: &str, who: &Who, case: &str, rounds: Vec<Round>) {
        self.entries.push(Entry {
            workload: workload.into(),
            backend: who.backend.into(),
            subject: who.subject.clone(),
            role: who.role,
            placement: who.placement,
            case: case.into(),
            rounds,
        });
    }

    fn times(&mut self, workload: &str, who: &Who, case: &str, seconds: f64) {
        let rounds = (0..5).map(|_| self.time(seconds)).collect();
        self.push(workload, who, case, rounds);
    }

    fn time(&mut self, seconds: f64) -> Round {
        let median = self.around(seconds);
        let tail = self.around(0.35);
        let within = |share: f64| {
            let nines = -(1.0 - share).max(1e-6).log10();
            (share, median * (0.9 + tail * nines * nines + 0.3 * nines))
        };
        let shares = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0];
        let distribution: Vec<_> = shares.into_iter().map(within).collect();
        let at = |share| within(share).1;
        let figures = vec![
            figure("p50", Unit::Time, at(0.5)),
            figure("p99", Unit::Time, at(0.99)),
            figure("p99.9", Unit::Time, at(0.999)),
        ];
        Round { figures, distribution, times: None }
    }

    fn uncontended(&mut self, at: &At, placement: Placement) {
        let slow = if placement == Placement::Pinned { 2e-6 } else { 9e-6 } * at.request;
        self.times("uncontended", &at.lockkit(placement), "", slow * 1.07);
        if let Some(floor) = at.floor(placement) {
            self.times("uncontended", &floor, "", slow);
        }
        for (peer, factor, _) in at.peers(placement) {
            self.times("uncontended", &peer, "", slow * factor);
        }
    }

    fn hand_over(&mut self, at: &At, placement: Placement) {
        let slow = if placement == Placement::Pinned { 1.8e-6 } else { 7e-6 } * at.request;
        let polls = matches!(at.backend, "file" | "sqlite");
        let waits = if polls { 5e-3 } else { slow * 1.3 };
        self.times("hand-over", &at.lockkit(placement), "", waits);
        if let Some(floor) = at.floor(placement) {
            self.times("hand-over", &floor, "", slow);
        }
        for (peer, _, waits) in at.peers(placement) {
            self.times("hand-over", &peer, "", waits * 1e-6);
        }
    }

    fn contended(&mut self, at: &At) {
        for (section, under) in [("empty", 0.0), ("1 ms", 1e-3)] {
            for clients in [2.0, 8.0, 64.0] {
                let case = format!("{clients} clients, {section}");
                let grant = at.request * 3e-6 + under;
                let ours = at.lockkit(Placement::Unpinned);
                self.throughput(&ours, &case, 1.0 / grant, clients, 2.1);
                for (peer, factor, waits) in at.peers(Placement::Unpinned) {
                    let grant = under + at.request * 3e-6 * factor + waits * 1e-6 / clients;
                    self.throughput(&peer, &case, 1.0 / grant, clients, 1.0 + clients * factor);
                }
            }
        }
    }

    fn throughput(&mut self, who: &Who, case: &str, grants: f64, clients: f64, asks: f64) {
        let round = |sample: &mut Self| {
            let grants = sample.around(grants);
            let figures = vec![
                figure("grants", Unit::PerSecond, grants),
                figure("p50", Unit::Time, clients / grants),
                figure("p99", Unit::Time, 2.1 * clients / grants),
                figure("p99.9", Unit::Time, 3.7 * clients / grants),
                figure("Jain", Unit::Ratio, sample.around(0.93)),
                figure("requests a grant", Unit::Count, sample.around(asks)),
            ];
            Round { figures, ..sample.time(clients / grants) }
        };
        let rounds = (0..5).map(|_| round(self)).collect();
        self.push("contended", who, case, rounds);
    }

    fn recovery(&mut self, at: &At) {
        const LEASE: f64 = 5.0;
        let free_after = match at.backend {
            "memory" => return,
            "file" => 0.006,
            _ if at.kind == ", session" => 0.012,
            _ => 0.97 * LEASE,
        };
        self.freed(&at.lockkit(Placement::Unpinned), free_after, LEASE);
        for (peer, factor, _) in at.peers(Placement::Unpinned) {
            self.freed(&peer, free_after * (1.0 + factor / 20.0), LEASE);
        }
    }

    fn freed(&mut self, who: &Who, free_after: f64, lease: f64) {
        let round = |sample: &mut Self| {
            let free_after = sample.around(free_after);
            let figures = vec![
                figure("free after", Unit::Time, free_after),
                figure("of the lease", Unit::Ratio, free_after / lease),
            ];
            Round { figures, ..Round::default() }
        };
        let rounds = (0..5).map(|_| round(self)).collect();
        self.push("recovery", who, "", rounds);
    }

    /// What is measured of lockkit alone.
    fn alone(&mut self, at: &At) {
        let who = at.lockkit(Placement::Unpinned);
        let request = at.request;
        for number in [1_000.0, 10_000.0] {
            let case = format!("{number} waiters");
            let figures = |sample: &mut Self| {
                vec![
                    figure("client memory a waiter", Unit::Bytes, sample.around(2_900.0)),
                    figure("requests a grant", Unit::Count, sample.around(2.6)),
                    figure("grants", Unit::PerSecond, sample.around(3e5 / request)),
                ]
            };
            self.rounds_of("waiters", &who, &case, figures);
            let case = format!("{number} holds, leases of 5s");
            let figures = |sample: &mut Self| {
                vec![
                    figure("CPU of the client", Unit::Ratio, sample.around(number / 2e5)),
                    figure("CPU of the server", Unit::Ratio, sample.around(number * request / 5e6)),
                    figure("memory a hold", Unit::Bytes, sample.around(3_400.0)),
                    figure("connections", Unit::Count, 1.0),
                    figure("late renewals", Unit::Count, 0.0),
                ]
            };
            self.rounds_of("many-names", &who, &case, figures);
        }
    }

    fn stock(&mut self, at: &At) {
        if matches!(at.backend, "memory" | "file") || at.backend.starts_with("redlock") {
            return;
        }
        let placement = Placement::Unpinned;
        let without = |subject: &str| {
            let role = Role::Peer;
            Who { backend: at.backend, subject: subject.into(), role, placement }
        };
        let mut ways = vec![(at.lockkit(placement), 4.0)];
        if at.kind.is_empty() {
            ways.push((without("no lock: one operation"), 1.0));
            ways.push((without("no lock: version and retry"), 3.1));
        }
        for (who, requests) in ways {
            let figures = |sample: &mut Self| {
                let sold = sample.around(1e6 / (at.request * requests));
                vec![
                    figure("sold", Unit::PerSecond, sold),
                    figure("tries a sale", Unit::Count, sample.around(1.4)),
                    figure("sold wrongly", Unit::Count, 0.0),
                ]
            };
            self.rounds_of("stock", &who, "8 sellers", figures);
        }
    }

    fn rounds_of(
        &mut self,
        workload: &str,
        who: &Who,
        case: &str,
        figures: impl Fn(&mut Self) -> Vec<Figure>,
    ) {
        let round = |sample: &mut Self| Round { figures: figures(sample), ..Round::default() };
        let rounds = (0..3).map(|_| round(self)).collect();
        self.push(workload, who, case, rounds);
    }

    fn granularity(&mut self) {
        for (case, slow) in [("uncontended", 1.0), ("8 tasks", 11.0)] {
            for (backend, ours, peer, theirs) in
                [("memory", 8e-7, "tokio::sync::Mutex", 6e-8), ("file", 4e-5, "flock", 2e-6)]
            {
                let who = |subject: &str, role| {
                    let placement = Placement::Unpinned;
                    Who { backend, subject: subject.into(), role, placement }
                };
                let pairs = [
                    (who("lockkit", Role::Lockkit), ours * slow),
                    (who(peer, Role::Peer), theirs * slow),
                ];
                for (who, seconds) in pairs {
                    let figures = |sample: &mut Self| {
                        let seconds = sample.around(seconds);
                        vec![
                            figure("pairs", Unit::PerSecond, 1.0 / seconds),
                            figure("p50", Unit::Time, seconds),
                        ]
                    };
                    self.rounds_of("granularity", &who, case, figures);
                }
            }
        }
    }
}

/// Who is measured where.
struct Who {
    backend: &'static str,
    subject: String,
    role: Role,
    placement: Placement,
}

fn figure(name: &str, unit: Unit, value: f64) -> Figure {
    Figure { name: name.into(), unit, value }
}

fn setup(noise: f64) -> Setup {
    let versions = [
        ("lockkit", "0.1.0"),
        ("rustc", "1.94.0"),
        ("Redis", "7.0.15"),
        ("etcd", "3.4.23"),
        ("ZooKeeper", "3.8.0"),
        ("PostgreSQL", "15.18"),
        ("MariaDB", "10.11.14"),
        ("rslock", "0.8.0"),
        ("kazoo", "2.11.0"),
    ];
    Setup {
        date: "2026-11-21".into(),
        processor: "Intel Xeon Processor at 2.10 GHz".into(),
        cpus: 2,
        memory: 8_318_000_000,
        system: "Debian GNU/Linux 12, Linux 6.1.0".into(),
        versions: versions.map(|(what, version)| (what.into(), version.into())).into(),
        seed: 42,
        rounds: 5,
        seconds: 1_290.0,
        noise,
    }
}

fn absences() -> Vec<Absence> {
    let absence = |workload: Option<&str>, backend: &str, subject: &str, reason: &str| Absence {
        workload: workload.map(Into::into),
        backend: backend.into(),
        subject: subject.into(),
        role: Role::Peer,
        reason: reason.into(),
    };
    vec![
        absence(Some("hand-over"), "redis", "tooz", "no answer within 20 s"),
        absence(Some("recovery"), "redis", "ash-lock", "the lock was never free: <a> & |b|"),
        absence(Some("waiters"), "mariadb", "lockkit, 100000", "out of ephemeral ports"),
        absence(Some("uncontended"), "consul", "lockkit", "no consul in PATH"),
        absence(None, "zookeeper", "zookeeper-client's semaphore", "no Java on this machine"),
    ]
}
