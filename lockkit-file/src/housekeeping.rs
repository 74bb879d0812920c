//! Removing the files of locks that nobody has used for over a day.
//!
//! - Nobody holds the lock of a file that is removed, nor comes to hold it: the sweeper has a
//!   shared lock on it, like one who looks. Whoever asks meanwhile asks again, and whoever had the
//!   file open finds, after its token is stored and before it is granted, that the path does not
//!   lead there.
//! - The file that is made next has no tokens, so its first token is the time of day, which has
//!   left behind all those that were granted or reserved in the old file.
//! - The path is not that of a file that was made meanwhile. Only sweepers and breaks take a file
//!   from its place. Sweepers keep each other out by a lock on the folder. A break that found a
//!   hold had set its mark by then, and the mark is looked for once the shared lock is there; a
//!   break that comes later finds no hold, since nobody has the lock.

use std::fs::{DirEntry, File, Metadata, ReadDir, TryLockError};
use std::io::{self, ErrorKind as IoErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkit_core::driver::DriverError;
use lockkit_core::driver::filesystem::FileId;
use lockkit_core::{FencingToken, Namespace};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::breaking;
use crate::claims::start_blocking;
use crate::error::Problem;
use crate::folder::{Folder, namespace_of};
use crate::kernel::{is_at, while_free};
use crate::look;
use crate::place::Place;
use crate::record::State;
use crate::time;

/// How long nobody has used what is removed. The clock may later be set back by less than this.
const IDLE: Duration = Duration::from_secs(25 * 60 * 60);

/// Not at once: many processes never get that old.
const FIRST: Duration = Duration::from_secs(10 * 60);
const EVERY: Duration = Duration::from_secs(60 * 60);

/// How many files are gone through at once, and how long until the next ones.
const PART: usize = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// Sweeps the folder every hour, until it is dropped.
#[derive(Debug)]
pub(crate) struct Housekeeping(AbortHandle);

impl Housekeeping {
    pub(crate) fn begin(folder: Arc<Folder>) -> Self {
        let keeping = tokio::spawn(async move {
            sleep(FIRST).await;
            loop {
                if let Err(error) = sweep(&folder).await {
                    let (path, error) = (folder.path().display(), error.into_source());
                    tracing::debug!(%path, %error, "idle lock files are not removed");
                }
                sleep(EVERY).await;
            }
        });
        Self(keeping.abort_handle())
    }

    pub(crate) fn end(&self) {
        self.0.abort();
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        self.end();
    }
}

/// Takes no thread from the requests.
async fn sweep(folder: &Arc<Folder>) -> Result<(), DriverError> {
    let mut sweep = None;
    loop {
        let folder = Arc::clone(folder);
        let part = start_blocking(move || {
            let go_on = || {
                let mut sweep = sweep.map_or_else(|| Sweep::begin(&folder), Ok)?;
                Ok(sweep.go_on(&folder)?.then_some(sweep))
            };
            go_on().map_err(|problem: Problem| problem.at(folder.path()))
        })?;
        sweep = part.await?;
        if sweep.is_none() {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}

/// One pass through all files of a folder. All calls block.
struct Sweep {
    folders: ReadDir,
    files: Option<Files>,
}

impl Sweep {
    fn begin(folder: &Folder) -> Result<Self, Problem> {
        folder.check()?;
        Ok(Self { folders: std::fs::read_dir(folder.path())?, files: None })
    }

    /// Goes through some more of the files. Returns whether there may be others.
    fn go_on(&mut self, folder: &Folder) -> Result<bool, Problem> {
        let files = match &mut self.files {
            Some(files) => files,
            None => match self.next_folder(folder)? {
                Some(files) => self.files.insert(files),
                None => return Ok(false),
            },
        };
        let are_more = files.go_on(folder).unwrap_or_else(|problem| {
            left_alone(&files.path, &problem);
            false
        });
        if !are_more {
            self.files = None;
        }
        Ok(true)
    }

    fn next_folder(&mut self, folder: &Folder) -> Result<Option<Files>, Problem> {
        for entry in &mut self.folders {
            let Some(namespace) = namespace_of(&entry?.file_name()) else { continue };
            // What is not a folder, or is somebody else's, is not one of ours.
            let Ok(Some(path)) = folder.find(&namespace) else { continue };
            match std::fs::read_dir(&path) {
                Ok(entries) => return Ok(Some(Files { namespace, path, entries })),
                Err(error) => left_alone(&path, &error.into()),
            }
        }
        Ok(None)
    }
}

/// The files of a namespace.
struct Files {
    namespace: Namespace,
    path: PathBuf,
    entries: ReadDir,
}

impl Files {
    fn go_on(&mut self, folder: &Folder) -> Result<bool, Problem> {
        let Some(place) = folder.open_place(&self.path)? else { return Ok(false) };
        let lock = place.reopen()?;
        match lock.try_lock() {
            Ok(()) => (),
            // Somebody else is sweeping it.
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        let are_more = self.go_on_alone(&place);
        // Unlocked, and not only closed, as holds are.
        lock.unlock()?;
        are_more
    }

    fn go_on_alone(&mut self, place: &Place) -> Result<bool, Problem> {
        for _ in 0..PART {
            let Some(entry) = self.entries.next() else { return Ok(false) };
            let entry = entry?;
            if let Err(problem) = self.remove_if_idle(place, &entry) {
                left_alone(&entry.path(), &problem);
            }
        }
        Ok(true)
    }

    /// Leaves alone what it cannot make out.
    fn remove_if_idle(&self, place: &Place, entry: &DirEntry) -> Result<(), Problem> {
        let path = entry.path();
        let metadata = match entry.metadata() {
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(()),
            metadata => metadata?,
        };
        // What is young is not even opened.
        if !metadata.is_file() || !is_old(&metadata)? || !is_of_a_lock(&path) {
            return Ok(());
        }
        let Ok(Some(file)) = place.open_to_look(&path) else { return Ok(()) };
        while_free(&file, || match self.is_idle(&file, &path) {
            Ok(true) => Ok(place.remove(&path)?),
            _ => Ok::<_, Problem>(()),
        })?;
        Ok(())
    }

    /// Whether the file may go. Nobody has its lock meanwhile.
    fn is_idle(&self, file: &File, path: &Path) -> Result<bool, Problem> {
        let metadata = file.metadata()?;
        let records = look::records(file)?;
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        // Copies that were given away do not keep it any more.
        let is_let_go = look::identify(&records, &self.namespace, &file_name)?
            .is_some_and(|(_, record)| record.state != State::Held);
        Ok(is_let_go
            // Both records are whole.
            && records.are_settled()
            && records.highest().is_some_and(|token| is_behind(token, time::of_day()))
            && is_old(&metadata)?
            // In this order, since a break may have come to its end in between.
            && !breaking::is_under_way(path)?
            && is_at(FileId::of(&metadata), path)?)
    }
}

/// A problem with one path, which does not keep the sweep from the others.
fn left_alone(path: &Path, problem: &Problem) {
    tracing::debug!(path = %path.display(), %problem, "idle lock files are not removed");
}

fn is_old(file: &Metadata) -> io::Result<bool> {
    let age = SystemTime::now().duration_since(file.modified()?);
    // Otherwise the clock was set back.
    Ok(age.is_ok_and(|age| age > IDLE))
}

/// Whether all tokens up to this one are so far behind the time of day, in microseconds, that a
/// file without tokens begins with a higher one.
fn is_behind(token: FencingToken, time_of_day: u64) -> bool {
    u128::from(token.get()) + IDLE.as_micros() < u128::from(time_of_day)
}

/// A mark is not: a shared lock on it would look like a break.
fn is_of_a_lock(path: &Path) -> bool {
    path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.'))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
    use std::sync::{Barrier, Mutex};
    use std::time::{Duration, Instant, SystemTime};

    use lockkit_core::driver::Claim;
    use lockkit_core::{LockName, Namespace};

    use super::{IDLE, PART, Sweep, is_behind};
    use crate::breaking::break_hold;
    use crate::folder::Folder;
    use crate::hold::{self, Hold};
    use crate::look;
    use crate::record::tests::{file, record};
    use crate::record::{Record, State};
    use crate::time;

    const HANG: Duration = Duration::from_secs(60);

    fn claim() -> Claim {
        Claim::new(LockName::new(&Namespace::default(), "a").unwrap(), HANG)
    }

    fn take(folder: &Folder) -> Option<Hold> {
        hold::tests::take(folder, &claim()).unwrap()
    }

    fn sweep(folder: &Folder) {
        let mut sweep = Sweep::begin(folder).unwrap();
        while sweep.go_on(folder).unwrap() {}
    }

    /// Puts a file in its place, or alters the one that is there, as if nobody had used the lock
    /// for a long time. Returns its token.
    fn age(path: &Path) -> u64 {
        age_as(path, State::Free)
    }

    fn age_as(path: &Path, state: State) -> u64 {
        let idle = IDLE + Duration::from_secs(60);
        let token = time::of_day() - u64::try_from(idle.as_micros()).unwrap();
        let [held, last] = [State::Held, state].map(|state| record(token, state));
        let [held, last] = [held, last].map(|record| Record { name: "a".into(), ..record });
        fs::write(path, file(&[&held, &last])).unwrap();
        File::open(path).unwrap().set_modified(SystemTime::now() - idle).unwrap();
        token
    }

    /// A folder, and where the file of the lock is.
    fn place() -> (tempfile::TempDir, Folder) {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        assert!(take(&folder).unwrap().end());
        (root, folder)
    }

    /// Counts a thread that has come to its end, even by a panic.
    struct Ending<'a>(&'a AtomicUsize);

    impl Drop for Ending<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn of_takers_who_race_sweepers_one_holds_and_tokens_rise() {
        const ROUNDS: usize = 150;
        const TAKERS: usize = 3;
        const SWEEPERS: usize = 2;
        let (_root, folder) = place();
        let path = folder.file_of(claim().name());
        let mut removed = 0;
        for _ in 0..ROUNDS {
            let old = age(&path);
            let aged = File::open(&path).unwrap();
            let start = Barrier::new(TAKERS + SWEEPERS);
            let (holders, ended) = (AtomicU32::new(0), AtomicUsize::new(0));
            let tokens = Mutex::new(vec![old]);
            std::thread::scope(|threads| {
                for _ in 0..TAKERS {
                    threads.spawn(|| {
                        start.wait();
                        let _end = Ending(&ended);
                        let hold = loop {
                            match take(&folder) {
                                Some(hold) => break hold,
                                None => std::thread::yield_now(),
                            }
                        };
                        assert_eq!(holders.fetch_add(1, SeqCst), 0, "two hold it");
                        tokens.lock().unwrap().push(hold.token().get());
                        assert!(hold.stands().unwrap());
                        assert_eq!(holders.fetch_sub(1, SeqCst), 1, "two held it");
                        assert!(hold.end());
                    });
                }
                for _ in 0..SWEEPERS {
                    threads.spawn(|| {
                        start.wait();
                        while ended.load(SeqCst) < TAKERS {
                            sweep(&folder);
                        }
                    });
                }
            });
            let tokens = tokens.into_inner().unwrap();
            assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
            assert_eq!(tokens.len(), 1 + TAKERS);
            removed += usize::from(aged.metadata().unwrap().nlink() == 0);
        }
        assert!(removed > 0, "no race");
    }

    /// A claim whose hold is broken may still believe that it holds the lock; the tokens tell them
    /// apart.
    #[test]
    fn sweepers_and_breaks_and_looks_leave_each_grant_its_token() {
        const ROUNDS: usize = 60;
        const TAKERS: usize = 3;
        let (_root, folder) = place();
        let name = claim().name().clone();
        let path = folder.file_of(&name);
        for _ in 0..ROUNDS {
            let old = age(&path);
            let (start, ended) = (Barrier::new(TAKERS + 3), AtomicUsize::new(0));
            let tokens = Mutex::new(vec![]);
            let until_then = |work: &dyn Fn()| {
                start.wait();
                while ended.load(SeqCst) < TAKERS {
                    work();
                }
            };
            std::thread::scope(|threads| {
                for _ in 0..TAKERS {
                    threads.spawn(|| {
                        start.wait();
                        let _end = Ending(&ended);
                        for _ in 0..3 {
                            // This is an error if the file was replaced over and over.
                            let taken = hold::tests::take(&folder, &claim());
                            let Ok(Some(hold)) = taken else { continue };
                            tokens.lock().unwrap().push(hold.token().get());
                            hold.end();
                        }
                    });
                }
                let (until_then, folder, name) = (&until_then, &folder, &name);
                threads.spawn(move || until_then(&|| sweep(folder)));
                threads.spawn(move || until_then(&|| drop(look::holder(folder, name).unwrap())));
                let breaks = AtomicUsize::new(3);
                threads.spawn(move || {
                    until_then(&|| {
                        if breaks.load(SeqCst) > 0 {
                            let broken = break_hold(folder, name, None, Instant::now() + HANG);
                            breaks.fetch_sub(usize::from(broken.unwrap().is_some()), SeqCst);
                        }
                    });
                });
            });
            let last = take(&folder).unwrap();
            let mut tokens = tokens.into_inner().unwrap();
            tokens.extend([old, last.token().get()]);
            assert_eq!(tokens.iter().max(), Some(&last.token().get()));
            assert!(last.end());
            let count = tokens.len();
            assert_eq!(HashSet::<u64>::from_iter(tokens).len(), count, "one was granted twice");
            let marks = fs::read_dir(path.parent().unwrap()).unwrap().count();
            assert_eq!(marks, 1, "other files are left");
        }
    }

    #[test]
    fn no_try_is_refused_for_a_sweeper() {
        const ROUNDS: u32 = 500;
        const SWEEPERS: usize = 2;
        let (_root, folder) = place();
        let path = folder.file_of(claim().name());
        for _ in 0..ROUNDS {
            age(&path);
            let (start, ended) = (Barrier::new(SWEEPERS + 1), AtomicUsize::new(0));
            std::thread::scope(|threads| {
                for _ in 0..SWEEPERS {
                    threads.spawn(|| {
                        start.wait();
                        while ended.load(SeqCst) == 0 {
                            sweep(&folder);
                        }
                    });
                }
                start.wait();
                let _end = Ending(&ended);
                assert!(take(&folder).expect("refused").end());
            });
        }
    }

    #[test]
    fn a_namespace_that_cannot_be_read_keeps_no_sweeper_from_the_next() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        for namespace in ["a", "b"] {
            fs::create_dir(root.path().join(namespace)).unwrap();
        }
        let mut namespaces = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().path());
        let (first, second) = (namespaces.next().unwrap(), namespaces.next().unwrap());
        for number in 0..=PART {
            fs::write(first.join(number.to_string()), "").unwrap();
        }
        let path = second.join("a");
        age(&path);
        let mut sweep = Sweep::begin(&folder).unwrap();
        assert!(sweep.go_on(&folder).unwrap());
        fs::remove_dir_all(&first).unwrap();
        while sweep.go_on(&folder).unwrap() {}
        assert!(!path.exists());
    }

    /// The kernel's lock tells: nobody is left to write that it is free.
    #[test]
    fn a_lock_whose_holder_left_is_let_go_once_its_copies_are_closed() {
        let (_root, folder) = place();
        let path = folder.file_of(claim().name());
        age_as(&path, State::Left);
        let copy = File::open(&path).unwrap();
        copy.lock().unwrap();
        sweep(&folder);
        assert!(path.exists(), "a copy keeps it");
        copy.unlock().unwrap();
        sweep(&folder);
        assert!(!path.exists());
        age_as(&path, State::Held);
        sweep(&folder);
        assert!(path.exists(), "its holder died");
    }

    /// A second one would remove what somebody made after the first.
    #[test]
    fn one_sweeps_at_a_time() {
        let (_root, folder) = place();
        let path = folder.file_of(claim().name());
        age(&path);
        let other = File::open(path.parent().unwrap()).unwrap();
        other.lock().unwrap();
        sweep(&folder);
        assert!(path.exists(), "another was at it");
        other.unlock().unwrap();
        sweep(&folder);
        assert!(!path.exists());
    }

    /// The clock may be set back by that much without a token that falls.
    #[test]
    fn what_is_removed_is_25_hours_behind_the_clock() {
        let idle = u64::try_from(IDLE.as_micros()).unwrap();
        let token = record(7_000_000, State::Free).token;
        assert!(!is_behind(token, 7_000_000 + idle));
        assert!(is_behind(token, 7_000_001 + idle));
        assert!(!is_behind(token, 0));
    }
}
