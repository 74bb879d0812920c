//! What is stored where, who may, and what is refused.

use libtest_mimic::Trial;
use lockkit_core::Error;
use lockkit_core::driver::{Driver, ErrorKind, Release};
use lockkit_sql::mysql::MysqlDriver;
use lockkit_testkit::{Server, trial};

use crate::support::{
    Database, LONG, NAME, causes, claim, driver, kind, millis, named, private, refused, shared,
    take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("layout_1_is_as_it_was", shared, as_it_was),
        trial("ten_at_once_make_the_tables_once", shared, ten_at_once),
        trial("tables_of_something_else_are_left_alone", shared, foreign),
        trial("tables_that_were_altered_are_refused", shared, altered),
        trial("tables_that_are_half_made_are_completed", shared, half_made),
        trial("an_unknown_layout_is_refused", shared, unknown),
        trial("tables_that_go_away_are_missed", shared, dropped),
        trial("tables_of_other_databases_are_not_waited_for", private, elsewhere),
        trial("databases_may_differ_in_case_alone", shared, cases),
        trial("names_are_kept_byte_by_byte", shared, names),
        trial("the_documented_rights_are_enough", shared, rights),
        trial("a_request_is_one_statement", private, statements),
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

    let about = format!(
        "lockkit/{NAME}/{}/{}/{token}/{token}/30000000/30000000/2/2",
        holder.owner(),
        holder.label()
    );
    let row = "SELECT CONCAT_WS('/', namespace, name, owner, label, token, since, lease, \
               expires - since, beat, settled) FROM lockkit_lock";
    assert_eq!(database.text(row).await, about);
    let about = format!("lockkit/{NAME}/{}/{}/1/20000000", waiter.owner(), waiter.label());
    let row = "SELECT CONCAT_WS('/', namespace, name, owner, label, arrival, expires - since) \
               FROM lockkit_place";
    assert_eq!(database.text(row).await, about);
    let queued = "SELECT l.queued = p.expires FROM lockkit_lock AS l, lockkit_place AS p";
    assert!(database.ask::<bool>(queued).await);

    driver.renew(&holder).await.unwrap();
    assert_eq!(
        database.text("SELECT CONCAT_WS('/', beat, settled) FROM lockkit_lock").await,
        "3/3"
    );
    driver.release(&waiter).await.unwrap();
    driver.release(&holder).await.unwrap();
    // The row stays, for its token.
    let row = "SELECT CONCAT_WS('/', name, owner, label, token, expires, queued) FROM lockkit_lock";
    assert_eq!(database.text(row).await, format!("{NAME}/{token}/0/0"));
    assert_eq!(database.ask::<i64>("SELECT COUNT(*) FROM lockkit_place").await, 0);
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
        let error = MysqlDriver::connect(&database.url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Foreign(_)), "{error:?}");
        assert_eq!(database.ask::<i32>(&format!("SELECT mine FROM {table}")).await, 7);
        let others =
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()";
        assert_eq!(database.ask::<i64>(others).await, 1);
    }
}

async fn altered(server: String) {
    for alteration in [
        "ALTER TABLE lockkit_lock ADD extra int",
        "ALTER TABLE lockkit_lock MODIFY expires int NOT NULL",
        "ALTER TABLE lockkit_lock DROP PRIMARY KEY",
        "ALTER TABLE lockkit_lock ENGINE = MyISAM",
        "ALTER TABLE lockkit_place MODIFY label varbinary(128)",
        "ALTER TABLE lockkit_place MODIFY name varchar(512) NOT NULL",
        "DROP TABLE lockkit_place",
    ] {
        let mut database = Database::on(&server).await;
        database.driver().await;
        database.run(alteration).await;
        let error = MysqlDriver::connect(&database.url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Foreign(_)), "{alteration}: {error:?}");
    }
}

/// Tables are made one after the other, and whoever makes them may be killed in between.
async fn half_made(server: String) {
    for missing in [
        "DELETE FROM lockkit_layout",
        "DROP TABLE lockkit_layout",
        "DROP TABLE lockkit_layout; DROP TABLE lockkit_place",
    ] {
        let mut database = Database::on(&server).await;
        database.run(include_str!("layout-1.sql")).await;
        database.run(missing).await;
        let driver = database.driver().await;
        take(&driver, &claim(LONG)).await;
        refused(&driver, &claim(LONG).fair()).await;
        assert_eq!(database.ask::<i32>("SELECT version FROM lockkit_layout").await, 1);
    }
}

async fn unknown(server: String) {
    let mut database = Database::on(&server).await;
    database.driver().await;
    database.run("UPDATE lockkit_layout SET version = 2").await;
    let error = MysqlDriver::connect(&database.url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("layout version 2"), "{error:?}");
}

async fn dropped(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let held = claim(LONG);
    take(&driver, &held).await;
    database.run("DROP TABLE lockkit_lock").await;
    for _ in 0..2 {
        let (kind, text) = kind(driver.renew(&held).await);
        assert_eq!(kind, ErrorKind::Foreign, "{text}");
    }
}

