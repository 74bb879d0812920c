//! Sessions that break while it is open whether they have the lock, and of which the server does not
//! know it.

use std::sync::Arc;

use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Claim, Driver, ErrorKind, Release};
use lockkit_testkit::{POSTGRES, Proxy, Server, trial};
use rustix::process::{Pid, Signal, kill_process};

use crate::network::Network;
use crate::support::{
    Raw, claim, driver, kind, millis, on_each, refused, release_in_the_end, take, take_in_the_end,
};

pub(crate) fn trials() -> Vec<Trial> {
    let undying = trial(
        "postgres::a_doubt_outlives_the_next_session_until_that_before_has_ended",
        || POSTGRES.start(),
        undying,
    );
    [
        on_each("a_doubt_about_an_ask_outlives_the_next_session", doubted),
        on_each("a_doubt_about_an_unlocking_outlives_its_session", not_given_back),
        on_each("a_doubt_about_a_release_outlives_its_session", release_broken),
        on_each("a_doubt_about_a_wait_outlives_its_session", wait_broken),
        on_each("a_doubt_about_a_wait_outlives_the_next_one", wait_begun_anew),
        on_each("a_doubt_about_a_wait_that_was_not_unlocked_outlives_its_session", wait_failed),
        on_each("a_doubt_about_a_waiters_ask_outlives_its_session", ask_of_a_waiter),
        on_each("a_release_that_is_repeated_for_a_doubt_says_what_it_said", repeated),
    ]
    .into_iter()
    .flatten()
    .chain([undying])
    .collect()
}

/// A key as another program sees it, and as it is sent.
const EXACT: &str = "1234605616436508552"; // 0x1122334455667788

fn sent(url: &str) -> &'static [u8] {
    match url.starts_with("postgres") {
        true => &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88],
        false => EXACT.as_bytes(),
    }
}

/// A driver behind a proxy, and that behind a network which can forget its clients.
struct Far {
    proxy: Proxy,
    network: Network,
    driver: Arc<dyn Driver>,
}

impl Far {
    async fn from(server: &Server, parameters: &str) -> Self {
        let proxy = Proxy::start(server.addr()).await;
        let network = Network::start(proxy.addr()).await;
        let driver = driver(&server.url_at(network.addr), parameters).await;
        Self { proxy, network, driver }
    }

    /// Breaks all connections, as the driver sees it, which can open no other.
    async fn is_cut_off(&mut self) {
        self.network.refuse().await;
        self.network.forget_clients().await;
    }

    /// Reaches the server again, where the release leaves none of its locks.
    async fn releases_for_good(&mut self, raw: &mut Raw, claim: &Claim) {
        self.network.accept().await;
        assert_eq!(release_in_the_end(&*self.driver, claim).await, Release::NotHeld);
        assert_eq!(raw.locks().await, 0, "it is locked still");
    }

    /// Has a session wait for the lock, and forgets it.
    async fn waits_and_is_cut_off(&mut self, raw: &mut Raw, waiting: &Claim) {
        refused(&*self.driver, waiting).await;
        raw.until_waiting(1).await;
        self.is_cut_off().await;
    }
}

async fn held_by_another(server: &Server) -> (Arc<dyn Driver>, Claim) {
    let (holder, held) = (driver(&server.url(), "").await, claim("orders"));
    take(&*holder, &held).await;
    (holder, held)
}

/// What was sent first was carried out, and the server does not know that its connection broke.
async fn doubted(server: Server) {
    let mut far = Far::from(&server, "ttl=1h").await;
    let (earlier, wanted) = (claim("orders"), claim("orders"));
    take(&*far.driver, &earlier).await;
    assert_eq!(far.driver.release(&earlier).await.unwrap(), Release::Freed);
    let mut raw = Raw::to(&server).await;
    far.proxy.answers().swallow();
    let asking = far.driver.clone();
    let breaking = async {
        raw.until_locked().await;
        far.is_cut_off().await;
    };
    let (answer, ()) = tokio::join!(asking.try_acquire(&wanted), breaking);
    let (kind, text) = kind(answer);
    assert_eq!(kind, ErrorKind::Unknown, "{text}");
    assert_eq!(raw.locks().await, 1, "it was not carried out");
    far.proxy.answers().pass();
    far.releases_for_good(&mut raw, &wanted).await;
}

