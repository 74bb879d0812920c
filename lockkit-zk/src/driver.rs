use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, Inspect, Limit, Release, Renewal,
    Turnstile,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Fairness, Liveness, Result};
use tokio::select;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::claims::{Ahead, Claims, Entry, Node, Trace};
use crate::config::{Config, ID};
use crate::error::Failure;
use crate::layout::Layout;
use crate::queue::{self, Request, grant};
use crate::room::Watcher;
use crate::session::{Session, is_same};
use crate::sessions::{Event, Sessions};
use crate::watch::{News, PAUSE, Watch};

/// What the ZooKeeper driver promises.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Session)
    .fairness(Fairness::Fifo)
    .fencing()
    .notification()
    .inspection()
    .ttl(Duration::from_millis(500), Capabilities::MAX_TTL);

/// How long a hold is not watched at first: most end before, and are spared a request and its
/// event.
const YOUNG: Duration = Duration::from_millis(50);
/// How many ask at a time when many ask at once: these share the listing of the nodes, and the
/// others take less room.
const MOST_ASKS: usize = 32;

/// Locks in ZooKeeper.
///
/// The driver has one session, which all its locks share and which it keeps alive; when that
/// session ends, another one is begun. The session ends with [`close`](Driver::close) or when the
/// driver is dropped.
#[derive(Debug)]
pub struct ZooKeeperDriver {
    pub(crate) shared: Arc<Shared>,
    asks: Turnstile,
    keeper: AbortOnDropHandle<()>,
}

/// What the driver and its task have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) sessions: Sessions,
    pub(crate) claims: Claims,
    pub(crate) layout: Layout,
    pub(crate) call_limit: CallLimit,
}

impl ZooKeeperDriver {
    /// Connects to `zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/PATH]`. Does
    /// not wait for a single server that is not there, tries several again and again, and fails within
    /// 5 seconds.
    ///
    /// The locks are below `/PATH`, which is made when it is needed. A user is one of the scheme
    /// `digest`; nobody else can then use the locks. The session is to last for the `ttl` of the
    /// URL; the servers have bounds for it. It belongs to the runtime in which this is called, and is
    /// given up, as if the driver were closed, when that ends.
    ///
    /// What `url` says about a locker, such as its `namespace`, is only checked here:
    /// [`Locker::from_url`](lockkit_core::Locker::from_url) applies it, and
    /// [`Locker::new`](lockkit_core::Locker::new) does not.
    ///
    /// # Errors
    ///
    /// - [`Error::Config`] if the URL cannot be used.
    /// - [`Error::Misconfigured`] if the servers' sessions are too short, or if the tick of the servers has
    ///   to be given and is not.
    /// - [`Error::Denied`] for credentials that are refused.
    /// - [`Error::Unreachable`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a session that has begun is ended, or ends by itself.
    pub async fn connect(url: &BackendUrl) -> Result<Self> {
        let Config { endpoint, layout, call_limit } = Config::from_url(url).await?;
        let opened = Sessions::open(endpoint).await;
        let sessions = opened.map_err(|failure| Error::connecting(ID, failure.without_effect()))?;
        let shared = Arc::new(Shared { sessions, claims: Claims::default(), layout, call_limit });
        let keeper = tokio::spawn(keep(shared.clone()));
        let asks = Turnstile::new(MOST_ASKS);
        Ok(Self { shared, asks, keeper: AbortOnDropHandle::new(keeper) })
    }
}

impl Shared {
    /// The limit of a request about the claim.
    fn limit(&self, claim: &Claim) -> Limit {
        Limit::new(self.call_limit.of(claim))
    }

    async fn request<'a>(&'a self, claim: &'a Claim) -> Result<Request<'a>, DriverError> {
        let limit = self.limit(claim);
        let request = Request::new(&self.sessions, &self.claims, &self.layout, claim, limit).await;
        request.map_err(Failure::without_effect)
    }

    /// Notes that a claim is about to ask, and forgets what it had in a session that has ended. The
    /// servers end the session once nobody has it any more, and may have no room for the connection
    /// of another one before.
    fn is_about_to_ask(&self, claim: &Claim) {
        let Some(entry) = self.claims.find(claim.owner()) else { return };
        // Even while the request stands in line or cannot be sent: a claim that asks has not given
        // up. If it is being removed as abandoned, that is not to take away what is asked for now.
        entry.asks();
        if self.has_ended(&entry.trace()) {
            self.claims.remove(claim.owner());
        }
    }

    async fn take(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let request = self.request(claim).await?;
        let entry = self.claims.enter(claim);
        let answer = request.ask(&entry).await;
        if entry.is_nothing() {
            self.claims.remove(claim.owner());
        }
        answer
    }

    /// Whether the session of the node that a claim has, or may have, has ended.
    fn has_ended(&self, trace: &Trace) -> bool {
        match trace {
            // Then it is about whichever session there was.
            Trace::Nothing => !self.sessions.is_any(),
            Trace::Doubt(session) => session.has_ended(),
            Trace::Place(node, _) | Trace::Hold(node) => node.session.has_ended(),
        }
    }

