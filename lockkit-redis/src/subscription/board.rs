//! Who listens to what, and what each was told.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::FencingToken;
use lockkit_core::driver::{Change, Grant, OwnerId};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Alterations;

/// How long a channel stays subscribed to once nobody listens to it. Where waiters take turns, the
/// next one thus need not subscribe again, nor ask again for that reason.
const LINGER: Duration = Duration::from_secs(1);

/// Those of us who wait for one lock in no order, by the digest of its name. Only one of them
/// listens at a time, and it need not be the one that the server has heard of.
pub(crate) type LockDigest = [u8; 32];

/// Who listens to what.
#[derive(Debug, Default)]
pub(crate) struct Board {
    pub(super) channels: Mutex<Channels>,
    /// A channel has got its first listener, or is the first to have lost its last.
    pub(super) altered: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Channels {
    /// Those with listeners, and those that had some lately.
    pub(super) by_name: HashMap<String, Channel>,
    /// Those that have lost their last listener, and when to check whether to unsubscribe from
    /// them.
    pub(super) idle: VecDeque<(Instant, String)>,
    /// Those that may have to be subscribed to or unsubscribed from.
    pub(super) altered: Vec<String>,
    /// How many listen in crowds.
    pub(super) crowds: usize,
}

#[derive(Debug, Default)]
pub(super) struct Channel {
    /// Whether the server has confirmed the subscription.
    pub(super) stands: bool,
    /// Since when nobody has listened.
    pub(super) silent_since: Option<Instant>,
    /// Whether it is noted in [`Channels::idle`].
    pub(super) is_noted: bool,
    pub(super) mailboxes: HashMap<OwnerId, Mailbox>,
}

/// The news of one waiter.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Who held the lock when the owner's last ask was refused.
    pub(super) holder: Option<FencingToken>,
    pub(super) crowd: Option<LockDigest>,
    pub(super) granted: Option<FencingToken>,
    pub(super) ask_again: bool,
    pub(super) arrival: Arc<Notify>,
}

impl Mailbox {
    fn ask_again(&mut self) {
        self.ask_again = true;
        self.arrival.notify_one();
    }

    pub(super) fn take(&mut self) -> Option<Change> {
        let ask_again = std::mem::take(&mut self.ask_again);
        let Some(token) = self.granted.take() else {
            return ask_again.then_some(Change::AskAgain);
        };
        match self.holder {
            Some(holder) if token > holder => Some(Change::Granted(Grant::new().token(token))),
            // The grant was over before the last ask was refused: this message was late.
            Some(_) => ask_again.then_some(Change::AskAgain),
            // No ask was answered, so nothing tells how long the grant lasts. Asking does.
            None => Some(Change::AskAgain),
        }
    }
}

impl Board {
    pub(super) fn channels(&self) -> MutexGuard<'_, Channels> {
        // Nothing panics while it holds the lock.
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remove(&self, channels: &mut Channels, name: &str, owner: OwnerId) {
        let Some(channel) = channels.by_name.get_mut(name) else { return };
        let left = channel.mailboxes.remove(&owner);
        channels.crowds -= usize::from(left.is_some_and(|mailbox| mailbox.crowd.is_some()));
        if !channel.mailboxes.is_empty() {
            return;
        }
        if !channel.stands {
            channels.by_name.remove(name);
            channels.altered.push(name.into());
            self.altered.notify_one();
            return;
        }
        let now = Instant::now();
        channel.silent_since = Some(now);
        if !std::mem::replace(&mut channel.is_noted, true) {
            channels.idle.push_back((now + LINGER, name.into()));
            if channels.idle.len() == 1 {
                self.altered.notify_one();
            }
        }
    }

    /// Whether somebody listens to the channel, or did lately.
    pub(crate) fn is_wanted(&self, name: &str) -> bool {
        self.channels().by_name.contains_key(name)
    }

    /// The channels that somebody listens to, or did lately.
    pub(crate) fn wanted(&self) -> Vec<String> {
        self.channels().by_name.keys().cloned().collect()
    }

    /// The channels that may have got their first listener since the last time, or lost their last.
    pub(crate) fn take_altered(&self) -> Vec<String> {
        std::mem::take(&mut self.channels().altered)
    }

    /// Returns when there are such channels.
    pub(crate) async fn altered(&self) {
        loop {
            let next = {
                let mut channels = self.channels();
                channels.drop_idle(Instant::now());
                if !channels.altered.is_empty() {
                    return;
                }
                channels.idle.front().map(|(due, _)| *due)
            };
            match next {
                None => self.altered.notified().await,
                Some(due) => _ = timeout_at(due, self.altered.notified()).await,
            }
        }
    }

