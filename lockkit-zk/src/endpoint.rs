use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lockkit_core::driver::{Backoff, Clock, Limit, dial_first, look_up};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use zookeeper_client::{Acls, Client, Connector};

use crate::error::Failure;
use crate::probe;
use crate::session::{Session, within};
use crate::tls::{self, Tls};

/// How long one attempt to begin a session may take. Connecting as a whole ends within 5 seconds.
const CONNECT_LIMIT: Duration = Duration::from_millis(4500);
/// How much of that finding out the tick may take if there was a session before: the rest is enough
/// for a session with servers that take their time.
const TICK_LIMIT: Duration = Duration::from_secs(1);
/// How long a server may be silent before it is left for another one, at most.
const SILENCE: Duration = Duration::from_secs(3);
/// How long the other servers are waited for once one has said what it grants, at most.
const LAG: Duration = Duration::from_millis(500);
/// How long a server may take to answer a four-letter command.
const COMMAND_LIMIT: Duration = Duration::from_secs(2);
/// The same while connecting, unless both ends have to agree on TLS first: a server that hangs must
/// not take the time that is left for another one, and if none answers, there are the bounds.
const COMMAND_LIMIT_WHILE_CONNECTING: Duration = Duration::from_millis(500);
/// How much of an answer outside a session is read.
const LONGEST_ANSWER: u64 = 1 << 20;
/// How often a lone server stands in the list: with so many entries, most pauses are below a second
/// for some seconds, and none is longer than the time before it.
const LOOKS_AT_THE_ONE: usize = 16;
/// The longest tick that a server may have.
pub(crate) const LONGEST_TICK: Duration = Duration::from_secs(60);
/// How many ticks a session must last for holds to be provable: two writes a tick apart, one tick
/// of doubt, and some time to live.
const LEAST_TICKS: u32 = 3;

/// A name or an address, and a port.
type Host = (String, u16);

/// Where the servers are, and how to begin a session with them.
#[derive(Clone)]
pub(crate) struct Endpoint {
    hosts: Vec<Host>,
    credentials: Option<Credentials>,
    /// How long sessions are to be.
    wish: Duration,
    /// What the user says the servers' tick is.
    tick: Option<Duration>,
    tls: Option<Tls>,
}

/// Who we are, in the scheme `digest`.
#[derive(Clone)]
pub(crate) struct Credentials(String);

impl Credentials {
    pub(crate) fn new(user: &str, password: &str) -> Self {
        Self([user, ":", password].concat())
    }
}

impl Endpoint {
    pub(crate) fn new(
        hosts: Vec<Host>,
        credentials: Option<Credentials>,
        wish: Duration,
        tick: Option<Duration>,
        tls: Option<Tls>,
    ) -> Self {
        Self { hosts, credentials, wish, tick, tls }
    }

    /// Begins a session. One server that is not there is not waited for. Several servers have to
    /// choose a leader now and then, and turn everybody away meanwhile, so they are tried for a while.
    ///
    /// `last_tick` is that of the session before, for servers that do not tell theirs in time.
    pub(crate) async fn open(&self, last_tick: Option<Duration>) -> Result<Session, Failure> {
        let (mut last, mut backoff) = (Failure::NoAnswer(CONNECT_LIMIT), Backoff::default());
        let opening = async {
            loop {
                match self.try_open(last_tick).await {
                    Err(failure) if self.hosts.len() > 1 && !failure.is_lasting() => {
                        last = failure;
                        backoff.failed();
                        sleep(backoff.pause()).await;
                    }
                    opened => return opened,
                }
            }
        };
        match timeout(CONNECT_LIMIT, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(last),
        }
    }

    async fn try_open(&self, last_tick: Option<Duration>) -> Result<Session, Failure> {
        let tick = match last_tick {
            Some(last) => self.tick_in_time().await?.unwrap_or(last),
            None => self.tick().await?,
        };
        let wish = self.wish.max(LEAST_TICKS * tick);
        let asked = Clock::system().now();
        let client = self.connect(wish).await?;
        let granted = client.session_timeout();
        match granted < LEAST_TICKS * tick {
            true => Err(Failure::ShortSessions { granted, tick }),
            false => Ok(Session::new(client, asked, tick)),
        }
    }