    /// Waits for the end of the node before that of a waiting claim. Waiters are many, so what is
    /// known of the claim is looked up again afterwards rather than kept.
    async fn turn(&self, entry: &Entry) -> Change {
        while let Some(ahead) = entry.waits_behind() {
            ahead.moved().await;
        }
        let Some((session, Ahead { path, rank })) = entry.place() else {
            return std::future::pending().await;
        };
        let mut watch = entry.watch.lock().await;
        let told = async |limit| match Box::pin(timeout(limit, rank.gone())).await {
            _ if session.has_ended() => News::Ended,
            Ok(()) => News::Gone,
            Err(_) => News::Blind,
        };
        let mut news = News::Blind;
        if rank.is_ours() && watch.is_none() {
            // Where a crowd waits, most holds are over before that time.
            news = told(YOUNG).await;
        }
        if news == News::Blind {
            news = match self.watch(&mut watch, entry, &session, &path, Watcher::Waiter) {
                // The watch also hears of the session's end.
                Some(watch) => watch.news().await,
                None => told(PAUSE).await,
            };
        }
        *watch = None;
        let Trace::Place(node, ahead) = entry.trace() else { return Change::AskAgain };
        match (news, grant(&node), ahead.filter(|ahead| ahead.path == path)) {
            (News::Ended, ..) => Change::Lost,
            (News::Gone, Ok(grant), Some(ahead)) if ahead.rank.is_first() => {
                match entry.advance(node, self.sessions.losses()) {
                    true => Change::Granted(grant),
                    false => Change::AskAgain,
                }
            }
            _ => {
                // So that it is said once, not at every call.
                entry.moves(node);
                Change::AskAgain
            }
        }
    }

    /// Waits for the end of what a claim holds, or for a reason to doubt it.
    async fn doubt(&self, entry: &Entry, node: Node) -> Change {
        let mut watch = entry.watch.lock().await;
        let session = node.session.clone();
        select! {
            biased;
            event = self.sessions.event(&session, entry.losses()) => match event {
                Event::Ended => Change::Lost,
                Event::Disconnected(losses) => {
                    *watch = None;
                    entry.set_losses(losses);
                    Change::AskAgain
                }
            },
            news = async {
                if !watch.as_ref().is_some_and(|on| on.is_on(&session, &node.path)) {
                    // One on the node that it stood behind would take up room.
                    *watch = None;
                    sleep(YOUNG).await;
                    self.date(entry, &node).await;
                }
                match self.watch(&mut watch, entry, &session, &node.path, Watcher::Holder) {
                    Some(watch) => watch.news().await,
                    // Each renewal looks at the node instead.
                    None => std::future::pending().await,
                }
            } => {
                *watch = None;
                match news {
                    News::Gone | News::Ended => Change::Lost,
                    News::Blind => Change::AskAgain,
                }
            }
        }
    }

    /// Whether a watch says that the node of a hold stands, so that the servers need not be asked:
    /// the heartbeats of the session then keep all its holds.
    async fn sees(&self, entry: &Entry, node: &Node) -> bool {
        if self.sessions.losses() != entry.losses() {
            return false;
        }
        // If the watch is in use, its news is being waited for, and is told there.
        let Ok(mut watch) = entry.watch.try_lock() else { return false };
        let Some(on_node) = watch.as_mut().filter(|on| on.is_on(&node.session, &node.path)) else {
            return false;
        };
        let sees = on_node.sees().await;
        if !sees {
            *watch = None;
        }
        sees
    }

    /// Writes to the node of a hold that was waited for. The servers keep the time of the write.
    async fn date(&self, entry: &Entry, node: &Node) {
        if !entry.is_to_be_dated() {
            return;
        }
        let (limit, path) = (self.limit(entry.claim()), &node.path);
        let label = entry.claim().label().as_str().as_bytes();
        let dating = node.session.send(|| node.session.client().set_data(path, label, None));
        // The time is for people; what matters is found out by the watch.
        if let Err(failure) = node.session.write(limit, dating).await {
            tracing::debug!(%failure, "the time of a grant was not written down");
        }
    }

