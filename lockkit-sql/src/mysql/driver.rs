use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, Grant, Inspect, Limit, Release,
    Renewal, Taken, Turnstile, Vouch,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Fairness, Liveness, Result};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::bell::Bell;
use super::claims::{self, Answer, Ended};
use super::config::{Config, ID};
use super::connections::Connections;
use super::error::Failure;
use super::queue::{self, Looked};
use super::sweep::sweep;
use crate::housekeeping::keep_house;
use crate::leases::Leases;
use crate::neighbours::Neighbours;
use crate::renewals::Renewals;
use crate::sights::{Sights, Takeover};
use crate::stays::Stays;

/// How many claims ask at a time, when many ask at once.
const MOST_ASKS: usize = 32;

/// How long a waiter that was told takes to ask, as a rule.
const A_CHANCE: Duration = Duration::from_millis(2);

/// For how long a claim relies on being told by another process, whose user may lack the right to
/// do so.
const ASK_WITHIN: Duration = Duration::from_secs(1);

/// What the driver for MySQL and MariaDB promises.
///
/// A lease of 200 ms leaves 40 ms for a request, which includes syncing the server's log.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .fairness(Fairness::OnRequest)
    .fencing()
    .notification()
    .inspection()
    .ttl(Duration::from_millis(200), Capabilities::MAX_TTL);

/// Locks in a MySQL or MariaDB database.
///
/// It keeps a few connections for requests and, while somebody waits, one that sleeps until it is
/// told of a release. They are made when they are needed and made anew when they break; they end
/// with [`close`](Driver::close) or when the driver is dropped.
#[derive(Debug)]
pub struct MysqlDriver {
    pub(super) connections: Arc<Connections>,
    pub(super) call_limit: CallLimit,
    /// What was seen of leases that ran out, where the server's clock does not decide alone.
    pub(super) sights: Option<Sights>,
    /// The claims that want to be served in order.
    pub(super) neighbours: Neighbours,
    pub(super) bell: Bell,
    stays: Stays,
    renewals: Renewals,
    /// Asks made all at once would leave the process much larger.
    asks: Turnstile,
    housekeeping: AbortOnDropHandle<()>,
}

impl MysqlDriver {
    /// Connects to `mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE`, and makes the tables if there
    /// are none. Tries once, and gives up within 5 seconds.
    ///
    /// What `url` says about a locker, such as its `namespace`, is only checked here:
    /// [`Locker::from_url`](lockkit_core::Locker::from_url) applies it, and
    /// [`Locker::new`](lockkit_core::Locker::new) does not.
    ///
    /// # Errors
    ///
    /// - [`Error::Config`] if the URL cannot be used.
    /// - [`Error::Misconfigured`] if the server cannot be used: it is read-only, has no such
    ///   database, has an unknown layout version, or has no way to keep the password secret.
    /// - [`Error::Denied`] for a wrong password or a missing right.
    /// - [`Error::Foreign`] if the tables are not as lockkit makes them.
    /// - [`Error::Capacity`] if the server has no room for the tables.
    /// - [`Error::Unreachable`], also if the server has no connection left.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: connections that were begun are closed; tables that were made stay.
    pub async fn connect(url: &BackendUrl) -> Result<Self> {
        let Config { endpoint, leases } = Config::from_url(url).await?;
        let Leases { call_limit, connections, observe } = leases;
        let opened = Connections::open(endpoint.clone(), connections).await;
        let connections = opened
            .map(Arc::new)
            .map_err(|failure| Error::connecting(ID, failure.while_connecting()))?;
        let swept = connections.clone();
        Ok(Self {
            bell: Bell::new(endpoint, connections.clone()),
            connections,
            call_limit,
            sights: observe.then(Sights::default),
            neighbours: Neighbours::default(),
            stays: Stays::default(),
            renewals: Renewals::new(claims::TOGETHER),
            asks: Turnstile::new(MOST_ASKS),
            housekeeping: keep_house(move || sweep(swept.clone(), observe)),
        })
    }

