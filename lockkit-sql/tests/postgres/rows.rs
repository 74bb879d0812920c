//! One claim at a time: tokens, isolation, what is removed when.

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{Attempt, Driver, ErrorKind, Release, Renewal};
use lockkit_testkit::{POSTGRES, trial};

use crate::support::{
    Database, LONG, claim, driver, impatient_driver, kind, listen, named, refused, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_token_is_the_servers_clock_in_microseconds", || POSTGRES.url(), clock),
        trial("tokens_rise_while_the_clock_is_behind", || POSTGRES.url(), ahead),
        trial("used_up_tokens_are_refused", || POSTGRES.url(), used_up),
        trial("every_isolation_is_got_along_with", || POSTGRES.url(), isolation),
        trial("a_grant_is_synced_whatever_the_default", || POSTGRES.url(), synced),
        trial("idle_rows_are_removed_after_a_day", || POSTGRES.url(), sweep),
        trial("a_plain_refusal_writes_nothing", || POSTGRES.url(), refusals),
        trial("holds_are_renewed_together", || POSTGRES.url(), renewals),
    ]
}

async fn clock(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let before: i64 = database.ask("SELECT lockkit_now()").await;
    let token = take(&driver, &claim(LONG)).await.get();
    let after: i64 = database.ask("SELECT lockkit_now()").await;
    assert!((before..=after).contains(&i64::try_from(token).unwrap()), "{before} {token} {after}");
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

async fn isolation(server: String) {
    for level in ["repeatable read", "serializable"] {
        let mut database = Database::on(&server).await;
        let name = database.name().to_owned();
        database
            .run(&format!("ALTER DATABASE {name} SET default_transaction_isolation = '{level}'"))
            .await;
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let url = database.url.clone();
                tokio::spawn(async move {
                    let driver = driver(&url).await;
                    for _ in 0..25 {
                        let claim = claim(LONG).waiting();
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
    }
}

async fn synced(server: String) {
    let mut database = Database::on(&server).await;
    database.driver().await;
    for (request, expected) in [
        ("lockkit_take('n', 'a', 'o', 'l', 1000000, NULL, false, false, 0, 0, 1000)", "on"),
        ("lockkit_renew('n', 'a', 'o', 1000000, 1000)", "on"),
        ("lockkit_renew_together('{n}', '{a}', '{o}', 1000000, 1000)", "on"),
        ("lockkit_release('n', 'a', 'o', false, 1000)", "on"),
        ("lockkit_now()", "off"),
    ] {
        database.run("BEGIN; SET LOCAL synchronous_commit = off").await;
        database.run(&format!("SELECT {request}")).await;
        let commit: String = database.ask("SHOW synchronous_commit").await;
        assert_eq!(commit, expected, "{request}");
        database.run("ROLLBACK").await;
    }
}

async fn sweep(server: String) {
    let plain = include_str!("../../src/postgres/sql/sweep.sql");
    let observed = include_str!("../../src/postgres/sql/sweep_observed.sql");
    for (sweep, removed, left) in
        [(plain, 3, "ahead busy fresh held"), (observed, 2, "ahead busy dead fresh held")]
    {
        sweeps(&mut Database::on(&server).await, sweep, removed, left).await;
    }
}

async fn sweeps(database: &mut Database, sweep: &str, removed: i64, left: &str) {
    let driver = database.driver().await;
    for name in ["old", "fresh", "held", "ahead", "busy", "dead"] {
        let claim = named(name, LONG);
        take(&driver, &claim).await;
        if name != "held" && name != "dead" {
            driver.release(&claim).await.unwrap();
        }
    }
    let age =
        |names: &str, what: &str| format!("UPDATE lockkit_lock SET {what} WHERE name IN ({names})");
    let long_ago = "lockkit_now() - 26 * 3600000000";
    database.run(&age("'old', 'ahead', 'busy', 'dead'", &format!("expires = {long_ago}"))).await;
    // The clock was set back: a token that began anew would be lower.
    database.run(&age("'old', 'busy', 'dead'", &format!("token = {long_ago}"))).await;
    database
        .run(&format!(
            "INSERT INTO lockkit_place \
                 (namespace, name, owner, label, inbox, turn, since, lease, expires) \
             VALUES ('lockkit', 'old', 'o', 'l', 'i', 0, 0, 1, {long_ago}), \
                    ('lockkit', 'held', 'p', 'l', 'i', 0, 0, 1, lockkit_now())"
        ))
        .await;
    // A row that somebody works with is left for another time, and not waited for.
    let mut busy = Database::at(&database.url).await;
    busy.run("BEGIN; SELECT FROM lockkit_lock WHERE name = 'busy' FOR UPDATE").await;
    // It is repeated until there is nothing more to be removed.
    for removed in [removed, 0] {
        assert_eq!(database.ask::<i64>(sweep).await, removed);
    }
    let found = "SELECT string_agg(name, ' ' ORDER BY name) FROM lockkit_lock";
    assert_eq!(database.ask::<String>(found).await, left);
    let found = "SELECT string_agg(name, ' ' ORDER BY name) FROM lockkit_place";
    assert_eq!(database.ask::<String>(found).await, "held");
}

/// What is not there to be renewed.
const LOST: [&str; 2] = ["gone", "over"];

async fn renewals(server: String) {
    let mut database = Database::on(&server).await;
    let driver = impatient_driver(&database.url).await;
    let names =
        ["first", "a", "A", "it's", "\"quoted\"", "back\\slash", "{a}", "ü", "gone", "over"];
    let claims = names.map(|name| named(name, LONG));
    for claim in &claims {
        take(&driver, claim).await;
    }
    database.run("UPDATE lockkit_lock SET expires = expires - 15000000").await;
    database.run("UPDATE lockkit_lock SET owner = 'another' WHERE name = 'gone'").await;
    database.run("UPDATE lockkit_lock SET expires = 1 WHERE name = 'over'").await;
    let renew = || join_all(claims.iter().map(|claim| driver.renew(claim)));
    for (name, renewal) in names.iter().zip(renew().await) {
        assert_eq!(renewal.unwrap() == Renewal::Lost, LOST.contains(name), "{name}");
    }
    let fresh = "SELECT count(*) FROM lockkit_lock WHERE expires > lockkit_now() + 20000000";
    assert_eq!(database.ask::<i64>(fresh).await, 8);
    let transactions = "SELECT count(DISTINCT xmin::text) FROM lockkit_lock \
         WHERE owner <> 'another' AND expires > lockkit_now()";
    // The first alone, and the rest, unless that takes the machine longer than they gather for.
    while database.ask::<i64>(transactions).await != 2 {
        renew().await;
    }
    // Nobody waits for a row that somebody else has locked, but whose it is.
    let mut busy = Database::at(&database.url).await;
    busy.run("BEGIN; SELECT FROM lockkit_lock WHERE name = 'a' FOR UPDATE").await;
    let transactions = format!("{transactions} AND name <> 'a'");
    loop {
        for (name, renewal) in names.iter().zip(renew().await) {
            assert_eq!(renewal.is_err(), *name == "a", "{name}");
        }
        if database.ask::<i64>(&transactions).await <= 2 {
            break;
        }
    }
    busy.run("COMMIT").await;
    for (name, renewal) in names.iter().zip(renew().await) {
        assert_eq!(renewal.unwrap() == Renewal::Lost, LOST.contains(name), "{name}");
    }
}

async fn refusals(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    take(&driver, &claim(LONG)).await;
    let waiter = claim(LONG).waiting();
    listen(&driver, &waiter).await;
    // Of the lock, and of the place of one who has asked before.
    let version = "SELECT concat(l.xmin, l.ctid, p.xmin, p.ctid) FROM lockkit_lock AS l, \
                          lockkit_place AS p";
    let before: String = database.ask(version).await;
    for _ in 0..3 {
        refused(&driver, &claim(LONG)).await;
        refused(&driver, &claim(LONG).listening()).await;
    }
    assert_eq!(database.ask::<String>(version).await, before);
}
