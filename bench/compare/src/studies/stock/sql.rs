//! A stock in a database.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use lockkit::sql::transaction::{Retryable as _, as_read, begin, create_tables, gate, retry, sqlx};
use lockkit::{BackendUrl, BoxError};
use lockkit_bench::Result;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use super::{Locked, Sale, Seller, Shop, Way, nonsense, token};

/// How often a seller tries who does not give up.
const ATTEMPTS: u32 = u32::MAX;

const TABLE: &str =
    "CREATE TABLE stock (id INTEGER PRIMARY KEY, pieces BIGINT NOT NULL, version BIGINT NOT NULL)";
const FIRST: &str = "INSERT INTO stock (id, pieces, version) VALUES (1, 0, 0)";
const LOOK: &str = "SELECT pieces, version FROM stock WHERE id = 1";
const TAKE: &str = "UPDATE stock SET pieces = pieces - 1 WHERE id = 1 AND pieces > 0";

/// A stock in each of them, whose statements differ in how they name what is bound.
macro_rules! database {
    ($name:ident, $database:ident, $pool:ident, $fill:literal, $write:literal, $write_as_read:literal) => {
        pub(super) struct $name {
            url: String,
            options: <<sqlx::$database as sqlx::Database>::Connection as sqlx::Connection>::Options,
            pool: $pool,
        }

        impl $name {
            async fn with(
                url: &str,
                options: <<sqlx::$database as sqlx::Database>::Connection as sqlx::Connection>::Options,
            ) -> Result<Self> {
                let pool = Self::pool(&options).await?;
                sqlx::query(TABLE).execute(&pool).await?;
                sqlx::query(FIRST).execute(&pool).await?;
                create_tables(&mut *pool.acquire().await?).await?;
                Ok(Self { url: url.into(), options, pool })
            }
        }

        #[async_trait]
        impl Shop for $name {
            async fn fill(&self, _: Way, pieces: u64) -> Result<()> {
                sqlx::query($fill).bind(i64::try_from(pieces)?).execute(&self.pool).await?;
                Ok(())
            }

            async fn left(&self, _: Way) -> Result<u64> {
                let (pieces, _): (i64, i64) = sqlx::query_as(LOOK).fetch_one(&self.pool).await?;
                u64::try_from(pieces).map_err(|_| nonsense(pieces))
            }

            async fn seller(&self, way: Way) -> Result<Box<dyn Seller>> {
                let locked = match way {
                    Way::Lock(subject) => Some(Locked::at(&self.url, subject).await?),
                    Way::Atomic | Way::Version => None,
                };
                let pool = Self::pool(&self.options).await?;
                Ok(Box::new(SellerAt::<$pool> { way, locked, pool }))
            }
        }

        #[async_trait]
        impl Seller for SellerAt<$pool> {
            async fn sell(&mut self) -> Result<Sale> {
                match (self.way, &self.locked) {
                    (Way::Lock(_), Some(locked)) => self.under(locked).await,
                    (Way::Atomic, _) => self.at_once().await,
                    _ => self.by_version().await,
                }
            }

            async fn close(self: Box<Self>) {
                self.pool.close().await;
                if let Some(locked) = self.locked {
                    locked.locker.shutdown().await;
                }
            }
        }

        impl SellerAt<$pool> {
            async fn under(&self, locked: &Locked) -> Result<Sale> {
                let guard = locked.lock.acquire().await?;
                let mut transaction = begin(&self.pool).await?;
                gate(&mut transaction, guard.name(), token(&guard)?).await?;
                let (pieces, _): (i64, i64) =
                    sqlx::query_as(LOOK).fetch_one(&mut *transaction).await?;
                let sale = if pieces > 0 {
                    sqlx::query($write).bind(pieces - 1).execute(&mut *transaction).await?;
                    Sale::Sold(1)
                } else {
                    Sale::SoldOut
                };
                transaction.commit().await?;
                guard.release().await?;
                Ok(sale)
            }

            async fn at_once(&self) -> Result<Sale> {
                for tries in 1.. {
                    match sqlx::query(TAKE).execute(&self.pool).await {
                        Ok(done) if done.rows_affected() > 0 => return Ok(Sale::Sold(tries)),
                        Ok(_) => break,
                        // Where there is one writer, another one may have been it for too long.
                        Err(error) if error.is_conflict() => (),
                        Err(error) => return Err(error.into()),
                    }
                }
                Ok(Sale::SoldOut)
            }

            async fn by_version(&self) -> Result<Sale> {
                let tries = std::sync::atomic::AtomicU32::new(0);
                retry(ATTEMPTS, || async {
                    let tries = tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
                    let (pieces, version): (i64, i64) =
                        sqlx::query_as(LOOK).fetch_one(&self.pool).await?;
                    if pieces == 0 {
                        return Ok::<_, BoxError>(Sale::SoldOut);
                    }
                    let write = sqlx::query($write_as_read).bind(pieces - 1).bind(version);
                    as_read(write.execute(&self.pool).await?.rows_affected())?;
                    Ok(Sale::Sold(tries))
                })
                .await
            }
        }
    };
}

database!(
    Sqlite,
    Sqlite,
    SqlitePool,
    "UPDATE stock SET pieces = ?, version = version + 1 WHERE id = 1",
    "UPDATE stock SET pieces = ? WHERE id = 1",
    "UPDATE stock SET pieces = ?, version = version + 1 WHERE id = 1 AND version = ?"
);
database!(
    Postgres,
    Postgres,
    PgPool,
    "UPDATE stock SET pieces = $1, version = version + 1 WHERE id = 1",
    "UPDATE stock SET pieces = $1 WHERE id = 1",
    "UPDATE stock SET pieces = $1, version = version + 1 WHERE id = 1 AND version = $2"
);
database!(
    Mariadb,
    MySql,
    MySqlPool,
    "UPDATE stock SET pieces = ?, version = version + 1 WHERE id = 1",
    "UPDATE stock SET pieces = ? WHERE id = 1",
    "UPDATE stock SET pieces = ?, version = version + 1 WHERE id = 1 AND version = ?"
);

/// One who sells, with one connection.
struct SellerAt<Pool> {
    way: Way,
    locked: Option<Locked>,
    pool: Pool,
}

impl Sqlite {
    /// In a file beside that of the locks, so that nobody who sells keeps others from the lock.
    pub(super) async fn open(url: &str) -> Result<Self> {
        let locks: BackendUrl = url.parse()?;
        let options = SqliteConnectOptions::new()
            .filename(Path::new(locks.path()).with_file_name("shop.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(5));
        Self::with(url, options).await
    }

    async fn pool(options: &SqliteConnectOptions) -> Result<SqlitePool> {
        Ok(SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await?)
    }
}

impl Postgres {
    pub(super) async fn open(url: &str) -> Result<Self> {
        Self::with(url, url.parse::<PgConnectOptions>()?).await
    }

    async fn pool(options: &PgConnectOptions) -> Result<PgPool> {
        Ok(PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await?)
    }
}

impl Mariadb {
    pub(super) async fn open(url: &str) -> Result<Self> {
        // The scheme of their own is not known to the client library.
        let options = url.replacen("mariadb", "mysql", 1).parse::<MySqlConnectOptions>()?;
        Self::with(url, options).await
    }

    async fn pool(options: &MySqlConnectOptions) -> Result<MySqlPool> {
        Ok(MySqlPoolOptions::new().max_connections(1).connect_with(options.clone()).await?)
    }
}
