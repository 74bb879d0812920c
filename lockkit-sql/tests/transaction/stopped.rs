//! A holder whose process is stopped for longer than its lease, and then goes on.

use std::env;
use std::ffi::OsString;
use std::process::{ExitCode, Stdio};

use libtest_mimic::Trial;
use lockkit_core::{BoxError, Lease, LockGuard, Locker};
use lockkit_sql::sqlite::SqliteDriver;
use lockkit_sql::transaction::{Error, begin, gate, retry};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{MySql, Pool, Postgres, Sqlite};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, stdin};
use tokio::process::Command;

use crate::support::{ATTEMPTS, Home, Shop, Tested, millis, on};

/// Tells this program that it is to be the holder: which database, where it is, and where the locks
/// are, a line each.
const HOLDER: &str = "LOCKKIT_TEST_HOLDER";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        on::<Postgres, _>("a_stopped_holder_changes_nothing", stopped::<Postgres>),
        on::<MySql, _>("a_stopped_holder_changes_nothing", stopped::<MySql>),
        on::<Sqlite, _>("a_stopped_holder_changes_nothing", stopped::<Sqlite>),
    ]
}

async fn stopped<DB: Tested>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let folder = tempfile::tempdir().unwrap();
    let locks = folder.path().join("locks.db");
    let mut told = OsString::from(format!("{}\n{}\n", DB::ID, shop.url));
    told.push(&locks);
    let mut holder = Command::new(env::current_exe().unwrap())
        .env(HOLDER, told)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut says = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(says.next_line().await.unwrap().unwrap(), "sold as a holder");
    assert_eq!(shop.pieces().await, 999);

    let pid = Pid::from_raw(holder.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // Its lease runs out.
    let second = lock(locks.to_str().unwrap()).await;
    let pool = shop.pool(1).await;
    sell(&pool, &second, 998).await.unwrap();
    kill_process(pid, Signal::CONT).unwrap();

    holder.stdin.take().unwrap().write_all(b"go on\n").await.unwrap();
    assert_eq!(says.next_line().await.unwrap().unwrap(), "refused; held: false");
    assert_eq!(shop.pieces().await, 998);
    assert!(holder.wait().await.unwrap().success());
}

/// What the holder's process does instead of tests.
pub(crate) fn hold() -> Option<ExitCode> {
    let told = env::var(HOLDER).ok()?;
    let [id, url, locks] = *told.split('\n').collect::<Vec<_>>() else { panic!("{told}") };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        match id {
            Postgres::ID => hold_in::<Postgres>(url, locks).await,
            MySql::ID => hold_in::<MySql>(url, locks).await,
            _ => hold_in::<Sqlite>(url, locks).await,
        }
    });
    Some(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "the test listens")]
async fn hold_in<DB: Tested>(url: &str, locks: &str) {
    let pool = Pool::<DB>::connect(url).await.unwrap();
    let guard = lock(locks).await;
    sell(&pool, &guard, 999).await.unwrap();
    println!("sold as a holder");
    // Stopped here.
    BufReader::new(stdin()).lines().next_line().await.unwrap().unwrap();
    let error = sell(&pool, &guard, 997).await.unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Error::Stale { .. })), "{error:?}");
    println!("refused; held: {}", guard.is_held());
}

async fn lock(locks: &str) -> LockGuard {
    let locker = Locker::new(SqliteDriver::open(locks).await.unwrap());
    let lease = Lease::new(millis(3_000));
    locker.lock("stock").unwrap().leased(lease).unwrap().acquire().await.unwrap()
}

async fn sell<DB: Tested>(pool: &Pool<DB>, guard: &LockGuard, pieces: i64) -> Result<(), BoxError> {
    retry(ATTEMPTS, || async {
        let mut tx = begin(pool).await?;
        gate(&mut tx, guard.name(), guard.fencing_token().unwrap()).await?;
        DB::execute(&mut tx, &format!("UPDATE stock SET pieces = {pieces} WHERE id = 1")).await?;
        Ok(tx.commit().await?)
    })
    .await
}
