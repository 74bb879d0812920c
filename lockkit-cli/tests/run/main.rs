//! `lockkit run` as its users meet it: the real program, real processes, real databases.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod codes;
mod command;
mod contention;
mod file;
mod killed;
mod least;
mod lost;
mod nested;
mod signals;
#[allow(dead_code, reason = "the tests on ensembles use the rest")]
mod support;
mod terminal;
mod unheard;
