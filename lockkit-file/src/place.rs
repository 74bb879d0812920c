//! The folder of a namespace, and what is made in it.

use std::ffi::OsStr;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, ErrorKind as IoErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkit_core::driver::{ErrorKind, OwnerId};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat, renameat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::path::Arg;

use crate::error::Problem;
use crate::folder::{Folder, GROUP_USES, GROUP_WRITES, OTHERS_WRITE};

/// The folder of a namespace, opened and checked.
///
/// Whoever may write to the folder around it can put something else in its place at any time, such
/// as a link to a folder that only the user of this process may write to. So everything is made,
/// renamed and removed in the folder that was checked. Paths are those of files in it.
#[derive(Debug)]
pub(crate) struct Place {
    folder: Arc<File>,
    is_for_group: bool,
}

impl Place {
    /// A folder that was checked, and what was found.
    pub(crate) fn new(folder: Arc<File>, metadata: &Metadata) -> Self {
        Self { folder, is_for_group: is_for_group(metadata) }
    }

    pub(crate) fn folder(&self) -> Arc<File> {
        Arc::clone(&self.folder)
    }

    /// Opens the folder again, to lock it or to bring it to the disk.
    pub(crate) fn reopen(&self) -> io::Result<File> {
        open(&self.folder, Path::new("."), OFlags::DIRECTORY)
    }

    /// Opens the file of a lock to read it; `None` if there is none.
    pub(crate) fn open_to_look(&self, path: &Path) -> Result<Option<File>, Problem> {
        file_if_any(open_aside(&self.folder, name(path)))
    }

    /// Opens the file of a lock to write to it, and makes it if there is none.
    pub(crate) fn open_to_hold(&self, path: &Path) -> Result<File, Problem> {
        let open = || open(&self.folder, name(path), OFlags::RDWR);
        let opened = match open() {
            Err(error) if error.kind() == IoErrorKind::NotFound => match self.make_file(path) {
                // Somebody else has made it meanwhile.
                Err(error) if error.kind() == IoErrorKind::AlreadyExists => open(),
                made => made,
            },
            opened => opened,
        };
        check_file(opened?)
    }

    /// Makes a file that is to take the place of `lock`, for those who may use `lock`.
    pub(crate) fn make_mark(&self, path: &Path, lock: &File) -> io::Result<File> {
        self.make_apart(path, |mark| Folder::make_alike(mark, lock))
    }

    /// Puts a file in the place of another.
    pub(crate) fn replace(&self, path: &Path, new: &Path) -> io::Result<()> {
        Ok(renameat(&self.folder, name(new), &self.folder, name(path))?)
    }

    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        Ok(unlinkat(&self.folder, name(path), AtFlags::empty())?)
    }

    /// Makes the file of a lock.
    fn make_file(&self, path: &Path) -> io::Result<File> {
        match self.is_for_group {
            true => {
                let around = self.folder.metadata()?;
                self.make_apart(path, |file| share(file, GROUP_USES, &around))
            }
            false => self.create(path),
        }
    }

    /// Makes a file that is there only once it is `prepared`. So nobody finds a file that they may
    /// not use yet, and if this process is killed, nobody ever does.
    fn make_apart(
        &self,
        path: &Path,
        prepare: impl Fn(&File) -> io::Result<()>,
    ) -> io::Result<File> {
        let apart = apart_from(path);
        let file = self.create(&apart)?;
        // Unlike a rename, a link leaves alone what somebody else has made meanwhile.
        let (folder, link) = (&self.folder, AtFlags::empty());
        let linked =
            prepare(&file).map(|()| linkat(folder, name(&apart), folder, name(path), link));
        tell_of_rest(&apart, self.remove(&apart));
        match linked? {
            // A file system without links has no users either.
            Err(Errno::NOSYS | Errno::NOTSUP | Errno::PERM) => {
                let file = self.create(path)?;
                prepare(&file).map(|()| file)
            }
            linked => Ok(linked.map(|()| file)?),
        }
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        open(&self.folder, name(path), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }
}

fn name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// Opens a file that might not be what it should be: without following, waiting or writing.
pub(crate) fn open_aside(at: impl AsFd, path: impl Arg + Copy) -> io::Result<File> {
    open(at, path, OFlags::NONBLOCK)
}

/// Opens a folder to go on from, which does not take the right to read it.
pub(crate) fn open_folder(path: &Path) -> io::Result<File> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let how = OFlags::PATH;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let how = OFlags::empty();
    open(CWD, path, how | OFlags::DIRECTORY)
}

/// Opens a path without following a link.
pub(crate) fn open(at: impl AsFd, path: impl Arg + Copy, how: OFlags) -> io::Result<File> {
    let (how, mode) = (how | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    Ok(retry_on_intr(|| openat(&at, path, how, mode))?.into())
}

pub(crate) fn file_if_any(opened: io::Result<File>) -> Result<Option<File>, Problem> {
    match opened {
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
        file => check_file(file?).map(Some),
    }
}

fn check_file(file: File) -> Result<File, Problem> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Problem::found(ErrorKind::Foreign, "it is not a file")),
    }
}

/// A path that nobody else uses. No lock file, mark or namespace begins with two dots.
pub(crate) fn apart_from(path: &Path) -> PathBuf {
    path.with_file_name(format!("..{}", OwnerId::random()))
}

pub(crate) fn tell_of_rest(path: &Path, removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::debug!(path = %path.display(), %error, "what is not used any more is left");
    }
}

/// Whether the group that may use a folder is to use what is made in it. Where everybody may write,
/// what is made is for its maker alone: otherwise everybody could hold the locks for ever, or forge
/// their tokens.
pub(crate) fn is_for_group(around: &Metadata) -> bool {
    around.mode() & (GROUP_WRITES | OTHERS_WRITE) == GROUP_WRITES
}

/// Lets the group that may use the folder around a new entry use the entry, too.
pub(crate) fn share(entry: &File, rights: u32, around: &Metadata) -> io::Result<()> {
    fchown(entry, None, Some(around.gid()))?;
    let mode = entry.metadata()?.mode() | rights;
    entry.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::{fs, io};

    use crate::folder::Folder;

    #[test]
    fn a_file_is_there_only_once_it_is_prepared() {
        let root = tempfile::tempdir().unwrap();
        let namespace = root.path().join("lockkit");
        let place = Folder::open(root.path()).unwrap().enter(&namespace).unwrap();
        let path = namespace.join("a");
        let entries = || fs::read_dir(&namespace).unwrap().count();
        // A process killed at this step has made no more than one for which the step fails.
        let killed = place.make_apart(&path, |_| {
            assert!(!path.exists() && entries() == 1);
            Err(io::Error::other("killed"))
        });
        assert!(killed.is_err() && entries() == 0);
        let open = |file: &File| file.set_permissions(Permissions::from_mode(0o660));
        let made = place.make_apart(&path, open).unwrap();
        assert_eq!((made.metadata().unwrap().mode() & 0o777, entries()), (0o660, 1));
        assert_eq!(made.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
        // What is there stays as it is.
        let again = place.make_apart(&path, |_| Ok(())).unwrap_err();
        assert_eq!((again.kind(), entries()), (io::ErrorKind::AlreadyExists, 1));
        assert_eq!(made.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
    }
}
