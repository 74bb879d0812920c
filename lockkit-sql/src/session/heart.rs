use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::server::{Request, Server};
use super::shared::Shared;
use super::turn::Turn;

const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);

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

/// Removes what nobody has used for long, every hour; and one time in fifty at once, for
/// applications whose processes never get that old.
pub(super) async fn keep_house<S: Server>(shared: Arc<Shared<S>>) {
    if fastrand::u32(0..50) != 0 {
        sleep(SWEEP_EVERY.mul_f64(fastrand::f64())).await;
    }
    loop {
        let line = shared.line.clone().lock_owned().await;
        let mut turn = Turn { shared: shared.clone(), line, progress: Arc::default() };
        if !turn.is_over()
            && let Err(failure) = turn.send(&Request::Sweep).await
        {
            tracing::debug!(%failure, "idle rows were not removed");
        }
        drop(turn);
        sleep(SWEEP_EVERY).await;
    }
}
