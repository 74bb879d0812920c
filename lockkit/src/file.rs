//! The driver of lock files, which opens a folder by its path.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit::Result<()> {
//! # let folder = tempfile::tempdir().expect("a temporary folder");
//! use lockkit::Locker;
//! use lockkit::file::FileDriver;
//!
//! let locker = Locker::new(FileDriver::open(folder.path()).await?);
//! let guard = locker.lock("nightly-report")?.acquire().await?;
//! # guard.release().await }
//! ```

pub use lockkit_file::FileDriver;