    /// A claim that is refused and waits is told of a release from then on. It asks once more when
    /// that is sure, since it might otherwise miss a release in between.
    async fn ask(&self, claim: &Claim, stood_before: bool) -> Result<Attempt, Failure> {
        let within = self.within(claim);
        let mut is_heard = claim.waits() && self.bell.is_heard_by(claim);
        // If this process has just told another one, a claim that comes now lets that one have its
        // chance.
        let comes = claim.waits() && !claim.is_fair() && !self.bell.knows(claim);
        if comes && self.bell.has_handed_over(claim.name()) {
            is_heard = self.listen(claim, within).await;
            // A claim that is told by then need not wait any longer, and is told nothing more.
            is_heard &= timeout(A_CHANCE, self.bell.changed(claim)).await.is_err();
        }
        // It is hardly its turn: mostly it was told for this process to be told again.
        if !is_heard && self.bell.is_behind_another(claim) {
            is_heard = self.listen(claim, within).await;
        }
        let attempt = self.ask_once(claim, stood_before, is_heard, within).await?;
        match &attempt {
            Attempt::Taken(taken) if claim.waits() && taken.is_unheard() => (),
            _ => return Ok(attempt),
        }
        if !self.listen(claim, within).await {
            return Ok(attempt);
        }
        match self.ask_once(claim, claim.is_fair(), true, within).await {
            Ok(attempt) => Ok(attempt),
            // It may have the lock by now.
            Err(failure) if failure.leaves_a_doubt() => Err(failure),
            Err(failure) => {
                tracing::debug!(lock = %claim.name(), %failure, "a second ask failed");
                Ok(attempt)
            }
        }
    }

    /// Has a claim told of a release; returns whether that is sure. The claim can do without it.
    async fn listen(&self, claim: &Claim, within: Limit) -> bool {
        let listened = self.bell.listen(claim, within).await;
        listened.unwrap_or_else(|failure| {
            tracing::debug!(lock = %claim.name(), %failure, "not told of releases for now");
            false
        })
    }

    /// A claim that has stood in the queue before stands there again, and has no other way in.
    async fn ask_once(
        &self,
        claim: &Claim,
        stood_before: bool,
        is_heard: bool,
        within: Limit,
    ) -> Result<Attempt, Failure> {
        // The place may have been refreshed a quarter of a lease ago.
        let place_ends = Instant::now() + claim.ttl() / 4 * 3;
        let takeover = Takeover::of(self.sights.as_ref(), claim);
        let answer = match stood_before {
            true => self.stand_again(claim, takeover, within).await?,
            false => None,
        };
        let answer = match answer {
            Some(answer) => answer,
            None => self.take(claim, takeover, is_heard, within).await?,
        };
        Ok(self.observe(claim, answer, is_heard, place_ends))
    }

    async fn take(
        &self,
        claim: &Claim,
        takeover: Takeover,
        is_heard: bool,
        within: Limit,
    ) -> Result<Answer, Failure> {
        let answer = claims::take(&self.connections, claim, takeover, is_heard, within).await?;
        match answer {
            Answer::Taken { .. } if claim.is_fair() => {
                Ok(self.stand(claim, takeover, within).await?.unwrap_or(answer))
            }
            answer => Ok(answer),
        }
    }

    async fn stand(
        &self,
        claim: &Claim,
        takeover: Takeover,
        within: Limit,
    ) -> Result<Option<Answer>, Failure> {
        queue::stand(&self.connections, claim, self.bell.inbox(), takeover, within).await
    }

    /// `None` if there is no such lock any more.
    async fn stand_again(
        &self,
        claim: &Claim,
        takeover: Takeover,
        within: Limit,
    ) -> Result<Option<Answer>, Failure> {
        let connections = &*self.connections;
        // A claim that is told has the first place as a rule: not if what it is told is that the
        // subscription has come to stand, or that others who were told have left.
        let is_told = self.neighbours.is_next(claim.owner()) || self.bell.has_told(claim);
        let looked = match is_told {
            true => Looked::Next,
            false => queue::look(connections, claim, takeover, within).await?,
        };
        let answer = match looked {
            Looked::Refused(answer) => Some(answer),
            Looked::Next => queue::take_turn(connections, claim, takeover, within).await?,
            Looked::Stale => None,
        };
        match answer {
            None => self.stand(claim, takeover, within).await,
            answer => Ok(answer),
        }
    }

    /// Keeps the place of a claim for which nothing can have changed; returns whether the place
    /// stands.
    async fn stay(&self, claim: &Claim) -> Result<bool, DriverError> {
        let (limit, until) = (self.call_limit.of(claim), Instant::now() + claim.ttl());
        let keep = async |owners| {
            let stay = || queue::stay(&self.connections, claim, owners, Limit::new(limit));
            self.asks.pass(claim, stay).await.map_err(Failure::of_a_request)
        };
        let stands = self.stays.keep(claim, limit, keep).await?;
        if stands {
            self.neighbours.keep(claim.owner(), until);
        }
        Ok(stands)
    }

