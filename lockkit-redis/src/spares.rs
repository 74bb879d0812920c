use std::sync::{Mutex, PoisonError};

use lockkit_core::driver::Run;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::connection::AbortOnDrop;
use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::node;

/// How many there are at most.
const MOST: usize = 16;

/// Connections for requests that keep the connection for themselves: one for each that is under
/// way. They are made as they are needed, to one server, and kept.
#[derive(Debug)]
pub(crate) struct Spares {
    permits: Semaphore,
    idle: Mutex<Vec<Spare>>,
}

/// One of them, closed when it is dropped.
#[derive(Debug)]
struct Spare {
    connection: MultiplexedConnection,
    running: AbortOnDrop,
}

/// One of them in use.
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

    /// Waits until one may be used.
    pub(crate) async fn permit(&self) -> Result<SemaphorePermit<'_>, Failure> {
        self.permits.acquire().await.map_err(|_| Failure::Closed)
    }

    /// One that nobody uses, made to `endpoint` if there is none. It fails if it leads to another `run`
    /// of the server than the one that is known, which would be taken for the one that has answered
    /// for as long as the connection for other requests is half open.
    pub(crate) async fn lend<'a>(
        &'a self,
        permit: SemaphorePermit<'a>,
        endpoint: &Endpoint,
        run: Option<&Run>,
    ) -> Result<Lent<'a>, Failure> {
        let spare = loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(spare) if spare.running.0.is_finished() => (),
                Some(spare) => break spare,
                None => {
                    let made = Spare::connect(endpoint, run).await;
                    break made.map_err(|it| Failure::NoSpare(it.into()))?;
                }
            }
        };
        Ok(Lent { spares: self, spare, _permit: permit })
    }
}

impl Spare {
    async fn connect(endpoint: &Endpoint, run: Option<&Run>) -> Result<Self, Failure> {
        let (mut connection, running) = endpoint.connect().await?;
        let running = AbortOnDrop(tokio::spawn(running).abort_handle());
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

    /// Leaves it to the next who needs one. One that is dropped instead is closed, since an answer
    /// may still come by it.
    pub(crate) fn give_back(self) {
        let Self { spares, spare, .. } = self;
        spares.idle.lock().unwrap_or_else(PoisonError::into_inner).push(spare);
    }
}
