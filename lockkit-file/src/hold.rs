//! The kernel's lock on a lock file, and what is written into the file under it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkit_core::FencingToken;
use lockkit_core::driver::filesystem::FileId;
use lockkit_core::driver::{Claim, DriverError, ErrorKind};

use crate::breaking;
use crate::error::Problem;
use crate::folder::Folder;
use crate::kernel::{Ask, KernelLock, is_at};
use crate::look;
use crate::place::Place;
use crate::record::{Record, State};
use crate::reserve::{Boot, Next};
use crate::time;

/// How often a lock file may be replaced, or its folder removed, while a claim asks for it.
const TRIES: usize = 8;

/// How long until a claim asks again because of a [disturbance](Disturbance), and how long it does so
/// before it gives its thread to others.
const PAUSE: Duration = Duration::from_micros(200);
const BRIEF: Duration = Duration::from_millis(1);

/// What came of asking for a lock.
#[derive(Debug)]
pub(crate) enum Taking {
    Granted(Hold),
    /// Somebody has it.
    Taken,
    /// Nobody may have it, but somebody is at its file: ask again.
    Disturbed(Disturbance),
}

/// What somebody does who is at the file of a lock and does not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// Takes microseconds.
    Look,
    /// Takes as long as the disk does.
    Break,
}

impl Disturbance {
    /// What to say if it does not come to an end.
    pub(crate) fn goes_on(self) -> Problem {
        let what = match self {
            Self::Look => "looking at it",
            Self::Break => "breaking a hold of it",
        };
        let text = format!("the lock is not held, but somebody is {what} all the time");
        Problem::found(ErrorKind::Unreachable, text)
    }
}

/// A lock that is held. Dropping this frees it.
///
/// All calls block.
#[derive(Debug)]
pub(crate) struct Hold {
    lock: KernelLock,
    path: PathBuf,
    id: FileId,
    /// What was granted; `loose` is where its end is noted.
    record: Record,
    loose: usize,
}

impl Hold {
    /// Takes the lock, unless somebody has it. Says by what it was disturbed `before`, if it was.
    pub(crate) fn take(
        folder: &Folder,
        claim: &Claim,
        before: Option<Disturbance>,
    ) -> Result<Taking, DriverError> {
        let path = folder.file_of(claim.name());
        let enter = || folder.enter(path.parent().unwrap_or(folder.path()));
        let taking = match try_take(folder, claim, &path, before, enter) {
            // The folders that stay open may have the last descriptors of this process.
            Err(problem) if problem.kind() == ErrorKind::Capacity && folder.close_unused() => {
                try_take(folder, claim, &path, before, enter)
            }
            taking => taking,
        };
        taking.map_err(|problem| problem.at(&path))
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.record.token
    }

    /// Whether this hold keeps anybody out. It does not if its file was deleted or replaced.
    pub(crate) fn stands(&self) -> Result<bool, DriverError> {
        is_at(self.id, &self.path).map_err(|error| Problem::from(error).at(&self.path))
    }

    /// A descriptor that keeps the lock until it, its copies and this hold are all closed.
    pub(crate) fn share(&mut self) -> Result<OwnedFd, DriverError> {
        let copy = self.lock.file.try_clone();
        let copy = copy.map_err(|error| Problem::from(error).at(&self.path))?;
        self.lock.is_shared = true;
        Ok(copy.into())
    }

    /// Lets go, and says whether the hold stood until now. A hold of the process that this one was
    /// forked from is not ours.
    pub(crate) fn end(self) -> bool {
        if !self.lock.is_ours() {
            return false;
        }
        // If this cannot be found out, nobody has found otherwise.
        let stood = self.stands().unwrap_or(true);
        let Self { lock, path, record, loose, .. } = self;
        let state = if lock.is_shared { State::Left } else { State::Free };
        // While nobody else can have the lock: whoever has it next would take a holder without a
        // note for one that died, and skip its reserve.
        if stood && let Err(error) = (Record { state, ..record }).write(&lock.file, loose) {
            tracing::debug!(path = %path.display(), %error, "the release is not noted");
        }
        stood
    }
}

