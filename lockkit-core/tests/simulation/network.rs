//! The way from each process to the server, and what goes wrong on it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use lockkit_core::Capabilities;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, ErrorKind, OwnerId, Release, Renewal,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::history::History;
use crate::server::{Kind, News, Server};

/// What all processes share: the server, and the ways to it.
pub(crate) struct Network {
    began: Instant,
    /// How fast the server's clock goes, by that of the processes.
    rate: f64,
    /// What most leases are, by which it counts what is slow.
    ttl: Duration,
    pub(crate) history: History,
    state: Mutex<State>,
    goes_on: Notify,
}

struct State {
    rng: Rng,
    condition: Condition,
    /// When the weather changed last, and when a clock jumped.
    changed: Instant,
    leapt: Option<Instant>,
    server: Server,
    /// How far the server's clock has jumped ahead.
    jumped: Duration,
    /// How many of a thousand packets are lost, and how many are slow.
    lost: u32,
    slow: u32,
    /// Runs that send to nobody, and runs that nothing comes to.
    mute: BTreeSet<usize>,
    deaf: BTreeSet<usize>,
    /// Runs that are cut off for good.
    dead: BTreeSet<usize>,
    remotes: Vec<Weak<Remote>>,
    /// How many requests of an owner may yet be carried out.
    under_way: BTreeMap<OwnerId, usize>,
    /// Owners for whom a lease was over, or seemed to be, while the server had or was yet to give
    /// them something: nobody gives that back.
    overdue: BTreeSet<OwnerId>,
}

/// How a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Running,
    /// What comes is carried out when it goes on.
    Stopped,
    /// Who comes is refused.
    Down,
}

impl Network {
    pub(crate) fn new(
        kind: Kind,
        rate: f64,
        ttl: Duration,
        rng: Rng,
        history: History,
    ) -> Arc<Self> {
        let state = State {
            rng,
            condition: Condition::Running,
            changed: Instant::now(),
            leapt: None,
            server: Server::new(kind),
            jumped: Duration::ZERO,
            lost: 0,
            slow: 0,
            mute: BTreeSet::new(),
            deaf: BTreeSet::new(),
            dead: BTreeSet::new(),
            remotes: Vec::new(),
            under_way: BTreeMap::new(),
            overdue: BTreeSet::new(),
        };
        Arc::new(Self {
            began: Instant::now(),
            rate,
            ttl,
            history,
            state: Mutex::new(state),
            goes_on: Notify::new(),
        })
    }

    /// The driver of a new run of a process.
    pub(crate) fn connect(self: &Arc<Self>) -> Arc<Remote> {
        let mut state = self.state();
        let run = state.remotes.len();
        let remote = Arc::new(Remote { network: Arc::clone(self), run, lines: Mutex::default() });
        state.remotes.push(Arc::downgrade(&remote));
        remote
    }

