//! The kernel's lock on a lock file, and what is written into the file under it.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind as IoErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkit_core::FencingToken;
use lockkit_core::driver::filesystem::FileId;
use lockkit_core::driver::{Claim, DriverError, ErrorKind};
use rustix::time::{ClockId, clock_gettime};

use crate::error::Problem;
use crate::folder::Folder;
use crate::record::{Record, Records, SLOT, State, offset};

/// How often a lock file may be replaced while a claim asks for it.
const TRIES: usize = 8;

/// A lock that is held. Dropped, it is free.
///
/// All calls block.
#[derive(Debug)]
pub(crate) struct Hold {
    lock: KernelLock,
    path: PathBuf,
    id: FileId,
    /// What was granted, and where that is written.
    record: Record,
    slot: usize,
}

impl Hold {
    /// Takes the lock, unless somebody has it.
    pub(crate) fn take(folder: &Folder, claim: &Claim) -> Result<Option<Self>, DriverError> {
        let path = folder.file_of(claim.name());
        try_take(folder, claim, &path).map_err(|problem| problem.at(&path))
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

    /// Lets go, and says whether the hold stood until now.
    pub(crate) fn end(self) -> bool {
        // If that cannot be found out, nobody has found out the contrary.
        let stood = self.stands().unwrap_or(true);
        if stood && !self.lock.is_shared {
            let record = Record { state: State::Free, ..self.record.clone() };
            // Not over the grant, which has to be there if this is torn.
            if let Err(error) = write(&self.lock.file, 1 - self.slot, &record) {
                // It is there to be looked at; the lock is free all the same.
                tracing::debug!(path = %self.path.display(), %error, "the release is not noted");
            }
        }
        stood
    }
}

/// The kernel's lock on an open file: flock(2). It belongs to the open file and its copies, not
/// to the process, so that two opens of one process exclude each other, and none is lost when
/// another is closed.
#[derive(Debug)]
struct KernelLock {
    file: File,
    /// Whether a copy was given away, which is to keep the lock.
    is_shared: bool,
}

impl KernelLock {
    fn try_on(file: File) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { file, is_shared: false })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for KernelLock {
    fn drop(&mut self) {
        // Closing alone would not do while a process that was forked meanwhile has a copy, which
        // it keeps at least until its `exec`.
        if !self.is_shared
            && let Err(error) = self.file.unlock()
        {
            tracing::debug!(%error, "a lock file is unlocked by closing it only");
        }
    }
}

fn try_take(folder: &Folder, claim: &Claim, path: &Path) -> Result<Option<Hold>, Problem> {
    for _ in 0..TRIES {
        let Some(lock) = KernelLock::try_on(folder.open_file(path)?)? else { return Ok(None) };
        let hold = grant(folder, claim, path, lock)?;
        // Only now that the token is stored: whoever puts another file in place of this one and
        // then reads its tokens finds all that were ever granted.
        if is_at(hold.id, path)? {
            return Ok(Some(hold));
        }
    }
    let text = format!("the file was replaced {TRIES} times while the lock was being taken");
    Err(Problem::found(ErrorKind::Unreachable, text))
}

/// Stores the next token, so that it is on the disk, and makes a hold of the lock.
fn grant(folder: &Folder, claim: &Claim, path: &Path, lock: KernelLock) -> Result<Hold, Problem> {
    let file = &lock.file;
    let id = FileId::of(&file.metadata()?);
    let mut content = Vec::with_capacity(2 * SLOT);
    file.take(2 * SLOT as u64).read_to_end(&mut content)?;
    let records = Records::read(&content)?;
    let latest = records.latest();
    if let Some(other) = latest.filter(|latest| latest.name != claim.name().as_str()) {
        let text = format!("it is the file of another lock, {:?}", other.name);
        return Err(Problem::found(ErrorKind::Foreign, text));
    }
    let record = Record {
        state: State::Held,
        token: next_token(latest.map(|latest| latest.token))?,
        owner: claim.owner(),
        label: claim.label().as_str().into(),
        since: since_boot(),
        name: claim.name().as_str().into(),
    };
    let slot = records.spare();
    write(file, slot, &record)?;
    file.sync_data()?;
    if latest.is_none() {
        folder.sync_name(path)?;
    }
    Ok(Hold { lock, path: path.into(), id, record, slot })
}

fn write(file: &File, slot: usize, record: &Record) -> io::Result<()> {
    file.write_all_at(&record.encode(), offset(slot) as u64)
}

/// Whether the file is the one at `path`.
fn is_at(id: FileId, path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(FileId::of(&metadata) == id),
        Err(error) => match error.kind() {
            IoErrorKind::NotFound | IoErrorKind::NotADirectory => Ok(false),
            _ => Err(error),
        },
    }
}

/// One more than the last token, and no less than the time of day in microseconds: so tokens also
/// rise when the file was deleted. No other time is compared with it.
fn next_token(last: Option<FencingToken>) -> Result<FencingToken, Problem> {
    let next = last.map_or(1, |last| last.get() + 1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros);
    FencingToken::new(next.max(now)).ok_or_else(|| {
        Problem::found(ErrorKind::Capacity, "the fencing tokens of this lock are used up")
    })
}

/// What time it is on the host's boot-time clock, in microseconds.
fn since_boot() -> u64 {
    // Apple's CLOCK_MONOTONIC goes on in suspend.
    #[cfg(target_vendor = "apple")]
    const CLOCK: ClockId = ClockId::Monotonic;
    #[cfg(not(target_vendor = "apple"))]
    const CLOCK: ClockId = ClockId::Boottime;
    // It counts from the boot, so it is not negative.
    Duration::try_from(clock_gettime(CLOCK)).map_or(0, micros)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
