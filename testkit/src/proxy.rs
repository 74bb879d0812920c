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
/// of a connection is passed on in its place among the bytes, so that a request which is delayed or
/// held still lands after its client has gone. Wants real time, not a paused clock.
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
        // An error says that the other side was faster to end the connection.
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

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use tokio::io::AsyncReadExt;
    use tokio::time::Instant;

    use super::*;

    /// A server that answers every message with a letter and the message.
    struct Echo {
        addr: SocketAddr,
        heard: watch::Receiver<Vec<u8>>,
        task: JoinHandle<()>,
    }

    impl Echo {
        async fn start(letter: u8) -> Echo {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let addr = listener.local_addr().unwrap();
            let (hear, heard) = watch::channel(Vec::new());
            let task = tokio::spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    let hear = hear.clone();
                    tokio::spawn(async move {
                        let mut buffer = [0; 1024];
                        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                            hear.send_modify(|heard| heard.extend_from_slice(&buffer[..read]));
                            let answer = [&[letter], &buffer[..read]].concat();
                            if stream.write_all(&answer).await.is_err() {
                                break;
                            }
                        }
                        hear.send_modify(|heard| heard.push(b'.'));
                    });
                }
            });
            Echo { addr, heard, task }
        }

        fn heard(&self) -> Vec<u8> {
            self.heard.borrow().clone()
        }

        /// Waits until it has heard that in all, with a full stop for each end of a connection.
        async fn hears(&mut self, all: &[u8]) {
            const PATIENCE: Duration = Duration::from_secs(30);
            let hears = self.heard.wait_for(|heard| heard == all);
            let heard = tokio::time::timeout(PATIENCE, hears).await.map(|heard| heard.map(drop));
            assert!(heard.is_ok_and(|heard| heard.is_ok()), "it heard {:?}", self.heard());
        }
    }

    impl Drop for Echo {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    async fn echo_and_proxy() -> (Echo, Proxy) {
        let echo = Echo::start(b'>').await;
        let proxy = Proxy::start(echo.addr).await;
        (echo, proxy)
    }

    async fn connect(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(proxy.addr()).await.unwrap()
    }

    async fn answer_to(stream: &mut TcpStream, message: &[u8]) -> Vec<u8> {
        stream.write_all(message).await.unwrap();
        let mut answer = vec![0; message.len() + 1];
        stream.read_exact(&mut answer).await.unwrap();
        answer
    }

    fn has_nothing(stream: &TcpStream) -> bool {
        stream.try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    #[tokio::test]
    async fn bytes_pass_and_are_counted() {
        let (_echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        assert_eq!(answer_to(&mut client, b"hello").await, b">hello");
        assert_eq!((proxy.requests().bytes(), proxy.answers().bytes()), (5, 6));
        assert_eq!((proxy.connections(), proxy.open()), (1, 1));
        let mut other = connect(&proxy).await;
        assert_eq!(answer_to(&mut other, b"x").await, b">x");
        assert_eq!((proxy.requests().bytes(), proxy.answers().bytes()), (6, 8));
        assert_eq!((proxy.connections(), proxy.open()), (2, 2));
    }

    #[tokio::test]
    async fn the_clients_end_of_a_connection_passes() {
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        assert_eq!(answer_to(&mut client, b"bye").await, b">bye");
        drop(client);
        echo.hears(b"bye.").await;
    }

    #[tokio::test]
    async fn the_servers_end_of_a_connection_passes() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await;
        let mut client = connect(&proxy).await;
        let (mut served, _) = listener.accept().await.unwrap();
        served.write_all(b"bye").await.unwrap();
        drop(served);
        let mut said = Vec::new();
        client.read_to_end(&mut said).await.unwrap();
        assert_eq!(said, b"bye");
    }

    #[tokio::test]
    async fn a_delay_holds_each_message_back_and_keeps_the_order() {
        const DELAY: Duration = Duration::from_millis(50);
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        for direction in [proxy.requests(), proxy.answers()] {
            let sent = Instant::now();
            direction.delay(DELAY);
            assert_eq!(answer_to(&mut client, b"slow").await, b">slow");
            direction.pass();
            assert!(sent.elapsed() >= DELAY);
        }
        proxy.requests().delay(DELAY);
        client.write_all(b"1").await.unwrap();
        proxy.requests().bytes_reach(9).await;
        proxy.requests().pass();
        client.write_all(b"2").await.unwrap();
        echo.hears(b"slowslow12").await;
    }

    #[tokio::test]
    async fn swallowed_requests_arrive_nowhere() {
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        assert_eq!(answer_to(&mut client, b"a").await, b">a");
        proxy.requests().swallow();
        client.write_all(b"lost").await.unwrap();
        proxy.requests().bytes_reach(5).await;
        proxy.requests().pass();
        assert_eq!(answer_to(&mut client, b"b").await, b">b");
        echo.hears(b"ab").await;
    }

    #[tokio::test]
    async fn swallowed_answers_were_heard_by_the_server() {
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        proxy.answers().swallow();
        client.write_all(b"done").await.unwrap();
        echo.hears(b"done").await;
        proxy.answers().bytes_reach(5).await;
        assert!(has_nothing(&client));
        proxy.answers().pass();
        assert_eq!(answer_to(&mut client, b"b").await, b">b");
    }

    #[tokio::test]
    async fn a_swallowed_end_leaves_the_connection_half_open() {
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        assert_eq!(answer_to(&mut client, b"a").await, b">a");
        proxy.requests().swallow();
        drop(client);
        let mut other = connect(&proxy).await;
        other.write_all(b"lost").await.unwrap();
        proxy.requests().bytes_reach(5).await;
        assert_eq!((proxy.open(), echo.heard()), (2, b"a".to_vec()));
        proxy.close().await;
        echo.hears(b"a..").await;
    }

    #[tokio::test]
    async fn a_reset_cuts_both_sides_and_admits_new_connections() {
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        assert_eq!(answer_to(&mut client, b"a").await, b">a");
        proxy.reset().await;
        let error = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        echo.hears(b"a.").await;
        assert_eq!(proxy.open(), 0);
        assert_eq!(answer_to(&mut connect(&proxy).await, b"b").await, b">b");
    }

    #[tokio::test]
    async fn a_close_ends_both_sides_and_admits_new_connections() {
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        assert_eq!(answer_to(&mut client, b"a").await, b">a");
        proxy.close().await;
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        echo.hears(b"a.").await;
        assert_eq!(answer_to(&mut connect(&proxy).await, b"b").await, b">b");
    }

    #[tokio::test]
    async fn refusing_closes_the_port_and_leaves_present_connections() {
        let (_echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        assert_eq!(answer_to(&mut client, b"a").await, b">a");
        proxy.refuse().await;
        let refused = TcpStream::connect(proxy.addr()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(answer_to(&mut client, b"b").await, b">b");
        proxy.accept().await;
        assert_eq!(answer_to(&mut connect(&proxy).await, b"c").await, b">c");
    }

    #[tokio::test]
    async fn an_upstream_that_is_gone_resets_its_clients() {
        let (echo, proxy) = echo_and_proxy().await;
        let addr = echo.addr;
        drop(echo);
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
        let mut client = connect(&proxy).await;
        let error = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn one_matching_message_is_held_and_others_pass() {
        let (mut echo, proxy) = echo_and_proxy().await;
        let (mut held, mut free) = (connect(&proxy).await, connect(&proxy).await);
        let hold = proxy.requests().hold("TAKE");
        assert_eq!(answer_to(&mut held, b"ask").await, b">ask");
        held.write_all(b"first,TAKE it,").await.unwrap();
        hold.caught().await;
        echo.hears(b"askfirst,").await;
        held.write_all(b"then").await.unwrap();
        assert_eq!(answer_to(&mut free, b"TAKE too,").await, b">TAKE too,");
        assert_eq!(echo.heard(), b"askfirst,TAKE too,");
        hold.go_on();
        echo.hears(b"askfirst,TAKE too,TAKE it,then").await;
    }

    #[tokio::test]
    async fn a_message_that_comes_in_pieces_is_held() {
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        let hold = proxy.requests().hold("TAKE");
        assert_eq!(answer_to(&mut client, b"xTA").await, b">xTA");
        client.write_all(b"KE it").await.unwrap();
        hold.caught().await;
        assert_eq!(echo.heard(), b"xTA");
        drop(hold);
        echo.hears(b"xTAKE it").await;
    }

    #[tokio::test]
    async fn a_pattern_that_has_passed_is_not_held() {
        let (_echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        assert_eq!(answer_to(&mut client, b"TAKE").await, b">TAKE");
        let hold = proxy.requests().hold("TAKE");
        assert_eq!(answer_to(&mut client, b"AKE").await, b">AKE");
        client.write_all(b"TAKE").await.unwrap();
        hold.caught().await;
    }

    #[tokio::test]
    async fn a_held_request_lands_after_its_client_has_gone() {
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        let hold = proxy.requests().hold("TAKE");
        client.write_all(b"TAKE").await.unwrap();
        hold.caught().await;
        drop(client);
        assert_eq!(answer_to(&mut connect(&proxy).await, b"RELEASE").await, b">RELEASE");
        echo.hears(b"RELEASE.").await;
        hold.go_on();
        echo.hears(b"RELEASE.TAKE.").await;
    }

    #[tokio::test]
    async fn new_connections_go_to_another_upstream() {
        let (_echo, proxy) = echo_and_proxy().await;
        let other = Echo::start(b'<').await;
        let mut before = connect(&proxy).await;
        assert_eq!(answer_to(&mut before, b"a").await, b">a");
        proxy.switch_upstream(other.addr);
        assert_eq!(answer_to(&mut connect(&proxy).await, b"b").await, b"<b");
        assert_eq!(answer_to(&mut before, b"c").await, b">c");
    }

    #[tokio::test]
    async fn a_dropped_proxy_ends_its_connections() {
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connect(&proxy).await;
        assert_eq!(answer_to(&mut client, b"a").await, b">a");
        drop(proxy);
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        echo.hears(b"a.").await;
    }
}
