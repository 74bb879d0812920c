//! What a waiter takes, the client library's part included, counted by the allocator.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::ExitCode;
use std::time::Duration;

use allocation_counter::measure;
use lockkit::Locker;
use lockkit_compare::servers::{Backend, Servers};
use lockkit_testkit::{Unavailable, trial};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

/// As many as it takes for what there is but once to be there.
const FIRST: usize = 300;
/// Those that are counted. Together they fill maps that grow by doubling.
const WAITERS: usize = 1_000;

fn main() -> ExitCode {
    let name = "a_waiter_of_redis_costs_less_than_four_kibibytes";
    lockkit_testkit::run(vec![trial(name, start, count)])
}

fn start() -> Result<Servers, Unavailable> {
    Servers::start(Backend::Redis).map_err(|error| *error.downcast::<Unavailable>().unwrap())
}

async fn count(servers: Servers) {
    // The allocator counts for a thread.
    spawn_blocking(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let stage = Stage::new(runtime, &servers);
        let holder = stage.runtime.block_on(stage.lock().acquire()).unwrap();
        let mut tasks = stage.wait(FIRST, FIRST);
        let waiting = measure(|| tasks.extend(stage.wait(WAITERS, FIRST + WAITERS)));
        let bytes = waiting.bytes_current / WAITERS as i64;
        stage.runtime.block_on(async {
            holder.release().await.unwrap();
            for task in tasks {
                task.await.unwrap();
            }
            stage.locker.shutdown().await;
        });
        assert!(bytes < 4 * 1024, "{bytes} bytes for each");
    })
    .await
    .unwrap();
}

struct Stage {
    runtime: Runtime,
    locker: Locker,
}

impl Stage {
    fn new(runtime: Runtime, servers: &Servers) -> Self {
        let locker = runtime.block_on(lockkit::connect(&servers.url())).unwrap();
        Self { runtime, locker }
    }

    fn lock(&self) -> lockkit::Lock<lockkit::Fifo> {
        self.locker.lock("waiters").unwrap().fair().unwrap()
    }

    /// Lets so many wait, and returns when there are so many in all.
    fn wait(&self, waiters: usize, all: usize) -> Vec<JoinHandle<()>> {
        self.runtime.block_on(async {
            let waiter = || {
                let lock = self.lock();
                tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
            };
            let tasks = (0..waiters).map(|_| waiter()).collect();
            // A server that is busy with a crowd may have no answer for us.
            let are_all_there = async || {
                let looked = self.locker.look("waiters").await;
                looked.is_ok_and(|status| status.waiters().len() >= all)
            };
            while !are_all_there().await {
                sleep(Duration::from_millis(200)).await;
            }
            // Until they have settled down.
            sleep(Duration::from_millis(500)).await;
            tasks
        })
    }
}
