//! Everything of the command but `run`, as its users meet it: the real program, real processes,
//! real databases.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

#[cfg(feature = "bench")]
mod bench;
mod breaking;
mod conformance;
mod doctor;
mod examples;
mod generated;
mod schema;
mod status;
#[path = "../run/support.rs"]
#[allow(dead_code, reason = "the tests of `run` use the rest")]
mod support;
mod watch;
