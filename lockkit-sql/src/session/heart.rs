use std::sync::Arc;

use super::registry::LONGEST_BELIEF;
use super::server::Server;
use super::shared::Shared;
use super::turn::Turn;

/// Sends something before the session was idle for long, and so learns of its end.
pub(super) async fn beat<S: Server>(shared: Arc<Shared<S>>) {
    loop {
        let (life, next) = {
            let registry = shared.registry();
            (registry.life(), registry.next_beat())
        };
        let now = shared.clock.now();
        match next {
            None => shared.began.notified().await,
            // What is granted meanwhile may want the next one sooner.
            Some(next) if now < next => {
                shared.clock.sleep_until(next.min(now + LONGEST_BELIEF)).await;
            }
            Some(_) => {
                let line = shared.line.clone().lock_owned().await;
                // Another statement may have been answered while this waited for its turn.
                if shared.registry().life() == life {
                    let progress = Arc::default();
                    Turn { shared: shared.clone(), line, progress }.beat().await;
                }
            }
        }
    }
}
