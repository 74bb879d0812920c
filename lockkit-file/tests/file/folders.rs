//! Which folders are used, and who may use what is made in them.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::path::Path;

use lockkit_core::driver::{Driver as _, ErrorKind, Inspect as _};
use lockkit_core::{BackendUrl, Error, Namespace};
use lockkit_file::FileDriver;

use crate::support::{Fixture, claim, failed, granted, mode, name, set_mode, told, told_by_driver};

async fn misconfigured(path: &Path, reason: &str) {
    let error = FileDriver::open(path).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{}", told(&error));
    assert!(told(&error).contains(reason), "{}", told(&error));
    assert!(told(&error).contains(path.to_str().unwrap()), "{}", told(&error));
}

#[tokio::test]
async fn places_that_are_no_folder_are_refused() {
    let fixture = Fixture::new();
    let file = fixture.path().join("file");
    fs::write(&file, "").unwrap();
    misconfigured(&fixture.path().join("missing"), "it does not exist").await;
    misconfigured(&file, "it is not a folder").await;
    misconfigured(&file.join("beyond"), "").await;
    let link = fixture.path().join("link");
    symlink(fixture.path(), &link).unwrap();
    misconfigured(&link, "it is a symbolic link; name the folder that it leads to").await;
    let error = FileDriver::open(&link.join("")).await.unwrap_err();
    assert!(told(&error).contains("it is a symbolic link"), "{}", told(&error));
}

#[tokio::test]
async fn a_folder_where_everybody_may_replace_files_is_refused() {
    let fixture = Fixture::new();
    set_mode(fixture.path(), 0o777);
    misconfigured(fixture.path(), "chmod o-w").await;
    set_mode(fixture.path(), 0o1777);
    let driver = fixture.driver().await;
    granted(&driver, &claim("a")).await;

    set_mode(fixture.file("a").parent().unwrap(), 0o777);
    let (kind, told) = failed(&driver, &claim("b")).await;
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(told.contains("its folder can be written to by everybody"), "{told}");
}

/// Why a folder is not used any more that was fit when the driver connected.
async fn unfit(driver: &FileDriver, path: &Path, reason: &str) {
    let reason = format!("the folder {} {reason}", path.display());
    let asked = driver.try_acquire(&claim("a")).await.map(drop);
    let seen = driver.look(&name("a")).await.map(drop);
    let listed = driver.held(&Namespace::default()).await.map(drop);
    let broken = driver.break_hold(&name("a"), None).await.map(drop);
    for answer in [asked, seen, listed, broken] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        let told = told_by_driver(error);
        assert!(told.contains(&reason), "{told}");
    }
}

#[tokio::test]
async fn a_folder_that_is_opened_to_everybody_later_is_refused_until_it_is_closed() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("a");
    granted(&driver, &held).await;
    driver.release(&held).await.unwrap();
    set_mode(fixture.path(), 0o777);
    unfit(&driver, fixture.path(), "can be written to by everybody").await;
    set_mode(fixture.path(), 0o700);
    granted(&driver, &held).await;
}

