//! One claim at a time: tokens, time, isolation, what is removed when.

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::Namespace;
use lockkit_core::driver::{Attempt, Driver, ErrorKind, Release, Renewal};
use lockkit_sql::mysql::MysqlDriver;
use lockkit_testkit::{Server, trial};
use tokio::time::sleep;

use crate::support::{
    CARRIED_OUT, Database, LONG, NOW, backend, claim, driver, impatient_driver, kind, millis,
    named, private, refused, shared, take, without_durability,
};
use crate::sweeps::draw_a_sweep;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_token_is_the_servers_clock_in_microseconds", shared, clock),
        trial("the_time_zone_of_the_server_plays_no_part", private, time_zone),
        trial("tokens_rise_while_the_clock_is_behind", shared, ahead),
        trial("used_up_tokens_are_refused", shared, used_up),
        trial("a_refusal_tells_what_is_left", shared, remaining),
        trial("time_is_read_once_the_row_is_locked", shared, locked_time),
        trial("every_default_of_the_server_is_got_along_with", without_durability, defaults),
        trial("a_binary_log_of_statements_is_refused", logging_statements, statements),
        trial("idle_rows_are_removed_after_a_day", shared, sweep),
        trial("a_plain_refusal_writes_nothing", shared, refusals),
        trial("eight_make_a_row_at_once", shared, at_once),
        trial("holds_are_renewed_together", without_durability, renewals),
        trial(
            "few_holds_are_renewed_together_past_one_that_is_locked",
            without_durability,
            few_renewals,
        ),
    ]
}

async fn clock(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let now = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
    for _ in 0..2 {
        let before: i64 = database.ask(now).await;
        let claim = claim(LONG);
        let token = take(&driver, &claim).await.get();
        let after: i64 = database.ask(now).await;
        let token = i64::try_from(token).unwrap();
        assert!((before..=after).contains(&token), "{before} {token} {after}");
        driver.release(&claim).await.unwrap();
    }
}

async fn time_zone(server: Server) {
    let mut database = Database::at(&server.url()).await;
    database.run("SET GLOBAL time_zone = '+10:30'").await;
    let driver = driver(&server.url()).await;
    let held = claim(LONG);
    let token = i64::try_from(take(&driver, &held).await.get()).unwrap();
    let now = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
    let age = database.ask::<i64>(now).await - token;
    assert!((0..60_000_000).contains(&age), "{age} µs");
}

async fn ahead(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let first = claim(LONG);
    take(&driver, &first).await;
    driver.release(&first).await.unwrap();
    database.run("UPDATE lockkit_lock SET token = 9000000000000000").await;
    for step in 1..=3 {
        let claim = claim(LONG);
        assert_eq!(take(&driver, &claim).await.get(), 9_000_000_000_000_000 + step);
        driver.release(&claim).await.unwrap();
    }
    // Nor does a place lead to a lower one.
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    driver.release(&holder).await.unwrap();
    assert_eq!(take(&driver, &waiter).await.get(), 9_000_000_000_000_005);
}

async fn used_up(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let last = claim(LONG);
    take(&driver, &last).await;
    database.run("UPDATE lockkit_lock SET token = 9223372036854775807").await;
    assert_eq!(take(&driver, &last).await.get(), i64::MAX as u64, "the same grant");
    assert_eq!(driver.release(&last).await.unwrap(), Release::Freed);
    let (kind, text) = kind(driver.try_acquire(&claim(LONG)).await);
    assert_eq!(kind, ErrorKind::Capacity, "{text}");
}

async fn remaining(server: String) {
    let driver = Database::on(&server).await.driver().await;
    let (holder, waiter) = (claim(LONG), claim(millis(60_000)).fair());
    take(&driver, &holder).await;
    for claim in [claim(LONG), waiter.clone()] {
        let left = refused(&driver, &claim).await.remaining().unwrap();
        assert!(left > millis(1) && left <= LONG, "{left:?}");
    }
    driver.release(&holder).await.unwrap();
    let left = refused(&driver, &claim(LONG)).await.remaining().unwrap();
    assert!(left > LONG && left <= millis(60_000), "until when somebody is before it: {left:?}");
}

