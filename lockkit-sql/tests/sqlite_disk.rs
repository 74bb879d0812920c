//! SQLite on a disk that is full or read-only, which takes a right to arrange. Where it is missing,
//! the test is ignored with the reason.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lockkit_core::driver::{Attempt, Claim, Driver as _, ErrorKind, Inspect as _};
use lockkit_core::{LockName, Namespace};
use lockkit_sql::sqlite::SqliteDriver;

/// How often this binary, started again, is to take a lock before the disk is filled up, in the folder
/// in which it is started.
const TIMES: &str = "LOCKKIT_TEST_SQLITE_TIMES";

fn main() -> ExitCode {
    if let Ok(times) = std::env::var(TIMES) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(fill(times.parse().unwrap()));
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        Trial::ignorable_test("a_disk_without_room_is_capacity_when_connecting", connecting),
        Trial::ignorable_test("a_read_only_disk_is_denied_when_connecting", read_only),
        Trial::ignorable_test("a_full_disk_is_capacity_and_an_error", full),
        Trial::ignorable_test("a_log_that_need_not_grow_serves_on_a_full_disk", grown),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Prints what becomes of a lock while the disk becomes full, a line each.
#[expect(clippy::print_stdout, reason = "for the test that started this process")]
async fn fill(times: u32) {
    let driver = match SqliteDriver::open("locks.db").await {
        Ok(driver) => driver,
        Err(error) => return println!("did not open: {error}"),
    };
    println!("{}", room(&driver).await);
    for _ in 0..times {
        assert_eq!(take(&driver).await, Ok(()));
    }
    let mut filling = fs::File::create("filling").unwrap();
    while filling.write_all(&[0; 4096]).is_ok() {}
    println!("{}", room(&driver).await);
    println!("{:?}", take(&driver).await);
}

/// What the diagnosis thinks of the room on the disk.
async fn room(driver: &SqliteDriver) -> String {
    let findings = driver.diagnose(&Namespace::default()).await.unwrap();
    findings.iter().find(|finding| finding.topic() == "space").unwrap().grade().to_string()
}

/// Takes the lock, and lets go of it.
async fn take(driver: &SqliteDriver) -> Result<(), ErrorKind> {
    let name = LockName::new(&Namespace::default(), "orders").unwrap();
    let claim = Claim::new(name, Duration::from_secs(60));
    let attempt = driver.try_acquire(&claim).await.map_err(|error| error.kind())?;
    assert!(matches!(attempt, Attempt::Granted(_)));
    driver.release(&claim).await.map_err(|error| error.kind())?;
    Ok(())
}

/// What [`fill`] prints on a disk of that size; the reason why there is none.
fn on_a_disk(size: &str, times: u32) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().unwrap();
    let arranged = |script: &str, folder: &Path| {
        Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-ec", script, "sh", size])
            .arg(std::env::current_exe().unwrap())
            .current_dir(folder)
            .env(TIMES, times.to_string())
            .output()
    };
    const MOUNT: &str = "mount -t tmpfs -o size=$1 none .";
    match arranged(MOUNT, folder.path()) {
        Ok(output) if output.status.success() => (),
        Ok(output) => return Err(String::from_utf8_lossy(&output.stderr).trim().into()),
        Err(error) => return Err(format!("unshare: {error}")),
    }
    let script = format!("{MOUNT}; cd \"$PWD\"; exec \"$2\"");
    Ok(lines(&arranged(&script, folder.path()).unwrap()))
}

fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect()
}

/// For the first page, the shared memory, the log.
fn connecting() -> Result<Completion, Failed> {
    for size in ["4k", "8k", "32k", "40k"] {
        match on_a_disk(size, 0) {
            Err(reason) => return Ok(Completion::ignored_with(reason)),
            Ok(lines) => {
                assert!(lines[0].contains("no room"), "{size}: {lines:?}");
                assert_eq!(lines.len(), 1);
            }
        }
    }
    Ok(Completion::Completed)
}

fn read_only() -> Result<Completion, Failed> {
    match on_a_disk("1m,ro", 0) {
        Err(reason) => Ok(Completion::ignored_with(reason)),
        Ok(lines) => {
            assert!(lines[0].contains("refuses"), "{lines:?}");
            assert_eq!(lines.len(), 1);
            Ok(Completion::Completed)
        }
    }
}

fn full() -> Result<Completion, Failed> {
    fares("1m", 1, "Err(Capacity)")
}

/// It is begun anew once it has a thousand pages.
fn grown() -> Result<Completion, Failed> {
    fares("16m", 500, "Ok(())")
}

/// What becomes of a lock once a disk of that size is full, after it was taken so often.
fn fares(size: &str, times: u32, outcome: &str) -> Result<Completion, Failed> {
    match on_a_disk(size, times) {
        Err(reason) => Ok(Completion::ignored_with(reason)),
        Ok(lines) => {
            assert_eq!(lines, ["warning", "error", outcome]);
            Ok(Completion::Completed)
        }
    }
}
