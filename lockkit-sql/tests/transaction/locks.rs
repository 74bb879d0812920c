//! What a lock in a transaction keeps out, and what ends it.

use std::time::Instant;

use libtest_mimic::Trial;
use lockkit_core::{LockName, Namespace, Wait};
use lockkit_sql::transaction::{Error, create_tables, row_lock};
use lockkit_testkit::{Backend, MARIADB, MYSQL, trial};
use sqlx::{Acquire as _, MySql, Postgres};

use crate::support::{Home, Row, Shop, Tested, Way, Xact, millis, name, with};

pub(crate) fn trials() -> Vec<Trial> {
    let all = [of::<Postgres, Row>(), of::<Postgres, Xact>(), of::<MySql, Row>()];
    let own = [
        on_each_mysql("tables_of_a_strict_session_lock", strict),
        on_each_mysql("an_interrupted_wait_leaves_the_settings_as_they_were", interrupted),
    ];
    all.into_iter().flatten().chain(own.into_iter().flatten()).collect()
}

fn of<DB: Tested, W: Way<DB>>() -> Vec<Trial> {
    vec![
        with::<DB, W, _>("others_wait_for_the_commit", waits::<DB, W>),
        with::<DB, W, _>("a_refused_try_leaves_the_transaction_usable", tries::<DB, W>),
        with::<DB, W, _>("a_time_out_leaves_the_transaction_usable", times_out::<DB, W>),
        with::<DB, W, _>("a_wait_ends_in_time_with_the_lock", in_time::<DB, W>),
        with::<DB, W, _>("a_rollback_frees", rolls_back::<DB, W>),
        with::<DB, W, _>("a_dropped_transaction_frees", drops::<DB, W>),
        with::<DB, W, _>("rolling_back_to_a_savepoint_frees", savepoint::<DB, W>),
        with::<DB, W, _>("a_transaction_gets_in_what_it_has", again::<DB, W>),
        with::<DB, W, _>("waiters_are_served_in_order", order::<DB, W>),
        with::<DB, W, _>("names_are_apart", apart::<DB, W>),
        with::<DB, W, _>("settings_of_the_session_do_not_matter", settings::<DB, W>),
        with::<DB, W, _>("a_database_without_the_tables_is_said", no_tables::<DB, W>),
    ]
}

async fn waits<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    let lock = name("a");
    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &lock, Wait::Forever).await.unwrap();
    let second = tokio::spawn({
        let (pool, lock) = (pool.clone(), lock.clone());
        async move {
            let mut second = pool.begin().await.unwrap();
            W::lock(&mut second, &lock, Wait::Forever).await.unwrap();
            DB::ask(&mut second, "SELECT pieces FROM stock WHERE id = 1").await.unwrap()
        }
    });
    shop.waiters_are(1).await;
    DB::execute(&mut first, "UPDATE stock SET pieces = 7 WHERE id = 1").await.unwrap();
    assert_eq!(shop.pieces().await, 1000);
    first.commit().await.unwrap();
    // The lock and its effects came at once. (The first snapshot is taken within the lock, but by
    // PostgreSQL above READ COMMITTED: see `snapshots`.)
    assert_eq!(second.await.unwrap(), 7);
}

async fn tries<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    let (lock, other) = (name("a"), name("b"));
    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &lock, Wait::No).await.unwrap();
    for is_new in [true, false] {
        let mut second = pool.begin().await.unwrap();
        DB::execute(&mut second, "UPDATE stock SET pieces = pieces - 1 WHERE id = 1")
            .await
            .unwrap();
        let error = W::lock(&mut second, &lock, Wait::No).await.unwrap_err();
        assert!(matches!(&error, Error::Taken { name, .. } if *name == lock), "{error:?}");
        assert!(error.to_string().starts_with("lock `a` is taken ("), "{error}");
        DB::execute(&mut second, "UPDATE stock SET pieces = pieces - 1 WHERE id = 2")
            .await
            .unwrap();
        W::lock(&mut second, &other, Wait::No).await.unwrap();
        second.commit().await.unwrap();
        // Both what came before and what came after.
        let sum = 1998 - 2 * i64::from(!is_new);
        assert_eq!(total(&mut shop).await, sum);
        // From here on its row is there.
        first.commit().await.unwrap();
        first = pool.begin().await.unwrap();
        W::lock(&mut first, &lock, Wait::No).await.unwrap();
    }
}

