//! What waiters hear, over which connections.

use futures_util::FutureExt;
use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Claim, Driver};
use lockkit_core::{LockName, Namespace};
use lockkit_redis::RedisDriver;
use lockkit_testkit::{Proxy, REDIS, Server, trial};
use tokio::time::sleep;

use crate::support::{LONG, NAME, Raw, claim, driver, granted, listen, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_release_hands_the_lock_to_one_plain_waiter", || REDIS.start(), plain),
        trial("who_gives_up_what_it_was_handed_passes_it_on", || REDIS.start(), handed_on),
        trial("a_dead_waiter_is_handed_nothing", || REDIS.start(), dead),
        trial("a_process_that_died_is_passed_over", || REDIS.start(), passed_over),
        trial("a_waiter_that_was_passed_over_alive_is_served", || REDIS.start(), alive),
        trial("who_may_not_ask_who_listens_tells", || REDIS.start(), blind),
        trial("who_may_not_publish_hands_over_nothing", || REDIS.start(), silent),
        trial("who_has_it_after_all_leaves_no_place", || REDIS.start(), settled),
        trial("news_come_from_where_requests_go", || REDIS.start(), elsewhere),
        trial("who_is_only_told_is_told_one_at_a_time", || REDIS.start(), told),
        trial("who_was_overtaken_is_the_next_to_be_told", || REDIS.start(), overtaken),
        trial("who_was_told_and_gives_up_passes_it_on", || REDIS.start(), passed_on),
        trial("whoever_of_a_locker_listens_is_told", || REDIS.start(), together),
        trial("a_grant_between_two_looks_is_not_lost", || REDIS.start(), between),
        trial("an_ask_before_the_subscription_stands_is_repeated", || REDIS.start(), early),
        trial("waiters_share_one_connection_and_leave_it_empty", || REDIS.start(), shared),
        trial("a_cut_subscription_is_made_up_for", || REDIS.start(), cut),
        trial("a_stale_grant_is_not_believed", || REDIS.start(), stale),
        trial("without_the_right_to_listen_waiters_poll", || REDIS.start(), deaf),
    ]
}

async fn plain(server: Server) {
    let [near, one, other] = drivers(&server).await;
    let (holder, first, second) = (claim(LONG), claim(LONG).waiting(), claim(LONG).waiting());
    let mut token = take(&near, &holder).await;
    listen(&one, &first).await;
    listen(&other, &second).await;
    near.release(&holder).await.unwrap();
    for (driver, claim) in [(&one, &first), (&other, &second)] {
        let handed = granted(driver, claim).await;
        assert!(handed > token);
        // It has the lock without an ask, and keeps others out.
        refused(&near, &holder).await;
        assert_eq!(take(driver, claim).await, handed);
        token = handed;
        driver.release(claim).await.unwrap();
    }
    assert_eq!(Raw::connect(&server.url()).await.keys().await, Vec::<String>::new());
}

/// One who was handed the lock, and gives up without knowing.
async fn handed_on(server: Server) {
    let [near, one, other] = drivers(&server).await;
    let (holder, first, second) = (claim(LONG), claim(LONG).waiting(), claim(LONG).waiting());
    take(&near, &holder).await;
    listen(&one, &first).await;
    listen(&other, &second).await;
    near.release(&holder).await.unwrap();
    one.release(&first).await.unwrap();
    granted(&other, &second).await;
}

/// Who has not asked for a TTL is dead, and handed nothing.
async fn dead(server: Server) {
    let [near, one, other] = drivers(&server).await;
    let (holder, dead, living) = (claim(LONG), claim(millis(50)).waiting(), claim(LONG).waiting());
    take(&near, &holder).await;
    listen(&one, &dead).await;
    listen(&other, &living).await;
    sleep(millis(70)).await;
    near.release(&holder).await.unwrap();
    granted(&other, &living).await;
}

/// A process that is killed takes its connection for news along.
async fn passed_over(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    let [near, one, other] = drivers(&server).await;
    let (holder, dead, living) = (claim(LONG), claim(LONG).waiting(), claim(LONG).waiting());
    take(&near, &holder).await;
    listen(&one, &dead).await;
    drop(one);
    while !raw.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.is_empty() {}
    listen(&other, &living).await;
    near.release(&holder).await.unwrap();
    granted(&other, &living).await;

    // Where nobody else waits, the lock is free at once.
    refused(&near, &claim(LONG).waiting()).await;
    drop(near);
    while raw.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.len() > 1 {}
    other.release(&living).await.unwrap();
    take(&other, &claim(LONG)).await;
}

