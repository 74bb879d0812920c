//! Where the lock files are, and whether that place can be trusted.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind as IoErrorKind};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};

use lockkit_core::driver::{DriverError, ErrorKind, OwnerId, filesystem};
use lockkit_core::{LockName, Namespace};
use rustix::fs::{Access, AtFlags, CWD, OFlags};
use rustix::io::Errno;

use crate::error::Problem;

const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
/// Reads and writes.
const GROUP_USES: u32 = 0o060;
/// The same of a folder, and what is in it.
const GROUP_ENTERS: u32 = 0o070;
/// Only the owner of an entry may remove or rename it.
const STICKY: u32 = 0o1000;

/// A file name has at most 255 bytes, and other programs add to it.
const LONGEST_NAME: usize = 200;

/// A folder of locks: in it a folder for each namespace, in that a file for each lock.
///
/// All calls block.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Checks the folder at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, DriverError> {
        // Relative paths stay where they are when the process changes its directory. A slash at the end
        // would have a link followed.
        let path = std::path::absolute(path).map_err(|error| Problem::from(error).at(path))?;
        let path: PathBuf = path.components().collect();
        check_folder(&path).map_err(|problem| problem.at(&path))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the file of a lock is.
    pub(crate) fn file_of(&self, name: &LockName) -> PathBuf {
        self.path_of(name.namespace()).join(Self::file_name_of(name))
    }

    pub(crate) fn file_name_of(name: &LockName) -> String {
        name.segment(LONGEST_NAME)
    }

    /// Where the files of a namespace are.
    pub(crate) fn path_of(&self, namespace: &Namespace) -> PathBuf {
        self.path.join(namespace.segment())
    }

    /// Whether the folder is still one that can be trusted.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        check_folder(&self.path)
    }

    /// Checks the folder of a namespace; `None` if there is none.
    pub(crate) fn find(&self, namespace: &Namespace) -> Result<Option<PathBuf>, Problem> {
        let around = std::fs::symlink_metadata(&self.path)?;
        let path = self.path_of(namespace);
        match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
            metadata => check_namespace(&metadata?, &around).map(|()| Some(path)),
        }
    }

    /// Opens the file of a lock to read it; `None` if there is none.
    pub(crate) fn open_to_look(&self, path: &Path) -> Result<Option<File>, Problem> {
        match open_aside(path) {
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
            file => check_file(file?).map(Some),
        }
    }

    /// Opens the file of a lock, which is at `path`, to read it, in a folder that others may make a
    /// file in; `None` if there is none.
    pub(crate) fn open_to_ask(&self, path: &Path) -> Result<Option<File>, Problem> {
        self.enter(path.parent().unwrap_or(&self.path))?;
        self.open_to_look(path)
    }

    /// Opens the file of a lock to write to it, once [asking](Self::open_to_ask) has found the
    /// folder in order, and makes it if there is none.
    pub(crate) fn open_to_hold(&self, path: &Path) -> Result<File, Problem> {
        let namespace = path.parent().unwrap_or(&self.path);
        let options = for_writing();
        let opened = match options.open(path) {
            Err(error) if error.kind() == IoErrorKind::NotFound => {
                match make_file(path, &std::fs::metadata(namespace)?) {
                    // Another has made it meanwhile.
                    Err(error) if error.kind() == IoErrorKind::AlreadyExists => options.open(path),
                    made => made,
                }
            }
            opened => opened,
        };
        check_file(opened?)
    }

    /// Opens a lock file that was held to see whether it still is.
    pub(crate) fn open_held(path: &Path) -> io::Result<File> {
        open_aside(path)
    }

    /// Opens a lock file that was held to write to it.
    pub(crate) fn open_to_note(path: &Path) -> io::Result<File> {
        for_writing().open(path)
    }

    /// Whether who asks for a lock that is taken could hold it.
    pub(crate) fn check_right_to_write(&self, path: &Path) -> io::Result<()> {
        match rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) {
            Err(error @ (Errno::ACCESS | Errno::ROFS)) => Err(error.into()),
            // It was replaced meanwhile, or that cannot be asked here: the next ask tells.
            _ => Ok(()),
        }
    }

    /// Makes a file that is to take the place of `lock`, for those who may use that.
    pub(crate) fn make_mark(path: &Path, lock: &File) -> io::Result<File> {
        make_apart(path, |mark| Self::make_alike(mark, lock))
    }

    /// Opens what [`make_mark`](Self::make_mark) made, be it somebody else.
    pub(crate) fn open_mark(path: &Path) -> io::Result<File> {
        open_aside(path)
    }

    /// Lets those use a file, and no others, who may use the one whose place it takes.
    pub(crate) fn make_alike(file: &File, old: &File) -> io::Result<()> {
        let (made, old) = (file.metadata()?, old.metadata()?);
        if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
            match fchown(file, Some(old.uid()), Some(old.gid())) {
                // Only root gives files away; for a group its rights are enough.
                Err(error)
                    if error.kind() == IoErrorKind::PermissionDenied
                        && old.mode() & GROUP_USES == GROUP_USES =>
                {
                    fchown(file, None, Some(old.gid()))?;
                }
                given => given?,
            }
        }
        match (made.mode() & 0o777, old.mode() & 0o777) {
            (mode, same) if mode == same => Ok(()),
            (_, mode) => file.set_permissions(Permissions::from_mode(mode)),
        }
    }

    /// Sees to it that the name of a new lock file is on the disk.
    pub(crate) fn sync_name(&self, path: &Path) -> io::Result<()> {
        for folder in [path.parent().unwrap_or(&self.path), &self.path] {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }

    /// Checks the folder of a namespace, and makes it if there is none.
    fn enter(&self, namespace: &Path) -> Result<(), Problem> {
        let around = std::fs::symlink_metadata(&self.path)?;
        let metadata = match std::fs::symlink_metadata(namespace) {
            Err(error) if error.kind() == IoErrorKind::NotFound => {
                make_namespace(namespace, &around)?;
                std::fs::symlink_metadata(namespace)?
            }
            metadata => metadata?,
        };
        check_namespace(&metadata, &around)
    }
}

