//! Sessions that wait in the server's own queue.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::Namespace;
use lockkit_core::driver::{Attempt, Change, Claim, Driver, ErrorKind, Release, Renewal};
use lockkit_testkit::{POSTGRES, Proxy, Server, trial};

use crate::support::{
    Raw, claim, claim_in, driver, impatient_driver, kind, locker, millis, on_each, refused,
    release_in_the_end, renew_in_the_end, take, take_in_the_end,
};

pub(crate) fn trials() -> Vec<Trial> {
    let across = trial(
        "postgres::who_waits_without_a_session_hears_of_who_holds_in_another_namespace",
        || POSTGRES.start(),
        across,
    );
    let quiet = trial("postgres::a_wait_in_vain_leaves_no_warning", || POSTGRES.start(), quiet);
    [
        on_each("who_waits_is_handed_the_lock", handed),
        on_each("who_waits_hears_of_the_end_of_another_session", end_of_another),
        on_each("who_waits_no_more_is_in_nobodys_way", left),
        on_each("a_grant_that_nobody_hears_of_is_taken_back", unheard),
        on_each("who_is_forgotten_gives_up_its_session", forgotten),
        on_each("of_a_drivers_claims_the_last_that_asked_is_waited_for", last),
        on_each("asks_that_cross_a_grant_are_answered", crossing),
        on_each("sessions_that_wait_are_few_and_end_when_idle", few),
        on_each("a_waiting_session_that_ends_is_replaced", replaced),
        on_each("a_lock_that_was_waited_for_is_lost_with_its_session", lost),
        on_each("a_wait_is_broken_off_though_the_other_session_ended", broken_off),
        on_each("waiters_without_a_way_to_the_server_find_back", cut),
        on_each("an_answer_that_comes_late_to_a_waiter_is_picked_up", late),
        on_each("a_loss_is_no_news_to_who_was_refused_since", lost_and_refused),
        on_each("a_crowd_of_tasks_is_served", crowd),
    ]
    .into_iter()
    .flatten()
    .chain([across, quiet])
    .collect()
}

impl Raw {
    /// How many sessions wait for a lock.
    pub(crate) async fn waiting(&mut self) -> i64 {
        self.ask(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted",
            "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock'",
        )
        .await
    }

    pub(crate) async fn until_waiting(&mut self, count: i64) {
        while self.waiting().await != count {
            tokio::time::sleep(millis(1)).await;
        }
    }

    /// Which session waits, where at most one does.
    pub(crate) async fn session_that_waits(&mut self) -> Option<i64> {
        let session = self
            .ask(
                "SELECT COALESCE(max(pid), 0)::bigint FROM pg_locks \
                 WHERE locktype = 'advisory' AND NOT granted",
                "SELECT CAST(COALESCE(MAX(id), 0) AS SIGNED) \
                 FROM information_schema.processlist WHERE state = 'User lock'",
            )
            .await;
        (session != 0).then_some(session)
    }
}

async fn granted(driver: &dyn Driver, claim: &Claim) {
    match driver.changed(claim).await {
        Change::Granted(grant) => assert!(grant.fencing_token().is_some()),
        other => panic!("not granted: {other:?}"),
    }
}

async fn handed(server: Server) {
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let waiter = driver(&server.url(), "").await;
    // Once by a session that is to be opened, then by one that stands, also in the same driver.
    for waiter in [&waiter, &waiter, &holder] {
        let (held, waiting) = (claim("orders"), claim("orders").waiting());
        let first = take(&*holder, &held).await;
        refused(&**waiter, &waiting).await;
        raw.until_waiting(1).await;
        assert_eq!(holder.release(&held).await.unwrap(), Release::Freed);
        granted(&**waiter, &waiting).await;
        assert!(take(&**waiter, &waiting).await > first, "the same grant, and a later one");
        assert_ne!(waiter.renew(&waiting).await.unwrap(), Renewal::Lost);
        refused(&*holder, &claim("orders")).await;
        assert_eq!(waiter.release(&waiting).await.unwrap(), Release::Freed);
        assert_eq!((raw.locks().await, raw.waiting().await), (0, 0));
    }
}

