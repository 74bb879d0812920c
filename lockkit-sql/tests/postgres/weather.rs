//! Servers that die, hang, refuse or turn into something else, and a network that loses things.

use std::pin::pin;
use std::time::Instant;

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{Attempt, Change, Claim, Driver, ErrorKind, Release, Renewal};
use lockkit_core::{Diagnosis, Error, Grade};
use lockkit_sql::postgres::PostgresDriver;
use lockkit_testkit::{Hold, POSTGRES, Proxy, Server, trial};
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::support::{
    Database, LONG, causes, claim, driver, impatient_driver, kind, listen, millis, named, refused,
    take,
};
use crate::sweeps::draw_a_sweep;

/// How many sessions wait for what others have locked.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE datname = current_database() AND wait_event_type = 'Lock'";

const SWEEPS: [&str; 2] = [
    include_str!("../../src/postgres/sql/sweep.sql"),
    include_str!("../../src/postgres/sql/session_sweep.sql"),
];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_restarted_server_is_found_again", || POSTGRES.start(), restarted),
        trial("ended_sessions_are_replaced", || POSTGRES.url(), terminated),
        trial("what_ended_while_it_was_idle_fails_no_ask", || POSTGRES.start(), ended_while_idle),
        trial("a_doubt_outlives_a_second_sending", || POSTGRES.url(), doubted),
        trial("what_was_idle_for_too_long_fails_nothing", || POSTGRES.url(), idle),
        trial(
            "a_swallowed_answer_is_unknown_and_replaces_the_connection",
            || POSTGRES.start(),
            swallowed,
        ),
        trial(
            "commits_that_nobody_takes_leave_few_sessions_behind",
            || POSTGRES.start(),
            no_standby,
        ),
        trial("what_was_lost_on_its_way_is_in_nobodys_way", || POSTGRES.start(), lost),
        trial("a_request_that_was_not_sent_is_not_unknown", || POSTGRES.start(), away),
        trial("attempts_to_connect_are_few", || POSTGRES.start(), attempts),
        trial("an_attempt_to_listen_that_is_not_answered_ends", || POSTGRES.start(), unanswered),
        trial("a_row_that_somebody_keeps_locked_holds_up_nobody_else", || POSTGRES.url(), locked),
        trial(
            "who_leaves_a_row_that_is_locked_holds_up_no_renewal",
            || POSTGRES.url(),
            left_at_once,
        ),
        trial(
            "who_comes_later_to_a_locked_row_gives_up_in_time",
            || POSTGRES.url(),
            locked_for_two,
        ),
        trial("a_table_that_is_locked_leaves_no_session_waiting", || POSTGRES.url(), table),
        trial(
            "a_look_at_a_table_that_is_locked_leaves_no_session_waiting",
            || POSTGRES.url(),
            looks_at_a_table,
        ),
        trial("a_sweep_that_is_not_answered_holds_up_no_ask", || POSTGRES.start(), sweeping),
        trial("who_waits_for_tables_to_be_made_gives_up_in_time", || POSTGRES.url(), making),
        trial("a_cancelled_request_has_done_nothing", || POSTGRES.url(), cancelled),
        trial("a_standby_is_refused", || POSTGRES.start(), standby),
        trial(
            "a_server_that_takes_no_writes_is_refused_and_later_unreachable",
            || POSTGRES.url(),
            read_only,
        ),
        trial(
            "a_server_that_takes_no_writes_is_asked_with_pauses",
            || POSTGRES.url(),
            asked_with_pauses,
        ),
        trial("a_wrong_password_is_denied_and_not_told", || POSTGRES.start(), password),
        trial("a_database_that_is_not_there_is_said", || POSTGRES.url(), no_database),
        trial("too_many_connections_are_unreachable", || POSTGRES.url(), too_many),
        trial("requests_share_the_one_connection_that_there_is", || POSTGRES.start(), only_one),
        trial("what_is_no_postgres_is_told_apart", || Ok(()), no_postgres),
        trial("who_answers_for_a_server_that_is_away_is_unreachable", || Ok(()), answered_for),
        trial("who_closes_the_connection_at_once_is_unreachable", || Ok(()), dismissed),
        trial("a_late_request_leaves_one_lease_at_most", || POSTGRES.start(), late),
        trial("a_look_may_be_broken_off", || POSTGRES.start(), broken_off),
        trial("a_closed_driver_leaves_no_connection", || POSTGRES.url(), closed),
    ]
}