/// Opens a file that need not be what it should be: without following, waiting or writing.
fn open_aside(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

fn for_writing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

fn check_file(file: File) -> Result<File, Problem> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Problem::found(ErrorKind::Foreign, "it is not a file")),
    }
}

fn check_namespace(folder: &Metadata, around: &Metadata) -> Result<(), Problem> {
    check_rights("its folder", folder)?;
    match around.mode() & OTHERS_WRITE {
        // Who may make a folder here may use the locks.
        0 => Ok(()),
        _ => check_owner("its folder", folder),
    }
}

fn check_folder(path: &Path) -> Result<(), Problem> {
    let misconfigured = |text: String| Err(Problem::found(ErrorKind::Misconfigured, text));
    let metadata = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == IoErrorKind::NotFound => {
            return misconfigured("it does not exist; make it, for its users alone".into());
        }
        metadata => metadata?,
    };
    check_rights("it", &metadata)?;
    check_owner("it", &metadata)?;
    match filesystem::shared(path)? {
        None => Ok(()),
        Some(name) => misconfigured(format!(
            "it is on {name}, where a lock does not keep out every host; use a local file system"
        )),
    }
}

/// Refuses what is no folder, and one whose entries everybody may replace.
fn check_rights(what: &str, folder: &Metadata) -> Result<(), Problem> {
    let text = if folder.is_symlink() {
        format!("{what} is a symbolic link; name the folder that it leads to")
    } else if !folder.is_dir() {
        format!("{what} is not a folder")
    } else if folder.mode() & (OTHERS_WRITE | STICKY) == OTHERS_WRITE {
        format!(
            "{what} can be written to by everybody, who could replace the locks in it; take that \
             right away (chmod o-w) or use another one"
        )
    } else {
        return Ok(());
    };
    Err(Problem::found(ErrorKind::Misconfigured, text))
}

/// Refuses a folder of somebody who need not mean well. The owner may do anything with it.
fn check_owner(what: &str, folder: &Metadata) -> Result<(), Problem> {
    let owner = folder.uid();
    if owner == 0 || owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let text = format!(
        "{what} belongs to user {owner}, who could replace the locks in it; use one that belongs \
         to root or to the user of this process"
    );
    Err(Problem::found(ErrorKind::Misconfigured, text))
}