    /// Who may use the nodes that we make: whoever has our credentials, or, without any, everybody.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.credentials {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        }
    }

    /// How many servers there are.
    pub(crate) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// How long sessions are to be.
    pub(crate) fn wish(&self) -> Duration {
        self.wish
    }

    /// The answers to a four-letter command, of those servers that answered.
    pub(crate) async fn ask_all(&self, command: &'static str) -> Vec<String> {
        self.ask_each(command, COMMAND_LIMIT).await.into_iter().flatten().collect()
    }

    async fn ask_each(&self, command: &str, limit: Duration) -> Vec<io::Result<String>> {
        let ask = async |host| {
            let answer = timeout(limit, self.ask(host, command.as_bytes())).await;
            String::from_utf8(answer.unwrap_or_else(|late| Err(late.into()))?)
                .map_err(io::Error::other)
        };
        join_all(self.hosts.iter().map(ask)).await
    }

    /// How long a session a server grants where one of that length is asked for.
    async fn granted(&self, host: &Host, wish: Duration) -> Result<Duration, Failure> {
        let answer = self.ask(host, &probe::request(wish)).await;
        answer
            .and_then(|answer| probe::granted(&answer))
            .map_err(|error| Failure::Probe(error.into()))
    }

    async fn ask(&self, (host, port): &Host, request: &[u8]) -> io::Result<Vec<u8>> {
        self.ask_at(look_up(host, *port).await?, host, request).await
    }

    /// The answer from whichever of the host's addresses connects first.
    async fn ask_at(
        &self,
        addresses: Vec<SocketAddr>,
        host: &str,
        request: &[u8],
    ) -> io::Result<Vec<u8>> {
        let stream = dial_first(addresses, TcpStream::connect).await?;
        match &self.tls {
            Some(tls) => exchange(tls.over(stream, host).await?, request).await,
            None => exchange(stream, request).await,
        }
    }

    /// The same as [`tick`](Self::tick), if it is known before that takes too long.
    async fn tick_in_time(&self) -> Result<Option<Duration>, Failure> {
        match timeout(TICK_LIMIT, self.tick()).await {
            Ok(Ok(tick)) => Ok(Some(tick)),
            // Bounds that are changed while the ensemble serves do not change the tick.
            Ok(Err(failure))
                if failure.is_lasting() && !matches!(failure, Failure::UnknownTick(_)) =>
            {
                Err(failure)
            }
            Ok(Err(failure)) => {
                tracing::debug!(endpoint = %self, %failure, "the tick is taken for what it was");
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }

    /// The servers' tick, or more.
    async fn tick(&self) -> Result<Duration, Failure> {
        if let (Some(tick), None) = (self.tick, &self.tls) {
            return Ok(tick);
        }
        let limit = match self.tls {
            Some(_) => COMMAND_LIMIT,
            None => COMMAND_LIMIT_WHILE_CONNECTING,
        };
        let answers = self.ask_each("conf", limit).await;
        // The client library would not say why there was no agreement.
        let refusal = || answers.iter().find_map(|answer| tls::refusal(answer.as_ref().err()?));
        if let (true, Some(refusal)) = (answers.iter().all(Result::is_err), refusal()) {
            return Err(Failure::Tls(refusal));
        }
        if let Some(tick) = self.tick {
            return Ok(tick);
        }
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        match longest_tick(&answers) {
            Some(tick) => Ok(tick),
            None => {
                let bounds = self.bounds().await?;
                let tick = bounds.tick();
                // That may be far above the tick, and a session that lasts for many times the wish
                // would keep the locks of the dead for as long.
                match !bounds.are_far_apart() || LEAST_TICKS * tick <= self.wish {
                    true => Ok(tick),
                    false => Err(Failure::UnknownTick(bounds)),
                }
            }
        }
    }

    /// Whether, after a reconnect, a session and the tick are as long as when the session began.
    ///
    /// At each reconnect the server sets the length anew, within its own bounds, and the client
    /// library tells neither the length nor which server it is. So each server is asked for another
    /// session of that length. Servers that are away, or late, do not count unless all are.
    pub(crate) async fn still_grants(&self, session: &Session) -> Result<bool, Failure> {
        let length = session.timeout();
        let ask = async |host| self.granted(host, length).await.map(|granted| granted >= length);
        let mut answers: FuturesUnordered<_> = self.hosts.iter().map(ask).collect();
        let mut limit = Limit::new(CONNECT_LIMIT);
        let (mut is_granted, mut last) = (false, Failure::NoAnswer(CONNECT_LIMIT));
        while let Ok(Some(answer)) = within(limit, answers.next()).await {
            match answer {
                Ok(false) => return Ok(false),
                Ok(true) if is_granted => (),
                Ok(true) => {
                    is_granted = true;
                    limit = Limit::new(LAG.min(length / 12));
                }
                Err(failure) => last = failure,
            }
        }
        match is_granted {
            true => Ok(self.told_tick().await.is_none_or(|tick| tick <= session.tick())),
            false => Err(last),
        }
    }

    /// The servers' tick, if they tell and the user does not.
    async fn told_tick(&self) -> Option<Duration> {
        if self.says_tick() {
            return None;
        }
        let answers = self.ask_each("conf", COMMAND_LIMIT_WHILE_CONNECTING).await;
        longest_tick(&answers.into_iter().flatten().collect::<Vec<_>>())
    }

    /// The shortest and the longest session that is granted, as far as it matters.
    pub(crate) async fn bounds(&self) -> Result<Bounds, Failure> {
        const SHORT: Duration = Duration::from_millis(1);
        // Twenty of the longest ticks.
        const LONG: Duration = LONGEST_TICK.saturating_mul(20);
        let limit = Limit::new(CONNECT_LIMIT);
        let both = async { tokio::join!(self.first_granted(SHORT), self.first_granted(LONG)) };
        let (least, greatest) = within(limit, both).await?;
        Ok(Bounds { least: least?, greatest: greatest? })
    }

    /// How long a session is granted by whichever server answers first.
    async fn first_granted(&self, wish: Duration) -> Result<Duration, Failure> {
        let mut answers: FuturesUnordered<_> =
            self.hosts.iter().map(|host| self.granted(host, wish)).collect();
        let mut last = Failure::NoAnswer(CONNECT_LIMIT);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(granted) => return Ok(granted),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Whether the user has said what the servers' tick is.
    pub(crate) fn says_tick(&self) -> bool {
        self.tick.is_some()
    }

    async fn connect(&self, session: Duration) -> Result<Client, Failure> {
        let hosts = self.to_string();
        // The library's pauses between rounds through the list double each time, so that a lone
        // server that had been away for a minute would be looked for again no sooner than in the
        // next minute. Several servers are not repeated: the library shuffles the list, so a server
        // that swallows what is sent to it would be tried twice, and there is no time for that when
        // connecting.
        let hosts = match self.hosts.len() {
            1 => [&*hosts; LOOKS_AT_THE_ONE].join(","),
            _ => hosts,
        };
        let connector = self.connector().with_session_timeout(session);
        // After that silence there must be time left to prove the session to another server.
        let silence = SILENCE.min(session / 3);
        let connector = connector.with_connection_timeout(silence).with_fail_eagerly();
        Ok(match &self.tls {
            Some(tls) => tls.connect(connector, &hosts).await?,
            None => connector.connect(&hosts).await?,
        })
    }

    fn connector(&self) -> Connector {
        match &self.credentials {
            Some(Credentials(text)) => Client::connector().with_auth("digest", text.as_bytes()),
            None => Client::connector(),
        }
    }
}

/// The shortest and the longest session that is granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    least: Duration,
    greatest: Duration,
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} to {:?}", self.least, self.greatest)
    }
}

