//! The file driver on real files, with real processes.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod claims;
mod descriptor;
mod files;
mod folders;
mod layout;
mod processes;
mod replaced;
mod support;
