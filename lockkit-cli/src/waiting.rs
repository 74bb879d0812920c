//! What people are told while `lockkit run` waits for its lock.

use std::pin::pin;
use std::time::Duration;

use humantime::format_duration;
use lockkit::{LockStatus, Locker, Wait};
use tokio::select;
use tokio::time::{Instant, sleep, timeout};

use crate::report::{LiveLine, say};
use crate::status::{REFRESH, held_by};
use crate::table::{roughly, visible};

/// How long to wait without a word.
const QUIETLY: Duration = Duration::from_millis(500);

/// How long a look at the holder may take. It is no more than a courtesy.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for the outcome of `acquiring`, and says for whom: at a terminal in a line that is kept
/// up to date, elsewhere once.
pub(crate) async fn wait<T>(
    locker: &Locker,
    name: &str,
    patience: Wait,
    acquiring: impl Future<Output = T>,
) -> T {
    let begun = Instant::now();
    let mut acquiring = pin!(acquiring);
    if let Ok(outcome) = timeout(QUIETLY, &mut acquiring).await {
        return outcome;
    }
    let lock = format!("lock `{}` ({})", visible(name), locker.driver().id());
    let line = LiveLine::begin();
    loop {
        let seen = select! {
            biased;
            outcome = &mut acquiring => return outcome,
            seen = look(locker, name) => seen,
        };
        let who = seen.as_ref().map_or(String::new(), circumstances);
        let Some(line) = &line else {
            say(format!("waiting for {lock} {}{who}", for_how_long(patience)));
            return acquiring.await;
        };
        let limit = match patience {
            Wait::AtMost(patience) => format!(" of {}", roughly(patience)),
            _ => String::new(),
        };
        line.show(&format!("waiting {}{limit} for {lock}{who}", roughly(begun.elapsed())));
        select! {
            biased;
            outcome = &mut acquiring => return outcome,
            () = sleep(REFRESH) => (),
        }
    }
}

fn for_how_long(patience: Wait) -> String {
    match patience {
        Wait::No => "for one answer".into(),
        Wait::AtMost(patience) => format!("for up to {}", format_duration(patience)),
        _ => "for as long as it takes".into(),
    }
}

/// Whether the lock is held by one of `owners`, whose ids stand between blanks. If nobody can tell,
/// that is no reason not to wait.
pub(crate) async fn is_held_by(locker: &Locker, name: &str, owners: &str) -> bool {
    let status = look(locker, name).await;
    let holder = status.as_ref().and_then(LockStatus::holder);
    holder.is_some_and(|holder| owners.split(' ').any(|owner| *owner == holder.owner().to_string()))
}

/// None if it cannot be told, for whatever reason: this must not stop anybody from waiting.
async fn look(locker: &Locker, name: &str) -> Option<LockStatus> {
    timeout(PATIENCE, locker.look(name)).await.ok()?.ok()
}

fn circumstances(status: &LockStatus) -> String {
    let holder = status.holder().map_or(String::new(), |holder| format!(", {}", held_by(holder)));
    match status.waiters().len() {
        0 => holder,
        waiters => format!("{holder}, {waiters} in the queue"),
    }
}
