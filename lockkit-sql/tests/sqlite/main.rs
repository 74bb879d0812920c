//! The SQLite driver on real files.

mod claims;
mod doubt;
mod fair;
mod faults;
mod layout;
mod processes;
mod support;
mod wakeup;
