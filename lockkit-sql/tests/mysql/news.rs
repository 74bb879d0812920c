//! What waiters hear of other processes.

use std::pin::pin;

use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::Locker;
use lockkit_core::driver::{Change, Claim, Driver, ErrorKind, Release};
use lockkit_sql::mysql::MysqlDriver;
use lockkit_testkit::{Proxy, Server, Unavailable, trial};
use tokio::time::sleep;

use crate::support::{
    CARRIED_OUT, Database, LONG, NAME, NOW, claim, driver, impatient_driver, keep_locked, kind,
    listen, millis, named, private, refused, shared, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_release_tells_one_process", shared, one_process),
        trial("the_process_of_the_first_place_is_told", shared, first_place),
        trial("who_is_told_and_comes_too_late_is_told_next", shared, too_late),
        trial("who_was_told_and_gives_up_passes_it_on", shared, passing_on),
        trial("who_was_told_passes_it_on_at_the_second_attempt", shared, passing_on_again),
        trial("a_release_that_was_not_heard_of_tells_the_next", private, unheard),
        trial("a_first_place_that_gives_up_passes_it_on", shared, passing_a_turn_on),
        trial("the_last_place_that_gives_up_lets_others_on", shared, last_place),
        trial("who_tells_itself_tells_no_other", shared, itself),
        trial("who_has_gone_costs_releases_nothing_for_long", shared, gone),
        trial("who_may_not_leave_word_polls", shared, without_right),
        trial("who_does_not_wait_any_more_passes_it_on", shared, waiting_no_more),
        trial("a_process_that_is_gone_is_passed_over", shared, dead),
        trial("what_is_told_between_two_sleeps_is_heard", shared, between),
        trial("users_that_may_not_wake_each_other_ask", shared, strangers),
        trial("who_has_told_another_stands_in_line_behind_it", shared, behind),
        trial("who_is_told_while_it_stands_back_listens_anew", shared, told_meanwhile),
        trial("who_listens_anew_takes_no_news_from_others", shared, listed_meanwhile),
        trial("a_hand_over_takes_few_statements", private, hand_over),
        trial("what_is_told_at_once_is_noted_together", private, at_once),
        trial("a_cut_bell_is_made_up_for", private, cut),
        trial("who_sleeps_goes_on_where_connections_for_requests_end", shared, gate),
        trial("who_sleeps_where_requests_do_not_go_any_more_moves", two_servers, elsewhere),
        trial("nobody_sleeps_where_nobody_waits_any_more", shared, given_up),
        trial("a_closed_driver_leaves_no_sleeper", shared, closed),
    ]
}

/// Of each process that listens, whether it was told.
const TOLD: &str = "SELECT GROUP_CONCAT(told <> 0 ORDER BY since SEPARATOR ',') FROM lockkit_bell";

/// The first of two drivers holds the lock, and each has a waiter that listens.
async fn two_wait(database: &Database) -> ([MysqlDriver; 2], Claim, [Claim; 2]) {
    let drivers = [database.driver().await, database.driver().await];
    let (holder, waiters) = (claim(LONG), [claim(LONG).waiting(), claim(LONG).waiting()]);
    take(&drivers[0], &holder).await;
    for (driver, waiter) in drivers.iter().zip(&waiters) {
        listen(driver, waiter).await;
    }
    (drivers, holder, waiters)
}

async fn one_process(server: String) {
    let mut database = Database::on(&server).await;
    let ([one, other], holder, waiters) = two_wait(&database).await;
    assert_eq!(database.text(TOLD).await, "0,0");
    one.release(&holder).await.unwrap();
    assert_eq!(one.changed(&waiters[0]).await, Change::AskAgain);
    assert_eq!(database.text(TOLD).await, "1,0");
    take(&one, &waiters[0]).await;
    one.release(&waiters[0]).await.unwrap();
    assert_eq!(other.changed(&waiters[1]).await, Change::AskAgain);
    take(&other, &waiters[1]).await;
    // Who waits anew comes after those who wait already.
    let again = [claim(LONG).waiting(), claim(LONG).waiting()];
    listen(&one, &again[0]).await;
    listen(&other, &again[1]).await;
    other.release(&waiters[1]).await.unwrap();
    assert_eq!(one.changed(&again[0]).await, Change::AskAgain);
    assert!(poll!(pin!(other.changed(&again[1]))).is_pending());
}

