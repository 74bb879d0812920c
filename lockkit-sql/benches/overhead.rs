//! What lockkit costs over the database itself: `cargo bench -p lockkit-sql [-- DATABASE...]`, the
//! databases being `postgres` and `mariadb`: leases as rows, and locks that a session holds.
//!
//! Client and server share one CPU, because their placement alone changes a round trip manifold.
//! Each figure is a ratio of two things measured in the same run, alternately, each on the same
//! client library: lockkit, and exactly the statements that it sends, sent by hand on a connection
//! that is held.
#![expect(clippy::print_stdout, reason = "a benchmark reports")]

use std::error::Error;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockkit_core::driver::{Claim, Driver, OwnerId};
use lockkit_core::{BackendUrl, Label, Locker};
use lockkit_sql::mysql::MysqlDriver;
use lockkit_sql::mysql::session::MysqlSessionDriver;
use lockkit_sql::postgres::PostgresDriver;
use lockkit_sql::postgres::session::PostgresSessionDriver;
use lockkit_testkit::overhead::{is_wanted, median, ratio, share_one_cpu, spread};
use lockkit_testkit::{MARIADB, POSTGRES};
use sqlx::{Connection as _, MySqlConnection, PgConnection};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 15;
const PAIRS: usize = 1_000;
const TTL: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    share_one_cpu()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Their disks are not what is measured.
    if is_wanted(POSTGRES.id()) {
        let server = POSTGRES.start_with(&["-c", "synchronous_commit=off", "-c", "fsync=off"])?;
        runtime.block_on(postgres(&server.url()))?;
    }
    if is_wanted(MARIADB.id()) {
        let server = MARIADB.start_with(&["--innodb-flush-log-at-trx-commit=0"])?;
        runtime.block_on(mariadb(&server.url()))?;
    }
    Ok(())
}

async fn postgres(url: &str) -> Result<()> {
    let by_hand = async || PgConnection::connect(url).await;
    let connect = async || PostgresDriver::connect(&url.parse::<BackendUrl>()?).await;
    let (one, other) = (connect().await?, connect().await?);
    pairs("postgres", one, other, PostgresRows(by_hand().await?)).await?;
    let url = format!("{url}?hold=session&ttl=30s");
    let connect = async || PostgresSessionDriver::connect(&url.parse::<BackendUrl>()?).await;
    let (one, other) = (connect().await?, connect().await?);
    pairs("postgres session", one, other, PostgresSession(by_hand().await?)).await
}

async fn mariadb(url: &str) -> Result<()> {
    let by_hand = async || MySqlConnection::connect(url).await;
    let connect = async || MysqlDriver::connect(&url.parse::<BackendUrl>()?).await;
    let (one, other) = (connect().await?, connect().await?);
    pairs("mariadb", one, other, MysqlRows(by_hand().await?)).await?;
    let url = format!("{url}?hold=session&ttl=30s");
    let connect = async || MysqlSessionDriver::connect(&url.parse::<BackendUrl>()?).await;
    let (one, other) = (connect().await?, connect().await?);
    pairs("mariadb session", one, other, MysqlSession(by_hand().await?)).await
}

/// The statements that a driver sends, sent by hand.
#[async_trait]
trait ByHand {
    async fn take(&mut self, name: &str, owner: OwnerId) -> Result<()>;
    async fn release(&mut self, name: &str, owner: OwnerId) -> Result<()>;
}

/// Acquire and release, nobody else about.
async fn pairs(
    what: &str,
    driver: impl Driver,
    for_locker: impl Driver,
    mut raw: impl ByHand,
) -> Result<()> {
    let locker = Locker::new(for_locker);
    let lock = locker.lock("pair")?;
    let (mut by_hand, mut by_driver, mut by_lockkit) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let [mut hand, mut through_driver, mut lockkit] =
            [(); 3].map(|()| Vec::with_capacity(PAIRS));
        for _ in 0..PAIRS {
            let start = Instant::now();
            let owner = OwnerId::random();
            raw.take("by-hand", owner).await?;
            raw.release("by-hand", owner).await?;
            hand.push(start.elapsed());

            let start = Instant::now();
            let claim = Claim::new(lock.name().clone(), TTL);
            driver.try_acquire(&claim).await?;
            driver.release(&claim).await?;
            through_driver.push(start.elapsed());

            let start = Instant::now();
            lock.acquire().await?.release().await?;
            lockkit.push(start.elapsed());
        }
        // The first round warms up.
        if round > 0 {
            let hand = median(&mut hand);
            by_hand.push(hand);
            by_driver.push(ratio(median(&mut through_driver), hand));
            by_lockkit.push(ratio(median(&mut lockkit), hand));
        }
    }
    println!(
        "{what}, uncontended pair, p50: by hand {:?}; driver {} of it; lockkit {} of it",
        median(&mut by_hand),
        spread(&mut by_driver),
        spread(&mut by_lockkit)
    );
    driver.close().await;
    locker.shutdown().await;
    Ok(())
}