async fn restarted(server: Server) {
    let driver = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    let token = take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    server.restart().unwrap();
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    // One answer may be in doubt: that of the connection on which the end was noticed.
    let mut failures = 0;
    while let Err(error) = driver.renew(&holder).await {
        assert!(error.kind().is_transient(), "{error}");
        failures += 1;
    }
    assert!(failures <= 1, "{failures}");
    assert_eq!(take(&driver, &holder).await, token, "holds outlive the server");
    assert_eq!(driver.release(&holder).await.unwrap(), Release::Freed);
    assert!(take(&driver, &waiter).await > token);
}

async fn terminated(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    // At once, so that all connections are made.
    let others: Vec<_> = (0..20).map(|number| named(&number.to_string(), LONG)).collect();
    join_all(others.iter().map(|other| take(&driver, other))).await;
    assert!(database.sessions().await > 2);
    database.end_sessions().await;
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    let mut failures = 0;
    while let Err(error) = driver.renew(&holder).await {
        assert_eq!(error.kind(), ErrorKind::Unknown);
        failures += 1;
    }
    assert!(failures <= 1, "{failures}");
    for other in &others {
        assert_ne!(driver.renew(other).await.unwrap(), Renewal::Lost);
    }
    refused(&driver, &waiter).await;
    driver.release(&holder).await.unwrap();
    assert!(matches!(driver.changed(&waiter).await, Change::Granted(_)));
}

/// By an administrator, and by something in between.
async fn ended_while_idle(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&server.url_at(proxy.addr())).await;
    let mut database = Database::at(&server.url()).await;
    for resets in [false, true] {
        // At once, so that several connections are made.
        let held: Vec<_> = (0..5).map(|number| named(&number.to_string(), LONG)).collect();
        join_all(held.iter().map(|held| take(&driver, held))).await;
        let end = async |database: &mut Database| match resets {
            true => proxy.reset().await,
            false => database.end_sessions().await,
        };
        end(&mut database).await;
        let token = take(&driver, &claim(LONG).fair()).await;
        end(&mut database).await;
        let status = driver.inspect().unwrap().look(claim(LONG).name()).await.unwrap();
        assert_eq!(status.holder().unwrap().fencing_token(), Some(token));
        end(&mut database).await;
        refused(&driver, &claim(LONG)).await;
        for held in &held {
            driver.release(held).await.unwrap();
        }
        let broken = driver.inspect().unwrap().break_hold(claim(LONG).name(), None).await;
        assert!(broken.unwrap().is_some());
    }
}

/// What was sent first may have been carried out.
async fn doubted(server: String) {
    let mut database = Database::on(&server).await;
    let driver = impatient_driver(&format!("{}?call_limit=2s", database.url)).await;
    let wanted = claim(LONG);
    take(&driver, &wanted).await;
    driver.release(&wanted).await.unwrap();
    database.end_sessions().await;
    database.run("BEGIN; SELECT FROM lockkit_lock FOR UPDATE").await;
    let (kind, text) = kind(driver.try_acquire(&wanted).await);
    assert_eq!(kind, ErrorKind::Unknown, "{text}");
    assert!(!text.contains("lock timeout"), "{text}");
    database.run("COMMIT").await;
    take(&driver, &wanted).await;
}

