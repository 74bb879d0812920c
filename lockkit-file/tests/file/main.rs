//! The file driver on real files, with real processes.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod breaking;
mod claims;
mod descriptor;
mod diagnosis;
mod files;
mod folders;
mod housekeeping;
mod layout;
mod looking;
mod processes;
mod replaced;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod rights;
mod support;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod waiting;
