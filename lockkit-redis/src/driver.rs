use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, ErrorKind, Grant, Inspect, Node,
    Release, Renewal, Taken, Turnstile, Vouch, pause_among,
};
use lockkit_core::{BackendUrl, Capabilities, Error, FencingToken};
use redis::{FromRedisValue, Value, from_redis_value};

use crate::config::Config;
use crate::dialect::Dialect;
use crate::error::to_who_waits;
use crate::layout::{Inbox, Layout};
use crate::plain;
use crate::replicas::{Acknowledged, Replicas};
use crate::request::Request;
use crate::script::{Invocation, RELEASE, RENEW, TAKE};
use crate::servers::Servers;
use crate::subscription::{Joined, Subscription};
use crate::target::Target;

const ID: &str = "redis";
/// How often one of those who wait for a lock in no order asks without being told to.
const PAUSE: Duration = Duration::from_secs(1);
/// How many claims ask at a time, when many do at once.
const MOST_ASKS: usize = 64;

/// Locks on one Redis server, on the primary that sentinels watch over, or in a cluster.
///
/// It keeps one connection for requests and, once somebody waits, one for news; in a cluster, it
/// keeps these to each member that has something of ours. One more to each sentinel tells of
/// failovers, and up to 16 more to each server wait for replicas where that is wanted. All are made
/// anew when they break; they end with [`close`](Driver::close) or when the driver is dropped.
#[derive(Debug)]
pub struct RedisDriver {
    pub(crate) target: Target,
    pub(crate) servers: Servers,
    subscription: Subscription,
    inbox: Inbox,
    pub(crate) call_limit: CallLimit,
    pub(crate) dialect: Dialect,
    pub(crate) replicas: Option<Replicas>,
    asks: Turnstile,
}

impl RedisDriver {
    /// Connects to one server: `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, `rediss://…` for
    /// TLS, or `redis+unix://[USER:PASSWORD@]/PATH[?db=DATABASE]` for a socket; to the primary that
    /// sentinels name: `redis+sentinel://HOST[,HOST]…/NAME[/DATABASE]`; or to a cluster:
    /// `redis+cluster://HOST[,HOST]…`. Tries once, and fails within 5 seconds.
    ///
    /// What `url` says about a locker, such as its `namespace`, is only checked here:
    /// [`Locker::from_url`](lockkit_core::Locker::from_url) applies it, and
    /// [`Locker::new`](lockkit_core::Locker::new) does not.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the URL cannot be used; [`Error::Misconfigured`] if the server cannot,
    /// such as a replica or one whose certificate is not trusted; [`Error::Denied`] for a wrong
    /// password or a client certificate that the server refuses; and [`Error::Unreachable`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a connection that was begun is closed.
    pub async fn connect(url: &BackendUrl) -> Result<Self, Error> {
        let Config { target, call_limit, dialect, replicas } = Config::from_url(url).await?;
        let servers = Servers::open(target.clone()).await.map_err(|failure| {
            if failure.is_about_the_database() {
                return url.error(failure.to_string());
            }
            Error::connecting(ID, failure.while_connecting())
        })?;
        let subscription = servers.subscription();
        let inbox = Inbox::new();
        let asks = Turnstile::new(MOST_ASKS);
        Ok(Self { target, servers, subscription, inbox, call_limit, dialect, replicas, asks })
    }

    async fn take(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        if self.dialect == Dialect::Plain {
            return plain::try_acquire(self, claim).await;
        }
        let layout = Layout::of(claim.name());
        if !claim.is_to_be_told() {
            return self.ask(claim, &layout).await.map(Into::into);
        }
        let (channel, owner) = (layout.channel(&self.inbox), claim.owner());
        let crowd = (!claim.is_fair()).then(|| claim.name().digest());
        let joined = self.subscription.join(&channel, owner, crowd);
        let mut answer = self.ask(claim, &layout).await;
        match &mut answer {
            Ok(Answer::Granted { .. }) => self.subscription.leave(&channel, owner),
            Ok(Answer::Taken { holder, pause, .. }) => {
                let listening = self.subscription.wait(channel, owner, *holder, crowd, joined);
                *pause = pause_among(*pause, listening);
            }
            // Nobody releases a claim that was not carried out.
            Err(_) if joined == Joined::Now => self.subscription.leave(&channel, owner),
            Err(_) => (),
        }
        answer.map(|answer| match answer.into() {
            Attempt::Taken(taken) if claim.listens() => Attempt::Taken(taken.heard()),
            attempt => attempt,
        })
    }

    async fn ask(&self, claim: &Claim, layout: &Layout) -> Result<Answer, DriverError> {
        let place = match (claim.is_to_be_told(), claim.is_fair()) {
            (_, true) => "order",
            (true, false) => "no order",
            (false, false) => "",
        };
        let (keys, claimant) = (layout.keys(), self.claimant(claim));
        let arguments = [&claimant, &*milliseconds(claim), place];
        let (answer, replicas) = self.call_replicated(claim, TAKE.on(&keys, &arguments)).await?;
        let (granted, token, remaining, waiters): (bool, String, u64, u32) = parse(answer)?;
        let token = token.parse().map_err(unintelligible)?;
        if !granted {
            let remaining = Duration::from_millis(remaining);
            // One waiter is told of a release. Should it be dead, the first that asks finds the
            // lock free: one of them does every second, however many there are.
            let pause = PAUSE.saturating_mul(waiters.max(1));
            return Ok(Answer::Taken { holder: token, remaining, pause });
        }
        match replicas {
            Ok(replicas) => Ok(Answer::Granted { token, replicas }),
            // The hold is left as it is, since the claim asks again: a release from here that came
            // late would end what it is granted then.
            Err(error) if claim.is_to_be_told() && error.kind().is_transient() => Err(error),
            // Nobody asks again.
            Err(error) => {
                let arguments = [&*claimant];
                Err(match self.call(claim, RELEASE.on(&keys, &arguments)).await {
                    Ok(_) => error.without_effect(),
                    Err(_) => DriverError::new(ErrorKind::Unknown, error.into_source()),
                })
            }
        }
    }