async fn first_place(server: String) {
    let mut database = Database::on(&server).await;
    let ([near, far], holder, waiters) = two_wait(&database).await;
    let fair = [claim(LONG).fair(), claim(LONG).fair()];
    // Whoever is there already, these are in order.
    listen(&far, &fair[0]).await;
    listen(&near, &fair[1]).await;
    near.release(&holder).await.unwrap();
    assert_eq!(far.changed(&fair[0]).await, Change::AskAgain);
    assert!(poll!(pin!(near.changed(&waiters[0]))).is_pending());
    take(&far, &fair[0]).await;
    far.release(&fair[0]).await.unwrap();
    assert_eq!(near.changed(&fair[1]).await, Change::AskAgain);
    take(&near, &fair[1]).await;
    // Then the others.
    refused(&far, &waiters[1]).await;
    near.release(&fair[1]).await.unwrap();
    assert_eq!(far.changed(&waiters[1]).await, Change::AskAgain);
    assert_eq!(database.ask::<i64>("SELECT COUNT(*) FROM lockkit_place").await, 0);
}

async fn too_late(server: String) {
    let mut database = Database::on(&server).await;
    let ([one, other], holder, waiters) = two_wait(&database).await;
    one.release(&holder).await.unwrap();
    // Whoever asks first gets it: none of them is in order.
    take(&one, &holder).await;
    assert_eq!(one.changed(&waiters[0]).await, Change::AskAgain);
    refused(&one, &waiters[0]).await;
    assert_eq!(database.text(TOLD).await, "0,0");
    one.release(&holder).await.unwrap();
    assert_eq!(one.changed(&waiters[0]).await, Change::AskAgain);
    take(&one, &waiters[0]).await;
    assert!(poll!(pin!(other.changed(&waiters[1]))).is_pending());
}

async fn passing_on(server: String) {
    let database = Database::on(&server).await;
    let ([near, far], holder, waiters) = two_wait(&database).await;
    near.release(&holder).await.unwrap();
    assert_eq!(near.changed(&waiters[0]).await, Change::AskAgain);
    assert_eq!(near.release(&waiters[0]).await.unwrap(), Release::NotHeld);
    assert_eq!(far.changed(&waiters[1]).await, Change::AskAgain);
    take(&far, &waiters[1]).await;
}

/// Somebody kept the lock's row locked at the first.
async fn passing_on_again(server: String) {
    let mut database = Database::on(&server).await;
    let near = impatient_driver(&format!("{}?call_limit=2s", database.url)).await;
    let far = database.driver().await;
    let (holder, first, next) = (claim(LONG), claim(LONG).waiting(), claim(LONG).waiting());
    take(&far, &holder).await;
    listen(&near, &first).await;
    listen(&far, &next).await;
    far.release(&holder).await.unwrap();
    assert_eq!(near.changed(&first).await, Change::AskAgain);
    database.run("START TRANSACTION; SELECT COUNT(*) FROM lockkit_lock FOR UPDATE").await;
    near.release(&first).await.unwrap_err();
    database.run("COMMIT").await;
    assert_eq!(near.release(&first).await.unwrap(), Release::NotHeld);
    assert_eq!(far.changed(&next).await, Change::AskAgain);
    take(&far, &next).await;
}

/// It was carried out, and its answer lost.
async fn unheard(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let near = impatient_driver(&server.url_at(proxy.addr())).await;
    let far = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&near, &holder).await;
    listen(&far, &waiter).await;
    proxy.answers().swallow();
    near.release(&holder.clone().with_ttl(millis(5000))).await.unwrap_err();
    proxy.answers().pass();
    assert_eq!(near.release(&holder).await.unwrap(), Release::NotHeld);
    assert_eq!(far.changed(&waiter).await, Change::AskAgain);
    take(&far, &waiter).await;
}