    /// Takes note of a hold that has run out. A claim that is refused because of it learns when to
    /// ask again.
    fn observe(
        &self,
        claim: &Claim,
        answer: Answer,
        is_heard: bool,
        place_ends: Instant,
    ) -> Attempt {
        let owner = claim.owner();
        let (remaining, run_out, standing) = match answer {
            Answer::Granted { token } => {
                if claim.waits() {
                    self.bell.leave(claim);
                }
                self.neighbours.hold(owner);
                if let Some(sights) = &self.sights {
                    sights.forget(claim.name());
                }
                return Attempt::Granted(Grant::new().token(token));
            }
            Answer::Taken { remaining, run_out, standing } => (remaining, run_out, standing),
        };
        if let Some(standing) = standing {
            self.bell.stand(claim, standing.arrival);
        }
        let is_told =
            standing.is_some_and(|standing| self.neighbours.stand(owner, standing, place_ends));
        let taken = match (run_out, &self.sights) {
            (Some(run_out), Some(sights)) => {
                Taken::new().free_in(sights.note(claim.name(), run_out, claim.now()))
            }
            _ if is_told => Taken::new(),
            // `ask_within` makes no claim with a place ask sooner, so one that is told by another
            // process gets its limit here.
            _ if is_heard && claim.is_fair() => {
                Taken::new().free_in(remaining.unwrap_or(ASK_WITHIN).min(ASK_WITHIN))
            }
            _ => remaining.into_iter().fold(Taken::new(), Taken::free_in),
        };
        Attempt::Taken(match (is_told, is_heard) {
            (true, _) => taken.heard(),
            (false, true) => taken.heard().ask_within(ASK_WITHIN),
            (false, false) => taken.unheard(),
        })
    }

    async fn let_go(&self, claim: &Claim) -> Result<Release, Failure> {
        let within = self.within(claim);
        let is_to_tell = self.bell.leave(claim);
        self.neighbours.leave(claim.owner());
        let released = claims::release(&self.connections, claim, within).await?;
        let mut is_free = released.hold != Ended::Nothing;
        // A claim that was granted the lock has no place, unless the place could not be removed.
        let leaves =
            || released.hold != Ended::Freed || self.neighbours.may_have_place(claim.owner());
        if claim.is_fair() && leaves() {
            is_free = queue::leave(&self.connections, claim, within).await?;
        }
        // The claim that stands just behind has been told by now.
        let next = self.neighbours.go(claim.owner());
        let (is_queued, is_awaited) = match (released.hold, claim.is_fair()) {
            (Ended::Nothing, true) => (is_free, is_free),
            // An earlier release may have ended the hold without getting as far as telling of it.
            (Ended::Nothing, false) => (false, is_to_tell),
            _ => (released.is_queued, released.is_awaited),
        };
        if next.is_none() && (is_queued || is_awaited) {
            self.bell.ring(claim.name(), is_queued, is_awaited, within).await;
        }
        Ok(match released.hold {
            Ended::Freed => Release::Freed,
            Ended::TooLate | Ended::Nothing => Release::NotHeld,
        })
    }

    /// How long the requests about the claim may take in all.
    fn within(&self, claim: &Claim) -> Limit {
        Limit::new(self.call_limit.of(claim))
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
        if stood_before && self.neighbours.relies(owner) && Box::pin(self.stay(claim)).await? {
            self.bell.relies_on_another(claim);
            return Ok(Attempt::Taken(Taken::new().heard()));
        }
        let listened_before = claim.waits() && self.bell.knows(claim);
        match self.asks.pass(claim, || self.ask(claim, stood_before)).await {
            Ok(attempt) => Ok(attempt),
            Err(failure) => {
                // This may be the claim's last ask, with no release to follow.
                if !stood_before {
                    self.neighbours.go(claim.owner());
                }
                if claim.waits() && !listened_before {
                    self.bell.leave(claim);
                }
                Err(failure.of_a_request())
            }
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let connections = &*self.connections;
        let one = async |limit| {
            let renewed = claims::renew(connections, claim, Limit::new(limit)).await;
            renewed.map_err(Failure::of_a_request)
        };
        let several = async |claims: Vec<Claim>, limit| {
            let within = Limit::new(limit);
            let renewed = claims::renew_together(connections, claim, &claims, within).await;
            renewed.map_err(Failure::of_a_request)
        };
        match self.renewals.renew(claim, self.call_limit.of(claim), one, several).await? {
            true => Ok(Renewal::Held(Vouch::FromRequest)),
            false => {
                self.neighbours.go(claim.owner());
                Ok(Renewal::Lost)
            }
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let released = self.let_go(claim).await;
        // Even if that failed: whoever comes next finds out.
        self.neighbours.go(claim.owner());
        released.map_err(Failure::of_a_request)
    }

    async fn changed(&self, claim: &Claim) -> Change {
        tokio::select! {
            change = self.neighbours.changed(claim.owner()) => change,
            change = self.bell.changed(claim) => change,
        }
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        self.housekeeping.abort();
        self.bell.close().await;
        self.connections.close().await;
    }
}
