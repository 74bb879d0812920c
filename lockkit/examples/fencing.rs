//! A stale holder is refused by the database: the fencing token is a column and a condition.
//!
//! `cargo run --example fencing --features sqlite`: the first holder is paused for longer than its
//! lease, as a debugger, a suspended machine or a full disk can pause a process, and wakes up
//! unaware.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::time::Duration;

use lockkit::{FencingToken, Lease, Renew};
use sqlx::{Connection as _, SqliteConnection};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |file: &str| folder.path().join(file).display().to_string();
    let locker = lockkit::connect(&format!("sqlite:{}", path("locks.db"))).await?;
    // Not renewed, just as when the whole process is paused.
    let lease = Lease::new(Duration::from_millis(200)).renew(Renew::Never);
    let lock = locker.lock("balance/7")?.leased(lease)?;

    let mut data =
        SqliteConnection::connect(&format!("sqlite:{}?mode=rwc", path("data.db"))).await?;
    sqlx::raw_sql(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, fence INTEGER);
         INSERT INTO account VALUES (7, 100, 0)",
    )
    .execute(&mut data)
    .await?;

    let first = lock.acquire().await?;
    let stale = first.fencing_token().ok_or("this backend gives no token")?;
    first.lost().await;

    let second = lock.acquire().await?;
    let token = second.fencing_token().ok_or("this backend gives no token")?;
    assert!(withdraw(&mut data, 30, token).await?, "the holder was refused");
    println!("token {token} withdrew 30");

    // The first holder goes on as if nothing had happened.
    assert!(!withdraw(&mut data, 30, stale).await?, "a stale holder was let in");
    println!("token {stale} is stale and was refused");

    let (balance,): (i64,) =
        sqlx::query_as("SELECT balance FROM account WHERE id = 7").fetch_one(&mut data).await?;
    assert_eq!(balance, 70);
    drop(second);
    locker.shutdown().await;
    Ok(())
}

/// One statement compares, remembers and writes. Returns whether the write was let in.
async fn withdraw(
    data: &mut SqliteConnection,
    amount: i64,
    token: FencingToken,
) -> sqlx::Result<bool> {
    let token = i64::from(token);
    let done = sqlx::query(
        "UPDATE account SET balance = balance - ?, fence = ? WHERE id = 7 AND fence <= ?",
    )
    .bind(amount)
    .bind(token)
    .bind(token)
    .execute(data)
    .await?;
    Ok(done.rows_affected() == 1)
}
