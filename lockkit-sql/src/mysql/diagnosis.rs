//! Whether the server is fit to keep locks.

use std::collections::HashMap;

use lockkit_core::driver::{CallLimit, Limit};
use lockkit_core::{Diagnosis, Namespace};
use sqlx::Row as _;

use super::connections::{Connections, Value};
use super::driver::MysqlDriver;
use super::error::Failure;

const SETTINGS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
     ('version', 'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', \
      'sync_binlog', 'binlog_format', 'wsrep_on', 'max_connections', 'read_only') \
     OR Variable_name LIKE 'rpl_semi_sync_%'";
const FIGURES: &str = "SHOW GLOBAL STATUS WHERE Variable_name = 'Threads_connected' \
     OR Variable_name LIKE 'Rpl_semi_sync_%_status'";
const TIME: &str = "SELECT SLEEP(0.001) AS pause, SYSDATE(6) = NOW(6) AS stands_still";
const TOKENS: &str = "SELECT MAX(token) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS ahead \
     FROM lockkit_lock WHERE namespace = ?";
const PROCESSES: &str = "SHOW PROCESSLIST";

/// Each statement needs one right, and is only explained.
const RIGHTS: [(&str, &str); 12] = [
    ("lockkit_lock: SELECT", "EXPLAIN SELECT token FROM lockkit_lock"),
    ("lockkit_lock: INSERT", "EXPLAIN INSERT INTO lockkit_lock (name) VALUES ('')"),
    ("lockkit_lock: UPDATE", "EXPLAIN UPDATE lockkit_lock SET token = 0"),
    ("lockkit_lock: DELETE", "EXPLAIN DELETE FROM lockkit_lock"),
    ("lockkit_place: SELECT", "EXPLAIN SELECT arrival FROM lockkit_place"),
    ("lockkit_place: INSERT", "EXPLAIN INSERT INTO lockkit_place (name) VALUES ('')"),
    ("lockkit_place: UPDATE", "EXPLAIN UPDATE lockkit_place SET arrival = 0"),
    ("lockkit_place: DELETE", "EXPLAIN DELETE FROM lockkit_place"),
    ("lockkit_bell: SELECT", "EXPLAIN SELECT told FROM lockkit_bell"),
    ("lockkit_bell: INSERT", "EXPLAIN INSERT INTO lockkit_bell (name) VALUES ('')"),
    ("lockkit_bell: UPDATE", "EXPLAIN UPDATE lockkit_bell SET told = 0"),
    ("lockkit_bell: DELETE", "EXPLAIN DELETE FROM lockkit_bell"),
];

/// The oldest versions that have what is asked for here and still get fixes.
const OLDEST_MARIADB: (u32, u32) = (10, 6);
const OLDEST_MYSQL: (u32, u32) = (8, 0);

/// An hour, in microseconds: more than servers' clocks should ever differ by.
pub(super) const FAR_AHEAD: i64 = 60 * 60 * 1_000_000;

/// Looks, and changes nothing.
pub(super) async fn diagnose(
    driver: &MysqlDriver,
    namespace: &Namespace,
) -> Result<Vec<Diagnosis>, Failure> {
    let settings = Settings::of(&driver.connections, driver.inspection_limit()).await?;
    Ok(vec![
        version(&settings),
        rights(&settings, driver).await?,
        persistence(&settings),
        replication(&settings, driver).await,
        cluster(&settings),
        clock(driver, namespace).await,
        connections(&settings),
    ])
}

/// The server's variables and figures that matter here, as text. Which ones there are depends on
/// the server.
pub(super) struct Settings(HashMap<String, String>);

impl Settings {
    pub(super) async fn of(connections: &Connections, within: Limit) -> Result<Self, Failure> {
        let mut settings = HashMap::new();
        for statement in [SETTINGS, FIGURES] {
            for row in connections.read(statement, &[], within).await? {
                settings.insert(row.try_get(0)?, row.try_get(1)?);
            }
        }
        Ok(Self(settings))
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        matches!(self.get(name), "ON" | "1")
    }

    fn number(&self, name: &str) -> i64 {
        self.get(name).parse().unwrap_or(0)
    }
}

