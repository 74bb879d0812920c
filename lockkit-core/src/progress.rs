//! What is known of a claim that has not been granted yet.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::driver::DriverError;
use crate::options::{Renew, Wait};
use crate::owner::{Behind, Silence};
use crate::pace::Pause;
use crate::turns::Ticket;

/// How far a claim has come on its way to a grant.
pub(crate) struct Progress {
    pub(crate) wait: Wait,
    pub(crate) renew: Renew,
    pub(crate) started: Instant,
    /// Whether it was counted as a waiter.
    pub(crate) contended: bool,
    /// When the first unanswered ask left, if no later one was answered either.
    pub(crate) unanswered: Option<Instant>,
    /// Whether the backend has answered any ask.
    pub(crate) answered: bool,
    /// When the last ask left that was answered [`Attempt::Taken`](crate::driver::Attempt::Taken).
    pub(crate) refused: Option<Instant>,
    /// When the last ask was over whose outcome is unknown: it was sent before that.
    pub(crate) in_doubt: Option<Instant>,
    /// Whether there may be something to release.
    pub(crate) traces: bool,
    /// What the last ask failed with, if it failed. Boxed, since most claims have none and waiters are many.
    pub(crate) failure: Option<Box<DriverError>>,
    /// How many asks were refused although news had told everybody to make them.
    pub(crate) in_vain: u32,
    pub(crate) pause: Pause,
    /// Its ticket among the waiters of a locker that take turns, if it is one of them.
    pub(crate) ticket: Option<Ticket>,
    /// Where those of the same owner look who come after it.
    pub(crate) silence: Option<Arc<Silence>>,
}

impl Progress {
    pub(crate) fn new(started: Instant, wait: Wait, renew: Renew) -> Self {
        Self {
            wait,
            renew,
            started,
            contended: false,
            unanswered: None,
            answered: false,
            refused: None,
            in_doubt: None,
            traces: false,
            failure: None,
            in_vain: 0,
            pause: Pause::new(Duration::from_millis(5)),
            ticket: None,
            silence: None,
        }
    }

    /// Goes on where those of the same owner before it have come.
    pub(crate) fn behind_others(mut self, behind: Option<Behind>) -> Self {
        if let Some(Behind { silent_since, silence }) = behind {
            self.unanswered = silent_since;
            self.silence = Some(silence);
        }
        self
    }

    /// There is nothing more to ask: if it was this claim's turn, the turn is passed on. Returns
    /// when the last ask was over whose outcome is unknown.
    pub(crate) fn end(self) -> Option<Instant> {
        self.in_doubt
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.wait {
            Wait::AtMost(patience) if !patience.is_zero() => Some(self.started + patience),
            _ => None,
        }
    }

    pub(crate) fn pause(&mut self) -> Duration {
        self.pause.next(Duration::from_millis(100))
    }

    /// The ticket in a queue of the process, until it is this claim's turn.
    pub(crate) fn behind(&self) -> Option<&Ticket> {
        self.ticket.as_ref().filter(|ticket| !ticket.has_turn())
    }

    /// Since when this claim, or whoever asks in its stead, has had no answer.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        match self.behind() {
            Some(ticket) => self.silent_before(ticket),
            None => self.unanswered,
        }
    }

    /// Since when whoever asks in this claim's stead has had no answer, as far as that concerns it.
    pub(crate) fn silent_before(&self, ticket: &Ticket) -> Option<Instant> {
        let earliest = self.unanswered.unwrap_or(self.started);
        ticket.word().unanswered.map(|since| since.max(earliest))
    }

    /// Whether there is no grant for want of answers, and not because the lock is taken.
    pub(crate) fn is_unheard(&self) -> bool {
        let (unanswered, failed, answered) = match self.ticket.as_ref().map(Ticket::word) {
            Some(word) => (word.unanswered, word.failed, word.answered.is_some()),
            None => (self.unanswered, self.failure.is_some(), self.answered),
        };
        // An ask that is under way takes back nothing that was known before it.
        failed || unanswered.is_some_and(|since| since <= self.started || !answered)
    }

    /// It is another's turn, if it was this claim's.
    pub(crate) fn pass_turn(&self) {
        if let Some(ticket) = &self.ticket {
            ticket.pass();
        }
    }

    /// Tells those of the same owner who come after it, if it has one, since when there has been no
    /// answer.
    pub(crate) fn tell_owner(&self) {
        if let Some(silence) = &self.silence {
            silence.note(self.silent_since());
        }
    }
}
