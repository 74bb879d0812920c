//! Rows whose expiry cannot be judged by the clock.
//!
//! A row that counts on another clock (of an earlier boot, of another time namespace), or that
//! expires later than its TTL from now, says nothing about when it runs out. Its owner, if alive,
//! changes it within its TTL. So once this process has seen the row unchanged for that long,
//! counted on this process's own clock from after the row was first read, the owner is dead or has
//! lost it by its own count.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::LockName;

use super::claims::Entry;
use super::time::HostClock;
use crate::micros::duration;

/// For how many locks rows are watched at most. Others' turn comes when those are done with: if one
/// made room for the next, nobody who asks for many would see any for a whole TTL.
const MOST: usize = 10_000;

/// The rows in doubt that this process watches.
#[derive(Debug, Default)]
pub(super) struct Doubts(Mutex<HashMap<LockName, Vec<Sighting>>>);

#[derive(Debug)]
struct Sighting {
    entry: Entry,
    first_seen: i64,
}

impl Sighting {
    fn remaining(&self, now: i64) -> i64 {
        self.entry.ttl.saturating_sub(now - self.first_seen)
    }
}

impl Doubts {
    /// Watches those of a lock's entries that are in doubt, and no others.
    ///
    /// Reads the clock itself, after the entries were read: counting from before would make no
    /// allowance for what was written in between.
    pub(super) fn note<'a>(
        &self,
        name: &LockName,
        entries: impl Iterator<Item = &'a Entry>,
        clock: &HostClock,
    ) {
        let now = clock.now();
        let doubtful: Vec<_> = entries.filter(|entry| entry.is_doubtful(clock, now)).collect();
        let mut watched = self.watched();
        let seen = watched.remove(name).unwrap_or_default();
        if doubtful.is_empty() {
            return;
        }
        let sightings = doubtful.into_iter().map(|entry| {
            let earlier = seen.iter().find(|sighting| sighting.entry == *entry);
            let first_seen = earlier.map_or(now, |sighting| sighting.first_seen);
            Sighting { entry: entry.clone(), first_seen }
        });
        let sightings = sightings.collect();
        if watched.len() >= MOST {
            // Nobody has asked for these for a TTL since they could have been taken.
            let is_wanted = |it: &Sighting| it.remaining(now).saturating_add(it.entry.ttl) > 0;
            watched.retain(|_, sightings| sightings.iter().any(is_wanted));
        }
        if watched.len() < MOST {
            watched.insert(name.clone(), sightings);
        }
    }

    /// The entries of a lock that have not changed for the whole of their TTL.
    pub(super) fn dead(&self, name: &LockName, clock: &HostClock) -> Vec<Entry> {
        let now = clock.now();
        let watched = self.watched();
        let sightings = watched.get(name).into_iter().flatten();
        let dead = sightings.filter(|sighting| sighting.remaining(now) <= 0);
        dead.map(|sighting| sighting.entry.clone()).collect()
    }

    /// In how long an entry is out of the way, unless its owner refreshes it.
    pub(super) fn free_in(&self, name: &LockName, entry: &Entry, clock: &HostClock) -> Duration {
        let now = clock.now();
        let watched = self.watched();
        let mut sightings = watched.get(name).into_iter().flatten();
        let remaining = match sightings.find(|sighting| sighting.entry == *entry) {
            Some(sighting) => sighting.remaining(now),
            None => entry.expires.saturating_sub(now),
        };
        duration(remaining)
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<LockName, Vec<Sighting>>> {
        // Every change is one call of the map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