/// A request that waits for the row goes by the time at which it gets it.
async fn locked_time(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (held, freed, late) = (named("held", LONG), named("freed", LONG), named("late", LONG));
    for claim in [&held, &freed, &late] {
        take(&driver, claim).await;
    }
    driver.release(&freed).await.unwrap();
    database.run("START TRANSACTION; SELECT COUNT(*) FROM lockkit_lock FOR UPDATE").await;
    let waiting = async {
        let next = named("freed", LONG);
        tokio::join!(take(&driver, &next), driver.renew(&held), driver.renew(&late))
    };
    let unlocking = async {
        database.waits_reach(3).await;
        // Runs out while its renewal waits.
        let now: i64 = database.ask(&format!("SELECT {NOW}")).await;
        database
            .run(&format!("UPDATE lockkit_lock SET expires = {} WHERE name = 'late'", now + 100))
            .await;
        sleep(millis(50)).await;
        let now: i64 = database.ask(&format!("SELECT {NOW}")).await;
        database.run("COMMIT").await;
        now
    };
    let ((token, renewal, too_late), unlocked) = tokio::join!(waiting, unlocking);
    assert!(i64::try_from(token.get()).unwrap() >= unlocked);
    assert_ne!(renewal.unwrap(), Renewal::Lost);
    assert_eq!(too_late.unwrap(), Renewal::Lost);
    for name in ["freed", "held"] {
        let expires: i64 =
            database.ask(&format!("SELECT expires FROM lockkit_lock WHERE name = '{name}'")).await;
        assert!(expires >= unlocked + 30_000_000, "{name}");
    }
}

