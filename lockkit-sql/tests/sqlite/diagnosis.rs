//! What is found out about a database and the place where it is.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use lockkit_core::driver::{Driver as _, ErrorKind, Inspect as _};
use lockkit_core::{Diagnosis, Error, Grade, Namespace};
use lockkit_sql::sqlite::SqliteDriver;
use sqlx::Connection as _;

use crate::support::{Fixture, claim, execute, granted, name, number, told_by_driver};

async fn diagnosis(driver: &SqliteDriver) -> Vec<Diagnosis> {
    driver.diagnose(&Namespace::default()).await.unwrap()
}

/// What is not as it should be: topic, grade, and what a person reads.
async fn troubles(driver: &SqliteDriver) -> Vec<(&'static str, Grade, String)> {
    let mut troubles = diagnosis(driver).await;
    troubles.retain(|finding| finding.grade() != Grade::Good);
    let told =
        |finding: &Diagnosis| format!("{}; {}", finding.finding(), finding.advice().unwrap());
    troubles.iter().map(|one| (one.topic(), one.grade(), told(one))).collect()
}

/// The only trouble.
async fn trouble(driver: &SqliteDriver, topic: &str, grade: Grade) -> String {
    let troubles = troubles(driver).await;
    match &troubles[..] {
        [(found, of, text)] if *found == topic && *of == grade => text.clone(),
        _ => panic!("not {topic} alone: {troubles:?}"),
    }
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_sound_database_is_good_in_all_respects() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("a")).await;
    let findings = diagnosis(&driver).await;
    let topics: Vec<_> = findings.iter().map(Diagnosis::topic).collect();
    let expected =
        ["file system", "rights", "space", "log", "version", "persistence", "clock", "integrity"];
    assert_eq!(topics, expected);
    for finding in &findings {
        assert_eq!(finding.grade(), Grade::Good, "{finding:?}");
    }
    // Nor is a connection needed that the driver has.
    driver.close().await;
    assert_eq!(troubles(&driver).await, []);
}

#[tokio::test]
async fn a_file_that_is_gone_is_an_error() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    std::fs::rename(fixture.path(), fixture.folder().join("moved.db")).unwrap();
    let told = trouble(&driver, "file", Grade::Error).await;
    assert!(told.contains("locks.db: the file was deleted or replaced"), "{told}");
}

#[tokio::test]
async fn a_second_name_is_an_error() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    std::fs::hard_link(fixture.path(), fixture.folder().join("second.db")).unwrap();
    let told = trouble(&driver, "file system", Grade::Error).await;
    assert!(told.contains("several names"), "{told}");
}

#[tokio::test]
async fn what_everybody_may_write_is_a_warning() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    allow(fixture.folder(), 0o777);
    let told = trouble(&driver, "rights", Grade::Warning).await;
    assert!(told.contains(&format!("`chmod o-w {}`", fixture.folder().display())), "{told}");
    allow(fixture.folder(), 0o700);
    allow(&fixture.path(), 0o666);
    let told = trouble(&driver, "rights", Grade::Warning).await;
    assert!(told.contains(&format!("`chmod o-w {}`", fixture.path().display())), "{told}");
}

const CHILD: &str = "LOCKKIT_TEST_SQLITE_READ_ONLY";

/// Root may write anywhere, so this is another process, of another user if need be.
#[test]
fn a_folder_that_may_not_be_written_to_is_an_error() {
    let fixture = Fixture::new();
    let program = fixture.folder().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut child = Command::new(program);
    if std::fs::metadata(fixture.folder()).unwrap().uid() == 0 {
        let nobody = 65_534;
        chown(fixture.folder(), Some(nobody), Some(nobody)).unwrap();
        child.uid(nobody).gid(nobody);
    }
    let child = child.args(["--exact", "diagnosis::child", "--nocapture"]);
    let output = child.env(CHILD, fixture.folder()).current_dir("/").output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The other process; does nothing when run as a test.
#[tokio::test]
async fn child() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let folder = Path::new(&folder);
    let path = folder.join("locks.db");
    let driver = SqliteDriver::open(&path).await.unwrap();
    assert_eq!(troubles(&driver).await, []);
    allow(folder, 0o500);
    let told = trouble(&driver, "rights", Grade::Error).await;
    assert!(told.contains(&format!("may not make files in {}:", folder.display())), "{told}");
    allow(folder, 0o700);
    allow(&path, 0o400);
    let told = trouble(&driver, "rights", Grade::Error).await;
    assert!(told.contains(&format!("may not read and write {}:", path.display())), "{told}");
    // Who opens it anew is told so, too.
    driver.close().await;
    allow(&path, 0o000);
    let asked = driver.try_acquire(&claim("a")).await.map(drop);
    for error in [asked, driver.look(&name("a")).await.map(drop)].map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Denied, "{}", told_by_driver(error));
    }
    let error = SqliteDriver::open(&path).await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
}

