//! What is stored where, who may, and what is refused.

use libtest_mimic::Trial;
use lockkit_core::Error;
use lockkit_core::driver::{Driver, ErrorKind, Release};
use lockkit_sql::postgres::PostgresDriver;
use lockkit_testkit::{POSTGRES, Server, trial};

use crate::support::{Database, LONG, NAME, causes, claim, driver, kind, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("layout_1_is_as_it_was", || POSTGRES.url(), as_it_was),
        trial("ten_at_once_make_the_tables_once", || POSTGRES.url(), ten_at_once),
        trial("tables_of_something_else_are_left_alone", || POSTGRES.url(), foreign),
        trial("tables_that_were_altered_are_refused", || POSTGRES.url(), altered),
        trial("tables_are_the_same_where_all_names_are_quoted", || POSTGRES.url(), quoted),
        trial("an_unknown_layout_is_refused", || POSTGRES.url(), unknown),
        trial("tables_that_go_away_are_missed", || POSTGRES.url(), dropped),
        trial("schemas_are_apart", || POSTGRES.url(), schemas),
        trial("the_documented_rights_are_enough", || POSTGRES.url(), rights),
        trial("an_encoding_without_all_names_is_refused", || POSTGRES.url(), encoding),
        trial("a_request_is_one_statement", logging, statements),
    ]
}

/// A database made by lockkit 0.1 stays usable: a change of this file is a new layout.
async fn as_it_was(server: String) {
    let mut database = Database::on(&server).await;
    database.run(include_str!("layout-1.sql")).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(millis(20_000)).fair());
    let token = take(&driver, &holder).await;
    refused(&driver, &waiter).await;

    let about =
        format!("lockkit/{NAME}/{}/{}/{token}/{token}/30000000/1", holder.owner(), holder.label());
    let row = "SELECT concat_ws('/', namespace, name, owner, label, token, since, lease, beat) \
               FROM lockkit_lock";
    assert_eq!(database.ask::<String>(row).await, about);
    let lasts = "SELECT expires - since FROM lockkit_lock";
    assert_eq!(database.ask::<i64>(lasts).await, 30_000_000);
    let about = format!("lockkit/{NAME}/{}/{}/1/20000000/20000000", waiter.owner(), waiter.label());
    let row = "SELECT concat_ws('/', namespace, name, owner, label, arrival, lease, \
               expires - since) FROM lockkit_place";
    assert_eq!(database.ask::<String>(row).await, about);

    driver.release(&waiter).await.unwrap();
    driver.release(&holder).await.unwrap();
    // The row stays, for its token.
    let row = "SELECT concat_ws('/', name, owner, label, token) FROM lockkit_lock";
    assert_eq!(database.ask::<String>(row).await, format!("{NAME}/{token}"));
    assert_eq!(database.ask::<i64>("SELECT count(*) FROM lockkit_place").await, 0);
}

async fn ten_at_once(server: String) {
    for _ in 0..3 {
        let database = Database::on(&server).await;
        let ten: Vec<_> = (0..10)
            .map(|_| {
                let url = database.url.clone();
                tokio::spawn(async move { driver(&url).await })
            })
            .collect();
        for driver in ten {
            let (driver, claim) = (driver.await.unwrap(), claim(LONG));
            take(&driver, &claim).await;
            driver.release(&claim).await.unwrap();
        }
    }
}

async fn foreign(server: String) {
    for table in ["lockkit_lock", "lockkit_layout"] {
        let mut database = Database::on(&server).await;
        database
            .run(&format!("CREATE TABLE {table} (mine int); INSERT INTO {table} VALUES (7)"))
            .await;
        let error = PostgresDriver::connect(&database.url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Foreign(_)), "{error:?}");
        assert_eq!(database.ask::<i32>(&format!("SELECT mine FROM {table}")).await, 7);
        let others =
            "SELECT count(*) FROM pg_class WHERE relname LIKE 'lockkit%' AND relkind = 'r'";
        assert_eq!(database.ask::<i64>(others).await, 1);
    }
}

