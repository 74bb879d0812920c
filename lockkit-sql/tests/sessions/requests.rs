//! How many statements it takes.

use std::time::Duration;

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{Claim, Driver, Release, Renewal};
use lockkit_testkit::{MARIADB, POSTGRES, Server, trial};
use tokio::time::{Instant, sleep};

use crate::support::{Raw, claim, driver, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(
            "postgres::an_acquisition_is_one_statement_and_a_release_another",
            || POSTGRES.start_with(&["-c", "log_statement=all"]),
            logged,
        ),
        trial(
            "mariadb::an_acquisition_is_one_statement_and_a_release_another",
            || MARIADB.start_with(&["--general-log=ON", "--log-output=TABLE"]),
            general_log,
        ),
        trial(
            "postgres::many_renewals_are_few_statements",
            || POSTGRES.start_with(&["-c", "log_statement=all"]),
            renewals_in_a_log,
        ),
        trial(
            "mariadb::many_renewals_are_few_statements",
            || MARIADB.start_with(&["--general-log=ON", "--log-output=TABLE"]),
            renewals_in_a_table,
        ),
    ]
}

const ROUNDS: usize = 20;

/// How many renewals, four in each millisecond where the machine is not busy.
const RENEWALS: u32 = 400;

async fn logged(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "ttl=1h").await);
    let claims: Vec<_> = (0..ROUNDS).map(|_| claim("orders")).collect();
    take(&*driver, &claims[0]).await;
    driver.release(&claims[0]).await.unwrap();
    let session = raw.session().await;
    let before = statements(&server, session).len();
    for claim in &claims {
        take(&*driver, claim).await;
        assert_eq!(driver.release(claim).await.unwrap(), Release::Freed);
    }
    let all = statements(&server, session);
    assert_eq!(all.len() - before, 2 * ROUNDS, "{:#?}", &all[before..]);
    let takes = all[before..].iter().filter(|line| line.contains("lockkit_session_take")).count();
    assert_eq!(takes, ROUNDS);
}

/// What PostgreSQL has logged of a session.
fn statements(server: &Server, session: i64) -> Vec<String> {
    let log = std::fs::read_to_string(server.data().parent().unwrap().join("log")).unwrap();
    let session = format!("[{session}]");
    log.lines()
        .filter(|line| line.contains("LOG:  execute") || line.contains("LOG:  statement"))
        .filter(|line| line.contains(&session))
        .map(str::to_owned)
        .collect()
}

async fn general_log(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "ttl=1h").await);
    let earlier = claim("orders");
    take(&*driver, &earlier).await;
    driver.release(&earlier).await.unwrap();
    let session = raw.session().await;
    let before = raw.ask("", &count(session)).await;
    for claim in (0..ROUNDS).map(|_| claim("orders")) {
        take(&*driver, &claim).await;
        assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    }
    let rounds = i64::try_from(ROUNDS).unwrap();
    assert_eq!(raw.ask("", &count(session)).await - before, 2 * rounds);
}

/// How many statements MariaDB was sent by a session.
fn count(session: i64) -> String {
    format!(
        "SELECT count(*) FROM mysql.general_log \
         WHERE command_type IN ('Execute', 'Query', 'Prepare') AND thread_id = {session}"
    )
}

async fn renewals_in_a_log(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "ttl=1h").await);
    let claims = hold_some(&*driver).await;
    let session = raw.session().await;
    let sent = async || i64::try_from(statements(&server, session).len()).unwrap();
    renewals_are_few(&*driver, &claims, sent).await;
}

async fn renewals_in_a_table(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "ttl=1h").await);
    let claims = hold_some(&*driver).await;
    let session = raw.session().await;
    renewals_are_few(&*driver, &claims, async || raw.ask("", &count(session)).await).await;
}

/// In the best of some rounds: those who come while nobody else does are answered before the next.
async fn renewals_are_few(
    driver: &dyn Driver,
    claims: &[Claim],
    mut sent: impl AsyncFnMut() -> i64,
) {
    let mut rounds = Vec::new();
    for _ in 0..3 {
        let before = sent().await;
        let most = renew(driver, claims).await;
        rounds.push((sent().await - before, most));
    }
    assert!(rounds.iter().all(|&(sent, _)| sent > 0), "{rounds:?}");
    assert!(rounds.iter().any(|&(sent, most)| sent < most), "{rounds:?}");
}

async fn hold_some(driver: &dyn Driver) -> Vec<Claim> {
    let claims: Vec<_> = (0..ROUNDS).map(|number| claim(&format!("orders/{number}"))).collect();
    for claim in &claims {
        take(driver, claim).await;
    }
    claims
}

/// Renews one after the other, and does not wait for the one before. Returns how many statements that
/// may take: an eighth, and where the machine is busy and they come later, two for each 20 ms more, within
/// which those who come share one.
async fn renew(driver: &dyn Driver, claims: &[Claim]) -> i64 {
    const PAUSE: Duration = Duration::from_micros(250);
    let start = Instant::now();
    let renewals = (0..RENEWALS).zip(claims.iter().cycle()).map(|(number, claim)| async move {
        sleep(PAUSE * number).await;
        assert_ne!(driver.renew(claim).await.unwrap(), Renewal::Lost);
    });
    join_all(renewals).await;
    let more = start.elapsed().saturating_sub(PAUSE * RENEWALS + Duration::from_millis(20));
    i64::from(RENEWALS / 8) + i64::try_from(more.as_millis() / 10).unwrap()
}
