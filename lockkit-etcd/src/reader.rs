use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lockkit_core::driver::Limit;
use tokio::select;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::board::Key;
use crate::error::Failure;
use crate::members::{Members, Wait};
use crate::queue::{revision, send};

/// How many keys are read at once. The server allows 128 unless it is told otherwise.
const MOST_AT_ONCE: usize = 100;
/// How many reads are under way at once, if there is so much to read.
const MOST_UNDER_WAY: usize = 16;
/// How far apart reads begin that nobody is in a hurry for.
const GATHER: Duration = Duration::from_millis(20);

/// Looks whether keys are there. While a read is under way, and for a moment after it has begun,
/// others gather for the next, so that a thousand locks, or a thousand waiters for one, do not make
/// a thousand requests.
#[derive(Debug)]
pub(crate) struct Reader {
    asks: mpsc::UnboundedSender<Ask>,
    task: AbortOnDropHandle<()>,
}

/// How soon to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Somebody may get the lock by it.
    AtOnce,
    /// A moment later is as good.
    WithOthers,
}

#[derive(Debug)]
struct Ask {
    key: Key,
    created: i64,
    haste: Haste,
    limit: Limit,
    answer: oneshot::Sender<Result<Option<i64>, Failure>>,
}

impl Ask {
    /// When whoever asks gives up.
    fn end(&self) -> Instant {
        Instant::now() + self.limit.left()
    }
}

impl Reader {
    pub(crate) fn new(members: Arc<Members>) -> Self {
        let (asks, inbox) = mpsc::unbounded_channel();
        Self { asks, task: AbortOnDropHandle::new(tokio::spawn(read(members, inbox))) }
    }

    /// Whether the key that was created then is there; if so, how far the cluster was at that time.
    pub(crate) async fn stands(
        &self,
        key: impl Into<Key>,
        created: i64,
        haste: Haste,
        limit: Limit,
    ) -> Result<Option<i64>, Failure> {
        let (key, (answer, answered)) = (key.into(), oneshot::channel());
        // Whoever is given little time has none to spend on others.
        let haste = if limit.left() < 4 * GATHER { Haste::AtOnce } else { haste };
        // After the end of the task the answer's channel breaks, which says so.
        _ = self.asks.send(Ask { key, created, haste, limit, answer });
        match limit.bound(answered).await {
            Ok(answer) => answer.unwrap_or(Err(Failure::Closed)),
            Err(_) => Err(Failure::NoAnswer(limit.length())),
        }
    }

    /// Stops reading.
    pub(crate) fn close(&self) {
        self.task.abort();
    }
}

async fn read(members: Arc<Members>, mut inbox: mpsc::UnboundedReceiver<Ask>) {
    let mut asks: Vec<Ask> = Vec::new();
    let mut under_way = FuturesUnordered::new();
    let mut next = Instant::now();
    // By when all that is under way has ended, at the latest.
    let mut end = next;
    loop {
        let has_room = under_way.len() < MOST_UNDER_WAY;
        let is_full = asks.len() == MOST_AT_ONCE && has_room;
        // Whoever has less time does not wait for those who are read for already.
        let is_pressed = || has_room && asks.iter().any(|ask| ask.end() + GATHER < end);
        let is_due = !asks.is_empty() && (under_way.is_empty() || is_pressed());
        let hurries = || asks.iter().any(|ask| ask.haste == Haste::AtOnce);
        if is_full || is_due && (Instant::now() >= next || hurries()) {
            if under_way.is_empty() {
                end = Instant::now();
            }
            end = asks.iter().map(Ask::end).fold(end, Instant::max);
            next = Instant::now() + GATHER;
            under_way.push(look(&members, std::mem::take(&mut asks)));
        }
        let room = MOST_AT_ONCE - asks.len();
        select! {
            count = inbox.recv_many(&mut asks, room), if room > 0 => if count == 0 {
                return;
            },
            Some(()) = under_way.next() => (),
            () = sleep_until(next), if is_due => (),
        }
    }
}

/// How long to wait for what all of them ask: for as long as any of them does, since each gives up
/// by itself, and with no more patience than suits the one that is given the least time.
fn wait(asks: &[Ask]) -> Option<Wait> {
    let limits = asks.iter().map(|ask| ask.limit);
    let shortest = limits.clone().map(Limit::length).min()?;
    Some(Wait { limit: limits.max_by_key(|limit| limit.left())?, shortest })
}

/// Reads for all of them. If one is for a key that this user may not read, or they are more than this
/// server reads at once, etcd refuses them all: then each half is read for by itself, and so on,
/// within the same time.
async fn look(members: &Members, asks: Vec<Ask>) {
    let mut parts = vec![asks];
    while let Some(mut asks) = parts.pop() {
        let Some(wait) = wait(&asks) else { continue };
        let get = |ask: &Ask| TxnOp::get(&*ask.key, Some(GetOptions::new().with_keys_only()));
        let txn = || Txn::new().and_then(asks.iter().map(get).collect::<Vec<_>>());
        let answer = send(members, txn, wait).await.outcome;
        let is_for_some = |refusal: &Failure| {
            refusal.is_a_missing_right() || refusal.is_about_too_many_operations()
        };
        if asks.len() > 1 && answer.as_ref().is_err_and(is_for_some) {
            let half = asks.split_off(asks.len() / 2);
            parts.extend([half, asks]);
            continue;
        }
        tell(asks, &answer);
    }
}

/// Tells each of them what was read for it.
fn tell(asks: Vec<Ask>, answer: &Result<TxnResponse, Failure>) {
    let found = answer.as_ref().map(|answer| (answer.op_responses(), revision(answer)));
    let mut found = found.map(|(found, revision)| (found.into_iter(), revision));
    for Ask { created, answer, .. } in asks {
        let is_there = match &mut found {
            Ok((found, revision)) => match found.next() {
                Some(TxnOpResponse::Get(read)) => {
                    let is_it = |kv: &KeyValue| kv.create_revision() == created;
                    Ok(read.kvs().iter().any(is_it).then_some(*revision))
                }
                _ => Err(Failure::Foreign("the answer has not what was asked for")),
            },
            Err(failure) => Err(Failure::clone(failure)),
        };
        // Whoever asked may have given up.
        _ = answer.send(is_there);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkit_core::driver::Limit;
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::{Ask, Haste, wait};

    fn ask(limit: Limit) -> Ask {
        let (answer, _) = oneshot::channel();
        Ask { key: (*b"a").into(), created: 1, haste: Haste::WithOthers, limit, answer }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_little_time_takes_none_from_others() {
        let [length, shorter] = [3, 1].map(Duration::from_secs);
        let late = Limit::new(length);
        sleep(length - Duration::from_millis(5)).await;
        let mut asks = vec![ask(late), ask(Limit::new(length))];
        let of = |asks: &[Ask]| wait(asks).map(|wait| (wait.limit.left(), wait.shortest));
        assert_eq!(of(&asks), Some((length, length)));
        asks.push(ask(Limit::new(shorter)));
        assert_eq!(of(&asks), Some((length, shorter)));
    }
}
