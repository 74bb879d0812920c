//! All nodes are asked at once; the answer is there when a majority has settled it.

use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// The answers so far, by node.
pub(crate) type Votes<T> = Vec<Option<T>>;

/// Runs one request to each node and returns when the votes settle the matter, when all are in, or
/// after `patience`.
///
/// Every request has begun by then, and none is dropped: what is still under way goes on among
/// `stragglers`.
pub(crate) async fn hold<T: Send + 'static>(
    requests: Vec<BoxFuture<'static, T>>,
    patience: Duration,
    stragglers: &TaskTracker,
    is_settled: impl FnMut(&Votes<T>) -> bool,
) -> Votes<T> {
    hold_for(requests, patience, false, stragglers, is_settled).await
}

/// Like [`hold`], but once the matter is settled waits for as long again: the others are about to
/// answer, unless they are slow.
pub(crate) async fn hold_a_little_longer<T: Send + 'static>(
    requests: Vec<BoxFuture<'static, T>>,
    patience: Duration,
    stragglers: &TaskTracker,
    is_settled: impl FnMut(&Votes<T>) -> bool,
) -> Votes<T> {
    hold_for(requests, patience, true, stragglers, is_settled).await
}

async fn hold_for<T: Send + 'static>(
    requests: Vec<BoxFuture<'static, T>>,
    patience: Duration,
    lingers: bool,
    stragglers: &TaskTracker,
    mut is_settled: impl FnMut(&Votes<T>) -> bool,
) -> Votes<T> {
    const LEAST: Duration = Duration::from_millis(1);
    let begun = Instant::now();
    let mut under_way = FuturesUnordered::new();
    let mut votes: Votes<T> = Vec::new();
    for (at, mut request) in requests.into_iter().enumerate() {
        votes.push(match futures_util::poll!(&mut request) {
            Poll::Ready(vote) => Some(vote),
            Poll::Pending => {
                under_way.push(async move { (at, request.await) });
                None
            }
        });
    }
    let patience = tokio::time::sleep(patience);
    tokio::pin!(patience);
    let mut settled = false;
    loop {
        if !settled && is_settled(&votes) {
            if !lingers {
                break;
            }
            settled = true;
            let end = Instant::now() + begun.elapsed().max(LEAST);
            let end = end.min(patience.deadline());
            patience.as_mut().reset(end);
        }
        tokio::select! {
            biased;
            vote = under_way.next() => match vote {
                Some((at, vote)) => votes[at] = Some(vote),
                None => break,
            },
            () = &mut patience => break,
        }
    }
    if !under_way.is_empty() {
        stragglers.spawn(async move { while under_way.next().await.is_some() {} });
    }
    votes
}

/// How many votes are like that.
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
    use super::reached;

    #[test]
    fn what_a_majority_reaches_is_the_smallest_of_the_best() {
        assert_eq!(reached([5, 9, 1, 7, 3], 3), Some(5));
        assert_eq!(reached([5, 9], 3), None);
    }
}
