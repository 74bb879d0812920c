//! News of a cluster: a connection to each member that has a channel of ours. A channel lives in
//! the slot of its lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use lockkit_core::driver::Backoff;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value, cmd};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Shared;
use super::slots::slot;
use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::subscription::{Board, CONFIRM_LIMIT, REFUSED_PAUSE};

/// How long to leave a channel alone whose member does not answer, or names another.
const PAUSE: Duration = Duration::from_millis(100);

/// A member that fails again within this time of an attempt is left alone for longer.
const CALM: Duration = Duration::from_secs(5);

/// Keeps channels subscribed to where their slots are.
pub(crate) async fn supervise(cluster: Arc<Shared>, board: Arc<Board>) {
    let (pushes, mut pushed) = mpsc::unbounded_channel();
    let mut news = News {
        cluster: cluster.clone(),
        board: board.clone(),
        pushes,
        links: Vec::new(),
        placed: HashMap::new(),
        leaving: HashMap::new(),
        under_way: FuturesUnordered::new(),
        made: 0,
        failing: Vec::new(),
        retry: None,
    };
    let mut map = cluster.watch();
    loop {
        news.place(board.take_altered());
        let retry = news.retry;
        tokio::select! {
            () = board.altered() => (),
            Some((link, push)) = pushed.recv() => news.hear(link, push),
            Some(step) = news.under_way.next() => news.step(step),
            Ok(()) = map.changed() => news.follow(),
            () = sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {
                news.retry = None;
                news.follow();
            }
        }
    }
}

struct News {
    cluster: Arc<Shared>,
    board: Arc<Board>,
    pushes: mpsc::UnboundedSender<(u64, PushInfo)>,
    links: Vec<Link>,
    placed: HashMap<String, Place>,
    /// How often we have unsubscribed from a channel on a link without having heard back yet.
    leaving: HashMap<(u64, String), u32>,
    under_way: FuturesUnordered<BoxFuture<'static, Step>>,
    /// How many links there have been.
    made: u64,
    /// Which members have failed or refused to tell news lately.
    failing: Vec<Failing>,
    /// When to try again what has failed.
    retry: Option<Instant>,
}

/// The link on which a channel is or will be subscribed to.
struct Place {
    link: u64,
    is_confirmed: bool,
}

/// A member that has failed lately.
struct Failing {
    member: Endpoint,
    backoff: Backoff,
    /// When it is tried again, whatever the news until then.
    until: Instant,
}

/// A connection to a member.
struct Link {
    id: u64,
    endpoint: Endpoint,
    /// `None` while it is being made.
    open: Option<(MultiplexedConnection, AbortOnDropHandle<()>)>,
}

/// Something that was under way and has ended.
enum Step {
    Connected(u64, Result<(MultiplexedConnection, AbortOnDropHandle<()>), Failure>),
    /// A command for a channel that was sent, and answered or not.
    Asked(u64, String, Result<(), Failure>),
}

impl News {
    /// Subscribes to what is wanted and unsubscribes from what is not.
    fn place(&mut self, altered: Vec<String>) {
        let map = self.cluster.map();
        for name in altered {
            match (self.board.is_wanted(&name), self.placed.get(&name)) {
                // Abandoned and wanted again before we looked.
                (true, Some(place)) if place.is_confirmed => self.board.confirm(&[name]),
                (true, Some(_)) => (),
                (true, None) => match map.owner(slot(&name)) {
                    Some(owner) if self.is_left_alone(owner) => (),
                    Some(owner) => {
                        let link = self.link_to(owner);
                        self.placed.insert(name.clone(), Place { link, is_confirmed: false });
                        self.ask(link, "SSUBSCRIBE", name);
                    }
                    None => self.try_again(PAUSE),
                },
                (false, Some(&Place { link, .. })) => {
                    self.placed.remove(&name);
                    self.ask(link, "SUNSUBSCRIBE", name);
                }
                (false, None) => (),
            }
        }
    }

    fn link_to(&mut self, endpoint: &Endpoint) -> u64 {
        if let Some(link) = self.links.iter().find(|link| link.endpoint.is_where(endpoint)) {
            return link.id;
        }
        self.made += 1;
        let (id, endpoint, pushes) = (self.made, endpoint.clone(), self.pushes.clone());
        self.links.push(Link { id, endpoint: endpoint.clone(), open: None });
        self.under_way.push(Box::pin(async move {
            // Nobody hears what is pushed after the supervisor has gone.
            let push = move |push| pushes.send((id, push));
            let connected = endpoint.listen(push).await.map(|(connection, running)| {
                (connection, AbortOnDropHandle::new(tokio::spawn(running)))
            });
            Step::Connected(id, connected)
        }));
        id
    }