/// As with an administrator's account, which sees them all.
async fn elsewhere(server: Server) {
    let (mut database, url) = (Database::on(&server.url()).await, server.url());
    let mut makers = Vec::new();
    for number in 0..8 {
        let mut other = Database::at(&url).await;
        makers.push(tokio::spawn(async move {
            other.run(&format!("CREATE TABLE t{number} AS SELECT SLEEP(3600) AS slept")).await;
        }));
    }
    let at_it = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'CREATE%'";
    while database.ask::<i64>(at_it).await < 8 {
        tokio::time::sleep(millis(5)).await;
    }
    let (driver, claim) = (database.driver().await, claim(LONG));
    take(&driver, &claim).await;
    driver.release(&claim).await.unwrap();
    makers.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn cases(server: String) {
    let mut database = Database::on(&server).await;
    let other = database.name().replace("lockkit", "Lockkit");
    database.run(&format!("CREATE DATABASE {other}")).await;
    let other = database.url.replace(database.name(), &other);
    for url in [&database.url, &other, &database.url, &other] {
        let (driver, claim) = (driver(url).await, claim(LONG));
        take(&driver, &claim).await;
        refused(&driver, &self::claim(LONG)).await;
        driver.release(&claim).await.unwrap();
    }
}

/// What the server's collations take for the same, and names of the greatest length.
async fn names(server: String) {
    let database = Database::on(&server).await;
    let driver = database.driver().await;
    let long = "x".repeat(512);
    for name in ["Straße", "straße", "strasse", "straße ", "stra\u{df}e\u{301}", &long, &long[1..]]
    {
        take(&driver, &named(name, LONG)).await;
    }
    let listed = driver.inspect().unwrap().held(claim(LONG).name().namespace()).await.unwrap();
    assert_eq!(listed.len(), 7);
}

async fn rights(server: String) {
    let mut database = Database::on(&server).await;
    // A name of a user has at most 32 characters.
    let user = database.name()[..24].to_owned();
    database.run(&format!("CREATE USER '{user}'@'127.0.0.1'")).await;
    let url = database.url_of(&user);
    let connecting = || async { MysqlDriver::connect(&url.parse().unwrap()).await };
    let name = database.name().to_owned();
    let grant = |rights: &str, table: &str| {
        format!("GRANT {rights} ON {name}.{table} TO '{user}'@'127.0.0.1'")
    };

    // It may not see the database,
    let error = connecting().await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
    // nor make the tables,
    database.driver().await;
    database.run(&grant("SELECT", "lockkit_layout")).await;
    let error = connecting().await.unwrap_err();
    assert!(!matches!(error, Error::Unreachable(_)), "{error:?}");
    // until it is given what the page says. With less, it is told so.
    database.run(&grant("SELECT", "lockkit_lock")).await;
    for table in ["lockkit_place", "lockkit_bell"] {
        database.run(&grant("SELECT, INSERT, UPDATE, DELETE", table)).await;
    }
    let error = connecting().await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
    database.run(&grant("SELECT, INSERT, UPDATE, DELETE", "lockkit_lock")).await;
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

    // Who may not make them where there are none is told what to do.
    let mut empty = Database::on(&server).await;
    let grant = format!("GRANT SELECT ON {}.* TO '{user}'@'127.0.0.1'", empty.name());
    empty.run(&grant).await;
    let error = MysqlDriver::connect(&empty.url_of(&user).parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
    assert!(causes(&error).contains("docs/mysql.md"), "{error:?}");
    // Who makes them needs one right more.
    let (rights, name) = ("CREATE, INSERT, UPDATE, DELETE", empty.name());
    let grant = format!("GRANT {rights} ON {name}.* TO '{user}'@'127.0.0.1'");
    empty.run(&grant).await;
    let driver = MysqlDriver::connect(&empty.url_of(&user).parse().unwrap()).await.unwrap();
    take(&driver, &holder).await;
    let inspection = driver.inspect().unwrap();
    for finding in inspection.diagnose(holder.name().namespace()).await.unwrap() {
        assert_ne!(finding.grade(), lockkit_core::Grade::Error, "{finding:?}");
    }
}

async fn statements(server: Server) {
    let driver = driver(&server.url()).await;
    let mut database = Database::at(&server.url()).await;
    database.run("SET GLOBAL log_output = 'TABLE'").await;
    // Whether or not it would wait: nobody is in its way.
    for claim in [claim(LONG), claim(LONG).waiting(), claim(LONG).fair()] {
        database.run("TRUNCATE mysql.general_log; SET GLOBAL general_log = ON").await;
        take(&driver, &claim).await;
        driver.renew(&claim).await.unwrap();
        driver.release(&claim).await.unwrap();
        database.run("SET GLOBAL general_log = OFF").await;
        let of_driver = "FROM mysql.general_log WHERE thread_id <> CONNECTION_ID()";
        let in_order = async |database: &mut Database, what: &str| {
            let all = format!("SELECT GROUP_CONCAT({what} ORDER BY event_time) {of_driver}");
            database.text(&all).await
        };
        let log = in_order(&mut database, "command_type").await;
        let each = "CONCAT_WS(' ', event_time, thread_id, command_type, LEFT(argument, 40))";
        let told = in_order(&mut database, each).await;
        assert_eq!(log, "Execute,Execute,Execute", "{told}");
    }
}