#[tokio::test]
async fn a_link_that_takes_the_place_of_the_folder_later_is_not_followed() {
    let fixture = Fixture::new();
    let [path, elsewhere] = ["locks", "elsewhere"].map(|name| fixture.path().join(name));
    fs::create_dir(&path).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    let url = format!("file:{}?call_limit=30s", path.display());
    let driver = connect(&url).await.unwrap();
    granted(&driver, &claim("a")).await;
    fs::rename(&path, fixture.path().join("moved")).unwrap();
    symlink(&elsewhere, &path).unwrap();
    unfit(&driver, &path, "is a symbolic link; name the folder that it leads to").await;
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

/// Whoever owns a folder may replace what is in it, whatever its mode.
#[tokio::test]
async fn a_folder_of_another_user_is_refused() {
    // Of root's files there are some everywhere; for root, files of others can be made.
    let fixture = Fixture::new();
    let root = rustix::process::geteuid().is_root();
    if root {
        chown(fixture.path(), Some(4711), None).unwrap();
        misconfigured(fixture.path(), "belongs to user 4711").await;
        chown(fixture.path(), Some(0), None).unwrap();
        let driver = fixture.driver().await;
        chown(fixture.path(), Some(4711), None).unwrap();
        unfit(&driver, fixture.path(), "belongs to user 4711").await;
        chown(fixture.path(), Some(0), None).unwrap();
        // Where anybody may make one, it matters who made it.
        set_mode(fixture.path(), 0o1777);
        let namespace = fixture.path().join("lockkit");
        fs::create_dir(&namespace).unwrap();
        chown(&namespace, Some(4711), None).unwrap();
        let (kind, told) = failed(&fixture.driver().await, &claim("a")).await;
        assert_eq!(kind, ErrorKind::Misconfigured);
        assert!(told.contains("its folder belongs to user 4711"), "{told}");
    } else {
        FileDriver::open("/").await.unwrap();
    }
}

#[tokio::test]
async fn a_namespace_that_leads_elsewhere_is_refused() {
    let (fixture, elsewhere) = (Fixture::new(), Fixture::new());
    symlink(elsewhere.path(), fixture.path().join("lockkit")).unwrap();
    let (kind, told) = failed(&fixture.driver().await, &claim("a")).await;
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(told.contains("its folder is a symbolic link"), "{told}");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_made_is_for_the_users_of_the_folder() {
    for (folder, expected_folder, expected_file) in [
        (0o700, 0o700, 0o600),
        (0o755, 0o700, 0o600),
        (0o1777, 0o700, 0o600),
        (0o770, 0o770, 0o660),
        (0o2770, 0o2770, 0o660),
    ] {
        let fixture = Fixture::new();
        set_mode(fixture.path(), folder);
        let driver = fixture.driver().await;
        granted(&driver, &claim("a")).await;
        let file = fixture.file("a");
        // Whether the bit that hands the group on is handed on is up to the system.
        assert_eq!(mode(file.parent().unwrap()) & 0o777, expected_folder & 0o777, "{folder:o}");
        assert_eq!(mode(&file), expected_file, "{folder:o}");
    }
}

/// Also by those whose own group is another one.
#[tokio::test]
async fn what_is_made_belongs_to_the_group_of_the_folder() {
    let fixture = Fixture::new();
    if rustix::process::geteuid().is_root() {
        chown(fixture.path(), None, Some(4711)).unwrap();
    }
    set_mode(fixture.path(), 0o770);
    let group = fs::metadata(fixture.path()).unwrap().gid();
    granted(&fixture.driver().await, &claim("a")).await;
    let file = fixture.file("a");
    for path in [file.parent().unwrap(), &file] {
        assert_eq!(fs::metadata(path).unwrap().gid(), group, "{}", path.display());
    }
}

#[tokio::test]
async fn a_folder_that_is_gone_is_misconfigured() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    fs::remove_dir(fixture.path()).unwrap();
    unfit(&driver, fixture.path(), "does not exist").await;
    fs::create_dir(fixture.path()).unwrap();
    granted(&driver, &claim("a")).await;
}

async fn connect(url: &str) -> Result<FileDriver, Error> {
    FileDriver::connect(&url.parse::<BackendUrl>()?).await
}

#[tokio::test]
async fn a_url_names_a_folder() {
    let fixture = Fixture::new();
    let path = fixture.path().join("a b%20#");
    fs::create_dir(&path).unwrap();
    let encoded = format!("{}/a%20b%2520%23", fixture.path().display());
    for url in [format!("file:{encoded}"), format!("file://{encoded}?call_limit=30s")] {
        assert_eq!(connect(&url).await.unwrap().path(), path);
    }
    // Relative to the folder of the package, where tests run.
    let relative = connect("file:src").await.unwrap();
    assert_eq!(relative.path(), Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    for (url, reason) in [
        ("file://locks", "write `file:locks`"),
        ("file://var/locks", "`file:///var/locks`"),
        ("file:", "names no folder"),
        ("file://", "names no folder"),
        ("file://me:secret@/locks", "no user"),
        ("file:locks?mode=0600", "known are: namespace"),
        ("redis:locks", "`file`"),
        ("file:locks?call_limit=0s", "at most 30s"),
        ("file:locks?call_limit=31s", "at most 30s"),
    ] {
        let error = connect(url).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn nothing_is_made_before_a_lock_is_asked_for() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    driver.release(&claim("a")).await.unwrap();
    driver.renew(&claim("a")).await.unwrap();
    assert_eq!(fs::read_dir(fixture.path()).unwrap().count(), 0);
}
