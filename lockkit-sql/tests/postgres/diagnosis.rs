//! What the doctor says of servers, sound and unsound.

use libtest_mimic::Trial;
use lockkit_core::driver::{Driver, Inspect as _};
use lockkit_core::{Diagnosis, Grade, Namespace};
use lockkit_sql::postgres::PostgresDriver;
use lockkit_testkit::{POSTGRES, Server, trial};

use crate::support::{Database, LONG, claim, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_sound_server_is_found_sound", || POSTGRES.url(), sound),
        trial("what_weakens_a_promise_is_found", || POSTGRES.url(), unsound),
        trial("a_server_that_does_not_sync_is_found", not_syncing, unsynced),
        trial("a_diagnosis_writes_nothing", || POSTGRES.url(), read_only),
    ]
}

async fn findings(driver: &PostgresDriver) -> Vec<Diagnosis> {
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
        [
            "version",
            "rights",
            "persistence",
            "replication",
            "timeouts",
            "clock",
            "connections",
            "pooler",
            "vacuum",
            "news"
        ]
    );
    for finding in findings {
        assert_eq!(finding.grade(), Grade::Good, "{finding:?}");
        assert_eq!(finding.advice(), None);
    }
}

async fn unsound(server: String) {
    for (trouble, topic, grade, text) in [
        (
            "ALTER TABLE lockkit_lock SET UNLOGGED",
            "persistence",
            Grade::Error,
            "ALTER TABLE lockkit_lock SET LOGGED",
        ),
        (
            "ALTER TABLE lockkit_place SET (fillfactor = 70, autovacuum_enabled = off)",
            "vacuum",
            Grade::Warning,
            "autovacuum = on",
        ),
        (
            "UPDATE lockkit_lock SET token = token + 2 * 3600000000",
            "clock",
            Grade::Warning,
            "7199 s ahead",
        ),
        (
            "SET @ statement_timeout = 900",
            "timeouts",
            Grade::Warning,
            "statement_timeout is 900 ms",
        ),
        ("SET @ idle_session_timeout = 9000", "timeouts", Grade::Warning, "idle_session_timeout"),
        // As it looks where sessions are shared.
        ("SET @ lockkit.session = 'used'", "pooler", Grade::Warning, "pool sessions"),
        ("SET @ synchronous_commit = off", "persistence", Grade::Good, "off for others"),
    ] {
        let mut database = Database::on(&server).await;
        let first = database.driver().await;
        take(&first, &claim(LONG)).await;
        first.close().await;
        let setting = format!("ALTER DATABASE {} SET ", database.name());
        database.run(&trouble.replace("SET @ ", &setting)).await;
        let (found, said) = about(&findings(&database.driver().await).await, topic);
        assert_eq!(found, grade, "{trouble}: {said}");
        assert!(said.contains(text), "{trouble}: {said}");
    }

    let mut database = Database::on(&server).await;
    database.driver().await;
    // A name that has to be quoted, where it is SQL.
    let (user, role) = (format!("app%22{}", database.name()), format!("app\"{}", database.name()));
    let role = format!("\"{}\"", role.replace('"', "\"\""));
    database
        .run(&format!("CREATE ROLE {role} LOGIN; GRANT SELECT ON lockkit_layout TO {role}"))
        .await;
    let driver = PostgresDriver::connect(&database.url_of(&user).parse().unwrap()).await.unwrap();
    let findings = findings(&driver).await;
    let (grade, text) = about(&findings, "rights");
    assert_eq!(grade, Grade::Error);
    assert!(text.contains("lockkit_place: DELETE") && text.contains("GRANT SELECT"), "{text}");
    let rights = findings.iter().find(|finding| finding.topic() == "rights").unwrap();
    database.run(rights.advice().unwrap()).await;
    let granted = driver.diagnose(&Namespace::default()).await.unwrap();
    let (grade, text) = about(&granted, "rights");
    assert_eq!(grade, Grade::Good, "{text}");
    // What this user may not see is said, too.
    let (grade, text) = about(&findings, "clock");
    assert_eq!(grade, Grade::Warning, "{text}");
    // Functions are everybody's, unless somebody has seen to it that they are not.
    database
        .run(
            "REVOKE EXECUTE ON FUNCTION lockkit_take FROM PUBLIC; \
             REVOKE EXECUTE ON FUNCTION pg_try_advisory_lock(integer, integer) FROM PUBLIC",
        )
        .await;
    let (grade, text) = about(&driver.diagnose(&Namespace::default()).await.unwrap(), "rights");
    assert_eq!(grade, Grade::Error, "{text}");
    let missing = "(functions: EXECUTE, pg_try_advisory_lock(integer,integer): EXECUTE)";
    assert!(text.contains(missing), "{text}");
}

fn not_syncing() -> Result<Server, lockkit_testkit::Unavailable> {
    POSTGRES.start_with(&["-c", "fsync=off"])
}

async fn unsynced(server: Server) {
    let driver = PostgresDriver::connect(&server.url().parse().unwrap()).await.unwrap();
    let (grade, text) = about(&findings(&driver).await, "persistence");
    assert_eq!(grade, Grade::Error, "{text}");
    assert!(text.contains("fsync"), "{text}");
}

async fn read_only(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let held = claim(LONG);
    take(&driver, &held).await;
    database
        .run(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name()))
        .await;
    database
        .run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'lockkit'",
        )
        .await;
    while driver.diagnose(held.name().namespace()).await.is_err() {}
    let (grade, text) = about(&findings(&driver).await, "rights");
    assert_eq!(grade, Grade::Error, "{text}");
    assert!(text.contains("default_transaction_read_only"), "{text}");
    assert!(driver.look(held.name()).await.unwrap().holder().is_some());
    assert_eq!(driver.held(held.name().namespace()).await.unwrap().len(), 1);
    assert!(driver.try_acquire(&held).await.is_err());
}
