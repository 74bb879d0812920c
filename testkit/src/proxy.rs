mod direction;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use self::direction::relay;
pub use self::direction::{Direction, Hold};
use crate::port::free_port;

/// A TCP proxy on a loopback port, by which a test makes the network fail.
///
/// It forwards until told otherwise. What happens to bytes is set per direction, with
/// [`Proxy::requests`] and [`Proxy::answers`], for all connections, from the next byte on. The end
/// of a connection is passed on in its place among the bytes, so that a request that is delayed or
/// held still lands after its client has gone. Needs real time, not a paused clock.
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    /// The task that accepts connections; `None` while they are refused.
    listening: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Starts a proxy in front of `upstream`. It ends when it is dropped.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start(upstream: SocketAddr) -> Proxy {
        const PORTS_TO_TRY: usize = 10;
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            requests: Direction::default(),
            answers: Direction::default(),
            connections: watch::Sender::new(0),
            open: Mutex::new(Vec::new()),
        });
        let mut tried = 0;
        loop {
            tried += 1;
            let port = free_port().expect("a free port for the proxy");
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            match listen(addr, &shared).await {
                Ok(task) => {
                    let listening = tokio::sync::Mutex::new(Some(task));
                    return Proxy { addr, shared, listening };
                }
                Err(error) if tried == PORTS_TO_TRY => panic!("no port for the proxy: {error}"),
                Err(_) => continue,
            }
        }
    }

    /// Where clients are to connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The way from the clients to the server.
    pub fn requests(&self) -> &Direction {
        &self.shared.requests
    }

    /// The way from the server to the clients.
    pub fn answers(&self) -> &Direction {
        &self.shared.answers
    }

    /// Cuts the present connections, on both sides, with RST. What was delayed or held is lost. New
    /// ones are accepted.
    ///
    /// When this returns, they are cut.
    pub async fn reset(&self) {
        self.end_all(End::Reset).await;
    }

    /// Closes the present connections, on both sides, with FIN. What was delayed or held is lost.
    /// New ones are accepted.
    ///
    /// When this returns, they are closed.
    pub async fn close(&self) {
        self.end_all(End::Close).await;
    }

    /// Refuses new connections: the port is closed. The present ones stay.
    ///
    /// When this returns, the port is closed.
    pub async fn refuse(&self) {
        if let Some(task) = self.listening.lock().await.take() {
            task.abort();
            // It was cancelled, which is what an error would say.
            let _ = task.await;
        }
    }

    /// Accepts new connections again.
    ///
    /// # Panics
    /// If the port has been taken by another process.
    pub async fn accept(&self) {
        let mut listening = self.listening.lock().await;
        if listening.is_none() {
            *listening = Some(listen(self.addr, &self.shared).await.expect("the proxy's own port"));
        }
    }

    /// Sends new connections to another server. The present ones stay: [`Proxy::reset`] ends them.
    pub fn switch_upstream(&self, upstream: SocketAddr) {
        *lock(&self.shared.upstream) = upstream;
    }

    /// How many connections have been accepted so far.
    pub fn connections(&self) -> u64 {
        *self.shared.connections.borrow()
    }

    /// Waits until that many connections have been accepted in all.
    pub async fn connections_reach(&self, count: u64) {
        reach(&self.shared.connections, count).await;
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        lock(&self.shared.open).iter().filter(|open| !open.task.is_finished()).count()
    }

    async fn end_all(&self, how: End) {
        let ended: Vec<_> = lock(&self.shared.open)
            .drain(..)
            .map(|open| {
                // A connection that does not listen has ended already.
                let _ = open.end.send(how);
                open.task
            })
            .collect();
        for task in ended {
            task.await.expect("a connection's task does not panic");
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(task) = self.listening.get_mut() {
            task.abort();
        }
        for open in lock(&self.shared.open).drain(..) {
            open.task.abort();
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("addr", &self.addr)
            .field("upstream", &*lock(&self.shared.upstream))
            .finish_non_exhaustive()
    }
}

struct Shared {
    upstream: Mutex<SocketAddr>,
    requests: Direction,
    answers: Direction,
    connections: watch::Sender<u64>,
    open: Mutex<Vec<Connection>>,
}

struct Connection {
    end: oneshot::Sender<End>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy)]
enum End {
    Close,
    Reset,
}

async fn listen(addr: SocketAddr, shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    const PAUSE: Duration = Duration::from_millis(10);
    let listener = TcpListener::bind(addr).await?;
    let shared = Arc::clone(shared);
    Ok(tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((client, _)) => open(client, &shared),
                // The client has gone already, or there are too many open files for now.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }))
}

fn open(client: TcpStream, shared: &Arc<Shared>) {
    let (end, ended) = oneshot::channel();
    let mut open = lock(&shared.open);
    open.retain(|connection| !connection.task.is_finished());
    let task = tokio::spawn(connection(client, ended, Arc::clone(shared)));
    open.push(Connection { end, task });
    drop(open);
    shared.connections.send_modify(|count| *count += 1);
}

/// One connection, from the accept until both sides have ended or the test ends it.
async fn connection(mut client: TcpStream, ended: oneshot::Receiver<End>, shared: Arc<Shared>) {
    let mut server = None;
    let how = tokio::select! {
        how = ended => how.unwrap_or(End::Close),
        how = forward(&mut client, &mut server, &shared) => how,
    };
    for mut stream in [Some(client), server].into_iter().flatten() {
        // An error means that the other side was faster to end the connection.
        let _ = match how {
            End::Close => stream.shutdown().await,
            End::Reset => stream.set_zero_linger(),
        };
    }
}

async fn forward(client: &mut TcpStream, server: &mut Option<TcpStream>, shared: &Shared) -> End {
    let upstream = *lock(&shared.upstream);
    let Ok(connected) = TcpStream::connect(upstream).await else {
        return End::Reset;
    };
    let server = server.insert(connected);
    if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
        return End::Reset;
    }
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::join!(
        relay(&shared.requests, from_client, to_server),
        relay(&shared.answers, from_server, to_client),
    );
    End::Close
}

async fn reach(counter: &watch::Sender<u64>, count: u64) {
    let mut counter = counter.subscribe();
    counter.wait_for(|&now| now >= count).await.expect("the counter lives as long as its borrow");
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
