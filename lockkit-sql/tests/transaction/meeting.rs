//! Transactions that meet, and the ways to do them again.

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::{BoxError, Wait};
use lockkit_sql::transaction::{
    Changed, Error, Retryable as _, RowLocks, as_read, begin, gate, retry, row_lock,
};
use sqlx::{MySql, Postgres, Sqlite};
use tokio::sync::Barrier;

use crate::support::{ATTEMPTS, Home, Row, Shop, Tested, Way, Xact, millis, name, on, token, with};

pub(crate) fn trials() -> Vec<Trial> {
    let all = [of::<Postgres, Row>(), of::<Postgres, Xact>(), of::<MySql, Row>()];
    let own = vec![
        on::<Postgres, _>("many_who_lock_a_new_name_do_not_meet", new_names::<Postgres>),
        on::<MySql, _>("many_who_lock_a_new_name_do_not_meet", new_names::<MySql>),
        on::<Postgres, _>("the_work_may_be_spawned", spawned),
        on::<Sqlite, _>("a_read_that_wants_to_write_is_a_conflict", snapshot),
        on::<Sqlite, _>("attempts_are_bounded", attempts),
        on::<Sqlite, _>("what_is_no_conflict_is_not_tried_again", no_conflict),
        on::<Sqlite, _>("errors_tell_conflicts", errors),
    ];
    all.into_iter().flatten().chain(own).collect()
}

fn of<DB: Tested, W: Way<DB>>() -> Vec<Trial> {
    vec![
        with::<DB, W, _>("a_deadlock_is_a_conflict", deadlock::<DB, W>),
        with::<DB, W, _>("a_deadlock_is_tried_again", tried_again::<DB, W>),
    ]
}

async fn deadlock<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    // With their rows there.
    let mut first = pool.begin().await.unwrap();
    for text in ["a", "b"] {
        W::lock(&mut first, &name(text), Wait::No).await.unwrap();
    }
    first.commit().await.unwrap();

    let mut first = pool.begin().await.unwrap();
    W::lock(&mut first, &name("a"), Wait::No).await.unwrap();
    let second = tokio::spawn({
        let pool = pool.clone();
        async move {
            let mut second = pool.begin().await.unwrap();
            W::lock(&mut second, &name("b"), Wait::No).await.unwrap();
            let outcome = W::lock(&mut second, &name("a"), Wait::AtMost(millis(50_000))).await;
            match &outcome {
                Ok(()) => second.commit().await.unwrap(),
                Err(_) => second.rollback().await.unwrap(),
            }
            outcome
        }
    });
    shop.waiters_are(1).await;
    let outcome = W::lock(&mut first, &name("b"), Wait::Forever).await;
    first.rollback().await.unwrap();
    // The database chooses who gives way; the other one goes on.
    let outcomes = [outcome, second.await.unwrap()];
    let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert!(matches!(error, Error::Conflict(_)) && error.is_conflict(), "{error:?}");
    assert!(error.to_string().contains("could not"), "{error}");
}

async fn tried_again<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(2).await;
    let meeting = Barrier::new(2);
    let two = [("a", "b"), ("b", "a")].map(|(one, other)| {
        let (pool, meeting) = (&pool, &meeting);
        async move {
            let attempts = AtomicU32::new(0);
            retry(ATTEMPTS, || async {
                let mut tx = begin(pool).await?;
                W::lock(&mut tx, &name(one), Wait::Forever).await?;
                if attempts.fetch_add(1, Ordering::Relaxed) == 0 {
                    meeting.wait().await;
                }
                W::lock(&mut tx, &name(other), Wait::Forever).await?;
                DB::execute(&mut tx, "UPDATE stock SET pieces = pieces - 1 WHERE id = 1").await?;
                Ok::<_, BoxError>(tx.commit().await?)
            })
            .await
            .unwrap();
            attempts.into_inner()
        }
    });
    let attempts: u32 = join_all(two).await.into_iter().sum();
    assert!(attempts > 2, "they did not meet");
    assert_eq!(shop.pieces().await, 998);
}