    /// Runs a script that writes, and waits for replicas where that is wanted. Returns what the
    /// script says, and how many replicas acknowledged or why they are too few.
    async fn call_replicated(
        &self,
        claim: &Claim,
        invocation: Invocation<'_>,
    ) -> Result<(Value, Result<Option<u32>, DriverError>), DriverError> {
        let Some(replicas) = &self.replicas else {
            return Ok((self.call(claim, invocation).await?, Ok(None)));
        };
        let limit = self.call_limit.of(claim);
        let (wanted, timeout) = (replicas.wanted, replicas.timeout(limit));
        let request = Acknowledged { invocation, wanted, timeout };
        // Twice the timeout, since the server also waits before it is sent a script that it does
        // not know.
        let answers = Box::pin(self.servers.call(&request, limit + 2 * timeout)).await?;
        let (answer, acknowledged) = request.read(answers)?;
        Ok((answer, acknowledged.map(Some)))
    }

    pub(crate) async fn call(
        &self,
        claim: &Claim,
        request: impl Request,
    ) -> Result<Value, DriverError> {
        self.servers.call(&request, self.call_limit.of(claim)).await
    }

    /// The claim as the scripts know it: `OWNER INBOX LABEL`, or `OWNER?INBOX LABEL` for one that
    /// only listens.
    fn claimant(&self, claim: &Claim) -> String {
        let owner = claim.owner().to_string();
        let before_inbox = if claim.listens() { "?" } else { " " };
        [&owner, before_inbox, self.inbox.as_str(), " ", claim.label().as_str()].concat()
    }
}

#[async_trait]
impl Driver for RedisDriver {
    fn id(&self) -> &'static str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        self.dialect.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let answer = self.asks.pass(claim, || self.take(claim)).await;
        match claim.is_to_be_told() {
            true => answer.map_err(to_who_waits),
            false => answer,
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        if self.dialect == Dialect::Plain {
            return plain::renew(self, claim).await;
        }
        let (layout, owner) = (Layout::of(claim.name()), claim.owner().to_string());
        let keys = [layout.lock()];
        let arguments = [&*owner, &milliseconds(claim)];
        let (answer, replicas) = self.call_replicated(claim, RENEW.on(&keys, &arguments)).await?;
        match (parse(answer)?, replicas) {
            (false, _) => Ok(Renewal::Lost),
            (true, Ok(_)) => Ok(Renewal::Held(Vouch::FromRequest)),
            // After a failover, the lease may end as if it had not been renewed.
            (true, Err(error)) => Err(error),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        if self.dialect == Dialect::Plain {
            return plain::release(self, claim).await;
        }
        let layout = Layout::of(claim.name());
        if claim.is_to_be_told() {
            self.subscription.leave(&layout.channel(&self.inbox), claim.owner());
        }
        let claimant = self.claimant(claim);
        match parse(self.call(claim, RELEASE.on(&layout.keys(), &[&claimant])).await?)? {
            true => Ok(Release::Freed),
            false => Ok(Release::NotHeld),
        }
    }

    async fn changed(&self, claim: &Claim) -> Change {
        let channel = Layout::of(claim.name()).channel(&self.inbox);
        let change = self.subscription.changed(&channel, claim.owner()).await;
        match change {
            // No replica was waited for when the lock was handed over. Asking again does that.
            Change::Granted(_) if self.replicas.is_some() => Change::AskAgain,
            change => change,
        }
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    fn node(&self) -> Option<&dyn Node> {
        match self.servers {
            Servers::One(_) => Some(self),
            Servers::Cluster(_) => None,
        }
    }

    async fn close(&self) {
        self.subscription.close();
        self.servers.close();
    }
}

/// What the script [`TAKE`] answers.
enum Answer {
    Granted {
        token: FencingToken,
        replicas: Option<u32>,
    },
    Taken {
        holder: FencingToken,
        remaining: Duration,
        /// How long a waiter in no order may go without asking.
        pause: Duration,
    },
}

impl From<Answer> for Attempt {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Granted { token, replicas } => {
                let grant = Grant::new().token(token);
                Self::Granted(replicas.into_iter().fold(grant, Grant::replicas))
            }
            Answer::Taken { remaining, pause, .. } => {
                Self::Taken(Taken::new().free_in(remaining).ask_within(pause))
            }
        }
    }
}

/// The claim's lease in the server's unit, not shorter than asked for.
pub(crate) fn milliseconds(claim: &Claim) -> String {
    claim.ttl().as_nanos().div_ceil(1_000_000).to_string()
}

pub(crate) fn parse<T: FromRedisValue>(answer: Value) -> Result<T, DriverError> {
    from_redis_value(answer).map_err(unintelligible)
}

/// The script was carried out, so the outcome is not unknown: what answers is not a Redis server.
pub(crate) fn unintelligible(error: impl std::error::Error + Send + Sync + 'static) -> DriverError {
    DriverError::new(ErrorKind::Misconfigured, error)
}
