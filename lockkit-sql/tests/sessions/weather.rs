//! Servers that die, administrators who end sessions, and a network that loses things.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{Attempt, Change, ErrorKind, Release, Renewal};
use lockkit_core::{Error, Locker};
use lockkit_sql::mysql::session::CAPABILITIES;
use lockkit_testkit::{POSTGRES, Proxy, Server, mariadb_or_mysql, trial};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::network::Network;
use crate::support::{
    Raw, claim, connect, driver, impatient_driver, kind, locker, millis, on_each, on_each_two,
    refused, release_in_the_end, renew_in_the_end, take, take_in_the_end,
};
use crate::sweeps::draw_a_sweep;

pub(crate) fn trials() -> Vec<Trial> {
    let row_locked = trial(
        &format!(
            "{}::a_hold_of_the_shortest_session_outlives_a_locked_row",
            mariadb_or_mysql().id()
        ),
        || mariadb_or_mysql().start(),
        row_locked,
    );
    let far_away = trial("postgres::a_server_far_away_can_be_used", || POSTGRES.start(), far_away);
    [
        on_each("a_restart_of_the_server_ends_all_holds", restarted),
        on_each("a_session_that_was_ended_is_found_out", ended),
        on_each("the_end_of_a_session_is_heard_of_long_before_a_renewal", heard_of),
        on_each("a_session_that_ended_while_it_was_idle_fails_no_ask", ended_while_idle),
        on_each("a_user_that_may_not_connect_any_more_is_denied", locked_out),
        on_each("a_cut_off_holder_is_freed_by_the_time_out", cut_off),
        on_each("a_reset_connection_frees_its_locks", reset),
        on_each("a_late_answer_to_an_ask_is_picked_up", late_ask),
        on_each("a_late_answer_to_a_release_is_picked_up", late_release),
        on_each("what_is_never_answered_ends_the_session", unanswered),
        on_each("a_stopped_holder_is_freed_and_learns_it", stopped),
        on_each("an_idle_session_is_kept_alive", idle),
        on_each("a_hold_outlives_a_crowd_of_asks", crowded),
        on_each("a_late_release_leaves_the_next_session_alone", stale),
        on_each("a_path_that_goes_silent_while_a_session_opens_is_left", silent),
        on_each("a_sweep_that_is_not_answered_holds_up_nobody", sweeping),
        on_each("a_server_that_takes_no_writes_is_asked_with_pauses", asked_with_pauses),
        on_each_two("a_holder_leaves_a_server_that_takes_no_writes", demoted_under_a_holder),
        on_each_two("who_may_write_anyway_leaves_it_too", demoted_under_an_administrator),
        on_each_two("who_asks_for_others_locks_leaves_it_too", demoted_under_refusals),
        on_each_two("an_ask_leaves_a_server_that_takes_no_writes", demoted_under_an_ask),
        on_each_two("a_waiter_leaves_a_server_that_takes_no_writes", demoted_under_a_waiter),
    ]
    .into_iter()
    .flatten()
    .chain([row_locked, far_away])
    .collect()
}

async fn restarted(server: Server) {
    let locker = locker(&server.url(), millis(3_000)).await;
    let lock = locker.lock("orders").unwrap();
    let guard = lock.acquire().await.unwrap();
    let first = guard.fencing_token();
    server.restart().unwrap();
    guard.lost().await;
    assert!(!guard.is_held());
    let next = lock.acquire().await.unwrap();
    assert!(next.fencing_token() > first, "tokens outlive the server");
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(next.is_held());
    next.release().await.unwrap();
}

