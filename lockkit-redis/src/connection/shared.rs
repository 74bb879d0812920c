use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::open::Open;
use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::request::Stage;
use crate::spares::Spares;
use crate::target::Target;

/// A call that was sent less than this ago, such as one for a short lease, does not cost others the
/// connection when it gets no answer. Instead, a question is sent after it, which has as long
/// again, but at least [`SHORTEST`].
pub(super) const SILENCE: Duration = Duration::from_millis(200);
/// How long the question after a call in a hurry has at least.
pub(super) const SHORTEST: Duration = Duration::from_millis(50);

/// The connection that all calls go by, and what makes it anew.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) link: watch::Sender<Link>,
    /// Where the last connection led to.
    pub(super) place: watch::Sender<Option<Endpoint>>,
    /// Where the primary is, according to what sentinels last said without being asked.
    said: watch::Sender<Option<Endpoint>>,
    /// A call waits for a connection.
    pub(super) wanted: Notify,
    /// Told when there is no connection any more, or none can be had.
    trouble: Arc<Notify>,
    /// How many connections there have been.
    opened: AtomicU64,
}

#[derive(Debug)]
pub(super) enum Link {
    Up(Arc<Open>),
    /// Why the last attempt failed, if there was one since the last connection.
    Down(Option<Failure>),
    Closed,
}