/// Whose connection for news is cut, not its process.
async fn alive(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (near, far) = (driver(&server.url()).await, driver(&server.url_at(proxy.addr())).await);
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&near, &holder).await;
    listen(&far, &waiter).await;
    proxy.refuse().await;
    proxy.reset().await;
    let mut raw = Raw::connect(&server.url()).await;
    while !raw.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.is_empty() {}
    near.release(&holder).await.unwrap();
    take(&near, &holder).await;
    proxy.accept().await;
    // It asks again, and is there for the next release, once its news come from where its requests go.
    while far.try_acquire(&waiter).await.is_err() {}
    while !newest_is_for_news(&mut raw).await {}
    is_served_again(&near, &holder, &far, &waiter).await;
}

/// Whoever waits is told to ask again, and handed the lock by the release after that.
async fn is_served_again(near: &RedisDriver, holder: &Claim, far: &RedisDriver, waiter: &Claim) {
    assert_eq!(far.changed(waiter).await, Change::AskAgain);
    refused(far, waiter).await;
    near.release(holder).await.unwrap();
    refused(near, &claim(LONG)).await;
    far.changed(waiter).await;
    take(far, waiter).await;
}

/// Whether the connection that was made last has subscribed to something.
async fn newest_is_for_news(raw: &mut Raw) -> bool {
    let clients: String = raw.ask(&["CLIENT", "LIST"]).await;
    let id =
        |client: &&str| client["id=".len()..].split(' ').next().unwrap().parse::<u64>().unwrap();
    let newest = clients.lines().max_by_key(id).unwrap();
    !newest.contains(" sub=0 ")
}

/// Without the right to ask who listens, a release tells the first to try.
async fn blind(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    let user = "ACL SETUSER blind on >pw ~* &* +@all -pubsub";
    raw.ask::<()>(&user.split_whitespace().collect::<Vec<_>>()).await;
    let near = driver(&server.url().replace("redis://", "redis://blind:pw@")).await;
    let one = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&near, &holder).await;
    listen(&one, &waiter).await;
    near.release(&holder).await.unwrap();
    assert_eq!(one.changed(&waiter).await, Change::AskAgain);
    take(&one, &waiter).await;
}

/// It would keep out everybody until the one who has it asks.
async fn silent(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    let user = "ACL SETUSER silent on >pw ~* resetchannels +@all";
    raw.ask::<()>(&user.split_whitespace().collect::<Vec<_>>()).await;
    let near = driver(&server.url().replace("redis://", "redis://silent:pw@")).await;
    let [one, other, _] = drivers(&server).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    take(&near, &holder).await;
    listen(&one, &waiter).await;
    near.release(&holder).await.unwrap();
    let next = claim(LONG);
    take(&other, &next).await;
    // Whom the release has tried to tell waits still, and for as long as it has asked for.
    let deadlines = format!("{{lockkit:362}}:deadlines:{NAME}");
    assert!(raw.ask::<i64>(&["PTTL", &deadlines]).await > 0);
    refused(&one, &waiter).await;
    other.release(&next).await.unwrap();
    granted(&one, &waiter).await;
}

/// A claim of a quorum that listens, and takes the lock again after it was lost.
async fn settled(server: Server) {
    let [near, one, other] = drivers(&server).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    let taking = claim(LONG);
    let listener = taking.clone().listening();
    take(&near, &holder).await;
    listen(&one, &listener).await;
    listen(&other, &waiter).await;
    Raw::connect(&server.url()).await.expire_lock().await;
    take(&one, &taking).await;
    one.release(&listener).await.unwrap();
    granted(&other, &waiter).await;
}

/// A name, or a proxy, behind which another server has taken over; the one from before lives on, and
/// so does the connection for news that leads there.
async fn elsewhere(before: Server) {
    let now = REDIS.start().unwrap();
    let proxy = Proxy::start(before.addr()).await;
    let (far, near) = (driver(&before.url_at(proxy.addr())).await, driver(&now.url()).await);
    let (holder, waiter) = (claim(LONG), claim(LONG).waiting());
    let there = driver(&before.url()).await;
    take(&there, &holder).await;
    take(&near, &holder).await;
    listen(&far, &waiter).await;
    proxy.switch_upstream(now.addr());
    let mut raw = Raw::connect(&before.url()).await;
    let killed: u64 = raw.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    assert_eq!(killed, 2, "of the one that waits, and of who holds");
    while far.try_acquire(&waiter).await.is_err() {}
    is_served_again(&near, &holder, &far, &waiter).await;
}