async fn total<DB: Tested>(shop: &mut Shop<DB>) -> i64 {
    shop.pieces().await + shop.ask("SELECT pieces FROM stock WHERE id = 2").await
}

async fn times_out<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    let lock = name("a");
    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &lock, Wait::Forever).await.unwrap();
    for wait in [millis(0), millis(150), millis(1100)] {
        let mut second = pool.begin().await.unwrap();
        DB::execute(&mut second, "UPDATE stock SET pieces = pieces - 1 WHERE id = 1")
            .await
            .unwrap();
        let start = Instant::now();
        let error = W::lock(&mut second, &lock, Wait::AtMost(wait)).await.unwrap_err();
        assert!(matches!(error, Error::TimedOut { waited, .. } if waited == wait), "{error:?}");
        assert!(start.elapsed() >= wait);
        DB::execute(&mut second, "UPDATE stock SET pieces = pieces - 1 WHERE id = 2")
            .await
            .unwrap();
        second.commit().await.unwrap();
    }
    assert_eq!(total(&mut shop).await, 1994);
    assert_eq!(shop.waiters().await, 0);
}

async fn in_time<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    let lock = name("a");
    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &lock, Wait::Forever).await.unwrap();
    let second = tokio::spawn({
        let (pool, lock) = (pool.clone(), lock.clone());
        async move {
            let mut second = pool.begin().await.unwrap();
            W::lock(&mut second, &lock, Wait::AtMost(millis(60_000))).await.unwrap();
            second.commit().await.unwrap();
        }
    });
    shop.waiters_are(1).await;
    first.commit().await.unwrap();
    second.await.unwrap();
}

async fn rolls_back<DB: Tested, W: Way<DB>>(home: Home) {
    let shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    for _ in 0..2 {
        let mut first = pool.begin().await.unwrap();
        W::lock(&mut first, &name("a"), Wait::No).await.unwrap();
        first.rollback().await.unwrap();
        let mut second = pool.begin().await.unwrap();
        W::lock(&mut second, &name("a"), Wait::No).await.unwrap();
        second.commit().await.unwrap();
    }
}

async fn drops<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &name("a"), Wait::No).await.unwrap();
    drop(first);
    shop.is_quiet().await;
    let mut second = pool.begin().await.unwrap();
    W::lock(&mut second, &name("a"), Wait::No).await.unwrap();
}

async fn savepoint<DB: Tested, W: Way<DB>>(home: Home) {
    let shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    let (before, since) = (name("before"), name("since"));
    // With their rows there.
    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &before, Wait::No).await.unwrap();
    W::lock(&mut first, &since, Wait::No).await.unwrap();
    first.commit().await.unwrap();

    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &before, Wait::No).await.unwrap();
    let mut inner = first.begin().await.unwrap();
    W::lock(&mut inner, &since, Wait::No).await.unwrap();
    inner.rollback().await.unwrap();

    let mut second = pool.begin().await.unwrap();
    let outcome = W::lock(&mut second, &since, Wait::No).await;
    match DB::ID {
        // InnoDB keeps a row locked until the transaction ends.
        "mariadb" => assert!(matches!(outcome, Err(Error::Taken { .. })), "{outcome:?}"),
        _ => outcome.unwrap(),
    }
    let error = W::lock(&mut second, &before, Wait::No).await.unwrap_err();
    assert!(matches!(error, Error::Taken { .. }), "{error:?}");
    first.commit().await.unwrap();
    W::lock(&mut second, &before, Wait::No).await.unwrap();
    second.rollback().await.unwrap();

    // Where it is the first thing, and where the row is new, in any database.
    for (prior, lock) in [(None, since), (Some(before), name("new"))] {
        let mut first = pool.begin().await.unwrap();
        if let Some(prior) = &prior {
            W::lock(&mut first, prior, Wait::No).await.unwrap();
        }
        let mut inner = first.begin().await.unwrap();
        W::lock(&mut inner, &lock, Wait::No).await.unwrap();
        inner.rollback().await.unwrap();
        let mut second = pool.begin().await.unwrap();
        W::lock(&mut second, &lock, Wait::No).await.unwrap();
    }
}

