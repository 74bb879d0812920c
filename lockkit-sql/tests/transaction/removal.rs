//! Rows that are removed while others use them.

use std::cell::Cell;

use futures_util::future::{join, join_all};
use libtest_mimic::Trial;
use lockkit_core::{BoxError, Wait};
use lockkit_sql::transaction::{RowLocks, begin, retry, row_lock};
use sqlx::{MySql, Postgres};

use crate::support::{ATTEMPTS, Home, Shop, Tested, name, on};

const GUIDE: &str = include_str!("../../../docs/transactions.md");

/// As the guide has them.
const OF_POSTGRES: &str = "\
WITH idle AS (
    SELECT namespace, name FROM lockkit_row
     WHERE namespace = 'lockkit' AND name LIKE 'orders/2024-%'
     LIMIT 1000 FOR UPDATE SKIP LOCKED
), turns AS (
    DELETE FROM lockkit_turn AS t USING idle AS i
     WHERE t.namespace = i.namespace AND t.name = i.name
)
DELETE FROM lockkit_row AS r USING idle AS i
 WHERE r.namespace = i.namespace AND r.name = i.name;
";
const OF_MYSQL: &str = "\
DELETE FROM lockkit_row
 WHERE namespace = 'lockkit' AND name LIKE 'orders/2024-%' LIMIT 1000;
";

pub(crate) fn trials() -> Vec<Trial> {
    const NAME: &str = "a_row_that_is_removed_excludes_nevertheless";
    vec![
        on::<Postgres, _>(NAME, |home| removed::<Postgres>(home, OF_POSTGRES)),
        on::<MySql, _>(NAME, |home| removed::<MySql>(home, OF_MYSQL)),
    ]
}

async fn removed<DB: Tested + RowLocks>(home: Home, remove: &'static str) {
    const TASKS: i64 = 4;
    const ROUNDS: i64 = 50;
    assert!(GUIDE.contains(remove), "the guide has another statement");
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool_at(5, DB::LEVELS[0]).await;
    let lock = name("orders/2024-1");
    let sell = || {
        retry(ATTEMPTS, || async {
            let mut tx = begin(&pool).await?;
            row_lock(&mut tx, &lock, Wait::Forever).await?;
            let seen = DB::ask(&mut tx, "SELECT pieces FROM stock WHERE id = 1").await?;
            let update = format!("UPDATE stock SET pieces = {} WHERE id = 1", seen - 1);
            DB::execute(&mut tx, &update).await?;
            Ok::<_, BoxError>(tx.commit().await?)
        })
    };
    let is_sold_out = Cell::new(false);
    let selling = async {
        let sellers = (0..TASKS).map(|_| async {
            for _ in 0..ROUNDS {
                sell().await.unwrap();
            }
        });
        join_all(sellers).await;
        is_sold_out.set(true);
    };
    let tidy = || {
        retry(ATTEMPTS, || async {
            let mut connection = pool.acquire().await?;
            Ok::<_, BoxError>(DB::execute(&mut connection, remove).await?)
        })
    };
    let removing = async {
        let mut removed = 0;
        while !is_sold_out.get() {
            removed += tidy().await.unwrap();
        }
        removed
    };
    let ((), removed) = join(selling, removing).await;
    assert!(removed > 1, "no row was removed while others used it");
    assert_eq!(shop.pieces().await, 1000 - TASKS * ROUNDS, "two had the lock at once");
    tidy().await.unwrap();
    assert_eq!(shop.ask("SELECT count(*) FROM lockkit_row").await, 0);
}