async fn new_names<DB: Tested + RowLocks>(home: Home) {
    let shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(8).await;
    for round in 0..20 {
        // In every other round, who makes the row may take it away again.
        let rolls_back = round % 2 == 1;
        let (start, lock) = (Barrier::new(8), name(&round.to_string()));
        let eight = (0..8).map(|number| {
            let (pool, start, lock) = (&pool, &start, &lock);
            async move {
                let mut transaction = pool.begin().await.unwrap();
                start.wait().await;
                let outcome = row_lock(&mut transaction, lock, Wait::Forever).await;
                match rolls_back && number % 2 == 1 {
                    true => transaction.rollback().await.unwrap(),
                    false => transaction.commit().await.unwrap(),
                }
                outcome
            }
        });
        for outcome in join_all(eight).await {
            match outcome {
                Ok(()) => (),
                // Where InnoDB removes a row that others wait for, it lets them deadlock.
                Err(Error::Conflict(_)) if rolls_back && DB::ID == "mariadb" => (),
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

async fn snapshot(home: Home) {
    let shop = Shop::<Sqlite>::at(home).await;
    let pool = shop.pool(2).await;
    const PIECES: &str = "SELECT pieces FROM stock WHERE id = 1";
    let change = "UPDATE stock SET pieces = pieces - 1 WHERE id = 1";
    Sqlite::execute(&mut pool.acquire().await.unwrap(), "PRAGMA journal_mode = WAL").await.unwrap();
    let mut first = pool.begin().await.unwrap();
    Sqlite::ask(&mut first, PIECES).await.unwrap();
    Sqlite::execute(&mut pool.acquire().await.unwrap(), change).await.unwrap();
    let error = Sqlite::execute(&mut first, change).await.unwrap_err();
    assert!(error.is_conflict(), "{error:?}");
    drop(first);
    // An immediate one has no such moment.
    let mut first = begin(&pool).await.unwrap();
    Sqlite::ask(&mut first, PIECES).await.unwrap();
    let mut other = pool.acquire().await.unwrap();
    Sqlite::execute(&mut other, "PRAGMA busy_timeout = 0").await.unwrap();
    let error = Sqlite::execute(&mut other, change).await.unwrap_err();
    assert!(error.is_conflict(), "{error:?}");
    Sqlite::execute(&mut first, change).await.unwrap();
    first.commit().await.unwrap();
}

async fn attempts(_: Home) {
    for (allowed, expected) in [(0, 1), (1, 1), (4, 4)] {
        let mut made = 0;
        let outcome = retry(allowed, || {
            made += 1;
            async { as_read(0) }
        });
        assert_eq!(outcome.await, as_read(0));
        assert_eq!(made, expected);
    }
    let mut left = 4;
    let outcome = retry(4, || {
        left -= 1;
        std::future::ready(as_read(u64::from(left == 0)))
    });
    assert_eq!(outcome.await, Ok(()));
}

async fn no_conflict(home: Home) {
    let mut shop = Shop::<Sqlite>::at(home).await;
    let pool = shop.pool(1).await;
    let made = AtomicU32::new(0);
    let outcome = retry(4, || async {
        made.fetch_add(1, Ordering::Relaxed);
        let mut tx = begin(&pool).await?;
        Sqlite::execute(&mut tx, "UPDATE stock SET pieces = 0").await?;
        Err::<(), BoxError>("sold out".into())
    });
    assert_eq!(outcome.await.unwrap_err().to_string(), "sold out");
    assert_eq!((made.into_inner(), shop.pieces().await), (1, 1000));
}

#[derive(Debug, thiserror::Error)]
#[error("no sale")]
struct Wrapped(#[source] Changed);

async fn errors(home: Home) {
    let shop = Shop::<Sqlite>::at(home).await;
    let changed = || as_read(0).unwrap_err();
    assert!(Error::from(changed()).is_conflict());
    let boxed: BoxError = Box::new(Error::from(changed()));
    assert!(boxed.is_conflict());
    let boxed: BoxError = Box::new(Wrapped(changed()));
    assert!(boxed.is_conflict(), "a source of another error");
    assert!(!sqlx::Error::RowNotFound.is_conflict());
    let several = as_read(2).unwrap_err();
    assert!(!several.is_conflict() && !Error::from(several).is_conflict());
    assert_eq!(several.to_string(), "an update of one row by key and version changed 2");
    let mut transaction = shop.pool(1).await.begin().await.unwrap();
    let error = Sqlite::execute(&mut transaction, "nonsense").await.unwrap_err();
    assert!(!error.is_conflict());
}

async fn spawned(home: Home) {
    let mut shop = Shop::<Postgres>::at(home).await;
    let (pool, lock) = (shop.pool(1).await, name("a"));
    let work = async move {
        retry(ATTEMPTS, || async {
            let mut tx = begin(&pool).await?;
            row_lock(&mut tx, &lock, Wait::Forever).await?;
            gate(&mut tx, &lock, token(1)).await?;
            sqlx::query("UPDATE stock SET pieces = 7 WHERE id = 1").execute(&mut *tx).await?;
            tx.commit().await?;
            Ok::<_, BoxError>(())
        })
        .await
        .unwrap();
    };
    tokio::spawn(work).await.unwrap();
    assert_eq!(shop.pieces().await, 7);
}
