//! Reports of a run that has all that real ones have: what stands in them, and how a browser shows
//! them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod browser;
mod pages;
mod sample;
mod texts;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkit_testkit::run(texts::trials().into_iter().chain(pages::trials()).collect())
}
