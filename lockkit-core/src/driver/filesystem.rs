//! Which file a path leads to, and whether its file system can be trusted with locks: for drivers
//! whose locks are files.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::io::Errno;

use super::ErrorKind;

/// A file, under whatever path.
///
/// No other file has its id for as long as it is open, even if it was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file that `metadata` describes.
    pub fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// What an error of the operating system means wherever it comes up: that there is no room, or no
/// right. `None` for errors whose meaning depends on where they come up.
pub fn error_kind(error: &io::Error) -> Option<ErrorKind> {
    if error.kind() == io::ErrorKind::OutOfMemory {
        return Some(ErrorKind::Capacity);
    }
    match Errno::from_io_error(error)? {
        Errno::NOSPC | Errno::DQUOT | Errno::MFILE | Errno::NFILE | Errno::NOLCK => {
            Some(ErrorKind::Capacity)
        }
        Errno::ROFS | Errno::ACCESS | Errno::PERM => Some(ErrorKind::Denied),
        _ => None,
    }
}

/// The name of the file system at `path`, if hosts or virtual machines may share it: a lock there
/// does not keep out every user of the file, or does not outlive a restart of the server.
///
/// # Errors
///
/// What the operating system reports, for example if there is nothing at `path`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn shared(path: &Path) -> io::Result<Option<&'static str>> {
    // The type is a signed or unsigned word of 32 or 64 bits; magic numbers have 32.
    Ok(shared_by_magic(rustix::fs::statfs(path)?.f_type as u32))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn shared_by_magic(magic: u32) -> Option<&'static str> {
    /// From `linux/magic.h`, statfs(2), and the headers of the file systems that are not in the
    /// kernel.
    const SHARED: &[(u32, &str)] = &[
        (0x0000_564c, "NCP"),
        (0x0000_517b, "SMB"),
        (0x0000_6969, "NFS"),
        (0x00c3_6400, "Ceph"),
        (0x0102_1997, "9p"),
        (0x0116_1970, "GFS2"),
        (0x0bd0_0bd0, "Lustre"),
        (0x1983_0326, "BeeGFS"),
        (0x2003_0528, "OrangeFS"),
        (0x4750_4653, "GPFS"),
        (0x5346_414f, "OpenAFS"),
        (0x6573_5546, "FUSE"),
        // The kernel does not have it: https://github.com/docker/desktop-feedback/issues/626.
        (0x6a65_6a63, "a shared folder of Docker Desktop"),
        (0x6b41_4653, "AFS"),
        (0x7375_7245, "Coda"),
        (0x7461_636f, "OCFS2"),
        (0x786f_4256, "a VirtualBox shared folder"),
        (0x7c7c_6673, "a Parallels shared folder"),
        (0xaad7_aaea, "PanFS"),
        (0xbacb_acbc, "a VMware shared folder"),
        (0xbeef_dead, "StorNext"),
        (0xfe53_4d42, "SMB"),
        (0xff53_4d42, "CIFS"),
    ];
    SHARED.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// The name of the file system at `path`, if hosts may share it.
///
/// # Errors
///
/// What the operating system reports, for example if there is nothing at `path`.
#[cfg(target_vendor = "apple")]
pub fn shared(path: &Path) -> io::Result<Option<&'static str>> {
    /// From `sys/mount.h`: the file system is stored locally.
    const MNT_LOCAL: u32 = 0x1000;
    let is_local = rustix::fs::statfs(path)?.f_flags & MNT_LOCAL != 0;
    Ok((!is_local).then_some("a network file system"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{FileId, shared};

    #[test]
    fn local_file_systems_are_trusted() {
        assert_eq!(shared(&std::env::temp_dir()).unwrap(), None);
        assert!(shared(Path::new("/no/such/path")).is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn shared_file_systems_are_known_by_their_magic_number() {
        for (magic, name) in
            [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0x6573_5546, "FUSE"), (0x0102_1997, "9p")]
        {
            assert_eq!(super::shared_by_magic(magic), Some(name));
        }
        assert!(super::shared_by_magic(0x6a65_6a63).is_some_and(|name| name.contains("Docker")));
        for local in [0xef53, 0x0102_1994, 0x794c_7630, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1] {
            assert_eq!(super::shared_by_magic(local), None, "{local:x} was refused");
        }
    }

    #[test]
    fn a_file_is_the_same_by_every_path() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let id = |path: &str| FileId::of(&std::fs::metadata(package.join(path)).unwrap());
        assert_eq!(id("Cargo.toml"), id("src/../Cargo.toml"));
        assert_ne!(id("Cargo.toml"), id("src/lib.rs"));
    }
}