async fn quoted(server: String) {
    let mut database = Database::on(&server).await;
    let name = database.name().to_owned();
    database.run(&format!("ALTER DATABASE {name} SET quote_all_identifiers = on")).await;
    // Who makes the tables, and who finds them.
    for _ in 0..2 {
        database.driver().await;
    }
    database.run("ALTER TABLE lockkit_lock RENAME token TO \"\"\"token\"\"\"").await;
    let error = PostgresDriver::connect(&database.url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Foreign(_)), "{error:?}");
}

async fn altered(server: String) {
    // Each with what is not as it was made.
    for (alteration, altered) in [
        ("ALTER TABLE lockkit_lock ADD extra int", "lockkit_lock"),
        ("ALTER TABLE lockkit_place ALTER label DROP NOT NULL", "lockkit_place"),
        ("DROP TABLE lockkit_place CASCADE", "lockkit_place"),
        ("DELETE FROM lockkit_layout", "lockkit_layout"),
        (
            "CREATE OR REPLACE FUNCTION lockkit_sweep() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'",
            "lockkit_sweep",
        ),
        (
            "CREATE FUNCTION lockkit_renew(text, text, text, double precision, integer) \
             RETURNS boolean LANGUAGE sql AS 'SELECT true'",
            "lockkit_renew",
        ),
        // As where a copy was made without them: two would have the lock, each by a row of its own.
        ("ALTER TABLE lockkit_lock DROP CONSTRAINT lockkit_lock_pkey", "lockkit_lock"),
        (
            "ALTER TABLE lockkit_lock DROP CONSTRAINT lockkit_lock_pkey, \
             ADD PRIMARY KEY (namespace, name, token)",
            "lockkit_lock",
        ),
        (
            "ALTER TABLE lockkit_lock DROP CONSTRAINT lockkit_lock_pkey, \
             ADD PRIMARY KEY (namespace, name) DEFERRABLE",
            "lockkit_lock",
        ),
        ("ALTER TABLE lockkit_place DROP CONSTRAINT lockkit_place_pkey", "lockkit_place"),
        ("ALTER TABLE lockkit_session DROP CONSTRAINT lockkit_session_pkey", "lockkit_session"),
        ("ALTER TABLE lockkit_layout DROP CONSTRAINT lockkit_layout_pkey", "lockkit_layout"),
        ("ALTER TABLE lockkit_lock ADD UNIQUE (owner)", "lockkit_lock"),
        ("ALTER TABLE lockkit_place ALTER arrival DROP IDENTITY", "lockkit_place"),
        (
            "ALTER TABLE lockkit_place ALTER arrival DROP IDENTITY, ALTER arrival SET DEFAULT 7",
            "lockkit_place",
        ),
        ("ALTER TABLE lockkit_lock ALTER owner SET DEFAULT 'me'", "lockkit_lock"),
        // A clock that the server may take to stand still.
        ("ALTER FUNCTION lockkit_now IMMUTABLE", "lockkit_now"),
        ("ALTER FUNCTION lockkit_now STABLE", "lockkit_now"),
        ("ALTER FUNCTION lockkit_take STRICT", "lockkit_take"),
        ("ALTER FUNCTION lockkit_take SECURITY DEFINER", "lockkit_take"),
        ("ALTER FUNCTION lockkit_take SET search_path = elsewhere", "lockkit_take"),
        ("ALTER FUNCTION lockkit_renew_together RESET ALL", "lockkit_renew_together"),
    ] {
        let mut database = Database::on(&server).await;
        database.driver().await;
        database.run(alteration).await;
        let error = PostgresDriver::connect(&database.url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Foreign(_)), "{alteration}: {error:?}");
        let text = causes(&error);
        let is_named = text.split([' ', ',', ';']).any(|word| word == altered);
        assert!(is_named, "{alteration}: {text}");
    }
}

async fn unknown(server: String) {
    let mut database = Database::on(&server).await;
    database.driver().await;
    database.run("UPDATE lockkit_layout SET version = 2").await;
    let error = PostgresDriver::connect(&database.url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("layout version 2"), "{error:?}");
}

async fn dropped(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let held = claim(LONG);
    take(&driver, &held).await;
    database.run("DROP TABLE lockkit_lock CASCADE").await;
    for _ in 0..2 {
        let (kind, text) = kind(driver.renew(&held).await);
        assert_eq!(kind, ErrorKind::Foreign, "{text}");
    }
}