    /// Sends a command for a channel, if there is a connection; otherwise, it is sent once there is
    /// one.
    fn ask(&mut self, id: u64, verb: &'static str, name: String) {
        let link = self.links.iter().find(|link| link.id == id);
        let Some((connection, _)) = link.and_then(|link| link.open.as_ref()) else { return };
        let mut connection = connection.clone();
        if verb == "SUNSUBSCRIBE" {
            *self.leaving.entry((id, name.clone())).or_default() += 1;
        }
        self.under_way.push(Box::pin(async move {
            let mut command = cmd(verb);
            command.arg(&name);
            let asking = async {
                connection.send_packed_command(&command).await?.extract_error()?;
                Ok(())
            };
            let limit = Failure::NoAnswer(CONFIRM_LIMIT);
            let answer = timeout(CONFIRM_LIMIT, asking).await.unwrap_or(Err(limit));
            Step::Asked(id, name, answer)
        }));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Connected(id, Ok(open)) => {
                if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
                    link.open = Some(open);
                    let names = self.placed_by(id);
                    names.into_iter().for_each(|name| self.ask(id, "SSUBSCRIBE", name));
                }
            }
            Step::Asked(_, _, Ok(())) => (),
            // The slot went to another member before we came.
            Step::Asked(id, name, Err(failure)) if failure.is_redirection() => {
                if self.placed.get(&name).is_some_and(|place| place.link == id) {
                    self.placed.remove(&name);
                }
                self.cluster.doubt();
                self.try_again(PAUSE);
            }
            Step::Connected(id, Err(failure)) | Step::Asked(id, _, Err(failure)) => {
                self.drop_link(id, &failure);
            }
        }
    }

    fn hear(&mut self, id: u64, push: PushInfo) {
        let text = |value: Option<&Value>| match value {
            Some(Value::BulkString(bytes)) => bytes.clone(),
            _ => Vec::new(),
        };
        let name = String::from_utf8(text(push.data.first())).unwrap_or_default();
        let place = self.placed.get_mut(&name).filter(|place| place.link == id);
        let is_placed_here = place.is_some();
        match push.kind {
            PushKind::SMessage if is_placed_here => {
                self.board.deliver(&name, &text(push.data.get(1)));
            }
            PushKind::SSubscribe => {
                if let Some(place) = place {
                    place.is_confirmed = true;
                    self.board.confirm(&[name]);
                }
            }
            PushKind::SUnsubscribe if self.leaving.contains_key(&(id, name.clone())) => {
                let times = self.leaving.entry((id, name.clone())).or_default();
                *times -= 1;
                if *times == 0 {
                    self.leaving.remove(&(id, name));
                }
            }
            // We have not asked for it: the slot has gone to another member. What else is under way
            // on the connection may have been taken to be answered by that.
            PushKind::SUnsubscribe if is_placed_here => self.drop_link(id, &Failure::SlotLeft),
            PushKind::Disconnection => self.drop_link(id, &Failure::Broken),
            _ => (),
        }
    }

    /// Drops a link: what was to be heard on it is not heard any more.
    fn drop_link(&mut self, id: u64, failure: &Failure) {
        let Some(at) = self.links.iter().position(|link| link.id == id) else { return };
        let link = self.links.swap_remove(at);
        let fallen = self.placed_by(id);
        self.placed.retain(|_, place| place.link != id);
        self.leaving.retain(|(link, _), _| *link != id);
        self.board.fall_silent(&fallen);
        let endpoint = link.endpoint;
        let refuses = failure.is_lasting() && !failure.is_redirection();
        if refuses {
            tracing::warn!(%endpoint, %failure, "Redis refuses to tell news; waiters poll");
        } else {
            tracing::debug!(%endpoint, %failure, "no news from Redis for now; waiters poll");
            self.cluster.doubt();
        }
        let pause = match failure {
            // It has only lost a slot.
            Failure::SlotLeft => PAUSE,
            _ => self.leave_alone(endpoint, refuses),
        };
        self.try_again(pause);
    }

    /// Leaves a member alone for now; returns for how long.
    fn leave_alone(&mut self, member: Endpoint, refuses: bool) -> Duration {
        let now = Instant::now();
        self.failing.retain(|failing| failing.until + CALM > now);
        let mut failing = match self.failing.iter().position(|it| it.member.is_where(&member)) {
            Some(at) => self.failing.swap_remove(at),
            None => Failing { member, backoff: Backoff::default(), until: now },
        };
        failing.backoff.failed();
        let pause = match refuses {
            true => REFUSED_PAUSE,
            false => failing.backoff.pause().max(PAUSE),
        };
        failing.until = now + pause;
        self.failing.push(failing);
        pause
    }

    /// Whether a member has failed lately. It is tried again when its time has come.
    fn is_left_alone(&mut self, owner: &Endpoint) -> bool {
        let now = Instant::now();
        let failing = self.failing.iter().find(|failing| failing.member.is_where(owner));
        let Some(until) = failing.map(|failing| failing.until).filter(|until| *until > now) else {
            return false;
        };
        self.try_again(until - now);
        true
    }

    /// Moves channels to where their slots are now.
    fn follow(&mut self) {
        let map = self.cluster.map();
        let is_at = |id: u64, endpoint: &Endpoint| {
            self.links.iter().any(|link| link.id == id && link.endpoint.is_where(endpoint))
        };
        let astray = |(name, place): &(&String, &Place)| match map.owner(slot(name)) {
            Some(owner) => !is_at(place.link, owner),
            None => false,
        };
        let astray: Vec<_> = self.placed.iter().filter(astray).map(|it| it.0.clone()).collect();
        for name in &astray {
            if let Some(place) = self.placed.remove(name) {
                self.ask(place.link, "SUNSUBSCRIBE", name.clone());
            }
        }
        self.board.fall_silent(&astray);
        // A member that has no channel any more keeps no connection.
        self.links.retain(|link| self.placed.values().any(|place| place.link == link.id));
        self.leaving.retain(|(id, _), _| self.links.iter().any(|link| link.id == *id));
        // Including those that could not be placed before.
        let wanted = self.board.wanted();
        self.place(wanted.into_iter().filter(|name| !self.placed.contains_key(name)).collect());
    }

    fn placed_by(&self, id: u64) -> Vec<String> {
        let placed = self.placed.iter().filter(|(_, place)| place.link == id);
        placed.map(|(name, _)| name.clone()).collect()
    }

    fn try_again(&mut self, pause: Duration) {
        let due = Instant::now() + pause;
        self.retry = Some(self.retry.map_or(due, |retry| retry.min(due)));
    }
}
