//! What waiters hear, over which connections.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Claim, Driver, Release};
use lockkit_core::{FencingToken, Locker, Waiter};
use lockkit_sql::postgres::PostgresDriver;
use lockkit_testkit::{POSTGRES, Proxy, Server, Unavailable, trial};
use sqlx::postgres::PgListener;
use tokio::time::{sleep, timeout};

use crate::support::{Database, LONG, NAME, claim, driver, listen, millis, named, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("what_is_told_is_as_it_was", || POSTGRES.url(), told),
        trial("nothing_is_told_where_nobody_waits", || POSTGRES.url(), silence),
        trial("a_release_hands_over_in_no_order_too", || POSTGRES.url(), plain),
        trial("who_listens_no_more_is_passed_over", || POSTGRES.url(), dead),
        trial("who_listens_again_is_handed_the_lock_again", || POSTGRES.url(), back),
        trial("who_waits_is_told_and_not_its_process", || POSTGRES.url(), neighbour),
        trial("a_crowd_of_one_locker_is_not_held_up", || POSTGRES.url(), crowd),
        trial("nobody_else_takes_what_was_handed_over", || POSTGRES.url(), nobody_else),
        trial("who_was_handed_the_lock_and_gives_up_passes_it_on", || POSTGRES.url(), passing_on),
        trial("a_place_lasts_for_a_lease_from_each_ask", || POSTGRES.url(), vouched),
        trial("an_ask_that_kept_no_place_vouches_for_nothing", || POSTGRES.start(), unkept),
        trial("who_only_listens_is_handed_nothing", || POSTGRES.url(), only_listens),
        trial("who_waits_in_no_order_is_counted", || POSTGRES.url(), counted),
        trial("a_grant_between_two_looks_is_not_lost", || POSTGRES.url(), between),
        trial("an_ask_before_the_subscription_stands_is_repeated", || POSTGRES.start(), early),
        trial("waiters_share_one_connection", without_durability, shared),
        trial("a_cut_subscription_is_made_up_for", || POSTGRES.start(), cut),
        trial("a_stale_grant_is_not_believed", || POSTGRES.start(), stale),
        trial("who_hears_no_more_polls", || POSTGRES.start(), deaf),
        trial("nobody_listens_where_nobody_waits_any_more", || POSTGRES.url(), given_up),
    ]
}

/// For a test that writes thousands of times.
fn without_durability() -> Result<Server, Unavailable> {
    POSTGRES.start_with(&["-c", "fsync=off"])
}

/// Which session of a driver listens, of those that do.
const LISTENER: &str = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 \
     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Hears what one is told who waits.
async fn listener(database: &mut Database) -> (PgListener, String) {
    let inbox: String = database.ask("SELECT DISTINCT inbox FROM lockkit_place").await;
    let mut listener = PgListener::connect(&database.url).await.unwrap();
    listener.listen(&inbox).await.unwrap();
    (listener, inbox)
}

async fn told(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter, plain) = (claim(LONG), claim(LONG).fair(), claim(LONG).waiting());
    let token = take(&driver, &holder).await;
    // Who comes first in no order comes after those in order.
    listen(&driver, &plain).await;
    refused(&driver, &waiter).await;
    let (mut news, _) = listener(&mut database).await;
    driver.release(&holder).await.unwrap();
    let next = take(&driver, &waiter).await;
    assert!(next > token);
    driver.release(&waiter).await.unwrap();
    let last = take(&driver, &plain).await;
    assert!(last > next);
    for (owner, token) in [(waiter.owner(), next), (plain.owner(), last)] {
        let granted = format!("lockkit\n{NAME}\ngranted {owner} {token}");
        assert_eq!(news.recv().await.unwrap().payload(), granted);
    }
}

async fn silence(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    let (mut news, inbox) = listener(&mut database).await;
    driver.release(&holder).await.unwrap();
    // Once the waiter was told, there is nobody to tell.
    let token = take(&driver, &waiter).await;
    driver.release(&waiter).await.unwrap();
    for claim in [claim(LONG), claim(LONG).waiting(), claim(LONG).fair()] {
        take(&driver, &claim).await;
        driver.release(&claim).await.unwrap();
    }
    database.run(&format!("NOTIFY {inbox}, 'the end'")).await;
    let granted = format!("lockkit\n{NAME}\ngranted {} {token}", waiter.owner());
    assert_eq!(news.recv().await.unwrap().payload(), granted);
    assert_eq!(news.recv().await.unwrap().payload(), "the end");
}

/// Whose places there are, in order of arrival.
const PLACES: &str =
    "SELECT coalesce(string_agg(owner, ' ' ORDER BY arrival), '') FROM lockkit_place";