async fn end_of_another(server: Server) {
    let waiter = driver(&server.url(), "keys=exact").await;
    let (mut raw, mut other) = (Raw::to(&server).await, Raw::to(&server).await);
    let waiting = claim("42").waiting();
    assert!(other.takes("42").await);
    refused(&*waiter, &waiting).await;
    raw.until_waiting(1).await;
    drop(other);
    granted(&*waiter, &waiting).await;
    assert!(!raw.takes("42").await);
}

async fn left(server: Server) {
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "ttl=1h").await);
    let waiter = driver(&server.url(), "ttl=1h").await;
    let held = claim("orders");
    for round in 0..20 {
        take(&*holder, &held).await;
        let waiting = claim("orders").waiting();
        refused(&*waiter, &waiting).await;
        // Before it waits, about when it begins to, and while it does.
        if round % 3 != 0 {
            tokio::time::sleep(millis(round)).await;
        }
        assert_eq!(waiter.release(&waiting).await.unwrap(), Release::NotHeld);
        assert_eq!(raw.waiting().await, 0, "it waits still");
        assert_eq!(holder.release(&held).await.unwrap(), Release::Freed);
    }
    assert_eq!(raw.locks().await, 0);
}

/// As by a process whose runtime goes on, and whose waiter is forgotten.
async fn unheard(server: Server) {
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let waiter = driver(&server.url(), "").await;
    let (held, next) = (claim("orders"), claim("orders"));
    let forgotten = claim("orders").waiting().with_ttl(Duration::from_secs(2));
    take(&*holder, &held).await;
    refused(&*waiter, &forgotten).await;
    raw.until_waiting(1).await;
    holder.release(&held).await.unwrap();
    take_in_the_end(&*holder, &next).await;
    assert_eq!(waiter.renew(&forgotten).await.unwrap(), Renewal::Lost);
    assert_eq!(waiter.release(&forgotten).await.unwrap(), Release::NotHeld);
}

/// As by a process whose runtime goes on: its one session that waits is for whoever comes next.
async fn forgotten(server: Server) {
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let waiter = driver(&server.url(), "ttl=5s&waiting_sessions=1").await;
    let (held, next) = (claim("orders"), claim("next"));
    let silent = claim("orders").waiting().with_ttl(Duration::from_secs(2));
    for held in [&held, &next] {
        take(&*holder, held).await;
    }
    refused(&*waiter, &silent).await;
    raw.until_waiting(1).await;
    let waiting = claim("next").waiting();
    loop {
        match waiter.try_acquire(&waiting).await.unwrap() {
            Attempt::Taken(taken) if taken.asks_within() == Some(Duration::MAX) => break,
            Attempt::Taken(_) => tokio::time::sleep(millis(50)).await,
            other => panic!("not refused: {other:?}"),
        }
    }
    holder.release(&next).await.unwrap();
    granted(&*waiter, &waiting).await;
    assert_eq!(waiter.release(&silent).await.unwrap(), Release::NotHeld);
    assert_eq!(waiter.release(&waiting).await.unwrap(), Release::Freed);
    assert_eq!(holder.release(&held).await.unwrap(), Release::Freed);
    assert_eq!((raw.locks().await, raw.waiting().await), (0, 0));
}

async fn last(server: Server) {
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let waiter = driver(&server.url(), "").await;
    let held = claim("orders");
    let [first, second, third] = [(); 3].map(|()| claim("orders").waiting());
    take(&*holder, &held).await;
    refused(&*waiter, &first).await;
    refused(&*waiter, &second).await;
    assert_eq!(waiter.changed(&first).await, Change::AskAgain);
    raw.until_waiting(1).await;
    holder.release(&held).await.unwrap();
    // It was granted to the second, which does not listen, and another one asks.
    while raw.waiting().await > 0 {
        tokio::time::sleep(millis(1)).await;
    }
    match waiter.try_acquire(&third).await.unwrap() {
        Attempt::Granted(_) => (),
        _ => granted(&*waiter, &third).await,
    }
    assert_ne!(waiter.renew(&third).await.unwrap(), Renewal::Lost);
    for claim in [&first, &second] {
        assert_eq!(waiter.release(claim).await.unwrap(), Release::NotHeld);
    }
    assert_eq!(waiter.release(&third).await.unwrap(), Release::Freed);
    assert_eq!(raw.locks().await, 0);
}

