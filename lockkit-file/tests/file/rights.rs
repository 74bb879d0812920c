//! What others find while something is made that they may use.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use lockkit_core::driver::Driver as _;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::support::{Fixture, broken, claim, granted, mode, set_mode};

/// All that happens to the entries of a folder.
struct Watched(OwnedFd);

impl Watched {
    fn new(folder: &Path) -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ATTRIB;
        inotify::add_watch(&inotify, folder, flags).unwrap();
        Self(inotify)
    }

    /// What has happened to this entry.
    fn events(&self, entry: &str) -> Vec<ReadFlags> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let (mut reader, mut events) = (Reader::new(&self.0, &mut buffer), Vec::new());
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().unwrap().to_str().unwrap();
                    if name == entry {
                        events.push(event.events() - ReadFlags::ISDIR);
                    }
                }
                Err(Errno::AGAIN) => return events,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Else another of the group is denied what it may use, and for ever if the maker is killed there.
#[tokio::test]
async fn what_is_made_has_its_rights_from_the_first_moment() {
    let fixture = Fixture::new();
    set_mode(fixture.path(), 0o770);
    let driver = fixture.driver().await;
    let around = Watched::new(fixture.path());
    let held = claim("a");
    granted(&driver, &held).await;
    assert_eq!(around.events("lockkit"), [ReadFlags::MOVED_TO]);
    assert_eq!(mode(&fixture.path().join("lockkit")) & 0o777, 0o770);

    let namespace = Watched::new(&fixture.path().join("lockkit"));
    granted(&driver, &claim("b")).await;
    assert_eq!(namespace.events("b"), [ReadFlags::CREATE]);
    assert_eq!(mode(&fixture.file("b")), 0o660);

    // The file that is to take the place of another.
    assert!(broken(&driver, "a", None).await.is_some());
    assert_eq!(namespace.events(".a"), [ReadFlags::CREATE]);
    assert_eq!(mode(&fixture.file("a")), 0o660);
    driver.release(&held).await.unwrap();
}

/// Its own files are its own from the beginning.
#[tokio::test]
async fn what_is_for_one_user_is_made_in_one_step() {
    let fixture = Fixture::new();
    let around = Watched::new(fixture.path());
    granted(&fixture.driver().await, &claim("a")).await;
    assert_eq!(around.events("lockkit"), [ReadFlags::CREATE]);
    assert_eq!(mode(&fixture.file("a")), 0o600);
}
