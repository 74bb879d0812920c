//! The files of locks that nobody has used for long. A day passes for them by what is written into
//! them, and an hour for the driver in virtual time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lockkit_core::driver::{Attempt, Change, Claim, Driver as _, Release};
use lockkit_core::{LockName, Namespace};
use lockkit_file::FileDriver;
use tokio::time::{sleep, timeout};

use crate::support::{Fixture, HANG, claim, forged, granted, name, seen, token};

const DAY: Duration = Duration::from_secs(26 * 60 * 60);

/// From when on a driver sweeps at the latest.
const SOON: Duration = Duration::from_secs(15 * 60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Makes a lock file.
async fn make(driver: &FileDriver, claim: &Claim) {
    granted(driver, claim).await;
    driver.release(claim).await.unwrap();
}

/// What was written into the file is a day older, and so is the file.
fn age(path: &Path) {
    write_aged(path);
    look_old(path);
}

fn write_aged(path: &Path) {
    let micros = u64::try_from(DAY.as_micros()).unwrap();
    let mut aged = Vec::new();
    for slot in fs::read(path).unwrap().chunks(4096) {
        let text = String::from_utf8(slot.to_vec()).unwrap();
        let mut record = text.trim_end_matches('\0').to_owned();
        for key in ["token ", "reserve "] {
            let Some(line) = text.lines().find(|line| line.starts_with(key)) else { continue };
            let number = line[key.len()..].split(' ').next().unwrap();
            let earlier = number.parse::<u64>().unwrap() - micros;
            record = forged(record.as_bytes(), line, &line.replace(number, &earlier.to_string()));
        }
        aged.extend(record.bytes());
        aged.resize(aged.len().next_multiple_of(4096), 0);
    }
    fs::write(path, aged).unwrap();
}

fn look_old(path: &Path) {
    File::open(path).unwrap().set_modified(SystemTime::now() - DAY).unwrap();
}

#[tokio::test(start_paused = true)]
async fn old_files_are_removed_and_no_others() {
    let fixture = Fixture::new();
    let maker = fixture.driver().await;
    let file = |name: &str| fixture.file(name);
    let elsewhere =
        LockName::new(&Namespace::new("Orders").unwrap(), &"long ".repeat(100)).unwrap();
    let elsewhere = Claim::new(elsewhere, HANG);
    make(&maker, &elsewhere).await;
    let orders = fixture.path().join(elsewhere.name().namespace().segment());
    let removed = [file("old"), orders.join(elsewhere.name().segment(200))];
    let mut kept = Vec::new();
    for name in [
        "old",
        "young",
        "granted",
        "touched",
        "held",
        "taken",
        "inherited",
        "dead",
        "broken",
        "torn",
        "cut",
    ] {
        make(&maker, &claim(name)).await;
        kept.push(file(name));
    }
    kept.remove(0);
    let [held, inherited, dead] = ["held", "inherited", "dead"].map(claim);
    for claim in [&held, &inherited] {
        granted(&maker, claim).await;
    }
    let dying = fixture.driver().await;
    granted(&dying, &dead).await;
    drop(dying);
    let copy = maker.descriptor(&inherited).await.unwrap().unwrap();
    maker.release(&inherited).await.unwrap();
    // As somebody who has not written the grant yet.
    let taken = File::open(file("taken")).unwrap();
    taken.try_lock().unwrap();
    let breaking = File::create(file(".broken")).unwrap();
    breaking.try_lock_shared().unwrap();
    removed.iter().for_each(|path| age(path));
    look_old(&file("granted"));
    write_aged(&file("touched"));
    ["held", "taken", "inherited", "dead", "broken"].iter().for_each(|name| age(&file(name)));
    for (name, torn, length) in [("torn", 30, 8192), ("cut", 4096, 5000)] {
        write_aged(&file(name));
        let mut content = fs::read(file(name)).unwrap();
        content[torn] ^= 1;
        content.truncate(length);
        fs::write(file(name), &content).unwrap();
        look_old(&file(name));
    }
    fs::write(file("foreign"), "Dear diary, today I locked nothing at all.").unwrap();
    fs::write(file("empty"), "").unwrap();
    fs::copy(file("old"), file("copy")).unwrap();
    fs::copy(file("old"), file(".hidden")).unwrap();
    fs::copy(file("old"), fixture.path().join("beside")).unwrap();
    for path in ["foreign", "empty", "copy", ".hidden", "../beside"].map(file) {
        look_old(&path);
        kept.push(path);
    }
    fs::create_dir(fixture.path().join("no namespace")).unwrap();
    let strange: PathBuf = fixture.path().join("no namespace/old");
    fs::copy(file("old"), &strange).unwrap();
    look_old(&strange);
    kept.push(strange);

    let [one, other] = [fixture.driver().await, fixture.driver().await];
    sleep(Duration::from_secs(5 * 60)).await;
    assert!(removed.iter().all(|path| path.exists()), "not at once");
    drop(other);
    sleep(SOON).await;
    let there: Vec<_> = removed.iter().filter(|path| path.exists()).collect();
    assert!(there.is_empty(), "{there:?}");
    let gone: Vec<_> = kept.iter().filter(|path| !path.exists()).collect();
    assert!(gone.is_empty(), "{gone:?}");
    assert_eq!(maker.release(&held).await.unwrap(), Release::Freed);
    drop((copy, taken, breaking));

    // And again.
    age(&file("young"));
    sleep(HOUR).await;
    assert!(!file("young").exists());
    age(&file("granted"));
    one.close().await;
    maker.close().await;
    sleep(2 * HOUR).await;
    assert!(file("granted").exists(), "they are closed");
}

#[tokio::test(start_paused = true)]
async fn a_folder_of_many_files_is_gone_through_to_its_end() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    make(&driver, &claim("0")).await;
    age(&fixture.file("0"));
    let content = fs::read(fixture.file("0")).unwrap();
    for number in 1..1234 {
        let path = fixture.file(&number.to_string());
        let slots = content.chunks(4096).flat_map(|slot| {
            let text = std::str::from_utf8(slot).unwrap().trim_end_matches('\0');
            let mut slot =
                forged(text.as_bytes(), "name 0", &format!("name {number}")).into_bytes();
            slot.resize(4096, 0);
            slot
        });
        fs::write(&path, slots.collect::<Vec<_>>()).unwrap();
        look_old(&path);
    }
    sleep(SOON).await;
    assert_eq!(fs::read_dir(fixture.path().join("lockkit")).unwrap().count(), 0);
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[tokio::test(start_paused = true)]
async fn what_is_young_or_a_mark_is_not_even_opened() {
    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};

    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    for name in ["old", "young"] {
        make(&driver, &claim(name)).await;
    }
    fs::copy(fixture.file("old"), fixture.file(".old")).unwrap();
    ["old", ".old"].iter().for_each(|name| look_old(&fixture.file(name)));
    let inotify = init(CreateFlags::NONBLOCK).unwrap();
    let [old, _mark, _young] = ["old", ".old", "young"]
        .map(|name| add_watch(&inotify, fixture.file(name), WatchFlags::OPEN).unwrap());
    sleep(SOON).await;
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut opened = Reader::new(&inotify, &mut buffer);
    assert_eq!(opened.next().unwrap().wd(), old);
    assert!(opened.next().is_err(), "more was opened");
}