fn try_take(
    folder: &Folder,
    claim: &Claim,
    path: &Path,
    before: Option<Disturbance>,
    mut enter: impl FnMut() -> Result<Place, Problem>,
) -> Result<Taking, Problem> {
    let until = Instant::now() + BRIEF;
    let mut is_broken = before == Some(Disturbance::Break);
    let mut tries = TRIES;
    while tries > 0 {
        // Before the next token is stored, which would be one for nothing.
        while is_broken && breaking::is_under_way(path)? {
            if !pause(until) {
                return Ok(Taking::Disturbed(Disturbance::Break));
            }
        }
        let asked = enter().and_then(|place| Ok((ask(folder, &place, path)?, place)));
        let (asked, place) = match asked {
            // The folder of the namespace has just been removed, or another is in its place.
            Err(problem) if problem.is_absence() && tries > 1 => {
                tries -= 1;
                continue;
            }
            asked => asked?,
        };
        match asked {
            Ask::Taken => return Ok(Taking::Taken),
            Ask::Disturbed => {
                if !pause(until) {
                    return Ok(Taking::Disturbed(Disturbance::Look));
                }
            }
            Ask::Granted(lock) => {
                let hold = grant(folder, &place, claim, path, lock)?;
                // Only now that the token is stored: whoever puts another file in place of this one
                // and then reads its tokens finds all that were ever granted. And in this order,
                // since a break may have come to its end in between.
                is_broken = breaking::is_under_way(path)?;
                if !is_broken && is_at(hold.id, path)? {
                    return Ok(Taking::Granted(hold));
                }
                drop(hold);
                tries -= 1;
            }
        }
    }
    let text = format!("the file was replaced {TRIES} times while the lock was being taken");
    Err(Problem::found(ErrorKind::Unreachable, text))
}

/// Gives somebody time to come to an end; `false` if there was enough.
fn pause(until: Instant) -> bool {
    let is_early = Instant::now() < until;
    if is_early {
        std::thread::sleep(PAUSE);
    }
    is_early
}

/// Asks for the kernel's lock.
///
/// Whenever a file that was open for writing is closed, all waiters of the lock hear it. So only a
/// claim that finds the lock free opens the file for writing.
fn ask(folder: &Folder, place: &Place, path: &Path) -> Result<Ask, Problem> {
    let Some(file) = place.open_to_look(path)? else {
        return Ok(KernelLock::ask(place.open_to_hold(path)?)?);
    };
    match KernelLock::ask(file)? {
        Ask::Granted(probe) => match place.open_to_hold(path) {
            Err(problem) if problem.kind() == ErrorKind::Capacity => {
                // The probe may have the last descriptor of this process.
                drop(probe);
                Ok(KernelLock::ask(place.open_to_hold(path)?)?)
            }
            file => Ok(probe.move_to(file?)?),
        },
        Ask::Taken => {
            folder.check_right_to_write(path)?;
            Ok(Ask::Taken)
        }
        Ask::Disturbed => Ok(Ask::Disturbed),
    }
}

