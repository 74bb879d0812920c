use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, Grant, Inspect, OwnerId, Release,
    Renewal, Taken, Turnstile, Vouch,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Fairness, Liveness, Result};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::channel::Channel;
use super::claims::{self, Answer};
use super::config::{Config, ID};
use super::connections::Connections;
use super::sweep::sweep;
use crate::housekeeping::keep_house;
use crate::leases::Leases;
use crate::renewals::Renewals;
use crate::sights::{Sights, Takeover};
use crate::stays::Stays;
use crate::subscription::{Joined, Subscription};
use crate::together::MOST;

/// How many claims ask at a time, when many ask at once.
const MOST_ASKS: usize = 32;

/// For how long a claim in order goes without asking if its turn may come unheard.
const ASK_WITHIN: Duration = Duration::from_secs(1);

/// What the PostgreSQL driver promises.
///
/// A lease of 200 ms leaves 40 ms for a request, which includes syncing the server's log.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .fairness(Fairness::OnRequest)
    .fencing()
    .notification()
    .inspection()
    .ttl(Duration::from_millis(200), Capabilities::MAX_TTL);

/// Locks in a PostgreSQL database.
///
/// It keeps a few connections for requests and, while somebody waits, one for news. For a moment each
/// hour there is another, which removes idle rows. They are made when they are needed and made anew when
/// they break; they end with [`close`](Driver::close) or when the driver is dropped.
#[derive(Debug)]
pub struct PostgresDriver {
    pub(super) connections: Connections,
    /// Where the news for this driver alone is told.
    inbox: Channel,
    subscription: Subscription,
    pub(super) call_limit: CallLimit,
    asks: Turnstile,
    stays: Stays,
    renewals: Renewals,
    /// What was seen of leases that ran out, where the server's clock does not decide alone.
    pub(super) sights: Option<Sights>,
    housekeeping: AbortOnDropHandle<()>,
}

