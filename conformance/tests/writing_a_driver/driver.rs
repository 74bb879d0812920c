//! A driver for the lock server.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Claim, Driver, DriverError, ErrorKind, Grant, Release, Renewal, Taken, Vouch,
};
use lockkit_core::{Capabilities, FencingToken, Liveness, LockName};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// What the driver promises.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .fencing()
    .ttl(Duration::from_millis(500), Capabilities::MAX_TTL);

/// One connection to a lock server.
#[derive(Debug)]
pub struct LineDriver {
    address: SocketAddr,
    connection: Mutex<Option<BufReader<TcpStream>>>,
}

impl LineDriver {
    /// Connects to the server at `address`.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the connection.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let connection = Mutex::new(Some(open(address).await?));
        Ok(Self { address, connection })
    }
}

async fn open(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// How the server calls a lock: `NAMESPACE/NAME`, with whatever is no word for it encoded.
pub fn key(name: &LockName) -> String {
    format!("{}/{}", name.namespace(), name.segment(200))
}

impl LineDriver {
    /// One request and its answer, within the limit of the claim.
    async fn request(&self, verb: &str, claim: &Claim) -> Result<String, DriverError> {
        let ttl = claim.ttl().as_micros().div_ceil(1000);
        let line = format!("{verb} {} {} {ttl}\n", key(claim.name()), claim.owner());
        let mut sent = false;
        let answer = match timeout(claim.call_limit(), self.exchange(&line, &mut sent)).await {
            Ok(answer) => answer,
            Err(late) => Err(late.into()),
        };
        answer.map_err(|error| match sent {
            true => DriverError::new(ErrorKind::Unknown, error),
            false => DriverError::new(ErrorKind::Unreachable, error),
        })
    }

    async fn exchange(&self, line: &str, sent: &mut bool) -> io::Result<String> {
        let mut place = self.connection.lock().await;
        let mut connection = match place.take() {
            Some(connection) => connection,
            None => open(self.address).await?,
        };
        *sent = true;
        connection.write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_line(&mut answer).await?;
        match answer.pop() {
            Some('\n') => {
                // Only a connection that has nothing more to say is used again.
                *place = Some(connection);
                Ok(answer)
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn not_understood(answer: &str) -> DriverError {
    DriverError::new(ErrorKind::Misconfigured, format!("the server answered {answer:?}"))
}

#[async_trait]
impl Driver for LineDriver {
    fn id(&self) -> &'static str {
        "line"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let answer = self.request("take", claim).await?;
        match answer.split_once(' ').map(|(verb, number)| (verb, number.parse())) {
            Some(("held", Ok(token))) => {
                let token = FencingToken::new(token).ok_or_else(|| not_understood(&answer))?;
                Ok(Attempt::Granted(Grant::new().token(token)))
            }
            Some(("taken", Ok(left))) => {
                Ok(Attempt::Taken(Taken::new().free_in(Duration::from_millis(left))))
            }
            _ => Err(not_understood(&answer)),
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        match &*self.request("renew", claim).await? {
            "lost" => Ok(Renewal::Lost),
            held if held.starts_with("held ") => Ok(Renewal::Held(Vouch::FromRequest)),
            other => Err(not_understood(other)),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        match &*self.request("release", claim).await? {
            "freed" => Ok(Release::Freed),
            "not held" => Ok(Release::NotHeld),
            other => Err(not_understood(other)),
        }
    }

    async fn close(&self) {
        self.connection.lock().await.take();
    }
}
