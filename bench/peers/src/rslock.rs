use std::time::{Duration, Instant};

use rslock::LockManager;

use crate::Result;

const TTL: Duration = Duration::from_secs(30);

/// `rslock`: Redlock over any number of Redis servers.
pub(crate) struct Peer {
    manager: LockManager,
}

impl Peer {
    pub(crate) fn new(urls: Vec<String>) -> Self {
        Self { manager: LockManager::new(urls) }
    }

    pub(crate) async fn pairs(&self, number: usize) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(number);
        for _ in 0..number {
            let start = Instant::now();
            self.manager.acquire("rslock/pair", TTL).await?.release().await;
            times.push(start.elapsed());
        }
        Ok(times)
    }
}
