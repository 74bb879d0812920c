//! Ending somebody's hold: another file takes the place of the one that is locked, and the holder
//! finds out by that.
//!
//! The new file is made beside the old one, under a name that begins with a dot, and its maker has
//! a shared lock on it: it is the mark. A taker writes its token first, then looks for a mark, then
//! checks whether its file is still in its place. So while a mark is there, nobody is granted the
//! lock who was not before, and a record that is read then has every token that was granted in the
//! old file. Whoever holds the lock by that record can only have let go, not have been followed,
//! when the new file takes the place of the old one. That is one step, and before it nothing has
//! changed.
//!
//! A process that was stopped while it was taking the lock, or letting go, has the kernel's lock and
//! no record that says so. It is granted nothing any more when it goes on, since by then its file is
//! not in its place. So its file is replaced, too, if it is found to be stuck.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind as IoErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkit_core::LockName;
use lockkit_core::driver::filesystem::FileId;
use lockkit_core::driver::{ErrorKind, OwnerId};

use crate::error::Problem;
use crate::folder::Folder;
use crate::kernel::{is_at, is_locked};
use crate::look;
use crate::place::Place;
use crate::record::{Record, State};

/// How long until somebody else's break is looked at again.
const PAUSE: Duration = Duration::from_millis(1);

/// How long it may take to write a record once one has the kernel's lock, or to let go after that.
/// Whoever is only slow begins again, as after any break.
const SLOW: Duration = Duration::from_millis(100);

/// Ends the hold, or only that of `owner` if one is named, and returns its record. Without an owner
/// it also ends what keeps the lock and is not a hold, and returns the record of the last one.
///
/// Waits until `limit` for others who are breaking it.
pub(crate) fn break_hold(
    folder: &Folder,
    name: &LockName,
    owner: Option<OwnerId>,
    limit: Instant,
) -> Result<Option<Record>, Problem> {
    let is_meant = |record: &Record| owner.is_none_or(|owner| owner == record.owner);
    let path = folder.file_of(name);
    let Some(place) = folder.open_place(&folder.path_of(name.namespace()))? else {
        return Ok(None);
    };
    let Some(lock) = place.open_to_look(&path)? else { return Ok(None) };
    let is_held = match look::holder_in(&lock, name)? {
        Some(holder) if is_meant(&holder) => true,
        None if owner.is_none() && is_stuck(&lock)? => false,
        _ => return Ok(None),
    };
    let mark = Mark::set(&place, &path, &lock, limit)?;
    // It may have been replaced meanwhile.
    let Some(old) = place.open_to_look(&path)? else { return Ok(None) };
    let free = |record: Record| Record { state: State::Free, ..record };
    match look::holder_in(&old, name)? {
        Some(held) if is_held && is_meant(&held) => {
            mark.replace(&path, &old, Some(&free(held.clone())))?;
            // The holder may have let go meanwhile.
            let stands = |last: &Record| last.token == held.token && last.may_stand();
            Ok(look::latest(&old, name)?.filter(stands))
        }
        None if !is_held && is_locked(&old)? => {
            let last = look::latest(&old, name)?.map(free);
            mark.replace(&path, &old, last.as_ref())?;
            Ok(last)
        }
        _ => Ok(None),
    }
}

/// Whether somebody has the kernel's lock, and neither writes nor lets go.
fn is_stuck(lock: &File) -> io::Result<bool> {
    let until = Instant::now() + SLOW;
    let before = look::read(lock)?;
    while is_locked(lock)? && look::read(lock)? == before {
        if Instant::now() >= until {
            return Ok(true);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(false)
}

/// Whether somebody is breaking a hold in the file at `path`.
pub(crate) fn is_under_way(path: &Path) -> io::Result<bool> {
    let path = mark_of(path);
    // Looking at the path first takes no descriptor, and there may be none left.
    match std::fs::symlink_metadata(&path).and_then(|_| Folder::open_aside(&path)) {
        // If it is not locked, it was left behind by somebody who died, or is not a mark yet.
        Ok(mark) => is_marked(&mark),
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_marked(mark: &File) -> io::Result<bool> {
    match mark.try_lock() {
        Ok(()) => mark.unlock().map(|()| false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The file that is to take the place of another. If dropped before it does, it is removed.
struct Mark<'a> {
    place: &'a Place,
    file: File,
    path: PathBuf,
    is_published: bool,
}

impl<'a> Mark<'a> {
    /// Makes a mark for the file of a lock, which is at `path`.
    fn set(place: &'a Place, path: &Path, lock: &File, limit: Instant) -> Result<Self, Problem> {
        let path = mark_of(path);
        loop {
            match place.make_mark(&path, lock) {
                Ok(file) => {
                    // Somebody may have taken it for one that was left behind.
                    if file.try_lock_shared().is_ok() && is_at(id(&file)?, &path)? {
                        return Ok(Self { place, file, path, is_published: false });
                    }
                }
                Err(error) if error.kind() == IoErrorKind::AlreadyExists => {
                    if remove_stale(place, &path)? {
                        continue;
                    }
                }
                Err(error) => return Err(error.into()),
            }
            // Not before the first try: there may have been no thread for so long.
            if Instant::now() >= limit {
                let text =
                    "somebody else is breaking a hold of this lock, and does not come to an end";
                return Err(Problem::found(ErrorKind::Unreachable, text));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Puts the new file in place of the old one, with all that was granted there.
    fn replace(mut self, path: &Path, old: &File, last: Option<&Record>) -> Result<(), Problem> {
        Folder::make_alike(&self.file, old)?;
        if let Some(last) = last {
            last.write(&self.file, 0)?;
        }
        // The name need not be on the disk yet: the next grant sees to it, and until then the old
        // file is as good.
        self.file.sync_data()?;
        self.place.replace(path, &self.path)?;
        self.is_published = true;
        Ok(())
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        // Nobody else removes or renames it while it is locked.
        if !self.is_published
            && let Err(error) = self.place.remove(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "an unused lock file is left");
        }
        // Unlocked, and not only closed, as holds are.
        if let Err(error) = self.file.unlock() {
            tracing::debug!(%error, "a new lock file is unlocked by closing it only");
        }
    }
}

/// Removes the mark of somebody who died before the break came to its end.
fn remove_stale(place: &Place, path: &Path) -> io::Result<bool> {
    let mark = match Folder::open_aside(path) {
        Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(true),
        mark => mark?,
    };
    match mark.try_lock() {
        Ok(()) => {
            if is_at(id(&mark)?, path)? {
                place.remove(path)?;
            }
            mark.unlock().map(|()| true)
        }
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn id(file: &File) -> io::Result<FileId> {
    Ok(FileId::of(&file.metadata()?))
}

/// Names of lock files do not begin with a dot.
fn mark_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}"))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::break_hold;
    use crate::hold::tests::{set_up, take};

    #[test]
    fn a_break_that_was_given_its_thread_late_is_tried() {
        let (_root, folder, claim) = set_up();
        let _hold = take(&folder, &claim).unwrap().unwrap();
        // What somebody has left who died at it.
        std::fs::write(folder.file_of(claim.name()).with_file_name(".a"), "").unwrap();
        let broken = break_hold(&folder, claim.name(), None, Instant::now()).unwrap();
        assert_eq!(broken.map(|record| record.owner), Some(claim.owner()));
    }
}