struct PostgresRows(PgConnection);

#[async_trait]
impl ByHand for PostgresRows {
    async fn take(&mut self, name: &str, owner: OwnerId) -> Result<()> {
        sqlx::query(include_str!("../src/postgres/sql/take.sql"))
            .bind("lockkit")
            .bind(name)
            .bind(owner.to_string())
            .bind(Label::of_this_process().as_str())
            .bind(i64::try_from(TTL.as_micros())?)
            .bind(None::<&str>)
            .bind(false)
            .bind(false)
            .bind(0_i64)
            .bind(0_i64)
            .bind(2_250)
            .fetch_all(&mut self.0)
            .await?;
        Ok(())
    }

    async fn release(&mut self, name: &str, owner: OwnerId) -> Result<()> {
        sqlx::query("SELECT lockkit_release($1, $2, $3, $4, $5) AS was_held")
            .bind("lockkit")
            .bind(name)
            .bind(owner.to_string())
            .bind(false)
            .bind(2_250)
            .fetch_all(&mut self.0)
            .await?;
        Ok(())
    }
}

struct PostgresSession(PgConnection);

#[async_trait]
impl ByHand for PostgresSession {
    async fn take(&mut self, name: &str, owner: OwnerId) -> Result<()> {
        let take = "SELECT is_granted, last_token, ask_again \
                    FROM lockkit_session_take($1, $2, $3, $4, $5, $6, $7)";
        sqlx::query(take)
            .bind(4711_i64)
            .bind("lockkit")
            .bind(name)
            .bind(owner.to_string())
            .bind(Label::of_this_process().as_str())
            .bind(i64::try_from(TTL.as_micros())?)
            .bind(true)
            .fetch_all(&mut self.0)
            .await?;
        Ok(())
    }

    async fn release(&mut self, _: &str, _: OwnerId) -> Result<()> {
        let release = "SELECT lockkit_session_release($1) AS was_held";
        sqlx::query(release).bind(4711_i64).fetch_all(&mut self.0).await?;
        Ok(())
    }
}

struct MysqlRows(MySqlConnection);

#[async_trait]
impl ByHand for MysqlRows {
    async fn take(&mut self, name: &str, owner: OwnerId) -> Result<()> {
        let (owner, label) = (owner.to_string(), Label::of_this_process().as_str().to_owned());
        let (owner, label) = (owner.as_bytes(), label.as_bytes());
        let ttl = i64::try_from(TTL.as_micros())?;
        sqlx::query(include_str!("../src/mysql/sql/take.sql"))
            .bind("lockkit".as_bytes())
            .bind(name.as_bytes())
            .bind(owner)
            .bind(label)
            .bind(ttl)
            .bind(owner)
            .bind(owner)
            .bind(0_i64)
            .bind(0_i64)
            .bind(0_i64)
            .bind(owner)
            .bind(label)
            .bind(ttl)
            .bind(ttl)
            .bind(ttl)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    async fn release(&mut self, name: &str, owner: OwnerId) -> Result<()> {
        sqlx::query(include_str!("../src/mysql/sql/release.sql"))
            .bind("lockkit".as_bytes())
            .bind(name.as_bytes())
            .bind(owner.to_string().as_bytes())
            .execute(&mut self.0)
            .await?;
        Ok(())
    }
}

struct MysqlSession(MySqlConnection);

#[async_trait]
impl ByHand for MysqlSession {
    async fn take(&mut self, name: &str, owner: OwnerId) -> Result<()> {
        let (owner, label) = (owner.to_string(), Label::of_this_process().as_str().to_owned());
        let of_hold = ["lockkit", name, &owner, &label, "by hand"];
        let values = [name].into_iter().chain(of_hold).chain([name]).chain(of_hold);
        let take = sqlx::query(include_str!("../src/mysql/sql/session_take.sql"));
        let take = values.fold(take, |take, value| take.bind(value.as_bytes()));
        take.execute(&mut self.0).await?;
        Ok(())
    }

    async fn release(&mut self, name: &str, _: OwnerId) -> Result<()> {
        let release = "SELECT COALESCE(RELEASE_LOCK(?), 0) AS was_held";
        sqlx::query(release).bind(name.as_bytes()).fetch_all(&mut self.0).await?;
        Ok(())
    }
}
