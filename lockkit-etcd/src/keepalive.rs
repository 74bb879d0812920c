use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{Client, LeaseKeepAliveStream, LeaseKeeper};
use lockkit_core::driver::{Backoff, Instant as Stamp, Limit};
use tokio::runtime::Handle;
use tokio::select;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::error::Failure;
use crate::leases::Lease;
use crate::members::{Current, Members, Wait};

/// How many asks are taken from the line at once.
const MOST_AT_ONCE: usize = 64;

/// How many streams there are at most.
const MOST_STREAMS: usize = 8;
/// How many asks are under way on a stream before another is opened beside it.
const MANY: usize = 64;

/// The streams on which leases are kept alive, shared by all leases of a driver.
///
/// A member answers what is asked on a stream one by one, and one that follows asks the leader each
/// time. So there is one stream for few leases, and there are several while many are to be kept
/// alive at once.
///
/// A stream is opened when it is needed, and opened anew, on another member, when it ends or falls
/// silent: what was asked on it is asked again, while there is time. An answer counts from when its
/// request left.
#[derive(Debug)]
pub(crate) struct Keepalive {
    members: Arc<Members>,
    runtime: Handle,
    roads: [OnceLock<Road>; MOST_STREAMS],
}

/// The way to one stream.
#[derive(Debug)]
struct Road {
    asks: mpsc::UnboundedSender<Ask>,
    /// Each ask that is under way shares it.
    share: Arc<()>,
    supervisor: AbortOnDropHandle<()>,
}

impl Road {
    fn is_busy(&self) -> bool {
        self.under_way() >= MANY
    }

    fn under_way(&self) -> usize {
        Arc::strong_count(&self.share) - 1
    }
}

#[derive(Debug)]
struct Ask {
    lease: Arc<Lease>,
    limit: Limit,
    answer: oneshot::Sender<Result<bool, Failure>>,
    _share: Arc<()>,
}

impl Ask {
    fn answered(self, alive: bool) {
        self.report(Ok(alive));
    }

    fn report(self, outcome: Result<bool, Failure>) {
        // Whoever asked need not be waiting for the answer.
        _ = self.answer.send(outcome);
    }
}

impl Keepalive {
    pub(crate) fn new(members: Arc<Members>) -> Self {
        Self { members, runtime: Handle::current(), roads: Default::default() }
    }

    /// Makes the lease last for another TTL, and returns whether there is such a lease.
    pub(crate) async fn renew(&self, lease: &Arc<Lease>, limit: Limit) -> Result<bool, Failure> {
        let answer = limit.bound(self.begin(lease, limit).answer()).await;
        // The stream may still wait for what was asked before, and for longer.
        answer.unwrap_or(Err(Failure::NoAnswer(limit.length())))
    }

    /// As [`renew`](Self::renew), but without waiting: the request is on its way when this returns,
    /// even if nobody waits for the answer.
    pub(crate) fn begin(&self, lease: &Arc<Lease>, limit: Limit) -> Refresh {
        let (answer, answered) = oneshot::channel();
        let (lease, road) = (Arc::clone(lease), self.road());
        let share = Arc::clone(&road.share);
        // Once the task has ended, the answer's channel breaks, which says so.
        _ = road.asks.send(Ask { lease, limit, answer, _share: share });
        Refresh(answered)
    }

    /// Ends the streams. What is asked after that is told so by the members, which are closed too.
    pub(crate) fn close(&self) {
        self.roads.iter().filter_map(OnceLock::get).for_each(|road| road.supervisor.abort());
    }

    /// The first that is not busy, or else the one with the least to do.
    fn road(&self) -> &Road {
        let free = self.roads.iter().find(|road| road.get().is_none_or(|road| !road.is_busy()));
        let least = || self.roads.iter().min_by_key(|road| road.get().map(Road::under_way));
        let road = free.or_else(least).unwrap_or(&self.roads[0]);
        road.get_or_init(|| {
            let (asks, inbox) = mpsc::unbounded_channel();
            let supervising = self.runtime.spawn(supervise(Arc::clone(&self.members), inbox));
            let supervisor = AbortOnDropHandle::new(supervising);
            Road { asks, share: Arc::default(), supervisor }
        })
    }
}

/// A request for another TTL that is under way.
#[derive(Debug)]
pub(crate) struct Refresh(oneshot::Receiver<Result<bool, Failure>>);

impl Refresh {
    /// Whether there is such a lease.
    pub(crate) async fn answer(self) -> Result<bool, Failure> {
        self.0.await.unwrap_or(Err(Failure::Closed))
    }
}

