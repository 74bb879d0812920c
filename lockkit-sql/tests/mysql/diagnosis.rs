//! What the doctor says of servers, sound and unsound.

use libtest_mimic::Trial;
use lockkit_core::driver::{Driver, Inspect as _};
use lockkit_core::{Diagnosis, Grade, Namespace};
use lockkit_sql::mysql::MysqlDriver;
use lockkit_testkit::{MARIADB, Server, Unavailable, trial};

use crate::support::{Database, LONG, backend, claim, driver, private, shared, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_sound_server_is_found_sound", shared, sound),
        trial("what_weakens_a_promise_is_found", logging, unsound),
        trial("whether_commits_wait_for_a_replica_is_found", impatient, semi_synchronous),
        trial("a_clock_that_stands_still_in_a_statement_is_found", still, stands_still),
        trial("missing_rights_are_found", shared, rights),
        trial("a_diagnosis_writes_nothing", private, read_only),
    ]
}

async fn findings(driver: &MysqlDriver) -> Vec<Diagnosis> {
    driver.diagnose(&Namespace::default()).await.unwrap()
}

/// The finding about a topic, and what to do.
fn about(findings: &[Diagnosis], topic: &str) -> (Grade, String) {
    let finding = findings.iter().find(|finding| finding.topic() == topic).unwrap();
    let text = [Some(finding.finding()), finding.advice()].into_iter().flatten();
    (finding.grade(), text.collect::<Vec<_>>().join("; "))
}

async fn sound(server: String) {
    let driver = Database::on(&server).await.driver().await;
    take(&driver, &claim(LONG)).await;
    let findings = findings(&driver).await;
    let topics: Vec<_> = findings.iter().map(Diagnosis::topic).collect();
    assert_eq!(
        topics,
        ["version", "rights", "persistence", "replication", "cluster", "clock", "connections"]
    );
    for finding in findings {
        assert_eq!(finding.grade(), Grade::Good, "{finding:?}");
        assert_eq!(finding.advice(), None);
    }
}

fn logging() -> Result<Server, Unavailable> {
    backend().start_with(&["--log-bin", "--server-id=1", "--binlog-format=ROW", "--sync-binlog=1"])
}

async fn unsound(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let driver = driver(&server.url()).await;
    take(&driver, &claim(LONG)).await;
    let (grade, text) = about(&findings(&driver).await, "replication");
    assert_eq!(grade, Grade::Good, "{text}");
    for (trouble, repair, topic, grade, text) in [
        (
            "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
            "persistence",
            Grade::Error,
            "innodb_flush_log_at_trx_commit = 1",
        ),
        (
            "SET GLOBAL sync_binlog = 0",
            "SET GLOBAL sync_binlog = 1",
            "persistence",
            Grade::Error,
            "sync_binlog = 1",
        ),
        (
            "SET GLOBAL binlog_format = STATEMENT",
            "SET GLOBAL binlog_format = ROW",
            "replication",
            Grade::Error,
            "binlog_format = ROW",
        ),
        (
            "UPDATE lockkit_lock SET token = token + 2 * 3600000000",
            "UPDATE lockkit_lock SET token = token - 2 * 3600000000",
            "clock",
            Grade::Warning,
            "7199 s ahead",
        ),
        (
            "SET GLOBAL max_connections = 10",
            "SET GLOBAL max_connections = 300",
            "connections",
            Grade::Good,
            "of 10 connections",
        ),
    ] {
        database.run(trouble).await;
        let (found, said) = about(&findings(&driver).await, topic);
        database.run(repair).await;
        assert_eq!(found, grade, "{trouble}: {said}");
        assert!(said.contains(text), "{trouble}: {said}");
    }
}

/// A server whose commits wait for a replica for a millisecond, once they are to wait. MySQL has a
/// plugin for that, and other names.
fn impatient() -> Result<Server, Unavailable> {
    MARIADB.start_with(&[
        "--log-bin",
        "--server-id=1",
        "--binlog-format=ROW",
        "--rpl-semi-sync-master-timeout=1",
    ])
}

async fn semi_synchronous(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let driver = driver(&server.url()).await;
    let found = async || about(&findings(&driver).await, "replication");
    database.run("SET GLOBAL rpl_semi_sync_master_enabled = ON").await;
    let (grade, text) = found().await;
    assert_eq!(grade, Grade::Warning, "{text}");
    assert!(text.contains("for 1 ms, and no longer"), "{text}");

    take(&driver, &claim(LONG)).await;
    let (grade, text) = found().await;
    assert_eq!(grade, Grade::Warning, "{text}");
    assert!(text.contains("none answered in time"), "{text}");

    for change in ["enabled = OFF", "timeout = 86400000", "enabled = ON"] {
        database.run(&format!("SET GLOBAL rpl_semi_sync_master_{change}")).await;
    }
    let (grade, text) = found().await;
    assert_eq!(grade, Grade::Good, "{text}");
}

fn still() -> Result<Server, Unavailable> {
    backend().start_with(&["--sysdate-is-now"])
}

async fn stands_still(server: Server) {
    let driver = driver(&server.url()).await;
    take(&driver, &claim(LONG)).await;
    let (grade, text) = about(&findings(&driver).await, "clock");
    assert_eq!(grade, Grade::Warning, "{text}");
    assert!(text.contains("sysdate-is-now"), "{text}");
}

async fn rights(server: String) {
    let mut database = Database::on(&server).await;
    database.driver().await;
    let (name, user) = (database.name().to_owned(), database.name()[..24].to_owned());
    database
        .run(&format!(
            "CREATE USER '{user}'@'127.0.0.1'; \
             GRANT SELECT ON {name}.lockkit_layout TO '{user}'@'127.0.0.1'; \
             GRANT SELECT, INSERT, UPDATE ON {name}.lockkit_lock TO '{user}'@'127.0.0.1'; \
             GRANT SELECT ON {name}.lockkit_place TO '{user}'@'127.0.0.1'; \
             GRANT SELECT, INSERT, UPDATE ON {name}.lockkit_bell TO '{user}'@'127.0.0.1'"
        ))
        .await;
    let driver = driver(&database.url_of(&user)).await;
    let (grade, text) = about(&findings(&driver).await, "rights");
    assert_eq!(grade, Grade::Error);
    for missing in
        ["lockkit_lock: DELETE", "lockkit_place: INSERT", "lockkit_bell: DELETE", "GRANT SELECT"]
    {
        assert!(text.contains(missing), "{text}");
    }
    assert!(!text.contains("lockkit_lock: UPDATE"), "{text}");
}

async fn read_only(server: Server) {
    let mut database = Database::at(&server.url()).await;
    database
        .run(
            "CREATE USER app@'127.0.0.1'; \
             GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON shop.* TO app@'127.0.0.1'",
        )
        .await;
    let driver = driver(&database.url_of("app")).await;
    let held = claim(LONG);
    take(&driver, &held).await;
    database.run("SET GLOBAL read_only = ON").await;
    let (grade, text) = about(&findings(&driver).await, "rights");
    assert_eq!(grade, Grade::Error, "{text}");
    assert!(text.contains("read-only"), "{text}");
    assert!(driver.look(held.name()).await.unwrap().holder().is_some());
    assert_eq!(driver.held(held.name().namespace()).await.unwrap().len(), 1);
    assert!(driver.try_acquire(&held).await.is_err());
}
