//! Several real processes: this test binary, started again.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkit_core::driver::{Attempt, Driver as _, Release};
use lockkit_sql::sqlite::SqliteDriver;

use crate::support::{Fixture, claim};

const CHILD: &str = "LOCKKIT_TEST_SQLITE_CHILD";
const PROCESSES: usize = 10;
const ROUNDS: usize = 20;

/// Ten processes create the database together, and each adds to a plain file under the lock.
#[test]
fn ten_processes_from_nothing_exclude_each_other() {
    let fixture = Fixture::new();
    let counter = fixture.folder().join("counter");
    std::fs::write(&counter, "0 0").unwrap();
    let children: Vec<_> = (0..PROCESSES).map(|_| start(&fixture.path())).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let (count, _) = read(&counter);
    assert_eq!(count, (PROCESSES * ROUNDS) as u64);
}

fn start(database: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--nocapture"])
        .env(CHILD, database)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// One of the processes; does nothing when run as a test.
#[tokio::test]
async fn child() {
    let Some(database) = std::env::var_os(CHILD) else { return };
    let database = Path::new(&database);
    let counter = database.with_file_name("counter");
    let driver = SqliteDriver::open(database).await.unwrap();
    for _ in 0..ROUNDS {
        let claim = claim("counter");
        let asking = async {
            loop {
                match driver.try_acquire(&claim).await.unwrap() {
                    Attempt::Granted(grant) => break grant.fencing_token().unwrap().get(),
                    _ => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        // Not for ever, if another process has failed.
        let token = tokio::time::timeout(Duration::from_secs(60), asking).await.unwrap();
        let (count, last) = read(&counter);
        assert!(token > last, "token {token} after {last}");
        std::fs::write(&counter, format!("{} {token}", count + 1)).unwrap();
        assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    }
    driver.close().await;
}

fn read(counter: &Path) -> (u64, u64) {
    let text = std::fs::read_to_string(counter).unwrap();
    let (count, token) = text.split_once(' ').unwrap();
    (count.parse().unwrap(), token.parse().unwrap())
}
