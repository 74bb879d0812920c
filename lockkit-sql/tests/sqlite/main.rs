//! The SQLite driver on real files.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod claims;
mod diagnosis;
mod doubt;
mod fair;
mod faults;
mod inspect;
mod layout;
mod processes;
mod support;
mod wakeup;
