//! Where the lock files are, and whether that place can be trusted.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, ErrorKind as IoErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::driver::filesystem::FileId;
use lockkit_core::driver::{DriverError, ErrorKind, filesystem};
use lockkit_core::{LockName, Namespace};
use rustix::fs::{Access, AtFlags, CWD, OFlags, RenameFlags, accessat, renameat_with};
use rustix::io::Errno;

use crate::entered::Entered;
use crate::error::Problem;
use crate::place::{
    Place, apart_from, file_if_any, is_for_group, open, open_aside, open_folder, share,
    tell_of_rest,
};

pub(crate) const OTHERS_WRITE: u32 = 0o002;
pub(crate) const GROUP_WRITES: u32 = 0o020;
/// The group reads and writes.
pub(crate) const GROUP_USES: u32 = 0o060;
/// The same for a folder, and what is in it.
const GROUP_ENTERS: u32 = 0o070;
/// Only the owner of an entry may remove or rename it.
const STICKY: u32 = 0o1000;

/// A file name has at most 255 bytes, and other programs add to it.
const LONGEST_NAME: usize = 200;

/// A folder of locks: in it is a folder for each namespace, and in that a file for each lock.
///
/// All calls block.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// What was at the path when the system was last asked about it, and all was well.
    trusted: Mutex<Option<Seen>>,
    entered: Entered,
    /// The name of the file system at a path, if several hosts share it.
    shared: Asked,
}

type Asked = fn(&Path) -> io::Result<Option<&'static str>>;

/// Which folder it is, and whose. As long as this is the same, so is its file system: where locks
/// were taken, a folder is open, so no other device comes to have the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    id: FileId,
    owner: u32,
}

impl Folder {
    /// Checks the folder at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, DriverError> {
        // Absolute, so that it stays where it is when the process changes its directory. Without a
        // slash at the end, which would have a link followed.
        let path = std::path::absolute(path).map_err(|error| Problem::from(error).at(path))?;
        let path: PathBuf = path.components().collect();
        let (trusted, entered) = (Mutex::default(), Entered::default());
        let folder = Self { path, trusted, entered, shared: filesystem::shared };
        folder.check().map_err(|problem| problem.at(&folder.path))?;
        Ok(folder)
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

