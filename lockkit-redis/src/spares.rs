use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkit_core::driver::Run;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::task::AbortOnDropHandle;

use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::node;
use crate::request::Stage;

/// How many spare connections to one server there are at most.
pub(crate) const MOST: usize = 16;

/// Connections for requests that keep a connection for themselves: one for each that is under way.
/// They are made as they are needed, to one server, and kept.
#[derive(Debug)]
pub(crate) struct Spares {
    permits: Semaphore,
    idle: Mutex<Vec<Spare>>,
}

/// A spare connection, closed when it is dropped.
#[derive(Debug)]
struct Spare {
    connection: MultiplexedConnection,
    running: AbortOnDropHandle<()>,
}

/// A spare connection in use.
#[derive(Debug)]
pub(crate) struct Lent<'a> {
    spares: &'a Spares,
    spare: Spare,
    _permit: SemaphorePermit<'a>,
}

impl Spares {
    pub(crate) fn new() -> Self {
        Self { permits: Semaphore::new(MOST), idle: Mutex::default() }
    }

    /// Waits until one may be used. `stage` is told if that takes a wait.
    pub(crate) async fn permit(&self, stage: &Stage) -> Result<SemaphorePermit<'_>, Failure> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Ok(permit);
        }
        stage.queues();
        self.permits.acquire().await.map_err(|_| Failure::Closed)
    }

    /// A connection that nobody uses; if there is none, one is made to `endpoint`. That fails if it
    /// leads to another run of the server than `run`, the one that is known: for as long as the
    /// connection for other requests is half open, the other run would be taken for the one that
    /// has answered.
    pub(crate) async fn lend<'a>(
        &'a self,
        permit: SemaphorePermit<'a>,
        endpoint: &Endpoint,
        run: Option<&Run>,
    ) -> Result<Lent<'a>, Failure> {
        let spare = loop {
            let idle = self.idle().pop();
            match idle {
                Some(spare) if spare.running.is_finished() => (),
                Some(spare) => break spare,
                None => {
                    let made = Spare::connect(endpoint, run).await;
                    break made.map_err(|it| Failure::NoSpare(it.into()))?;
                }
            }
        };
        Ok(Lent { spares: self, spare, _permit: permit })
    }

    /// Closes those that nobody uses.
    pub(crate) fn clear(&self) {
        self.idle().clear();
    }

    /// Takes in a connection that was made elsewhere.
    #[cfg(test)]
    pub(crate) fn add(&self, connection: MultiplexedConnection, running: AbortOnDropHandle<()>) {
        self.idle().push(Spare { connection, running });
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Spare>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spare {
    async fn connect(endpoint: &Endpoint, run: Option<&Run>) -> Result<Self, Failure> {
        let (mut connection, running) = endpoint.connect().await?;
        let running = AbortOnDropHandle::new(tokio::spawn(running));
        if let Some(run) = run {
            let mut ask = redis::cmd("INFO");
            let info = connection.send_packed_command(ask.arg("server")).await?.extract_error()?;
            if !node::run(info, None).is_ok_and(|other| other.id() == run.id()) {
                return Err(Failure::Restarted);
            }
        }
        Ok(Self { connection, running })
    }
}

impl Lent<'_> {
    pub(crate) fn connection(&mut self) -> &mut MultiplexedConnection {
        &mut self.spare.connection
    }

    /// Leaves it to the next request that needs one. One that is dropped instead is closed, since
    /// an answer may still arrive on it.
    pub(crate) fn give_back(self) {
        let Self { spares, spare, .. } = self;
        spares.idle().push(spare);
    }
}