async fn passing_a_turn_on(server: String) {
    let database = Database::on(&server).await;
    let (near, far) = (database.driver().await, database.driver().await);
    let (holder, fair) = (claim(LONG), [claim(LONG).fair(), claim(LONG).fair()]);
    take(&near, &holder).await;
    listen(&near, &fair[0]).await;
    listen(&far, &fair[1]).await;
    near.release(&holder).await.unwrap();
    near.release(&fair[0]).await.unwrap();
    assert_eq!(far.changed(&fair[1]).await, Change::AskAgain);
    take(&far, &fair[1]).await;
}

async fn last_place(server: String) {
    let database = Database::on(&server).await;
    let ([near, far], holder, waiters) = two_wait(&database).await;
    let fair = claim(LONG).fair();
    listen(&far, &fair).await;
    near.release(&holder).await.unwrap();
    assert_eq!(far.changed(&fair).await, Change::AskAgain);
    assert_eq!(far.release(&fair).await.unwrap(), Release::NotHeld);
    assert_eq!(near.changed(&waiters[0]).await, Change::AskAgain);
    take(&near, &waiters[0]).await;
}

async fn itself(server: String) {
    let mut database = Database::on(&server).await;
    let ([one, other], holder, waiters) = two_wait(&database).await;
    one.release(&holder).await.unwrap();
    take(&one, &waiters[0]).await;
    // What it would find when it wakes next, and pass on.
    let told = "SELECT COUNT(*) FROM lockkit_bell WHERE told > 0";
    assert_eq!(database.ask::<i64>(told).await, 0);
    assert_eq!(database.text(TOLD).await, "1,0");
    assert!(poll!(pin!(other.changed(&waiters[1]))).is_pending());
}

async fn gone(server: String) {
    let mut database = Database::on(&server).await;
    let ([one, other], holder, waiters) = two_wait(&database).await;
    for (driver, waiter) in [&one, &other].into_iter().zip(&waiters) {
        driver.release(waiter).await.unwrap();
    }
    let awaited = format!("SELECT awaited BETWEEN {NOW} AND {NOW} + 4000000 FROM lockkit_lock");
    assert!(database.ask::<bool>(&awaited).await);
    one.release(&holder).await.unwrap();
}

async fn without_right(server: String) {
    let mut database = Database::on(&server).await;
    let near = database.driver().await;
    let (name, user) = (database.name().to_owned(), database.name()[..24].to_owned());
    let user = format!("'{user}'@'127.0.0.1'");
    database.run(&format!("CREATE USER {user}; GRANT SELECT ON {name}.* TO {user}")).await;
    for table in ["lockkit_lock", "lockkit_place"] {
        let right = format!("GRANT INSERT, UPDATE, DELETE ON {name}.{table} TO {user}");
        database.run(&right).await;
    }
    let far = driver(&database.url_of(&name[..24])).await;
    let holder = claim(LONG);
    take(&near, &holder).await;
    // Whoever comes first waits until its process can be told, were it not for the right.
    let first = claim(LONG).fair();
    refused(&far, &first).await;
    assert_eq!(far.changed(&first).await, Change::AskAgain);
    for waiter in [first, claim(LONG).fair(), claim(LONG).waiting()] {
        assert!(!refused(&far, &waiter).await.is_heard());
        far.release(&waiter).await.unwrap();
    }
    near.release(&holder).await.unwrap();
    take(&far, &claim(LONG)).await;
}