async fn ended(server: Server) {
    let driver = driver(&server.url(), "ttl=30s").await;
    let (one, other) = (claim("one"), claim("other"));
    for claim in [&one, &other] {
        take(&*driver, claim).await;
    }
    Raw::to(&server).await.end_sessions().await;
    // Found out by the next request, and then known of every lock.
    assert_eq!(driver.renew(&one).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.changed(&other).await, Change::Lost);
    assert_eq!(driver.release(&other).await.unwrap(), Release::NotHeld);
    // What is lost is not taken again by itself, and what is asked for again is.
    assert_eq!(driver.renew(&one).await.unwrap(), Renewal::Lost);
    take(&*driver, &one).await;
    assert_ne!(driver.renew(&one).await.unwrap(), Renewal::Lost);
}

/// The server gives the lock to another at once.
async fn heard_of(server: Server) {
    let driver = driver(&server.url(), "ttl=60s").await;
    let claim = claim("orders");
    take(&*driver, &claim).await;
    Raw::to(&server).await.end_sessions().await;
    let change = timeout(millis(10_000), driver.changed(&claim)).await;
    assert_eq!(change, Ok(Change::Lost));
}

async fn ended_while_idle(server: Server) {
    let driver = driver(&server.url(), "ttl=30s").await;
    let (before, after) = (claim("orders"), claim("orders"));
    take(&*driver, &before).await;
    driver.release(&before).await.unwrap();
    let mut raw = Raw::to(&server).await;
    raw.end_sessions().await;
    while raw.sessions().await > 0 {}
    take(&*driver, &after).await;
}

async fn locked_out(server: Server) {
    let mut raw = Raw::to(&server).await;
    let (user, make, lock_out) = match raw {
        Raw::Postgres(_) => {
            ("postgres", "CREATE ROLE lowly LOGIN SUPERUSER", "ALTER ROLE lowly NOLOGIN")
        }
        Raw::Mysql(_) => (
            "root",
            "CREATE USER lowly@127.0.0.1; GRANT ALL ON shop.* TO lowly@127.0.0.1",
            "DROP USER lowly@127.0.0.1",
        ),
    };
    raw.run(make).await;
    let url = server.url().replace(&format!("//{user}@"), "//lowly@");
    let (driver, held) = (driver(&url, "").await, claim("orders"));
    take(&*driver, &held).await;
    raw.run(lock_out).await;
    let session = raw.session().await;
    raw.end_session(session).await;
    assert_eq!(driver.changed(&held).await, Change::Lost);
    let (kind, text) = kind(driver.try_acquire(&held).await);
    assert_eq!(kind, ErrorKind::Denied, "{text}");
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
}

async fn cut_off(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (far, near) = (
        locker(&server.url_at(proxy.addr()), millis(3_000)).await,
        driver(&server.url(), "").await,
    );
    let guard = far.lock("orders").unwrap().acquire().await.unwrap();
    proxy.requests().swallow();
    proxy.answers().swallow();
    let waiting = claim("orders");
    refused(&*near, &waiting).await;
    let next = take_in_the_end(&*near, &waiting).await;
    assert!(!guard.is_held(), "two believe that they hold the lock");
    assert!(Some(next) > guard.fencing_token());
    // The way back.
    proxy.requests().pass();
    proxy.answers().pass();
    near.release(&waiting).await.unwrap();
    far.lock("orders").unwrap().acquire().await.unwrap().release().await.unwrap();
}

/// The server does not know of it until the driver tells it, with the next session.
async fn reset(server: Server) {
    let network = Network::start(server.addr()).await;
    let far = driver(&server.url_at(network.addr), "ttl=1h").await;
    let near = driver(&server.url(), "").await;
    let (held, other) = (claim("orders"), claim("other"));
    take(&*far, &held).await;
    network.forget_clients().await;
    assert_eq!(far.renew(&held).await.unwrap(), Renewal::Lost);
    refused(&*near, &claim("orders")).await;
    take(&*far, &other).await;
    take(&*near, &claim("orders")).await;
}

