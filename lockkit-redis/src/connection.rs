mod open;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{DriverError, Run};
use redis::Value;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use self::shared::{Link, Shared};
use crate::backoff::Backoff;
use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::request::{Request, Stage};
use crate::sentinel::Sentinels;
use crate::target::Target;

/// The connection for requests: one at a time, shared by all calls.
///
/// It is replaced when it breaks, when a call on it gets no answer in time (for a call that was sent
/// a moment ago, or that failed on a spare connection: when a question after it gets none either),
/// when the server turns out to be a replica, and when sentinels call another server the primary.
/// Calls that are under way on a replaced connection may still be answered there, unless sentinels
/// are the cause. A task of its own makes the connection when a call needs it, so that a call that
/// gives up waiting does not undo what the next one waits for.
#[derive(Debug)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    supervisor: AbortOnDropHandle<()>,
    watch: Option<AbortOnDropHandle<()>>,
}

impl Connection {
    /// Connects for the first time, with one attempt.
    pub(crate) async fn open(target: Target) -> Result<Self, Failure> {
        let shared = Shared::new(Arc::default());
        shared.connect(&target).await?;
        Ok(Self::over(target, shared))
    }

    /// Connects when there is something to ask. `trouble` is told whenever there is no connection
    /// any more, or none can be had.
    pub(crate) fn on_demand(target: Target, trouble: Arc<Notify>) -> Self {
        Self::over(target, Shared::new(trouble))
    }

    fn over(target: Target, shared: Arc<Shared>) -> Self {
        let watch = target.sentinels().map(|sentinels| {
            AbortOnDropHandle::new(tokio::spawn(follow(sentinels.clone(), shared.clone())))
        });
        let supervisor = tokio::spawn(supervise(target, shared.clone()));
        Self { shared, supervisor: AbortOnDropHandle::new(supervisor), watch }
    }

    /// Where the last connection led to, and where later ones lead.
    pub(crate) fn place(&self) -> watch::Receiver<Option<Endpoint>> {
        self.shared.place.subscribe()
    }

    /// Sends a request and waits for its answer, for `limit` in all, including the wait for a
    /// connection.
    pub(crate) async fn call(
        &self,
        request: &impl Request,
        limit: Duration,
    ) -> Result<Value, DriverError> {
        let answer = self.attempt(request, limit, &Stage::default(), false).await;
        answer.map_err(Failure::of_a_call)
    }