/// Makes the file of a lock.
fn make_file(path: &Path, namespace: &Metadata) -> io::Result<File> {
    match is_for_group(namespace) {
        true => make_apart(path, |file| share(file, GROUP_USES, namespace)),
        false => create(path),
    }
}

/// Makes the folder of a namespace, unless another does so meanwhile.
fn make_namespace(path: &Path, around: &Metadata) -> io::Result<()> {
    let create = |path: &Path| DirBuilder::new().mode(0o700).create(path);
    let made = match is_for_group(around) {
        true => {
            let apart = apart_from(path);
            create(&apart)?;
            let shared = File::open(&apart).and_then(|new| share(&new, GROUP_ENTERS, around));
            // One that is empty gives way to this one, which is as good.
            let made = shared.and_then(|()| std::fs::rename(&apart, path));
            if made.is_err() {
                tell_of_rest(&apart, std::fs::remove_dir(&apart));
            }
            made
        }
        false => create(path),
    };
    // Whatever another's that is there says to that, it is looked at next.
    match made {
        Err(_) if std::fs::symlink_metadata(path).is_ok() => Ok(()),
        made => made,
    }
}

/// Makes a file that is there only once it is `prepared`. So nobody finds one that he may not use
/// yet, and if this process is killed, nobody ever does.
fn make_apart(path: &Path, prepare: impl Fn(&File) -> io::Result<()>) -> io::Result<File> {
    let apart = apart_from(path);
    let file = create(&apart)?;
    // Unlike a renaming, a link leaves alone what another has made meanwhile.
    let linked = prepare(&file).map(|()| std::fs::hard_link(&apart, path));
    tell_of_rest(&apart, std::fs::remove_file(&apart));
    match linked? {
        // The file system knows no links, and so no users either.
        Err(error)
            if matches!(
                Errno::from_io_error(&error),
                Some(Errno::NOSYS | Errno::NOTSUP | Errno::PERM)
            ) =>
        {
            let file = create(path)?;
            prepare(&file).map(|()| file)
        }
        linked => linked.map(|()| file),
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// A path that nobody else uses. No lock file, mark or namespace begins with two dots.
fn apart_from(path: &Path) -> PathBuf {
    path.with_file_name(format!("..{}", OwnerId::random()))
}

fn tell_of_rest(path: &Path, removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::debug!(path = %path.display(), %error, "what is not used any more is left");
    }
}

/// Whether the group that may use a folder is to use what is made in it. Where everybody may write,
/// that is for its maker alone: everybody could hold the locks for ever, or forge their tokens.
fn is_for_group(around: &Metadata) -> bool {
    around.mode() & (GROUP_WRITES | OTHERS_WRITE) == GROUP_WRITES
}

/// Lets the group use a new entry that may use the folder around it.
fn share(entry: &File, rights: u32, around: &Metadata) -> io::Result<()> {
    fchown(entry, None, Some(around.gid()))?;
    let mode = entry.metadata()?.mode() | rights;
    entry.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::{fs, io};

    use super::make_apart;

    #[test]
    fn a_file_is_there_only_once_it_is_prepared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let entries = || fs::read_dir(folder.path()).unwrap().count();
        // Whoever is killed at this step has made no more than whom it fails.
        let killed = make_apart(&path, |_| {
            assert!(!path.exists() && entries() == 1);
            Err(io::Error::other("killed"))
        });
        assert!(killed.is_err() && entries() == 0);
        let open = |file: &File| file.set_permissions(Permissions::from_mode(0o660));
        let made = make_apart(&path, open).unwrap();
        assert_eq!((made.metadata().unwrap().mode() & 0o777, entries()), (0o660, 1));
        assert_eq!(made.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
        // What is there stays as it is.
        let again = make_apart(&path, |_| Ok(())).unwrap_err();
        assert_eq!((again.kind(), entries()), (io::ErrorKind::AlreadyExists, 1));
        assert_eq!(made.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
    }
}