pub(super) fn version(settings: &Settings) -> Diagnosis {
    let version = settings.get("version");
    let mut numbers = version.split(['.', '-']).map_while(|number| number.parse().ok());
    let numbers = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (maker, oldest) = match version.contains("MariaDB") {
        true => ("MariaDB", OLDEST_MARIADB),
        false => ("MySQL", OLDEST_MYSQL),
    };
    let found = format!("{maker} {version}, layout version 1");
    match numbers >= oldest {
        true => Diagnosis::good("version", found),
        false => Diagnosis::warning(
            "version",
            format!("{found}: it gets no more fixes"),
            format!("upgrade to {}.{} or later", oldest.0, oldest.1),
        ),
    }
}

async fn rights(settings: &Settings, driver: &MysqlDriver) -> Result<Diagnosis, Failure> {
    if !matches!(settings.get("read_only"), "OFF" | "0") {
        return Ok(Diagnosis::error(
            "rights",
            "the server is read-only, as replicas are",
            "connect to the server that takes writes",
        ));
    }
    let missing = missing(&driver.connections, driver.call_limit, &RIGHTS).await?;
    Ok(match missing.is_empty() {
        true => Diagnosis::good("rights", "this user has all rights that locks need"),
        false => Diagnosis::error(
            "rights",
            format!("this user lacks rights ({})", missing.join(", ")),
            "GRANT SELECT, INSERT, UPDATE, DELETE ON the tables lockkit_lock, lockkit_place and \
             lockkit_bell",
        ),
    })
}

/// Those of the rights that the user lacks, by the statements that need them.
pub(super) async fn missing(
    connections: &Connections,
    limit: CallLimit,
    rights: &[(&'static str, &'static str)],
) -> Result<Vec<&'static str>, Failure> {
    let mut missing = Vec::new();
    for (right, statement) in rights {
        match connections.read(statement, &[], Limit::new(limit.of_a_look())).await {
            Err(failure) if failure.is_denial() => missing.push(*right),
            answer => _ = answer?,
        }
    }
    Ok(missing)
}

fn persistence(settings: &Settings) -> Diagnosis {
    if settings.get("innodb_flush_log_at_trx_commit") != "1" {
        return Diagnosis::error(
            "persistence",
            "innodb_flush_log_at_trx_commit is not 1: a crash of the machine may lose locks that \
             were granted",
            "set innodb_flush_log_at_trx_commit = 1",
        );
    }
    if settings.is_on("log_bin") && settings.number("sync_binlog") != 1 {
        return Diagnosis::error(
            "persistence",
            "sync_binlog is not 1: after a crash of the machine the server may take back locks \
             that were granted, since its binary log lacks them",
            "set sync_binlog = 1",
        );
    }
    // The latter, of MySQL, tells of torn pages and does not mend them.
    if matches!(settings.get("innodb_doublewrite"), "OFF" | "DETECT_ONLY") {
        return Diagnosis::error(
            "persistence",
            "innodb_doublewrite keeps no copies of pages: a crash of the machine may damage the \
             database",
            "set innodb_doublewrite = ON",
        );
    }
    Diagnosis::good("persistence", "synced before each answer")
}

async fn replication(settings: &Settings, driver: &MysqlDriver) -> Diagnosis {
    if !settings.is_on("log_bin") {
        return Diagnosis::good("replication", "no binary log, so no replicas");
    }
    if settings.get("binlog_format") == "STATEMENT" {
        return Diagnosis::error(
            "replication",
            "binlog_format is STATEMENT: the server refuses to log what locks write",
            "set binlog_format = ROW, or MIXED",
        );
    }
    // MariaDB's name of the role, and MySQL's.
    for role in ["master", "source"] {
        if settings.is_on(&format!("rpl_semi_sync_{role}_enabled")) {
            return semi_synchronous_replication(settings, role);
        }
    }
    match replicas(driver).await {
        Err(failure) => Diagnosis::warning(
            "replication",
            format!("whether there are replicas cannot be seen: {failure}"),
            "look with a user who may see all sessions",
        ),
        Ok(0) => {
            Diagnosis::good("replication", "no replica is connected, as far as this user may see")
        }
        Ok(replicas) => Diagnosis::warning(
            "replication",
            format!(
                "{replicas} replicas, and commits do not wait for them: a failover may forget \
                 locks that were granted"
            ),
            "use semi-synchronous replication with a time-out of a day or more, or fence by tokens",
        ),
    }
}

