use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use lockkit_core::driver::{dial_first, look_up};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};

use crate::error::Failure;
use crate::greeting::greet;
use crate::tls::Tls;

/// How long connecting may take, greeting included.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// What a server is expected to answer.
const GREETING: &str = "a greeting";

/// Where the server is, and how to greet it.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    address: Address,
    greeting: RedisConnectionInfo,
    mode: Mode,
}

/// What kind of server is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Single,
    Sentinel,
    ClusterNode,
}

/// Where a server is.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    /// Encrypted if `tls` is given.
    Network { host: String, port: u16, tls: Option<Tls> },
    /// A socket on this host, by its path.
    Socket(PathBuf),
}

impl Endpoint {
    pub(crate) fn new(address: Address, greeting: RedisConnectionInfo) -> Self {
        Self { address, greeting, mode: Mode::Single }
    }

    pub(crate) fn expecting(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Where it is, as text.
    pub(crate) fn address(&self) -> String {
        let whole = self.to_string();
        whole.rsplit_once('/').map_or(whole.clone(), |(address, _)| address.into())
    }

    /// What kind of server is expected there.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The same endpoint at another port of the host.
    pub(crate) fn at_port(&self, port: u16) -> Self {
        match &self.address {
            Address::Network { host, .. } => self.at(host, port),
            Address::Socket(_) => self.clone(),
        }
    }

    /// The same endpoint at another network address.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let tls = match &self.address {
            Address::Network { tls, .. } => tls.clone(),
            Address::Socket(_) => None,
        };
        Self { address: Address::Network { host: host.into(), port, tls }, ..self.clone() }
    }

    /// Whether the other is at the same address.
    pub(crate) fn is_where(&self, other: &Self) -> bool {
        match (&self.address, &other.address) {
            (
                Address::Network { host, port, .. },
                Address::Network { host: other_host, port: other_port, .. },
            ) => host == other_host && port == other_port,
            (Address::Socket(path), Address::Socket(other)) => path == other,
            _ => false,
        }
    }

    /// The user to greet the server as.
    pub(crate) fn user(&self) -> &str {
        self.greeting.username().unwrap_or("default")
    }

    /// Opens a connection for requests, to a server that has answered and takes writes. The second
    /// part must be run for the first to work; it ends when the connection breaks.
    ///
    /// The socket is our own, since the managed connection of the client library does not tell when
    /// it breaks, and leaves `TCP_NODELAY` off.
    pub(crate) async fn connect(&self) -> Result<(MultiplexedConnection, Running), Failure> {
        self.multiplexed(&client(), AsyncConnectionConfig::new()).await
    }

    /// Opens a connection on which the server pushes news, including that on channels of a cluster.
    pub(crate) async fn listen(
        &self,
        push: impl redis::aio::AsyncPushSender,
    ) -> Result<(MultiplexedConnection, Running), Failure> {
        let config = AsyncConnectionConfig::new().set_push_sender(push);
        let client = client().set_protocol(redis::ProtocolVersion::RESP3);
        self.multiplexed(&client, config).await
    }

    /// Opens a connection for news.
    pub(crate) async fn subscribe(&self) -> Result<PubSub, Failure> {
        let until = Instant::now() + CONNECT_LIMIT;
        // Channels belong to no database.
        let greeting = self.greeting.clone().set_db(0);
        let stream = self.open(until, &greeting).await?;
        by(until, Some(GREETING), PubSub::new(&client(), stream)).await
    }

    async fn multiplexed(
        &self,
        client: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Running), Failure> {
        let until = Instant::now() + CONNECT_LIMIT;
        let config = config.set_response_timeout(None).set_connection_timeout(None);
        let stream = self.open(until, &self.greeting).await?;
        let connecting = MultiplexedConnection::new_with_config(client, stream, config);
        let (connection, running) = by(until, Some(GREETING), connecting).await?;
        Ok((connection, Box::pin(running)))
    }

    /// A connection to a server that has been greeted.
    async fn open(
        &self,
        until: Instant,
        greeting: &RedisConnectionInfo,
    ) -> Result<Box<dyn Stream>, Failure> {
        match &self.address {
            Address::Socket(path) => {
                let stream = by(until, None, UnixStream::connect(path)).await?;
                self.greeted(until, greeting, stream).await
            }
            Address::Network { host, port, tls: None } => {
                let stream = by(until, None, dial(host, *port)).await?;
                self.greeted(until, greeting, stream).await
            }
            Address::Network { host, port, tls: Some(tls) } => {
                let settings = async { Ok::<_, Failure>(tls.settings().await) };
                let settings = by(until, None, settings).await?;
                let connecting = async {
                    let stream = by(until, None, dial(host, *port)).await?;
                    let stream = by(until, Some("TLS"), settings.over(stream, host)).await?;
                    self.greeted(until, greeting, stream).await
                };
                // A server may not say what it does not accept until it is greeted.
                connecting.await.map_err(|failure| settings.blame(failure))
            }
        }
    }

    async fn greeted(
        &self,
        until: Instant,
        greeting: &RedisConnectionInfo,
        stream: impl Stream + 'static,
    ) -> Result<Box<dyn Stream>, Failure> {
        let mut stream: Box<dyn Stream> = Box::new(stream);
        by(until, Some(GREETING), greet(&mut stream, greeting, self.mode)).await?;
        Ok(stream)
    }
}

