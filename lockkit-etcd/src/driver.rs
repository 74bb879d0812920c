use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, GetOptions};
use lockkit_core::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, Inspect, Limit, Release, Renewal,
    Turnstile,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Fairness, Liveness, Result};
use tokio::time::{Instant, sleep};

use crate::claims::{Begun, Claims};
use crate::config::{Config, ID, ID_WITH_TLS};
use crate::error::Failure;
use crate::layout::Dialect;
use crate::members::Members;

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// How long to wait before all members are asked once more.
const PAUSE: Duration = Duration::from_millis(100);
/// How many claims take places at a time, when many do at once: each takes two buffers of 8 KiB.
const MOST_ENTRIES: usize = 32;
/// How many claims that have a place ask at a time: they share their requests.
const MOST_ASKS: usize = 64;

/// What the etcd driver promises.
///
/// Leases last for whole seconds, and for no less than the cluster allows: half as long again as it
/// takes to choose a leader, which makes 2 seconds unless it is set otherwise.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .fairness(Fairness::Fifo)
    .fencing()
    .notification()
    .inspection()
    .ttl(Duration::from_secs(1), Capabilities::MAX_TTL);

/// Locks in an etcd cluster.
///
/// It keeps one connection to the member in use, and goes to another member when that one fails.
/// Requests, a few streams for keepalives and one for news go over the connection. All of these end
/// with [`close`](Driver::close) or when the driver is dropped.
#[derive(Debug)]
pub struct EtcdDriver {
    pub(crate) members: Arc<Members>,
    pub(crate) claims: Claims,
    pub(crate) dialect: Dialect,
    pub(crate) call_limit: CallLimit,
    entries: Turnstile,
    asks: Turnstile,
}

impl EtcdDriver {
    /// Connects to `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]`, or `etcds:` for TLS.
    /// Tries one member after another, again and again if there are several: now and then they have
    /// a leader to choose, and turn everybody away meanwhile. Fails within 5 seconds.
    ///
    /// What `url` says about a locker, such as its `namespace`, is only checked here:
    /// [`Locker::from_url`](lockkit_core::Locker::from_url) applies it, and
    /// [`Locker::new`](lockkit_core::Locker::new) does not.
    ///
    /// # Errors
    ///
    /// - [`Error::Config`] if the URL cannot be used.
    /// - [`Error::Misconfigured`] if the cluster cannot be used: its certificate is not trusted,
    ///   or its members are of different clusters.
    /// - [`Error::Denied`] for a wrong password or a missing right.
    /// - [`Error::Unreachable`], also where only one of both ends speaks TLS, as the message says.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: connections that were begun are closed.
    pub async fn connect(url: &BackendUrl) -> Result<Self> {
        let Config { members, call_limit, dialect, namespace } = Config::from_url(url).await?;
        let prefix = dialect.prefix_of(&namespace);
        let anything = |client: Arc<Client>| {
            let options = GetOptions::new().with_prefix().with_limit(1).with_keys_only();
            let prefix = prefix.clone();
            async move { client.kv_client().get(prefix, Some(options)).await }
        };
        let end = Instant::now() + CONNECT_LIMIT;
        let answer = loop {
            let left = end.saturating_duration_since(Instant::now());
            let answer = members.call(Limit::new(left), &anything).await.outcome;
            let may_pass = |failure: &Failure| members.len() > 1 && failure.may_pass();
            if !answer.as_ref().is_err_and(may_pass) || Instant::now() + PAUSE >= end {
                break answer;
            }
            sleep(PAUSE).await;
        };
        answer
            .and_then(|answer| members.check(answer.header()))
            .map_err(|failure| failure.explained(url.scheme() == ID_WITH_TLS))
            .map_err(|failure| Error::connecting(ID, failure.while_connecting()))?;
        let members = Arc::new(members);
        let claims = Claims::new(Arc::clone(&members), dialect);
        let [entries, asks] = [MOST_ENTRIES, MOST_ASKS].map(Turnstile::new);
        Ok(Self { members, claims, dialect, call_limit, entries, asks })
    }

    fn limit(&self, claim: &Claim) -> Limit {
        Limit::new(self.call_limit.of(claim))
    }
}

#[async_trait]
impl Driver for EtcdDriver {
    fn id(&self) -> &'static str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        if self.claims.has_place(claim.owner()) {
            return self.asks.pass(claim, || self.claims.take(claim, self.limit(claim))).await;
        }
        match self.entries.pass(claim, || self.claims.begin(claim, self.limit(claim))).await? {
            Begun::Answered(attempt) => Ok(attempt),
            // The more look together, the fewer looks it takes.
            Begun::Arrived(arrival) => Box::pin(self.claims.find_place(claim, arrival)).await,
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.claims.renew(claim, self.limit(claim)).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.claims.release(claim, self.limit(claim)).await
    }

    async fn changed(&self, claim: &Claim) -> Change {
        self.claims.changed(claim, self.call_limit.of(claim)).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        self.claims.close().await;
        self.members.close();
    }
}
