//! Servers that die, hang, refuse or turn into something else, and a network that loses things.

use std::pin::pin;
use std::time::Instant;

use futures_util::future::join_all;
use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::Error;
use lockkit_core::driver::{Attempt, Driver, ErrorKind, Release, Renewal};
use lockkit_sql::mysql::MysqlDriver;
use lockkit_testkit::{Hold, MARIADB, Proxy, Server, Unavailable, trial};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::support::{
    Database, LONG, NAME, NOW, causes, claim, driver, impatient_driver, keep_locked, kind, listen,
    millis, named, private, refused, shared, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_restarted_server_is_found_again", private, restarted),
        trial("ended_sessions_are_replaced", shared, terminated),
        trial("what_ended_while_it_was_idle_fails_no_ask", private, ended_while_idle),
        trial("a_doubt_outlives_a_second_sending", shared, doubted),
        trial("a_swallowed_answer_is_unknown_and_replaces_the_connection", private, swallowed),
        trial("a_second_ask_that_is_not_answered_is_unknown", private, asked_twice),
        trial("a_second_ask_that_fails_leaves_the_first_answer", private, refused_once),
        trial("a_reset_or_a_partition_is_got_over", private, cut),
        trial("a_transaction_that_is_cut_off_is_rolled_back", private, half_open),
        trial("who_is_cut_off_in_a_transaction_does_not_keep_the_lock", private, cut_off),
        trial("a_request_that_was_not_sent_is_not_unknown", private, away),
        trial("attempts_to_connect_are_few", private, attempts),
        trial("a_row_that_somebody_keeps_locked_holds_up_nobody_else", shared, locked),
        trial("who_leaves_a_row_that_is_locked_holds_up_no_renewal", shared, left_at_once),
        trial("silence_for_one_request_costs_others_no_connection", private, silence),
        trial("a_row_that_was_locked_for_long_is_waited_for_again", shared, locked_for_long),
        trial("commits_that_nobody_takes_leave_few_sessions_behind", patient, no_replica),
        trial("what_was_lost_on_its_way_is_in_nobodys_way", private, lost),
        trial("a_transaction_that_is_given_up_leaves_nothing_locked", shared, given_up),
        trial("a_cancelled_request_has_done_nothing", shared, cancelled),
        trial("a_read_only_server_is_refused_and_later_unreachable", private, read_only),
        trial("who_may_write_on_a_read_only_server_does_not", private, demoted),
        trial("what_a_read_only_server_does_not_have_is_not_lost", private, not_there),
        trial("a_read_only_server_is_not_swept", private, not_swept),
        trial("a_wrong_password_is_denied_and_not_told", shared, password),
        trial("a_database_that_is_not_there_is_said", shared, no_database),
        trial("too_many_connections_are_unreachable", shared, too_many),
        trial("too_many_prepared_statements_are_unreachable", private, too_many_prepared),
        trial("requests_share_the_one_connection_that_there_is", private, only_one),
        trial("encryption_that_is_not_to_be_had_is_said", shared, unencrypted),
        trial("who_answers_for_a_server_that_is_away_is_unreachable", || Ok(()), answered_for),
        trial("a_late_request_leaves_one_lease_at_most", private, late),
        trial("a_look_may_be_broken_off", private, broken_off),
        trial("a_closed_driver_leaves_no_connection", shared, closed),
    ]
}

/// The URL for whoever comes through the proxy, which is to see what is said.
fn in_plain(server: &Server, proxy: &Proxy) -> String {
    format!("{}?ssl-mode=disabled", server.url_at(proxy.addr()))
}

async fn restarted(server: Server) {
    let driver = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    let token = take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    server.restart().unwrap();
    // One answer may be in doubt: that of the connection on which the end was noticed.
    let mut failures = 0;
    while let Err(error) = driver.renew(&holder).await {
        assert!(error.kind().is_transient(), "{error}");
        failures += 1;
    }
    assert!(failures <= 1, "{failures}");
    assert_eq!(take(&driver, &holder).await, token, "holds outlive the server");
    assert_eq!(driver.release(&holder).await.unwrap(), Release::Freed);
    refused(&driver, &claim(LONG)).await;
    assert!(take(&driver, &waiter).await > token, "places too");
}

