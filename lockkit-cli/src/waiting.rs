//! What people are told while `lockkit run` waits for its lock.

use std::pin::{Pin, pin};
use std::time::Duration;

use humantime::format_duration;
use lockkit::driver::blocking;
use lockkit::{LockStatus, Locker, Wait};
use tokio::select;
use tokio::time::{Instant, sleep, timeout};

use crate::report::{LiveLine, say};
use crate::status::{REFRESH, held_by};
use crate::table::{cut, roughly, visible};
use crate::voice;

/// How long to wait without a word.
const QUIETLY: Duration = Duration::from_millis(500);

/// How long erasing the line may take, before the command writes there.
const A_MOMENT: Duration = Duration::from_millis(100);

/// How long a look at the holder may take. It is only a courtesy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

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
    let line = LiveLine::begin();
    let outcome = wait_aloud(line.as_ref(), locker, name, patience, begun, acquiring).await;
    if line.is_some() {
        drop(line);
        // Otherwise the first words of the command may be erased. Whoever reads may stand still.
        _ = blocking(|| voice::settle(A_MOMENT)).await;
    }
    outcome
}

async fn wait_aloud<T>(
    line: Option<&LiveLine>,
    locker: &Locker,
    name: &str,
    patience: Wait,
    begun: Instant,
    mut acquiring: Pin<&mut impl Future<Output = T>>,
) -> T {
    let shown = visible(name);
    loop {
        let seen = select! {
            biased;
            outcome = &mut acquiring => return outcome,
            seen = look(locker, name) => seen,
        };
        let seen = seen.as_ref();
        let holder = seen.and_then(LockStatus::holder).map(held_by);
        let queue = match seen.map_or(0, |seen| seen.waiters().len()) {
            0 => String::new(),
            waiters => format!(", {waiters} in the queue"),
        };
        let Some(line) = line else {
            let (driver, limit) = (locker.driver().id(), for_how_long(patience));
            let holder = holder.map_or(String::new(), |holder| format!(", {holder}"));
            say(format!("waiting for lock `{shown}` ({driver}) {limit}{holder}{queue}"));
            return acquiring.await;
        };
        let limit = match patience {
            Wait::AtMost(patience) => format!(" of {}", roughly(patience)),
            _ => String::new(),
        };
        // What is short comes first, since the end is cut.
        let (waited, lock) = (roughly(begun.elapsed()), cut(&shown, 24));
        let holder = holder.map_or(String::new(), |holder| format!(" {holder}"));
        line.show(&format!("waiting {waited}{limit}{queue}, lock `{lock}`{holder}"));
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

/// Whether the lock is held by one of `owners`, whose ids have spaces between them. Looks until the
/// backend has answered; one that cannot tell is no reason not to wait.
pub(crate) async fn is_held_by(locker: &Locker, name: &str, owners: &str) -> bool {
    loop {
        match locker.look(name).await {
            Ok(status) => {
                let owner = status.holder().map(|holder| holder.owner().to_string());
                return owner.is_some_and(|owner| owners.split(' ').any(|ours| *ours == owner));
            }
            Err(error) if error.is_transient() => sleep(REFRESH).await,
            Err(_) => return false,
        }
    }
}

/// `None` if it cannot be told, for whatever reason: this must not stop anybody from waiting.
async fn look(locker: &Locker, name: &str) -> Option<LockStatus> {
    timeout(PATIENCE, locker.look(name)).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use lockkit::driver::OwnerId;
    use lockkit::memory::{Fault, MemoryDriver};
    use lockkit::{ErrorKind, Operation};

    use super::{Locker, is_held_by};

    #[tokio::test(start_paused = true)]
    async fn a_backend_that_does_not_answer_at_once_is_asked_again_who_holds() {
        for (fault, is_asked_again) in [
            (Fault::Fail(ErrorKind::Unreachable), true),
            (Fault::LoseAnswer, true),
            (Fault::Fail(ErrorKind::Denied), false),
        ] {
            let backend = MemoryDriver::new();
            let locker = Locker::new(backend.clone());
            let guard = locker.lock("name").unwrap().acquire().await.unwrap();
            let owners = format!("{} {}", OwnerId::random(), guard.owner());
            backend.faults().inject(Operation::Inspect, fault);
            assert_eq!(is_held_by(&locker, "name", &owners).await, is_asked_again, "{fault:?}");
            assert!(!is_held_by(&locker, "name", &OwnerId::random().to_string()).await);
        }
    }
}