impl Bounds {
    /// The tick that the bounds follow from, as they do unless they are set: two ticks at least and
    /// twenty at most. The larger result is taken, so that it errs only if both are set, and low.
    fn tick(self) -> Duration {
        (self.least / 2).max(self.greatest / 20)
    }

    /// Whether the greatest may have been raised; nobody can tell that from a least that was
    /// lowered. Otherwise the least session lasts for two of what is taken for a tick.
    fn are_far_apart(self) -> bool {
        self.greatest / 20 > self.least / 2
    }

    /// Whether both bounds follow from that tick.
    pub(crate) fn agree_on(self, tick: Duration) -> bool {
        self.least == 2 * tick && self.greatest == 20 * tick
    }
}

/// The hosts, as the client library takes them.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (host, port)) in self.hosts.iter().enumerate() {
            f.write_str(if at > 0 { "," } else { "" })?;
            f.write_str(&address(host, *port))?;
        }
        Ok(())
    }
}

fn address(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Without the password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &[u8],
) -> io::Result<Vec<u8>> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    match stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await {
        // A server that speaks TLS closes the connection without saying so.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !answer.is_empty() => (),
        read => _ = read?,
    }
    Ok(answer)
}

/// The longest tick in the answers to `conf`.
pub(crate) fn longest_tick(answers: &[String]) -> Option<Duration> {
    answers.iter().filter_map(|answer| millis(answer, "tickTime")).max()
}

