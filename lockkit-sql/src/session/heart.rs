use std::sync::Arc;

use super::registry::LONGEST_BELIEF;
use super::server::Server;
use super::shared::Shared;
use super::turn::Turn;

/// Asks whether the session stands, on a server that takes writes, before it has been idle for
/// long.
pub(super) async fn beat<S: Server>(shared: Arc<Shared<S>>) {
    loop {
        let next = shared.registry().next_beat();
        let now = shared.clock.now();
        match next {
            None => shared.began.notified().await,
            // A lock that is granted meanwhile may want the next beat sooner.
            Some(next) if now < next => {
                shared.clock.sleep_until(next.min(now + LONGEST_BELIEF)).await;
            }
            Some(_) => {
                let line = shared.line.clone().lock_owned().await;
                // Another beat may have been answered while this one waited for its turn.
                let next = shared.registry().next_beat();
                if next.is_some_and(|next| next <= shared.clock.now()) {
                    let progress = Arc::default();
                    Turn { shared: shared.clone(), line, progress }.beat().await;
                }
            }
        }
    }
}
