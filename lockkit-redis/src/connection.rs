use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkit_core::driver::{DriverError, Run};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::node;

/// The connection for requests: one at a time, shared by all calls.
///
/// It is replaced when it breaks, when a call on it gets no answer in time, and when the server
/// turns out to be a replica. Calls that are under way on a replaced connection may still be
/// answered there. It is made when a call needs it, by a task of its own, so that a call that
/// gives up waiting does not undo what the next one waits for.
#[derive(Debug)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    supervisor: AbortOnDrop,
}

impl Connection {
    /// Connects for the first time, with one attempt.
    pub(crate) async fn open(endpoint: Endpoint) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            link: watch::Sender::new(Link::Down(None)),
            wanted: Notify::new(),
            opened: AtomicU64::new(0),
        });
        shared.connect(&endpoint).await?;
        let supervisor = tokio::spawn(supervise(endpoint, shared.clone())).abort_handle();
        Ok(Self { shared, supervisor: AbortOnDrop(supervisor) })
    }

    /// Sends a request and waits for its answer, and for a connection before that, for `limit` in
    /// all.
    pub(crate) async fn call(
        &self,
        request: impl Request,
        limit: Duration,
    ) -> Result<Value, DriverError> {
        let mut used = None;
        let calling = async {
            let Open { connection, .. } = &**used.insert(self.shared.up().await?);
            Ok(request.send(&mut connection.clone()).await?)
        };
        let failure = match timeout(limit, calling).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => failure,
            Err(_) if used.is_some() => Failure::NoAnswer(limit),
            Err(_) => Failure::NoConnection { limit, last: self.shared.last_failure() },
        };
        if let Some(open) = used
            && (matches!(failure, Failure::NoAnswer(_)) || failure.spoils_the_connection())
        {
            tracing::warn!(%failure, "replacing the connection to Redis");
            self.shared.drop_connection(open.id);
        }
        Err(failure.of_a_call())
    }

    /// Which run of the server the calls go to. Asked once a connection.
    pub(crate) async fn run(&self, limit: Duration) -> Result<Run, DriverError> {
        let asking = async {
            let open = self.shared.up().await?;
            if let Some(run) = open.run.get() {
                return Ok::<_, Failure>(Ok(run.clone()));
            }
            let mut connection = open.connection.clone();
            let info = redis::cmd("INFO").send(&mut connection).await?;
            // A user may lack the right to ask, or the server the command.
            let mut ask_fsync = redis::cmd("CONFIG");
            ask_fsync.arg("GET").arg("appendfsync");
            let run = node::run(info, ask_fsync.send(&mut connection).await.ok());
            if let Ok(run) = &run {
                _ = open.run.set(run.clone());
            }
            Ok(run)
        };
        match timeout(limit, asking).await {
            Ok(Ok(run)) => run,
            Ok(Err(failure)) => Err(failure.while_connecting()),
            Err(_) => Err(Failure::NoAnswer(limit).while_connecting()),
        }
    }

    /// Closes the connection. Calls fail from now on.
    pub(crate) fn close(&self) {
        self.supervisor.0.abort();
        self.shared.link.send_replace(Link::Closed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

/// What can be asked of a server.
pub(crate) trait Request: Send + Sync {
    /// Asks, and returns the answer. An error of the server is an error.
    fn send(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> impl Future<Output = RedisResult<Value>> + Send;
}

impl Request for Cmd {
    async fn send(&self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        connection.send_packed_command(self).await?.extract_error()
    }
}

#[derive(Debug)]
struct Shared {
    link: watch::Sender<Link>,
    /// A call waits for a connection.
    wanted: Notify,
    /// How many connections there have been.
    opened: AtomicU64,
}

#[derive(Debug)]
enum Link {
    Up(Arc<Open>),
    /// Why the last attempt failed, if there was one since the last connection.
    Down(Option<Failure>),
    Closed,
}

/// A connection that works as far as we know. It is closed when the last call on it has ended
/// and it was replaced.
#[derive(Debug)]
struct Open {
    id: u64,
    connection: MultiplexedConnection,
    /// Which run of the server it leads to, once somebody has asked.
    run: OnceLock<Run>,
    _running: AbortOnDrop,
}

impl Shared {
    /// The connection, as soon as there is one.
    async fn up(&self) -> Result<Arc<Open>, Failure> {
        if let Link::Up(open) = &*self.link.borrow() {
            return Ok(open.clone());
        }
        let mut link = self.link.subscribe();
        let mut is_news = false;
        loop {
            match &*link.borrow_and_update() {
                Link::Up(open) => return Ok(open.clone()),
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
    async fn connect(self: &Arc<Self>, endpoint: &Endpoint) -> Result<(), Failure> {
        let (connection, running) = match endpoint.connect().await {
            Ok(made) => made,
            Err(failure) => {
                self.set(Link::Down(Some(failure.clone())));
                return Err(failure);
            }
        };
        let id = self.opened.fetch_add(1, Ordering::Relaxed);
        let shared = self.clone();
        let running = tokio::spawn(async move {
            running.await;
            shared.drop_connection(id);
        });
        let running = AbortOnDrop(running.abort_handle());
        self.set(Link::Up(Arc::new(Open {
            id,
            connection,
            run: OnceLock::new(),
            _running: running,
        })));
        Ok(())
    }

    /// Gives up connection `id`, unless another has taken its place.
    fn drop_connection(&self, id: u64) {
        self.link.send_if_modified(|link| {
            let is_it = matches!(link, Link::Up(open) if open.id == id);
            if is_it {
                *link = Link::Down(None);
            }
            is_it
        });
    }

    fn set(&self, new: Link) {
        self.link.send_if_modified(|link| {
            let open = !matches!(link, Link::Closed);
            if open {
                *link = new;
            }
            open
        });
    }

    fn last_failure(&self) -> Option<Box<Failure>> {
        match &*self.link.borrow() {
            Link::Down(failure) => failure.clone().map(Box::new),
            _ => None,
        }
    }
}

/// Connects whenever a call needs it. Nothing happens while nobody calls.
async fn supervise(endpoint: Endpoint, shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    loop {
        shared.wanted.notified().await;
        // A wish that the last connection has fulfilled already.
        if matches!(&*shared.link.borrow(), Link::Up(_)) {
            continue;
        }
        backoff.pause().await;
        match shared.connect(&endpoint).await {
            Ok(()) => tracing::info!(%endpoint, "connected to Redis again"),
            Err(failure) => tracing::debug!(%endpoint, %failure, "could not connect to Redis"),
        }
    }
}

/// A task that ends with its owner.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