    /// Takes note that the subscription to these channels does not stand any more.
    pub(crate) fn fall_silent(&self, names: &[String]) {
        let mut channels = self.channels();
        for name in names {
            match channels.by_name.get_mut(name) {
                Some(channel) if channel.mailboxes.is_empty() => _ = channels.by_name.remove(name),
                Some(channel) => channel.stands = false,
                None => (),
            }
        }
    }

    pub(crate) fn deliver(&self, name: &str, payload: &[u8]) {
        let mut channels = self.channels();
        let Some(channel) = channels.by_name.get_mut(name) else { return };
        match News::parse(payload) {
            Some(News::Granted(owner, token)) => {
                if let Some(mailbox) = channel.mailboxes.get_mut(&owner) {
                    mailbox.granted = Some(token);
                    mailbox.arrival.notify_one();
                }
            }
            Some(News::Free(owner)) => {
                let told = channel.mailboxes.get(&owner).map(|mailbox| mailbox.crowd);
                for (listener, mailbox) in &mut channel.mailboxes {
                    let concerns = match told {
                        Some(crowd) => {
                            *listener == owner || crowd.is_some() && mailbox.crowd == crowd
                        }
                        // It was refused, and we have not heard of that yet; or it is gone, and
                        // asking does no harm.
                        None => mailbox.crowd.is_some(),
                    };
                    if concerns {
                        mailbox.ask_again();
                    }
                }
            }
            // A message of another kind: asking does no harm.
            None => channel.mailboxes.values_mut().for_each(Mailbox::ask_again),
        }
    }

    /// Takes note that the subscription to these channels stands.
    pub(crate) fn confirm(&self, names: &[String]) {
        let mut channels = self.channels();
        for name in names {
            if let Some(channel) = channels.by_name.get_mut(name) {
                channel.stands = true;
                channel.mailboxes.values_mut().for_each(Mailbox::ask_again);
            }
        }
    }

    /// Takes note that no subscription stands any more.
    pub(super) fn fall(&self) {
        let mut channels = self.channels();
        channels.by_name.retain(|_, channel| !channel.mailboxes.is_empty());
        channels.by_name.values_mut().for_each(|channel| channel.stands = false);
        channels.altered = channels.by_name.keys().cloned().collect();
    }

    /// What to subscribe to and what to unsubscribe from, given what is subscribed to.
    pub(super) fn alterations(&self, subscribed: &mut HashSet<String>) -> Alterations {
        let mut channels = self.channels();
        let mut alterations = Alterations::default();
        for name in std::mem::take(&mut channels.altered) {
            match channels.by_name.get_mut(&name) {
                Some(_) if subscribed.insert(name.clone()) => alterations.subscribe.push(name),
                // Abandoned and wanted again before we looked.
                Some(channel) => {
                    channel.stands = true;
                    channel.mailboxes.values_mut().for_each(Mailbox::ask_again);
                }
                None if subscribed.remove(&name) => alterations.unsubscribe.push(name),
                None => (),
            }
        }
        alterations
    }
}

impl Channels {
    /// Gives up channels that nobody has listened to for a while.
    fn drop_idle(&mut self, now: Instant) {
        while self.idle.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, name)) = self.idle.pop_front() else { return };
            let Some(channel) = self.by_name.get_mut(&name) else { continue };
            channel.is_noted = false;
            match channel.silent_since {
                Some(since) if channel.mailboxes.is_empty() => {
                    if since + LINGER <= now {
                        self.by_name.remove(&name);
                        self.altered.push(name);
                    } else {
                        channel.is_noted = true;
                        self.idle.push_back((since + LINGER, name));
                    }
                }
                _ => (),
            }
        }
    }
}

/// A message.
enum News {
    /// `granted OWNER TOKEN`
    Granted(OwnerId, FencingToken),
    /// `free OWNER`
    Free(OwnerId),
}

impl News {
    fn parse(payload: &[u8]) -> Option<Self> {
        let (verb, words) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
        match (verb, words.split_once(' ')) {
            ("granted", Some((owner, token))) => {
                Some(Self::Granted(owner.parse().ok()?, token.parse().ok()?))
            }
            ("free", None) => Some(Self::Free(words.parse().ok()?)),
            _ => None,
        }
    }
}