/// The lock outlives its statement, which fails.
async fn not_given_back(server: Server) {
    let mut far = Far::from(&server, "ttl=1h&keys=exact").await;
    let (earlier, wanted) = (claim(EXACT), claim(EXACT));
    take(&*far.driver, &earlier).await;
    assert_eq!(far.driver.release(&earlier).await.unwrap(), Release::Freed);
    let mut raw = Raw::to(&server).await;
    let session = raw.session().await;
    raw.run("BEGIN; SELECT token FROM lockkit_session FOR UPDATE").await;
    let asking = far.driver.clone();
    let breaking = async {
        raw.until_locked().await;
        let unlocking = far.proxy.requests().hold(sent(&server.url()));
        raw.interrupt(session).await;
        unlocking.caught().await;
        far.is_cut_off().await;
        unlocking
    };
    let (answer, _unlocking) = tokio::join!(asking.try_acquire(&wanted), breaking);
    let (kind, text) = kind(answer);
    assert_eq!(kind, ErrorKind::Unknown, "{text}");
    raw.run("ROLLBACK").await;
    assert_eq!(raw.locks().await, 1, "it was given back");
    far.releases_for_good(&mut raw, &wanted).await;
}

async fn release_broken(server: Server) {
    let mut far = Far::from(&server, "ttl=1h&keys=exact").await;
    let (mut raw, held) = (Raw::to(&server).await, claim(EXACT));
    take(&*far.driver, &held).await;
    let request = far.proxy.requests().hold(sent(&server.url()));
    let releasing = far.driver.clone();
    let breaking = async {
        request.caught().await;
        far.is_cut_off().await;
    };
    let (answer, ()) = tokio::join!(releasing.release(&held), breaking);
    let (kind, text) = kind(answer);
    assert_eq!(kind, ErrorKind::Unknown, "{text}");
    assert_eq!(raw.locks().await, 1, "it was carried out");
    far.releases_for_good(&mut raw, &held).await;
}

/// The server goes on waiting for a session that is gone, and gives it the lock.
async fn wait_broken(server: Server) {
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "").await);
    for (hears_of_it, comes_after_the_grant) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let mut far = Far::from(&server, "ttl=1h").await;
        let (held, waiting) = (claim("orders"), claim("orders").waiting());
        take(&*holder, &held).await;
        far.waits_and_is_cut_off(&mut raw, &waiting).await;
        if hears_of_it {
            assert_eq!(far.driver.changed(&waiting).await, Change::AskAgain);
        }
        if comes_after_the_grant {
            assert_eq!(holder.release(&held).await.unwrap(), Release::Freed);
            raw.until_waiting(0).await;
        }
        far.network.accept().await;
        assert_eq!(release_in_the_end(&*far.driver, &waiting).await, Release::NotHeld);
        assert_eq!(raw.waiting().await, 0, "it waits still");
        if !comes_after_the_grant {
            assert_eq!(holder.release(&held).await.unwrap(), Release::Freed);
        }
        assert_eq!(raw.locks().await, 0, "it is locked still");
    }
}

/// Another session waits for the claim by the time that it is given up.
async fn wait_begun_anew(server: Server) {
    let (mut raw, mut far) = (Raw::to(&server).await, Far::from(&server, "ttl=1h").await);
    let (holder, held) = held_by_another(&server).await;
    let waiting = claim("orders").waiting();
    far.waits_and_is_cut_off(&mut raw, &waiting).await;
    assert_eq!(far.driver.changed(&waiting).await, Change::AskAgain);
    far.network.accept().await;
    refused(&*far.driver, &waiting).await;
    assert_eq!(far.driver.release(&waiting).await.unwrap(), Release::NotHeld);
    assert_eq!(raw.waiting().await, 0, "one of them waits still");
    assert_eq!(holder.release(&held).await.unwrap(), Release::Freed);
    assert_eq!(raw.locks().await, 0, "it is locked still");
}

/// After it got the lock. On PostgreSQL the unlocking is not carried out; on MySQL and MariaDB the
/// second attempt to write the row, which is made before that.
async fn wait_failed(server: Server) {
    let mut far = Far::from(&server, "ttl=1h&keys=exact").await;
    let (earlier, waiting) = (claim(EXACT), claim(EXACT).waiting());
    // Writes the row.
    take(&*far.driver, &earlier).await;
    assert_eq!(far.driver.release(&earlier).await.unwrap(), Release::Freed);
    let (mut raw, mut other) = (Raw::to(&server).await, Raw::to(&server).await);
    assert!(other.takes(EXACT).await);
    refused(&*far.driver, &waiting).await;
    raw.until_waiting(1).await;
    let session = raw.session_that_waits().await.unwrap();
    other.run("BEGIN; SELECT token FROM lockkit_session FOR UPDATE").await;
    other.gives_back(EXACT).await;
    raw.until_waiting(0).await;
    raw.until_locked().await;
    let unlocking = far.proxy.requests().hold(sent(&server.url()));
    raw.interrupt(session).await;
    unlocking.caught().await;
    far.is_cut_off().await;
    other.run("ROLLBACK").await;
    assert_eq!(far.driver.changed(&waiting).await, Change::AskAgain);
    assert_eq!(raw.locks().await, 1, "it was given back");
    far.releases_for_good(&mut raw, &waiting).await;
}