/// Who has the lock, by which token, and until when.
const HOLD: &str = "SELECT concat_ws(' ', owner, token, expires) FROM lockkit_lock \
     WHERE owner IS NOT NULL AND expires > lockkit_now()";

const NOBODY_HOLDS: &str = "SELECT count(*) = 1 FROM lockkit_lock WHERE owner IS NULL";

/// The first of two drivers holds the lock, and each has a waiter that listens.
async fn two_wait(database: &Database) -> ([PostgresDriver; 2], Claim, [Claim; 2]) {
    let drivers = [database.driver().await, database.driver().await];
    let (holder, waiters) = (claim(LONG), [claim(LONG).waiting(), claim(LONG).waiting()]);
    take(&drivers[0], &holder).await;
    for (driver, waiter) in drivers.iter().zip(&waiters) {
        listen(driver, waiter).await;
    }
    (drivers, holder, waiters)
}

/// The token of a grant that is told.
async fn granted(driver: &PostgresDriver, claim: &Claim) -> FencingToken {
    match timeout(LONG / 2, driver.changed(claim)).await.expect("nothing is told") {
        Change::Granted(grant) => grant.fencing_token().unwrap(),
        other => panic!("not granted: {other:?}"),
    }
}

async fn has_news(driver: &PostgresDriver, claim: &Claim) -> bool {
    let mut looking = pin!(driver.changed(claim));
    poll!(&mut looking).is_ready()
}

async fn plain(server: String) {
    let mut database = Database::on(&server).await;
    let ([one, other], holder, waiters) = two_wait(&database).await;
    let [first, second] = [&waiters[0], &waiters[1]].map(Claim::owner);
    assert_eq!(database.ask::<String>(PLACES).await, format!("{first} {second}"));
    let ends: i64 = database.ask("SELECT min(expires) FROM lockkit_place").await;
    one.release(&holder).await.unwrap();
    // Nobody has asked since.
    let hold: String = database.ask(HOLD).await;
    assert_eq!(database.ask::<String>(PLACES).await, second.to_string());
    let token = granted(&one, &waiters[0]).await;
    assert_eq!(hold, format!("{first} {token} {ends}"));
    assert!(!has_news(&other, &waiters[1]).await);
    assert_eq!(take(&one, &waiters[0]).await, token);
    assert_eq!(one.release(&waiters[0]).await.unwrap(), Release::Freed);
    let next = granted(&other, &waiters[1]).await;
    assert!(next > token);
    assert_eq!(database.ask::<String>(PLACES).await, "");
    // A hold that is broken goes on in the same way.
    refused(&one, &waiters[0]).await;
    let inspection = one.inspect().unwrap();
    assert!(inspection.break_hold(holder.name(), None).await.unwrap().is_some());
    assert!(granted(&one, &waiters[0]).await > next);
}

/// A place by hand where nobody has ever listened, one of a process that has gone, and one of a
/// process that is there.
async fn dead(server: String) {
    let mut database = Database::on(&server).await;
    let [near, gone, there] =
        [database.driver().await, database.driver().await, database.driver().await];
    let (holder, dead, living) = (claim(LONG), claim(LONG).waiting(), claim(LONG).waiting());
    take(&near, &holder).await;
    let nobody = claim(LONG).owner();
    database
        .run(&format!(
            "INSERT INTO lockkit_place \
                 (namespace, name, owner, label, inbox, turn, since, lease, expires) \
             SELECT namespace, name, '{nobody}', 'l', 'lockkit_{nobody}', 1, lockkit_now(), 1, \
                    lockkit_now() + 30000000 FROM lockkit_lock"
        ))
        .await;
    listen(&gone, &dead).await;
    listen(&there, &living).await;
    drop(gone);
    database.listeners_fall_to(1).await;
    let places = format!("{nobody} {} {}", dead.owner(), living.owner());
    assert_eq!(database.ask::<String>(PLACES).await, places);
    near.release(&holder).await.unwrap();
    granted(&there, &living).await;
    assert_eq!(database.ask::<String>(PLACES).await, "");
    // With none left that listens it is free at once, for whoever tries.
    there.release(&living).await.unwrap();
    assert!(database.ask::<bool>(NOBODY_HOLDS).await);
    let next = claim(LONG);
    take(&near, &next).await;
    // In order it goes on strictly, which costs the lease of who is dead.
    let (fair, late) = (claim(LONG).fair(), claim(LONG).waiting());
    refused(&there, &fair).await;
    refused(&there, &late).await;
    near.release(&next).await.unwrap();
    granted(&there, &fair).await;
    // No look at who listens has left anything locked.
    assert_eq!(database.listeners().await, 1);
}

