use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;

use lockkit_core::LockExt as _;

use crate::connection::Event;
use crate::context::{Client, Context, Verdict};

/// More polls than any future here needs.
const POLLS: usize = 200;

pub(in crate::checks) async fn an_acquisition_may_be_dropped_anywhere(
    context: &Context,
) -> Verdict {
    let (client, other) = (context.long_client().await?, context.long_client().await?);
    for polls in 0..POLLS {
        let outcome = poll_times(context, polls, client.lock.acquire()).await;
        if let Polled::Ready(guard) = outcome {
            return Ok(guard?.release().await?);
        }
        is_free(context, &other, &format!("an acquisition was dropped after {polls} polls"))
            .await?;
    }
    fail!("an acquisition of a free lock was not done after {POLLS} polls")
}

pub(in crate::checks) async fn a_wait_may_be_dropped_anywhere(context: &Context) -> Verdict {
    let (holder, waiter) = (context.long_client().await?, context.long_client().await?);
    let other = context.long_client().await?;
    for polls in 0..POLLS {
        let guard = context.acquire(&holder.lock).await?;
        let outcome = poll_times(context, polls, waiter.queue().acquire()).await;
        if let Polled::Ready(second) = &outcome {
            fail!("a wait for a held lock ended in {second:?}");
        }
        guard.release().await?;
        is_free(context, &other, &format!("a wait was dropped after {polls} polls")).await?;
        if let Polled::Asleep = outcome {
            return Ok(());
        }
    }
    fail!("a wait for a held lock was polled {POLLS} times")
}

pub(in crate::checks) async fn a_release_may_be_dropped_anywhere(context: &Context) -> Verdict {
    let (client, other) = (context.long_client().await?, context.long_client().await?);
    for polls in 0..POLLS {
        let guard = context.acquire(&client.lock).await?;
        let outcome = poll_times(context, polls, guard.release()).await;
        is_free(context, &other, &format!("a release was dropped after {polls} polls")).await?;
        if let Polled::Ready(released) = outcome {
            return Ok(released?);
        }
    }
    fail!("a release was not done after {POLLS} polls")
}

pub(in crate::checks) async fn a_guard_may_be_dropped_without_a_runtime(
    context: &Context,
) -> Verdict {
    let (client, other) = (context.long_client().await?, context.long_client().await?);
    let guard = context.acquire(&client.lock).await?;
    let dropped = std::thread::spawn(move || drop(guard)).join();
    ensure!(dropped.is_ok(), "the drop of a guard panicked on a plain thread");
    is_free(context, &other, "a guard was dropped on a plain thread").await
}

pub(in crate::checks) async fn a_guard_may_be_dropped_in_a_panic(context: &Context) -> Verdict {
    let (client, other) = (context.long_client().await?, context.long_client().await?);
    let guard = context.acquire(&client.lock).await?;
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        // A panic without its message on the terminal.
        resume_unwind(Box::new("planned"));
    }));
    ensure!(unwound.is_err(), "a panic went missing");
    is_free(context, &other, "a guard was dropped in a panic").await
}

pub(in crate::checks) async fn a_guard_may_be_dropped_by_another_task(
    context: &Context,
) -> Verdict {
    let (client, other) = (context.long_client().await?, context.long_client().await?);
    let guard = context.acquire(&client.lock).await?;
    tokio::spawn(async move { drop(guard) }).await?;
    is_free(context, &other, "a guard was dropped in another task").await
}

pub(in crate::checks) async fn a_shutdown_leaves_nothing(context: &Context) -> Verdict {
    let (client, other) = (context.long_client().await?, context.long_client().await?);
    let third = context.long_client().await?;
    let awaited = context.acquire(&other.lock).await?;
    let mut guards = Vec::new();
    for name in ["one-@", "two-@", "three-@"] {
        guards.push(client.locker.lock(&context.text(name))?.acquire().await?);
    }
    let waiter = tokio::spawn({
        let lock = client.queue();
        async move { lock.acquire().await }
    });
    let is_refused = |event: &Event| matches!(event, Event::Refused(_));
    let waits = client.connection.until(|events| events.iter().any(is_refused));
    context.promptly("the first refusal of a waiter", waits).await?;

    context.promptly("a shutdown", client.locker.shutdown()).await?;
    let waited = context.promptly("the end of a wait after the shutdown", waiter).await??;
    ensure!(waited.is_err(), "a wait ended in a hold after the shutdown");
    for guard in &guards {
        ensure!(!guard.is_held(), "a guard is held after the shutdown");
        let free = other.locker.lock(guard.name().as_str())?.try_acquire().await?;
        ensure!(free.is_some(), "a lock is not free after the shutdown of its holder");
    }
    awaited.release().await?;
    is_free(context, &third, "a waiter was shut down").await
}

/// Whether the lock can be had at once: no hold or place is left that would run out only much
/// later.
async fn is_free(context: &Context, other: &Client, what: &str) -> Verdict {
    let guard =
        context.promptly(&format!("a hold after {what}"), other.queue().acquire()).await??;
    guard.release().await?;
    Ok(())
}

enum Polled<T> {
    Ready(T),
    /// Not ready after that many polls, and dropped.
    Dropped,
    /// No longer woken, and dropped.
    Asleep,
}

async fn poll_times<T>(
    context: &Context,
    times: usize,
    future: impl Future<Output = T>,
) -> Polled<T> {
    let mut future = pin!(future);
    let mut polls = 0;
    let polled = poll_fn(|cx| {
        if polls == times {
            return Poll::Ready(Polled::Dropped);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Polled::Ready(output)),
            Poll::Pending if polls == times => Poll::Ready(Polled::Dropped),
            Poll::Pending => Poll::Pending,
        }
    });
    tokio::time::timeout(context.ttl() / 5, polled).await.unwrap_or(Polled::Asleep)
}