/// Commits wait for a replica until a time-out, and after the first one that ran into it none do.
fn semi_synchronous_replication(settings: &Settings, role: &str) -> Diagnosis {
    const DAY: i64 = 24 * 60 * 60 * 1000;
    let timeout = format!("rpl_semi_sync_{role}_timeout");
    let milliseconds = settings.number(&timeout);
    let without_replicas =
        ["slave", "replica"].map(|replica| format!("rpl_semi_sync_{role}_wait_no_{replica}"));
    if !settings.is_on(&format!("Rpl_semi_sync_{role}_status")) {
        return Diagnosis::warning(
            "replication",
            "commits do not wait for a replica, since none is connected or none answered in time: a \
             failover may forget locks that were granted",
            format!("have a replica connected, and set {timeout} to a day or more"),
        );
    }
    if let Some(setting) = without_replicas.iter().find(|name| settings.get(name) == "OFF") {
        return Diagnosis::warning(
            "replication",
            format!(
                "commits wait for a replica only while one is connected ({setting} is off): a \
                 failover may forget locks that were granted"
            ),
            format!("set {setting} = ON"),
        );
    }
    if milliseconds < DAY {
        return Diagnosis::warning(
            "replication",
            format!(
                "commits wait for a replica for {milliseconds} ms, and no longer: a failover may \
                 forget locks that were granted after that"
            ),
            format!("set {timeout} to a day or more, so that nothing is granted meanwhile"),
        );
    }
    Diagnosis::good("replication", "commits wait for a replica, for a day or more")
}

/// How many replicas there are, as far as this user may see the sessions of others.
async fn replicas(driver: &MysqlDriver) -> Result<usize, Failure> {
    let mut replicas = 0;
    for row in driver.read(PROCESSES, &[]).await? {
        let command: String = row.try_get("Command")?;
        replicas += usize::from(command.starts_with("Binlog Dump"));
    }
    Ok(replicas)
}

fn cluster(settings: &Settings) -> Diagnosis {
    match settings.is_on("wsrep_on") {
        false => Diagnosis::good("cluster", "no Galera cluster"),
        true => Diagnosis::warning(
            "cluster",
            "a Galera cluster: nodes that take writes at once refuse each other's commits, and what \
             one of them has granted the others learn a moment later",
            "let all who use locks connect to the same node",
        ),
    }
}

async fn clock(driver: &MysqlDriver, namespace: &Namespace) -> Diagnosis {
    let looking = async {
        let time = driver.read(TIME, &[]).await?;
        let tokens = driver.read(TOKENS, &[Value::text(namespace.as_str())]).await?;
        let stands_still = time.first().map_or(Ok(false), |row| row.try_get("stands_still"))?;
        let ahead =
            tokens.first().map_or(Ok(None), |row| row.try_get::<Option<i64>, _>("ahead"))?;
        Ok::<_, Failure>((stands_still, ahead.unwrap_or(0)))
    };
    match looking.await {
        Err(failure) => Diagnosis::warning(
            "clock",
            format!("whether tokens are ahead of the server's clock cannot be seen: {failure}"),
            "look with a user who may read the table lockkit_lock",
        ),
        Ok((_, ahead @ FAR_AHEAD..)) => Diagnosis::warning(
            "clock",
            format!(
                "tokens are {} s ahead of the server's clock: it was set back, or was wrong",
                ahead / 1_000_000
            ),
            "look at the server's time synchronisation; leases count on its clock",
        ),
        Ok((true, _)) => Diagnosis::warning(
            "clock",
            "the server runs with sysdate-is-now: a lease is shorter by how long the request \
             waited for another one",
            "start the server without sysdate-is-now",
        ),
        Ok((false, _)) => {
            Diagnosis::good("clock", "tokens of the namespace are not ahead of the server's clock")
        }
    }
}

pub(super) fn connections(settings: &Settings) -> Diagnosis {
    let (most, used) = (settings.number("max_connections"), settings.number("Threads_connected"));
    let found = format!("{used} of {most} connections are in use");
    match used * 10 < most * 9 {
        true => Diagnosis::good("connections", found),
        false => Diagnosis::warning(
            "connections",
            found,
            "raise max_connections, or find out who keeps so many",
        ),
    }
}