async fn crossing(server: Server) {
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let waiter = driver(&server.url(), "").await;
    for round in 0..100 {
        let (held, waiting) = (claim("orders"), claim("orders").waiting());
        take(&*holder, &held).await;
        refused(&*waiter, &waiting).await;
        let ask = async {
            tokio::time::sleep(Duration::from_micros(round * 20)).await;
            waiter.try_acquire(&waiting).await.unwrap()
        };
        let (answer, release) = tokio::join!(ask, holder.release(&held));
        assert_eq!(release.unwrap(), Release::Freed);
        if let Attempt::Taken(_) = answer {
            granted(&*waiter, &waiting).await;
        }
        refused(&*holder, &claim("orders")).await;
        assert_eq!(waiter.release(&waiting).await.unwrap(), Release::Freed, "in round {round}");
        assert_eq!((raw.locks().await, raw.waiting().await), (0, 0), "in round {round}");
    }
}

async fn few(server: Server) {
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let waiter = driver(&server.url(), "waiting_sessions=2").await;
    let before = raw.sessions().await;
    let names = ["a", "b", "c"];
    let held = names.map(claim);
    let waiting = names.map(|name| claim(name).waiting());
    for (held, waiting) in held.iter().zip(&waiting) {
        take(&*holder, held).await;
        refused(&*waiter, waiting).await;
    }
    raw.until_waiting(2).await;
    for (held, waiting) in held.iter().zip(&waiting) {
        holder.release(held).await.unwrap();
        take_in_the_end(&*waiter, waiting).await;
    }
    for waiting in &waiting {
        assert_eq!(waiter.release(waiting).await.unwrap(), Release::Freed);
    }
    while raw.sessions().await > before {
        tokio::time::sleep(millis(50)).await;
    }
    let none = driver(&server.url(), "waiting_sessions=0").await;
    let (held, waiting) = (claim("orders"), claim("orders").waiting());
    take(&*holder, &held).await;
    refused(&*none, &waiting).await;
    assert_eq!(raw.waiting().await, 0);
    holder.release(&held).await.unwrap();
    take(&*none, &waiting).await;
}

/// Nothing is unlocked that is not locked, however a wait ends; and all that is, also where a wait got
/// the lock and failed afterwards.
async fn quiet(server: Server) {
    let said = |what: &str| {
        let log = std::fs::read_to_string(server.data().parent().unwrap().join("log")).unwrap();
        log.lines().filter(|line| line.contains(what)).count()
    };
    let until_said = async |what: &str, times: usize| {
        while said(what) < times {
            tokio::time::sleep(millis(5)).await;
        }
    };
    let holder = driver(&server.url(), "keys=exact").await;
    let waiter = driver(&server.url(), "keys=exact&ttl=1s").await;
    let (mut raw, mut other) = (Raw::to(&server).await, Raw::to(&server).await);
    let (held, waiting) = (claim("42"), claim("42").waiting());
    take(&*holder, &held).await;
    refused(&*waiter, &waiting).await;
    let impatience = "canceling statement due to lock timeout";
    until_said(impatience, 4).await;
    assert_eq!(holder.release(&held).await.unwrap(), Release::Freed);
    granted(&*waiter, &waiting).await;
    assert_eq!(waiter.release(&waiting).await.unwrap(), Release::Freed);

    // It is locked twice by then.
    assert!(raw.takes("42").await);
    refused(&*waiter, &waiting).await;
    raw.until_waiting(1).await;
    other.run("BEGIN; SELECT FROM lockkit_session FOR UPDATE").await;
    let before = said(impatience);
    raw.gives_back("42").await;
    until_said(impatience, before + 2).await;
    other.run("COMMIT").await;
    granted(&*waiter, &waiting).await;
    assert_eq!(waiter.release(&waiting).await.unwrap(), Release::Freed);
    assert_eq!(raw.locks().await, 0);
    assert_eq!(said("don't own a lock"), 0);
}

