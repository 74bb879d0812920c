use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkit_core::Result;
use lockkit_core::driver::{Backoff, Driver};

use crate::pulse::Pulse;

/// How a node is connected to.
pub(crate) type Connect =
    Box<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Driver>>> + Send + Sync>;

/// How long to leave a node alone that is there but is not what it should be: somebody has to change
/// that.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// A node: what it is called, and its driver once it has been connected to.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) pulse: Arc<Pulse>,
    connect: Option<Connect>,
    link: Mutex<Link>,
}

#[derive(Clone)]
enum Link {
    Up(Arc<dyn Driver>),
    /// Not connected yet, and why.
    Down(Arc<str>),
}

impl Member {
    pub(crate) fn connected(name: String, driver: Arc<dyn Driver>) -> Self {
        Self::new(name, None, Link::Up(driver))
    }

    pub(crate) fn to_be_connected(name: String, connect: Connect) -> Self {
        let link = Link::Down("it was not connected to yet".into());
        Self::new(name, Some(connect), link)
    }

    fn new(name: String, connect: Option<Connect>, link: Link) -> Self {
        Self { name, pulse: Arc::default(), connect, link: Mutex::new(link) }
    }

    /// Its driver, or why there is none.
    pub(crate) fn driver(&self) -> Result<Arc<dyn Driver>, Arc<str>> {
        match &*self.link.lock().unwrap_or_else(PoisonError::into_inner) {
            Link::Up(driver) => Ok(Arc::clone(driver)),
            Link::Down(reason) => Err(Arc::clone(reason)),
        }
    }

    /// Connects to it, with one attempt.
    pub(crate) async fn connect(&self) -> Result<()> {
        let Some(connect) = &self.connect else { return Ok(()) };
        let connected = connect().await;
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        match (&connected, &*link) {
            // Another attempt was faster.
            (_, Link::Up(_)) => return Ok(()),
            (Ok(driver), _) => *link = Link::Up(Arc::clone(driver)),
            (Err(error), _) => *link = Link::Down(causes(error).into()),
        }
        connected.map(|_| ())
    }

    /// Connects to it, with as many attempts as it takes.
    pub(crate) async fn keep_connecting(&self) {
        let (mut backoff, mut told) = (Backoff::default(), None);
        while let Err(error) = self.connect().await {
            let node = &self.name;
            let pause = match error.is_transient() {
                true => {
                    tracing::debug!(%node, %error, "no connection to a node yet");
                    backoff.failed();
                    backoff.pause()
                }
                false => {
                    let reason = Some(causes(&error));
                    match told == reason {
                        true => tracing::debug!(%node, %error, "still no connection to a node"),
                        false => tracing::warn!(%node, %error, "no connection to a node"),
                    }
                    told = reason;
                    REFUSED_PAUSE.mul_f64(0.5 + fastrand::f64() / 2.0)
                }
            };
            tokio::time::sleep(pause).await;
        }
        tracing::info!(node = %self.name, "connected to a node");
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Member").field(&self.name).field(&self.driver()).finish()
    }
}

/// What an error says, and what is behind it.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Some errors only repeat what is behind them.
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use lockkit_core::Error;
    use lockkit_core::driver::{DriverError, ErrorKind};
    use lockkit_core::memory::MemoryDriver;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    /// Counts warnings.
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    fn refused(reason: &str) -> Error {
        Error::connecting("test", DriverError::new(ErrorKind::Misconfigured, reason))
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_stays_unfit_is_warned_of_once() {
        const ATTEMPTS: usize = 40;
        let (warnings, attempts) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let _guard = tracing::subscriber::set_default(Warnings(Arc::clone(&warnings)));
        let tried = Arc::clone(&attempts);
        let connect = move || -> BoxFuture<'static, Result<Arc<dyn Driver>>> {
            let outcome = match tried.fetch_add(1, Ordering::Relaxed) {
                ATTEMPTS => Ok(Arc::new(MemoryDriver::new()) as Arc<dyn Driver>),
                // Something else is wrong with it by then.
                number if number > ATTEMPTS / 2 => Err(refused("a replica")),
                _ => Err(refused("no persistence")),
            };
            Box::pin(async move { outcome })
        };
        let member = Member::to_be_connected("one".into(), Box::new(connect));
        let began = tokio::time::Instant::now();
        member.keep_connecting().await;
        assert!(member.driver().is_ok());
        assert_eq!(warnings.load(Ordering::Relaxed), 2, "one for each reason");
        let least = REFUSED_PAUSE / 2 * u32::try_from(ATTEMPTS).unwrap();
        assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    }
}
