//! Until when a session is known to live.

use std::collections::VecDeque;
use std::time::Duration;

use lockkit_core::driver::Instant;

/// What answered writes prove about a session.
///
/// A server that follows answers for the leader before the leader knows that the session lives: it
/// reports the sessions that it has heard of whenever the leader pings it, which is every half
/// tick. So the answer to a write proves nothing by itself. It does once another write, which left
/// more than a tick after that answer, is answered as well: in between, the server was pinged, its
/// report went the same way ahead of the second write, and the leader counts the session's time-out
/// from then or later.
#[derive(Debug)]
pub(crate) struct Proof {
    tick: Duration,
    /// When the last write left, of those that are known to have reached the leader's count.
    followed: Instant,
    /// The same at the time doubt came up, until the doubt is gone.
    doubted: Option<Instant>,
    /// Answered writes that no write has followed late enough yet, the oldest first.
    waiting: VecDeque<Write>,
}

#[derive(Debug)]
struct Write {
    sent: Instant,
    answered: Instant,
}

impl Proof {
    /// The proof of a session that was asked for at `asked` and granted: the leader counts from
    /// there.
    pub(crate) fn new(asked: Instant, tick: Duration) -> Self {
        Self { tick, followed: asked, doubted: None, waiting: VecDeque::new() }
    }

    /// When the leader last heard of the session, at the earliest.
    pub(crate) fn since(&self) -> Instant {
        self.doubted.unwrap_or(self.followed)
    }

    /// From now on it is not known how long the leader lets the session live: until that is known
    /// again, nothing more is proven.
    pub(crate) fn doubt(&mut self) {
        self.doubted = Some(self.since());
    }

    /// The session lives for as long as before, so what was answered meanwhile counts, too.
    pub(crate) fn trust(&mut self) {
        self.doubted = None;
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubted.is_some()
    }

    /// Takes note of an answered write.
    pub(crate) fn add(&mut self, sent: Instant, answered: Instant) {
        while let Some(write) = self.waiting.front() {
            if sent <= write.answered + self.tick {
                break;
            }
            self.followed = self.followed.max(write.sent);
            self.waiting.pop_front();
        }
        // A few in each tick are as good as all.
        if self.waiting.back().is_none_or(|last| sent >= last.sent + self.tick / 8) {
            self.waiting.push_back(Write { sent, answered });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkit_core::driver::Clock;

    use super::Proof;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_counts_once_it_is_followed_a_tick_later() {
        let start = Clock::simulated().now();
        let mut proof = Proof::new(start, millis(100));
        proof.add(start + millis(10), start + millis(20));
        proof.add(start + millis(120), start + millis(125));
        assert_eq!(proof.since(), start, "a tick after the answer, and no more");
        proof.add(start + millis(121), start + millis(130));
        assert_eq!(proof.since(), start + millis(10));
        proof.add(start + millis(226), start + millis(230));
        assert_eq!(proof.since(), start + millis(120), "the write of 121 was too close to count");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_proven_while_there_is_doubt() {
        let start = Clock::simulated().now();
        let mut proof = Proof::new(start, millis(100));
        proof.add(start + millis(10), start + millis(20));
        proof.doubt();
        proof.add(start + millis(130), start + millis(135));
        proof.doubt();
        proof.add(start + millis(240), start + millis(245));
        assert_eq!(proof.since(), start);
        proof.trust();
        assert_eq!(proof.since(), start + millis(130));
    }

    #[tokio::test(start_paused = true)]
    async fn many_writes_take_no_room_and_prove_as_much() {
        let start = Clock::simulated().now();
        let mut proof = Proof::new(start, millis(100));
        for at in 1..10_000 {
            proof.add(start + millis(at), start + millis(at + 1));
        }
        assert!(proof.waiting.len() < 12, "{proof:?}");
        assert!(proof.since() >= start + millis(9_999 - 100 - 14), "{proof:?}");
    }
}
