use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkit_core::driver::{Clock, Driver, DriverError, ErrorKind};
use lockkit_core::{Error, Fairness, Result};

use crate::ballot::{self, Settled, Votes};
use crate::driver::{ID, RedlockDriver};
use crate::electorate::Electorate;
use crate::failure::{Left, silent};
use crate::member::{Connect, Member, causes};
use crate::settings::{Allow, Settings};

/// How long connecting may take.
const LIMIT: Duration = Duration::from_secs(4);
/// How long to wait for the last nodes once a majority is there, at least: one that refuses is to
/// be heard.
const GRACE: Duration = Duration::from_millis(250);

/// Names the nodes of a [`RedlockDriver`].
#[derive(Default)]
pub struct RedlockBuilder {
    members: Vec<Member>,
    settings: Settings,
}

impl RedlockBuilder {
    /// Sets how the nodes are treated.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Adds a node that is already connected. The name is for messages.
    #[must_use]
    pub fn node(mut self, name: impl Into<String>, driver: impl Driver) -> Self {
        self.members.push(Member::connected(name.into(), Arc::new(driver)));
        self
    }

    /// Adds a node that is yet to be connected to. Where that fails, it is tried again and again in
    /// the background: a node may be down when the others are not.
    #[must_use]
    pub fn node_at<F, D>(
        mut self,
        name: impl Into<String>,
        connect: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<D>> + Send + 'static,
        D: Driver,
    {
        let connect: Connect = Box::new(move || {
            let connecting = connect();
            Box::pin(async move { Ok(Arc::new(connecting.await?) as Arc<dyn Driver>) })
        });
        self.members.push(Member::to_be_connected(name.into(), connect));
        self
    }

    /// Connects to the nodes, within 5 seconds. It is done when all are there, or when a majority is
    /// there and the others have had as long again, and at least 250 ms.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a number of nodes that makes no sense, and for settings out of their
    /// bounds; [`Error::Misconfigured`] if a node is a replica, is another node under a different
    /// name, or does not keep leases; [`Error::Unreachable`] without a majority; and any error of a
    /// node that does not pass by itself, such as a wrong password or the want of the right to tell
    /// which run it is in.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is locked yet.
    pub async fn connect(self) -> Result<RedlockDriver> {
        let Self { members, settings } = self;
        if let Some((setting, reason)) = settings.out_of_bounds() {
            return Err(Error::config(setting, reason));
        }
        let refused = |reason: &str| Err(Error::config("Redlock", reason));
        match members.len() {
            0 => return refused("no node is named"),
            1 if !settings.allows(Allow::Single) => {
                return refused(
                    "one node is no majority: name three or five, or use its driver itself",
                );
            }
            number if number % 2 == 0 && !settings.allows(Allow::Even) => {
                return refused(
                    "an even number of nodes stands no more failures than one less would",
                );
            }
            _ => (),
        }
        let mut driver = RedlockDriver::new(Electorate::new(members, settings));
        let quorum = Arc::clone(&driver.quorum);
        let nodes = quorum.nodes.len();

        let needed = quorum.nodes.quorum();
        let is_settled = |meetings: &Votes<Result<()>>| {
            let is_lasting = |error: &Error| !error.is_transient();
            if meetings.iter().flatten().filter_map(|it| it.as_ref().err()).any(is_lasting) {
                return Settled::Yes;
            }
            match ballot::count(meetings, Result::is_ok) >= needed {
                true => Settled::Nearly(GRACE),
                false => Settled::No,
            }
        };
        let meeting = |at| -> BoxFuture<'static, _> {
            let (meeting, over) = (meet(Arc::clone(&quorum.nodes), at), quorum.over.clone());
            // Nobody wants to know any more.
            Box::pin(async move { over.run_until_cancelled_owned(meeting).await.unwrap_or(Ok(())) })
        };
        let meetings = (0..nodes).map(meeting).collect();
        let meetings = ballot::hold(meetings, LIMIT, &quorum.stragglers, is_settled).await;
        let (mut there, mut failures) = (0, Vec::new());
        for (meeting, member) in meetings.into_iter().zip(&quorum.nodes.members) {
            failures.push(match meeting {
                Some(Err(error)) if !error.is_transient() => return Err(error),
                _ if member.driver().is_ok() => {
                    there += 1;
                    None
                }
                Some(Err(error)) => Some(DriverError::new(ErrorKind::Unreachable, error)),
                _ => Some(silent()),
            });
        }
        if there < needed {
            let error = quorum.no_majority(there, failures, Left::Nothing);
            return Err(Error::connecting(ID, error));
        }
        for (at, _) in failures.iter().enumerate().filter(|(_, failure)| failure.is_some()) {
            let (nodes, over) = (Arc::clone(&quorum.nodes), quorum.over.clone());
            quorum.stragglers.spawn(async move {
                _ = over.run_until_cancelled(nodes.members[at].keep_connecting()).await;
            });
        }
        let drivers = quorum.nodes.members.iter().filter_map(|member| member.driver().ok());
        if drivers.filter(|driver| tells(&**driver)).count() < needed {
            driver.tells_nothing();
        }
        Ok(driver)
    }
}

impl fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockBuilder")
            .field("nodes", &self.members)
            .field("settings", &self.settings)
            .finish()
    }
}

/// Whether a claim that listens there may hear of a release.
fn tells(driver: &dyn Driver) -> bool {
    let capabilities = driver.capabilities();
    capabilities.notification && capabilities.fairness != Fairness::Fifo
}

/// An error of connecting that does not pass by itself, with the node that reports it. The error of
/// a wrong URL tells that already.
fn said_by(member: &Member, error: Error) -> Error {
    let kind = match &error {
        Error::Denied(failure)
        | Error::Capacity(failure)
        | Error::Foreign(failure)
        | Error::Misconfigured(failure) => failure.kind,
        _ => return error,
    };
    refused_by(member, kind, &error)
}

fn refused_by(member: &Member, kind: ErrorKind, reason: &dyn std::error::Error) -> Error {
    let reason = format!("node {}: {}", member.name, causes(reason));
    Error::connecting(ID, DriverError::new(kind, reason))
}

/// Connects to a node, unless it is connected already, and finds out what it is.
async fn meet(nodes: Arc<Electorate>, at: usize) -> Result<()> {
    let member = &nodes.members[at];
    if member.driver().is_err() {
        member.connect().await.map_err(|error| said_by(member, error))?;
    }
    if member.driver().is_ok_and(|driver| driver.node().is_none()) {
        let node = &member.name;
        tracing::warn!(%node, "a node does not tell of its restarts, and will not sit out");
    }
    let voter = nodes.voter(at, &Clock::system(), LIMIT / 2).await;
    match voter.map_err(DriverError::from) {
        Err(error) if !error.kind().is_transient() => {
            Err(refused_by(member, error.kind(), &*error.into_source()))
        }
        // One that sits out or is slow may vote later: it is asked again each time.
        _ => Ok(()),
    }
}