    /// Looks at the server, or does something to it, at its own time.
    pub(crate) fn at_server<T>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Server, Duration) -> T,
    ) -> T {
        let mut state = self.state();
        let now = self.began.elapsed().mul_f64(self.rate) + state.jumped;
        let outcome = act(&mut state.server, now);
        for news in state.server.take_news() {
            self.history.note(|| format!("news {:?} for {}", news.change, news.to.1));
            if let Some(delay) = state.delay(self.ttl) {
                tokio::spawn(Arc::clone(self).deliver(news, delay));
            }
        }
        outcome
    }

    pub(crate) fn set(&self, condition: Condition) {
        self.change().condition = condition;
        self.goes_on.notify_waiters();
    }

    /// How many of a thousand packets are lost from now on, and how many are slow.
    pub(crate) fn disturb(&self, lost: u32, slow: u32) {
        let mut state = self.change();
        (state.lost, state.slow) = (lost, slow);
    }

    /// Cuts a run off, in one direction or both. What is on its way to the server arrives.
    pub(crate) fn cut(&self, run: usize, outward: bool, inward: bool) {
        let mut state = self.change();
        state.mute.extend(outward.then_some(run));
        state.deaf.extend(inward.then_some(run));
    }

    /// A run sends and hears nothing any more, as a process that was killed.
    pub(crate) fn kill(&self, run: usize) {
        self.cut(run, true, true);
        self.state().dead.insert(run);
    }

    /// How many runs there were.
    pub(crate) fn runs(&self) -> usize {
        self.state().remotes.len()
    }

    /// Drivers that somebody still has.
    pub(crate) fn drivers(&self) -> usize {
        self.state().remotes.iter().filter(|remote| remote.strong_count() > 0).count()
    }

    /// Connects a run again.
    pub(crate) fn mend(&self, run: usize) {
        let mut state = self.change();
        if !state.dead.contains(&run) {
            state.mute.remove(&run);
            state.deaf.remove(&run);
            drop(state);
            self.reconnect(run);
        }
    }

    /// Has a run make its connection anew, and so all ask again who wait.
    pub(crate) fn reconnect(&self, run: usize) {
        let remote = {
            let state = self.state();
            if state.deaf.contains(&run) { None } else { state.remotes[run].upgrade() }
        };
        if let Some(remote) = remote {
            remote.reconnected();
        }
    }

    /// The server's clock jumps ahead.
    pub(crate) fn jump(&self, by: Duration) {
        self.change().jumped += by;
    }

    /// A clock of a process has jumped ahead, after which it may take what it holds, and what is
    /// under way, for dead.
    pub(crate) fn has_jumped(&self) {
        let mut state = self.change();
        state.leapt = Some(state.changed);
        let State { under_way, overdue, server, .. } = &mut *state;
        let waited_for = under_way.iter().filter(|(_, requests)| **requests > 0);
        overdue.extend(waited_for.map(|(owner, _)| *owner));
        overdue.extend(server.holders(Duration::ZERO).iter().map(|(_, owner)| *owner));
    }

    /// Whether a clock has jumped within this time.
    pub(crate) fn has_just_jumped(&self, slack: Duration) -> bool {
        self.state().leapt.is_some_and(|leapt| leapt.elapsed() <= slack)
    }

    /// Whether all that is sent arrives soon.
    pub(crate) fn is_clear(&self) -> bool {
        let state = self.state();
        let is_cut = state.mute.iter().chain(&state.deaf).any(|run| !state.dead.contains(run));
        state.condition == Condition::Running && !is_cut && state.lost + state.slow == 0
    }

    /// Whether it has been [clear](Self::is_clear) for so long.
    pub(crate) fn is_clear_since(&self, ago: Duration) -> bool {
        self.is_clear() && self.state().changed.elapsed() > ago
    }

    /// Those who have a lock that their own process, which lives, has given up or let go of.
    pub(crate) fn ghosts(self: &Arc<Self>) -> Vec<OwnerId> {
        let holders = self.at_server(|server, now| server.holders(now));
        let mut ghosts = Vec::new();
        for (run, owner) in holders {
            let remote = {
                let state = self.state();
                if state.dead.contains(&run) || state.overdue.contains(&owner) {
                    continue;
                }
                state.remotes[run].upgrade()
            };
            if let Some(remote) = remote
                && !self.is_under_way(owner)
                && !remote.left().contains(&owner)
            {
                ghosts.push(owner);
            }
        }
        ghosts
    }

    /// Whether a request of this owner may yet be carried out.
    pub(crate) fn is_under_way(&self, owner: OwnerId) -> bool {
        self.state().under_way.get(&owner).is_some_and(|requests| *requests > 0)
    }

    fn change(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.changed = Instant::now();
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn deliver(self: Arc<Self>, news: News, delay: Duration) {
        sleep(delay).await;
        let (run, owner) = news.to;
        let remote = {
            let state = self.state();
            if state.deaf.contains(&run) {
                return;
            }
            state.remotes[run].upgrade()
        };
        if let Some(remote) = remote {
            remote.hear(owner, news.number, news.change);
        }
    }

    /// Brings a request to the server and the answer back, as far as they come. It is carried out
    /// though nobody waits for it any more.
    async fn trip<T: fmt::Debug + Send + 'static>(
        self: Arc<Self>,
        run: usize,
        claim: Claim,
        what: &'static str,
        carry_out: impl FnOnce(&mut Server, usize, Duration, &Claim) -> T + Send + 'static,
        answer: oneshot::Sender<Result<T, DriverError>>,
    ) {
        let owner = claim.owner();
        let (there, back) = {
            let mut state = self.state();
            let there = if state.mute.contains(&run) { None } else { state.delay(self.ttl) };
            (there, state.delay(self.ttl))
        };
        let began = Instant::now();
        self.history.note(|| format!("run {run} sends {what} of {owner}"));
        let Some(there) = there else { return self.arrived(owner) };
        sleep(there).await;
        let outcome = if self.not_stopped().await == Condition::Down {
            self.history.count("requests refused");
            Err(DriverError::new(ErrorKind::Unreachable, "the server is down"))
        } else {
            if began.elapsed() > claim.call_limit() {
                self.history.count("requests carried out late");
            }
            if began.elapsed() > claim.ttl() * 49 / 50 {
                self.state().overdue.insert(owner);
            }
            let outcome = self.at_server(|server, now| carry_out(server, run, now, &claim));
            self.history.note(|| format!("{what} of {owner} answered {outcome:?}"));
            Ok(outcome)
        };
        self.arrived(owner);
        let Some(back) = back else { return };
        sleep(back).await;
        if !self.state().deaf.contains(&run) {
            // Whoever asked may be gone.
            _ = answer.send(outcome);
        }
    }

    async fn not_stopped(&self) -> Condition {
        loop {
            let goes_on = self.goes_on.notified();
            let condition = self.state().condition;
            match condition {
                Condition::Stopped => goes_on.await,
                condition => return condition,
            }
        }
    }

    fn arrived(&self, owner: OwnerId) {
        if let Some(requests) = self.state().under_way.get_mut(&owner) {
            *requests -= 1;
        }
    }
}