/// Its process is to be told still: it gave up without a word to the server.
async fn waiting_no_more(server: String) {
    let database = Database::on(&server).await;
    let ([one, other], holder, waiters) = two_wait(&database).await;
    let third = database.driver().await;
    one.release(&waiters[0]).await.unwrap();
    one.release(&holder).await.unwrap();
    assert_eq!(other.changed(&waiters[1]).await, Change::AskAgain);
    take(&other, &waiters[1]).await;

    let (last, waiter) = (claim(LONG).waiting(), claim(LONG).waiting());
    listen(&one, &waiter).await;
    listen(&third, &last).await;
    one.release(&waiter).await.unwrap();
    // The process that is told is another one's.
    other.release(&waiters[1]).await.unwrap();
    assert_eq!(third.changed(&last).await, Change::AskAgain);
}

async fn dead(server: String) {
    let mut database = Database::on(&server).await;
    let ([one, other], holder, waiters) = two_wait(&database).await;
    let gone = "INSERT INTO lockkit_bell SELECT namespace, name, 1, since - 1, told, expires \
                FROM lockkit_bell ORDER BY since LIMIT 1";
    database.run(gone).await;
    one.release(&waiters[0]).await.unwrap();
    one.release(&holder).await.unwrap();
    assert_eq!(other.changed(&waiters[1]).await, Change::AskAgain);
    // Nor is the own process told, where nobody waits any more, as long as another is to be.
    assert_eq!(database.text(TOLD).await, "0,1");
    take(&other, &waiters[1]).await;
    other.release(&waiters[1]).await.unwrap();
    assert_eq!(database.text(TOLD).await, "1,1");
}

/// By a note without a ring, as if that had come too early.
async fn between(server: String) {
    let mut database = Database::on(&server).await;
    let ([one, _other], _, waiters) = two_wait(&database).await;
    let note = format!("UPDATE lockkit_bell SET told = {NOW}, expires = {NOW} + 20000000");
    database.run(&note).await;
    assert_eq!(one.changed(&waiters[0]).await, Change::AskAgain);
    // It is heard once.
    while database.ask::<i64>("SELECT COUNT(*) FROM lockkit_bell WHERE told > 0").await > 0 {
        sleep(millis(5)).await;
    }
    assert!(poll!(pin!(one.changed(&waiters[0]))).is_pending());
}

async fn strangers(server: String) {
    let mut database = Database::on(&server).await;
    let near = database.driver().await;
    let (name, user) = (database.name().to_owned(), database.name()[..24].to_owned());
    database
        .run(&format!(
            "CREATE USER '{user}'@'127.0.0.1'; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO '{user}'@'127.0.0.1'"
        ))
        .await;
    let far = driver(&database.url_of(&user)).await;
    let (holder, waiter, own) = (claim(LONG), claim(LONG).waiting(), claim(LONG).waiting());
    take(&far, &holder).await;
    listen(&near, &waiter).await;
    // One of its own is told instead.
    let another = driver(&database.url_of(&user)).await;
    listen(&another, &own).await;
    far.release(&holder).await.unwrap();
    assert_eq!(another.changed(&own).await, Change::AskAgain);
    another.release(&own).await.unwrap();
    take(&far, &holder).await;
    let waiting = Locker::new(near).lock(NAME).unwrap();
    let acquiring = tokio::spawn(async move { waiting.acquire().await });
    sleep(millis(200)).await;
    assert_eq!(far.release(&holder).await.unwrap(), Release::Freed);
    acquiring.await.unwrap().unwrap().release().await.unwrap();
}

async fn behind(server: String) {
    let mut database = Database::on(&server).await;
    let (near, far) = (database.driver().await, database.driver().await);
    let (holder, other, again) = (claim(LONG), claim(LONG).waiting(), claim(LONG).waiting());
    // Its session stands: else there is nothing to be noted.
    let elsewhere = named("elsewhere", LONG);
    take(&far, &elsewhere).await;
    listen(&near, &named("elsewhere", LONG).waiting()).await;
    take(&near, &holder).await;
    listen(&far, &other).await;
    near.release(&holder).await.unwrap();
    // The other does not ask, and this one had noted before it did that it waits.
    take(&near, &again).await;
    let waiting = format!("SELECT COUNT(*) FROM lockkit_bell WHERE name = '{NAME}'");
    assert_eq!(database.ask::<i64>(&waiting).await, 2);
}

