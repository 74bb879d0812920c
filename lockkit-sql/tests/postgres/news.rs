//! What waiters hear, over which connections.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::Waiter;
use lockkit_core::driver::{Change, Claim, Driver, Release};
use lockkit_sql::postgres::PostgresDriver;
use lockkit_testkit::{POSTGRES, Proxy, Server, Unavailable, trial};
use sqlx::postgres::PgListener;
use tokio::time::sleep;

use crate::support::{Database, LONG, NAME, claim, driver, listen, millis, named, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("what_is_told_is_as_it_was", || POSTGRES.url(), told),
        trial("nothing_is_told_where_nobody_waits", || POSTGRES.url(), silence),
        trial("a_release_wakes_one_plain_waiter", || POSTGRES.url(), plain),
        trial("who_was_told_and_is_dead_holds_up_nobody", || POSTGRES.url(), dead),
        trial("a_process_is_told_and_not_one_of_its_waiters", || POSTGRES.url(), burst),
        trial("who_is_told_and_comes_too_late_is_told_next", || POSTGRES.url(), too_late),
        trial("who_was_told_and_gives_up_passes_it_on", || POSTGRES.url(), passing_on),
        trial("who_waits_in_no_order_is_counted", || POSTGRES.url(), counted),
        trial("a_grant_between_two_looks_is_not_lost", || POSTGRES.url(), between),
        trial("an_ask_before_the_subscription_stands_is_repeated", || POSTGRES.start(), early),
        trial("waiters_share_one_connection", without_durability, shared),
        trial("a_cut_subscription_is_made_up_for", || POSTGRES.start(), cut),
        trial("a_stale_grant_is_not_believed", || POSTGRES.start(), stale),
        trial("nobody_listens_where_nobody_waits_any_more", || POSTGRES.url(), given_up),
    ]
}

/// For a test that writes thousands of times.
fn without_durability() -> Result<Server, Unavailable> {
    POSTGRES.start_with(&["-c", "fsync=off"])
}

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
    let granted = format!("lockkit\n{NAME}\ngranted {} {next}", waiter.owner());
    assert_eq!(news.recv().await.unwrap().payload(), granted);
    let free = format!("lockkit\n{NAME}\nfree {}", plain.owner());
    assert_eq!(news.recv().await.unwrap().payload(), free);
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
    take(&driver, &waiter).await;
    driver.release(&waiter).await.unwrap();
    for claim in [claim(LONG), claim(LONG).waiting(), claim(LONG).fair()] {
        take(&driver, &claim).await;
        driver.release(&claim).await.unwrap();
    }
    database.run(&format!("NOTIFY {inbox}, 'the end'")).await;
    let free = format!("lockkit\n{NAME}\nfree {}", waiter.owner());
    assert_eq!(news.recv().await.unwrap().payload(), free);
    assert_eq!(news.recv().await.unwrap().payload(), "the end");
}

/// Of each place, in order of arrival, whether it is to be told or was.
const TURNS: &str = "SELECT string_agg(turn::text, ',' ORDER BY arrival) FROM lockkit_place";

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

async fn plain(server: String) {
    let mut database = Database::on(&server).await;
    let ([one, other], holder, waiters) = two_wait(&database).await;
    assert_eq!(database.ask::<String>(TURNS).await, "1,1");
    one.release(&holder).await.unwrap();
    assert_eq!(one.changed(&waiters[0]).await, Change::AskAgain);
    assert_eq!(database.ask::<String>(TURNS).await, "2,1");
    take(&one, &waiters[0]).await;
    assert_eq!(database.ask::<String>(TURNS).await, "1");
    one.release(&waiters[0]).await.unwrap();
    assert_eq!(other.changed(&waiters[1]).await, Change::AskAgain);
    take(&other, &waiters[1]).await;
    assert_eq!(database.ask::<i64>("SELECT count(*) FROM lockkit_place").await, 0);
}

async fn dead(server: String) {
    let mut database = Database::on(&server).await;
    let ([one, other], holder, waiters) = two_wait(&database).await;
    for turns in ["2,1", "2,2"] {
        one.release(&holder).await.unwrap();
        assert_eq!(database.ask::<String>(TURNS).await, turns);
        take(&one, &holder).await;
    }
    // The first never asks.
    assert_eq!(other.changed(&waiters[1]).await, Change::AskAgain);
}

/// Of one locker those who asked before the first of them had its turn have places, too.
async fn burst(server: String) {
    let mut database = Database::on(&server).await;
    let (near, far) = (database.driver().await, database.driver().await);
    let (holder, waiters) = (claim(LONG), [claim(LONG).waiting(), claim(LONG).waiting()]);
    take(&near, &holder).await;
    listen(&far, &waiters[0]).await;
    refused(&far, &waiters[1]).await;
    near.release(&holder).await.unwrap();
    assert_eq!(database.ask::<String>(TURNS).await, "2,1");
    // Whichever has the turn to listen.
    assert_eq!(far.changed(&waiters[1]).await, Change::AskAgain);
    assert_eq!(far.changed(&waiters[0]).await, Change::AskAgain);
    // An ask makes up for it.
    take(&near, &holder).await;
    refused(&far, &waiters[0]).await;
    refused(&far, &waiters[1]).await;
    let mut looking = pin!(far.changed(&waiters[0]));
    assert!(poll!(&mut looking).is_pending());
}

async fn too_late(server: String) {
    let mut database = Database::on(&server).await;
    let (near, far) = (database.driver().await, database.driver().await);
    let (holder, waiters) = (claim(LONG), [claim(LONG).waiting(), claim(LONG).waiting()]);
    take(&near, &holder).await;
    listen(&far, &waiters[0]).await;
    refused(&far, &waiters[1]).await;
    near.release(&holder).await.unwrap();
    // Whoever asks first gets it: none of the two is in order.
    take(&near, &holder).await;
    assert_eq!(far.changed(&waiters[0]).await, Change::AskAgain);
    refused(&far, &waiters[0]).await;
    assert_eq!(database.ask::<String>(TURNS).await, "1,1");
    near.release(&holder).await.unwrap();
    assert_eq!(far.changed(&waiters[0]).await, Change::AskAgain);
    take(&far, &waiters[0]).await;
}

async fn passing_on(server: String) {
    let database = Database::on(&server).await;
    let ([near, far], holder, waiters) = two_wait(&database).await;
    near.release(&holder).await.unwrap();
    assert_eq!(near.release(&waiters[0]).await.unwrap(), Release::NotHeld);
    assert_eq!(far.changed(&waiters[1]).await, Change::AskAgain);
    take(&far, &waiters[1]).await;
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
    let free = format!("lockkit\\n{NAME}\\nfree {}", witness.owner());
    database.run(&format!("SELECT pg_notify('{inbox}', E'{free}')")).await;
    assert_eq!(driver.changed(&witness).await, Change::AskAgain);
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
    let free = format!("lockkit\\n{NAME}\\nfree {}", waiter.owner());
    database.run(&format!("SELECT pg_notify('{inbox}', E'{free}')")).await;
    assert_eq!(far.changed(&waiter).await, Change::AskAgain);
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
    let listener = format!(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
            AND application_name = 'lockkit' AND query = 'LISTEN \"{inbox}\"'"
    );
    let listener: i32 = database.ask(&listener).await;
    let is_there = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {listener}");
    while database.ask::<i64>(&is_there).await > 0 {
        database.run(&format!("NOTIFY {inbox}, E'lockkit\\nother\\nreleased'")).await;
        sleep(millis(100)).await;
    }
    driver.release(&holder).await.unwrap();
}