    /// As [`call`](Self::call), but says what went wrong. `stage` tells how far the request has
    /// come; with `asking`, the request is for a slot that is just being moved to the server.
    pub(crate) async fn attempt<R: Request>(
        &self,
        request: &R,
        limit: Duration,
        stage: &Stage,
        asking: bool,
    ) -> Result<Value, Failure> {
        let mut used = None;
        let mut refused = None;
        let calling = async {
            loop {
                let open = &**used.insert(self.shared.up(stage).await?);
                let failure = match open.send(request, stage, asking).await {
                    Ok(answer) => return Ok(answer),
                    Err(failure) => failure,
                };
                // The former primary has done nothing, and its successor is there or will be.
                if !(open.follows_sentinels() && failure.spoils_the_connection()) {
                    return Err(failure);
                }
                tracing::info!(%failure, "looking for the new primary");
                self.shared.drop_connection(open.id);
                (used, refused) = (None, Some(failure));
                stage.reset();
                stage.has_waited();
            }
        };
        let failure = match timeout(limit, calling).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => failure,
            Err(_) if used.is_some() && stage.is_sent() => Failure::NoAnswer(limit),
            Err(_) if stage.had_no_turn(limit) => Failure::NoTurn(limit),
            Err(_) => match (self.shared.last_failure(), refused) {
                // Nothing is known of the successor, so what the former primary said counts.
                (None, Some(refused)) if used.is_none() => refused,
                (last, _) => Failure::NoConnection { limit, last },
            },
        };
        if let Some(open) = &used {
            self.shared.blame(open, &failure, stage, R::BLOCKS);
        }
        Err(failure)
    }

    /// Which run of the server the calls go to. It is asked for once per connection.
    pub(crate) async fn run(&self, limit: Duration) -> Result<Run, DriverError> {
        if let Link::Up(open) = &*self.shared.link.borrow()
            && let Some(run) = open.run.get()
        {
            return Ok(run.clone());
        }
        let (mut used, stage) = (None, Stage::default());
        let asking = async {
            let open = &**used.insert(self.shared.up(&stage).await?);
            match open.run.get() {
                Some(run) => Ok(Ok(run.clone())),
                None => open.ask_run().await,
            }
        };
        // Boxed, since most calls never come here.
        let failure = match timeout(limit, Box::pin(asking)).await {
            Ok(Ok(run)) => return run,
            Ok(Err(failure)) => failure,
            Err(_) => match used {
                Some(open) => {
                    let failure = Failure::NoAnswer(limit);
                    self.shared.blame(&open, &failure, &stage, false);
                    failure
                }
                None => Failure::NoConnection { limit, last: self.shared.last_failure() },
            },
        };
        Err(failure.while_connecting())
    }

    /// Closes the connection. Calls fail from now on.
    pub(crate) fn close(&self) {
        self.supervisor.abort();
        if let Some(watch) = &self.watch {
            watch.abort();
        }
        self.shared.link.send_replace(Link::Closed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

/// Connects whenever a call needs it. Nothing happens while nobody calls.
async fn supervise(target: Target, shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    loop {
        shared.wanted.notified().await;
        // The last connection has already fulfilled this wish.
        if matches!(&*shared.link.borrow(), Link::Up(_)) {
            continue;
        }
        backoff.pause().await;
        match shared.connect(&target).await {
            Ok(()) => tracing::info!(%target, "connected to Redis again"),
            Err(failure) => tracing::debug!(%target, %failure, "could not connect to Redis"),
        }
    }
}

/// Leaves a server that is no longer the primary, though it may not know that yet.
async fn follow(sentinels: Arc<Sentinels>, shared: Arc<Shared>) {
    sentinels.watch(|primary| shared.follow(primary)).await;
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicBool;

    use lockkit_core::driver::ErrorKind;
    use redis::aio::MultiplexedConnection;
    use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::time::sleep;

    use super::open::Open;
    use super::shared::{SHORTEST, SILENCE};
    use super::*;
    use crate::endpoint::{Address, Running};
    use crate::request::To;
    use crate::spares::Spares;

    fn idle() -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(std::future::pending()))
    }

    /// A connection to a server, what runs it, and the server's end. Spare ones are made to
    /// `spare_at`.
    async fn connected(spare_at: Address) -> (Connection, Running, DuplexStream) {
        let (stream, mut server) = tokio::io::duplex(1024);
        server.write_all(b"+OK\r\n+OK\r\n").await.unwrap();
        let greeting = RedisConnectionInfo::default();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connecting = MultiplexedConnection::new_with_config(&greeting, stream, config);
        let (connection, running) = connecting.await.unwrap();
        let shared = Shared::new(Arc::default());
        shared.set(Link::Up(Arc::new(Open {
            id: 0,
            endpoint: Endpoint::new(spare_at, greeting.clone()),
            connection,
            deposed: None,
            spares: Spares::new(),
            run: OnceLock::new(),
            is_probed: AtomicBool::new(false),
            _running: idle(),
        })));
        let connection = Connection { shared, supervisor: idle(), watch: None };
        (connection, Box::pin(running), server)
    }

    fn nowhere() -> Address {
        Address::Socket("/".into())
    }

    async fn failure(connection: &Connection, limit: Duration) -> Failure {
        let call = redis::cmd("PING");
        connection.attempt(&call, limit, &Stage::default(), false).await.unwrap_err()
    }

    /// That of a request for a connection of its own.
    async fn failure_apart(connection: &Connection, limit: Duration) -> Failure {
        connection.attempt(&Blocking, limit, &Stage::default(), false).await.unwrap_err()
    }

    fn is_up(connection: &Connection) -> bool {
        matches!(*connection.shared.link.borrow(), Link::Up(_))
    }

    /// A request that keeps a connection for itself, and gets no answer.
    struct Blocking;

    impl Request for Blocking {
        const BLOCKS: bool = true;

        async fn send(&self, _: &mut MultiplexedConnection, _: To) -> RedisResult<Value> {
            std::future::pending().await
        }
    }

    const KEEPS: &str = "run_id:1\r\nloading:0\r\naof_enabled:1\r\n";
    const SETTINGS: &str = "*2\r\n$11\r\nappendfsync\r\n$6\r\nalways\r\n";

    /// What the connection finds out about the server's run, which says this of itself and then
    /// tells its settings, or hangs up.
    async fn run(
        connection: &Connection,
        server: &mut Option<DuplexStream>,
        info: &str,
        settings: Option<&str>,
    ) -> Result<Run, DriverError> {
        let telling = async {
            hear(server, b"INFO\r\n").await;
            tell(server, &format!("${}\r\n{info}\r\n", info.len())).await;
            hear(server, b"*appendfsync*\r\n").await;
            match settings {
                Some(settings) => tell(server, settings).await,
                None => *server = None,
            }
        };
        tokio::join!(connection.run(Duration::from_secs(60)), telling).0
    }

    async fn hear(server: &mut Option<DuplexStream>, end: &[u8]) {
        let mut heard = Vec::new();
        while !heard.ends_with(end) {
            server.as_mut().unwrap().read_buf(&mut heard).await.unwrap();
        }
    }

    async fn tell(server: &mut Option<DuplexStream>, answer: &str) {
        server.as_mut().unwrap().write_all(answer.as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn a_server_is_asked_what_it_keeps_until_it_has_read_its_file() {
        let (connection, running, server) = connected(nowhere()).await;
        let _running = AbortOnDropHandle::new(tokio::spawn(running));
        let mut server = Some(server);
        let loading = "run_id:1\r\nloading:1\r\naof_enabled:0\r\n";
        let error = run(&connection, &mut server, loading, Some(SETTINGS)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
        assert!(run(&connection, &mut server, KEEPS, Some(SETTINGS)).await.unwrap().is_durable());
    }

    #[tokio::test]
    async fn a_server_that_hangs_up_has_not_said_that_it_keeps_nothing() {
        let (connection, running, server) = connected(nowhere()).await;
        let _running = AbortOnDropHandle::new(tokio::spawn(running));
        let error = run(&connection, &mut Some(server), KEEPS, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    }

    /// Whatever becomes of the task that runs it.
    #[tokio::test]
    async fn a_connection_that_is_found_broken_is_not_used_again() {
        let (connection, running, _server) = connected(nowhere()).await;
        drop(running);
        let failure = failure(&connection, Duration::from_secs(60)).await;
        assert!(failure.is_end(), "{failure:?}");
        assert!(matches!(*connection.shared.link.borrow(), Link::Down(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_in_a_hurry_does_not_take_the_connection_from_others() {
        let (connection, running, mut server) = connected(nowhere()).await;
        let _running = AbortOnDropHandle::new(tokio::spawn(running));
        for limit in [SHORTEST / 5, 2 * SHORTEST] {
            let failure = failure(&connection, limit).await;
            assert!(matches!(failure, Failure::NoAnswer(_)), "{failure:?}");
            assert!(is_up(&connection));
            // The answers to the call and to the question after it.
            sleep(limit.max(SHORTEST) / 2).await;
            server.write_all(b"+PONG\r\n+OK\r\n").await.unwrap();
            sleep(2 * SILENCE).await;
            assert!(is_up(&connection));
        }
        failure(&connection, 2 * SHORTEST).await;
        assert!(is_up(&connection));
        // Soon enough for a call in a hurry to make another attempt.
        sleep(2 * SHORTEST + Duration::from_millis(2)).await;
        assert!(!is_up(&connection), "nothing came");
    }

    #[tokio::test(start_paused = true)]
    async fn nor_does_one_that_had_to_wait_for_the_connection() {
        let (connection, running, mut server) = connected(nowhere()).await;
        let _running = AbortOnDropHandle::new(tokio::spawn(running));
        let Link::Up(open) = connection.shared.link.send_replace(Link::Down(None)) else {
            panic!("it is there from the beginning")
        };
        let (limit, soon) = (SILENCE + SHORTEST, SHORTEST / 5);
        let connecting = async {
            sleep(limit - soon).await;
            connection.shared.set(Link::Up(open));
        };
        let (failure, ()) = tokio::join!(failure(&connection, limit), connecting);
        assert!(matches!(failure, Failure::NoAnswer(_)), "{failure:?}");
        sleep(soon).await;
        server.write_all(b"+PONG\r\n+OK\r\n").await.unwrap();
        sleep(2 * SILENCE).await;
        assert!(is_up(&connection));
    }

    #[tokio::test(start_paused = true)]
    async fn nor_does_one_that_gets_no_connection_of_its_own() {
        let (connection, running, mut server) = connected(nowhere()).await;
        let _running = AbortOnDropHandle::new(tokio::spawn(running));
        let failure = failure_apart(&connection, Duration::from_secs(1)).await;
        assert!(matches!(failure, Failure::NoSpare(_)), "{failure:?}");
        // The answer to the question.
        sleep(SHORTEST).await;
        server.write_all(b"+OK\r\n").await.unwrap();
        sleep(2 * SILENCE).await;
        assert!(is_up(&connection));
        failure_apart(&connection, Duration::from_secs(1)).await;
        sleep(2 * SILENCE).await;
        assert!(!is_up(&connection), "the question was not answered either");
    }

    #[tokio::test(start_paused = true)]
    async fn nor_does_one_whose_own_connection_is_silent() {
        let (connection, running, mut server) = connected(nowhere()).await;
        let _running = AbortOnDropHandle::new(tokio::spawn(running));
        let open = connection.shared.up(&Stage::default()).await.unwrap();
        for _ in 0..2 {
            open.spares.add(open.connection.clone(), idle());
        }
        let failure = failure_apart(&connection, Duration::from_secs(1)).await;
        assert!(matches!(failure, Failure::NoAnswer(_)), "{failure:?}");
        // The answer to the question.
        sleep(SHORTEST).await;
        server.write_all(b"+OK\r\n").await.unwrap();
        sleep(2 * SILENCE).await;
        assert!(is_up(&connection));
        let failure = failure_apart(&connection, Duration::from_secs(1)).await;
        assert!(matches!(failure, Failure::NoSpare(_)), "the other is used: {failure:?}");
        sleep(2 * SILENCE).await;
        assert!(!is_up(&connection), "the question was not answered either");
    }

    #[tokio::test(start_paused = true)]
    async fn nor_does_one_whose_own_connection_is_long_in_coming() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let at = Address::Network { host: "127.0.0.1".into(), port, tls: None };
        let (connection, running, mut server) = connected(at).await;
        let _running = AbortOnDropHandle::new(tokio::spawn(running));
        let failure = failure_apart(&connection, SHORTEST).await;
        assert!(matches!(failure, Failure::NoConnection { .. }), "{failure:?}");
        // The answer to the question.
        sleep(SHORTEST / 2).await;
        server.write_all(b"+OK\r\n").await.unwrap();
        sleep(2 * SILENCE).await;
        assert!(is_up(&connection));
    }
}