/// Refused even so, it is noted again, or it would not hear of the next release.
async fn told_meanwhile(server: String) {
    let database = Database::on(&server).await;
    let [near, far, third] =
        [database.driver().await, database.driver().await, database.driver().await];
    let [before, after, other, again] = [(); 4].map(|()| claim(LONG).waiting());
    let (holder, in_the_way) = (claim(LONG), claim(LONG));
    take(&near, &holder).await;
    listen(&near, &before).await;
    near.release(&holder).await.unwrap();
    assert_eq!(near.changed(&before).await, Change::AskAgain);
    take(&near, &after).await;
    listen(&far, &other).await;
    near.release(&after).await.unwrap();
    // The other was told and does not ask; who is in the way has asked before it.
    take(&third, &in_the_way).await;
    // Who was told and gives up passes it on, here to the one that stands back.
    let (refused, left) = tokio::join!(refused(&near, &again), near.release(&before));
    assert!(!refused.is_unheard());
    assert_eq!(left.unwrap(), Release::NotHeld);
    third.release(&in_the_way).await.unwrap();
    assert_eq!(near.changed(&again).await, Change::AskAgain);
    take(&near, &again).await;
}

/// One of its process asks for the next news when this was told, and has not heard of it.
async fn listed_meanwhile(server: String) {
    let mut database = Database::on(&server).await;
    let [near, far] = [database.driver().await, database.driver().await];
    let [first, between, last] = [(); 3].map(|()| claim(LONG).fair());
    take(&near, &claim(LONG)).await;
    listen(&far, &first).await;
    listen(&near, &between).await;
    let owner = first.owner();
    let told = format!(
        "UPDATE lockkit_bell SET told = {NOW} \
         WHERE inbox = (SELECT inbox FROM lockkit_place WHERE owner = '{owner}')"
    );
    database.run(&told).await;
    listen(&far, &last).await;
    assert_eq!(far.changed(&first).await, Change::AskAgain);
}

/// One of them keeps the gate closed, and so the sleep from ending; then another one has to.
async fn gate(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter, stuck) = (claim(LONG), claim(LONG).waiting(), named("stuck", LONG));
    for claim in [&holder, &stuck] {
        take(&driver, claim).await;
    }
    listen(&driver, &waiter).await;
    let inbox: i64 = database.ask("SELECT inbox FROM lockkit_bell").await;
    let asleep = format!("SELECT CAST(IS_USED_LOCK('lockkit {inbox}') AS SIGNED)");
    let sleeper: i64 = database.ask(&asleep).await;
    let mut stranger = Database::at(&database.url).await;
    keep_locked(&mut stranger, &stuck).await;
    // Each time, what is idle is given up as well.
    let mut ended = Vec::new();
    for _ in 0..5 {
        database.gate_keeper(inbox).await;
        let (renewed, id) = tokio::join!(driver.renew(&stuck), database.end_renewal(&ended));
        assert_eq!(kind(renewed).0, ErrorKind::Unknown);
        ended.push(id);
    }
    database.gate_keeper(inbox).await;
    driver.release(&holder).await.unwrap();
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    assert_eq!(database.ask::<Option<i64>>(&asleep).await, Some(sleeper));
}

fn two_servers() -> Result<[Server; 2], Unavailable> {
    Ok([private()?, private()?])
}

/// As where a name comes to mean another server: connections that stand lead to the old one.
async fn elsewhere([old, new]: [Server; 2]) {
    let proxy = Proxy::start(old.addr()).await;
    let driver = driver(&old.url_at(proxy.addr())).await;
    let [mut database, mut moved] = [
        Database::at(&old.url()).await,
        // With tables.
        Database::at(&new.url()).await,
    ];
    moved.driver().await.close().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    let inbox: i64 = database.ask("SELECT inbox FROM lockkit_bell").await;
    database.gate_keeper(inbox).await;
    proxy.switch_upstream(new.addr());
    let mut stranger = Database::at(&old.url()).await;
    keep_locked(&mut stranger, &holder).await;
    let (renewed, _) = tokio::join!(driver.renew(&holder), database.end_renewal(&[]));
    assert_eq!(kind(renewed).0, ErrorKind::Unknown);
    let is_there = format!("SELECT IS_USED_LOCK('lockkit {inbox}') IS NOT NULL");
    while !moved.ask::<bool>(&is_there).await {
        sleep(millis(5)).await;
    }
}

