use std::any::Any;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{fmt, io};

use tokio::runtime::{Builder, Runtime};

use crate::checks::{Check, Need};
use crate::context::{Context, Stop, Verdict};
use crate::setup::Setup;

/// How often a check is tried while the machine is too busy to judge by.
const TRIES: usize = 4;

/// How long a check may take, unless its leases are long: some make thousands of requests, each of
/// which may wait for a disk.
const LIMIT: Duration = Duration::from_secs(600);

/// How long it may take to remove what a check leaves.
const CLEANING_UP: Duration = Duration::from_secs(10);

/// Runs a check in a runtime of its own, and returns even if the check does not.
pub(crate) fn run(setup: &Arc<Setup>, check: &'static Check) -> Verdict {
    let is_alone = disturbs(check) || check.needs().contains(&Need::Alone);
    let backend = &setup.backend;
    let _alone = is_alone.then(|| backend.write().unwrap_or_else(PoisonError::into_inner));
    let _beside = (!is_alone).then(|| backend.read().unwrap_or_else(PoisonError::into_inner));

    let mut tries = 1;
    loop {
        let (verdict, pulse) = run_once(setup, check);
        let Some((reason, stalled)) = pulse.excuse(setup, &verdict) else { return verdict };
        let reason =
            format!("{reason} (this machine or the backend once stood still for {stalled:?})");
        if tries == TRIES {
            return Err(Stop::Failed(reason));
        }
        note(format_args!("{}: is tried again: {reason}", check.name()));
        tries += 1;
    }
}

/// Whether slowness may be the check's own doing.
fn disturbs(check: &Check) -> bool {
    check.needs().iter().any(|need| matches!(need, Need::Sever | Need::Silence | Need::Restart))
}

/// The verdict, and what to judge it by.
fn run_once(setup: &Arc<Setup>, check: &'static Check) -> (Verdict, Arc<Pulse>) {
    // By the wall clock: in virtual time a check takes no time, unless it hangs.
    let limit = if setup.virtual_time { LIMIT } else { limit(setup) };
    let pulse = Arc::new(Pulse::new(!disturbs(check) && !setup.virtual_time));
    let (send, done) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(check.name().into()).spawn({
        let (setup, pulse) = (setup.clone(), pulse.clone());
        move || {
            let outcome = judge(&setup, check, &pulse);
            // Nobody is listening any more if it took too long.
            _ = send.send(outcome);
        }
    });
    let thread = match thread {
        Ok(thread) => thread,
        Err(error) => return (Err(Stop::from(error)), pulse),
    };
    // The check ends itself at its limit, unless it keeps its thread from doing so.
    let verdict = match done.recv_timeout(limit + CLEANING_UP + Duration::from_secs(5)) {
        Ok(verdict) => verdict,
        // The thread is left behind: nothing can end it.
        Err(mpsc::RecvTimeoutError::Timeout) => {
            Err(Stop::Failed(format!("it was not done after {limit:?}")))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(Stop::Failed(match thread.join() {
            Err(panic) => format!("it panicked: {}", text(&*panic)),
            Ok(()) => "it ended without a verdict".into(),
        })),
    };
    (verdict, pulse)
}

fn judge(setup: &Arc<Setup>, check: &'static Check, pulse: &Arc<Pulse>) -> Verdict {
    let runtime = runtime(setup)?;
    let verdict = runtime.block_on(async {
        if !setup.virtual_time {
            tokio::spawn(pulse.clone().beat(setup.clone()));
        }
        let context = Context::new(setup.clone(), pulse.clone());
        let limit = limit(setup);
        let verdict = match tokio::time::timeout(limit, check.run(&context)).await {
            Ok(verdict) => verdict,
            Err(_) => Err(Stop::Failed(format!("it was not done after {limit:?}"))),
        };
        let why = match tokio::time::timeout(CLEANING_UP, context.clean_up()).await {
            Ok(Ok(())) => return verdict,
            Ok(Err(Stop::Failed(reason) | Stop::Refuted(reason) | Stop::DoesNotApply(reason))) => {
                format!("could not clean up: {reason}")
            }
            Err(_) => format!("cleaning up took more than {CLEANING_UP:?}"),
        };
        let left = context.left().map_or_else(String::new, |(count, longest)| {
            format!("; {count} locks or places stay for up to {longest:?}")
        });
        note(format_args!("{}: {why}{left}", check.name()));
        verdict
    });
    runtime.shutdown_background();
    verdict
}

/// Tells of what is no verdict, and what somebody may want to know.
fn note(what: fmt::Arguments<'_>) {
    // If nobody reads it, the check has come out the same.
    _ = writeln!(io::stderr(), "lockkit: {what}");
}

fn runtime(setup: &Setup) -> Verdict<Runtime> {
    Ok(match setup.virtual_time {
        true => Builder::new_current_thread().enable_all().start_paused(true).build()?,
        false => Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
    })
}

/// How long a check may take.
fn limit(setup: &Setup) -> Duration {
    LIMIT.max(30 * setup.ttl())
}

/// Notices when the machine or the backend stands still, since leases then run out that nobody let
/// run out.
#[derive(Debug)]
pub(crate) struct Pulse {
    longest_millis: AtomicU64,
    /// The shortest lease that the check has asked for or was told of.
    lease_millis: AtomicU64,
    hears_answers: bool,
}

impl Pulse {
    fn new(hears_answers: bool) -> Self {
        let (longest_millis, lease_millis) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        Self { longest_millis, lease_millis, hears_answers }
    }

    async fn beat(self: Arc<Self>, setup: Arc<Setup>) {
        let interval = setup.ttl() / 20;
        loop {
            let begun = Instant::now();
            tokio::time::sleep(interval).await;
            self.note(begun.elapsed().saturating_sub(interval));
        }
    }

    /// Waits for the answer to a request.
    pub(crate) async fn answer<T>(&self, request: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let answer = request.await;
        if self.hears_answers {
            self.note(begun.elapsed());
        }
        answer
    }

    fn note(&self, late: Duration) {
        self.longest_millis.fetch_max(millis(late), Ordering::Relaxed);
    }

    /// A hold may last no longer than this.
    pub(crate) fn note_lease(&self, lease: Duration) {
        self.lease_millis.fetch_min(millis(lease), Ordering::Relaxed);
    }

    /// Why the check failed, and for how long anything stood still, if that may be the cause: a fifth
    /// of a lease is also when a driver gives up a request.
    fn excuse<'a>(&self, setup: &Setup, verdict: &'a Verdict) -> Option<(&'a str, Duration)> {
        let (reason, lease) = match verdict {
            Err(Stop::Failed(reason)) => (reason, setup.ttl()),
            Err(Stop::Refuted(reason)) => {
                (reason, Duration::from_millis(self.lease_millis.load(Ordering::Relaxed)))
            }
            _ => return None,
        };
        let longest = Duration::from_millis(self.longest_millis.load(Ordering::Relaxed));
        (longest >= lease / 5).then_some((reason, longest))
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

fn text(panic: &(dyn Any + Send)) -> &str {
    match panic.downcast_ref::<&str>() {
        Some(text) => text,
        None => panic.downcast_ref::<String>().map_or("without a message", String::as_str),
    }
}