/// The server says that it heard no request, so that all may be sent again.
async fn idle(server: String) {
    let mut database = Database::on(&server).await;
    let name = database.name().to_owned();
    database.run(&format!("ALTER DATABASE {name} SET idle_session_timeout = '1s'")).await;
    let driver = database.driver().await;
    let held = claim(LONG);
    take(&driver, &held).await;
    database.sessions_fall_to(0).await;
    assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    database.sessions_fall_to(0).await;
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
}

async fn swallowed(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr())).await;
    // It is to be there still when it is asked for again.
    let claim = claim(millis(10_000));
    let patient = claim.clone().with_ttl(LONG);
    take(&driver, &patient).await;
    driver.release(&patient).await.unwrap();

    proxy.answers().swallow();
    let start = Instant::now();
    let (kind, text) = kind(driver.try_acquire(&claim).await);
    assert_eq!(kind, ErrorKind::Unknown, "{text}");
    assert!(start.elapsed() >= millis(2000), "the limit is a fifth of the lease");
    proxy.answers().pass();

    let mut database = Database::at(&server.url()).await;
    let token: i64 = database.ask("SELECT token FROM lockkit_lock WHERE owner IS NOT NULL").await;
    let found = i64::try_from(take(&driver, &patient).await.get()).unwrap();
    assert_eq!(found, token, "the grant whose answer was lost");
}

/// No standby is there that commits wait for, which no time-out ends.
async fn no_standby(server: Server) {
    const HUNG: &str = "SELECT count(*) FROM pg_stat_activity \
         WHERE application_name = 'lockkit' AND wait_event = 'SyncRep'";
    let mut database = Database::at(&server.url()).await;
    let driver =
        impatient_driver(&format!("{}?connections=2&call_limit=300ms", database.url)).await;
    let mut names = (0..).map(|number| named(&number.to_string(), LONG));
    database.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
    database.run("SELECT pg_reload_conf()").await;
    while driver.try_acquire(&names.next().unwrap()).await.is_ok() {}
    for wanted in names.by_ref().take(20) {
        let (kind, text) = kind(driver.try_acquire(&wanted).await);
        assert!(matches!(kind, ErrorKind::Unknown | ErrorKind::Unreachable), "{text}");
    }
    let hung = database.ask::<i64>(HUNG).await;
    assert!((1..=6).contains(&hung), "{hung} sessions are left behind");
    // Who only reads is answered.
    let other = names.next().unwrap();
    driver.inspect().unwrap().held(other.name().namespace()).await.unwrap();

    database.run("ALTER SYSTEM RESET synchronous_standby_names").await;
    database.run("SELECT pg_reload_conf()").await;
    database.sessions_fall_to(2).await;
    while driver.try_acquire(&names.next().unwrap()).await.is_err() {}
}

/// The network forgets one connection after the other, and does not say so.
async fn lost(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let url = format!("{}?connections=2&call_limit=1s", server.url_at(proxy.addr()));
    let driver = impatient_driver(&url).await;
    let held = claim(LONG);
    take(&driver, &held).await;
    for _ in 0..8 {
        proxy.answers().swallow();
        assert_eq!(kind(driver.renew(&held).await).0, ErrorKind::Unknown);
        proxy.answers().pass();
        assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    }
}

async fn away(server: Server) {
    let driver = impatient_driver(&server.url()).await;
    let claim = claim(millis(1000));
    take(&driver, &claim.clone().with_ttl(LONG)).await;
    server.kill();
    while kind(driver.renew(&claim).await).0 == ErrorKind::Unknown {}
    let (kind, text) = kind(driver.renew(&claim).await);
    assert_eq!(kind, ErrorKind::Unreachable);
    assert!(text.contains("no connection within 200ms") && text.contains("refused"), "{text}");
    server.restart().unwrap();
    while driver.try_acquire(&claim).await.is_err() {}
}

