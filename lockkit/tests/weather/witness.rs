use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkit::{Error, FencingToken, Hold};

/// Sees who holds what. Whoever works says what it holds, at every step.
pub(crate) struct Witness {
    seed: u64,
    /// Whether no two may believe in the same lock.
    keeps_holds: bool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The last hold of each lock, and in which process.
    last: HashMap<String, (Hold, usize)>,
    /// The highest token of each lock under which it was released.
    released: HashMap<String, FencingToken>,
    wrong: Vec<String>,
}

impl Witness {
    pub(crate) fn of(seed: u64, keeps_holds: bool) -> Self {
        Self { seed, keeps_holds, seen: Mutex::default() }
    }

    /// The highest token under which the lock was released so far.
    pub(crate) fn released(&self, name: &str) -> Option<FencingToken> {
        self.seen().released.get(name).copied()
    }

    /// Whoever asks for a lock after a release has a higher token than that had.
    pub(crate) fn follows(&self, hold: &Hold, released: Option<FencingToken>) {
        if released.is_some() && hold.fencing_token() <= released {
            self.seen().note(format!("{hold:?} was asked for after {released:?} was released"));
        }
    }

    /// The lock is free.
    pub(crate) fn sees_release(&self, name: &str, token: Option<FencingToken>) {
        let seen = &mut *self.seen();
        if let Some(token) = token {
            let released = seen.released.entry(name.to_owned()).or_insert(token);
            *released = token.max(*released);
        }
    }

    /// Whether it is held at this moment, so that the work may go on.
    pub(crate) fn sees(&self, hold: &Hold, process: usize) -> bool {
        let mut seen = self.seen();
        if !hold.is_held() {
            return false;
        }
        let name = hold.name().as_str().to_owned();
        let Some((before, _)) = seen.last.insert(name, (hold.clone(), process)) else {
            return true;
        };
        if self.keeps_holds && before.owner() != hold.owner() {
            if before.is_held() && hold.is_held() {
                seen.note(format!("two hold it: {before:?} and {hold:?}"));
            }
            // A majority gives none.
            if hold.fencing_token().is_some() && before.fencing_token() >= hold.fencing_token() {
                seen.note(format!("a token that does not rise: {before:?} and {hold:?}"));
            }
        }
        true
    }

    /// Which process was seen last to hold it.
    pub(crate) fn holder(&self, name: &str) -> Option<usize> {
        self.seen().last.get(name).map(|(_, process)| *process)
    }

    /// Whoever asks or lets go in bad weather may be told this, and nothing else.
    pub(crate) fn hears(&self, error: &Error) {
        let is_weather = matches!(
            error,
            Error::TimedOut { .. }
                | Error::Taken { .. }
                | Error::Unreachable(_)
                | Error::Lost { .. }
                | Error::ShutDown { .. }
        );
        if !is_weather {
            self.seen().note(format!("{error:?}"));
        }
    }

    /// Fails if anything was wrong so far.
    pub(crate) fn agrees(&self) {
        let seen = self.seen();
        assert!(seen.wrong.is_empty(), "LOCKKIT_SEED={}: {:#?}", self.seed, seen.wrong);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// The first say it all.
    fn note(&mut self, wrong: String) {
        if self.wrong.len() < 4 {
            self.wrong.push(wrong);
        }
    }
}