async fn terminated(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    // At once, so that all connections are made.
    let others: Vec<_> = (0..20).map(|number| named(&number.to_string(), LONG)).collect();
    join_all(others.iter().map(|other| take(&driver, other))).await;
    assert!(database.sessions().await.len() > 2);
    database.kill_sessions().await;
    let mut failures = 0;
    while let Err(error) = driver.renew(&holder).await {
        assert_eq!(error.kind(), ErrorKind::Unknown);
        failures += 1;
    }
    assert!(failures <= 1, "{failures}");
    for other in &others {
        assert_ne!(driver.renew(other).await.unwrap(), Renewal::Lost);
    }
    driver.release(&holder).await.unwrap();
    take(&driver, &waiter).await;
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
            false => database.kill_sessions().await,
        };
        end(&mut database).await;
        let holder = claim(LONG).fair();
        let token = take(&driver, &holder).await;
        end(&mut database).await;
        let status = driver.inspect().unwrap().look(holder.name()).await.unwrap();
        assert_eq!(status.holder().unwrap().fencing_token(), Some(token));
        // One statement; and a transaction, which keeps its place.
        let waiter = claim(LONG).fair();
        for _ in 0..2 {
            end(&mut database).await;
            refused(&driver, &waiter).await;
        }
        for held in held.iter().chain([&holder]) {
            driver.release(held).await.unwrap();
        }
        end(&mut database).await;
        take(&driver, &waiter).await;
        driver.release(&waiter).await.unwrap();
    }
}

/// What was sent first may have been carried out.
async fn doubted(server: String) {
    let mut database = Database::on(&server).await;
    let driver = impatient_driver(&format!("{}?call_limit=2s", database.url)).await;
    let wanted = claim(LONG);
    take(&driver, &wanted).await;
    driver.release(&wanted).await.unwrap();
    database.kill_sessions().await;
    database.run("START TRANSACTION; SELECT * FROM lockkit_lock FOR UPDATE").await;
    let (kind, text) = kind(driver.try_acquire(&wanted).await);
    assert_eq!(kind, ErrorKind::Unknown, "{text}");
    database.run("COMMIT").await;
    take(&driver, &wanted).await;
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

/// Who is refused and waits asks once more as soon as it is told of releases.
async fn asked_twice(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (near, far) =
        (driver(&server.url()).await, impatient_driver(&in_plain(&server, &proxy)).await);
    let held = claim(LONG);
    take(&near, &held).await;
    let listing = proxy.requests().hold("INSERT INTO lockkit_bell");
    let asked = loop {
        let waiting = claim(millis(10_000)).waiting();
        let mut ask = pin!(far.try_acquire(&waiting));
        tokio::select! {
            () = listing.caught() => (),
            // It is not told of releases yet.
            refused = &mut ask => {
                refused.unwrap();
                continue;
            }
        }
        let _unanswered = proxy.requests().hold(waiting.owner().to_string());
        listing.go_on();
        break kind(ask.await);
    };
    assert_eq!(asked.0, ErrorKind::Unknown, "{}", asked.1);
}

/// By then somebody keeps the lock's row locked for longer than the server lets anybody wait.
async fn refused_once(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let mut database = Database::at(&server.url()).await;
    let near = driver(&server.url()).await;
    let far = impatient_driver(&format!("{}&call_limit=2s", in_plain(&server, &proxy))).await;
    let held = claim(LONG);
    take(&near, &held).await;
    let listing = proxy.requests().hold("INSERT INTO lockkit_bell");
    let refused = loop {
        let waiting = claim(LONG).waiting();
        let mut ask = pin!(far.try_acquire(&waiting));
        tokio::select! {
            () = listing.caught() => (),
            // It is not told of releases yet.
            refused = &mut ask => {
                refused.unwrap();
                continue;
            }
        }
        database.run("START TRANSACTION; SELECT COUNT(*) FROM lockkit_lock FOR UPDATE").await;
        listing.go_on();
        break ask.await.unwrap();
    };
    database.run("COMMIT").await;
    match refused {
        Attempt::Taken(taken) => assert!(taken.is_unheard()),
        other => panic!("not refused: {other:?}"),
    }
    near.release(&held).await.unwrap();
    take(&far, &claim(LONG)).await;
}

async fn cut(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr())).await;
    let (holder, waiter) = (claim(millis(10_000)), claim(millis(10_000)).fair());
    let token = take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    proxy.reset().await;
    while let Err(error) = driver.renew(&holder).await {
        assert_eq!(error.kind(), ErrorKind::Unknown);
    }
    // From then on nothing needs a connection by itself: what is given back stays.
    while driver.try_acquire(&waiter).await.is_err() {}
    listen(&driver, &waiter).await;
    proxy.requests().swallow();
    proxy.answers().swallow();
    assert_eq!(kind(driver.renew(&holder).await).0, ErrorKind::Unknown);
    proxy.requests().pass();
    proxy.answers().pass();
    while driver.renew(&holder).await.is_err() {}
    assert_eq!(take(&driver, &holder).await, token);
    driver.release(&holder).await.unwrap();
    assert!(take(&driver, &waiter).await > token);
}

