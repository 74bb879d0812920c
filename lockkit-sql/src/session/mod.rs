//! Locks that a session with a database server holds: what is the same for every server.
//!
//! A driver has one session, over a connection of its own, for all its locks. The server ends a
//! session that has been idle for longer than a time-out, which makes the session a lease for all
//! locks at once; whatever is sent on it, at the least a heartbeat, refreshes the lease. When the
//! session ends, all its locks are lost, and a new one is opened when one is asked for.
//!
//! A claim that waits does so on another session, of which there are a few: a session that sleeps
//! in the server's own queue can be asked for nothing else. What such a session is granted, it
//! holds.

mod begun;
mod heart;
pub(crate) mod hold;
mod key;
mod one;
mod post;
mod registry;
mod server;
mod sessions;
mod shared;
mod turn;

pub(crate) use key::hash;
pub(crate) use server::{After, FailingStatement, Reply, Request, Server};
#[cfg(feature = "postgres")]
pub(crate) use sessions::Answer;
pub(crate) use sessions::Sessions;
