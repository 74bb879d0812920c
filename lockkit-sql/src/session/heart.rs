use std::sync::Arc;

use super::server::Server;
use super::shared::Shared;
use super::turn::Turn;

/// Sends something before the session was idle for long, and so learns of its end.
pub(super) async fn beat<S: Server>(shared: Arc<Shared<S>>) {
    loop {
        let life = shared.registry().life();
        match life {
            None => shared.began.notified().await,
            Some(life) if shared.clock.now() < life.next_beat() => {
                shared.clock.sleep_until(life.next_beat()).await;
            }
            Some(life) => {
                let line = shared.line.clone().lock_owned().await;
                // Another statement may have been answered while this waited for its turn.
                if shared.registry().life() == Some(life) {
                    let progress = Arc::default();
                    Turn { shared: shared.clone(), line, progress }.beat().await;
                }
            }
        }
    }
}