/// By another process, by its own, and by the end of its own one's session.
async fn across(server: Server) {
    let mut raw = Raw::to(&server).await;
    let other = driver(&server.url(), "keys=exact").await;
    let waiter = driver(&server.url(), "keys=exact&waiting_sessions=0").await;
    let elsewhere = Namespace::new("elsewhere").unwrap();
    for (holder, ends) in [(&other, false), (&waiter, false), (&waiter, true)] {
        let (held, waiting) = (claim_in(&elsewhere, "42"), claim("42").waiting());
        take(&**holder, &held).await;
        refused(&*waiter, &waiting).await;
        // The first time it is told when news arrive.
        if Arc::ptr_eq(holder, &other) {
            assert_eq!(waiter.changed(&waiting).await, Change::AskAgain);
            refused(&*waiter, &waiting).await;
        }
        match ends {
            false => assert_eq!(holder.release(&held).await.unwrap(), Release::Freed),
            true => {
                let session = raw.session().await;
                raw.end_session(session).await;
            }
        }
        assert_eq!(waiter.changed(&waiting).await, Change::Freed);
        take(&*waiter, &waiting).await;
        assert_eq!(waiter.release(&waiting).await.unwrap(), Release::Freed);
    }
}

async fn replaced(server: Server) {
    let (mut raw, near) = (Raw::to(&server).await, locker(&server.url(), millis(10_000)).await);
    let lock = near.lock("42").unwrap();
    let held = lock.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    raw.until_waiting(1).await;
    // By itself: if the holder's ended first, this one would be ended with the lock.
    let ended = raw.session_that_waits().await.unwrap();
    raw.end_session(ended).await;
    while raw.session_that_waits().await.is_none_or(|session| session == ended) {
        tokio::time::sleep(millis(1)).await;
    }
    assert!(held.is_held());
    let holding = raw.session().await;
    raw.end_session(holding).await;
    held.lost().await;
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

async fn lost(server: Server) {
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "ttl=1h").await);
    let waiter = driver(&server.url(), "ttl=1h").await;
    let (held, waiting) = (claim("orders"), claim("orders").waiting());
    take(&*holder, &held).await;
    refused(&*waiter, &waiting).await;
    raw.until_waiting(1).await;
    let session = raw.session_that_waits().await.unwrap();
    holder.release(&held).await.unwrap();
    granted(&*waiter, &waiting).await;
    raw.end_session(session).await;
    assert_eq!(waiter.changed(&waiting).await, Change::Lost);
    assert_eq!(waiter.renew(&waiting).await.unwrap(), Renewal::Lost);
    take_in_the_end(&*holder, &held).await;
    refused(&*waiter, &waiting).await;
    assert_eq!(waiter.release(&waiting).await.unwrap(), Release::NotHeld);
    assert_eq!(holder.release(&held).await.unwrap(), Release::Freed);
    assert_eq!((raw.locks().await, raw.waiting().await), (0, 0));
}

/// By which it is to be broken off.
async fn broken_off(server: Server) {
    let (mut raw, mut other) = (Raw::to(&server).await, Raw::to(&server).await);
    assert!(other.takes("42").await);
    // Less than a wait lasts.
    let waiter = impatient_driver(&server.url(), "ttl=1h&keys=exact&call_limit=5s").await;
    let (earlier, waiting) = (claim("7"), claim("42").waiting());
    take(&*waiter, &earlier).await;
    let main = raw.session().await;
    assert_eq!(waiter.release(&earlier).await.unwrap(), Release::Freed);
    refused(&*waiter, &waiting).await;
    raw.until_waiting(1).await;
    raw.end_session(main).await;
    assert_eq!(waiter.release(&waiting).await.unwrap(), Release::NotHeld);
    assert_eq!(raw.waiting().await, 0, "it waits still");
    other.gives_back("42").await;
    take(&*waiter, &waiting).await;
}

