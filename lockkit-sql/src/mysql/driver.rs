use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Claim, Driver, DriverError, Grant, Inspect, Release, Renewal, Taken, Vouch,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Fairness, Liveness, Result};
use tokio_util::task::AbortOnDropHandle;

use super::claims::{self, Answer, Released};
use super::config::{Config, ID};
use super::connections::{Connections, Within};
use super::error::Failure;
use super::queue;
use super::sweep::sweep;
use crate::housekeeping::keep_house;
use crate::sights::{Sights, Takeover};

/// What the driver for MySQL and MariaDB promises.
///
/// A lease of 200 ms leaves 40 ms for a request, of which syncing the server's log is a part.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .fairness(Fairness::OnRequest)
    .fencing()
    .inspection()
    .ttl(Duration::from_millis(200), Capabilities::MAX_TTL);

/// Locks in a MySQL or MariaDB database.
///
/// It keeps a few connections. They are made when they are needed and made anew when they break;
/// they end with [`close`](Driver::close) or when the driver is dropped.
#[derive(Debug)]
pub struct MysqlDriver {
    pub(super) connections: Arc<Connections>,
    pub(super) call_limit: Option<Duration>,
    /// What was seen of leases that ran out, where the server's clock does not decide alone.
    pub(super) sights: Option<Sights>,
    housekeeping: AbortOnDropHandle<()>,
}

impl MysqlDriver {
    /// Connects to `mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE`, and makes the tables if there
    /// are none. Tries once, and fails within 5 seconds.
    ///
    /// # Errors
    ///
    /// - [`Error::Config`] if the URL cannot be used.
    /// - [`Error::Misconfigured`] if the server cannot: it is read-only, has no such database, an
    ///   unknown layout version, or no way to keep the password secret.
    /// - [`Error::Denied`] for a wrong password or a missing right.
    /// - [`Error::Foreign`] if the tables are not as lockkit makes them.
    /// - [`Error::Capacity`] if the server has no connection left.
    /// - [`Error::Unreachable`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: connections that were begun are closed; tables that were made stay.
    pub async fn connect(url: &BackendUrl) -> Result<Self> {
        let Config { endpoint, call_limit, connections, observe } = Config::from_url(url)?;
        let opened = Connections::open(endpoint, connections).await;
        let connections = opened
            .map(Arc::new)
            .map_err(|failure| Error::connecting(ID, failure.while_connecting()))?;
        let swept = connections.clone();
        Ok(Self {
            connections,
            call_limit,
            sights: observe.then(Sights::default),
            housekeeping: keep_house(move || sweep(swept.clone(), observe)),
        })
    }

    /// Takes note of a hold that has run out; who is refused for it learns when to ask again.
    fn observe(&self, claim: &Claim, answer: Answer) -> Attempt {
        match (answer, &self.sights) {
            (Answer::Granted { token }, sights) => {
                if let Some(sights) = sights {
                    sights.forget(claim.name());
                }
                Attempt::Granted(Grant::new().token(token))
            }
            (Answer::Taken { run_out: Some(run_out), .. }, Some(sights)) => {
                let remaining = sights.note(claim.name(), run_out, claim.now());
                Attempt::Taken(Taken::new().free_in(remaining))
            }
            (Answer::Taken { remaining, .. }, _) => Attempt::Taken(match remaining {
                Some(remaining) => Taken::new().free_in(remaining),
                None => Taken::new(),
            }),
        }
    }

    /// How long the requests about the claim may take together.
    fn within(&self, claim: &Claim) -> Within {
        Within::new(self.call_limit.unwrap_or(claim.call_limit()))
    }
}

#[async_trait]
impl Driver for MysqlDriver {
    fn id(&self) -> &'static str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let within = self.within(claim);
        let takeover = Takeover::of(self.sights.as_ref(), claim);
        let answer = match claims::take(&self.connections, claim, takeover, within).await {
            Ok(Answer::Taken { .. }) if claim.is_fair() => {
                queue::stand(&self.connections, claim, takeover, within).await
            }
            answer => answer,
        };
        let answer = answer.map_err(Failure::of_a_request)?;
        Ok(self.observe(claim, answer))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        match claims::renew(&self.connections, claim, self.within(claim)).await {
            Ok(true) => Ok(Renewal::Held(Vouch::FromRequest)),
            Ok(false) => Ok(Renewal::Lost),
            Err(failure) => Err(failure.of_a_request()),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let within = self.within(claim);
        let released = claims::release(&self.connections, claim, within).await;
        let released = released.map_err(Failure::of_a_request)?;
        if released == Released::Freed {
            return Ok(Release::Freed);
        }
        if claim.is_fair() {
            let left = queue::leave(&self.connections, claim, within).await;
            left.map_err(Failure::of_a_request)?;
        }
        Ok(Release::NotHeld)
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        self.housekeeping.abort();
        self.connections.close().await;
    }
}
