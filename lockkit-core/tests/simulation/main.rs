//! The engine in worlds of a seed each: several processes whose requests are lost, late and answered
//! too late, a server that stops, restarts and forgets, and people who drop what they began; in
//! virtual time, and the same each time.
//!
//! What is checked is what is promised: no two believe that they hold a lock, tokens rise in the
//! order of grants, nothing hangs, nothing is left.
//!
//! `LOCKKIT_WORLDS=10000` plays so many of each kind. `LOCKKIT_WORLD=7`, with the name of a kind's
//! test and `--nocapture`, plays the one of that seed again and prints its history.

#![expect(clippy::unwrap_used, reason = "a test may fail")]
#![expect(clippy::print_stdout, reason = "what went wrong is told with the failure")]

mod history;
mod network;
mod people;
mod server;
mod society;
mod world;

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::server::Kind;
use crate::world::play;

/// How many worlds of each kind are played unless somebody says so.
const WORLDS: u64 = 30;

/// What is seen in some world of each kind.
const HAPPENS: &[&str] = &[
    "grants after a wait",
    "refusals",
    "waits in vain",
    "unreachable",
    "dropped acquisitions",
    "losses",
    "releases in doubt",
    "stale writes",
    "requests not answered",
    "requests refused",
    "requests carried out late",
];

#[test]
fn where_a_release_hands_the_lock_over() {
    play_all(Kind::HandOver);
}

#[test]
fn where_a_release_tells_the_next_place() {
    play_all(Kind::Queue);
}

#[test]
fn where_order_is_kept_on_request() {
    play_all(Kind::OnRequest);
}

#[test]
fn where_a_release_tells_all() {
    play_all(Kind::Crowd);
}

#[test]
fn where_nobody_is_told_anything() {
    play_all(Kind::Silent);
}

#[test]
fn a_world_is_the_same_each_time() {
    for seed in 0..16 {
        let [one, other] = [(); 2].map(|()| play(Kind::OnRequest, seed).history);
        // Not by `assert_eq`, which would print both.
        assert!(one == other, "world {seed} has two histories");
    }
}

fn play_all(kind: Kind) {
    if let Some(seed) = setting("LOCKKIT_WORLD") {
        let outcome = play(kind, seed);
        println!("{}", outcome.history);
        assert_eq!(outcome.verdict, Ok(()), "world {seed} of {kind:?}");
        return;
    }
    let mut happened = BTreeMap::new();
    let mut wrong = Vec::new();
    for seed in 0..setting("LOCKKIT_WORLDS").unwrap_or(WORLDS) {
        let outcome = play(kind, seed);
        if let Err(what) = outcome.verdict {
            wrong.push(seed);
            println!("world {seed} of {kind:?}, {:?}:\n{what}", outcome.weather);
        }
        for (what, times) in outcome.counts {
            *happened.entry(what).or_default() += times;
        }
    }
    println!("{kind:?}: {happened:#?}");
    assert!(wrong.is_empty(), "worlds of {kind:?} in which something is wrong: {wrong:?}");
    // A storm in which nothing happens shows nothing.
    let pushes = (kind == Kind::HandOver || kind == Kind::OnRequest).then_some("grants pushed");
    for what in HAPPENS.iter().copied().chain(pushes) {
        let times: usize = happened.get(what).copied().unwrap_or_default();
        assert!(times > 0, "there were no {what}: {happened:#?}");
    }
}

fn setting<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is to be a number: {value}")))
}