/// Stores the next token, so that it is not granted again, and makes a hold of the lock.
fn grant(
    folder: &Folder,
    place: &Place,
    claim: &Claim,
    path: &Path,
    lock: KernelLock,
) -> Result<Hold, Problem> {
    let file = &lock.file;
    let id = FileId::of(&file.metadata()?);
    let records = look::records(file)?;
    // It may be the file of another lock.
    records.latest_of(claim.name())?;
    let next = Next::after(&records, Boot::current(), time::of_day()).ok_or_else(|| {
        Problem::found(ErrorKind::Capacity, "the fencing tokens of this lock are used up")
    })?;
    let record = Record {
        state: State::Held,
        token: next.token,
        reserve: next.reserve,
        owner: claim.owner(),
        label: claim.label().as_str().into(),
        since: time::since_boot(),
        name: claim.name().as_str().into(),
    };
    if next.is_preceded_by_a_sync {
        file.sync_data()?;
    }
    let slot = records.loose();
    record.write(file, slot)?;
    let loose = if next.is_to_be_synced {
        file.sync_data()?;
        if !records.are_settled() {
            folder.sync_name(place)?;
        }
        1 - slot
    } else {
        slot
    };
    Ok(Hold { lock, path: path.into(), id, record, loose })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::{Duration, Instant};

    use lockkit_core::driver::{Claim, DriverError};
    use lockkit_core::{LockName, Locker, Namespace};
    use tempfile::TempDir;

    use super::{Ask, Disturbance, Hold, TRIES, Taking, ask, grant, try_take};
    use crate::FileDriver;
    use crate::breaking::break_hold;
    use crate::folder::Folder;
    use crate::kernel::is_locked;
    use crate::look;
    use crate::record::State;
    use crate::reserve::{Boot, Next};
    use crate::time;

    /// A folder that is removed with the first of these, and a claim to a lock there.
    pub(crate) fn set_up() -> (TempDir, Folder, Claim) {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let name = LockName::new(&Namespace::default(), "a").unwrap();
        (root, folder, Claim::new(name, Duration::from_secs(30)))
    }

    /// Takes the lock, unless somebody has it, however often that is disturbed.
    pub(crate) fn take(folder: &Folder, claim: &Claim) -> Result<Option<Hold>, DriverError> {
        let (limit, mut before) = (Instant::now() + Duration::from_secs(60), None);
        loop {
            match Hold::take(folder, claim, before)? {
                Taking::Granted(hold) => return Ok(Some(hold)),
                Taking::Taken => return Ok(None),
                Taking::Disturbed(by) => before = Some(by),
            }
            assert!(Instant::now() < limit, "disturbed for ever: {before:?}");
        }
    }

    /// No test here starts a process, which would have copies of its own for a moment.
    #[tokio::test]
    async fn holds_whose_copies_are_closed_leave_tokens_with_the_clock() {
        let root = tempfile::tempdir().unwrap();
        let lock = Locker::new(FileDriver::open(root.path()).await.unwrap()).lock("a").unwrap();
        let mut last = 0;
        for _ in 0..30 {
            let guard = lock.acquire().await.unwrap();
            drop(guard.descriptor().await.unwrap().unwrap());
            let token = guard.fencing_token().unwrap().get();
            assert!(token > last, "{token} after {last}");
            last = token;
            guard.release().await.unwrap();
        }
        let now = time::of_day();
        assert!(last < now + 2_000_000, "{} µs ahead", last - now);
    }

    /// Whoever is woken by the end of the last copy finds the file as it was before.
    #[test]
    fn a_hold_that_a_copy_keeps_is_seen_and_leaves_its_reserve() {
        let (_root, folder, claim) = set_up();
        let mut hold = take(&folder, &claim).unwrap().unwrap();
        let (token, copy) = (hold.token().get(), hold.share().unwrap());
        assert!(hold.end());
        let holder = || look::holder(&folder, claim.name()).unwrap().map(|record| record.owner);
        assert_eq!(holder(), Some(claim.owner()));
        let file = std::fs::File::open(folder.file_of(claim.name())).unwrap();
        let next = Next::after(&look::records(&file).unwrap(), Boot::current(), 7).unwrap();
        assert_eq!((next.token.get(), next.is_preceded_by_a_sync), (token + 1, false));
        assert_eq!(next.is_to_be_synced, Boot::current().is_none());
        drop(copy);
        assert_eq!(holder(), None);
    }

    /// A taker is stopped before its record is written, and goes on when the lock is another's.
    #[test]
    fn who_was_broken_while_it_took_the_lock_is_not_granted_it() {
        let (_root, folder, first) = set_up();
        let name = first.name();
        let claim = || Claim::new(name.clone(), first.ttl());
        let take = || take(&folder, &claim()).unwrap();
        assert!(take().unwrap().end());
        let path = folder.file_of(name);
        let place = folder.enter(path.parent().unwrap()).unwrap();
        let Ask::Granted(lock) = ask(&folder, &place, &path).unwrap() else { panic!("taken") };
        assert!(take().is_none());
        break_hold(&folder, name, None, Instant::now() + Duration::from_secs(60)).unwrap();
        let next = take().unwrap();
        let late = grant(&folder, &place, &claim(), &path, lock).unwrap();
        assert!(!late.stands().unwrap());
        assert!(next.stands().unwrap());
        assert!(!late.end() && next.end());
    }

    /// Each token that is stored for nothing is one less, and takes the reserve of a second with it.
    #[test]
    fn who_waits_for_a_break_to_end_stores_no_tokens() {
        let (_root, folder, claim) = set_up();
        assert!(take(&folder, &claim).unwrap().unwrap().end());
        let path = folder.file_of(claim.name());
        let mark = std::fs::File::create(path.with_file_name(".a")).unwrap();
        mark.lock_shared().unwrap();
        let is_disturbed = |before| {
            let taking = Hold::take(&folder, &claim, before).unwrap();
            assert!(matches!(taking, Taking::Disturbed(Disturbance::Break)), "{taking:?}");
        };
        is_disturbed(None);
        let content = std::fs::read(&path).unwrap();
        is_disturbed(Some(Disturbance::Break));
        assert!(std::fs::read(&path).unwrap() == content, "it was written to");
        drop(mark);
        assert!(take(&folder, &claim).unwrap().unwrap().end());
    }

    /// As where an administrator tidies up, or where an empty folder gives way to another.
    #[test]
    fn a_namespace_that_is_removed_while_a_lock_is_taken_is_made_again() {
        for removals in [1, TRIES - 1, TRIES] {
            let (_root, folder, claim) = set_up();
            let (namespace, path) =
                (folder.path_of(&Namespace::default()), folder.file_of(claim.name()));
            let mut left = removals;
            let enter = || {
                let place = folder.enter(&namespace)?;
                if left > 0 {
                    std::fs::remove_dir(&namespace).unwrap();
                    left -= 1;
                }
                Ok(place)
            };
            match try_take(&folder, &claim, &path, None, enter) {
                Ok(Taking::Granted(hold)) => assert!(removals < TRIES && hold.end()),
                Err(problem) => assert!(removals == TRIES && problem.is_absence(), "{problem:?}"),
                taking => panic!("{removals} removals: {taking:?}"),
            }
            assert_eq!(left, 0);
        }
    }

    /// A fork without `exec` takes what Rust calls unsafe, so the taker is only made to look like
    /// another.
    #[test]
    fn a_process_that_was_forked_ends_nobodys_hold() {
        let (_root, folder, claim) = set_up();
        let path = folder.file_of(claim.name());
        let take = || take(&folder, &claim).unwrap().unwrap();
        let held = |state| {
            let file = std::fs::File::open(&path).unwrap();
            assert_eq!(is_locked(&file).unwrap(), state == State::Held);
            assert_eq!(look::records(&file).unwrap().latest().unwrap().state, state);
        };
        for ends in [true, false] {
            let mut forked = take();
            let kept = forked.lock.file.try_clone().unwrap();
            forked.lock.taker = 0;
            match ends {
                true => assert!(!forked.end()),
                false => drop(forked),
            }
            held(State::Held);
            drop(kept);
        }
        let own = take();
        let copy = own.lock.file.try_clone().unwrap();
        assert!(own.end());
        held(State::Free);
        drop(copy);
    }
}