async fn back(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    let end = format!("SELECT pg_terminate_backend(({LISTENER}), 10000)");
    assert!(database.ask::<bool>(&end).await);
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    refused(&driver, &waiter).await;
    driver.release(&holder).await.unwrap();
    granted(&driver, &waiter).await;
}

async fn neighbour(server: String) {
    let mut database = Database::on(&server).await;
    let (near, far) = (database.driver().await, database.driver().await);
    let (holder, waiters) = (claim(LONG), [claim(LONG).waiting(), claim(LONG).waiting()]);
    take(&near, &holder).await;
    // Before news arrive, one asks as soon as who has no place.
    assert_eq!(refused(&far, &waiters[0]).await.asks_within(), None);
    assert_eq!(database.ask::<String>(PLACES).await, "");
    assert_eq!(far.changed(&waiters[0]).await, Change::AskAgain);
    assert_eq!(refused(&far, &waiters[0]).await.asks_within(), Some(LONG));
    assert_eq!(refused(&far, &waiters[1]).await.asks_within(), Some(LONG));
    let owners = format!("{} {}", waiters[0].owner(), waiters[1].owner());
    assert_eq!(database.ask::<String>(PLACES).await, owners);
    assert!(!has_news(&far, &waiters[1]).await);
    near.release(&holder).await.unwrap();
    let token = granted(&far, &waiters[0]).await;
    assert!(!has_news(&far, &waiters[1]).await);
    far.release(&waiters[0]).await.unwrap();
    assert!(granted(&far, &waiters[1]).await > token);
}

/// All of them ask at about the same time, and one after the other listens.
async fn crowd(server: String) {
    const CROWD: usize = 8;
    let database = Database::on(&server).await;
    let near = database.driver().await;
    let locker = Locker::new(database.driver().await);
    for _ in 0..10 {
        let holder = claim(LONG);
        take(&near, &holder).await;
        let lock = locker.lock(NAME).unwrap();
        let waiting = join_all((0..CROWD).map(|_| async {
            lock.acquire().await.unwrap().release().await.unwrap();
        }));
        let releasing = async {
            let looking = near.inspect().unwrap();
            while looking.look(holder.name()).await.unwrap().listeners() != Some(1) {
                sleep(millis(5)).await;
            }
            near.release(&holder).await.unwrap();
        };
        // As long as a lease if one of them is handed the lock and does not listen.
        let both = async { tokio::join!(waiting, releasing) };
        timeout(LONG / 2, both).await.expect("nobody has what was handed over");
    }
    locker.shutdown().await;
}

async fn nobody_else(server: String) {
    let database = Database::on(&server).await;
    let ([near, far], holder, waiters) = two_wait(&database).await;
    near.release(&holder).await.unwrap();
    for other in [&claim(LONG), &claim(LONG).waiting(), &claim(LONG).fair(), &holder] {
        refused(&far, other).await;
        far.release(other).await.unwrap();
    }
    granted(&near, &waiters[0]).await;
}

async fn passing_on(server: String) {
    let mut database = Database::on(&server).await;
    let ([near, far], holder, waiters) = two_wait(&database).await;
    near.release(&holder).await.unwrap();
    assert_eq!(near.release(&waiters[0]).await.unwrap(), Release::Freed, "it had the lock");
    let token = granted(&far, &waiters[1]).await;
    // Who gives up before that leaves nothing behind.
    refused(&near, &waiters[0]).await;
    assert_eq!(near.release(&waiters[0]).await.unwrap(), Release::NotHeld);
    assert_eq!(database.ask::<String>(PLACES).await, "");
    assert_eq!(take(&far, &waiters[1]).await, token);
    far.release(&waiters[1]).await.unwrap();
    assert!(database.ask::<bool>(NOBODY_HOLDS).await);
}

/// The owner vouches from the last ask that was answered.
async fn vouched(server: String) {
    let mut database = Database::on(&server).await;
    let (near, far) = (database.driver().await, database.driver().await);
    let (holder, waiter) = (claim(LONG), claim(millis(20_000)).waiting());
    take(&near, &holder).await;
    listen(&far, &waiter).await;
    let mut asked = 0;
    for _ in 0..3 {
        asked = database.ask("SELECT lockkit_now()").await;
        assert_eq!(refused(&far, &waiter).await.asks_within(), Some(waiter.ttl()));
        let ends: i64 = database.ask("SELECT expires FROM lockkit_place").await;
        assert!(ends >= asked + 20_000_000, "{ends} {asked}");
    }
    near.release(&holder).await.unwrap();
    granted(&far, &waiter).await;
    let ends: i64 = database.ask("SELECT expires FROM lockkit_lock").await;
    assert!(ends >= asked + 20_000_000, "{ends} {asked}");
}

