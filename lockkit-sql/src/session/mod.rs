//! Locks that a session with a database server holds: what is the same for every server.
//!
//! A driver has one session, over a connection of its own, for all its locks. The server ends a
//! session that was idle for longer than a time-out, which makes it a lease for all locks at once;
//! whatever is sent on it, at the least a heartbeat, refreshes the lease. When the session ends, all
//! its locks are lost, and a new one is opened when it is asked for.

pub(crate) mod hold;
mod key;
mod line;
mod registry;
mod server;

pub(crate) use key::hash;
pub(crate) use line::Session;
pub(crate) use registry::Outcome;
pub(crate) use server::{After, Failing, Reply, Request, Server};