    /// Whether the folder can still be trusted. Takes nothing for granted that was found before.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        *self.trusted() = None;
        self.judge("it").map(drop)
    }

    /// The folder around those of the namespaces, if it can still be trusted.
    fn around(&self) -> Result<Metadata, Problem> {
        // Errors come with the path of a lock or a namespace, so the folder is named here.
        self.judge(format_args!("the folder {}", self.path.display()))
    }

    /// Judges the folder by its metadata. The system is asked for more only if there is another
    /// folder at the path, as when something was mounted over it.
    fn judge(&self, what: impl Display + Copy) -> Result<Metadata, Problem> {
        let misconfigured = |text: String| Err(Problem::found(ErrorKind::Misconfigured, text));
        let metadata = match std::fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == IoErrorKind::NotFound => {
                let text = format!("{what} does not exist; make it, for its users alone");
                return misconfigured(text);
            }
            metadata => metadata?,
        };
        check_rights(what, &metadata)?;
        let seen = Seen { id: FileId::of(&metadata), owner: metadata.uid() };
        if *self.trusted() != Some(seen) {
            check_owner(what, &metadata)?;
            self.check_is_local(what, &self.path)?;
            *self.trusted() = Some(seen);
        }
        Ok(metadata)
    }

    fn check_namespace(
        &self,
        path: &Path,
        folder: &Metadata,
        around: &Metadata,
    ) -> Result<(), Problem> {
        let what = "its folder";
        check_rights(what, folder)?;
        // Elsewhere, whoever may make a folder there may use the locks.
        if around.mode() & OTHERS_WRITE != 0 {
            check_owner(what, folder)?;
        }
        // Something may be mounted on it alone.
        if folder.dev() == around.dev() { Ok(()) } else { self.check_is_local(what, path) }
    }

    /// Refuses a file system that several hosts share.
    fn check_is_local(&self, what: impl Display, path: &Path) -> Result<(), Problem> {
        let Some(name) = (self.shared)(path)? else { return Ok(()) };
        let text = format!(
            "{what} is on {name}, where a lock does not keep out every host; use a local file \
             system"
        );
        Err(Problem::found(ErrorKind::Misconfigured, text))
    }

    fn trusted(&self) -> MutexGuard<'_, Option<Seen>> {
        self.trusted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the folder of a namespace; `None` if there is none.
    pub(crate) fn find(&self, namespace: &Namespace) -> Result<Option<PathBuf>, Problem> {
        let around = self.around()?;
        let path = self.path_of(namespace);
        match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
            metadata => self.check_namespace(&path, &metadata?, &around).map(|()| Some(path)),
        }
    }

    /// Opens the folder of a namespace; `None` if there is none.
    pub(crate) fn open_place(&self, path: &Path) -> Result<Option<Place>, Problem> {
        let around = self.around()?;
        match open_folder(path) {
            Ok(folder) => {
                let metadata = folder.metadata()?;
                self.check_namespace(path, &metadata, &around)?;
                Ok(Some(Place::new(Arc::new(folder), &metadata)))
            }
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
            Err(error) => {
                // If it is not a folder, that says more.
                self.check_namespace(path, &std::fs::symlink_metadata(path)?, &around)?;
                Err(error.into())
            }
        }
    }

    /// Opens the folder of a namespace to take locks there, and makes it if there is none.
    pub(crate) fn enter(&self, path: &Path) -> Result<Place, Problem> {
        let around = self.around()?;
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == IoErrorKind::NotFound => make_namespace(path, &around)?,
            metadata => {
                let metadata = metadata?;
                self.check_namespace(path, &metadata, &around)?;
                if let Some(folder) = self.entered.at(path)
                    && FileId::of(&folder.metadata()?) == FileId::of(&metadata)
                {
                    return Ok(Place::new(folder, &metadata));
                }
            }
        }
        let place = self.open_place(path)?;
        let place = place.ok_or_else(|| io::Error::from(IoErrorKind::NotFound))?;
        self.entered.keep(path, place.folder());
        Ok(place)
    }

    /// Closes the folders that nobody uses at this moment, and says whether there were any.
    pub(crate) fn close_unused(&self) -> bool {
        let is_less = self.entered.close_unused();
        // With no folder open, another device may come to have the number.
        *self.trusted() = None;
        is_less
    }

    /// Opens the file of a lock to read it; `None` if there is none.
    pub(crate) fn open_to_look(&self, path: &Path) -> Result<Option<File>, Problem> {
        file_if_any(Self::open_aside(path))
    }

    /// Opens the file of a lock, or a [mark](Place::make_mark), which may be somebody else's by now.
    pub(crate) fn open_aside(path: &Path) -> io::Result<File> {
        open_aside(CWD, path)
    }

    /// Whether somebody who asks for a lock that is taken could hold it.
    pub(crate) fn check_right_to_write(&self, path: &Path) -> io::Result<()> {
        match accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) {
            Err(error @ (Errno::ACCESS | Errno::ROFS)) => Err(error.into()),
            // It was replaced meanwhile, or this cannot be asked here: the next ask tells.
            _ => Ok(()),
        }
    }

    /// Lets exactly those use a file who may use the file whose place it takes.
    pub(crate) fn make_alike(file: &File, old: &File) -> io::Result<()> {
        let (made, old) = (file.metadata()?, old.metadata()?);
        if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
            match fchown(file, Some(old.uid()), Some(old.gid())) {
                // Only root gives files away; for a group, its rights are enough.
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

    /// Makes sure that the name of a new lock file is on the disk.
    pub(crate) fn sync_name(&self, place: &Place) -> io::Result<()> {
        place.reopen()?.sync_all()?;
        File::open(&self.path)?.sync_all()
    }
}

/// Refuses what is not a folder, and a folder whose entries everybody may replace.
fn check_rights(what: impl Display, folder: &Metadata) -> Result<(), Problem> {
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

/// Refuses a folder of somebody who might not mean well. The owner may do anything with it.
fn check_owner(what: impl Display, folder: &Metadata) -> Result<(), Problem> {
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

/// Makes the folder of a namespace, unless somebody else does so meanwhile.
fn make_namespace(path: &Path, around: &Metadata) -> io::Result<()> {
    let create = |path: &Path| DirBuilder::new().mode(0o700).create(path);
    let made = match is_for_group(around) {
        true => {
            let apart = apart_from(path);
            create(&apart)?;
            let shared = open_own(&apart).and_then(|new| share(&new, GROUP_ENTERS, around));
            let made = shared.and_then(|()| put(&apart, path));
            if made.is_err() {
                tell_of_rest(&apart, std::fs::remove_dir(&apart));
            }
            made
        }
        false => create(path),
    };
    // If somebody else's folder is there, it is looked at next, whatever the error.
    match made {
        Err(_) if std::fs::symlink_metadata(path).is_ok() => Ok(()),
        made => made,
    }
}

/// Gives a new folder its name, unless there is one of that name.
fn put(new: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, new, CWD, path, RenameFlags::NOREPLACE) {
        // Not every file system can. Then an empty folder gives way to this one, which is as good:
        // whoever has entered that one tries again.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => std::fs::rename(new, path),
        put => Ok(put?),
    }
}

/// Opens a folder that was just made, and nothing that somebody else has put in its place.
fn open_own(path: &Path) -> io::Result<File> {
    let folder = open(CWD, path, OFlags::DIRECTORY)?;
    match folder.metadata()?.uid() == rustix::process::geteuid().as_raw() {
        true => Ok(folder),
        false => Err(IoErrorKind::PermissionDenied.into()),
    }
}

/// The namespace whose folder has this name.
pub(crate) fn namespace_of(folder: &OsStr) -> Option<Namespace> {
    let segment = folder.to_str()?;
    let mut parts = segment.split('%');
    let mut text = String::from(parts.next()?);
    for part in parts {
        let (escaped, plain) = part.split_at_checked(2)?;
        text.push(u8::from_str_radix(escaped, 16).ok()?.into());
        text.push_str(plain);
    }
    Namespace::new(&text).ok().filter(|namespace| namespace.segment() == segment)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};
    use std::sync::Barrier;
    use std::time::Duration;

    use lockkit_core::driver::{Claim, ErrorKind, filesystem};
    use lockkit_core::{LockName, Namespace};

    use super::{Asked, Folder, make_namespace, namespace_of};
    use crate::hold::tests::take;

    /// A folder that a group shares, and where its namespace is.
    fn shared() -> (tempfile::TempDir, Folder, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), Permissions::from_mode(0o770)).unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let namespace = root.path().join("lockkit");
        (root, folder, namespace)
    }

    /// Somebody in the group may put a link in its place, to where others may not write.
    #[test]
    fn what_takes_the_place_of_a_namespace_is_left_alone() {
        let (_root, folder, namespace) = shared();
        let (elsewhere, moved) = (tempfile::tempdir().unwrap(), namespace.with_file_name("moved"));
        let there = |name: &str| elsewhere.path().join(name);
        let path = |name: &str| namespace.join(name);
        let place = folder.enter(&namespace).unwrap();
        fs::write(there("empty"), "").unwrap();
        fs::write(there("old"), "").unwrap();
        let old = place.open_to_hold(&path("old")).unwrap();
        fs::rename(&namespace, &moved).unwrap();
        symlink(elsewhere.path(), &namespace).unwrap();

        assert!(folder.open_place(&namespace).is_err() && folder.enter(&namespace).is_err());
        let here = |name: &str| fs::metadata(moved.join(name)).unwrap().ino();
        for name in ["new", "empty"] {
            let file = place.open_to_hold(&path(name)).unwrap();
            assert_eq!(file.metadata().unwrap().ino(), here(name));
        }
        let mark = place.make_mark(&path(".old"), &old).unwrap();
        place.replace(&path("old"), &path(".old")).unwrap();
        assert_eq!(mark.metadata().unwrap().ino(), here("old"));
        place.remove(&path("old")).unwrap();
        assert!(place.open_to_look(&path("old")).unwrap().is_none());
        folder.sync_name(&place).unwrap();
        let mut left: Vec<_> = fs::read_dir(elsewhere.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["empty", "old"]);
    }

    /// It would be given to the group, with the right to write.
    #[test]
    fn what_takes_the_place_of_a_new_namespace_is_not_shared() {
        let (root, _folder, namespace) = shared();
        let around = fs::metadata(root.path()).unwrap();
        let (secret, link) = (root.path().join("secret"), root.path().join("link"));
        fs::create_dir(&secret).unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o700)).unwrap();
        symlink(&secret, &link).unwrap();
        assert!(super::open_own(&link).is_err());
        fs::write(root.path().join("file"), "").unwrap();
        assert!(super::open_own(&root.path().join("file")).is_err());
        make_namespace(&namespace, &around).unwrap();
        assert_eq!(fs::metadata(&namespace).unwrap().mode() & 0o777, 0o770);
        assert_eq!(fs::metadata(&secret).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn who_is_late_to_make_a_namespace_leaves_the_one_that_is_there() {
        let (root, folder, namespace) = shared();
        let place = folder.enter(&namespace).unwrap();
        make_namespace(&namespace, &fs::metadata(root.path()).unwrap()).unwrap();
        let file = place.open_to_hold(&namespace.join("a")).unwrap();
        let there = fs::metadata(namespace.join("a")).unwrap();
        assert_eq!(file.metadata().unwrap().ino(), there.ino());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "other folders are left");
    }

    #[test]
    fn of_the_first_who_come_at_once_each_gets_its_lock() {
        const USERS: usize = 8;
        for _ in 0..100 {
            let (root, ..) = shared();
            let start = Barrier::new(USERS);
            std::thread::scope(|threads| {
                for user in 0..USERS {
                    let (path, start) = (root.path(), &start);
                    threads.spawn(move || {
                        let folder = Folder::open(path).unwrap();
                        let name = LockName::new(&Namespace::default(), &user.to_string()).unwrap();
                        let claim = Claim::new(name, Duration::from_secs(30));
                        start.wait();
                        assert!(take(&folder, &claim).unwrap().expect("refused").end());
                    });
                }
            });
        }
    }

    /// As when a network file system is mounted over the path after a process has connected.
    #[test]
    fn the_file_system_is_asked_for_again_when_another_folder_is_there() {
        let root = tempfile::tempdir().unwrap();
        let (path, moved) = (root.path().join("locks"), root.path().join("moved"));
        fs::create_dir(&path).unwrap();
        let mut folder = Folder::open(&path).unwrap();
        let unasked: Asked = |_| panic!("asked once more");
        let nfs: Asked = |_| Ok(Some("NFS"));
        folder.shared = unasked;
        folder.judge("it").unwrap();
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        folder.shared = nfs;
        for _ in 0..2 {
            let problem = folder.judge("it").unwrap_err();
            assert_eq!(problem.kind(), ErrorKind::Misconfigured);
            assert!(problem.to_string().starts_with("it is on NFS"), "{problem}");
        }
        folder.shared = filesystem::shared;
        folder.enter(&path.join("lockkit")).unwrap();
        folder.shared = unasked;
        folder.judge("it").unwrap();
        // With no folder open, nothing keeps its device from being another's.
        assert!(folder.close_unused());
        folder.shared = nfs;
        assert!(folder.judge("it").is_err());
    }

    /// As when a network file system is mounted over the folder of a namespace alone.
    #[test]
    fn the_file_system_of_a_namespace_that_is_mounted_is_asked_for() {
        let (root, mut folder, namespace) = shared();
        folder.enter(&namespace).unwrap();
        folder.shared = |_| Ok(Some("NFS"));
        let metadata = |path: &Path| fs::metadata(path).unwrap();
        let (around, here) = (metadata(root.path()), metadata(&namespace));
        folder.check_namespace(&namespace, &here, &around).unwrap();
        let mounted = Path::new("/dev");
        let problem = folder.check_namespace(mounted, &metadata(mounted), &around).unwrap_err();
        assert_eq!(problem.kind(), ErrorKind::Misconfigured);
        assert!(problem.to_string().starts_with("its folder is on NFS"), "{problem}");
    }

    #[test]
    fn a_folder_is_that_of_one_namespace_or_of_none() {
        for text in ["lockkit", "A.b_c-1", ".", "..", &"Z".repeat(64)] {
            let namespace = Namespace::new(text).unwrap();
            let found = namespace_of(namespace.segment().as_ref());
            assert_eq!(found, Some(namespace));
        }
        for folder in ["", "A", "%61", "%4", "%é", "a b", "..0123", "%2f"] {
            assert_eq!(namespace_of(folder.as_ref()), None, "{folder}");
        }
    }
}
