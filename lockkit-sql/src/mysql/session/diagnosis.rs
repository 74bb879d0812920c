//! Whether the server is fit to keep the locks of sessions.

use lockkit_core::{Diagnosis, Namespace};
use sqlx::Row as _;

use super::driver::MysqlSessionDriver;
use crate::mysql::connections::Value;
use crate::mysql::diagnosis::{FAR_AHEAD, Settings, connections, missing, version};
use crate::mysql::error::Failure;

const TOKENS: &str = "SELECT MAX(token) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS ahead \
     FROM lockkit_session WHERE namespace = ?";

/// Each statement needs one right, and is only explained.
const RIGHTS: [(&str, &str); 4] = [
    ("SELECT", "EXPLAIN SELECT token FROM lockkit_session"),
    ("INSERT", "EXPLAIN INSERT INTO lockkit_session (name) VALUES ('')"),
    ("UPDATE", "EXPLAIN UPDATE lockkit_session SET token = 0"),
    ("DELETE", "EXPLAIN DELETE FROM lockkit_session"),
];

/// Looks, and changes nothing.
pub(super) async fn diagnose(
    driver: &MysqlSessionDriver,
    namespace: &Namespace,
) -> Result<Vec<Diagnosis>, Failure> {
    let settings = Settings::of(&driver.lookout, driver.inspection_limit()).await?;
    Ok(vec![
        version(&settings),
        rights(driver).await?,
        Diagnosis::good(
            "session",
            format!("the server ends it after {:?} without a heartbeat", driver.sessions.ttl()),
        ),
        cluster(&settings),
        failover(&settings),
        clock(driver, namespace).await,
        connections(&settings),
    ])
}

async fn rights(driver: &MysqlSessionDriver) -> Result<Diagnosis, Failure> {
    let missing = missing(&driver.lookout, driver.call_limit, &RIGHTS).await?;
    Ok(match missing.is_empty() {
        true => Diagnosis::good("rights", "this user has all rights that locks need"),
        false => Diagnosis::error(
            "rights",
            format!("this user lacks rights on lockkit_session ({})", missing.join(", ")),
            "GRANT SELECT, INSERT, UPDATE, DELETE ON the table lockkit_session",
        ),
    })
}

fn cluster(settings: &Settings) -> Diagnosis {
    match settings.is_on("wsrep_on") {
        false => Diagnosis::good("cluster", "no Galera cluster"),
        true => Diagnosis::error(
            "cluster",
            "a Galera cluster: each node has locks of its own",
            "use leases: `hold=lease`",
        ),
    }
}

fn failover(settings: &Settings) -> Diagnosis {
    match settings.is_on("log_bin") {
        false => Diagnosis::good("failover", "no binary log, so no replicas"),
        true => Diagnosis::warning(
            "failover",
            "there may be replicas: a failover frees all locks before their holders know",
            "let resources check fencing tokens, or use leases: `hold=lease`",
        ),
    }
}

async fn clock(driver: &MysqlSessionDriver, namespace: &Namespace) -> Diagnosis {
    let looking = async {
        let rows = driver.read(TOKENS, &[Value::text(namespace.as_str())]).await?;
        let ahead = rows.first().map_or(Ok(None), |row| row.try_get::<Option<i64>, _>("ahead"))?;
        Ok::<_, Failure>(ahead.unwrap_or(0))
    };
    match looking.await {
        Err(failure) => Diagnosis::warning(
            "clock",
            format!("whether tokens are ahead of the server's clock cannot be seen: {failure}"),
            "look with a user who may read the table lockkit_session",
        ),
        Ok(ahead @ FAR_AHEAD..) => Diagnosis::warning(
            "clock",
            format!(
                "tokens are {} s ahead of the server's clock: it was set back, or was wrong",
                ahead / 1_000_000
            ),
            "look at the server's time synchronisation",
        ),
        Ok(_) => {
            Diagnosis::good("clock", "tokens of the namespace are not ahead of the server's clock")
        }
    }
}
