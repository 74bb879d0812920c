//! The file driver of [lockkit](lockkit_core), the distributed-lock framework: locks between the
//! processes of one host, in a folder.
//!
//! A lock is the kernel's lock on an open file, flock(2). It ends when it is released or when its
//! process ends, however that comes about, and there is no clock in it. The fencing token is in the
//! file, and cannot be granted again after a loss of power.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkit_core::Result<()> {
//! # let folder = tempfile::tempdir().expect("a temporary folder");
//! use lockkit_core::Locker;
//! use lockkit_file::FileDriver;
//!
//! let locker = Locker::new(FileDriver::open(folder.path()).await?);
//! let guard = locker.lock("nightly-report")?.acquire().await?;
//! guard.release().await
//! # }
//! ```

mod breaking;
mod claims;
mod config;
mod diagnosis;
mod driver;
mod entered;
mod error;
mod folder;
mod hold;
mod housekeeping;
mod inspect;
mod kernel;
mod look;
mod news;
mod place;
mod record;
mod reserve;
mod time;

pub use config::PARAMETERS;
pub use driver::{CAPABILITIES, FileDriver};