/// Keeps a stream while something is asked.
async fn supervise(members: Arc<Members>, mut inbox: mpsc::UnboundedReceiver<Ask>) {
    let mut line = Line { waiting: VecDeque::new(), members };
    let mut backoff = Backoff::default();
    loop {
        if line.waiting.is_empty() {
            let Some(ask) = inbox.recv().await else { return };
            line.waiting.push_back(ask);
        }
        line.drop_late();
        let Some(first) = line.waiting.pop_front() else { continue };
        let current = line.members.current();
        let member = current.member;
        match line.open(current, first).await {
            Ok(Some(stream)) => {
                backoff.succeeded();
                if let Err(failure) = line.serve(current, stream, &mut inbox).await {
                    tracing::debug!(member = line.members.name(member), %failure, "no keepalives");
                    line.members.leave(member);
                }
            }
            // The stream ended with the answer that there is no such lease, or another is to be
            // opened.
            Ok(None) => (),
            Err(failure) => {
                tracing::debug!(member = line.members.name(member), %failure, "no keepalives");
                line.members.leave(member);
                backoff.failed();
                sleep(backoff.pause() / 4).await;
            }
        }
    }
}

/// A stream, and what it goes over.
struct Stream {
    client: Arc<Client>,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

/// What was sent on a stream.
struct Sent {
    stamp: Stamp,
    at: Instant,
    /// Until when an answer is waited for.
    patience: Instant,
    ask: Ask,
}

/// What is to be sent.
struct Line {
    waiting: VecDeque<Ask>,
    members: Arc<Members>,
}

impl Line {
    /// Opens a stream, which takes an ask to begin with, unless another connection is in use before
    /// the stream is open: then others, who have less time, have given up this connection.
    async fn open(&mut self, current: Current, ask: Ask) -> Result<Option<Stream>, Failure> {
        let (member, mut changes) = (current.member, self.members.changes());
        let stamp = ask.lease.now();
        let id = ask.lease.id();
        let mut sent = None;
        let opening = async {
            let client = self.members.client(member).await?;
            sent = Some((Arc::clone(&client), Instant::now()));
            Ok((client.lease_client().keep_alive(id).await, client))
        };
        let outcome = select! {
            outcome = timeout(self.patience(ask.limit), opening) => outcome,
            _ = changes.wait_for(|now| *now != current) => {
                self.waiting.push_front(ask);
                return Ok(None);
            }
        };
        let failure = match outcome {
            Ok(Ok((Ok((keeper, answers)), client))) => {
                self.members.heard(member, &client);
                // The library does not tell which cluster has answered. The next answer does.
                ask.lease.refreshed(stamp);
                ask.answered(true);
                return Ok(Some(Stream { client, keeper, answers }));
            }
            // This is how the library reports a lost lease in the first answer.
            Ok(Ok((Err(etcd_client::Error::LeaseKeepAliveError(reason)), _)))
                if reason == "lease not found" =>
            {
                ask.lease.write_off();
                ask.answered(false);
                return Ok(None);
            }
            Ok(Ok((Err(error), _))) => error.into(),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::NoAnswer(ask.limit.length()),
        };
        let may_pass = match &sent {
            Some((client, sent)) => self.failed(member, client, *sent, &failure),
            None => failure.is_about_the_member(),
        };
        match may_pass {
            true => self.waiting.push_front(ask),
            false => ask.report(Err(failure.clone())),
        }
        Err(failure)
    }

    /// Takes note of the failure of what was sent then, and returns whether to ask again.
    fn failed(
        &self,
        member: usize,
        client: &Arc<Client>,
        sent: Instant,
        failure: &Failure,
    ) -> bool {
        match failure {
            Failure::NoAnswer(_) => self.members.unheard(member, client, sent),
            failure => self.members.failed(member, client, sent, failure),
        }
        let logs_in = failure.needs_another_login() && self.members.log_out(member, client);
        logs_in || failure.is_about_the_member()
    }