/// What the client library says about itself. The rest of the greeting is up to [`greet`].
fn client() -> RedisConnectionInfo {
    RedisConnectionInfo::default().set_lib_name("lockkit", env!("CARGO_PKG_VERSION"))
}

/// Runs a step of connecting, which must be done by `until`. `what` is the answer that the step
/// expects from the server.
async fn by<T, E>(
    until: Instant,
    what: Option<&'static str>,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure>
where
    Failure: From<E>,
{
    match timeout_at(until, step).await {
        Ok(done) => Ok(done?),
        Err(_) => {
            let last = what.map(|what| Box::new(Failure::Mute(what)));
            Err(Failure::NoConnection { limit: CONNECT_LIMIT, last })
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Network { host, port, .. } if host.contains(':') => {
                write!(f, "[{host}]:{port}")?;
            }
            Address::Network { host, port, .. } => write!(f, "{host}:{port}")?,
            Address::Socket(path) => write!(f, "{}", path.display())?,
        }
        write!(f, "/{}", self.greeting.db())
    }
}

async fn dial(host: &str, port: u16) -> Result<TcpStream, Failure> {
    let stream = dial_first(look_up(host, port).await?, TcpStream::connect).await?;
    stream.set_nodelay(true)?;
    // A peer that vanished is noticed within half a minute, even where nothing is sent.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

/// What a connection goes over.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What moves the bytes of a connection.
pub(crate) type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Single => "single server",
            Self::Sentinel => "sentinel",
            Self::ClusterNode => "node of a cluster",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::net::{TcpListener, TcpSocket, TcpStream};
    use tokio::time::timeout;

    use super::{CONNECT_LIMIT, dial_first};

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn an_address_that_swallows_or_refuses_leaves_the_next() {
        let full = TcpSocket::new_v4().unwrap();
        full.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let full = full.listen(0).unwrap();
        let swallows = full.local_addr().unwrap();
        // Nobody accepts it, and there is no room for another.
        let _first = TcpStream::connect(swallows).await.unwrap();
        let (gone, refuses) = listener().await;
        drop(gone);
        let (_serves, serves) = listener().await;
        for addresses in [[swallows, serves], [refuses, serves], [serves, swallows]] {
            let dialled = timeout(CONNECT_LIMIT, dial_first(addresses, TcpStream::connect)).await;
            assert_eq!(dialled.unwrap().unwrap().peer_addr().unwrap(), serves);
        }
        assert!(dial_first([refuses], TcpStream::connect).await.is_err());
    }
}