async fn again<DB: Tested, W: Way<DB>>(home: Home) {
    let shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    for wait in [Wait::No, Wait::AtMost(millis(50)), Wait::Forever] {
        let mut first = pool.begin().await.unwrap();
        W::lock(&mut first, &name("a"), wait).await.unwrap();
        W::lock(&mut first, &name("a"), wait).await.unwrap();
        first.commit().await.unwrap();
        let mut second = pool.begin().await.unwrap();
        W::lock(&mut second, &name("a"), Wait::No).await.unwrap();
    }
}

async fn order<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(6).await;
    let lock = name("a");
    // With its row there.
    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &lock, Wait::No).await.unwrap();
    first.commit().await.unwrap();
    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &lock, Wait::No).await.unwrap();
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..4 {
        let (pool, lock, sender) = (pool.clone(), lock.clone(), sender.clone());
        tokio::spawn(async move {
            let mut waiter = pool.begin().await.unwrap();
            W::lock(&mut waiter, &lock, Wait::Forever).await.unwrap();
            sender.send(number).unwrap();
            waiter.commit().await.unwrap();
        });
        shop.waiters_are(number + 1).await;
    }
    first.commit().await.unwrap();
    for number in 0..4 {
        assert_eq!(served.recv().await, Some(number));
    }
}

async fn apart<DB: Tested, W: Way<DB>>(home: Home) {
    let shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    let other = LockName::new(&Namespace::new("Other").unwrap(), "a").unwrap();
    let long = "ü".repeat(256);
    let mut names = vec![other];
    names.extend(["a", "A", "a ", " a", "ä", "a\u{308}", "b%", "%", &long].map(name));
    let (mut one, mut two) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    for (at, name) in names.iter().enumerate() {
        let transaction = if at % 2 == 0 { &mut one } else { &mut two };
        W::lock(transaction, name, Wait::No).await.unwrap();
    }
    for (at, name) in names.iter().enumerate() {
        let transaction = if at % 2 == 1 { &mut one } else { &mut two };
        let error = W::lock(transaction, name, Wait::No).await.unwrap_err();
        assert!(matches!(error, Error::Taken { .. }), "{error:?}");
    }
}

async fn settings<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let (set, get) = match DB::ID {
        "mariadb" => (
            "SET SESSION innodb_lock_wait_timeout = 1",
            "SELECT cast(@@innodb_lock_wait_timeout AS SIGNED)",
        ),
        _ => (
            "SET lock_timeout = 1",
            "SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout'",
        ),
    };
    let pool = shop.pool_at(3, set).await;
    let lock = name("a");
    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &lock, Wait::Forever).await.unwrap();
    let second = tokio::spawn({
        let (pool, lock) = (pool.clone(), lock.clone());
        async move {
            let mut second = pool.begin().await.unwrap();
            W::lock(&mut second, &lock, Wait::Forever).await.unwrap();
            DB::ask(&mut second, get).await.unwrap()
        }
    });
    shop.waiters_are(1).await;
    let mut third = pool.begin().await.unwrap();
    for wait in [Wait::No, Wait::AtMost(millis(1300))] {
        W::lock(&mut third, &lock, wait).await.unwrap_err();
        assert_eq!(DB::ask(&mut third, get).await.unwrap(), 1, "after {wait:?}");
    }
    assert_eq!(shop.waiters().await, 1, "the session's time-out ended the wait");
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), 1);
}

async fn no_tables<DB: Tested, W: Way<DB>>(home: Home) {
    let shop = Shop::<DB>::empty(home).await;
    let mut transaction = shop.pool(1).await.begin().await.unwrap();
    let error = W::lock(&mut transaction, &name("a"), Wait::No).await.unwrap_err();
    assert!(matches!(error, Error::NotSetUp(_)), "{error:?}");
}

