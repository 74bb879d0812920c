//! What happened in a world, in order: to be read when something is wrong, and to be compared with
//! the same world's history.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use lockkit_core::driver::OwnerId;
use tokio::time::Instant;

/// How many of the last events are told.
const TOLD: usize = 60;

#[derive(Clone)]
pub(crate) struct History(Arc<Inner>);

struct Inner {
    began: Instant,
    events: Mutex<Events>,
}

#[derive(Default)]
struct Events {
    lines: Vec<String>,
    /// In order of appearance: their ids are new in every run.
    owners: Vec<String>,
    violations: Vec<String>,
    counts: BTreeMap<&'static str, usize>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner { began: Instant::now(), events: Mutex::default() }))
    }

    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        let (at, what) = (self.0.began.elapsed(), what());
        let mut events = self.0.events.lock().unwrap();
        let what = events.with_names(&what);
        events.lines.push(format!("{:>12.6} {what}", at.as_secs_f64()));
    }

    /// Something that must not be.
    pub(crate) fn violation(&self, what: impl Into<String>) {
        let what = what.into();
        self.note(|| format!("VIOLATION: {what}"));
        let mut events = self.0.events.lock().unwrap();
        let what = events.with_names(&what);
        events.violations.push(what);
    }

    /// Counts what happens, so that a world in which it does not is noticed.
    pub(crate) fn count(&self, what: &'static str) {
        *self.0.events.lock().unwrap().counts.entry(what).or_default() += 1;
    }

    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.0.events.lock().unwrap().counts.clone()
    }

    /// The violations, and what came before the first of them.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let events = self.0.events.lock().unwrap();
        if events.violations.is_empty() {
            return Ok(());
        }
        let first = events.lines.iter().position(|line| line.contains("VIOLATION"));
        let end = first.map_or(events.lines.len(), |first| first + 1);
        let mut text = String::new();
        for line in &events.lines[end.saturating_sub(TOLD)..end] {
            writeln!(text, "{line}").unwrap();
        }
        writeln!(text, "violations: {:#?}", events.violations).unwrap();
        Err(text)
    }

    pub(crate) fn text(&self) -> String {
        self.0.events.lock().unwrap().lines.join("\n")
    }
}

impl Events {
    /// With `#1` for the first owner's id that there was, and so on.
    fn with_names(&mut self, text: &str) -> String {
        let mut named = String::new();
        for word in text.split_inclusive(|c: char| !c.is_ascii_hexdigit()) {
            let id = word.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
            if id.parse::<OwnerId>().is_err() {
                named.push_str(word);
                continue;
            }
            let number = self.owners.iter().position(|known| known == id).unwrap_or_else(|| {
                self.owners.push(id.into());
                self.owners.len() - 1
            });
            write!(named, "#{}{}", number + 1, &word[id.len()..]).unwrap();
        }
        named
    }
}
