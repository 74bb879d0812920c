use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lockkit::Locker;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::witness::Witness;
use crate::worker::work;

const WORKERS: usize = 3;

/// A process: a locker with a runtime of its own, which can be taken away at any moment.
pub(crate) struct Process {
    locker: Locker,
    workers: JoinSet<()>,
    stop: Arc<AtomicBool>,
    runtime: Ended,
}

/// A runtime of which nothing goes on when it is dropped, and nothing is waited for.
pub(crate) struct Ended(Option<Runtime>);

impl Process {
    pub(crate) async fn start(
        number: usize,
        url: String,
        witness: &Arc<Witness>,
        ttl: Duration,
        dice: &mut Rng,
    ) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let locker = runtime.spawn(connect(url)).await.unwrap();
        let (stop, mut workers) = (Arc::<AtomicBool>::default(), JoinSet::new());
        for _ in 0..WORKERS {
            let (stop, witness, dice) = (stop.clone(), witness.clone(), dice.fork());
            let (locker, on) = (locker.clone(), runtime.handle());
            let goes_on = move || !stop.load(Ordering::Relaxed);
            workers.spawn_on(work(locker, witness, number, ttl, dice, goes_on), on);
        }
        Self { locker, workers, stop, runtime: Ended(Some(runtime)) }
    }

    /// Ends it as SIGKILL does.
    pub(crate) fn die(self) {
        // First, so that nothing is tidied up.
        drop(self.runtime);
    }

    /// Ends it as SIGTERM does a well-behaved one.
    pub(crate) async fn end(self) {
        let Self { locker, runtime, .. } = self;
        runtime.get().spawn(async move { locker.shutdown().await }).await.unwrap();
    }

    /// Returns when its workers have got what they wait for and have let go of it.
    pub(crate) async fn finish(mut self) -> (Locker, Ended) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.workers.join_next().await {
            ended.unwrap();
        }
        (self.locker, self.runtime)
    }
}

impl Ended {
    fn get(&self) -> &Runtime {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

/// A server that was killed may be starting yet.
async fn connect(url: String) -> Locker {
    loop {
        match lockkit::connect(&url).await {
            Ok(locker) => return locker,
            Err(error) => {
                assert!(matches!(error, lockkit::Error::Unreachable(_)), "{error:?}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