/// A procedure has the mode of the session that made it.
async fn strict(home: Home) {
    let shop = Shop::<MySql>::empty(home).await;
    let pool = shop.pool_at(3, "SET SESSION sql_mode = 'TRADITIONAL,HIGH_NOT_PRECEDENCE'").await;
    create_tables::<sqlx::MySqlConnection>(&mut *pool.acquire().await.unwrap()).await.unwrap();
    let lock = name("a");
    for wait in [Wait::No, Wait::AtMost(millis(10))] {
        let mut early = pool.begin().await.unwrap();
        MySql::ask(&mut early, "SELECT count(*) FROM lockkit_row").await.unwrap();
        let mut first = pool.begin().await.unwrap();
        row_lock(&mut first, &lock, wait).await.unwrap();
        let mut second = pool.begin().await.unwrap();
        let error = row_lock(&mut second, &lock, wait).await.unwrap_err();
        assert!(matches!(error, Error::Taken { .. } | Error::TimedOut { .. }), "{error:?}");
        first.commit().await.unwrap();
        row_lock(&mut second, &lock, wait).await.unwrap();
        second.commit().await.unwrap();
        let error = row_lock(&mut early, &lock, wait).await.unwrap_err();
        assert!(matches!(error, Error::Conflict(_)), "{error:?}");
    }
    row_lock(&mut pool.begin().await.unwrap(), &lock, Wait::Forever).await.unwrap();
}

/// MySQL has no procedure clean up that was killed.
async fn interrupted(home: Home) {
    const PATIENCE: &str = "SELECT CAST(@@SESSION.innodb_lock_wait_timeout AS SIGNED)";
    const KILL: &str = "SET @waiting = (SELECT max(t.trx_mysql_thread_id) \
             FROM information_schema.innodb_trx AS t \
             JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id \
             WHERE p.db = database() AND t.trx_state = 'LOCK WAIT'); \
         KILL QUERY @waiting";
    let mut shop = Shop::<MySql>::at(home).await;
    let pool = shop.pool_at(2, "SET SESSION innodb_lock_wait_timeout = 7").await;
    let lock = name("a");
    let mut first = pool.begin().await.unwrap();
    row_lock(&mut first, &lock, Wait::Forever).await.unwrap();
    let mut second = pool.begin().await.unwrap();
    let kill = async {
        shop.waiters_are(1).await;
        shop.execute(KILL).await;
    };
    let (locked, ()) = tokio::join!(row_lock(&mut second, &lock, Wait::Forever), kill);
    assert!(matches!(locked, Err(Error::Database(_))), "{locked:?}");
    assert_eq!(MySql::ask(&mut second, PATIENCE).await.unwrap(), 7);
    // What was put back once is not put back again.
    MySql::execute(&mut second, "SET SESSION innodb_lock_wait_timeout = 8").await.unwrap();
    first.commit().await.unwrap();
    row_lock(&mut second, &lock, Wait::Forever).await.unwrap();
    MySql::execute(&mut second, "SET SESSION innodb_lock_wait_timeout = 9").await.unwrap();
    MySql::execute(&mut second, "DROP PROCEDURE lockkit_row_lock").await.unwrap();
    let error = row_lock(&mut second, &lock, Wait::Forever).await.unwrap_err();
    assert!(matches!(error, Error::NotSetUp(_)), "{error:?}");
    assert_eq!(MySql::ask(&mut second, PATIENCE).await.unwrap(), 9);
}

/// A test on a server of each kind.
fn on_each_mysql<F>(name: &str, test: fn(Home) -> F) -> [Trial; 2]
where
    F: Future<Output = ()> + 'static,
{
    let on = |backend: &'static Backend| {
        let name = format!("{}::row::{name}", backend.id());
        trial(&name, || backend.url().map(Home::Server), test)
    };
    [on(&MARIADB), on(&MYSQL)]
}