    /// The watch on a node: a new one unless there is one; none if there is no room for it.
    fn watch<'a>(
        &self,
        watch: &'a mut Option<Watch>,
        entry: &Entry,
        session: &Arc<Session>,
        path: &Arc<str>,
        watcher: Watcher,
    ) -> Option<&'a mut Watch> {
        if !watch.as_ref().is_some_and(|watch| watch.is_on(session, path)) {
            // Dropped first, to give back its room.
            *watch = None;
            let limit = self.limit(entry.claim()).length();
            *watch = Watch::new(session.clone(), path.clone(), limit, watcher);
        }
        watch.as_mut()
    }

    /// Removes what is left of claims whose keepers are gone.
    async fn remove_abandoned(&self) {
        for entry in self.claims.abandoned() {
            // Without a connection nobody can ask, and the client library would send the removal
            // with the next one.
            let has_ended = self.has_ended(&entry.trace());
            if !has_ended && self.sessions.connected(self.limit(entry.claim())).await.is_err() {
                return;
            }
            let Some(left) = entry.abandon() else { continue };
            match self.remove_left(&entry, left).await {
                Ok(()) => self.claims.forget(&entry),
                // Next time, then.
                Err(failure) => tracing::debug!(%failure, "what was left was not removed"),
            }
        }
    }

    async fn remove_left(&self, entry: &Entry, left: Trace) -> Result<(), DriverError> {
        match left {
            // With its session it goes by itself, once nobody has that any more.
            left if self.has_ended(&left) => Ok(()),
            Trace::Place(node, _) | Trace::Hold(node) => {
                let removed = queue::remove(&node, self.limit(entry.claim())).await;
                removed.map_err(Failure::of_a_request)
            }
            Trace::Nothing | Trace::Doubt(_) => {
                let request = self.request(entry.claim()).await?;
                request.sweep(|| entry.is_given_up()).await.map(|_| ())
            }
        }
    }
}

#[async_trait]
impl Driver for ZooKeeperDriver {
    fn id(&self) -> &'static str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.shared.is_about_to_ask(claim);
        self.asks.pass(claim, || self.shared.take(claim)).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let shared = &self.shared;
        let Some(entry) = shared.claims.find(claim.owner()) else { return Ok(Renewal::Lost) };
        let Trace::Hold(node) = entry.trace() else { return Ok(Renewal::Lost) };
        let limit = shared.limit(claim);
        let session = match shared.sessions.connected(limit).await {
            _ if node.session.has_ended() => return Ok(Renewal::Lost),
            Err(failure) => return Err(failure.without_effect()),
            Ok(session) if is_same(&session, &node.session) => session,
            Ok(_) => return Ok(Renewal::Lost),
        };
        // Taken before the look at the watch, which speaks only for what was answered before it.
        let vouch = session.vouch();
        let held = |vouch| match entry.renews(&node) {
            true => Renewal::Held(vouch),
            // It was given up meanwhile.
            false => Renewal::Lost,
        };
        if shared.sees(&entry, &node).await {
            return Ok(held(vouch));
        }
        // The session stands, but somebody may have broken the hold.
        match queue::stands(&session, &node, limit).await {
            Ok(true) => Ok(held(session.vouch())),
            Ok(false) => Ok(Renewal::Lost),
            Err(failure) => Err(failure.of_a_request()),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let entry = self.shared.claims.find(claim.owner());
        let request = match self.shared.request(claim).await {
            Ok(request) => request,
            // With the session, all that the claim had is gone or goes by itself: no answer is
            // needed.
            Err(_)
                if self.shared.has_ended(&entry.map_or(Trace::Nothing, |entry| entry.trace())) =>
            {
                self.shared.claims.remove(claim.owner());
                return Ok(Release::NotHeld);
            }
            Err(error) => return Err(error),
        };
        let answer = request.release(entry.as_deref()).await;
        if answer.is_ok() {
            self.shared.claims.remove(claim.owner());
        }
        answer
    }

    async fn changed(&self, claim: &Claim) -> Change {
        let Some(entry) = self.shared.claims.find(claim.owner()) else {
            return match self.shared.sessions.is_closed() {
                true => Change::Lost,
                false => std::future::pending().await,
            };
        };
        // Boxed, since waiters are many and this future is large.
        match entry.hold() {
            Some(node) => Box::pin(self.shared.doubt(&entry, node)).await,
            None => self.shared.turn(&entry).await,
        }
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        let session = self.shared.sessions.close();
        self.keeper.abort();
        // Holds, which may be those of another locker, keep the session until their holders, who
        // are told, have let go: whoever is next must not find them believing.
        self.shared.claims.keep_holds();
        let Some(mut session) = session else { return };
        if !session.is_over().await {
            self.shared.claims.clear();
            if !session.is_over().await {
                tracing::debug!("it is not known whether the session has ended");
            }
        }
    }
}

/// Keeps the session alive, and removes what is left of claims that nobody keeps any more.
async fn keep(shared: Arc<Shared>) {
    let _until_dropped = Kept(&shared);
    // Leases may be shorter than the session.
    let period = (shared.sessions.endpoint().wish() / 4).min(Duration::from_secs(1));
    let removing = async {
        loop {
            sleep(period).await;
            shared.remove_abandoned().await;
        }
    };
    let ended = || shared.claims.move_on();
    tokio::join!(shared.sessions.keep(shared.layout.top(), ended), removing);
}

/// Part of the task that keeps the session: whatever ends the task, the end of its runtime included,
/// ends the session, whose connection belongs to the same runtime.
struct Kept<'a>(&'a Shared);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.0.sessions.close();
        self.0.claims.move_on();
    }
}
