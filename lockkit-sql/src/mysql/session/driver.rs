use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, Inspect, Release, Renewal, Taken,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Liveness, Result};
use tokio_util::task::AbortOnDropHandle;

use super::server::{MysqlServer, REQUESTS};
use crate::housekeeping::keep_house;
use crate::mysql::config::{ID, SessionConfig};
use crate::mysql::connections::Connections;
use crate::mysql::error::Failure;
use crate::mysql::sweep::sweep_of_sessions;
use crate::session::Sessions;
use crate::session::hold::Hold;

/// What the driver of MySQL and MariaDB sessions promises.
///
/// An ask may wait for two seconds for a row that somebody keeps locked: MySQL checks only once a
/// second whether its limit of one second is over. A shorter session could end meanwhile, with all
/// its locks.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Session)
    .fencing()
    .notification()
    .inspection()
    .ttl(Duration::from_secs(3), Capabilities::MAX_TTL);

/// Locks that a session with a MySQL or MariaDB server holds.
///
/// It keeps one connection for the session, a few more while somebody waits, and, once a lock has
/// been looked at, one for that; for a moment each hour there is another, which removes idle rows.
/// They end with [`close`](Driver::close) or when the driver is dropped.
#[derive(Debug)]
pub struct MysqlSessionDriver {
    pub(super) sessions: Sessions<MysqlServer>,
    /// For what must not stand in line with the locks' requests.
    pub(super) lookout: Connections,
    pub(super) call_limit: CallLimit,
    housekeeping: AbortOnDropHandle<()>,
}

impl MysqlSessionDriver {
    /// Connects to `mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE?hold=session`, and makes the
    /// tables if there are none. Tries once, and gives up within 5 seconds.
    ///
    /// The session's TTL is that of the URL, or 30 seconds if it has none, rounded up to whole
    /// seconds.
    ///
    /// What `url` says about a locker, such as its `namespace`, is only checked here:
    /// [`Locker::from_url`](lockkit_core::Locker::from_url) applies it, and
    /// [`Locker::new`](lockkit_core::Locker::new) does not.
    ///
    /// # Errors
    ///
    /// - [`Error::Config`] if the URL cannot be used.
    /// - [`Error::Misconfigured`] if the server cannot be used: it is read-only or a node of a
    ///   Galera cluster, has no such database, has an unknown layout version, or has no way to keep
    ///   the password secret.
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
            endpoint.found_for_sessions().await?;
            Sessions::open(MysqlServer { endpoint, keys }, ttl, waiting).await
        });
        let sessions = plain.within_limit(opening).await.map_err(failed)?;
        let lookout = Connections::new(plain.clone(), 2);
        let housekeeping = keep_house(move || sweep_of_sessions(plain.clone()));
        Ok(Self { sessions, lookout, call_limit, housekeeping })
    }
}

#[async_trait]
impl Driver for MysqlSessionDriver {
    fn id(&self) -> &'static str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        match self.sessions.take(claim, self.call_limit.of(claim)).await {
            Ok(answer) => Ok(answer.attempt(Taken::new().unheard())),
            Err(failure) => Err(failure.of_a_request()),
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let renewal = self.sessions.renew(claim, self.call_limit.of(claim)).await;
        renewal.map_err(Failure::of_a_request)
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let release = self.sessions.release(claim, self.call_limit.of(claim)).await;
        release.map_err(Failure::of_a_request)
    }

    async fn changed(&self, claim: &Claim) -> Change {
        self.sessions.changed(claim).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        self.housekeeping.abort();
        self.sessions.close().await;
        self.lookout.close().await;
    }
}
