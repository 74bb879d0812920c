//! What waiters hear, over which connections.

use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Claim, Driver};
use lockkit_core::{LockName, Namespace};
use lockkit_testkit::{Proxy, REDIS, Server, trial};
use tokio::time::sleep;

use crate::support::{LONG, NAME, Raw, claim, driver, listen, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_release_wakes_every_plain_waiter", || REDIS.start(), plain),
        trial("a_grant_between_two_looks_is_not_lost", || REDIS.start(), between),
        trial("an_ask_before_the_subscription_stands_is_repeated", || REDIS.start(), early),
        trial("waiters_share_one_connection_and_leave_it_empty", || REDIS.start(), shared),
        trial("a_cut_subscription_is_made_up_for", || REDIS.start(), cut),
        trial("a_stale_grant_is_not_believed", || REDIS.start(), stale),
        trial("without_the_right_to_listen_waiters_poll", || REDIS.start(), deaf),
    ]
}

fn channel() -> String {
    format!("{{lockkit:362}}:news:{NAME}")
}

async fn plain(server: Server) {
    let (one, other) = (driver(&server.url()).await, driver(&server.url()).await);
    let holder = claim(LONG);
    take(&one, &holder).await;
    let waiters = [claim(LONG).waiting(), claim(LONG).waiting()];
    listen(&other, &waiters[0]).await;
    refused(&other, &waiters[1]).await;
    one.release(&holder).await.unwrap();
    for waiter in &waiters {
        assert_eq!(other.changed(waiter).await, Change::AskAgain);
    }
    take(&other, &waiters[0]).await;
}

async fn between(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let (holder, waiter, witness) = (claim(LONG), claim(LONG).fair(), claim(LONG).waiting());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    refused(&driver, &witness).await;
    {
        let mut looking = std::pin::pin!(driver.changed(&waiter));
        assert!(futures_util::poll!(&mut looking).is_pending());
    }
    driver.release(&holder).await.unwrap();
    // News that come after the grant show that it has arrived.
    raw.ask::<()>(&["PUBLISH", &channel(), "released"]).await;
    assert_eq!(driver.changed(&witness).await, Change::AskAgain);
    let mut looking = std::pin::pin!(driver.changed(&waiter));
    assert!(matches!(
        futures_util::poll!(&mut looking),
        std::task::Poll::Ready(Change::Granted(_))
    ));
}

async fn early(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = driver(&server.url_at(proxy.addr())).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    let hold = proxy.requests().hold("SUBSCRIBE");
    refused(&driver, &waiter).await;
    hold.caught().await;
    // Nobody listens: this grant is published in vain.
    driver.release(&holder).await.unwrap();
    hold.go_on();
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    take(&driver, &waiter).await;
}

async fn shared(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let name =
        |number: usize| LockName::new(&Namespace::default(), &format!("{}", number % 100)).unwrap();
    let holders: Vec<_> = (0..100).map(|number| Claim::new(name(number), LONG)).collect();
    let waiters: Vec<_> = (0..300).map(|number| Claim::new(name(number), LONG).fair()).collect();
    for holder in &holders {
        take(&driver, holder).await;
    }
    for waiter in &waiters {
        refused(&driver, waiter).await;
    }
    for waiter in &waiters[..100] {
        assert_eq!(driver.changed(waiter).await, Change::AskAgain);
    }
    let channels: Vec<String> = raw.ask(&["PUBSUB", "CHANNELS"]).await;
    assert_eq!(channels.len(), 100);
    let clients: String = raw.ask(&["CLIENT", "LIST"]).await;
    assert_eq!(clients.lines().count(), 3, "one of them is ours:\n{clients}");

    for claim in waiters.iter().chain(&holders) {
        driver.release(claim).await.unwrap();
    }
    while !raw.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.is_empty() {
        sleep(millis(5)).await;
    }
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
    let mut raw = Raw::connect(&server.url()).await;
    raw.ask::<()>(&["PUBLISH", &channel(), "released"]).await;
    assert_eq!(far.changed(&waiter).await, Change::AskAgain);
    refused(&far, &waiter).await;
}

async fn deaf(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    let user = "ACL SETUSER deaf on >pw ~{lockkit:* resetchannels +evalsha +eval +time +pttl +exists \
                +hget +hmget +hset +del +pexpire +pexpireat +zadd +zrem +zrange +zrangebyscore +zscore \
                +publish +subscribe +unsubscribe";
    raw.ask::<()>(&user.split_whitespace().collect::<Vec<_>>()).await;
    let url = server.url().replace("redis://", "redis://deaf:pw@");
    let driver = driver(&url).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    driver.renew(&holder).await.unwrap();
    driver.release(&holder).await.unwrap();
    take(&driver, &waiter).await;
    driver.release(&waiter).await.unwrap();
}
