//! The kernel's locks on open files: flock(2). They belong to the open file and its copies, not to
//! the process. So two opens by one process exclude each other, and closing one does not lose the
//! lock of the other.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind as IoErrorKind};
use std::path::Path;

use lockkit_core::driver::filesystem::FileId;

/// A lock that keeps everybody else out. Dropping this frees it.
#[derive(Debug)]
pub(crate) struct KernelLock {
    pub(crate) file: File,
    /// Whether a copy was given away, which is to keep the lock.
    pub(crate) is_shared: bool,
    /// The process that has taken it.
    pub(crate) taker: u32,
}

/// What came of asking for a lock.
#[derive(Debug)]
pub(crate) enum Ask {
    Granted(KernelLock),
    /// Somebody has it.
    Taken,
    /// Nobody has it, but somebody is looking whether anybody does: ask again.
    Disturbed,
}

impl KernelLock {
    pub(crate) fn ask(file: File) -> io::Result<Ask> {
        match file.try_lock() {
            Ok(()) => Ok(Ask::Granted(Self { file, is_shared: false, taker: std::process::id() })),
            // Those who only look have a shared lock, which does not keep out another shared one.
            Err(TryLockError::WouldBlock) => match is_locked(&file)? {
                true => Ok(Ask::Taken),
                false => Ok(Ask::Disturbed),
            },
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Lets go and asks for the same lock through another open file. The kernel has no single step
    /// for this, so somebody else may come in between.
    pub(crate) fn move_to(self, file: File) -> io::Result<Ask> {
        self.file.unlock()?;
        Self::ask(file)
    }

    /// Whether this process took it, rather than having a copy only from being forked.
    pub(crate) fn is_ours(&self) -> bool {
        self.taker == std::process::id()
    }
}

impl Drop for KernelLock {
    fn drop(&mut self) {
        // Closing alone would not do while a process that was forked meanwhile has a copy, which it
        // keeps at least until its `exec`. That process, if it tidies up, closes only its copy.
        if !self.is_shared
            && self.is_ours()
            && let Err(error) = self.file.unlock()
        {
            tracing::debug!(%error, "a lock file is unlocked by closing it only");
        }
    }
}

/// Whether somebody has the lock.
///
/// The only way to ask is to try. A shared lock for a moment is in nobody's way except that of
/// somebody who takes the lock at this moment, and who can tell: [`Ask::Disturbed`].
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => file.unlock().map(|()| false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Works while nobody has the lock, nor comes to have it; `None` if somebody has it. Nobody is
/// refused because of it, as with [a look](is_locked).
pub(crate) fn while_free<T, E: From<io::Error>>(
    file: &File,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<Option<T>, E> {
    match file.try_lock_shared() {
        Ok(()) => (),
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    let done = work();
    // A process that was forked meanwhile may have a copy.
    file.unlock()?;
    done.map(Some)
}

/// Whether the file is the one at `path`.
pub(crate) fn is_at(id: FileId, path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(FileId::of(&metadata) == id),
        Err(error) => match error.kind() {
            IoErrorKind::NotFound | IoErrorKind::NotADirectory => Ok(false),
            _ => Err(error),
        },
    }
}