async fn attempts(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr())).await;
    let claim = claim(millis(2500));
    take(&driver, &claim.clone().with_ttl(LONG)).await;
    server.kill();
    let (start, before) = (Instant::now(), proxy.connections());
    while start.elapsed() < millis(3000) {
        _ = driver.renew(&claim).await;
    }
    let busy = proxy.connections() - before;
    // The pauses allow for 12; a hammering client makes thousands.
    assert!((2..=20).contains(&busy), "{busy} attempts in 3 s");
    // And none while nobody calls, once those that are under way have ended.
    let mut before = 0;
    while proxy.connections() != before {
        before = proxy.connections();
        sleep(millis(1500)).await;
    }
}

/// As by a pooler whose sessions are all in use.
async fn unanswered(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&server.url_at(proxy.addr())).await;
    take(&driver, &claim(LONG)).await;
    let own = database.sessions().await;
    let greeting = || proxy.answers().hold("is_standby");
    let first = greeting();
    refused(&driver, &claim(LONG).fair()).await;
    first.caught().await;
    let second = greeting();
    second.caught().await;
    let third = greeting();
    tokio::select! {
        biased;
        () = database.sessions_fall_to(own + 1) => (),
        () = third.caught() => panic!("what was given up is open still"),
    }
}

async fn locked(server: String) {
    let mut database = Database::on(&server).await;
    let driver = impatient_driver(&format!("{}?connections=2&call_limit=8s", database.url)).await;
    let (stuck, other) = (claim(LONG), named("other", LONG));
    for claim in [&stuck, &other] {
        take(&driver, claim).await;
    }
    keep_locked(&mut database, &stuck).await;
    let asking = async {
        let start = Instant::now();
        let another = claim(LONG).fair();
        let (first, second) =
            tokio::join!(driver.try_acquire(&stuck), driver.try_acquire(&another));
        for answer in [first, second] {
            // The server has given up by itself, so that nothing is in doubt.
            let (kind, text) = kind(answer);
            assert_eq!(kind, ErrorKind::Unreachable, "{text}");
            assert!(text.contains("lock timeout") || text.contains("in use"), "{text}");
        }
        assert!(start.elapsed() >= millis(4000));
    };
    let keeping = async {
        assert_ne!(driver.renew(&other).await.unwrap(), Renewal::Lost);
        assert_eq!(driver.release(&other).await.unwrap(), Release::Freed);
    };
    let mut asking = pin!(asking);
    tokio::select! {
        biased;
        () = &mut asking => panic!("renewals wait for asks"),
        () = keeping => (),
    }
    asking.await;
    assert_eq!(database.ask::<i64>(WAITING).await, 0, "a session is left waiting");
    database.run("COMMIT").await;
    assert_ne!(driver.renew(&stuck).await.unwrap(), Renewal::Lost);
}

/// Keeps the row of the lock from everybody, until the transaction ends.
async fn keep_locked(database: &mut Database, claim: &Claim) {
    let name = claim.name();
    database
        .run(&format!("BEGIN; SELECT FROM lockkit_lock WHERE name = '{name}' FOR UPDATE"))
        .await;
}

/// Twenty that wait in order give up together, as when their tasks are cancelled.
async fn left_at_once(server: String) {
    let mut database = Database::on(&server).await;
    let driver = impatient_driver(&format!("{}?connections=2", database.url)).await;
    let (stuck, other) = (claim(LONG), named("other", LONG));
    for claim in [&stuck, &other] {
        take(&driver, claim).await;
    }
    let waiters: Vec<_> = (0..20).map(|_| claim(LONG).fair()).collect();
    for waiter in &waiters {
        refused(&driver, waiter).await;
    }
    keep_locked(&mut database, &stuck).await;
    tokio::select! {
        biased;
        _ = join_all(waiters.iter().map(|waiter| driver.release(waiter))) => {
            panic!("renewals wait for releases")
        }
        renewed = driver.renew(&other) => assert_ne!(renewed.unwrap(), Renewal::Lost),
    }
}

