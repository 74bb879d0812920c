//! How many claims may be on their first request at once.
//!
//! A first request is made inside the caller's future, which is large enough for whatever may come
//! of it; the task of a waiter is smaller. In a burst, all claims beyond the first few become
//! waiters before they ask at all, so that the heap does not grow by a large future for each.

use std::sync::atomic::{AtomicUsize, Ordering};

const FEW: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Crowd(AtomicUsize);

impl Crowd {
    /// Lets the claim in, unless a few are asking already.
    pub(crate) fn join(&self) -> Option<OneOfFew<'_>> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        let one = OneOfFew(&self.0);
        (before < FEW).then_some(one)
    }
}

/// Counts until it is dropped.
pub(crate) struct OneOfFew<'a>(&'a AtomicUsize);

impl Drop for OneOfFew<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Crowd, FEW};

    #[test]
    fn few_are_let_in_and_each_makes_room_for_another() {
        let crowd = Crowd::default();
        let mut few: Vec<_> = (0..FEW).map_while(|_| crowd.join()).collect();
        assert_eq!(few.len(), FEW);
        assert!(crowd.join().is_none());
        few.pop();
        assert!(crowd.join().is_some_and(|_| crowd.join().is_none()));
    }
}