impl PostgresDriver {
    /// Connects to `postgres://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, and makes the tables if
    /// there are none. Tries once, and gives up within 5 seconds.
    ///
    /// What the URL leaves out comes from the environment variables of libpq: `PGPORT`, `PGUSER`,
    /// `PGPASSWORD`, `PGDATABASE`, `PGSSLMODE` and the like.
    ///
    /// What `url` says about a locker, such as its `namespace`, is only checked here:
    /// [`Locker::from_url`](lockkit_core::Locker::from_url) applies it, and
    /// [`Locker::new`](lockkit_core::Locker::new) does not.
    ///
    /// # Errors
    ///
    /// - [`Error::Config`] if the URL cannot be used.
    /// - [`Error::Misconfigured`] if the server cannot be used: it is a standby, takes no writes
    ///   otherwise, has no such database, has an unknown layout version, or is behind a pooler that
    ///   pools transactions.
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
        let connections =
            opened.map_err(|failure| Error::connecting(ID, failure.while_connecting()))?;
        let swept = endpoint.clone();
        let inbox = Channel::new(endpoint, format!("lockkit_{}", OwnerId::random()));
        Ok(Self {
            connections,
            subscription: Subscription::new(inbox.clone()),
            inbox,
            call_limit,
            asks: Turnstile::new(MOST_ASKS),
            stays: Stays::default(),
            renewals: Renewals::new(MOST),
            sights: observe.then(Sights::default),
            housekeeping: keep_house(move || sweep(swept.clone(), observe)),
        })
    }

    async fn take(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let limit = self.call_limit.of(claim);
        let takeover = Takeover::of(self.sights.as_ref(), claim);
        if !claim.waits() {
            // Even one that listens is not told: news is for places, and a claim that has one is
            // handed the lock.
            let answer = claims::take(&self.connections, claim, None, takeover, limit).await?;
            return Ok(self.observe(claim, answer));
        }
        let (name, owner) = (claim.name(), claim.owner());
        let joined = self.subscription.join(name, owner);
        // A claim that would not hear of it is handed nothing, unless it waits in order.
        let has_place = claim.is_fair() || joined != Joined::NotYet;
        let inbox = has_place.then_some(self.inbox.name());
        let answer = claims::take(&self.connections, claim, inbox, takeover, limit).await;
        match &answer {
            Ok(Answer::Granted { .. }) => self.subscription.leave(name, owner),
            // A place that this ask did not keep ends sooner than a grant would be vouched for.
            Ok(Answer::Taken { .. }) if !has_place => {
                self.subscription.wait(name, owner, None, joined);
            }
            Ok(Answer::Taken { holder, remaining, .. }) => {
                self.subscription.wait(name, owner, Some(*holder), joined);
                self.subscription.ask_at(name, owner, Some(Instant::now() + *remaining));
            }
            // Nobody releases a claim whose ask was not carried out.
            Err(_) if joined == Joined::Now => self.subscription.leave(name, owner),
            Err(_) => (),
        }
        Ok(match self.observe(claim, answer?) {
            // Its turn comes without it being told.
            Attempt::Taken(taken) if has_place && joined == Joined::NotYet => {
                let remaining = taken.remaining().unwrap_or(ASK_WITHIN);
                Attempt::Taken(taken.free_in(remaining.min(ASK_WITHIN)))
            }
            // It only has to keep its place.
            Attempt::Taken(taken) if has_place => Attempt::Taken(taken.ask_within(claim.ttl())),
            attempt => attempt,
        })
    }

    /// Keeps the place of a claim that is told when its turn comes, together with those of others.
    /// `None` if the claim has to ask: it may have no place, or somebody has to find that the hold
    /// is over.
    async fn stay(&self, claim: &Claim) -> Result<Option<Taken>, DriverError> {
        let limit = self.call_limit.of(claim);
        let mut ends_in = None;
        let keep = async |owners: Vec<OwnerId>| {
            let stay = || claims::stay(&self.connections, claim, &owners, limit);
            let (mut kept, remaining) = self.asks.pass(claim, stay).await?;
            if remaining.is_zero() {
                kept.remove(&claim.owner());
            }
            ends_in = Some(remaining);
            Ok(kept)
        };
        if !self.stays.keep(claim, limit, keep).await? {
            return Ok(None);
        }
        // One of the claims asks at the end of the hold.
        let end = ends_in.map(|ends_in| Instant::now() + ends_in);
        self.subscription.ask_at(claim.name(), claim.owner(), end);
        Ok(Some(ends_in.into_iter().fold(Taken::new(), Taken::free_in)))
    }

    /// Takes note of a hold that has run out. A claim that is refused because of it learns when to
    /// ask again.
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
            (Answer::Taken { remaining, .. }, _) => Attempt::Taken(Taken::new().free_in(remaining)),
        }
    }
}

#[async_trait]
impl Driver for PostgresDriver {
    fn id(&self) -> &'static str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        if claim.is_fair()
            && self.subscription.relies(claim.name(), claim.owner())
            && let Some(taken) = Box::pin(self.stay(claim)).await?
        {
            return Ok(Attempt::Taken(taken));
        }
        self.asks.pass(claim, || self.take(claim)).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let one = |limit| claims::renew(&self.connections, claim, limit);
        let several = async |claims: Vec<Claim>, limit| {
            claims::renew_together(&self.connections, claim, &claims, limit).await
        };
        match self.renewals.renew(claim, self.call_limit.of(claim), one, several).await? {
            true => Ok(Renewal::Held(Vouch::FromRequest)),
            false => Ok(Renewal::Lost),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        if claim.waits() {
            self.subscription.give_up(claim.name(), claim.owner());
        }
        match claims::release(
            &self.connections,
            claim,
            self.sights.is_some(),
            self.call_limit.of(claim),
        )
        .await?
        {
            true => Ok(Release::Freed),
            false => Ok(Release::NotHeld),
        }
    }

    async fn changed(&self, claim: &Claim) -> Change {
        self.subscription.changed(claim.name(), claim.owner()).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        self.housekeeping.abort();
        self.subscription.close();
        self.connections.close().await;
    }
}
