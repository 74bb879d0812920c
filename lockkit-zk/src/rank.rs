use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// How a node stands in its queue, as far as this driver knows: its claim tells the one behind it.
#[derive(Clone, Debug)]
pub(crate) struct Rank(Arc<Known>);

#[derive(Debug)]
struct Known {
    is_ours: bool,
    is_first: AtomicBool,
    waits: AtomicBool,
    is_gone: AtomicBool,
    news: Notify,
}

impl Rank {
    /// The rank of a node that this driver has made.
    pub(crate) fn of_place() -> Self {
        Self::new(true)
    }

    /// The rank of a node of somebody else, who tells nothing.
    pub(crate) fn of_a_stranger() -> Self {
        Self::new(false)
    }

    fn new(is_ours: bool) -> Self {
        Self(Arc::new(Known {
            is_ours,
            is_first: AtomicBool::new(false),
            waits: AtomicBool::new(is_ours),
            is_gone: AtomicBool::new(false),
            news: Notify::new(),
        }))
    }

    /// Whether the node is that of a claim of this driver.
    pub(crate) fn is_ours(&self) -> bool {
        self.0.is_ours
    }

    /// Whether the node is known to be, or to have been, the first of its queue. From then on
    /// nothing comes before it: the servers put each new node behind all others.
    pub(crate) fn is_first(&self) -> bool {
        self.0.is_first.load(Ordering::Acquire)
    }

    pub(crate) fn set_first(&self) {
        self.0.is_first.store(true, Ordering::Release);
    }

    /// Whether its claim is known to wait. While it does, there is no need to watch the node: it
    /// and the one behind it are of one session, and end with it together.
    pub(crate) fn waits(&self) -> bool {
        self.0.waits.load(Ordering::Acquire)
    }

    /// Its claim has the lock, or leaves, or nobody knows.
    pub(crate) fn moves_on(&self) {
        self.0.waits.store(false, Ordering::Release);
        self.0.news.notify_waiters();
    }

    /// The servers have removed the node.
    pub(crate) fn goes(&self) {
        self.0.is_gone.store(true, Ordering::Release);
        self.0.news.notify_waiters();
    }

    /// Returns when its claim no longer waits.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(crate) async fn moved(&self) {
        self.until(|known| !known.waits.load(Ordering::Acquire)).await;
    }

    /// Returns when its claim has removed the node.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(crate) async fn gone(&self) {
        self.until(|known| known.is_gone.load(Ordering::Acquire)).await;
    }

    async fn until(&self, is_so: impl Fn(&Known) -> bool) {
        let mut news = pin!(self.0.news.notified());
        loop {
            // What comes after this is not missed.
            news.as_mut().enable();
            if is_so(&self.0) {
                return;
            }
            news.as_mut().await;
            news.set(self.0.news.notified());
        }
    }
}
