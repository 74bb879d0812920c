use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, Inspect, Release, Renewal, Taken,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Liveness, Result};
use tokio_util::task::AbortOnDropHandle;

use super::server::{PostgresServer, REQUESTS};
use crate::housekeeping::keep_house;
use crate::postgres::channel::Channel;
use crate::postgres::config::{ID, SessionConfig};
use crate::postgres::connections::Connections;
use crate::postgres::error::Failure;
use crate::postgres::sweep::sweep_of_sessions;
use crate::session::hold::{Hold, Keys};
use crate::session::{Answer, Sessions};
use crate::subscription::{Joined, Subscription};

/// Where all sessions hear of a release.
const CHANNEL: &str = "lockkit";

/// What the driver of PostgreSQL sessions promises.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Session)
    .fencing()
    .notification()
    .inspection()
    .ttl(Duration::from_millis(500), Capabilities::MAX_TTL);

/// Locks that a session with a PostgreSQL server holds.
///
/// It keeps one connection for the session; a few more while somebody waits, with one for news if
/// those are all in use; and, once a lock has been looked at, one for that. For a moment each hour
/// there is another, which removes idle rows. They end with [`close`](Driver::close) or when the
/// driver is dropped.
#[derive(Debug)]
pub struct PostgresSessionDriver {
    pub(super) sessions: Sessions<PostgresServer>,
    /// For what must not stand in line with the locks' requests.
    pub(super) lookout: Connections,
    pub(super) call_limit: CallLimit,
    housekeeping: AbortOnDropHandle<()>,
}

impl PostgresSessionDriver {
    /// Connects to `postgres://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]?hold=session`, and makes
    /// the tables if there are none. Tries once, and gives up within 5 seconds.
    ///
    /// The session's TTL is that of the URL, or 30 seconds if it has none.
    ///
    /// What `url` says about a locker, such as its `namespace`, is only checked here:
    /// [`Locker::from_url`](lockkit_core::Locker::from_url) applies it, and
    /// [`Locker::new`](lockkit_core::Locker::new) does not.
    ///
    /// # Errors
    ///
    /// - [`Error::Config`] if the URL cannot be used.
    /// - [`Error::Misconfigured`] if the server cannot be used: it is a standby, takes no
    ///   writes otherwise, is older than PostgreSQL 14, has no such database, has an unknown layout
    ///   version, or is behind a pooler that pools transactions.
    /// - [`Error::Denied`] for a wrong password or a missing right.
    /// - [`Error::Foreign`] if the tables are not as lockkit makes them.
    /// - [`Error::Capacity`] if the server has no room for the tables.
    /// - [`Error::Unreachable`], also if the server has no connection left.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: connections that were begun are closed; tables that were made stay.
    pub async fn connect(url: &BackendUrl) -> Result<Self> {
        let SessionConfig { endpoint: plain, hold } =
            SessionConfig::from_url(url, &CAPABILITIES).await?;
        let Hold { call_limit, ttl, keys, waiting } = hold;
        let failed = |failure: Failure| Error::connecting(ID, failure.while_connecting());
        let endpoint = plain.with_requests(REQUESTS);
        let opening = Box::pin(async {
            let first = Mutex::new(Some(endpoint.found_for_sessions().await?));
            let channel = Channel::new(plain.clone(), CHANNEL);
            let subscription = Subscription::new(match keys {
                Keys::Hashed => channel,
                Keys::Exact => channel.without_namespaces(),
            });
            let server = PostgresServer { endpoint, keys, subscription, first };
            Sessions::open(server, ttl, waiting).await
        });
        let sessions = plain.within_limit(opening).await.map_err(failed)?;
        let lookout = Connections::new(plain.clone(), 2);
        let housekeeping = keep_house(move || sweep_of_sessions(plain.clone()));
        Ok(Self { sessions, lookout, call_limit, housekeeping })
    }

    fn subscription(&self) -> &Subscription {
        &self.sessions.server().subscription
    }
}

#[async_trait]
impl Driver for PostgresSessionDriver {
    fn id(&self) -> &'static str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let limit = self.call_limit.of(claim);
        if !claim.waits() {
            return attempt(self.sessions.take(claim, limit).await);
        }
        let (name, owner) = (claim.name(), claim.owner());
        let joined = self.subscription().join(name, owner);
        let answer = self.sessions.take(claim, limit).await;
        match &answer {
            Ok(Answer::Taken { is_queued: false }) => {
                self.subscription().wait(name, owner, None, joined);
            }
            Ok(_) => self.subscription().leave(name, owner),
            // Nobody releases a claim whose ask was not carried out.
            Err(_) if joined == Joined::Now => self.subscription().leave(name, owner),
            Err(_) => (),
        }
        attempt(answer)
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let renewal = self.sessions.renew(claim, self.call_limit.of(claim)).await;
        renewal.map_err(Failure::of_a_request)
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        if claim.waits() {
            self.subscription().leave(claim.name(), claim.owner());
        }
        let release = self.sessions.release(claim, self.call_limit.of(claim)).await;
        release.map_err(Failure::of_a_request)
    }

    async fn changed(&self, claim: &Claim) -> Change {
        tokio::select! {
            change = self.sessions.changed(claim) => change,
            change = self.subscription().changed(claim.name(), claim.owner()) => change,
        }
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        self.housekeeping.abort();
        self.subscription().close();
        self.sessions.close().await;
        self.lookout.close().await;
    }
}

fn attempt(answer: Result<Answer, Failure>) -> Result<Attempt, DriverError> {
    match answer {
        Ok(answer) => Ok(answer.attempt(Taken::new())),
        Err(failure) => Err(failure.of_a_request()),
    }
}
