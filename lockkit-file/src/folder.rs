//! Where the lock files are, and whether that place can be trusted.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind as IoErrorKind};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};

use lockkit_core::LockName;
use lockkit_core::driver::{DriverError, ErrorKind, filesystem};
use rustix::fs::OFlags;

use crate::error::Problem;

const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
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
        // Relative paths stay where they are when the process changes its directory.
        let path = std::path::absolute(path).map_err(|error| Problem::from(error).at(path))?;
        check_folder(&path).map_err(|problem| problem.at(&path))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the file of a lock is.
    pub(crate) fn file_of(&self, name: &LockName) -> PathBuf {
        let namespace = self.path.join(name.namespace().segment());
        namespace.join(name.segment(LONGEST_NAME))
    }

    /// Opens the file of a lock, which is at `path`, and makes it if there is none.
    pub(crate) fn open_file(&self, path: &Path) -> Result<File, Problem> {
        let namespace = path.parent().unwrap_or(&self.path);
        self.enter(namespace)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let opened = match options.open(path) {
            Err(error) if error.kind() == IoErrorKind::NotFound => {
                match options.clone().create_new(true).mode(0o600).open(path) {
                    Ok(file) => {
                        share(&file, 0o060, &std::fs::metadata(namespace)?)?;
                        Ok(file)
                    }
                    // Another has made it meanwhile.
                    Err(error) if error.kind() == IoErrorKind::AlreadyExists => options.open(path),
                    Err(error) => Err(error),
                }
            }
            opened => opened,
        };
        let file = opened?;
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(Problem::found(ErrorKind::Foreign, "it is not a file")),
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
                match DirBuilder::new().mode(0o700).create(namespace) {
                    Ok(()) => share(&File::open(namespace)?, 0o070, &around)?,
                    // Another has made it meanwhile.
                    Err(error) if error.kind() == IoErrorKind::AlreadyExists => (),
                    Err(error) => return Err(error.into()),
                }
                std::fs::symlink_metadata(namespace)?
            }
            metadata => metadata?,
        };
        check_rights("its folder", &metadata)?;
        match around.mode() & OTHERS_WRITE {
            // Who may make a folder here may use the locks.
            0 => Ok(()),
            _ => check_owner("its folder", &metadata),
        }
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

/// Lets the group use a new entry that may use the folder around it. Where everybody may write, it
/// is for its maker alone: everybody could hold the locks for ever, or forge their tokens.
fn share(entry: &File, rights: u32, around: &Metadata) -> io::Result<()> {
    if around.mode() & (GROUP_WRITES | OTHERS_WRITE) != GROUP_WRITES {
        return Ok(());
    }
    fchown(entry, None, Some(around.gid()))?;
    let mode = entry.metadata()?.mode() | rights;
    entry.set_permissions(Permissions::from_mode(mode))
}
