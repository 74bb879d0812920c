//! What an owner is to be told.

use std::sync::Arc;

use tokio::sync::Notify;

/// What there is to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Something may have been missed.
    LookAgain,
    /// The one ahead has gone, and was not the first.
    Moved,
    /// The one ahead held the lock, and has gone.
    Granted,
    /// The owner's key is gone.
    Lost,
}

/// What an owner is to be told, the gravest first.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    lost: bool,
    granted: bool,
    moved: bool,
    look_again: bool,
    pub(crate) arrival: Arc<Notify>,
}

impl Mailbox {
    pub(super) fn put(&mut self, news: News) {
        match news {
            News::Lost => self.lost = true,
            News::Granted => self.granted = true,
            News::Moved => self.moved = true,
            News::LookAgain => self.look_again = true,
        }
        self.arrival.notify_one();
    }

    /// Voids what was told before, except for a loss.
    pub(super) fn void(&mut self) {
        (self.granted, self.moved, self.look_again) = (false, false, false);
    }

    pub(crate) fn take(&mut self) -> Option<News> {
        let is_lost = std::mem::take(&mut self.lost);
        let is_granted = std::mem::take(&mut self.granted) && !is_lost;
        let is_moved = std::mem::take(&mut self.moved);
        let looks_again = std::mem::take(&mut self.look_again);
        is_lost
            .then_some(News::Lost)
            .or(is_granted.then_some(News::Granted))
            .or(is_moved.then_some(News::Moved))
            .or(looks_again.then_some(News::LookAgain))
    }
}