/// The network takes a request in the middle of a transaction: the connection is closed, and the
/// server takes back what was done.
async fn half_open(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let far = impatient_driver(&in_plain(&server, &proxy)).await;
    let mut database = Database::at(&server.url()).await;
    let near = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(millis(10_000)).fair());
    take(&near, &holder).await;
    let hold = proxy.requests().hold("COMMIT");
    assert_eq!(kind(far.try_acquire(&waiter).await).0, ErrorKind::Unknown);
    drop(hold);
    // Whether or not the commit arrives in the end, nothing stays locked.
    while database.transactions().await > 0 {}
    assert_ne!(near.renew(&holder).await.unwrap(), Renewal::Lost);
    near.release(&waiter).await.unwrap();
    assert_eq!(database.ask::<i64>("SELECT COUNT(*) FROM lockkit_place").await, 0);
    near.release(&holder).await.unwrap();
    take(&near, &claim(LONG)).await;
}

/// As of a host that has lost its power: the server is not told that the connection is gone, nor
/// what was to become of the transaction. Whoever ended one in order is left alone.
async fn cut_off(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let mut database = Database::at(&server.url()).await;
    if crate::support::backend().id() == "mariadb" {
        database.run("SET GLOBAL idle_transaction_timeout = 600").await;
    }
    let bystander = database.driver().await;
    take(&bystander, &named("other", LONG)).await;
    refused(&bystander, &named("other", LONG).fair()).await;
    let idle = database.sessions().await;

    let far = impatient_driver(&in_plain(&server, &proxy)).await;
    let near = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(millis(7_500)).fair());
    take(&near, &holder).await;
    let hold = proxy.requests().hold("COMMIT");
    assert_eq!(kind(far.try_acquire(&waiter).await).0, ErrorKind::Unknown);
    assert_ne!(near.renew(&holder).await.unwrap(), Renewal::Lost);
    assert_eq!(near.release(&holder).await.unwrap(), Release::Freed);
    take(&near, &claim(LONG)).await;
    let left = database.sessions().await;
    assert!(idle.iter().all(|id| left.contains(id)), "{idle:?}, and later {left:?}");
    drop(hold);
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

