//! The gate that keeps out holders who were overtaken.

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::{BoxError, LockName, Namespace};
use lockkit_sql::transaction::{Error, Retryable as _, begin, gate, retry};
use sqlx::{MySql, Pool, Postgres, Sqlite};

use crate::support::{ATTEMPTS, Home, Shop, Tested, name, on, token};

pub(crate) fn trials() -> Vec<Trial> {
    let all = [of::<Postgres>(), of::<MySql>(), of::<Sqlite>()];
    let own = vec![
        on::<Postgres, _>("a_holder_that_comes_meanwhile_is_waited_for", meanwhile::<Postgres>),
        on::<MySql, _>("a_holder_that_comes_meanwhile_is_waited_for", meanwhile::<MySql>),
    ];
    all.into_iter().flatten().chain(own).collect()
}

fn of<DB: Tested>() -> Vec<Trial> {
    vec![
        on::<DB, _>("a_lower_token_is_refused", refused::<DB>),
        on::<DB, _>("a_token_counts_once_it_is_committed", committed::<DB>),
        on::<DB, _>("resources_are_apart", apart::<DB>),
        on::<DB, _>("of_many_holders_no_effect_comes_after_a_later_one", many::<DB>),
    ]
}

async fn pass<DB: Tested>(pool: &Pool<DB>, resource: &LockName, number: u64) -> Result<(), Error> {
    let mut transaction = pool.begin().await.unwrap();
    gate(&mut transaction, resource, token(number)).await?;
    transaction.commit().await.unwrap();
    Ok(())
}

async fn refused<DB: Tested>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let (pool, resource) = (shop.pool(1).await, name("report"));
    for number in [33, 33, 34, 34] {
        pass(&pool, &resource, number).await.unwrap();
    }
    let error = pass(&pool, &resource, 33).await.unwrap_err();
    let Error::Stale { token: stale, highest, resource: of, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!((*stale, *highest, of), (token(33), token(34), &resource));
    assert!(error.to_string().starts_with("fencing token 33 is stale: 34 was at `report`"));
    assert!(!error.is_conflict(), "trying again does not help");

    // The transaction is unharmed, and what is remembered stays.
    let mut transaction = pool.begin().await.unwrap();
    gate(&mut transaction, &resource, token(33)).await.unwrap_err();
    gate(&mut transaction, &resource, token(34)).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(shop.ask("SELECT token FROM lockkit_gate").await, 34);
    let largest = i64::MAX.unsigned_abs();
    pass(&pool, &resource, largest).await.unwrap();
    pass(&pool, &resource, largest).await.unwrap();
    pass(&pool, &resource, largest - 1).await.unwrap_err();
}

async fn committed<DB: Tested>(home: Home) {
    let shop = Shop::<DB>::at(home).await;
    let (pool, resource) = (shop.pool(1).await, name("report"));
    for first in [true, false] {
        let mut transaction = pool.begin().await.unwrap();
        gate(&mut transaction, &resource, token(34)).await.unwrap();
        transaction.rollback().await.unwrap();
        pass(&pool, &resource, 33).await.unwrap_or_else(|error| panic!("{first}: {error}"));
    }
}

async fn apart<DB: Tested>(home: Home) {
    let shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(1).await;
    pass(&pool, &name("a"), 34).await.unwrap();
    let other = LockName::new(&Namespace::new("Other").unwrap(), "a").unwrap();
    for resource in [other, name("A"), name("a "), name("ä")] {
        pass(&pool, &resource, 33).await.unwrap();
    }
}

/// An older holder that is within its transaction is waited for; the newer one has the last word.
async fn meanwhile<DB: Tested>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    for level in DB::LEVELS {
        shop.execute("DELETE FROM lockkit_gate").await;
        let (pool, resource) = (shop.pool_at(2, level).await, name("stock"));
        pass(&pool, &resource, 32).await.unwrap();
        let mut older = pool.begin().await.unwrap();
        gate(&mut older, &resource, token(33)).await.unwrap();
        let newer = async {
            retry(ATTEMPTS, || async {
                let mut tx = begin(&pool).await?;
                gate(&mut tx, &resource, token(34)).await?;
                let seen = DB::ask(&mut tx, "SELECT pieces FROM stock WHERE id = 1").await?;
                assert_eq!(seen, 7, "an earlier holder's effect came after the gate");
                DB::execute(&mut tx, "UPDATE stock SET pieces = 8 WHERE id = 1").await?;
                Ok::<_, BoxError>(tx.commit().await?)
            })
            .await
            .unwrap();
        };
        let older = async {
            shop.waiters_are(1).await;
            DB::execute(&mut older, "UPDATE stock SET pieces = 7 WHERE id = 1").await.unwrap();
            older.commit().await.unwrap();
        };
        tokio::join!(newer, older);
        assert_eq!(shop.pieces().await, 8, "{level}");
    }
}

async fn many<DB: Tested>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    shop.execute("CREATE TABLE effect (id INTEGER PRIMARY KEY, token BIGINT)").await;
    shop.execute("INSERT INTO effect VALUES (1, 0)").await;
    let pool = shop.pool(8).await;
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let pool = pool.clone();
            async move {
                let mut passed = 0;
                for round in 0..30 {
                    let number = token(round * 10 + task + 1);
                    let outcome = retry(ATTEMPTS, || async {
                        let mut tx = begin(&pool).await?;
                        gate(&mut tx, &name("effect"), number).await?;
                        let last = DB::ask(&mut tx, "SELECT token FROM effect").await?;
                        let number = i64::try_from(number.get()).unwrap();
                        assert!(last <= number, "{number} came after {last}");
                        DB::execute(&mut tx, &format!("UPDATE effect SET token = {number}"))
                            .await?;
                        Ok::<_, BoxError>(tx.commit().await?)
                    });
                    match outcome.await {
                        Ok(()) => passed += 1,
                        Err(error) => assert!(
                            matches!(error.downcast_ref(), Some(Error::Stale { .. })),
                            "{error:?}"
                        ),
                    }
                }
                passed
            }
        })
        .collect();
    let passed: i32 = join_all(tasks).await.into_iter().sum();
    assert!(passed > 0);
    let highest = shop.ask("SELECT token FROM lockkit_gate").await;
    assert_eq!(shop.ask("SELECT token FROM effect").await, highest);
}