async fn told(server: Server) {
    let [near, one, other] = drivers(&server).await;
    let holder = claim(LONG);
    take(&near, &holder).await;
    let [first, second] = [claim(LONG).listening(), claim(LONG).listening()];
    listen(&one, &first).await;
    listen(&other, &second).await;
    near.release(&holder).await.unwrap();
    assert_eq!(one.changed(&first).await, Change::AskAgain);
    take(&near, &holder).await;
    // Nobody waits for the one who was told.
    near.release(&holder).await.unwrap();
    assert_eq!(other.changed(&second).await, Change::AskAgain);
    take(&one, &first).await;
    refused(&other, &second).await;
    one.release(&first).await.unwrap();
    assert_eq!(other.changed(&second).await, Change::AskAgain);
    take(&other, &second).await;
    other.release(&second).await.unwrap();
    assert_eq!(Raw::connect(&server.url()).await.keys().await, Vec::<String>::new());
}

/// One who was overtaken is the next to be told.
async fn overtaken(server: Server) {
    let [near, one, other] = drivers(&server).await;
    let (holder, first, second) = (claim(LONG), claim(LONG).listening(), claim(LONG).listening());
    take(&near, &holder).await;
    listen(&one, &first).await;
    listen(&other, &second).await;
    for _ in 0..3 {
        near.release(&holder).await.unwrap();
        assert_eq!(one.changed(&first).await, Change::AskAgain);
        take(&near, &holder).await;
        refused(&one, &first).await;
    }
    assert!(other.changed(&second).now_or_never().is_none());
}

/// One who was told, and gives up without having asked.
async fn passed_on(server: Server) {
    let [near, one, other] = drivers(&server).await;
    let (holder, first, second) = (claim(LONG), claim(LONG).listening(), claim(LONG).listening());
    take(&near, &holder).await;
    listen(&one, &first).await;
    listen(&other, &second).await;
    near.release(&holder).await.unwrap();
    one.release(&first).await.unwrap();
    assert_eq!(other.changed(&second).await, Change::AskAgain);
    take(&other, &second).await;
}

/// Of a locker's waiters another may be at the front than the one that the server tells.
async fn together(server: Server) {
    let (near, other) = (driver(&server.url()).await, driver(&server.url()).await);
    let (holder, first, second) = (claim(LONG), claim(LONG).listening(), claim(LONG).listening());
    take(&near, &holder).await;
    listen(&other, &first).await;
    refused(&other, &second).await;
    near.release(&holder).await.unwrap();
    assert_eq!(other.changed(&second).await, Change::AskAgain);
    take(&other, &second).await;
}

async fn drivers(server: &Server) -> [RedisDriver; 3] {
    let url = server.url();
    [driver(&url).await, driver(&url).await, driver(&url).await]
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
    raw.tell_all("something").await;
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
    assert_eq!(driver.changed(&waiters[0]).await, Change::AskAgain);
    let buckets: Vec<String> = raw.ask(&["KEYS", "*:bucket"]).await;
    while raw.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.len() < buckets.len() {}
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
    raw.tell_all("something").await;
    assert_eq!(far.changed(&waiter).await, Change::AskAgain);
    refused(&far, &waiter).await;
}

async fn deaf(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    let user = "ACL SETUSER deaf on >pw ~{lockkit:* resetchannels +evalsha +eval +time +pttl +exists \
                +hget +hmget +hset +del +pexpire +pexpireat +zadd +zrem +zrange +zrangebyscore +zscore \
                +zcard +publish +subscribe +unsubscribe";
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

    // Those in no order are passed over by whoever may ask who listens, and ask once a second in all.
    let near = self::driver(&server.url()).await;
    take(&near, &holder).await;
    let plain = [claim(LONG).waiting(), claim(LONG).waiting()];
    for waiter in &plain {
        refused(&driver, waiter).await;
    }
    near.release(&holder).await.unwrap();
    take(&near, &holder).await;
    for waiter in &plain {
        assert_eq!(refused(&driver, waiter).await.asks_within(), Some(millis(2000)));
    }
}