async fn late_ask(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let driver = impatient_driver(&server.url_at(proxy.addr()), "ttl=1h&call_limit=200ms").await;
    let mut raw = Raw::to(&server).await;
    let (earlier, claim) = (claim("orders"), claim("orders"));
    take_in_the_end(&*driver, &earlier).await;
    let session = raw.session().await;
    release_in_the_end(&*driver, &earlier).await;
    let hold = proxy.requests().hold(claim.owner().to_string());
    assert_eq!(kind(driver.try_acquire(&claim).await).0, ErrorKind::Unknown);
    // Whoever asks meanwhile does not get in between.
    assert_eq!(kind(driver.try_acquire(&claim).await).0, ErrorKind::Unreachable);
    hold.go_on();
    let token = take_in_the_end(&*driver, &claim).await;
    let found = "SELECT token FROM lockkit_session";
    assert_eq!(raw.ask(found, found).await, i64::try_from(token.get()).unwrap());
    assert_eq!((raw.locks().await, raw.session().await), (1, session), "there was another session");
    assert_eq!(release_in_the_end(&*driver, &claim).await, Release::Freed);
    assert_eq!(raw.locks().await, 0);
}

async fn late_release(server: Server) {
    const NUMBER: &str = "1234605616436508552"; // 0x1122334455667788
    let proxy = Proxy::start(server.addr()).await;
    let url = server.url_at(proxy.addr());
    let driver = impatient_driver(&url, "ttl=1h&call_limit=200ms&keys=exact").await;
    let claim = claim(NUMBER);
    take_in_the_end(&*driver, &claim).await;
    let hold = match url.starts_with("postgres") {
        true => proxy.requests().hold([0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]),
        false => proxy.requests().hold(NUMBER),
    };
    assert_eq!(kind(driver.release(&claim).await).0, ErrorKind::Unknown);
    hold.go_on();
    let release = release_in_the_end(&*driver, &claim).await;
    assert_eq!(release, Release::Freed, "the answer that came late");
    assert_eq!(release_in_the_end(&*driver, &claim).await, Release::NotHeld);
    assert!(Raw::to(&server).await.takes(NUMBER).await);
}

async fn unanswered(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let url = server.url_at(proxy.addr());
    let driver = impatient_driver(&url, "ttl=3s&call_limit=200ms").await;
    let (held, asked, next) = (claim("held"), claim("asked"), claim("next"));
    take_in_the_end(&*driver, &held).await;
    let hold = proxy.requests().hold(asked.owner().to_string());
    assert_eq!(kind(driver.try_acquire(&asked).await).0, ErrorKind::Unknown);
    assert_eq!(driver.changed(&held).await, Change::Lost);
    // The next session has ended the first. What nobody waits for was not asked for again.
    take_in_the_end(&*driver, &next).await;
    let other = crate::support::driver(&server.url(), "").await;
    for name in ["held", "asked"] {
        take(&*other, &claim(name)).await;
    }
    for claim in [&held, &asked] {
        assert_eq!(renew_in_the_end(&*driver, claim).await, Renewal::Lost);
        assert_eq!(release_in_the_end(&*driver, claim).await, Release::NotHeld);
    }
    hold.go_on();
    assert_ne!(renew_in_the_end(&*driver, &next).await, Renewal::Lost);
}

/// Its runtime stands still for longer than the time-out, as that of a process that was stopped.
async fn stopped(server: Server) {
    let url = server.url();
    let (held, is_held) = tokio::sync::oneshot::channel();
    let (go_on, wait) = mpsc::channel();
    let holder = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locker = locker(&url, Duration::from_secs(3)).await;
            let lock = locker.lock("orders").unwrap();
            let guard = lock.acquire().await.unwrap();
            held.send(guard.fencing_token()).unwrap();
            wait.recv().unwrap();
            assert!(!guard.is_held());
            assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
            // It works again, at its turn.
            assert!(lock.try_acquire().await.unwrap().is_none());
            locker.shutdown().await;
        });
    });
    let first = is_held.await.unwrap();
    let other = driver(&server.url(), "").await;
    let claim = claim("orders");
    assert!(Some(take_in_the_end(&*other, &claim).await) > first);
    go_on.send(()).unwrap();
    tokio::task::spawn_blocking(move || holder.join().unwrap()).await.unwrap();
    assert_eq!(other.release(&claim).await.unwrap(), Release::Freed);
}

