//! A service that runs in many instances, and does each job once.
//!
//! `cargo run --example job_once [URL]`: three workers, which stand for the instances, find the
//! same ten jobs. The lock keeps two workers from doing one job at the same time; the note beside
//! the job, read under the lock, keeps a job that is done from being done again. Here the notes are
//! in this process; instances that are processes have them where the jobs are.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit::Locker;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const JOBS: u32 = 10;
const WORKERS: u32 = 3;

/// What would be a table of jobs in a database: who has done which.
type Done = Arc<Mutex<BTreeMap<u32, Vec<u32>>>>;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:?ttl=10s".into());
    let locker = lockkit::connect(&url).await?;
    let done = Done::default();

    let workers: Vec<_> =
        (1..=WORKERS).map(|id| tokio::spawn(work(id, locker.clone(), done.clone()))).collect();
    for worker in workers {
        worker.await??;
    }
    locker.shutdown().await;

    for (job, workers) in &*lock(&done) {
        println!("job {job} was done by worker {workers:?}");
        assert_eq!(workers.len(), 1, "job {job} was done more than once");
    }
    Ok(())
}

async fn work(id: u32, locker: Locker, done: Done) -> Result<()> {
    for job in 1..=JOBS {
        let lock_of_job = locker.lock(&format!("jobs/{job}"))?;
        // A worker that finds a job taken goes on to the next: somebody is at it.
        let Some(guard) = lock_of_job.try_acquire().await? else { continue };
        let doing = async |_hold| {
            if !lock(&done).contains_key(&job) {
                tokio::time::sleep(Duration::from_millis(5)).await;
                lock(&done).entry(job).or_default().push(id);
            }
        };
        guard.run(doing).await?;
    }
    Ok(())
}

fn lock(done: &Done) -> std::sync::MutexGuard<'_, BTreeMap<u32, Vec<u32>>> {
    done.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
