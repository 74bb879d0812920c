use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkit_core::Result;
use lockkit_core::driver::Driver;

use crate::pulse::Pulse;

/// How a node is connected to.
pub(crate) type Connect =
    Box<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Driver>>> + Send + Sync>;

/// How long to leave a node alone that cannot be connected to: the first time, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A node: what it is called, and its driver once it was connected to.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) pulse: Arc<Pulse>,
    connect: Option<Connect>,
    link: Mutex<Link>,
}

#[derive(Clone)]
enum Link {
    Up(Arc<dyn Driver>),
    /// Not yet, and why.
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
        let mut pause = PAUSES.0;
        while let Err(error) = self.connect().await {
            let node = &self.name;
            match error.is_transient() {
                true => tracing::debug!(%node, %error, "no connection to a node yet"),
                false => tracing::warn!(%node, %error, "no connection to a node"),
            }
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(PAUSES.1);
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
        // Some only repeat what is behind them.
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