/// Beside what the sleeper sends.
async fn hand_over(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let (near, far) = (driver(&server.url()).await, driver(&server.url()).await);
    let mut claims = [claim(LONG).waiting(), claim(LONG).waiting()];
    take(&near, &claims[0]).await;
    listen(&far, &claims[1]).await;
    let mut drivers = [&near, &far];
    let mut fewest = i64::MAX;
    for _ in 0..6 {
        let before: i64 = database.figure(CARRIED_OUT).await;
        let ([holding, waiting], [holder, waiter]) = (drivers, &claims);
        holding.release(holder).await.unwrap();
        assert_eq!(waiting.changed(waiter).await, Change::AskAgain);
        take(waiting, waiter).await;
        let next = claim(LONG).waiting();
        listen(holding, &next).await;
        let after: i64 = database.figure(CARRIED_OUT).await;
        // One of them is the question before.
        fewest = fewest.min(after - before - 1);
        claims = [claims[1].clone(), next];
        drivers.reverse();
    }
    // A release, a note and the ring of two; a grant; a refusal, a note and another refusal. Beside
    // them what the sleepers send: what they were told, that they heard it, and the next sleep.
    assert!(fewest <= 10, "{fewest}");
}

/// Of many locks, as where the server was busy for a moment.
async fn at_once(server: Server) {
    const LOCKS: usize = 40;
    let mut database = Database::at(&server.url()).await;
    let (near, far) = (driver(&server.url()).await, driver(&server.url()).await);
    let waiters = Vec::from_iter((0..LOCKS).map(|at| named(&at.to_string(), LONG).waiting()));
    for waiter in &waiters {
        take(&near, &Claim::new(waiter.name().clone(), LONG)).await;
        listen(&far, waiter).await;
    }
    let before = database.figure("Com_update").await;
    let tell = format!("UPDATE lockkit_bell SET told = {NOW}, expires = {NOW} + 10000000");
    database.run(&tell).await;
    for waiter in &waiters {
        assert_eq!(far.changed(waiter).await, Change::AskAgain);
    }
    let heard = "SELECT COUNT(*) FROM lockkit_bell WHERE told < 0";
    while database.ask::<i64>(heard).await < 40 {}
    let noted = database.figure("Com_update").await - before - 1;
    assert!(noted <= 3, "{noted}");
}

async fn cut(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let far = driver(&server.url_at(proxy.addr())).await;
    let near = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&near, &holder).await;
    listen(&far, &waiter).await;
    proxy.refuse().await;
    proxy.reset().await;
    near.release(&holder).await.unwrap();
    take(&near, &holder).await;
    proxy.accept().await;
    assert_eq!(far.changed(&waiter).await, Change::AskAgain);
    // The connections for requests were cut as well.
    while far.try_acquire(&waiter).await.is_err() {}
    listen(&far, &waiter).await;
    near.release(&holder).await.unwrap();
    assert_eq!(far.changed(&waiter).await, Change::AskAgain);
    take(&far, &waiter).await;
}

async fn given_up(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    let sleeps = "SELECT IS_USED_LOCK(CONCAT('lockkit ', inbox)) IS NOT NULL FROM lockkit_bell";
    assert!(database.ask::<bool>(sleeps).await);
    driver.release(&waiter).await.unwrap();
    while database.ask::<bool>(sleeps).await {
        sleep(millis(100)).await;
    }
    driver.release(&holder).await.unwrap();
}

async fn closed(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    driver.close().await;
    database.sessions_fall_to(0).await;
}