#[tokio::test(start_paused = true)]
async fn tokens_rise_over_a_file_that_was_removed() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let (first, second) = (claim("a"), claim("a"));
    let before = token(&driver, &first).await;
    driver.release(&first).await.unwrap();
    age(&fixture.file("a"));
    sleep(SOON).await;
    assert!(!fixture.file("a").exists());
    assert_eq!(seen(&driver, "a").await, None);
    let after = token(&driver, &second).await;
    assert!(after > before, "{after} after {before}");
}

/// A release that goes unheard, as while a process that was forked has a copy of the descriptor.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[tokio::test(start_paused = true)]
async fn who_waits_is_told_that_the_file_was_removed() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    make(&driver, &claim("a")).await;
    age(&fixture.file("a"));
    let holder = File::open(fixture.file("a")).unwrap();
    holder.try_lock().unwrap();
    let waiting = Claim::new(name("a"), HANG).waiting();
    let Attempt::Taken(taken) = driver.try_acquire(&waiting).await.unwrap() else {
        panic!("granted")
    };
    assert!(!taken.is_unheard());
    drop(holder);
    sleep(SOON).await;
    assert!(!fixture.file("a").exists());
    let told = timeout(HANG, driver.changed(&waiting)).await;
    assert_eq!(told, Ok(Change::AskAgain));
    granted(&driver, &waiting).await;
    assert!(fixture.file("a").exists());
}
