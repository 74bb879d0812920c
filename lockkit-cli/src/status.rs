//! `lockkit status`: who holds, who waits.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use lockkit::driver::OwnerId;
use lockkit::{Holder, Label, LockStatus, Locker, Namespace, Result, Waiter};

use crate::args::Status;
use crate::report::{answer, say, terminals_erase};
use crate::table::{columns, cut, roughly, visible};
use crate::{backend, exit, json, watch};

/// Shows how locks stand and returns the exit code.
pub(crate) fn status(options: &Status) -> u8 {
    if !options.watch {
        return backend::at(&options.place, async |locker| once(locker, options).await);
    }
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        say("--watch needs a terminal; a program can ask again and again with --json");
        return exit::USAGE;
    }
    if !terminals_erase() {
        say("--watch needs a terminal that can be drawn on, and the variable TERM names none");
        return exit::USAGE;
    }
    backend::at(&options.place, async |locker| watch::watch(locker, options.name.as_deref()).await)
}

async fn once(locker: &Locker, options: &Status) -> Result<u8> {
    let seen = View::see(locker, options.name.as_deref()).await?;
    let text = match options.json {
        true => json::status(locker, seen.namespace.as_str(), &seen.locks)?,
        false if seen.locks.is_empty() => seen.summary() + "\n",
        false => seen.lines(Room::Ample).join("\n") + "\n",
    };
    Ok(answer(text, if seen.is_held_by_name() { exit::NO } else { exit::OK }))
}

/// What there is to see.
pub(crate) struct View {
    pub(crate) driver: &'static str,
    pub(crate) namespace: Namespace,
    pub(crate) locks: Vec<LockStatus>,
    /// Whether `locks` is the one lock that was asked for.
    pub(crate) by_name: bool,
}

impl View {
    /// One lock, or all that are held.
    pub(crate) async fn see(locker: &Locker, name: Option<&str>) -> Result<Self> {
        let locks = match name {
            Some(name) => vec![locker.look(name).await?],
            None => locker.held().await?,
        };
        let (driver, namespace) = (locker.driver().id(), locker.namespace().clone());
        Ok(Self { driver, namespace, locks, by_name: name.is_some() })
    }

    fn is_held_by_name(&self) -> bool {
        self.by_name && self.locks.iter().any(|lock| lock.holder().is_some())
    }

    /// How many there are, and where.
    pub(crate) fn summary(&self) -> String {
        let held = self.locks.iter().filter(|lock| lock.holder().is_some()).count();
        let held = match (held, &*self.locks) {
            (0, [lock]) => format!("lock `{}` is free", visible(lock.name().as_str())),
            (0, _) => "no lock is held".into(),
            (1, [lock]) if self.by_name => {
                format!("lock `{}` is held", visible(lock.name().as_str()))
            }
            (1, _) => "1 lock is held".into(),
            (held, _) => format!("{held} locks are held"),
        };
        format!("{held} ({}, namespace {})", self.driver, self.namespace.as_str())
    }

    /// Text for people: a table, or all about one lock.
    pub(crate) fn lines(&self, room: Room) -> Vec<String> {
        match &*self.locks {
            [lock] if self.by_name => about(lock),
            locks => table(locks, room),
        }
    }
}

/// How much room there is for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// As much as the table takes.
    Ample,
    /// A screen: names are cut, so that the rest of a row can be seen, and ids are left out.
    Scarce,
}

fn table(locks: &[LockStatus], room: Room) -> Vec<String> {
    let longest = if room == Room::Scarce { 40 } else { usize::MAX };
    let row = |cells: [String; 7]| {
        let [name, holder, since, free_in, owner, token, waiting] = cells;
        match room {
            Room::Ample => vec![name, holder, since, free_in, owner, token, waiting],
            Room::Scarce => vec![name, holder, since, free_in, waiting],
        }
    };
    let head = ["NAME", "HOLDER", "HELD FOR", "FREE IN", "OWNER", "TOKEN", "WAITING"];
    let mut rows = vec![row(head.map(String::from))];
    rows.extend(locks.iter().map(|lock| {
        let holder = lock.holder();
        let of = |field: fn(&Holder) -> Option<String>| holder.and_then(field).unwrap_or_else(none);
        let label = of(|holder| holder.label().map(|label| visible(label.as_str())));
        row([
            cut(&visible(lock.name().as_str()), longest).into_owned(),
            cut(&label, longest).into_owned(),
            of(|holder| holder.held_for().map(roughly)),
            of(|holder| holder.remaining().map(roughly)),
            of(|holder| Some(shortened(holder.owner()))),
            of(|holder| holder.fencing_token().map(|token| token.to_string())),
            waiting(lock).unwrap_or_else(none),
        ])
    }));
    columns(&rows)
}

fn about(lock: &LockStatus) -> Vec<String> {
    let mut rows = vec![vec!["lock".into(), visible(lock.name().as_str())]];
    let mut fact = |what: &str, how: String| rows.push(vec![what.into(), how]);
    match lock.holder() {
        None => fact("held by", "nobody".into()),
        Some(holder) => {
            fact("held by", called(holder.label()));
            fact("owner", holder.owner().to_string());
            if let Some(since) = holder.held_for() {
                fact("held for", roughly(since));
            }
            if let Some(remaining) = holder.remaining() {
                fact("free in", format!("{}, unless it is renewed", roughly(remaining)));
            }
            if let Some(token) = holder.fencing_token() {
                fact("token", token.to_string());
            }
        }
    }
    for (at, waiter) in lock.waiters().iter().enumerate() {
        let waits =
            waiter.waiting_for().map_or(String::new(), |since| format!(", for {}", roughly(since)));
        let who = called(waiter.label());
        fact(&format!("waiting {}", at + 1), format!("{who}{waits}, owner {}", waiter.owner()));
    }
    if let Some(listeners) = lock.listeners().filter(|listeners| *listeners > 0) {
        fact("listening", format!("{listeners} connections hear of its release"));
    }
    columns(&rows)
}

/// Who holds a lock and since when, as the end of a sentence.
pub(crate) fn held_by(holder: &Holder) -> String {
    let since = holder.held_for().map_or(String::new(), |since| format!(" for {}", roughly(since)));
    format!("held by {}{since}", called(holder.label()))
}

/// How many wait, and who is first; `None` if nobody does, as far as the backend can tell.
fn waiting(lock: &LockStatus) -> Option<String> {
    match (lock.waiters(), lock.listeners().unwrap_or(0)) {
        ([], 0) => None,
        ([], listeners) => Some(format!("{listeners} listen")),
        (waiters, _) => {
            let who: Vec<_> = waiters.iter().map(Waiter::label).map(called).collect();
            Some(format!("{}: {}", waiters.len(), who.join(", ")))
        }
    }
}

fn called(label: Option<&Label>) -> String {
    label.map_or_else(|| "somebody".into(), |label| visible(label.as_str()))
}

/// Enough of an id to tell it from others, and to use it with `lockkit break --owner`.
pub(crate) fn shortened(owner: OwnerId) -> String {
    owner.to_string()[..12].into()
}

fn none() -> String {
    "-".into()
}

/// How often a view that is kept up to date looks again.
pub(crate) const REFRESH: Duration = Duration::from_secs(1);
