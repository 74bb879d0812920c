//! What is measured: the same for every library.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::Result;
use crate::peers::{Client, Peer};

pub async fn run(peer: &Peer, words: &[&str]) -> Result<Value> {
    match words {
        ["uncontended", name, pairs] => uncontended(peer, name, pairs.parse()?).await,
        ["handover", name, waits @ ..] => handover(peer, name, waits).await,
        ["contended", name, clients, section, milliseconds] => {
            let section = Duration::from_micros(section.parse()?);
            let time = Duration::from_millis(milliseconds.parse()?);
            contended(peer, name, clients.parse()?, section, time).await
        }
        ["hold", name] => hold(peer, name).await,
        _ => Err(format!("no such workload: {words:?}").into()),
    }
}

async fn uncontended(peer: &Peer, name: &str, pairs: usize) -> Result<Value> {
    let client = peer.connect().await?;
    let mut took = Vec::with_capacity(pairs);
    for _ in 0..pairs {
        let start = Instant::now();
        client.acquire(name).await?.await?;
        took.push(nanoseconds(start.elapsed()));
    }
    Ok(json!({ "nanoseconds": took }))
}

/// The holder lets go after so many milliseconds each time.
async fn handover(peer: &Peer, name: &str, waits: &[&str]) -> Result<Value> {
    let holder = peer.connect().await?;
    let waiter: Arc<dyn Client> = peer.connect().await?.into();
    let mut took = Vec::with_capacity(waits.len());
    for wait in waits {
        let wait = Duration::from_millis(wait.parse()?);
        let release = holder.acquire(name).await?;
        let (waiter, waited_for) = (Arc::clone(&waiter), name.to_owned());
        let waiting = tokio::spawn(async move {
            let release = waiter.acquire(&waited_for).await?;
            let got = Instant::now();
            release.await?;
            Result::Ok(got)
        });
        sleep(wait).await;
        let start = Instant::now();
        release.await?;
        took.push(nanoseconds(waiting.await??.duration_since(start)));
    }
    Ok(json!({ "nanoseconds": took }))
}

async fn contended(
    peer: &Peer,
    name: &str,
    clients: usize,
    section: Duration,
    time: Duration,
) -> Result<Value> {
    let (ready, is_held) = (Arc::new(Barrier::new(clients)), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let (connected, name) = (peer.connect().await?, name.to_owned());
        let (ready, is_held) = (Arc::clone(&ready), Arc::clone(&is_held));
        tasks.spawn(async move {
            connected.acquire(&format!("{name}-{client}")).await?.await?;
            ready.wait().await;
            let (began, mut waits) = (Instant::now(), Vec::new());
            while began.elapsed() < time {
                let start = Instant::now();
                let release = connected.acquire(&name).await?;
                waits.push(nanoseconds(start.elapsed()));
                work(section, &is_held).await?;
                release.await?;
            }
            Result::Ok((client, waits))
        });
    }
    let mut waits = vec![Vec::new(); clients];
    while let Some(ended) = tasks.join_next().await {
        let (client, of_client) = ended??;
        waits[client] = of_client;
    }
    Ok(json!({ "clients": waits, "seconds": time.as_secs_f64() }))
}

/// What is done under a lock: takes so long, and is done by one at a time, or the lock is none. A timer
/// of the runtime counts in whole milliseconds and would add up to one, which is much to a section of
/// one, and other languages do not have.
async fn work(section: Duration, is_held: &AtomicBool) -> Result<()> {
    if section.is_zero() {
        return Ok(());
    }
    if is_held.swap(true, Ordering::SeqCst) {
        return Err("two of its clients held the same lock".into());
    }
    spawn_blocking(move || std::thread::sleep(section)).await?;
    is_held.store(false, Ordering::SeqCst);
    Ok(())
}

/// Holds it for good: the release is never awaited, and no destructor runs.
async fn hold(peer: &Peer, name: &str) -> Result<Value> {
    let client = peer.connect().await?;
    std::mem::forget(client.acquire(name).await?);
    std::mem::forget(client);
    Ok(json!({ "held": true }))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
