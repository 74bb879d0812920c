//! News by `LISTEN` and `NOTIFY`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use super::endpoint::{Endpoint, session_of};
use super::error::Failure;
use crate::subscription::{Board, Listener, News, Wire};

/// How often to check that the server is still there.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// Where news is told.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    endpoint: Endpoint,
    name: Arc<str>,
    has_namespaces: bool,
}

impl Channel {
    pub(super) fn new(endpoint: Endpoint, name: impl Into<Arc<str>>) -> Self {
        Self { endpoint, name: name.into(), has_namespaces: true }
    }

    /// The same, where a name means one lock in all namespaces.
    pub(super) fn without_namespaces(self) -> Self {
        Self { has_namespaces: false, ..self }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What the channel's listener keeps locked where others want to know whether there is one;
    /// `lockkit_listens` in `layout.sql` derives it in the same way.
    fn sign_of_life(&self) -> Option<[i32; 2]> {
        let digits = self.name.strip_prefix("lockkit_")?;
        let key = |part| u32::from_str_radix(digits.get(part)?, 16).ok();
        Some([key(0..8)?.cast_signed(), key(8..16)?.cast_signed()])
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}

impl Wire for Channel {
    type Listener = ChannelListener;
    type Failure = Failure;

    async fn listen(&self) -> Result<ChannelListener, Failure> {
        let (listener, session) = self.endpoint.listen(&self.name, self.sign_of_life()).await?;
        let mut looks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let has_namespaces = self.has_namespaces;
        Ok(ChannelListener { listener, session, looks, has_namespaces })
    }
}

/// A connection that listens.
#[derive(Debug)]
pub(super) struct ChannelListener {
    listener: PgListener,
    /// Which session of the server listens.
    session: i32,
    looks: Interval,
    has_namespaces: bool,
}

impl Listener for ChannelListener {
    type Failure = Failure;

    async fn hear(&mut self, board: &Board) -> Result<(), Failure> {
        // The news of others' locks may come without a pause.
        tokio::select! {
            biased;
            _ = self.looks.tick() => self.check().await,
            news = self.listener.try_recv() => {
                let news = news?.ok_or(Failure::Broken)?;
                match parse(news.payload()) {
                    Some((namespace, name, news)) if self.has_namespaces => {
                        board.deliver(namespace, name, news);
                    }
                    // The namespace is that of the holder.
                    Some((_, name, _)) => board.free_in_all_namespaces(name),
                    None => (),
                }
                Ok(())
            }
        }
    }

    /// The client has a task that ends a listener that is dropped.
    async fn close(self) {}
}

impl ChannelListener {
    /// Makes sure that the other end is there, is still the session that listens, and takes writes:
    /// there is no news where there are none.
    async fn check(&mut self) -> Result<(), Failure> {
        const LIMIT: Duration = Duration::from_secs(3);
        let asking = session_of(&mut self.listener);
        let session = timeout(LIMIT, asking).await.map_err(|_| Failure::NoAnswer(LIMIT))??;
        match session.pid == self.session {
            true if session.is_read_only => Err(Failure::Demoted),
            true => Ok(()),
            false => Err(Failure::Pooled),
        }
    }
}

/// `NAMESPACE`, `NAME` and the news, one line each; the news is `granted OWNER TOKEN` or
/// `released`. Anything else is taken for `released`: asking does no harm.
fn parse(message: &str) -> Option<(&str, &str, News)> {
    let (key, news) = message.rsplit_once('\n')?;
    let (namespace, name) = key.split_once('\n')?;
    let mut words = news.split(' ');
    let news = match (words.next(), words.next(), words.next()) {
        (Some("granted"), Some(owner), Some(token)) => {
            owner.parse().ok().zip(token.parse().ok()).map(|(o, t)| News::Granted(o, t))
        }
        _ => None,
    };
    Some((namespace, name, news.unwrap_or(News::Released)))
}
