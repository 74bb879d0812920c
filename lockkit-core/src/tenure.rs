//! The state of one hold, shared by its guards and its keeper.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::FencingToken;
use crate::clock::Instant;
use crate::driver::{Claim, Grant, Vouch};
use crate::engine::Engine;

#[derive(Debug)]
pub(crate) struct Tenure {
    pub(crate) engine: Arc<Engine>,
    pub(crate) claim: Claim,
    pub(crate) token: Option<FencingToken>,
    /// When a request left that was never answered and may take the lock yet.
    pub(crate) in_doubt: Option<Instant>,
    /// When the longest hold is over.
    latest: Option<Instant>,
    standing: watch::Sender<Standing>,
}

/// How a hold stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) phase: Phase,
    /// What the hold is good for.
    pub(crate) vouched: Vouched,
    /// The lease to wish for at the next renewal.
    pub(crate) wished: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Held,
    /// For good: what is lost never counts as held again.
    Lost,
    /// Its last guard was dropped: the keeper releases.
    Dropped,
    /// Its last guard was released: the caller does.
    Released,
}

/// A [`Vouch`] on the engine's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vouched {
    pub(crate) since: Instant,
    /// How long the hold lasts between renewals, as granted.
    pub(crate) ttl: Duration,
    /// `None` for as long as the process lives.
    pub(crate) until: Option<Instant>,
}

impl Vouched {
    /// What `vouch`, the answer to a request sent at `asked`, is worth: a lease less what two
    /// clocks may drift apart, 1 % and 2 ms.
    pub(crate) fn new(vouch: Vouch, asked: Instant, wished: Duration) -> Self {
        let lease = |since: Instant, ttl: Duration| {
            let margin = ttl / 100 + Duration::from_millis(2);
            Self { since, ttl, until: Some(since + ttl.saturating_sub(margin)) }
        };
        match vouch {
            Vouch::FromRequest => lease(asked, wished),
            Vouch::Lease { since, ttl } => lease(since, ttl),
            Vouch::WhileAlive => Self { since: asked, ttl: wished, until: None },
        }
    }

    pub(crate) fn is_good_at(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl Tenure {
    pub(crate) fn new(
        engine: Arc<Engine>,
        claim: Claim,
        grant: &Grant,
        mut vouched: Vouched,
        in_doubt: Option<Instant>,
        max_hold: Option<Duration>,
    ) -> Self {
        let latest = max_hold.map(|longest| engine.clock.now() + longest);
        vouched.until = earlier(vouched.until, latest);
        let standing = Standing { phase: Phase::Held, vouched, wished: claim.ttl() };
        let (standing, token) = (watch::Sender::new(standing), grant.fencing_token());
        Self { engine, claim, token, in_doubt, latest, standing }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.standing().phase == Phase::Held
    }

    /// Looks at the clock, so that a stalled runtime reads as lost, not as held.
    pub(crate) fn standing(&self) -> Standing {
        let standing = *self.standing.borrow();
        let expired = !standing.vouched.is_good_at(self.engine.clock.now());
        if standing.phase == Phase::Held && expired {
            self.lose();
            return *self.standing.borrow();
        }
        standing
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Lengthens the hold, unless it has ended: a vouch that comes too late revives nothing.
    pub(crate) fn vouch(&self, vouched: Vouched, wished: Duration) {
        self.standing.send_if_modified(|standing| {
            if standing.phase != Phase::Held {
                return false;
            }
            if standing.vouched.is_good_at(self.engine.clock.now()) {
                let until = match (standing.vouched.until, vouched.until) {
                    (Some(old), Some(new)) => Some(old.max(new)),
                    _ => vouched.until,
                };
                let until = earlier(until, self.latest);
                standing.vouched = Vouched { until, ..vouched };
                standing.wished = wished;
            } else {
                standing.phase = Phase::Lost;
            }
            true
        });
    }

    pub(crate) fn lose(&self) {
        if self.end(Phase::Lost) {
            let claim = &self.claim;
            tracing::warn!(lock = %claim.name(), owner = %claim.owner(), "lost");
        }
    }

    /// Ends the hold and says whether it was held until now.
    pub(crate) fn end(&self, how: Phase) -> bool {
        self.standing.send_if_modified(|standing| {
            let held = standing.phase == Phase::Held;
            if held {
                standing.phase = how;
            }
            held
        })
    }

    /// Returns when the hold has ended, however that came about.
    pub(crate) async fn ended(&self) {
        let mut news = self.watch();
        loop {
            let standing = *news.borrow_and_update();
            if standing.phase != Phase::Held || !self.is_held() {
                return;
            }
            let expiry = async {
                match standing.vouched.until {
                    Some(until) => self.engine.clock.sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = expiry => (),
                // The sender lives as long as `self`, so this is news.
                _ = news.changed() => (),
            }
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