async fn idle(server: Server) {
    let driver = driver(&server.url(), "ttl=5s").await;
    let mut raw = Raw::to(&server).await;
    let held = claim("orders");
    take(&*driver, &held).await;
    let session = raw.session().await;
    // Longer than one heartbeat would do.
    tokio::time::sleep(millis(9_000)).await;
    assert_eq!(raw.session().await, session, "the session was ended");
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
}

/// They wait for the session that keeps the hold, more of them than it can serve in time.
async fn crowded(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let ttl = Duration::from_secs(5);
    // With a shorter limit to calls than follows from the TTL, so that more of them are too late.
    let url = server.url_at(proxy.addr());
    let driver = impatient_driver(&url, "ttl=5s&call_limit=600ms").await;
    let locker = Locker::builder_from_arc(driver).ttl(ttl).build().unwrap();
    let guard = locker.lock("orders").unwrap().acquire().await.unwrap();
    proxy.answers().delay(millis(5));
    let until = tokio::time::Instant::now() + 2 * ttl;
    let asks = (0..300).map(|number| {
        let lock = locker.lock(&format!("{number}")).unwrap();
        async move {
            while tokio::time::Instant::now() < until {
                // Some are too late.
                _ = lock.try_acquire().await;
            }
        }
    });
    join_all(asks).await;
    assert!(guard.is_held(), "the session never ended");
    proxy.answers().pass();
    guard.release().await.unwrap();
}

/// Asks wait for the row of another lock, which somebody keeps locked, on the session that holds.
async fn row_locked(server: Server) {
    let ttl = CAPABILITIES.min_ttl.as_millis();
    let driver = driver(&server.url(), &format!("ttl={ttl}ms")).await;
    let (held, stuck) = (claim("held"), claim("stuck"));
    take(&*driver, &stuck).await;
    assert_eq!(driver.release(&stuck).await.unwrap(), Release::Freed);
    take(&*driver, &held).await;
    let mut raw = Raw::to(&server).await;
    raw.run("BEGIN; SELECT token FROM lockkit_session WHERE name = 'stuck' FOR UPDATE").await;
    for _ in 0..3 {
        let (kind, text) = kind(driver.try_acquire(&stuck).await);
        assert_eq!(kind, ErrorKind::Unreachable, "{text}");
        assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    }
    raw.run("ROLLBACK").await;
    take(&*driver, &stuck).await;
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
}

async fn stale(server: Server) {
    let driver = driver(&server.url(), "").await;
    let (old, new) = (claim("orders"), claim("orders"));
    take(&*driver, &old).await;
    Raw::to(&server).await.end_sessions().await;
    assert_eq!(driver.renew(&old).await.unwrap(), Renewal::Lost);
    take(&*driver, &new).await;
    assert_eq!(driver.release(&old).await.unwrap(), Release::NotHeld);
    assert_eq!(driver.renew(&old).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(&new).await.unwrap(), Release::Freed);
}

/// The path lets the greeting through, and nothing more of that connection.
async fn silent(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let url = server.url_at(proxy.addr());
    let [bury, begin] = match url.starts_with("postgres") {
        true => ["pg_terminate_backend", "set_config('idle_session_timeout'"],
        false => ["SET @lockkit_session", "SET SESSION wait_timeout"],
    };
    let silence = proxy.requests().hold(begin);
    let error = connect(&url, "ttl=1h").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    silence.go_on();

    let driver = impatient_driver(&url, "ttl=1h&call_limit=500ms").await;
    for unanswered in [bury, begin] {
        let claim = claim("orders");
        take_in_the_end(&*driver, &claim).await;
        let silence = proxy.requests().hold(unanswered);
        proxy.reset().await;
        // Finds the session over, and opens another to make sure that the lock is free.
        assert_eq!(kind(driver.release(&claim).await).0, ErrorKind::Unknown);
        silence.caught().await;
        // Other connections are answered.
        assert_eq!(release_in_the_end(&*driver, &claim).await, Release::NotHeld);
        take_in_the_end(&*driver, &claim).await;
        assert_eq!(release_in_the_end(&*driver, &claim).await, Release::Freed);
    }
}

