//! How many statements it takes.

use libtest_mimic::Trial;
use lockkit_core::driver::Release;
use lockkit_testkit::{MARIADB, POSTGRES, Server, trial};

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
    ]
}

const ROUNDS: usize = 20;

async fn logged(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "ttl=1h").await);
    let claims: Vec<_> = (0..ROUNDS).map(|_| claim("orders")).collect();
    take(&*driver, &claims[0]).await;
    driver.release(&claims[0]).await.unwrap();
    let session = format!("[{}]", raw.session().await);
    let log = server.data().parent().unwrap().join("log");
    let statements = || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines()
            .filter(|line| line.contains("LOG:  execute") || line.contains("LOG:  statement"))
            .filter(|line| line.contains(&session))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let before = statements().len();
    for claim in &claims {
        take(&*driver, claim).await;
        assert_eq!(driver.release(claim).await.unwrap(), Release::Freed);
    }
    let all = statements();
    assert_eq!(all.len() - before, 2 * ROUNDS, "{:#?}", &all[before..]);
    let takes = all[before..].iter().filter(|line| line.contains("lockkit_session_take")).count();
    assert_eq!(takes, ROUNDS);
}

async fn general_log(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "ttl=1h").await);
    let earlier = claim("orders");
    take(&*driver, &earlier).await;
    driver.release(&earlier).await.unwrap();
    let count = format!(
        "SELECT count(*) FROM mysql.general_log \
         WHERE command_type IN ('Execute', 'Query', 'Prepare') AND thread_id = {}",
        raw.session().await
    );
    let before = raw.ask("", &count).await;
    for claim in (0..ROUNDS).map(|_| claim("orders")) {
        take(&*driver, &claim).await;
        assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    }
    let rounds = i64::try_from(ROUNDS).unwrap();
    assert_eq!(raw.ask("", &count).await - before, 2 * rounds);
}
