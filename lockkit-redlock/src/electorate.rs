//! The nodes, and which of them may vote.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::Liveness;
use lockkit_core::driver::{Clock, Driver, DriverError, ErrorKind, Instant, Run};

use crate::member::Member;
use crate::settings::{Allow, Settings};

/// All nodes, and what is known of the backends behind them.
#[derive(Debug)]
pub(crate) struct Electorate {
    pub(crate) members: Vec<Member>,
    pub(crate) settings: Settings,
    standings: Mutex<Vec<Standing>>,
}

/// What is known of the backend behind a node.
#[derive(Clone, Debug, Default)]
struct Standing {
    run: Option<Run>,
    /// When it last told of that run. It may have told from memory: then the run had ended before.
    seen: Option<Instant>,
    /// How many runs there were before.
    earlier: u64,
    /// Until when it may have forgotten a lock that is still held.
    sits_out_until: Option<Instant>,
    bar: Option<Bar>,
}

/// Why a node may not vote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Bar {
    #[error("it is the same backend as {0}, and has no vote of its own")]
    Duplicate(String),
    #[error("it is a replica: locks belong on nodes that copy no other")]
    Replica,
    #[error("its holds are no leases")]
    NoLeases,
}

/// Why a node gives no vote.
pub(crate) enum NoVote {
    /// It may not vote, or not now.
    Barred(DriverError),
    /// It did not answer as it should.
    Failed(DriverError),
}

impl From<NoVote> for DriverError {
    fn from(reason: NoVote) -> Self {
        match reason {
            NoVote::Barred(error) | NoVote::Failed(error) => error,
        }
    }
}

/// A node that may vote.
pub(crate) struct Voter {
    pub(crate) driver: Arc<dyn Driver>,
    /// Which of the runs that we have seen this is, if the node tells.
    run: Option<u64>,
}

impl Voter {
    /// Whether both are the same run of the same backend.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.run == other.run
    }
}

impl Electorate {
    pub(crate) fn new(members: Vec<Member>, settings: Settings) -> Self {
        let standings = Mutex::new(vec![Standing::default(); members.len()]);
        Self { members, settings, standings }
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// How many nodes make a majority of all, whatever became of them.
    pub(crate) fn quorum(&self) -> usize {
        self.len() / 2 + 1
    }

    /// The node, if it may vote now.
    pub(crate) async fn voter(
        &self,
        at: usize,
        clock: &Clock,
        limit: Duration,
    ) -> Result<Voter, NoVote> {
        let unreachable = |reason| NoVote::Barred(DriverError::new(ErrorKind::Unreachable, reason));
        let barred = |bar| NoVote::Barred(DriverError::new(ErrorKind::Misconfigured, bar));
        let driver =
            self.members[at].driver().map_err(|reason| unreachable(String::from(&*reason)))?;
        if driver.capabilities().liveness != Liveness::Lease {
            return Err(barred(Bar::NoLeases));
        }
        let Some(node) = driver.node() else { return Ok(Voter { driver, run: None }) };
        let asked = clock.now();
        let run = node.run(limit).await.map_err(NoVote::Failed)?;
        let mut standings = self.standings();
        match &standings[at] {
            Standing { run: Some(known), bar, .. } if known.id() == run.id() => {
                if let Some(Bar::Duplicate(_)) = bar {
                    // The other may have another backend by now.
                    standings[at].bar = self.bar_of(&standings, at, &run);
                }
                // Once it has acknowledged what it may not keep, it stays a run that may forget.
                if !run.is_durable() {
                    standings[at].run = Some(run);
                }
            }
            _ => self.note(&mut standings, at, run, clock.now()),
        }
        standings[at].seen = standings[at].seen.max(Some(asked));
        let standing = &mut standings[at];
        if let Some(bar) = &standing.bar {
            return Err(barred(bar.clone()));
        }
        if let Some(until) = standing.sits_out_until {
            let left = until.saturating_duration_since(clock.now());
            if !left.is_zero() {
                let reason = "it was restarted, and may have forgotten locks that are held";
                return Err(unreachable(format!("{reason}: no vote for another {left:.1?}")));
            }
            standing.sits_out_until = None;
        }
        Ok(Voter { driver, run: Some(standing.earlier) })
    }

    /// Notes that the backend of a node is in another run than it was.
    fn note(&self, standings: &mut [Standing], at: usize, run: Run, now: Instant) {
        let Standing { run: earlier, seen, .. } = &standings[at];
        let (earlier, seen) = (earlier.as_ref(), *seen);
        let silence = self.settings.silence_after_restart();
        // What the earlier run did not keep, this one cannot have.
        let remembers = run.is_durable() && earlier.is_none_or(Run::is_durable);
        let sits_out_until = match earlier {
            // It sits out for as long as the run before it had to.
            _ if remembers => standings[at].sits_out_until,
            // The backend's clock may have been set; but by our clock, its run is no older than
            // this.
            Some(_) => {
                let since = seen.map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen));
                Some(now + silence.saturating_sub(run.age().min(since)))
            }
            None => Some(now + silence.saturating_sub(run.age())),
        };
        let bar = self.bar_of(standings, at, &run);
        if let Some(bar) = &bar {
            tracing::error!(node = %self.members[at].name, %bar, "a node has no vote");
        } else if earlier.is_some() {
            tracing::warn!(node = %self.members[at].name, ?run, "a node was restarted");
        }
        let earlier = standings[at].earlier + 1;
        standings[at] = Standing { run: Some(run), seen: None, earlier, sits_out_until, bar };
    }

    /// Why a node that is in this run may not vote. Of several nodes that are in it, the first has
    /// the vote.
    fn bar_of(&self, standings: &[Standing], at: usize, run: &Run) -> Option<Bar> {
        let twin = standings.iter().enumerate().find(|&(other, Standing { run: its, bar, .. })| {
            let is_in_it = its.as_ref().is_some_and(|its| its.id() == run.id());
            other != at && is_in_it && !matches!(bar, Some(Bar::Duplicate(_)))
        });
        match twin {
            Some((twin, _)) if !self.settings.allows(Allow::Duplicates) => {
                Some(Bar::Duplicate(self.members[twin].name.clone()))
            }
            _ if !run.is_primary() => Some(Bar::Replica),
            _ => None,
        }
    }

    fn standings(&self) -> MutexGuard<'_, Vec<Standing>> {
        // Nothing panics while it holds the lock.
        self.standings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