/// The server counts the wait to be the first in line for the row, and the one for the row.
async fn locked_for_two(server: String) {
    const WAITS_FOR_LONG: &str = "SELECT count(*) > 0 \
         FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid \
         WHERE a.datname = current_database() AND NOT l.granted \
           AND l.waitstart < clock_timestamp() - interval '1 s'";
    let mut database = Database::on(&server).await;
    let driver = impatient_driver(&format!("{}?call_limit=8s", database.url)).await;
    let (first, second) = (claim(LONG).fair(), claim(LONG).fair());
    let held = claim(LONG);
    take(&driver, &held).await;
    database.run("BEGIN; SELECT FROM lockkit_lock FOR UPDATE").await;
    let later = async {
        while !database.ask::<bool>(WAITS_FOR_LONG).await {
            sleep(millis(5)).await;
        }
        driver.try_acquire(&second).await
    };
    let (first, second) = tokio::join!(driver.try_acquire(&first), later);
    for answer in [first, second] {
        let (kind, text) = kind(answer);
        assert_eq!(kind, ErrorKind::Unreachable, "{text}");
        assert!(text.contains("lock timeout"), "{text}");
    }
    assert_eq!(database.ask::<i64>(WAITING).await, 0, "a session is left waiting");
    database.run("COMMIT").await;
    assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
}

/// As while it is rewritten, by VACUUM FULL for instance.
async fn table(server: String) {
    let mut database = Database::on(&server).await;
    let driver = impatient_driver(&format!("{}?call_limit=4s", database.url)).await;
    let (held, plain, fair) = (claim(LONG), claim(LONG), claim(LONG).fair());
    take(&driver, &held).await;
    database.run("BEGIN; LOCK TABLE lockkit_lock").await;
    let (renewed, first, second) =
        tokio::join!(driver.renew(&held), driver.try_acquire(&plain), driver.try_acquire(&fair));
    for (kind, text) in [kind(renewed), kind(first), kind(second)] {
        assert_eq!(kind, ErrorKind::Unreachable, "{text}");
        assert!(text.contains("lock timeout"), "{text}");
    }
    assert_eq!(database.ask::<i64>(WAITING).await, 0, "a session is left waiting");
    database.run("COMMIT").await;
    assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
}

async fn looks_at_a_table(server: String) {
    let mut database = Database::on(&server).await;
    // Within a transaction, the list of sessions stays as it was.
    let mut witness = Database::at(&database.url).await;
    let driver = impatient_driver(&format!("{}?call_limit=8s", database.url)).await;
    let held = claim(LONG);
    take(&driver, &held).await;
    let inspect = driver.inspect().unwrap();
    let (name, namespace) = (held.name(), held.name().namespace());
    let is_good = |findings: Vec<Diagnosis>| {
        let clock = findings.iter().find(|finding| finding.topic() == "clock").unwrap();
        clock.grade() == Grade::Good
    };
    database.run("BEGIN; LOCK TABLE lockkit_lock").await;
    for _ in 0..2 {
        let (seen, list, findings) =
            tokio::join!(inspect.look(name), inspect.held(namespace), inspect.diagnose(namespace));
        for (kind, text) in [kind(seen), kind(list)] {
            assert_eq!(kind, ErrorKind::Unreachable, "{text}");
            assert!(text.contains("lock timeout"), "{text}");
        }
        assert!(!is_good(findings.unwrap()));
        assert_eq!(witness.ask::<i64>(WAITING).await, 0, "a session is left waiting");
    }
    database.run("COMMIT").await;
    // On the same connections, on which no transaction is open.
    assert_eq!(inspect.look(name).await.unwrap().holder().unwrap().owner(), held.owner());
    assert_eq!(inspect.held(namespace).await.unwrap().len(), 1);
    assert!(is_good(inspect.diagnose(namespace).await.unwrap()));
    let open = "SELECT count(*) FROM pg_stat_activity \
                WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(witness.ask::<i64>(open).await, 0);
    assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);

    // Nor does who connects, or sweeps.
    database.run("BEGIN; LOCK TABLE lockkit_layout").await;
    let error = PostgresDriver::connect(&database.url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    assert!(causes(&error).contains("lock timeout"), "{error:?}");
    assert_eq!(witness.ask::<i64>(WAITING).await, 0, "a session is left waiting");
    database.run("ROLLBACK; BEGIN; LOCK TABLE lockkit_lock, lockkit_session").await;
    let mut other = PgConnection::connect(&database.url).await.unwrap();
    for sweep in SWEEPS {
        let error = sqlx::query(sweep).execute(&mut other).await.unwrap_err();
        assert!(error.to_string().contains("lock timeout"), "{error}");
    }
}