/// The way to it takes as long as to the other side of the earth.
async fn far_away(server: Server) {
    driver(&server.url(), "").await;
    let proxy = Proxy::start(server.addr()).await;
    proxy.answers().delay(millis(220));
    let far = driver(&server.url_at(proxy.addr()), "").await;
    let held = claim("orders");
    take(&*far, &held).await;
    assert_eq!(far.release(&held).await.unwrap(), Release::Freed);
}

async fn sweeping(server: Server) {
    // Makes the tables, in whose text the sweep's stands.
    driver(&server.url(), "").await;
    let proxy = Proxy::start(server.addr()).await;
    let url = server.url_at(proxy.addr());
    let sweep = match url.starts_with("postgres") {
        true => "SELECT lockkit_session_sweep",
        false => "DELETE FROM lockkit_session",
    };
    let unanswered = proxy.requests().hold(sweep);
    draw_a_sweep();
    let driver = connect(&url, "call_limit=10s").await.unwrap();
    unanswered.caught().await;
    let claim = claim("orders");
    take(&*driver, &claim).await;
    assert_ne!(driver.renew(&claim).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
}

/// Two servers that clients take for one: whoever connects comes to the first, and to the second
/// once the first was demoted, which keeps its connections.
struct Pair {
    old: Server,
    new: Server,
    proxy: Proxy,
    /// A session with the first that is older than those of drivers: PostgreSQL tells sessions of new
    /// settings from the newest on.
    witness: Mutex<Raw>,
}

impl Pair {
    async fn of([old, new]: [Server; 2]) -> Self {
        let proxy = Proxy::start(old.addr()).await;
        for server in [&old, &new] {
            // With the tables, as a replica has them.
            driver(&server.url(), "").await.close().await;
            let mut raw = Raw::to(server).await;
            let make = match raw {
                Raw::Postgres(_) => {
                    "CREATE ROLE lowly LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO lowly"
                }
                Raw::Mysql(_) => {
                    "CREATE USER lowly@127.0.0.1; GRANT ALL ON shop.* TO lowly@127.0.0.1"
                }
            };
            raw.run(make).await;
        }
        let witness = Mutex::new(Raw::to(&old).await);
        Self { old, new, proxy, witness }
    }

    fn url_of_an_administrator(&self) -> String {
        self.old.url_at(self.proxy.addr())
    }

    fn url(&self) -> String {
        let url = self.url_of_an_administrator();
        url.replace("//postgres@", "//lowly@").replace("//root@", "//lowly@")
    }

    async fn fail_over(&self) {
        self.proxy.switch_upstream(self.new.addr());
        demote(&mut Raw::to(&self.old).await).await;
        let mut witness = self.witness.lock().await;
        let is_told =
            "SELECT (current_setting('default_transaction_read_only') = 'on')::int::bigint";
        while witness.ask(is_told, "SELECT @@read_only").await == 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Only the new one, on which another program finds the lock taken, has given it to anybody.
    async fn is_held_on_the_new_one(&self, exact: &str) -> bool {
        !Raw::to(&self.new).await.takes(exact).await && Raw::to(&self.old).await.takes(exact).await
    }
}

async fn demote(raw: &mut Raw) {
    let statements: &[&str] = match raw {
        Raw::Postgres(_) => {
            &["ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"]
        }
        Raw::Mysql(_) => &["SET GLOBAL read_only = ON"],
    };
    for statement in statements {
        raw.run(statement).await;
    }
}

/// A server of PostgreSQL lets everybody in.
async fn asked_with_pauses(server: Server) {
    let driver = driver(&server.url(), "ttl=1h").await;
    demote(&mut Raw::to(&server).await).await;
    let mut names = 0..;
    let mut ask = async || {
        let name = names.next().unwrap_or(0_u32).to_string();
        driver.try_acquire(&claim(&name)).await
    };
    while ask().await.is_ok() {}
    let begun = Instant::now();
    for _ in 0..10 {
        assert_eq!(ask().await.unwrap_err().kind(), ErrorKind::Unreachable);
    }
    assert!(begun.elapsed() > millis(1_000), "{:?}", begun.elapsed());
}

async fn demoted_under_a_holder(servers: [Server; 2]) {
    let pair = Pair::of(servers).await;
    leaves(&pair, &pair.url()).await;
}

async fn demoted_under_an_administrator(servers: [Server; 2]) {
    let pair = Pair::of(servers).await;
    leaves(&pair, &pair.url_of_an_administrator()).await;
}

async fn leaves(pair: &Pair, url: &str) {
    const LOCK: &str = "42";
    let driver = driver(url, "ttl=1h&keys=exact").await;
    let (held, next) = (claim(LOCK), claim(LOCK));
    take(&*driver, &held).await;
    pair.fail_over().await;
    // A heartbeat finds it out: nothing else is asked for.
    assert_eq!(driver.changed(&held).await, Change::Lost);
    take(&*driver, &next).await;
    assert!(pair.is_held_on_the_new_one(LOCK).await);
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
    assert_eq!(driver.release(&next).await.unwrap(), Release::Freed);
}

/// Who is refused writes nothing, and is never idle.
async fn demoted_under_refusals(servers: [Server; 2]) {
    const HELD: &str = "42";
    const TAKEN: &str = "43";
    let pair = Pair::of(servers).await;
    let mut program = Raw::to(&pair.old).await;
    assert!(program.takes(TAKEN).await);
    let url = pair.url_of_an_administrator();
    let driver = driver(&url, "ttl=1h&keys=exact&waiting_sessions=0").await;
    let held = claim(HELD);
    take(&*driver, &held).await;
    pair.fail_over().await;
    let asking =
        async { while let Ok(Attempt::Taken(_)) = driver.try_acquire(&claim(TAKEN)).await {} };
    tokio::select! {
        change = driver.changed(&held) => assert_eq!(change, Change::Lost),
        () = asking => assert_eq!(driver.changed(&held).await, Change::Lost),
    }
}

/// Before any heartbeat: the session holds nothing, and is fresh for a quarter of an hour.
async fn demoted_under_an_ask(servers: [Server; 2]) {
    const LOCK: &str = "42";
    let pair = Pair::of(servers).await;
    let driver = driver(&pair.url(), "ttl=1h&keys=exact").await;
    let (before, after) = (claim(LOCK), claim(LOCK));
    take(&*driver, &before).await;
    assert_eq!(driver.release(&before).await.unwrap(), Release::Freed);
    pair.fail_over().await;
    take(&*driver, &after).await;
    assert!(pair.is_held_on_the_new_one(LOCK).await);
}

/// On the old server another program keeps the lock for ever.
async fn demoted_under_a_waiter(servers: [Server; 2]) {
    const LOCK: &str = "42";
    let pair = Pair::of(servers).await;
    let mut program = Raw::to(&pair.old).await;
    assert!(program.takes(LOCK).await);
    let driver = driver(&pair.url_of_an_administrator(), "ttl=10s&keys=exact").await;
    let locker = Locker::builder_from_arc(driver).ttl(millis(10_000)).build().unwrap();
    let lock = locker.lock(LOCK).unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await });
    program.until_waiting(1).await;
    pair.fail_over().await;
    let guard = waiting.await.unwrap().unwrap();
    assert!(!Raw::to(&pair.new).await.takes(LOCK).await);
    assert!(guard.is_held());
    guard.release().await.unwrap();
}