async fn schemas(server: String) {
    let mut database = Database::on(&server).await;
    let url = format!("{}?schema=locks", database.url);
    let error = PostgresDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("CREATE SCHEMA"), "{error:?}");

    database.run("CREATE SCHEMA locks").await;
    let (one, other) = (database.driver().await, driver(&url).await);
    take(&one, &claim(LONG)).await;
    take(&other, &claim(LONG)).await;
    assert_eq!(database.ask::<i64>("SELECT count(*) FROM public.lockkit_lock").await, 1);
    assert_eq!(database.ask::<i64>("SELECT count(*) FROM locks.lockkit_lock").await, 1);
}

async fn rights(server: String) {
    let mut database = Database::on(&server).await;
    let role = format!("role_of_{}", database.name());
    database.run(&format!("CREATE ROLE {role} LOGIN")).await;
    let url = database.url_of(&role);
    let connecting = || async { PostgresDriver::connect(&url.parse().unwrap()).await };

    // It may not make the tables,
    let error = connecting().await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
    assert!(causes(&error).contains("docs/postgres.md"), "{error:?}");
    // nor use those of others,
    database.driver().await;
    let error = connecting().await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
    // until it is given what the page says. With less, it is told so.
    database.run(&format!("GRANT SELECT ON lockkit_layout TO {role}")).await;
    let (answer, text) = kind(connecting().await.unwrap().try_acquire(&claim(LONG)).await);
    assert_eq!(answer, ErrorKind::Denied, "{text}");
    database
        .run(&format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON lockkit_lock, lockkit_place TO {role}"
        ))
        .await;
    let driver = connecting().await.unwrap();
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    assert_eq!(driver.release(&holder).await.unwrap(), Release::Freed);
    take(&driver, &waiter).await;
    let inspection = driver.inspect().unwrap();
    assert!(inspection.look(waiter.name()).await.unwrap().holder().is_some());
    assert!(inspection.break_hold(waiter.name(), None).await.unwrap().is_some());
    for finding in inspection.diagnose(waiter.name().namespace()).await.unwrap() {
        assert_ne!(finding.grade(), lockkit_core::Grade::Error, "{finding:?}");
    }

    // Who makes them needs one right more.
    let mut empty = Database::on(&server).await;
    empty.run(&format!("GRANT CREATE ON SCHEMA public TO {role}")).await;
    let driver = PostgresDriver::connect(&empty.url_of(&role).parse().unwrap()).await.unwrap();
    take(&driver, &holder).await;
    let inspection = driver.inspect().unwrap();
    for finding in inspection.diagnose(holder.name().namespace()).await.unwrap() {
        assert_ne!(finding.grade(), lockkit_core::Grade::Error, "{finding:?}");
    }
}

async fn encoding(server: String) {
    let database =
        Database::made_with(&server, "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'").await;
    let error = PostgresDriver::connect(&database.url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("LATIN1"), "{error:?}");
}

fn logging() -> Result<Server, lockkit_testkit::Unavailable> {
    POSTGRES.start_with(&["-c", "log_statement=all", "-c", "log_min_duration_statement=-1"])
}

async fn statements(server: Server) {
    let driver = driver(&server.url()).await;
    let mark = |what: &str| format!("SELECT 'lockkit test: {what}'");
    let mut database = Database::on(&server.url()).await;
    // Whether or not it would wait: nobody is in its way.
    for claim in [claim(LONG), claim(LONG).waiting(), claim(LONG).fair()] {
        database.ask::<String>(&mark("begin")).await;
        take(&driver, &claim).await;
        driver.renew(&claim).await.unwrap();
        driver.release(&claim).await.unwrap();
        database.ask::<String>(&mark("end")).await;
        let log = server.log_tail();
        let (_, log) = log.rsplit_once("lockkit test: begin").unwrap();
        let (log, _) = log.split_once("lockkit test: end").unwrap();
        let lines = |with: &str| log.lines().filter(|line| line.contains(with)).count();
        assert_eq!(lines("LOG:  execute"), 4, "the last is the mark:\n{log}");
        for function in ["lockkit_take(", "lockkit_renew(", "lockkit_release("] {
            assert_eq!(lines(function), 1, "{log}");
        }
    }
}