impl State {
    /// How long the next packet takes, if it arrives.
    fn delay(&mut self, ttl: Duration) -> Option<Duration> {
        if self.rng.u32(..1000) < self.lost {
            return None;
        }
        let microseconds = match self.rng.u32(..1000) {
            slow if slow >= self.slow => self.rng.u64(200..3_000),
            // Many are as slow as a driver just waits for.
            _ if self.rng.u32(..10) < 6 => self.rng.u64(0..ttl.as_micros() as u64 / 5),
            _ => self.rng.u64(0..ttl.as_micros() as u64),
        };
        Some(Duration::from_micros(microseconds))
    }
}

/// A process's driver.
pub(crate) struct Remote {
    network: Arc<Network>,
    run: usize,
    /// In the order in which their claims asked first: ids are new in every run.
    lines: Mutex<Vec<Line>>,
}

/// What a claim hears.
struct Line {
    owner: OwnerId,
    news: Option<(u64, Change)>,
    /// What the server had said when it last answered: a grant pushed before that is over.
    since: u64,
    /// Whether anything may be left of it at the server.
    has_traces: bool,
    arrival: Arc<Notify>,
}

impl Line {
    fn of(owner: OwnerId) -> Self {
        Self { owner, news: None, since: 0, has_traces: false, arrival: Arc::default() }
    }
}

impl Remote {
    pub(crate) fn run(&self) -> usize {
        self.run
    }

    /// Claims that were neither released nor refused for good.
    pub(crate) fn left(&self) -> Vec<OwnerId> {
        self.lines().iter().map(|line| line.owner).collect()
    }

    async fn request<T: fmt::Debug + Send + 'static>(
        &self,
        what: &'static str,
        claim: &Claim,
        carry_out: impl FnOnce(&mut Server, usize, Duration, &Claim) -> T + Send + 'static,
    ) -> Result<T, DriverError> {
        let network = Arc::clone(&self.network);
        *network.state().under_way.entry(claim.owner()).or_default() += 1;
        let (sender, answer) = oneshot::channel();
        tokio::spawn(network.trip(self.run, claim.clone(), what, carry_out, sender));
        // An answer that is lost is as one that does not come.
        let answered = async {
            match answer.await {
                Ok(answer) => answer,
                Err(_) => std::future::pending().await,
            }
        };
        timeout(claim.call_limit(), answered).await.unwrap_or_else(|_| {
            self.network.history.count("requests not answered");
            Err(DriverError::new(ErrorKind::Unknown, "no answer"))
        })
    }

    fn hear(&self, owner: OwnerId, number: u64, change: Change) {
        let mut lines = self.lines();
        let Some(line) = lines.iter_mut().find(|line| line.owner == owner) else { return };
        if number > line.since {
            if matches!(change, Change::Granted(_)) {
                self.network.history.count("grants pushed");
            }
            line.news = Some((number, change));
            line.arrival.notify_one();
        }
    }

    fn reconnected(&self) {
        for line in &mut *self.lines() {
            line.news.get_or_insert((u64::MAX, Change::AskAgain));
            line.arrival.notify_one();
        }
    }

    fn line<T>(&self, claim: &Claim, act: impl FnOnce(&mut Line) -> T) -> Option<T> {
        self.lines().iter_mut().find(|line| line.owner == claim.owner()).map(act)
    }

    fn close_line(&self, claim: &Claim) {
        self.lines().retain(|line| line.owner != claim.owner());
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap()
    }
}

#[async_trait]
impl Driver for Remote {
    fn id(&self) -> &'static str {
        "simulated"
    }

    fn capabilities(&self) -> Capabilities {
        self.network.state().server.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        if self.line(claim, |_| ()).is_none() {
            self.lines().push(Line::of(claim.owner()));
        }
        let asked = self.request("ask", claim, |server, run, now, claim| {
            let attempt = server.ask(now, run, claim);
            (server.last_number(), attempt)
        });
        let answer = asked.await;
        let has_traces = self.line(claim, |line| {
            match &answer {
                Ok((number, attempt)) => {
                    line.since = *number;
                    line.news.take_if(|(heard, _)| *heard <= *number);
                    line.has_traces |= claim.waits() || matches!(attempt, Attempt::Granted(_));
                }
                Err(error) => line.has_traces |= error.kind() == ErrorKind::Unknown,
            }
            line.has_traces
        });
        if has_traces == Some(false) {
            self.close_line(claim);
        }
        answer.map(|(_, attempt)| attempt)
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.request("renewal", claim, |server, _, now, claim| server.renew(now, claim)).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.close_line(claim);
        self.request("release", claim, |server, _, now, claim| server.release(now, claim)).await
    }

    async fn changed(&self, claim: &Claim) -> Change {
        loop {
            let heard = self.line(claim, |line| (Arc::clone(&line.arrival), line.news.take()));
            let Some((arrival, news)) = heard else { return std::future::pending().await };
            match news {
                Some((_, change)) => return change,
                None => arrival.notified().await,
            }
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("run", &self.run).finish_non_exhaustive()
    }
}