#[tokio::test]
async fn a_log_that_is_not_emptied_is_a_warning() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let mut reader = fixture.raw().await;
    execute(&mut reader, "BEGIN; SELECT * FROM lockkit_hold").await;
    // The same pages over and over, none of which can go from the log to the database.
    let mut writer = fixture.raw().await;
    execute(&mut writer, "PRAGMA synchronous = OFF; CREATE TABLE large (bytes)").await;
    for _ in 0..18 {
        let rewrite = "DELETE FROM large; INSERT INTO large VALUES (randomblob(4000000))";
        execute(&mut writer, rewrite).await;
    }
    let told = trouble(&driver, "log", Grade::Warning).await;
    assert!(told.contains("somebody keeps, or kept, a read transaction open"), "{told}");
}

#[tokio::test]
async fn another_journal_mode_is_a_warning() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    driver.close().await;
    execute(&mut fixture.raw().await, "PRAGMA journal_mode = DELETE").await;
    let told = trouble(&driver, "persistence", Grade::Warning).await;
    assert!(told.contains("journal mode delete"), "{told}");
    // As advised.
    let driver = fixture.driver().await;
    assert_eq!(troubles(&driver).await, []);
}

#[tokio::test]
async fn rows_on_another_clock_are_a_warning() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("a")).await;
    granted(&driver, &claim("b")).await;
    execute(&mut fixture.raw().await, "UPDATE lockkit_hold SET clock = 'other' WHERE name = 'a'")
        .await;
    let told = trouble(&driver, "clock", Grade::Warning).await;
    assert!(
        told.contains("namespace): 1;")
            && told.starts_with("holds and places counted on another clock"),
        "{told}"
    );
    let other = Namespace::new("other").unwrap();
    let findings = driver.diagnose(&other).await.unwrap();
    assert!(findings.iter().all(|finding| finding.grade() == Grade::Good), "of another namespace");
}

#[tokio::test]
async fn a_damaged_database_is_an_error() {
    // The head of the file; what is read all the time; what only a check of all pages reads.
    for (page, found) in [
        ("SELECT 1", "file is not a database"),
        ("SELECT rootpage FROM sqlite_schema WHERE name = 'lockkit_hold'", "malformed"),
        (
            "SELECT rootpage FROM sqlite_schema WHERE name = 'lockkit_counter'",
            "locks.db is damaged: Tree",
        ),
    ] {
        let fixture = Fixture::new();
        let driver = fixture.driver().await;
        granted(&driver, &claim("a")).await;
        let mut raw = fixture.raw().await;
        let page = usize::try_from(number(&mut raw, page).await).unwrap();
        raw.close().await.unwrap();
        driver.close().await;
        let mut bytes = std::fs::read(fixture.path()).unwrap();
        bytes[(page - 1) * 4096..page * 4096].fill(0x5a);
        std::fs::write(fixture.path(), bytes).unwrap();
        let told = trouble(&driver, "integrity", Grade::Error).await;
        assert!(told.contains(found) && told.contains("move it aside"), "{told}");
    }
}

#[tokio::test]
async fn a_large_database_is_not_checked() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let fill = "CREATE TABLE large AS SELECT zeroblob(34000000)";
    execute(&mut fixture.raw().await, fill).await;
    let told = trouble(&driver, "integrity", Grade::Warning).await;
    assert!(told.contains("32 MiB") && told.contains("PRAGMA quick_check"), "{told}");
}

#[tokio::test]
async fn a_newer_layout_is_an_error() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    execute(&mut fixture.raw().await, "PRAGMA user_version = 2").await;
    let told = trouble(&driver, "version", Grade::Error).await;
    assert!(told.contains("layout version 2"), "{told}");
}
