//! Isolation levels at which a transaction reads what was there when it began.

use libtest_mimic::Trial;
use lockkit_core::Wait;
use lockkit_sql::transaction::{Error, Retryable as _, RowLocks, begin, retry, row_lock};
use sqlx::{MySql, Postgres};

use crate::support::{ATTEMPTS, Home, Shop, Tested, name, on};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        on::<Postgres, _>("a_snapshot_from_before_the_lock_is_a_conflict", old::<Postgres>),
        on::<MySql, _>("a_snapshot_from_before_the_lock_is_a_conflict", old::<MySql>),
        on::<Postgres, _>("who_locks_first_reads_what_the_last_one_did", fresh::<Postgres>),
        on::<MySql, _>("who_locks_first_reads_what_the_last_one_did", fresh::<MySql>),
    ]
}

const PIECES: &str = "SELECT pieces FROM stock WHERE id = 1";

/// What MariaDB does from 11.6 on, unless it is told otherwise.
const ISOLATED: &str = "SELECT count(*) FROM information_schema.global_variables \
    WHERE variable_name = 'innodb_snapshot_isolation' AND variable_value = 'ON'";

async fn old<DB: Tested + RowLocks>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let snapshots_are_isolated = DB::ID == "mariadb" && {
        let mut asking = shop.pool_at(1, DB::LEVELS[0]).await.begin().await.unwrap();
        DB::ask(&mut asking, ISOLATED).await.unwrap() == 1
    };
    // For the levels with snapshots.
    for (turn, level) in DB::LEVELS[1..].iter().enumerate() {
        let (pool, lock) = (shop.pool_at(2, level).await, name("a"));
        let mut first = pool.begin().await.unwrap();
        assert_eq!(
            DB::ask(&mut first, "SELECT count(*) FROM stock WHERE id = 2").await.unwrap(),
            1
        );
        let mut second = pool.begin().await.unwrap();
        row_lock(&mut second, &lock, Wait::No).await.unwrap();
        DB::execute(&mut second, "UPDATE stock SET pieces = pieces - 1 WHERE id = 1")
            .await
            .unwrap();
        second.commit().await.unwrap();

        let outcome = row_lock(&mut first, &lock, Wait::No).await;
        // There serialisable transactions read what is there now, and lock it.
        if (DB::ID, turn) == ("mariadb", 1) && !snapshots_are_isolated {
            outcome.unwrap();
        } else {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Conflict(_)), "{level}: {error:?}");
            assert!(error.is_conflict());
            first.rollback().await.unwrap();
            first = pool.begin().await.unwrap();
            row_lock(&mut first, &lock, Wait::No).await.unwrap();
        }
        let left = i64::try_from(turn).unwrap() + 1;
        assert_eq!(DB::ask(&mut first, PIECES).await.unwrap(), 1000 - left);
        first.commit().await.unwrap();
    }
    assert_eq!(shop.pieces().await, 998);
}

async fn fresh<DB: Tested + RowLocks>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    for (turn, level) in DB::LEVELS.iter().enumerate() {
        let pool = shop.pool_at(2, level).await;
        let mut first = pool.begin().await.unwrap();
        row_lock(&mut first, &name("a"), Wait::Forever).await.unwrap();
        let left = 1000 - i64::try_from(turn).unwrap() - 1;
        let second = retry(ATTEMPTS, || async {
            let mut tx = begin(&pool).await.unwrap();
            row_lock(&mut tx, &name("a"), Wait::Forever).await?;
            Ok::<_, Error>(DB::ask(&mut tx, PIECES).await.unwrap())
        });
        let first = async {
            shop.waiters_are(1).await;
            DB::execute(&mut first, "UPDATE stock SET pieces = pieces - 1 WHERE id = 1")
                .await
                .unwrap();
            first.commit().await.unwrap();
        };
        let (seen, ()) = tokio::join!(second, first);
        assert_eq!(seen.unwrap(), left, "{level}");
    }
}