async fn sweeping(server: Server) {
    for observes in [false, true] {
        // Makes the tables, in whose text the sweep's stands.
        driver(&server.url()).await;
        let proxy = Proxy::start(server.addr()).await;
        let url = format!(
            "{}?connections=2&call_limit=10s&observe={observes}",
            server.url_at(proxy.addr())
        );
        let statement = if observes { "AS since" } else { "SELECT lockkit_sweep()" };
        let unanswered = proxy.requests().hold(statement);
        let url = url.parse().unwrap();
        draw_a_sweep();
        let driver = PostgresDriver::connect(&url).await.unwrap();
        unanswered.caught().await;
        let claim = claim(LONG);
        take(&driver, &claim).await;
        assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    }
}

/// As for a process that was stopped while it made them.
async fn making(server: String) {
    let mut database = Database::on(&server).await;
    database.run("SELECT pg_advisory_lock(x'6c6b6974'::integer)").await;
    let error = PostgresDriver::connect(&database.url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    assert!(causes(&error).contains("lock timeout"), "{error:?}");
    assert_eq!(database.ask::<i64>(WAITING).await, 0, "a session is left waiting");
}

async fn cancelled(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let held = claim(LONG);
    take(&driver, &held).await;
    database.run("BEGIN; SELECT FROM lockkit_lock FOR UPDATE").await;
    let releasing = async {
        let (kind, text) = kind(driver.release(&held).await);
        assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    };
    let cancelling = async {
        let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity \
                      WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while database.ask::<i64>(cancel).await == 0 {
            sleep(millis(5)).await;
        }
    };
    tokio::join!(releasing, cancelling);
    database.run("COMMIT").await;
    assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
}

async fn standby(server: Server) {
    server.kill();
    std::fs::write(server.data().join("standby.signal"), "").unwrap();
    server.restart().unwrap();
    let error = PostgresDriver::connect(&server.url().parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("standby"), "{error:?}");
}

async fn read_only(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let name = database.name().to_owned();
    let held = claim(LONG);
    take(&driver, &held).await;
    database.run(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    let error =
        PostgresDriver::connect(&database.url_of("postgres").parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("default_transaction_read_only"), "{error:?}");
    database.end_sessions().await;
    while kind(driver.renew(&held).await).0 == ErrorKind::Unknown {}
    let (kind, text) = kind(driver.renew(&held).await);
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    assert!(text.contains("read-only"), "{text}");
    // Each time on a new connection, which may lead to a server that takes writes.
    database
        .run(&format!(
            "SET default_transaction_read_only = off; \
             ALTER DATABASE {name} RESET default_transaction_read_only"
        ))
        .await;
    while let Err(error) = driver.renew(&held).await {
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    }
}

/// It lets everybody in.
async fn asked_with_pauses(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let name = database.name().to_owned();
    database.run(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    database.end_sessions().await;
    while kind(driver.try_acquire(&claim(LONG)).await).0 == ErrorKind::Unknown {}
    let begun = Instant::now();
    for _ in 0..10 {
        let (kind, text) = kind(driver.try_acquire(&claim(LONG)).await);
        assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    }
    assert!(begun.elapsed() > millis(1_000), "{:?}", begun.elapsed());
}

async fn password(server: Server) {
    let mut database = Database::at(&server.url()).await;
    database.run("CREATE ROLE lockkit_password LOGIN SUPERUSER PASSWORD 'right'").await;
    for wrong in ["lockkit_password:hunter2", "nobody_at_all"] {
        let url = database.url_of(wrong);
        let error = PostgresDriver::connect(&url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{wrong}: {error:?}");
        let told = format!("{error:?} {}", causes(&error));
        assert!(!told.contains("hunter2"), "{told}");
    }
    let driver = driver(&database.url_of("lockkit_password:right")).await;
    take(&driver, &claim(LONG)).await;
    assert!(!format!("{driver:?}").contains("right"), "{driver:?}");
}

async fn no_database(server: String) {
    let url = format!("{server}_that_is_not_there");
    let error = PostgresDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("does not exist"), "{error:?}");
}

async fn too_many(server: String) {
    let mut database = Database::on(&server).await;
    let role = format!("role_of_{}", database.name());
    database.run(&format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")).await;
    let url = database.url_of(&role);
    let error = PostgresDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    assert!(causes(&error).contains("too many connections"), "{error:?}");
}

/// Who needs a connection while the server gives no other one takes what somebody gives back.
async fn only_one(server: Server) {
    let mut database = Database::at(&server.url()).await;
    database
        .run("CREATE ROLE app LOGIN CONNECTION LIMIT 1; GRANT ALL ON SCHEMA public TO app")
        .await;
    let proxy = Proxy::start(server.addr()).await;
    let url = server.url_at(proxy.addr()).replace("://postgres@", "://app@");
    let driver = impatient_driver(&url).await;
    let (wanted, held) = (named("wanted", LONG), named("held", LONG));
    take(&driver, &held).await;
    // So that both are under way at once.
    proxy.answers().delay(millis(100));
    let (taken, renewed) = tokio::join!(driver.try_acquire(&wanted), driver.renew(&held));
    assert!(matches!(taken.unwrap(), Attempt::Granted(_)));
    assert_ne!(renewed.unwrap(), Renewal::Lost);
}

async fn no_postgres((): ()) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://{}/shop", listener.local_addr().unwrap());
    let web = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        _ = stream.read(&mut [0; 1024]).await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let error = PostgresDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    web.await.unwrap();
    let error = PostgresDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "nobody listens any more: {error:?}");
}

/// A pooler that has no server.
async fn answered_for((): ()) {
    let away = "server login has been failing, try again later (server_login_retry)";
    let full = "no more connections allowed (max_client_conn)";
    let setting = "unsupported startup parameter: options";
    for (code, said, is_expected) in [
        (
            "58000",
            "go away",
            (|error| matches!(error, Error::Unreachable(_))) as fn(&Error) -> bool,
        ),
        ("XX000", "go away", |error| matches!(error, Error::Unreachable(_))),
        ("08P01", away, |error| matches!(error, Error::Unreachable(_))),
        ("08P01", full, |error| matches!(error, Error::Unreachable(_))),
        ("08P01", setting, |error| matches!(error, Error::Misconfigured(_))),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("postgres://me@{address}/shop?sslmode=disable").parse().unwrap();
        let refusing = async {
            let (mut client, _) = listener.accept().await.unwrap();
            // The line is that of the server's source.
            let fields = format!("SFATAL\0VFATAL\0C{code}\0M{said}\0L334\0\0");
            let length = u32::try_from(4 + fields.len()).unwrap().to_be_bytes();
            let refusal = [&b"E"[..], &length, fields.as_bytes()].concat();
            client.write_all(&refusal).await.unwrap();
            client
        };
        let (error, _client) = tokio::join!(PostgresDriver::connect(&url), refusing);
        let error = error.unwrap_err();
        assert!(is_expected(&error), "{code}: {error:?}");
        let text = causes(&error);
        assert!(text.contains(said) && !text.contains("334"), "{text}");
    }
}

/// A proxy whose server is away, and a server that cannot begin another process.
async fn dismissed((): ()) {
    let no_process = "Ecould not fork new process for connection: Cannot allocate memory\n\0";
    for (said, mode) in [
        ("", "disable"),
        ("", "prefer"),
        ("", "verify-full"),
        (no_process, "prefer"),
        (no_process, "require"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("postgres://me@{address}/shop?sslmode={mode}").parse().unwrap();
        let closing = async {
            let (mut client, _) = listener.accept().await.unwrap();
            // Whether there is TLS, or all that a client without TLS says first.
            _ = client.read(&mut [0; 1024]).await.unwrap();
            client.write_all(said.as_bytes()).await.unwrap();
        };
        let (error, ()) = tokio::join!(PostgresDriver::connect(&url), closing);
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{said:?}, {mode}: {error:?}");
    }
}

/// A request that the network keeps lands after its claim was given up.
async fn late(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (far, near) =
        (impatient_driver(&server.url_at(proxy.addr())).await, driver(&server.url()).await);
    let mut database = Database::at(&server.url()).await;
    let ttl = millis(2500);
    let held =
        "SELECT count(*) FROM lockkit_lock WHERE owner IS NOT NULL AND expires > lockkit_now()";
    let land = async |hold: Hold| {
        let answered = proxy.answers().bytes();
        hold.go_on();
        proxy.answers().bytes_reach(answered + 1).await;
    };

    // An ask that lands late holds the lock for a lease,
    let ask = claim(ttl);
    let hold = proxy.requests().hold(ask.owner().to_string());
    assert_eq!(kind(far.try_acquire(&ask).await).0, ErrorKind::Unknown);
    assert_eq!(near.release(&ask).await.unwrap(), Release::NotHeld);
    let start = Instant::now();
    land(hold).await;
    while database.ask::<i64>(held).await == 0 {}
    while database.ask::<i64>(held).await > 0 {}
    assert!(start.elapsed() >= ttl);

    // and neither a renewal nor a release leaves anything.
    for renews in [true, false] {
        let holder = claim(millis(10_000));
        take(&near, &holder).await;
        let hold = proxy.requests().hold(holder.owner().to_string());
        let (late, _) = match renews {
            true => kind(far.renew(&holder).await),
            false => kind(far.release(&holder).await),
        };
        assert_eq!(late, ErrorKind::Unknown);
        assert_eq!(near.release(&holder).await.unwrap(), Release::Freed);
        let successor = claim(LONG);
        take(&near, &successor).await;
        land(hold).await;
        assert_eq!(near.release(&successor).await.unwrap(), Release::Freed);
        assert_eq!(database.ask::<i64>(held).await, 0);
    }
}

async fn broken_off(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&format!("{}?connections=2", server.url_at(proxy.addr()))).await;
    let held = claim(LONG);
    take(&driver, &held).await;
    for _ in 0..5 {
        proxy.answers().delay(millis(5000));
        let looking = driver.inspect().unwrap().look(held.name());
        assert!(tokio::time::timeout(millis(20), looking).await.is_err());
        proxy.answers().pass();
        let seen = driver.inspect().unwrap().look(held.name()).await.unwrap();
        assert_eq!(seen.holder().unwrap().owner(), held.owner());
        assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    }
}

async fn closed(server: String) {
    let mut database = Database::on(&server).await;
    for close in [true, false] {
        let driver = database.driver().await;
        let (holder, waiter) = (claim(millis(200)), claim(millis(200)).waiting());
        take(&driver, &holder).await;
        driver.try_acquire(&waiter).await.unwrap();
        driver.release(&holder).await.unwrap();
        if close {
            driver.close().await;
            assert_eq!(kind(driver.try_acquire(&holder).await).0, ErrorKind::Unreachable);
        }
        // A closed driver has none while it is still there.
        let _kept = close.then_some(driver);
        database.sessions_fall_to(0).await;
    }
}
