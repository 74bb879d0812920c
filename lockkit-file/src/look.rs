//! Who holds a lock, found out without having it. All calls block.

use std::fs::File;
use std::io::{self, ErrorKind as IoErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockkit_core::driver::ErrorKind;
use lockkit_core::{Holder, LockName, LockStatus, Namespace};

use crate::error::Problem;
use crate::folder::Folder;
use crate::kernel;
use crate::record::{Record, Records, SLOT};
use crate::time;

/// How often a lock may change hands while it is looked at. Each change takes the taker longer than
/// a look takes.
const TRIES: usize = 100;

/// The record of the grant that holds the lock.
pub(crate) fn holder(folder: &Folder, name: &LockName) -> Result<Option<Record>, Problem> {
    if folder.find(name.namespace())?.is_none() {
        return Ok(None);
    }
    match folder.open_to_look(&folder.file_of(name))? {
        Some(file) => holder_in(&file, name),
        None => Ok(None),
    }
}

/// Like [`holder`], in this file.
///
/// The kernel's lock alone decides, and the record says whose it is: a holder that died has left
/// its record, and so has one that let go while copies that it gave away may have kept the lock. In
/// the moments in which somebody else takes the lock and has not written its own record yet, the
/// lock is still seen as that of the one before.
pub(crate) fn holder_in(file: &File, name: &LockName) -> Result<Option<Record>, Problem> {
    for _ in 0..TRIES {
        let before = read(file)?;
        let records = Records::read(&before)?;
        let grant = records.latest_of(name)?.filter(|record| record.may_stand());
        let Some(grant) = grant else { return Ok(None) };
        let is_locked = kernel::is_locked(file)?;
        // All of it, since a record that is being written is passed over for one of long ago.
        if read(file)? == before {
            return Ok(is_locked.then(|| grant.clone()));
        }
    }
    let text = format!("the lock changed hands {TRIES} times while it was looked at");
    Err(Problem::found(ErrorKind::Unreachable, text))
}

/// What was written last into the file of this lock.
pub(crate) fn latest(file: &File, name: &LockName) -> Result<Option<Record>, Problem> {
    Ok(records(file)?.latest_of(name)?.cloned())
}

pub(crate) fn records(file: &File) -> Result<Records, Problem> {
    Records::read(&read(file)?)
}

/// What is in a lock file.
pub(crate) fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut content = vec![0; 2 * SLOT];
    let mut length = 0;
    while length < content.len() {
        match file.read_at(&mut content[length..], length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == IoErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    content.truncate(length);
    Ok(content)
}

/// A file in the folder of a namespace.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    /// The lock whose file it is and what was written last, if anything ever was; or why it is not
    /// a lock file.
    pub(crate) content: Result<Option<(LockName, Record)>, Problem>,
    file: Option<File>,
}

impl Entry {
    /// Who holds the lock.
    pub(crate) fn holder(&self) -> Result<Option<Record>, Problem> {
        match (&self.content, &self.file) {
            (Ok(Some((name, record))), Some(file)) if record.may_stand() => holder_in(file, name),
            _ => Ok(None),
        }
    }
}

/// Goes through the files of a namespace, except those that begin with a dot, until `limit`.
///
/// # Errors
///
/// [`ErrorKind::Unreachable`] in place of the next file if the limit has passed: somebody else needs
/// the thread.
pub(crate) fn entries(
    folder: &Folder,
    namespace: &Namespace,
    limit: Instant,
) -> Result<impl Iterator<Item = Result<Entry, Problem>>, Problem> {
    let listing = match folder.find(namespace)? {
        Some(path) => Some(std::fs::read_dir(path)?),
        None => None,
    };
    let entries = listing.into_iter().flatten().filter_map(move |entry| {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error.into())),
        };
        let file_name = entry.file_name().to_string_lossy().into_owned();
        if file_name.starts_with('.') {
            return None;
        }
        if Instant::now() >= limit {
            // With few files, it was the thread that was late.
            let text = "there is no time left to look at all files";
            return Some(Err(Problem::found(ErrorKind::Unreachable, text)));
        }
        let path = entry.path();
        let (content, file) = match folder.open_to_look(&path) {
            // It was removed meanwhile.
            Ok(None) => return None,
            Ok(Some(file)) => {
                let content =
                    records(&file).and_then(|records| identify(&records, namespace, &file_name));
                (content, Some(file))
            }
            Err(problem) => (Err(problem), None),
        };
        Some(Ok(Entry { path, content, file }))
    });
    Ok(entries)
}

/// The lock whose file has these records, and the last of them.
pub(crate) fn identify(
    records: &Records,
    namespace: &Namespace,
    file_name: &str,
) -> Result<Option<(LockName, Record)>, Problem> {
    let Some(record) = records.latest() else { return Ok(None) };
    match LockName::new(namespace, &record.name) {
        Ok(name) if Folder::file_name_of(&name) == file_name => Ok(Some((name, record.clone()))),
        _ => Err(record.is_of_another_lock()),
    }
}

pub(crate) fn status(name: LockName, holder: Option<Record>) -> LockStatus {
    let status = LockStatus::free(name);
    match holder {
        Some(record) => status.held_by(holder_of(&record)),
        None => status,
    }
}

pub(crate) fn holder_of(record: &Record) -> Holder {
    let mut holder = Holder::new(record.owner).with_token(record.token).labelled(&record.label);
    // Otherwise it was granted in another time namespace.
    if let Some(micros) = time::since_boot().checked_sub(record.since) {
        holder = holder.with_held_for(Duration::from_micros(micros));
    }
    holder
}
