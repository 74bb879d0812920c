//! What `docs/choosing.md` shows, run against a real Redis.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::process::ExitCode;

use libtest_mimic::Trial;
use lockkit::redis::gate::redis::aio::MultiplexedConnection;
use lockkit::redis::gate::redis::{AsyncConnectionConfig, Client, FromRedisValue, InfoDict, cmd};
use lockkit_testkit::{REDIS, Server, trial};

// The page shows these files as they are.
mod locked {
    include!("locked.rs");

    pub(crate) async fn buy(lock: Lock, mut redis: MultiplexedConnection) -> bool {
        sell(&lock, &mut redis).await.unwrap()
    }
}
mod scripted {
    include!("scripted.rs");

    pub(crate) async fn buy(_: lockkit::Lock, mut redis: MultiplexedConnection) -> bool {
        sell(&mut redis).await.unwrap()
    }
}

const PIECES: u64 = 40;
const BUYERS: usize = 8;

fn main() -> ExitCode {
    lockkit_testkit::run(vec![
        Trial::test("the_page_shows_what_is_run", || {
            shown();
            Ok(())
        }),
        trial(
            "a_stock_is_sold_once_under_a_lock",
            || REDIS.start(),
            |server| async move {
                let requests = sold(&server, locked::buy).await;
                assert!(requests >= 4 * PIECES, "four each, beside a reading: {requests}");
            },
        ),
        trial(
            "a_stock_is_sold_once_by_a_script",
            || REDIS.start(),
            |server| async move {
                let requests = sold(&server, scripted::buy).await;
                // Each buyer learns in the end that nothing is left.
                assert!(
                    requests <= PIECES + u64::try_from(BUYERS).unwrap() * 2,
                    "one each: {requests}"
                );
            },
        ),
    ])
}

/// Has several buy until nothing is left, and says how many scripts that took. Each piece is sold
/// once.
async fn sold<F>(server: &Server, buy: fn(lockkit::Lock, MultiplexedConnection) -> F) -> u64
where
    F: Future<Output = bool> + Send + 'static,
{
    let mut redis = connect(server).await;
    ask::<()>(&mut redis, &["SET", "{shoes}:pieces", &PIECES.to_string()]).await;
    ask::<()>(&mut redis, &["CONFIG", "RESETSTAT"]).await;
    let mut buyers = Vec::new();
    for _ in 0..BUYERS {
        let locker = lockkit::connect(&server.url()).await.unwrap();
        let redis = connect(server).await;
        buyers.push(tokio::spawn(async move {
            let mut bought = 0;
            while buy(locker.lock("shoes").unwrap(), redis.clone()).await {
                bought += 1;
            }
            bought
        }));
    }
    let mut bought = 0;
    for buyer in buyers {
        bought += buyer.await.unwrap();
    }
    assert_eq!(bought, PIECES);
    assert_eq!(ask::<u64>(&mut redis, &["GET", "{shoes}:pieces"]).await, 0);
    let commands: InfoDict = ask(&mut redis, &["INFO", "commandstats"]).await;
    let calls = |command: &str| -> u64 {
        let line: Option<String> = commands.get(&format!("cmdstat_{command}"));
        line.map_or(0, |line| line.split(['=', ',']).nth(1).unwrap().parse().unwrap())
    };
    calls("evalsha")
}

/// Without limits: a machine under load is not to be taken for a server that does not answer.
async fn connect(server: &Server) -> MultiplexedConnection {
    let patient =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let client = Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
}

async fn ask<T: FromRedisValue>(redis: &mut MultiplexedConnection, words: &[&str]) -> T {
    cmd(words[0]).arg(&words[1..]).query_async(redis).await.unwrap()
}

fn shown() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/choosing.md");
    let page = std::fs::read_to_string(page).unwrap();
    let shown: Vec<_> = page
        .split("```")
        .filter_map(|block| Some(block.strip_prefix("rust")?.split_once('\n')?.1))
        .collect();
    assert_eq!(shown, [include_str!("scripted.rs"), include_str!("locked.rs")]);
}