impl Shared {
    pub(super) fn new(trouble: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self {
            link: watch::Sender::new(Link::Down(None)),
            place: watch::Sender::new(None),
            said: watch::Sender::new(None),
            wanted: Notify::new(),
            trouble,
            opened: AtomicU64::new(0),
        })
    }

    /// The connection, as soon as there is one. `stage` is told if that takes a wait.
    pub(super) async fn up(&self, stage: &Stage) -> Result<Arc<Open>, Failure> {
        if let Link::Up(open) = &*self.link.borrow() {
            return Ok(open.clone());
        }
        let mut link = self.link.subscribe();
        let mut is_news = false;
        loop {
            match &*link.borrow_and_update() {
                Link::Up(open) => {
                    stage.has_waited();
                    return Ok(open.clone());
                }
                Link::Closed => return Err(Failure::Closed),
                // A failure from before this call says little: the cause may be gone.
                Link::Down(Some(failure)) if is_news && failure.is_lasting() => {
                    return Err(failure.clone());
                }
                Link::Down(_) => self.wanted.notify_one(),
            }
            link.changed().await.map_err(|_| Failure::Closed)?;
            is_news = true;
        }
    }

    /// Makes a connection, or notes why there is none.
    pub(super) async fn connect(self: &Arc<Self>, target: &Target) -> Result<(), Failure> {
        let mut said = self.said.subscribe();
        let connecting = async {
            loop {
                let endpoint = target.locate().await?;
                // A server that hung may answer after all, when another has long taken its place.
                tokio::select! {
                    made = endpoint.connect() => return Ok((endpoint, made?)),
                    () = is_elsewhere(&mut said, &endpoint) => (),
                }
            }
        };
        let (endpoint, (connection, running)) = match connecting.await {
            Ok(made) => made,
            Err(failure) => {
                self.set(Link::Down(Some(Failure::clone(&failure))));
                self.trouble.notify_one();
                return Err(failure);
            }
        };
        let id = self.opened.fetch_add(1, Ordering::Relaxed);
        let (up, is_up) = oneshot::channel::<()>();
        let shared = self.clone();
        let running = tokio::spawn(async move {
            running.await;
            // The connection may break before it is there to be dropped.
            _ = is_up.await;
            shared.drop_connection(id);
        });
        // The same address may lead to another server than before.
        self.place.send_replace(Some(endpoint.clone()));
        let open = Arc::new(Open {
            id,
            endpoint,
            connection,
            spares: Spares::new(),
            deposed: target.sentinels().map(|_| watch::Sender::new(false)),
            run: OnceLock::new(),
            is_probed: AtomicBool::new(false),
            _running: AbortOnDropHandle::new(running),
        });
        self.set(Link::Up(open.clone()));
        _ = up.send(());
        // `follow` notes the primary first and then looks at the link: one of the two sees the
        // other.
        let is_left = said.has_changed().is_ok_and(|is_news| is_news)
            && said.borrow().as_ref().is_some_and(|primary| !primary.is_where(&open.endpoint));
        if is_left {
            self.leave(&open);
            self.wanted.notify_one();
        }
        Ok(())
    }

    /// Gives up a connection to a server that is no longer the primary, and what was asked on it.
    fn leave(&self, open: &Open) {
        self.drop_connection(open.id);
        if let Some(deposed) = &open.deposed {
            deposed.send_replace(true);
        }
    }

    /// Gives up a connection on which something went wrong, or finds out whether to. `stage` is that
    /// of the request, and `is_apart` whether it was to have a spare connection.
    pub(super) fn blame(
        self: &Arc<Self>,
        open: &Arc<Open>,
        failure: &Failure,
        stage: &Stage,
        is_apart: bool,
    ) {
        match failure {
            Failure::NoAnswer(limit) => match stage.silence(*limit) {
                silence if silence < SILENCE => self.probe(open, silence.max(SHORTEST)),
                // It was on a spare connection. Others that nobody uses may be as dead.
                _ if is_apart => {
                    open.spares.clear();
                    self.probe(open, SILENCE);
                }
                _ => self.replace(open, failure),
            },
            failure if failure.spoils_the_connection() => self.replace(open, failure),
            // What is wrong with a spare connection may be wrong with that one alone.
            Failure::NoSpare(_) => self.probe(open, SILENCE),
            // A call that did not even get its turn knows nothing of the server.
            Failure::NoConnection { .. } | Failure::NoTurn(_) if stage.is_connecting() => {
                self.probe(open, SILENCE);
            }
            failure if failure.is_end() && is_apart => self.probe(open, SILENCE),
            failure if failure.is_end() => self.replace(open, failure),
            _ => (),
        }
    }

    /// Gives up a connection that is of no use any more.
    fn replace(&self, open: &Open, failure: &Failure) {
        if self.drop_connection(open.id) {
            tracing::warn!(%failure, "replacing the connection to Redis");
        }
    }

    /// Gives up a connection if it does not answer within `limit` either.
    fn probe(self: &Arc<Self>, open: &Arc<Open>, limit: Duration) {
        if open.is_probed.swap(true, Ordering::Relaxed) {
            return;
        }
        let (shared, open) = (self.clone(), open.clone());
        tokio::spawn(async move {
            // A user who may run scripts may ask for the time.
            let question = redis::cmd("TIME");
            let mut connection = open.connection.clone();
            let answer = connection.send_packed_command(&question);
            match timeout(limit, answer).await {
                Ok(Ok(_)) => open.is_probed.store(false, Ordering::Relaxed),
                Ok(Err(error)) => shared.replace(&open, &Failure::of_what_was_sent(error)),
                Err(_) => shared.replace(&open, &Failure::NoAnswer(limit)),
            }
        });
    }

    /// Gives up connection `id`, unless another has taken its place; returns whether it was still
    /// there.
    pub(super) fn drop_connection(&self, id: u64) -> bool {
        self.link.send_if_modified(|link| {
            let is_it = matches!(link, Link::Up(open) if open.id == id);
            if is_it {
                *link = Link::Down(None);
                self.trouble.notify_one();
            }
            is_it
        })
    }

    /// Takes note that, say the sentinels, the primary is there. Connects at once, even if nobody
    /// calls: whoever waits for news follows the connection.
    pub(super) fn follow(&self, primary: &Endpoint) {
        self.said.send_replace(Some(primary.clone()));
        let left = match &*self.link.borrow() {
            Link::Up(open) if open.endpoint.is_where(primary) => return,
            Link::Up(open) => Some(open.clone()),
            Link::Down(_) => None,
            Link::Closed => return,
        };
        if let Some(left) = left {
            tracing::info!(from = %left.endpoint, to = %primary, "the primary has become another");
            self.leave(&left);
        }
        self.wanted.notify_one();
    }

    pub(super) fn set(&self, new: Link) {
        self.link.send_if_modified(|link| {
            let open = !matches!(link, Link::Closed);
            if open {
                *link = new;
            }
            open
        });
    }

    pub(super) fn last_failure(&self) -> Option<Box<Failure>> {
        match &*self.link.borrow() {
            Link::Down(failure) => failure.clone().map(Box::new),
            _ => None,
        }
    }
}

/// Returns when sentinels say that another server than this one is the primary.
async fn is_elsewhere(said: &mut watch::Receiver<Option<Endpoint>>, here: &Endpoint) {
    // The channel cannot close: whoever waits has the other end as well.
    while said.changed().await.is_ok() {
        let primary = said.borrow_and_update();
        if primary.as_ref().is_some_and(|primary| !primary.is_where(here)) {
            return;
        }
    }
    std::future::pending().await
}
