//! All nodes are asked at once; the answer is there when a majority has settled it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::stragglers::Stragglers;

/// The answers so far, by node.
pub(crate) type Votes<T> = Vec<Option<T>>;

/// Whether more votes are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    No,
    /// The other votes would be good to have, if they are not slow: they have as long again, and at
    /// least this; on a thread that is busy, until it has done the rest of its work.
    Nearly(Duration),
    Yes,
}

impl From<bool> for Settled {
    fn from(is_settled: bool) -> Self {
        if is_settled { Self::Yes } else { Self::No }
    }
}

/// The least time for nodes that are about to answer, unless they are slow.
pub(crate) const A_MOMENT: Duration = Duration::from_millis(1);

/// Runs one request to each node and returns when the votes settle the matter, when all are in, or
/// after `patience`.
///
/// Every request has begun by then, and none is dropped: what is still under way goes on among
/// `stragglers`.
pub(crate) async fn hold<T: Send + 'static, S: Into<Settled>>(
    requests: Vec<BoxFuture<'static, T>>,
    patience: Duration,
    stragglers: &Stragglers,
    is_settled: impl FnMut(&Votes<T>) -> S,
) -> Votes<T> {
    let (votes, late) = open(requests, patience, is_settled).await;
    late.go_on_unheard(stragglers);
    votes
}

/// As [`hold`], for callers that want to know what comes late.
pub(crate) async fn open<T: Send + 'static, S: Into<Settled>>(
    requests: Vec<BoxFuture<'static, T>>,
    patience: Duration,
    mut is_settled: impl FnMut(&Votes<T>) -> S,
) -> (Votes<T>, Late<T>) {
    let begun = Instant::now();
    let mut under_way = FuturesUnordered::new();
    let mut votes: Votes<T> = Vec::with_capacity(requests.len());
    for (at, mut request) in requests.into_iter().enumerate() {
        votes.push(match futures_util::poll!(&mut request) {
            Poll::Ready(vote) => Some(vote),
            Poll::Pending => {
                under_way.push(Numbered { at, request });
                None
            }
        });
    }
    let patience = tokio::time::sleep(patience);
    tokio::pin!(patience);
    let (latest, mut nearly_since, mut has_looked) = (patience.deadline(), None, false);
    let mut is_late = false;
    loop {
        match is_settled(&votes).into() {
            Settled::Yes => break,
            Settled::Nearly(least) => {
                let since = *nearly_since.get_or_insert_with(Instant::now);
                if has_looked {
                    patience.as_mut().reset(latest.min(since + (since - begun).max(least)));
                }
            }
            Settled::No => (),
        }
        tokio::select! {
            biased;
            vote = under_way.next() => match vote {
                Some((at, vote)) => votes[at] = Some(vote),
                None => break,
            },
            // Votes that are there already need no timer: one that is due soon costs more than a
            // look.
            () = tokio::task::yield_now(), if nearly_since.is_some() && !has_looked => {
                has_looked = true;
            }
            () = &mut patience => {
                // It may be this process that stood still. Then the votes are there, to be read.
                if is_late || nearly_since.is_some() {
                    break;
                }
                is_late = true;
                patience.as_mut().reset(Instant::now() + A_MOMENT);
            }
        }
    }
    (votes, Late(under_way))
}

/// The requests that were not waited for.
#[must_use = "a request that was sent is not dropped"]
pub(crate) struct Late<T>(FuturesUnordered<Numbered<T>>);

impl<T: Send + 'static> Late<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sees them through in the background.
    pub(crate) fn go_on_unheard(self, stragglers: &Stragglers) {
        self.go_on(stragglers, |_, _| std::future::ready(()));
    }

    /// The same; `then` is given each vote with its node.
    pub(crate) fn go_on<F: Future<Output = ()> + Send + 'static>(
        self,
        stragglers: &Stragglers,
        then: impl Fn(usize, T) -> F + Send + 'static,
    ) {
        if !self.is_empty() {
            stragglers.spawn(self.0.for_each_concurrent(None, move |(at, vote)| then(at, vote)));
        }
    }
}

/// A request, and the node that it goes to.
struct Numbered<T> {
    at: usize,
    request: BoxFuture<'static, T>,
}

impl<T> Future for Numbered<T> {
    type Output = (usize, T);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(usize, T)> {
        let at = self.at;
        self.request.as_mut().poll(context).map(|vote| (at, vote))
    }
}

/// How many of the votes `is` accepts.
pub(crate) fn count<T>(votes: &Votes<T>, is: impl Fn(&T) -> bool) -> usize {
    votes.iter().flatten().filter(|vote| is(vote)).count()
}

/// The value that `quorum` nodes reach, given what each has.
pub(crate) fn reached<T: Ord>(values: impl IntoIterator<Item = T>, quorum: usize) -> Option<T> {
    let mut values: Vec<T> = values.into_iter().collect();
    values.sort_unstable_by(|one, other| other.cmp(one));
    values.into_iter().nth(quorum - 1)
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// Whoever reads the answer has not had its turn yet.
    #[tokio::test]
    async fn votes_that_came_while_the_process_stood_still_count() {
        const PATIENCE: Duration = Duration::from_millis(50);
        let (vote, voted) = oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep(PATIENCE / 10).await;
            vote.send(()).unwrap();
        });
        let requests = vec![Box::pin(voted) as BoxFuture<'static, _>];
        let opening = open(requests, PATIENCE, |_| false);
        tokio::pin!(opening);
        tokio::task::yield_now().await;
        assert!(futures_util::poll!(&mut opening).is_pending());
        std::thread::sleep(2 * PATIENCE);
        let (votes, late) = opening.await;
        assert!(late.is_empty() && votes[0].is_some());
    }

    #[test]
    fn what_a_majority_reaches_is_the_smallest_of_the_best() {
        assert_eq!(reached([5, 9, 1, 7, 3], 3), Some(5));
        assert_eq!(reached([5, 9], 3), None);
    }
}