/// While the connection for news is down, asks keep no place. It comes to stand, and the old place is
/// handed the lock before the waiter has asked again.
async fn unkept(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let far = driver(&server.url_at(proxy.addr())).await;
    let near = driver(&server.url()).await;
    let mut database = Database::at(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    let (elsewhere, witness) = (named("elsewhere", LONG), named("elsewhere", LONG).fair());
    take(&near, &holder).await;
    take(&near, &elsewhere).await;
    listen(&far, &waiter).await;
    refused(&far, &witness).await;
    let (_, inbox) = listener(&mut database).await;
    let ends: i64 = database.ask("SELECT max(expires) FROM lockkit_place WHERE turn = 1").await;
    let hold = proxy.requests().hold("LISTEN");
    database.run(&format!("SELECT pg_terminate_backend(({LISTENER}), 10000)")).await;
    hold.caught().await;
    assert_eq!(refused(&far, &waiter).await.asks_within(), None);
    hold.go_on();
    assert_eq!(far.changed(&witness).await, Change::AskAgain);
    assert_eq!(database.listeners().await, 1);
    near.release(&holder).await.unwrap();
    let held =
        format!("SELECT owner = '{}' AND expires = {ends} FROM lockkit_lock", waiter.owner());
    assert!(database.ask::<bool>(&format!("{held} WHERE name <> 'elsewhere'")).await);
    // News that come after the grant show that it has arrived.
    database.run(&format!("NOTIFY {inbox}, E'lockkit\\nelsewhere\\nreleased'")).await;
    assert_eq!(far.changed(&witness).await, Change::Freed);
    assert_eq!(far.changed(&waiter).await, Change::AskAgain);
    take(&far, &waiter).await;
}

async fn only_listens(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, listener) = (claim(LONG), claim(LONG).listening());
    // Another one listens, so that news would arrive.
    let (elsewhere, other) = (named("elsewhere", LONG), named("elsewhere", LONG).waiting());
    take(&driver, &elsewhere).await;
    listen(&driver, &other).await;
    take(&driver, &holder).await;
    for _ in 0..3 {
        assert!(!refused(&driver, &listener).await.is_heard());
        assert_eq!(database.ask::<String>(PLACES).await, other.owner().to_string());
    }
    driver.release(&holder).await.unwrap();
    let free = "SELECT owner IS NULL FROM lockkit_lock WHERE name <> 'elsewhere'";
    assert!(database.ask::<bool>(free).await);
    driver.release(&elsewhere).await.unwrap();
    granted(&driver, &other).await;
    assert!(!has_news(&driver, &listener).await);
    take(&driver, &listener).await;
    assert_eq!(driver.release(&listener).await.unwrap(), Release::Freed);
}

async fn counted(server: String) {
    let database = Database::on(&server).await;
    let (one, other) = (database.driver().await, database.driver().await);
    let (holder, plain, fair) = (claim(LONG), claim(LONG).waiting(), claim(LONG).fair());
    take(&one, &holder).await;
    listen(&one, &plain).await;
    listen(&other, &fair).await;
    let inspection = other.inspect().unwrap();
    let looked = inspection.look(holder.name()).await.unwrap();
    let held = inspection.held(holder.name().namespace()).await.unwrap();
    for status in [&looked, &held[0]] {
        assert_eq!(status.waiters().iter().map(Waiter::owner).collect::<Vec<_>>(), [fair.owner()]);
        assert_eq!(status.listeners(), Some(2));
    }
}

async fn between(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter, witness) = (claim(LONG), claim(LONG).fair(), claim(LONG).waiting());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    refused(&driver, &witness).await;
    let (_, inbox) = listener(&mut database).await;
    {
        let mut looking = pin!(driver.changed(&waiter));
        assert!(poll!(&mut looking).is_pending());
    }
    driver.release(&holder).await.unwrap();
    // News that come after the grant show that it has arrived.
    database.run(&format!("NOTIFY {inbox}, E'lockkit\\n{NAME}\\nreleased'")).await;
    assert_eq!(driver.changed(&witness).await, Change::Freed);
    let mut looking = pin!(driver.changed(&waiter));
    assert!(matches!(poll!(&mut looking), Poll::Ready(Change::Granted(_))));
}

async fn early(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&server.url_at(proxy.addr())).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    let hold = proxy.requests().hold("LISTEN");
    refused(&driver, &waiter).await;
    hold.caught().await;
    // Nobody listens: this grant is told in vain.
    driver.release(&holder).await.unwrap();
    hold.go_on();
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    take(&driver, &waiter).await;
}

