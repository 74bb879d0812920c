//! A service that gives its locks back when it is told to end, and stops working when it loses
//! one.
//!
//! `cargo run --example graceful_shutdown [URL]`; end it with Ctrl-C or SIGTERM, as systemd and
//! Kubernetes do, or let it end by itself after a second.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::time::Duration;

use lockkit::Hold;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// Less than what is left of the 30 seconds after which Kubernetes kills, unless told otherwise.
const GRACE: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut terminated = signal(SignalKind::terminate())?;
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:service".into());
    let locker = lockkit::connect(&url).await?;
    let leader = locker.lock("leader")?;

    // Another instance, which arrives while this one serves, and takes over.
    let successor = lockkit::connect(&url).await?;
    let (begins, begun) = oneshot::channel();
    let next = tokio::spawn({
        let leader = successor.lock("leader")?;
        async move {
            // If this instance never gets to serve, the other comes all the same.
            _ = begun.await;
            leader.acquire().await
        }
    });

    let serving = leader.run(|hold| {
        // Nobody listens any more if everything is coming to its end.
        _ = begins.send(());
        serve(hold)
    });
    select! {
        outcome = serving => match outcome {
            Ok(()) => println!("done"),
            // The work was cancelled at its next await.
            Err(error) => println!("no longer the leader: {error}"),
        },
        _ = tokio::signal::ctrl_c() => println!("told to end"),
        _ = terminated.recv() => println!("told to end"),
        () = sleep(Duration::from_secs(1)) => println!("time to end"),
    }
    // Dropping the work has already let go of the lock; this waits until the backend knows, so that
    // nobody has to wait for a lease to run out. What cannot be given back runs out by itself.
    if timeout(GRACE, locker.shutdown()).await.is_err() {
        println!("not all is settled");
    }

    let guard = next.await??;
    println!("the successor is in, with token {:?}", guard.fencing_token());
    guard.release().await?;
    successor.shutdown().await;
    Ok(())
}

async fn serve(hold: Hold) {
    while hold.is_held() {
        println!("serving as the leader for another {:?}", hold.valid_for());
        sleep(Duration::from_millis(300)).await;
    }
}