/// A setting in milliseconds, from the answer to `conf`.
pub(crate) fn millis(answer: &str, setting: &str) -> Option<Duration> {
    let value = |line: &str| line.strip_prefix(setting)?.strip_prefix('=')?.trim().parse().ok();
    answer.lines().find_map(value).filter(|&millis| millis > 0).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::{COMMAND_LIMIT, Endpoint, millis, timeout};

    #[tokio::test]
    async fn a_host_is_asked_at_its_next_address_if_the_first_swallows_what_is_sent() {
        let full = TcpSocket::new_v4().unwrap();
        full.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let full = full.listen(0).unwrap();
        let swallows = full.local_addr().unwrap();
        // Nobody accepts it, and there is no room for another.
        let _first = TcpStream::connect(swallows).await.unwrap();
        let serving = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addresses = vec![swallows, serving.local_addr().unwrap()];
        let endpoint = Endpoint::new(Vec::new(), None, Duration::ZERO, None, None);
        let answer = async {
            let (mut stream, _) = serving.accept().await.unwrap();
            stream.write_all(b"imok").await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let both = async { tokio::join!(endpoint.ask_at(addresses, "host", b"ruok"), answer).0 };
        assert_eq!(timeout(COMMAND_LIMIT, both).await.unwrap().unwrap(), b"imok");
    }

    /// They accept connections, and end them.
    #[tokio::test]
    async fn servers_that_turn_everybody_away_are_asked_less_and_less_often() {
        let servers = [
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(),
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(),
        ];
        let host =
            |server: &TcpListener| ("127.0.0.1".to_owned(), server.local_addr().unwrap().port());
        let hosts = servers.iter().map(host).collect();
        let tick = Some(Duration::from_millis(200));
        let endpoint = Endpoint::new(hosts, None, Duration::from_secs(3), tick, None);
        let mut asked = 0;
        let serving = async {
            loop {
                tokio::select! {
                    accepted = servers[0].accept() => drop(accepted.unwrap()),
                    accepted = servers[1].accept() => drop(accepted.unwrap()),
                }
                asked += 1;
            }
        };
        tokio::select! {
            opened = endpoint.open(None) => assert!(opened.is_err()),
            () = serving => (),
        }
        assert!((4..60).contains(&asked), "{asked}");
    }

    #[test]
    fn settings_are_read() {
        let answer = "clientPort=2181\ntickTime=2000\nminSessionTimeout=-1\n";
        assert_eq!(millis(answer, "tickTime"), Some(Duration::from_secs(2)));
        assert_eq!(millis(answer, "minSessionTimeout"), None);
        assert_eq!(
            millis("conf is not executed because it is not in the whitelist.", "tickTime"),
            None
        );
    }
}
