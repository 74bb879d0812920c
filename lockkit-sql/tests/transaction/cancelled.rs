//! Futures that are dropped at any point leave nothing on the server, and nothing in the pool.

use libtest_mimic::Trial;
use lockkit_core::{BoxError, Wait};
use lockkit_sql::transaction::{begin, gate, retry};
use sqlx::{MySql, Pool, Postgres, Sqlite};

use crate::support::{Home, Row, Shop, Tested, Way, Xact, millis, name, on, polled, token, with};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        with::<Postgres, Row, _>("dropped_at_each_poll", dropped::<Postgres, Row>),
        with::<Postgres, Xact, _>("dropped_at_each_poll", dropped::<Postgres, Xact>),
        with::<MySql, Row, _>("dropped_at_each_poll", dropped::<MySql, Row>),
        with::<Postgres, Row, _>("dropped_while_it_waits", waiting::<Postgres, Row>),
        with::<Postgres, Xact, _>("dropped_while_it_waits", waiting::<Postgres, Xact>),
        with::<MySql, Row, _>("dropped_while_it_waits", waiting::<MySql, Row>),
        on::<Postgres, _>("a_beginning_is_dropped_at_each_poll", beginning::<Postgres>),
        on::<MySql, _>("a_beginning_is_dropped_at_each_poll", beginning::<MySql>),
        on::<Sqlite, _>("a_beginning_is_dropped_at_each_poll", beginning::<Sqlite>),
    ]
}

/// Nobody has a transaction open, and what is written on any connection of the pool is committed.
async fn is_clean<DB: Tested>(shop: &mut Shop<DB>, pool: &Pool<DB>) {
    shop.is_quiet().await;
    let before = shop.ask("SELECT pieces FROM stock WHERE id = 2").await;
    let mut connection = pool.acquire().await.unwrap();
    DB::execute(&mut connection, "UPDATE stock SET pieces = pieces - 1 WHERE id = 2")
        .await
        .unwrap();
    assert_eq!(shop.ask("SELECT pieces FROM stock WHERE id = 2").await, before - 1);
}

async fn dropped<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let (pool, _proxy) = shop.slow_pool().await;
    let work = || {
        retry(2, || async {
            let mut tx = begin(&pool).await?;
            W::lock(&mut tx, &name("a"), Wait::AtMost(millis(30_000))).await?;
            gate(&mut tx, &name("a"), token(1)).await?;
            DB::execute(&mut tx, "UPDATE stock SET pieces = 0 WHERE id = 1").await?;
            // All but the commit, whose outcome would be unknown.
            Ok::<_, BoxError>(tx.rollback().await?)
        })
    };
    // sqlx's client for MySQL loses track of a connection when the first use of a statement on it is
    // dropped, whoever's statement it is.
    work().await.unwrap();
    let mut polls = 1;
    while polled(work(), polls).await.map(Result::unwrap).is_none() {
        is_clean(&mut shop, &pool).await;
        polls += 1;
    }
    assert!(polls > 4, "it was not dropped in between");
    is_clean(&mut shop, &pool).await;
    assert_eq!(shop.pieces().await, 1000);
}

async fn waiting<DB: Tested, W: Way<DB>>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(1).await;
    let lock = name("a");
    for wait in [Wait::Forever, Wait::AtMost(millis(4000))] {
        let holders = shop.pool(1).await;
        let mut holder = holders.begin().await.unwrap();
        W::lock(&mut holder, &lock, Wait::Forever).await.unwrap();
        let waiter = async {
            let mut tx = begin(&pool).await.unwrap();
            W::lock(&mut tx, &lock, wait).await.unwrap();
        };
        tokio::select! {
            () = waiter => panic!("it got the lock"),
            () = shop.waiters_are(1) => (),
        }
        match wait {
            // It leaves when it would have had the lock,
            Wait::Forever => holder.commit().await.unwrap(),
            // or when it would have waited for long enough.
            _ => {
                shop.waiters_are(0).await;
                holder.commit().await.unwrap();
            }
        }
        drop(holders);
        is_clean(&mut shop, &pool).await;
    }
}

async fn beginning<DB: Tested>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let (pool, proxy) = shop.slow_pool().await;
    let mut polls = 1;
    while polled(begin(&pool), polls).await.map(Result::unwrap).is_none() {
        is_clean(&mut shop, &pool).await;
        polls += 1;
    }
    assert!(proxy.is_none() || polls > 1, "it was not dropped in between");
    is_clean(&mut shop, &pool).await;
}