async fn cut(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let far = impatient_driver(&server.url_at(proxy.addr()), "ttl=3s&call_limit=300ms").await;
    let (held, waiting) = (claim("orders"), claim("orders").waiting());
    take(&*holder, &held).await;
    while far.try_acquire(&waiting).await.is_err() {}
    raw.until_waiting(1).await;
    proxy.requests().swallow();
    proxy.answers().swallow();
    holder.release(&held).await.unwrap();
    // The server has given it to a session of which it hears nothing more.
    let next = claim("orders");
    take_in_the_end(&*holder, &next).await;
    proxy.requests().pass();
    proxy.answers().pass();
    holder.release(&next).await.unwrap();
    take_in_the_end(&*far, &waiting).await;
    assert_eq!(release_in_the_end(&*far, &waiting).await, Release::Freed);
}

/// An ask on the session that waits: whether it was carried out is open, until it is answered.
async fn late(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (mut raw, holder) = (Raw::to(&server).await, driver(&server.url(), "").await);
    let far = impatient_driver(&server.url_at(proxy.addr()), "ttl=1h&call_limit=300ms").await;
    for gives_up in [false, true] {
        let (held, waiting) = (claim("orders"), claim("orders").waiting());
        take(&*holder, &held).await;
        while far.try_acquire(&waiting).await.is_err() {}
        raw.until_waiting(1).await;
        let hold = proxy.requests().hold(waiting.owner().to_string());
        while kind(far.try_acquire(&waiting).await).0 != ErrorKind::Unknown {}
        holder.release(&held).await.unwrap();
        hold.go_on();
        match gives_up {
            false => {
                take_in_the_end(&*far, &waiting).await;
                assert_ne!(renew_in_the_end(&*far, &waiting).await, Renewal::Lost);
                assert_eq!(release_in_the_end(&*far, &waiting).await, Release::Freed);
            }
            true => drop(release_in_the_end(&*far, &waiting).await),
        }
        assert_eq!((raw.locks().await, raw.waiting().await), (0, 0));
    }
}

/// What a claim was granted without hearing of it was lost with the session.
async fn lost_and_refused(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let url = server.url_at(proxy.addr());
    let parameters = "ttl=1h&call_limit=200ms&waiting_sessions=0";
    let (mut raw, far) = (Raw::to(&server).await, impatient_driver(&url, parameters).await);
    let (earlier, waiting) = (claim("orders"), claim("orders").waiting());
    take_in_the_end(&*far, &earlier).await;
    release_in_the_end(&*far, &earlier).await;
    let hold = proxy.requests().hold(waiting.owner().to_string());
    assert_eq!(kind(far.try_acquire(&waiting).await).0, ErrorKind::Unknown);
    hold.go_on();
    raw.until_locked().await;
    // By then that answer has come.
    take_in_the_end(&*far, &claim("other")).await;
    raw.end_sessions().await;
    let near = driver(&server.url(), "").await;
    take_in_the_end(&*near, &claim("orders")).await;
    while !matches!(far.try_acquire(&waiting).await, Ok(Attempt::Taken(_))) {}
    tokio::select! {
        biased;
        change = far.changed(&waiting) => assert_ne!(change, Change::Lost),
        () = std::future::ready(()) => (),
    }
}

async fn crowd(server: Server) {
    let mut raw = Raw::to(&server).await;
    let lockers =
        [locker(&server.url(), millis(10_000)).await, locker(&server.url(), millis(10_000)).await];
    let inside = Arc::new(tokio::sync::Semaphore::new(1));
    let tasks = (0..60).map(|task| {
        let lock = lockers[task % 2].lock("orders").unwrap();
        let inside = inside.clone();
        tokio::spawn(async move {
            for _ in 0..5 {
                let guard = lock.acquire().await.unwrap();
                let alone = inside.try_acquire().expect("two are inside");
                tokio::task::yield_now().await;
                drop(alone);
                guard.release().await.unwrap();
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!((raw.locks().await, raw.waiting().await), (0, 0));
}
