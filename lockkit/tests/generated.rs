//! The tables in the docs come from the code. `LOCKKIT_BLESS=1` writes them.
#![cfg(all(
    feature = "etcd",
    feature = "file",
    feature = "metrics",
    feature = "mysql",
    feature = "postgres",
    feature = "redlock",
    feature = "sqlite",
    feature = "zookeeper"
))]
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use lockkit::{
    BACKENDS, Backend, COMMON_PARAMETERS, Capabilities, METRICS, MetricKind, PLAIN_BACKENDS,
    Parameter, SESSION_BACKENDS,
};

/// Compares the part of `file` between the marks with `expected`, or writes it.
fn check(file: &str, mark: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(&format!("<!-- {mark}")).unwrap();
    let (note, rest) = rest.split_once("-->\n").unwrap();
    let (found, after) = rest.split_once(&format!("<!-- /{mark} -->")).unwrap();
    if env::var_os("LOCKKIT_BLESS").is_some() {
        let text = format!("{before}<!-- {mark}{note}-->\n{expected}<!-- /{mark} -->{after}");
        fs::write(path, text).unwrap();
    } else {
        assert_eq!(found, expected, "{file} is not up to date: LOCKKIT_BLESS=1 writes it");
    }
}

/// What the table cannot know from the capabilities.
fn example(backend: &Backend, how: &str) -> &'static str {
    match backend.scheme {
        "memory" => "`memory:` private, `memory:NAME` shared in the process",
        "file" => "`file:/var/lib/app/locks`",
        "sqlite" => "`sqlite:/var/lib/app/locks.db`",
        "postgres" => "`postgres://user:password@host:5432/database`",
        "mysql" => "`mysql://user:password@host:3306/database`, `mariadb://…`",
        // A cluster has no keys of others.
        "redis" if how.contains("plain") => {
            "`redis://user:password@host:6379/0`, `rediss://…`, `redis+unix:///path`, \
             `redis+sentinel://host1,host2,host3/main`"
        }
        "redis" => {
            "`redis://user:password@host:6379/0`, `rediss://…`, `redis+unix:///path`, \
             `redis+sentinel://host1,host2,host3/main`, `redis+cluster://host1,host2,host3`"
        }
        "redlock" => "`redlock://host1,host2,host3`",
        "etcd" => "`etcd://host:2379,host:2379,host:2379`",
        "zookeeper" => "`zookeeper://host1:2181,host2:2181,host3:2181/path`",
        other => panic!("no example of a URL for {other}"),
    }
}

#[test]
fn the_table_of_backends() {
    let mut table = String::from(
        "| URL | turned on by | a hold ends with | order of waiters | fencing token | told of a release |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    let rows = BACKENDS.iter().map(|backend| (backend, "", backend.capabilities.unwrap()));
    let sessions = SESSION_BACKENDS.iter();
    let sessions = sessions.map(|it| (it, " `hold=session`", it.capabilities.unwrap()));
    let plain = PLAIN_BACKENDS.iter();
    let plain = plain.map(|it| (it, " `dialect=plain`", it.capabilities.unwrap()));
    for (backend, how, can) in rows.chain(sessions).chain(plain) {
        let add = match backend.feature {
            Some(feature) => format!("`cargo add lockkit -F {feature}`"),
            None => "`cargo add lockkit`".into(),
        };
        // The table is that of Linux.
        let is_told = can.notification || (backend.scheme == "file" && !cfg!(target_os = "linux"));
        let yes = |is| if is { "yes" } else { "no" };
        writeln!(
            table,
            "| {}{how} | {add} | {} | {} | {} | {} |",
            example(backend, how),
            can.liveness,
            can.fairness,
            yes(can.fencing),
            if is_told { "by push" } else { "by polling" },
        )
        .unwrap();
    }
    check("README.md", "backends", &table);
}

#[test]
fn the_parameters_of_urls() {
    let mut text = format!("## Every URL\n\n{}", parameters(COMMON_PARAMETERS));
    let backends = BACKENDS.iter().map(|backend| (backend, ""));
    let sessions = SESSION_BACKENDS.iter().map(|backend| (backend, " with `hold=session`"));
    for (Backend { scheme, parameters: own, capabilities, .. }, how) in backends.chain(sessions) {
        let Capabilities { min_ttl, max_ttl, .. } = capabilities.unwrap();
        // The most of most is said once for all.
        let most = match max_ttl {
            Capabilities::MAX_TTL => String::new(),
            max_ttl => format!(", and the most {max_ttl:?}"),
        };
        let own = parameters(own);
        write!(text, "\n## `{scheme}:`{how}\n\nThe least `ttl` is {min_ttl:?}{most}.\n\n{own}")
            .unwrap();
    }
    check("docs/urls.md", "parameters", &text);
}

fn parameters(parameters: &[Parameter]) -> String {
    if parameters.is_empty() {
        return "No other parameters.\n".into();
    }
    let mut table =
        String::from("| parameter | what it does | without it |\n| --- | --- | --- |\n");
    for Parameter { name, meaning, default, .. } in parameters {
        writeln!(table, "| `{name}` | {meaning} | {default} |").unwrap();
    }
    table
}

#[test]
fn a_url_has_the_backend_that_it_asks_for() {
    for (url, scheme, can) in [
        ("rediss://h", "redis", lockkit_redis::CAPABILITIES),
        ("redis://h?dialect=plain", "redis", lockkit_redis::PLAIN_CAPABILITIES),
        // What another backend's parameter says is for its driver to refuse.
        ("redis://h?hold=session", "redis", lockkit_redis::CAPABILITIES),
        ("postgresql://h?dialect=plain", "postgres", lockkit_sql::postgres::CAPABILITIES),
        ("mariadb://h?hold=session", "mysql", lockkit_sql::mysql::session::CAPABILITIES),
    ] {
        let backend = Backend::of(&url.parse().unwrap()).unwrap();
        assert_eq!((backend.scheme, backend.capabilities), (scheme, Some(can)), "{url}");
    }
    assert!(Backend::of(&"nowhere:".parse().unwrap()).is_none());
}

#[test]
fn the_table_of_metrics() {
    let mut table = String::from("| name | kind | what |\n| --- | --- | --- |\n");
    for metric in METRICS {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram, seconds",
            kind => panic!("{kind:?} has no word in the table"),
        };
        writeln!(table, "| `{}` | {kind} | {} |", metric.name, metric.what).unwrap();
    }
    check("docs/metrics.md", "metrics", &table);
}