/// Eight at once count exactly, whatever the administrator has set for sessions.
async fn defaults(server: Server) {
    let mut database = Database::at(&server.url()).await;
    for settings in [
        "SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET GLOBAL autocommit = 0",
        "SET GLOBAL sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_UNSIGNED_SUBTRACTION'; \
         SET GLOBAL innodb_lock_wait_timeout = 500; SET GLOBAL div_precision_increment = 0",
        "SET GLOBAL completion_type = 'CHAIN'",
        "SET GLOBAL completion_type = 'RELEASE'; SET GLOBAL sql_safe_updates = ON; \
         SET GLOBAL sql_select_limit = 1; SET GLOBAL group_concat_max_len = 8; \
         SET GLOBAL max_join_size = 1",
    ] {
        database.run(settings).await;
        let tasks: Vec<_> = (0..8)
            .map(|number| {
                let url = server.url();
                tokio::spawn(async move {
                    let driver = driver(&url).await;
                    for _ in 0..25 {
                        let claim = claim(LONG).waiting();
                        let claim = if number % 2 == 0 { claim.fair() } else { claim };
                        while let Attempt::Taken(_) = driver.try_acquire(&claim).await.unwrap() {}
                        assert_ne!(driver.renew(&claim).await.unwrap(), Renewal::Lost);
                        assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let driver = driver(&server.url()).await;
        let held: Vec<_> = (0..20).map(|number| named(&number.to_string(), LONG)).collect();
        for held in &held {
            take(&driver, held).await;
        }
        for renewed in join_all(held.iter().map(|held| driver.renew(held))).await {
            assert_ne!(renewed.unwrap(), Renewal::Lost);
        }
        let (inspect, namespace) = (driver.inspect().unwrap(), Namespace::default());
        assert_eq!(inspect.held(&namespace).await.unwrap().len(), held.len());
        inspect.diagnose(&namespace).await.unwrap();
        for held in &held {
            driver.release(held).await.unwrap();
        }
    }
}

fn logging_statements() -> Result<Server, lockkit_testkit::Unavailable> {
    backend().start_with(&["--log-bin", "--server-id=1", "--binlog-format=STATEMENT"])
}

async fn statements(server: Server) {
    let error = MysqlDriver::connect(&server.url().parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, lockkit_core::Error::Misconfigured(_)), "{error:?}");
    let text = crate::support::causes(&error);
    assert!(text.contains("STATEMENT"), "{text}");
}

async fn sweep(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    for name in ["old", "fresh", "held", "ahead", "queued"] {
        let claim = named(name, LONG);
        take(&driver, &claim).await;
        if name != "held" {
            driver.release(&claim).await.unwrap();
        }
    }
    let long_ago = format!("{NOW} - 26 * 3600000000");
    // The clock was set back: a token that began anew would be lower.
    database
        .run(&format!(
            "UPDATE lockkit_lock SET since = {long_ago} WHERE name <> 'fresh'; \
             UPDATE lockkit_lock SET token = {long_ago} WHERE name <> 'ahead'; \
             UPDATE lockkit_lock SET queued = {NOW} WHERE name = 'queued'; \
             INSERT INTO lockkit_place \
                 (namespace, name, owner, label, inbox, since, expires, arrival) \
             VALUES ('lockkit', 'old', 'o', 'l', 0, 0, {long_ago}, 1), \
                    ('lockkit', 'queued', 'o', 'l', 0, 0, {NOW}, 1); \
             INSERT INTO lockkit_bell (namespace, name, inbox, since, told, expires) \
             VALUES ('lockkit', 'old', 1, 0, 0, {long_ago}), \
                    ('lockkit', 'queued', 1, 0, 0, {NOW})"
        ))
        .await;
    let url = database.url.parse().unwrap();
    draw_a_sweep();
    let _sweeping = MysqlDriver::connect(&url).await.unwrap();
    // The rows of locks come last.
    let left = "SELECT GROUP_CONCAT(name ORDER BY name SEPARATOR ' ') FROM lockkit_lock";
    while database.text(left).await != "ahead fresh held queued" {
        sleep(millis(5)).await;
    }
    let left = "SELECT GROUP_CONCAT(name ORDER BY name SEPARATOR ' ') FROM lockkit_place";
    assert_eq!(database.text(left).await, "queued");
    let left = "SELECT GROUP_CONCAT(name ORDER BY name SEPARATOR ' ') FROM lockkit_bell";
    assert_eq!(database.text(left).await, "queued");
}

/// How often somebody has waited for a row, for a second. Within two a request does so once.
const WAITED: &str = "Innodb_row_lock_waits";

/// What is not there to be renewed.
const LOST: [&str; 2] = ["gone", "over"];

async fn renewals(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let driver = impatient_driver(&format!("{}?call_limit=2s", server.url())).await;
    // More than one statement has room for.
    let numbers = (0..100).map(|number| format!("lock {number}"));
    let names = ["first", "a", "A", "it's", "\"quoted\"", "back\\slash", "ü", "gone", "over"]
        .map(String::from);
    let names: Vec<_> = names.into_iter().chain(numbers).collect();
    let claims: Vec<_> = names.iter().map(|name| named(name, LONG)).collect();
    for claim in &claims {
        take(&driver, claim).await;
    }
    database.run("UPDATE lockkit_lock SET expires = expires - 15000000").await;
    let renew = || join_all(claims.iter().map(|claim| driver.renew(claim)));
    let before = database.figure(CARRIED_OUT).await;
    for (name, renewal) in names.iter().zip(renew().await) {
        assert_ne!(renewal.unwrap(), Renewal::Lost, "{name}");
    }
    // Each statement is prepared, perhaps on a few connections.
    let carried_out = database.figure(CARRIED_OUT).await - before;
    assert!(carried_out < 109 / 4, "{carried_out} statements");
    let fresh = format!("SELECT COUNT(*) FROM lockkit_lock WHERE expires > {NOW} + 20000000");
    assert_eq!(database.ask::<i64>(&fresh).await, 109);
    database.run("UPDATE lockkit_lock SET owner = 'another' WHERE name = 'gone'").await;
    database.run("UPDATE lockkit_lock SET expires = 1 WHERE name = 'over'").await;
    for (name, renewal) in names.iter().zip(renew().await) {
        assert_eq!(renewal.unwrap() == Renewal::Lost, LOST.contains(&name.as_str()), "{name}");
    }
    // Nobody waits for a row that somebody else has locked, but whose it is.
    let mut busy = Database::at(&server.url()).await;
    let row =
        "SELECT token FROM lockkit_lock WHERE namespace = 'lockkit' AND name = 'a' FOR UPDATE";
    busy.run(&format!("BEGIN; {row}")).await;
    let before = database.figure(WAITED).await;
    for (name, renewal) in names.iter().zip(renew().await) {
        assert_eq!(renewal.is_err(), *name == "a", "{name}");
    }
    assert_eq!(database.figure(WAITED).await - before, 1);
    busy.run("COMMIT").await;
    for (name, renewal) in names.iter().zip(renew().await) {
        assert_eq!(renewal.unwrap() == Renewal::Lost, LOST.contains(&name.as_str()), "{name}");
    }
}

/// All that the table has is renewed at once.
async fn few_renewals(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let driver = impatient_driver(&format!("{}?call_limit=2s", server.url())).await;
    let claims: Vec<_> = (0..40).map(|number| named(&format!("{number}"), LONG)).collect();
    for claim in &claims {
        take(&driver, claim).await;
    }
    database.run("ANALYZE TABLE lockkit_lock").await;
    let mut busy = Database::at(&server.url()).await;
    let row =
        "SELECT token FROM lockkit_lock WHERE namespace = 'lockkit' AND name = '7' FOR UPDATE";
    busy.run(&format!("BEGIN; {row}")).await;
    let before = database.figure(WAITED).await;
    let renewed = join_all(claims.iter().map(|claim| driver.renew(claim))).await;
    assert_eq!(renewed.iter().filter(|renewed| renewed.is_ok()).count(), 39);
    assert_eq!(database.figure(WAITED).await - before, 1);
}

async fn refusals(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    take(&driver, &claim(LONG)).await;
    let row = "SELECT CONCAT_WS('/', token, since, lease, expires, queued, beat, settled) \
               FROM lockkit_lock";
    let before = database.text(row).await;
    for _ in 0..3 {
        refused(&driver, &claim(LONG)).await;
        refused(&driver, &claim(millis(1000)).waiting()).await;
    }
    assert_eq!(database.text(row).await, before);
}

/// No row yet, and no gap that two keep from each other: every token is another, and higher than
/// those before it.
async fn at_once(server: String) {
    let database = Database::on(&server).await;
    let mut drivers = Vec::new();
    for _ in 0..8 {
        drivers.push(database.driver().await);
    }
    for round in 0..10 {
        let claims: Vec<_> = drivers.iter().map(|_| named(&format!("new {round}"), LONG)).collect();
        let asking = drivers.iter().zip(&claims).map(|(driver, claim)| driver.try_acquire(claim));
        let answers = futures_util::future::join_all(asking).await;
        let granted: Vec<_> = answers
            .into_iter()
            .zip(&claims)
            .filter_map(|(answer, claim)| match answer.unwrap() {
                Attempt::Granted(grant) => Some((grant.fencing_token().unwrap(), claim)),
                _ => None,
            })
            .collect();
        let [(first, holder)] = granted[..] else { panic!("{} hold it", granted.len()) };
        drivers[0].release(holder).await.unwrap();
        assert!(take(&drivers[0], &claims[7]).await > first);
    }
}
