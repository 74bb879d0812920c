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
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use lockkit::driver::{
        Attempt, Claim, Driver, DriverError, Inspect, OwnerId, Release, Renewal,
    };
    use lockkit::memory::MemoryDriver;
    use lockkit::{Capabilities, Diagnosis, ErrorKind, Holder, LockName, LockStatus, Namespace};

    use super::{Locker, is_held_by};

    /// Gives locks, and fails to tell who has them, once.
    #[derive(Debug)]
    struct Absent {
        locks: MemoryDriver,
        kind: ErrorKind,
        is_back: AtomicBool,
    }

    impl Absent {
        fn locks(&self) -> Result<&dyn Inspect, DriverError> {
            match self.is_back.swap(true, Ordering::Relaxed) {
                true => Ok(self.locks.inspect().unwrap()),
                false => Err(DriverError::new(self.kind, "not now")),
            }
        }
    }

    #[async_trait]
    impl Driver for Absent {
        fn id(&self) -> &'static str {
            "absent"
        }

        fn capabilities(&self) -> Capabilities {
            self.locks.capabilities()
        }

        async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
            self.locks.try_acquire(claim).await
        }

        async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
            self.locks.renew(claim).await
        }

        async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
            self.locks.release(claim).await
        }

        fn inspect(&self) -> Option<&dyn Inspect> {
            Some(self)
        }
    }

    #[async_trait]
    impl Inspect for Absent {
        async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
            self.locks()?.look(name).await
        }

        async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
            self.locks()?.held(namespace).await
        }

        async fn break_hold(
            &self,
            name: &LockName,
            owner: Option<OwnerId>,
        ) -> Result<Option<Holder>, DriverError> {
            self.locks()?.break_hold(name, owner).await
        }

        async fn diagnose(&self, of: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
            self.locks()?.diagnose(of).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_that_does_not_answer_at_once_is_asked_again_who_holds() {
        for (kind, is_asked_again) in
            [(ErrorKind::Unreachable, true), (ErrorKind::Unknown, true), (ErrorKind::Denied, false)]
        {
            let (locks, is_back) = (MemoryDriver::new(), AtomicBool::new(false));
            let locker = Locker::new(Absent { locks, kind, is_back });
            let guard = locker.lock("name").unwrap().acquire().await.unwrap();
            let owners = format!("{} {}", OwnerId::random(), guard.owner());
            assert_eq!(is_held_by(&locker, "name", &owners).await, is_asked_again, "{kind:?}");
            assert!(!is_held_by(&locker, "name", &OwnerId::random().to_string()).await);
        }
    }
}
