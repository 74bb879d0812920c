use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, Grant, Inspect, Release, Renewal, Taken,
    Turnstile, Vouch,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Fairness, Liveness, Result};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::claims::{self, Answer, Released};
use super::config::{Config, ID};
use super::connections::{Connections, Within};
use super::error::Failure;
use super::queue::{self, Looked};
use super::sweep::sweep;
use crate::housekeeping::keep_house;
use crate::neighbours::Neighbours;
use crate::sights::{Sights, Takeover};
use crate::stays::Stays;

/// How many ask at a time, of many who ask at once.
const MOST_ASKS: usize = 32;

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
    /// Who wants to be served in order.
    pub(super) neighbours: Neighbours,
    stays: Stays,
    /// Asks that are made together would leave the process much larger.
    asks: Turnstile,
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
            neighbours: Neighbours::default(),
            stays: Stays::default(),
            asks: Turnstile::new(MOST_ASKS),
            housekeeping: keep_house(move || sweep(swept.clone(), observe)),
        })
    }

    /// Who has stood in the queue before stands there again, and has no other way in.
    async fn ask(&self, claim: &Claim, stood_before: bool) -> Result<Answer, Failure> {
        // It may have been refreshed a quarter of a lease ago.
        let place_ends = Instant::now() + claim.ttl() / 4 * 3;
        let answer = self.take(claim, stood_before).await?;
        let has_place = matches!(answer, Answer::Taken { .. });
        self.neighbours.stand(claim.owner(), has_place.then_some(place_ends));
        Ok(answer)
    }

    async fn take(&self, claim: &Claim, stood_before: bool) -> Result<Answer, Failure> {
        let within = self.within(claim);
        let takeover = Takeover::of(self.sights.as_ref(), claim);
        if stood_before {
            let connections = &*self.connections;
            let looked = match self.neighbours.is_next(claim.owner()) {
                true => Looked::Next,
                false => queue::look(connections, claim, takeover, within).await?,
            };
            let answer = match looked {
                Looked::Refused(answer) => return Ok(answer),
                Looked::Next => queue::take_turn(connections, claim, takeover, within).await?,
                Looked::Stale => None,
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
            if let Some(answer) = queue::stand(connections, claim, takeover, within).await? {
                return Ok(answer);
            }
        }
        let answer = claims::take(&self.connections, claim, takeover, within).await?;
        match answer {
            Answer::Taken { .. } if claim.is_fair() => {
                let stood = queue::stand(&self.connections, claim, takeover, within).await?;
                Ok(stood.unwrap_or(answer))
            }
            answer => Ok(answer),
        }
    }

    /// Keeps the place of a claim for which nothing can have changed; whether it stands.
    async fn stay(&self, claim: &Claim) -> Result<bool, Failure> {
        let limit = self.limit(claim);
        let keep = |owners| queue::stay(&self.connections, claim, owners, Within::new(limit));
        self.stays.keep(claim, limit, keep).await
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
            (Answer::Taken { remaining, ahead, .. }, _) => {
                let is_told =
                    ahead.is_some_and(|ahead| self.neighbours.follow(claim.owner(), ahead));
                Attempt::Taken(match is_told {
                    true => Taken::new().heard(),
                    false => remaining.into_iter().fold(Taken::new(), Taken::free_in),
                })
            }
        }
    }

    async fn let_go(&self, claim: &Claim) -> Result<Release, Failure> {
        let within = self.within(claim);
        let released = claims::release(&self.connections, claim, within).await?;
        if released == Released::Freed {
            return Ok(Release::Freed);
        }
        if claim.is_fair() {
            queue::leave(&self.connections, claim, within).await?;
        }
        Ok(Release::NotHeld)
    }

    /// How long the requests about the claim may take together.
    fn within(&self, claim: &Claim) -> Within {
        Within::new(self.limit(claim))
    }

    fn limit(&self, claim: &Claim) -> Duration {
        self.call_limit.unwrap_or(claim.call_limit())
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
        let owner = claim.owner();
        let stood_before = claim.is_fair() && self.neighbours.come(owner);
        if stood_before && self.neighbours.relies(owner) {
            let until = Instant::now() + claim.ttl();
            if Box::pin(self.stay(claim)).await.map_err(Failure::of_a_request)? {
                self.neighbours.stand(owner, Some(until));
                return Ok(Attempt::Taken(Taken::new().heard()));
            }
        }
        match self.asks.pass(claim, || self.ask(claim, stood_before)).await {
            Ok(answer) => Ok(self.observe(claim, answer)),
            Err(failure) => {
                // It may be the last of its claim, without a release.
                if !stood_before {
                    self.neighbours.go(claim.owner());
                }
                Err(failure.of_a_request())
            }
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        match claims::renew(&self.connections, claim, self.within(claim)).await {
            Ok(true) => Ok(Renewal::Held(Vouch::FromRequest)),
            Ok(false) => {
                self.neighbours.go(claim.owner());
                Ok(Renewal::Lost)
            }
            Err(failure) => Err(failure.of_a_request()),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let released = self.let_go(claim).await;
        // Also if that failed: who comes next finds out.
        self.neighbours.go(claim.owner());
        released.map_err(Failure::of_a_request)
    }

    async fn changed(&self, claim: &Claim) -> Change {
        self.neighbours.changed(claim.owner()).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        self.housekeeping.abort();
        self.connections.close().await;
    }
}
