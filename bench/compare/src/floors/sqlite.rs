use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use lockkit_bench::Result;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Executor as _};
use tokio::sync::Mutex;

use super::{NAMESPACE, TTL, nothing_is_pushed, owner, prepare};
use crate::agent::{Client, Library};

/// A file.
pub(super) struct Floor {
    path: String,
}

/// One connection.
pub(super) struct Raw(Mutex<SqliteConnection>);

impl Floor {
    pub(super) async fn at(url: String) -> Result<Self> {
        prepare(&url).await?;
        let path = url.strip_prefix("sqlite:").ok_or("it is not a path")?;
        Ok(Self { path: path.into() })
    }
}

impl Library for Floor {
    type Client = Raw;

    async fn connect(&self) -> Result<Raw> {
        // As the driver has it, which asks again by itself where another process writes.
        let options = SqliteConnectOptions::new()
            .filename(&self.path)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5))
            .row_buffer_size(4096)
            .disable_statement_logging();
        Ok(Raw(Mutex::new(options.connect().await?)))
    }
}

const TAKE: &str = concat!(
    include_str!("../../../../lockkit-sql/src/sqlite/take.sql"),
    include_str!("../../../../lockkit-sql/src/sqlite/look.sql"),
    include_str!("../../../../lockkit-sql/src/sqlite/commit.sql")
);
const RELEASE: &str = include_str!("../../../../lockkit-sql/src/sqlite/release.sql");

impl Client for Raw {
    type Lock = String;
    type Hold = String;

    fn lock(&self, name: &str) -> Result<String> {
        Ok(name.into())
    }

    async fn acquire(&self, name: &String) -> Result<String> {
        let (owner, label) = owner();
        let take = sqlx::query(TAKE)
            .bind(NAMESPACE)
            .bind(name.clone())
            .bind(owner.clone())
            .bind(CLOCK)
            .bind(now()?)
            .bind(i64::try_from(TTL.as_micros())?)
            .bind(i64::try_from(SystemTime::UNIX_EPOCH.elapsed()?.as_micros())?)
            .bind(0_i64)
            .bind(label);
        self.0.lock().await.fetch_all(take).await?;
        Ok(owner)
    }

    async fn release(&self, name: &String, owner: String) -> Result<()> {
        let release = sqlx::query(RELEASE)
            .bind(NAMESPACE)
            .bind(name.clone())
            .bind(owner)
            .bind(CLOCK)
            .bind(now()?);
        self.0.lock().await.fetch_all(release).await?;
        Ok(())
    }

    async fn hand_overs(&self, _: &Self, _: &str, _: &[Duration]) -> Result<Option<Vec<Duration>>> {
        nothing_is_pushed()
    }
}

/// What the driver calls the clock of a host has as many characters: a boot and a time namespace.
const CLOCK: &str = "00000000-0000-0000-0000-000000000000:4026531834";

/// On a clock of its own.
fn now() -> Result<i64> {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    Ok(i64::try_from(BEGINNING.elapsed().as_micros())?)
}
