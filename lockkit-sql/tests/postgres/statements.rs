//! What is sent, as the server counts it.

use libtest_mimic::Trial;
use lockkit_core::Locker;
use lockkit_testkit::{POSTGRES, Server, trial};

use crate::support::{Database, NAME, driver};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("a_pair_is_two_statements", || POSTGRES.start(), pair)]
}

async fn pair(server: Server) {
    const PAIRS: i64 = 20;
    let mut database = Database::at(&server.url()).await;
    let there = "SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_stat_statements'";
    if database.ask::<i64>(there).await == 0 {
        // Some systems have it in a package of its own. The server's log is looked at elsewhere.
        return;
    }
    database.run("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'").await;
    server.restart().unwrap();
    let mut database = Database::at(&server.url()).await;
    database.run("CREATE EXTENSION pg_stat_statements").await;

    let locker = Locker::new(driver(&server.url()).await);
    let lock = locker.lock(NAME).unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    database.run("SELECT pg_stat_statements_reset()").await;
    for _ in 0..PAIRS {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    // Each statement that is sent, and how often: nothing else, neither BEGIN nor a ping.
    let sent = "SELECT string_agg(calls || ' ' || substring(query FROM 'lockkit_\\w+'), ', ' \
                                  ORDER BY query DESC) \
                  FROM pg_stat_statements WHERE query !~ 'pg_stat_statements'";
    let expected = format!("{PAIRS} lockkit_release, {PAIRS} lockkit_take");
    assert_eq!(database.ask::<String>(sent).await, expected);
    let all = "SELECT sum(calls)::bigint FROM pg_stat_statements \
                WHERE query !~ 'pg_stat_statements'";
    assert_eq!(database.ask::<i64>(all).await, 2 * PAIRS);
    locker.shutdown().await;
}