async fn shared(server: Server) {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let mut database = Database::on(&server.url()).await;
    let driver = driver(&format!("{}?connections=2", database.url)).await;
    let name = |number: usize| format!("{}", number % 100);
    let holders: Vec<_> = (0..100).map(|number| named(&name(number), HOUR)).collect();
    let waiters: Vec<_> = (0..1000).map(|number| named(&name(number), HOUR).fair()).collect();
    for holder in &holders {
        take(&driver, holder).await;
    }
    for waiter in &waiters {
        refused(&driver, waiter).await;
    }
    assert_eq!(driver.changed(&waiters[0]).await, Change::AskAgain);
    assert!(database.sessions().await <= 3);
    // They wait, and the holders are not kept from keeping and releasing.
    for holder in &holders {
        driver.renew(holder).await.unwrap();
        driver.release(holder).await.unwrap();
    }
    for waiter in &waiters {
        driver.release(waiter).await.unwrap();
    }
    assert!(database.sessions().await <= 3);
    assert_eq!(database.ask::<i64>("SELECT count(*) FROM lockkit_place").await, 0);
    assert_eq!(database.ask::<i64>("SELECT count(owner) FROM lockkit_lock").await, 0);
}

async fn cut(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let far = driver(&server.url_at(proxy.addr())).await;
    let near = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&near, &holder).await;
    listen(&far, &waiter).await;
    proxy.refuse().await;
    proxy.reset().await;
    near.release(&holder).await.unwrap();
    proxy.accept().await;
    assert_eq!(far.changed(&waiter).await, Change::AskAgain);
    // The connections for requests were cut as well.
    while far.try_acquire(&waiter).await.is_err() {}
    take(&far, &waiter).await;
}

/// A grant that is told so late that the waiter has been refused again in the meantime.
async fn stale(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let far = driver(&server.url_at(proxy.addr())).await;
    let near = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(millis(1000)).fair());
    take(&near, &holder).await;
    listen(&far, &waiter).await;
    let late = proxy.answers().hold("granted ");
    near.release(&holder).await.unwrap();
    late.caught().await;
    sleep(millis(1050)).await;
    // The grant has run out; somebody else has the lock when the waiter asks again.
    let successor = claim(LONG);
    take(&near, &successor).await;
    refused(&far, &waiter).await;
    late.go_on();
    // News that come after the late message.
    let mut database = Database::at(&server.url()).await;
    let (_, inbox) = listener(&mut database).await;
    database.run(&format!("NOTIFY {inbox}, E'lockkit\\n{NAME}\\nreleased'")).await;
    assert_eq!(far.changed(&waiter).await, Change::Freed);
    refused(&far, &waiter).await;
}

/// However much is told of others' locks.
async fn given_up(server: String) {
    let mut database = Database::on(&server).await;
    let driver = driver(&format!("{}?connections=2", database.url)).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    let (_, inbox) = listener(&mut database).await;
    driver.release(&waiter).await.unwrap();
    let listener: i32 = database.ask(LISTENER).await;
    let is_there = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {listener}");
    while database.ask::<i64>(&is_there).await > 0 {
        database.run(&format!("NOTIFY {inbox}, E'lockkit\\nother\\nreleased'")).await;
        sleep(millis(100)).await;
    }
    driver.release(&holder).await.unwrap();
}

/// Whose role may not connect any more, for news that is: the connections for requests stand.
async fn deaf(server: Server) {
    let mut database = Database::at(&server.url()).await;
    driver(&server.url()).await;
    database
        .run(
            "CREATE ROLE deaf LOGIN; GRANT SELECT ON lockkit_layout TO deaf; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON lockkit_lock, lockkit_place TO deaf",
        )
        .await;
    let far = driver(&database.url_of("deaf")).await;
    let (holder, plain, fair) = (claim(LONG), claim(LONG).waiting(), claim(LONG).fair());
    take(&far, &holder).await;
    listen(&far, &plain).await;
    let second = Duration::from_secs(1);
    assert!(refused(&far, &fair).await.remaining().unwrap() > second);
    database.run("ALTER ROLE deaf NOLOGIN").await;
    database.run(&format!("SELECT pg_terminate_backend(({LISTENER}), 10000)")).await;
    assert_eq!(far.changed(&plain).await, Change::AskAgain);
    // Which is once a second where nothing is said.
    assert_eq!(refused(&far, &plain).await.asks_within(), None);
    assert!(refused(&far, &fair).await.remaining().unwrap() <= second);
}