async fn locked(server: String) {
    let mut database = Database::on(&server).await;
    let driver = impatient_driver(&format!("{}?connections=2", database.url)).await;
    let (stuck, other) = (claim(millis(10_000)), named("other", LONG));
    for claim in [&stuck, &other] {
        take(&driver, claim).await;
    }
    keep_locked(&mut database, &stuck).await;
    let (start, another) = (Instant::now(), claim(millis(10_000)).fair());
    let mut first = pin!(driver.try_acquire(&stuck));
    let mut second = pin!(driver.try_acquire(&another));
    let keeping = async {
        assert_ne!(driver.renew(&other).await.unwrap(), Renewal::Lost);
        assert_eq!(driver.release(&other).await.unwrap(), Release::Freed);
    };
    tokio::select! {
        biased;
        _ = &mut first => panic!("renewals wait for asks"),
        _ = &mut second => panic!("renewals wait for asks"),
        () = keeping => (),
    }
    // The server gives up by itself, so that nothing is in doubt.
    let (first, second) = tokio::join!(first, second);
    let (given_up, text) = kind(first);
    assert_eq!(given_up, ErrorKind::Unreachable, "{text}");
    assert!(text.contains("1205"), "{text}");
    assert!(start.elapsed() >= millis(900));
    // This one came to sit too late for that.
    assert!(kind(second).0.is_transient());
    // Whoever was not waited for gives up by itself, too.
    while database.transactions().await > 0 {}
    database.run("COMMIT").await;
    assert_ne!(driver.renew(&stuck).await.unwrap(), Renewal::Lost);
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

/// Where somebody keeps a row locked for longer than the limit, there is no answer, as from a network
/// that is gone.
async fn silence(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&in_plain(&server, &proxy)).await;
    let (stuck, other) = (named("stuck", LONG), named("other", LONG));
    for claim in [&stuck, &other] {
        take(&driver, claim).await;
    }
    let hurried = stuck.clone().with_ttl(millis(1_500));
    let is_renewed = async || driver.renew(&other).await.unwrap() != Renewal::Lost;
    for _ in 0..2 {
        let hold = proxy.requests().hold(stuck.owner().to_string());
        let mut renewing = pin!(driver.renew(&hurried));
        assert!(poll!(renewing.as_mut()).is_pending());
        // Over another connection, which is idle by the time at which the first request gives up.
        assert!(is_renewed().await);
        assert_eq!(kind(renewing.await).0, ErrorKind::Unknown);
        drop(hold);
        let before = proxy.connections();
        assert!(is_renewed().await);
        assert_eq!(proxy.connections(), before);
    }
    // Where nobody is answered, what is idle has probably ended as well.
    let hold = proxy.requests().hold(stuck.owner().to_string());
    let mut renewing = pin!(driver.renew(&stuck));
    assert!(poll!(renewing.as_mut()).is_pending());
    assert!(is_renewed().await);
    hold.go_on();
    assert_ne!(renewing.await.unwrap(), Renewal::Lost);
    let hold = proxy.requests().hold(stuck.owner().to_string());
    assert_eq!(kind(driver.renew(&hurried).await).0, ErrorKind::Unknown);
    drop(hold);
    let before = proxy.connections();
    assert!(is_renewed().await);
    assert_eq!(proxy.connections(), before + 1);
}

/// A server whose commits wait for a replica for a day, as soon as they are to wait for one. MySQL has
/// a plugin for that, and other names.
fn patient() -> Result<Server, Unavailable> {
    MARIADB.start_with(&[
        "--log-bin",
        "--server-id=1",
        "--binlog-format=ROW",
        "--rpl-semi-sync-master-timeout=86400000",
    ])
}

/// No replica is there that commits wait for, which no time-out ends.
async fn no_replica(server: Server) {
    const HUNG: &str = "SELECT COUNT(*) FROM information_schema.processlist \
         WHERE id <> CONNECTION_ID() AND command <> 'Sleep' AND user = 'root'";
    let mut database = Database::at(&server.url()).await;
    let driver =
        impatient_driver(&format!("{}?connections=2&call_limit=300ms", database.url)).await;
    let mut names = (0..).map(|number| named(&number.to_string(), LONG));
    database.run("SET GLOBAL rpl_semi_sync_master_enabled = ON").await;
    while driver.try_acquire(&names.next().unwrap()).await.is_ok() {}
    for wanted in names.by_ref().take(40) {
        let (kind, text) = kind(driver.try_acquire(&wanted).await);
        assert!(matches!(kind, ErrorKind::Unknown | ErrorKind::Unreachable), "{text}");
    }
    let hung = database.ask::<i64>(HUNG).await;
    assert!((1..=16).contains(&hung), "{hung} sessions are left behind");
    // Who only reads is answered.
    let other = names.next().unwrap();
    driver.inspect().unwrap().held(other.name().namespace()).await.unwrap();

    database.run("SET GLOBAL rpl_semi_sync_master_enabled = OFF").await;
    database.sessions_fall_to(2).await;
    while driver.try_acquire(&names.next().unwrap()).await.is_err() {}
}

