//! How much one session watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes the paths that a session watches may have. After a reconnect, the client library
/// sends paths of more than 128 KiB in several requests, all with the same number, takes the second
/// answer for a fault, and reconnects, until the session has ended. Paths of watches that were
/// dropped may still be among them.
const MOST: usize = 96 << 10;
/// Up to how many a hold is watched. Even then a waiter must find room: it has more use for it.
const MOST_FOR_A_HOLD: usize = 64 << 10;

/// The room for the watches of one session.
#[derive(Debug, Default)]
pub(crate) struct Room(Arc<AtomicUsize>);

/// The room of one watch. Dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct Part {
    taken: Arc<AtomicUsize>,
    bytes: usize,
}

/// Who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watcher {
    Holder,
    Waiter,
}

impl Room {
    /// Room for a watch on that path, if there is any.
    pub(crate) fn take(&self, path: &str, watcher: Watcher) -> Option<Part> {
        let most = match watcher {
            Watcher::Holder => MOST_FOR_A_HOLD,
            Watcher::Waiter => MOST,
        };
        let bytes = path.len();
        let more = |taken: usize| taken.checked_add(bytes).filter(|&taken| taken <= most);
        // A watch that gave its room back was taken off before, and its removal is sent first.
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Part { taken: self.0.clone(), bytes })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::iter::from_fn;

    use super::{MOST, MOST_FOR_A_HOLD, Room, Watcher};

    #[test]
    fn holds_leave_room_for_those_who_wait() {
        let (room, path) = (Room::default(), "/".repeat(1000));
        let mut holds: Vec<_> = from_fn(|| room.take(&path, Watcher::Holder)).collect();
        assert_eq!(holds.len(), MOST_FOR_A_HOLD / 1000);
        let waiters: Vec<_> = from_fn(|| room.take(&path, Watcher::Waiter)).collect();
        assert_eq!(holds.len() + waiters.len(), MOST / 1000);
        holds.pop();
        assert!(room.take(&path, Watcher::Holder).is_none());
        assert!(room.take(&path, Watcher::Waiter).is_some());
    }

    #[test]
    fn what_is_dropped_is_given_back() {
        let (room, path) = (Room::default(), "/".repeat(MOST_FOR_A_HOLD));
        for _ in 0..3 {
            let part = room.take(&path, Watcher::Holder);
            assert!(part.is_some());
            assert!(room.take("/", Watcher::Holder).is_none());
        }
    }
}
