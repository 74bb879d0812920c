//! The classic: many sell from one stock, and none is sold twice.

use libtest_mimic::Trial;
use lockkit_core::{BoxError, Wait};
use lockkit_sql::transaction::postgres::xact_lock;
use lockkit_sql::transaction::{RowLocks, as_read, begin, gate, retry, row_lock};
use sqlx::{MySql, Pool, Postgres, Sqlite, Transaction};

use crate::support::{ATTEMPTS, Home, Shop, Tested, name, on, token};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        on::<Postgres, _>("stock_by_row_locks", |home| sold(home, by_row_lock::<Postgres>)),
        on::<Postgres, _>("stock_by_advisory_locks", |home| sold(home, by_advisory_lock)),
        on::<Postgres, _>("stock_by_versions", |home| sold(home, by_version::<Postgres>)),
        on::<Postgres, _>("stock_by_a_gate", |home| sold(home, by_gate::<Postgres>)),
        on::<MySql, _>("stock_by_row_locks", |home| sold(home, by_row_lock::<MySql>)),
        on::<MySql, _>("stock_by_versions", |home| sold(home, by_version::<MySql>)),
        on::<MySql, _>("stock_by_a_gate", |home| sold(home, by_gate::<MySql>)),
        on::<Sqlite, _>("stock_by_immediate_transactions", |home| sold(home, by_itself::<Sqlite>)),
        on::<Sqlite, _>("stock_by_versions", |home| sold(home, by_version::<Sqlite>)),
        on::<Sqlite, _>("stock_by_a_gate", |home| sold(home, by_gate::<Sqlite>)),
    ]
}

const TASKS: i64 = 8;
const SALES: i64 = 50;

type Outcome = Result<(), BoxError>;

/// Many sell at each isolation level, and the stock shows each sale once.
async fn sold<DB: Tested, F>(home: Home, sale: fn(Pool<DB>) -> F)
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let mut shop = Shop::<DB>::at(home).await;
    for level in DB::LEVELS {
        let pool = shop.pool_at(8, level).await;
        shop.execute("UPDATE stock SET pieces = 1000").await;
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let pool = pool.clone();
                tokio::spawn(async move {
                    for _ in 0..SALES {
                        sale(pool.clone()).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(shop.pieces().await, 1000 - TASKS * SALES, "{level}");
    }
}

async fn by_row_lock<DB: Tested + RowLocks>(pool: Pool<DB>) -> Outcome {
    retry(ATTEMPTS, || async {
        let mut tx = begin(&pool).await?;
        row_lock(&mut tx, &name("stock"), Wait::Forever).await?;
        sell_one(&mut tx).await?;
        Outcome::Ok(tx.commit().await?)
    })
    .await
}

async fn by_advisory_lock(pool: Pool<Postgres>) -> Outcome {
    retry(ATTEMPTS, || async {
        let mut tx = begin(&pool).await?;
        xact_lock(&mut tx, &name("stock"), Wait::Forever).await?;
        sell_one(&mut tx).await?;
        Outcome::Ok(tx.commit().await?)
    })
    .await
}

async fn by_gate<DB: Tested>(pool: Pool<DB>) -> Outcome {
    retry(ATTEMPTS, || async {
        let mut tx = begin(&pool).await?;
        gate(&mut tx, &name("stock"), token(7)).await?;
        sell_one(&mut tx).await?;
        Outcome::Ok(tx.commit().await?)
    })
    .await
}

async fn by_itself<DB: Tested>(pool: Pool<DB>) -> Outcome {
    retry(ATTEMPTS, || async {
        let mut tx = begin(&pool).await?;
        sell_one(&mut tx).await?;
        Outcome::Ok(tx.commit().await?)
    })
    .await
}

async fn by_version<DB: Tested>(pool: Pool<DB>) -> Outcome {
    retry(ATTEMPTS, || async {
        let mut connection = pool.acquire().await?;
        let version = DB::ask(&mut connection, "SELECT version FROM stock WHERE id = 1").await?;
        let pieces = DB::ask(&mut connection, "SELECT pieces FROM stock WHERE id = 1").await? - 1;
        let sale = format!(
            "UPDATE stock SET pieces = {pieces}, version = version + 1 \
             WHERE id = 1 AND version = {version}"
        );
        Outcome::Ok(as_read(DB::execute(&mut connection, &sale).await?)?)
    })
    .await
}

/// Not safe without a lock.
async fn sell_one<DB: Tested>(tx: &mut Transaction<'_, DB>) -> Outcome {
    let pieces = DB::ask(tx, "SELECT pieces FROM stock WHERE id = 1").await? - 1;
    DB::execute(tx, &format!("UPDATE stock SET pieces = {pieces} WHERE id = 1")).await?;
    Ok(())
}