/// The network forgets one connection after the other, and does not say so.
async fn lost(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let url = format!("{}&connections=2&call_limit=1s", in_plain(&server, &proxy));
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

async fn locked_for_long(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (held, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &held).await;
    refused(&driver, &waiter).await;
    for lock in ["lockkit_lock", "lockkit_place"] {
        database.run(&format!("START TRANSACTION; SELECT COUNT(*) FROM {lock} FOR UPDATE")).await;
        let asking = async {
            refused(&driver, &waiter).await;
            assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
        };
        let committing = async {
            // Longer than the server lets anybody wait.
            sleep(millis(1500)).await;
            database.run("COMMIT").await;
        };
        tokio::join!(asking, committing);
        assert_eq!(database.transactions().await, 0);
    }
}

async fn given_up(server: String) {
    let mut database = Database::on(&server).await;
    let (near, far) = (database.driver().await, impatient_driver(&database.url).await);
    let (held, waiter) = (claim(LONG), claim(millis(10_000)).fair());
    take(&near, &held).await;
    refused(&far, &waiter).await;
    // It has to be refreshed.
    database.run("UPDATE lockkit_place SET expires = expires - 5000000").await;
    database.run("START TRANSACTION; SELECT COUNT(*) FROM lockkit_place FOR UPDATE").await;
    // It has the lock's row by then, and gives up before the place's.
    let (kind, text) = kind(far.try_acquire(&waiter).await);
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    assert!(text.contains("1205"), "{text}");
    assert_eq!(database.transactions().await, 0);
    assert_ne!(near.renew(&held).await.unwrap(), Renewal::Lost);
    database.run("COMMIT").await;
    refused(&far, &waiter).await;
}

async fn cancelled(server: String) {
    let mut database = Database::on(&server).await;
    let driver = impatient_driver(&database.url).await;
    let held = claim(LONG);
    take(&driver, &held).await;
    database.run("START TRANSACTION; SELECT COUNT(*) FROM lockkit_lock FOR UPDATE").await;
    let releasing = async {
        let (kind, text) = kind(driver.release(&held).await);
        assert_eq!(kind, ErrorKind::Unreachable, "{text}");
        assert!(text.contains("1317"), "{text}");
    };
    let cancelling = async {
        database.waits_reach(1).await;
        for id in database.sessions().await {
            database.run(&format!("KILL QUERY {id}")).await;
        }
    };
    tokio::join!(releasing, cancelling);
    database.run("COMMIT").await;
    assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
}

async fn read_only(server: Server) {
    let mut database = Database::at(&server.url()).await;
    // Who may write on a replica all the same is refused when it connects; others later, too.
    database
        .run(
            "CREATE USER app@'127.0.0.1'; \
             GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON shop.* TO app@'127.0.0.1'",
        )
        .await;
    let app = database.url_of("app");
    let driver = impatient_driver(&app).await;
    let held = claim(LONG);
    take(&driver, &held).await;
    database.run("SET GLOBAL read_only = ON").await;
    for url in [&app, &server.url()] {
        let error = MysqlDriver::connect(&url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
        assert!(causes(&error).contains("read-only"), "{error:?}");
    }
    let (kind, text) = kind(driver.renew(&held).await);
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    assert!(text.contains("1290"), "{text}");
    // Each time on a new connection, which may lead to a server that takes writes.
    database.run("SET GLOBAL read_only = OFF").await;
    while let Err(error) = driver.renew(&held).await {
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    }
}

/// As after a planned failover, where connections are kept. Each request comes over a connection that
/// was made before: later, the greeting would do.
async fn demoted(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let (taker, holder) = (database.driver().await, claim(LONG));
    let token = take(&taker, &holder).await;
    let queued = [(); 3].map(|()| named("queued", LONG).fair());
    let row = format!(
        "SELECT CONCAT_WS('/', owner, token, since, lease, queued) FROM lockkit_lock \
         WHERE name = '{NAME}'"
    );
    let before = database.text(&row).await;
    for request in ["renew", "ask", "ask for another", "ask in order", "release", "break"] {
        let driver = database.driver().await;
        database.run("SET GLOBAL read_only = ON").await;
        let refused = match request {
            "renew" => kind(driver.renew(&holder).await),
            "ask" => kind(driver.try_acquire(&holder).await),
            "ask for another" => kind(driver.try_acquire(&named("another", LONG)).await),
            "ask in order" => kind(driver.try_acquire(&claim(LONG).fair()).await),
            "release" => kind(driver.release(&holder).await),
            _ => kind(driver.inspect().unwrap().break_hold(holder.name(), None).await),
        };
        assert_eq!(refused.0, ErrorKind::Unreachable, "{request}: {}", refused.1);
        assert!(refused.1.contains("has become read-only"), "{request}: {}", refused.1);
        database.run("SET GLOBAL read_only = OFF").await;
    }
    // A place that was looked at, a turn that is taken, and a place that goes.
    for request in ["look", "turn", "leave"] {
        let driver = database.driver().await;
        let [holder, first, second] = &queued;
        take(&driver, holder).await;
        refused(&driver, first).await;
        refused(&driver, second).await;
        // From then on, only requests use the connections for requests.
        let inbox = database.ask("SELECT MAX(inbox) FROM lockkit_place").await;
        database.gate_keeper(inbox).await;
        if request == "turn" {
            driver.release(holder).await.unwrap();
        }
        database.run("SET GLOBAL read_only = ON").await;
        let (kind, text) = match request {
            "leave" => kind(driver.release(second).await),
            _ => kind(driver.try_acquire(first).await),
        };
        assert_eq!(kind, ErrorKind::Unreachable, "{request}: {text}");
        assert!(text.contains("has become read-only"), "{request}: {text}");
        database.run("SET GLOBAL read_only = OFF").await;
        for claim in &queued {
            while driver.release(claim).await.is_err() {}
        }
    }
    assert_eq!(database.text(&row).await, before, "written to all the same");

    // Several that are renewed by one statement, which does not wait for a row that is locked.
    let driver = database.driver().await;
    let others: Vec<_> = (0..20).map(|number| named(&number.to_string(), LONG)).collect();
    for other in &others {
        take(&driver, other).await;
    }
    let mut stranger = Database::at(&server.url()).await;
    keep_locked(&mut stranger, &others[0]).await;
    let mut alone = pin!(driver.renew(&others[0]));
    assert!(poll!(alone.as_mut()).is_pending());
    // Over another connection, which is there from then on.
    assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    database.run("SET GLOBAL read_only = ON").await;
    let together = join_all(others[1..].iter().map(|other| driver.renew(other))).await;
    let causes: Vec<_> = together.into_iter().map(kind).collect();
    assert!(causes.iter().all(|(kind, _)| *kind == ErrorKind::Unreachable), "{causes:?}");
    let of_several = |text: &String| text.contains("the renewal of several holds at once failed");
    assert!(causes.iter().filter(|(_, text)| of_several(text)).count() > 10, "{causes:?}");
    assert!(causes.iter().any(|(_, text)| text.contains("has become read-only")), "{causes:?}");
    stranger.run("COMMIT").await;
    let (kind, text) = kind(alone.await);
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    assert!(text.contains("has become read-only"), "{text}");

    database.run("SET GLOBAL read_only = OFF").await;
    while driver.renew(&holder).await.is_err() {}
    assert_eq!(take(&driver, &holder).await, token);
    let renewed = join_all(others.iter().map(|other| driver.renew(other))).await;
    assert!(renewed.into_iter().all(|renewal| renewal.unwrap() != Renewal::Lost));
}

/// A connection to it may be left of before, while the hold came over another one, to the server that
/// takes writes by then.
async fn not_there(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let (driver, holder, other) = (driver(&server.url()).await, claim(LONG), named("other", LONG));
    take(&driver, &other).await;
    for request in ["renew", "release", "break"] {
        database.run("SET GLOBAL read_only = ON").await;
        let (kind, text) = match request {
            "renew" => kind(driver.renew(&holder).await),
            "release" => kind(driver.release(&holder).await),
            _ => kind(driver.inspect().unwrap().break_hold(holder.name(), None).await),
        };
        assert_eq!(kind, ErrorKind::Unreachable, "{request}: {text}");
        assert!(text.contains("has become read-only"), "{request}: {text}");
        database.run("SET GLOBAL read_only = OFF").await;
        while driver.renew(&other).await.is_err() {}
    }
    assert_eq!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(&holder).await.unwrap(), Release::NotHeld);
}

/// A replica that has lost rows stops following when they are removed where it follows.
async fn not_swept(server: Server) {
    const REMOVE: &str = include_str!("../../src/mysql/sql/remove.sql");
    let mut database = Database::at(&server.url()).await;
    let (driver, holder) = (database.driver().await, claim(LONG));
    take(&driver, &holder).await;
    driver.release(&holder).await.unwrap();
    let prepare = format!("PREPARE removal FROM \"{}\"", uncommented(REMOVE));
    database.run(&format!("{prepare}; SET @ns = 'lockkit', @name = '{NAME}', @no = FALSE")).await;
    for (read_only, left) in [("ON", 1), ("OFF", 0)] {
        database.run("UPDATE lockkit_lock SET since = 1, expires = 1, queued = 0, token = 1").await;
        database.run(&format!("SET GLOBAL read_only = {read_only}")).await;
        database.run("EXECUTE removal USING @ns, @name, @no").await;
        database.run("SET GLOBAL read_only = OFF").await;
        let rows: i64 = database.ask("SELECT COUNT(*) FROM lockkit_lock").await;
        assert_eq!(rows, left, "{read_only}");
    }
}

/// The statement alone.
fn uncommented(sql: &str) -> String {
    sql.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join(" ")
}

async fn password(server: String) {
    let mut database = Database::on(&server).await;
    let user = database.name()[..24].to_owned();
    database
        .run(&format!(
            "CREATE USER '{user}'@'127.0.0.1' IDENTIFIED BY 'right'; \
             GRANT ALL ON {}.* TO '{user}'@'127.0.0.1'",
            database.name()
        ))
        .await;
    for wrong in [&format!("{user}:hunter2"), "nobody_at_all"] {
        let url = database.url_of(wrong);
        let error = MysqlDriver::connect(&url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{wrong}: {error:?}");
        let told = format!("{error:?} {}", causes(&error));
        assert!(!told.contains("hunter2"), "{told}");
    }
    let right = database.url_of(&format!("{user}:right"));
    let in_plain = format!("{right}?ssl-mode=disabled");
    if crate::support::backend().id() == "mysql" {
        // A password that the server has not seen yet is not sent in plain.
        let error = MysqlDriver::connect(&in_plain.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
        assert!(causes(&error).contains("TLS"), "{error:?}");
    }
    let encrypted = driver(&right).await;
    take(&encrypted, &claim(LONG)).await;
    assert!(!format!("{encrypted:?}").contains("right"), "{encrypted:?}");
    refused(&driver(&in_plain).await, &claim(LONG)).await;
}

async fn no_database(server: String) {
    let url = format!("{server}_that_is_not_there");
    let error = MysqlDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("Unknown database"), "{error:?}");
}

async fn too_many(server: String) {
    let mut database = Database::on(&server).await;
    let user = database.name()[..24].to_owned();
    database
        .run(&format!(
            "CREATE USER '{user}'@'127.0.0.1' WITH MAX_USER_CONNECTIONS 1; \
             GRANT ALL ON {}.* TO '{user}'@'127.0.0.1'",
            database.name()
        ))
        .await;
    let url = database.url_of(&user);
    let _first = driver(&url).await;
    let error = MysqlDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    assert!(causes(&error).contains("max_user_connections"), "{error:?}");
}

/// Every connection prepares what it will send most, and all that others have prepared counts.
async fn too_many_prepared(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let driver = impatient_driver(&server.url()).await;
    let (held, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &held).await;
    refused(&driver, &waiter).await;
    database.run("SET GLOBAL max_prepared_stmt_count = 0").await;
    let error = MysqlDriver::connect(&server.url().parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    assert!(causes(&error).contains("max_prepared_stmt_count"), "{error:?}");
    database.kill_sessions().await;
    while kind(driver.renew(&held).await).0 == ErrorKind::Unknown {}
    for refused in [kind(driver.try_acquire(&waiter).await), kind(driver.renew(&held).await)] {
        assert_eq!(refused.0, ErrorKind::Unreachable, "{}", refused.1);
        assert!(refused.1.contains("max_prepared_stmt_count"), "{}", refused.1);
    }
    database.run("SET GLOBAL max_prepared_stmt_count = 16382").await;
    while driver.renew(&held).await.is_err() {}
    while let Err(error) = driver.release(&held).await {
        assert!(error.kind().is_transient(), "{error}");
    }
    take(&driver, &waiter).await;
}

/// Who needs a connection while the server gives no other one takes what somebody gives back.
async fn only_one(server: Server) {
    let mut database = Database::at(&server.url()).await;
    database
        .run(
            "CREATE USER app@'127.0.0.1' WITH MAX_USER_CONNECTIONS 1; \
             GRANT ALL ON shop.* TO app@'127.0.0.1'",
        )
        .await;
    let proxy = Proxy::start(server.addr()).await;
    let url = in_plain(&server, &proxy).replace("://root@", "://app@");
    let driver = impatient_driver(&url).await;
    let (wanted, held) = (named("wanted", LONG), named("held", LONG));
    take(&driver, &held).await;
    // So that both are under way at once.
    proxy.answers().delay(millis(100));
    let (taken, renewed) = tokio::join!(driver.try_acquire(&wanted), driver.renew(&held));
    assert!(matches!(taken.unwrap(), Attempt::Granted(_)));
    assert_ne!(renewed.unwrap(), Renewal::Lost);
}

/// MariaDB has no certificate unless it is given one, MySQL one that nobody has signed.
async fn unencrypted(server: String) {
    for mode in ["required", "verify_identity"] {
        if mode == "required" && crate::support::backend().id() == "mysql" {
            continue;
        }
        let url = format!("{server}?ssl-mode={mode}");
        let error = MysqlDriver::connect(&url.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Misconfigured(_)), "{mode}: {error:?}");
    }
    take(
        &driver(&format!("{}?ssl-mode=disabled", Database::on(&server).await.url)).await,
        &claim(LONG),
    )
    .await;
}

/// A request that the network keeps lands after its claim was given up.
async fn late(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (far, near) =
        (impatient_driver(&in_plain(&server, &proxy)).await, driver(&server.url()).await);
    let mut database = Database::at(&server.url()).await;
    let ttl = millis(2500);
    let held =
        format!("SELECT COUNT(*) FROM lockkit_lock WHERE owner IS NOT NULL AND expires > {NOW}");
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
    while database.ask::<i64>(&held).await == 0 {}
    while database.ask::<i64>(&held).await > 0 {}
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
        assert_eq!(database.ask::<i64>(&held).await, 0);
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

/// A router, or a server that takes nobody, refuses before it says who it is.
async fn answered_for((): ()) {
    for number in [2003_u16, 9001, 3032, 1135, 1040] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("mysql://me@{}/shop", listener.local_addr().unwrap()).parse().unwrap();
        let refusing = async {
            let (mut client, _) = listener.accept().await.unwrap();
            let [low, high] = number.to_le_bytes();
            let refusal = [&[9, 0, 0, 0, 0xff, low, high], &b"goaway"[..]].concat();
            client.write_all(&refusal).await.unwrap();
            client
        };
        let (error, _client) = tokio::join!(MysqlDriver::connect(&url), refusing);
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{number}: {error:?}");
        assert!(causes(&error).contains("goaway"), "{error:?}");
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