/// On the session that waits, which is found to have ended when the claim asks once more.
async fn ask_of_a_waiter(server: Server) {
    let (mut raw, mut far) = (Raw::to(&server).await, Far::from(&server, "ttl=1h").await);
    let (holder, held) = held_by_another(&server).await;
    let waiting = claim("orders").waiting();
    refused(&*far.driver, &waiting).await;
    raw.until_waiting(1).await;
    let request = far.proxy.requests().hold(waiting.owner().to_string());
    let asking = far.driver.clone();
    let breaking = async {
        request.caught().await;
        assert_eq!(holder.release(&held).await.unwrap(), Release::Freed);
        far.proxy.answers().swallow();
        request.go_on();
        raw.until_locked().await;
        far.is_cut_off().await;
    };
    let (answer, ()) = tokio::join!(asking.try_acquire(&waiting), breaking);
    assert_eq!(kind(answer).0, ErrorKind::Unknown);
    assert!(far.driver.try_acquire(&waiting).await.is_err());
    assert_eq!(raw.locks().await, 1, "it was not carried out");
    far.proxy.answers().pass();
    far.releases_for_good(&mut raw, &waiting).await;
}

/// What the claim held is free at once, and what it may hold elsewhere once the server is reached.
async fn repeated(server: Server) {
    let (mut raw, mut far) = (Raw::to(&server).await, Far::from(&server, "ttl=1h").await);
    let (holder, held) = held_by_another(&server).await;
    let waiting = claim("orders").waiting();
    far.waits_and_is_cut_off(&mut raw, &waiting).await;
    assert_eq!(far.driver.changed(&waiting).await, Change::AskAgain);
    // Else it would have the lock first.
    let forgotten = raw.session_that_waits().await.unwrap();
    raw.end_session(forgotten).await;
    far.network.accept().await;
    refused(&*far.driver, &waiting).await;
    assert_eq!(holder.release(&held).await.unwrap(), Release::Freed);
    take_in_the_end(&*far.driver, &waiting).await;
    far.network.refuse().await;
    let first = far.driver.release(&waiting).await;
    assert_eq!(raw.locks().await, 0, "it is locked still");
    far.network.accept().await;
    let release = match first {
        Ok(release) => release,
        Err(_) => release_in_the_end(&*far.driver, &waiting).await,
    };
    assert_eq!(release, Release::Freed);
    assert_eq!(far.driver.release(&waiting).await.unwrap(), Release::NotHeld);
}

/// A process of the server's that was stopped ends when it goes on.
async fn undying(server: Server) {
    struct Stopped(Pid);
    impl Drop for Stopped {
        fn drop(&mut self) {
            kill_process(self.0, Signal::CONT).unwrap();
        }
    }
    let far = Far::from(&server, "ttl=1h").await;
    let (mut raw, earlier, wanted) = (Raw::to(&server).await, claim("orders"), claim("orders"));
    take(&*far.driver, &earlier).await;
    assert_eq!(far.driver.release(&earlier).await.unwrap(), Release::Freed);
    let session = i32::try_from(raw.session().await).unwrap();
    let session = Pid::from_raw(session).unwrap();
    far.proxy.answers().block();
    let breaking = async {
        raw.until_locked().await;
        // Stopped earlier, it may keep others from writing.
        while raw.transactions().await > 0 {
            tokio::time::sleep(millis(1)).await;
        }
        kill_process(session, Signal::STOP).unwrap();
        let stopped = Stopped(session);
        far.network.forget_clients().await;
        far.proxy.answers().unblock();
        stopped
    };
    // The next session would find it taken: by the one before.
    let (answer, stopped) = tokio::join!(far.driver.try_acquire(&wanted), breaking);
    assert_eq!(kind(answer).0, ErrorKind::Unknown);
    take(&*far.driver, &claim("other")).await;
    assert_eq!(kind(far.driver.release(&wanted).await).0, ErrorKind::Unknown);
    assert_eq!(raw.locks().await, 2);
    drop(stopped);
    assert_eq!(release_in_the_end(&*far.driver, &wanted).await, Release::NotHeld);
    assert_eq!(raw.locks().await, 1, "that of the other claim");
}