    /// Sends and receives until the stream ends or is silent, or another member is in use.
    async fn serve(
        &mut self,
        current: Current,
        Stream { client, keeper: LeaseKeeper { sender, .. }, mut answers }: Stream,
        inbox: &mut mpsc::UnboundedReceiver<Ask>,
    ) -> Result<(), Failure> {
        let mut changes = self.members.changes();
        let mut sent: VecDeque<Sent> = VecDeque::new();
        let mut batch = Vec::new();
        let outcome = loop {
            if *changes.borrow_and_update() != current {
                break Ok(());
            }
            let next = self.waiting.front().map(|ask| (ask.lease.now(), ask.lease.id()));
            let send = async {
                match next {
                    Some((stamp, id)) => {
                        let mut keeper = LeaseKeeper { id, sender: sender.clone() };
                        keeper.keep_alive().await.map(|()| stamp)
                    }
                    None => std::future::pending().await,
                }
            };
            // Whoever has less time than the first has something else asked alongside, and leaves a
            // silent member because of that.
            let silence = sent.front().map(|sent| sent.patience);
            select! {
                message = answers.message() => match message {
                    Ok(Some(answer)) => {
                        self.members.heard(current.member, &client);
                        let asked = sent.iter().position(|sent| sent.ask.lease.id() == answer.id());
                        if let Some(Sent { stamp, ask, .. }) = asked.and_then(|at| sent.remove(at)) {
                            let is_ours = self.members.check(answer.header());
                            let alive = is_ours.map(|()| answer.ttl() > 0);
                            match alive {
                                Ok(true) => ask.lease.refreshed(stamp),
                                // A lease of another cluster is not ours, and is left to run out.
                                Ok(false) | Err(_) => ask.lease.write_off(),
                            }
                            ask.report(alive);
                        }
                    }
                    Ok(None) => break Err(Failure::Ended),
                    Err(error) => break Err(error.into()),
                },
                outcome = send => match (outcome, self.waiting.pop_front()) {
                    (Ok(stamp), Some(ask)) => {
                        let at = Instant::now();
                        let patience = at + self.patience(ask.limit);
                        sent.push_back(Sent { stamp, at, patience, ask });
                    }
                    (Err(error), ask) => {
                        self.waiting.extend(ask);
                        break Err(error.into());
                    }
                    (Ok(_), None) => (),
                },
                // Many holds are renewed at about the same time.
                count = inbox.recv_many(&mut batch, MOST_AT_ONCE) => match count {
                    0 => break Ok(()),
                    _ => self.waiting.extend(batch.drain(..)),
                },
                () = until(silence) => {
                    let length = sent.front().map_or(Duration::ZERO, |sent| sent.ask.limit.length());
                    break Err(Failure::NoAnswer(length));
                }
                _ = changes.changed() => (),
            }
        };
        if let Err(failure) = &outcome {
            let at = sent.front().map_or_else(Instant::now, |sent| sent.at);
            self.failed(current.member, &client, at, failure);
        }
        // What was not answered is asked again.
        for Sent { ask, .. } in sent.into_iter().rev() {
            self.waiting.push_front(ask);
        }
        outcome
    }

    /// How long an answer is waited for before another member is asked. It does not matter how
    /// little time whoever asks has left, since it does not wait for longer than that anyway:
    /// others are on the stream as well.
    fn patience(&self, limit: Limit) -> Duration {
        match self.members.len() {
            1 => limit.length(),
            _ => Wait::from(limit).patience(),
        }
    }

    fn drop_late(&mut self) {
        let is_late = |ask: &Ask| ask.limit.left().is_zero();
        let (late, waiting) = self.waiting.drain(..).partition(is_late);
        self.waiting = waiting;
        let late: VecDeque<Ask> = late;
        for ask in late {
            let failure = Failure::NoAnswer(ask.limit.length());
            ask.report(Err(failure));
        }
    }
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::Duration;

    use etcd_client::ConnectOptions;
    use lockkit_core::driver::Limit;
    use tokio::time::sleep;

    use super::{Keepalive, Line, MANY, MOST_STREAMS, Members};
    use crate::leases::Lease;

    fn members(number: usize) -> Arc<Members> {
        let urls = vec!["http://some.invalid".into(); number];
        Arc::new(Members::new(urls, ConnectOptions::new(), None, None))
    }

    #[tokio::test]
    async fn another_stream_is_used_where_many_asks_are_under_way() {
        let keepalive = Keepalive::new(members(1));
        let lease = Arc::new(Lease::of_test());
        let limit = Limit::new(Duration::from_secs(60));
        let streams = || keepalive.roads.iter().filter(|road| road.get().is_some()).count();
        // Nothing of it is answered, since nothing else runs meanwhile.
        let mut under_way = Vec::new();
        for number in 0..2 * MANY * MOST_STREAMS {
            assert_eq!(streams(), number.div_ceil(MANY).min(MOST_STREAMS));
            under_way.push(keepalive.begin(&lease, limit));
        }
        let shares = keepalive.roads.iter().map(|road| road.get().unwrap().under_way());
        assert!(shares.eq([2 * MANY; MOST_STREAMS]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_has_as_much_time_for_whoever_comes_late() {
        const LENGTH: Duration = Duration::from_secs(1);
        let late = Limit::new(LENGTH);
        sleep(LENGTH * 9 / 10).await;
        for (number, patience) in [(1, LENGTH), (2, LENGTH / 2), (3, LENGTH / 2)] {
            let line = Line { waiting: VecDeque::new(), members: members(number) };
            assert_eq!(line.patience(late), patience);
        }
    }
}
