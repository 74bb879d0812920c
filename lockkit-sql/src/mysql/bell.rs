//! How one process tells another that a lock was let go.
//!
//! The server has no news of its own. But one session may end another's statement: while somebody
//! in a process waits, one of the process's sessions sleeps, and whoever lets go of a lock ends
//! that sleep by `KILL QUERY`. A user needs no right for that if the session is its own. Before
//! that, a row notes what the sleep is ended for; the statement that sleeps reads such rows first,
//! so nothing is missed that is told between two sleeps. The sleeper is found by a lock of
//! `GET_LOCK` that it holds under a name that nobody else has: the session's number may by now be
//! that of another session, or of one on another server.
//!
//! The sleeper sleeps by waiting for another such lock, which a connection for requests keeps. It
//! does not call `SLEEP`: what that waits on is shared by all sessions of a MariaDB server, and
//! where several of them sleep and are woken, waking one can take seconds.
//!
//! A process whose waiters all want the same lock need not read which one is meant: it has them ask
//! at once.
//!
//! A process is told of a lock once; when it is refused again, it notes anew that it waits. Of
//! several processes, the one that has waited longest is told, or the one with the first place.

mod sleeper;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::LockName;
use lockkit_core::driver::{Change, Claim, ErrorKind, Limit, OwnerId};
use sqlx::Row as _;
use tokio::time::{Duration, Instant};

use self::sleeper::Sleeper;
use super::claims;
use super::connections::{Connections, Steps, Transaction, Value};
use super::endpoint::Endpoint;
use super::error::Failure;
use super::kill::{END, NO_SUCH_SESSION, NOT_ITS_OWNER};
use crate::seats::Urgency;
use crate::subscription::{Board, Joined, Listing, News, Subscription, Wire};

const LIST: &str = include_str!("sql/list.sql");
const TELL: &str = include_str!("sql/tell.sql");
const DROP_DEAD: &str = "DELETE FROM lockkit_bell WHERE inbox = LAST_INSERT_ID() \
     AND IS_USED_LOCK(CONCAT('lockkit ', inbox)) IS NULL \
     AND CAST(@@global.read_only AS CHAR) IN ('0', 'OFF')";
/// The connection is of no use once it has said nothing for this long.
const END_BY_ITSELF: &str = "SET SESSION wait_timeout = 20";
const MARK: &str = "SELECT COALESCE(GET_LOCK(?, 1), 0) AS is_ours";
/// The session whose inbox was the id of the last reply.
const RING: &str = "SET @lockkit_session = COALESCE(IS_USED_LOCK(CONCAT('lockkit ', LAST_INSERT_ID())), 0); \
     KILL QUERY @lockkit_session";
const FIND: &str = "SET @lockkit_session = COALESCE(IS_USED_LOCK(?), 0)";

/// Within this time, whoever was told has asked.
const A_MOMENT: Duration = Duration::from_millis(20);

/// How long telling a waiter may take. A waiter asks by itself after a second.
const LIMIT: Duration = Duration::from_secs(1);

/// The bell of one driver, and the way to those of others.
#[derive(Debug)]
pub(super) struct Bell {
    line: Line,
    subscription: Subscription,
    /// Which locks were let go for another process to have, and when.
    handed_over: Mutex<HashMap<LockName, Instant>>,
}

impl Bell {
    pub(super) fn new(endpoint: Endpoint, connections: Arc<Connections>) -> Self {
        let line = Line { endpoint, connections, inbox: inbox(), was_denied: Arc::default() };
        let subscription = Subscription::new(line.clone());
        Self { line, subscription, handed_over: Mutex::default() }
    }

    /// Where the process listens.
    pub(super) fn inbox(&self) -> Value<'static> {
        Value::Integer(self.line.inbox)
    }

    /// Whether the claim will be told of a release. To be called before an ask.
    pub(super) fn is_heard_by(&self, claim: &Claim) -> bool {
        let until = Instant::now() + claim.ttl() / 2;
        self.subscription.is_listed(claim.name(), claim.owner(), until)
    }

    /// Has the claim told of a release, from its next ask on; returns whether that can be done now.
    pub(super) async fn listen(&self, claim: &Claim, within: Limit) -> Result<bool, Failure> {
        let (name, owner) = (claim.name(), claim.owner());
        let listing = self.subscription.listing(name, owner);
        let joined = self.subscription.join(name, owner);
        if joined == Joined::NotYet {
            self.subscription.wait(name, owner, None, joined);
            return Ok(false);
        }
        let was_told = self.subscription.list(name, owner, Instant::now() + claim.ttl());
        let [namespace, lock] = claims::of(name);
        let lease = claims::lease(claim);
        let listened = listing.is_some_and(|listing| listing != Listing::Never);
        let listened = Value::Integer(listened.into());
        let values = [namespace, lock, self.inbox(), lease, listened, lease];
        let list = List { values };
        let listed = self.line.connections.sequence(&list, Urgency::Asks, within).await;
        match &listed {
            // The sleep was ended for others, too.
            Ok(true) => _ = deliver(self.subscription.board(), name),
            Ok(false) => (),
            Err(failure) => {
                self.subscription.unlist(name, owner);
                // Nobody releases a claim whose ask was not carried out.
                if joined == Joined::Now {
                    self.subscription.leave(name, owner);
                }
                // A note may have been cleared that nobody has heard.
                if was_told || failure.leaves_a_doubt() {
                    deliver(self.subscription.board(), name);
                }
            }
        }
        listed.map(|_| true)
    }

    /// Notes the claim's place, by its number in the queue of the lock.
    pub(super) fn stand(&self, claim: &Claim, arrival: i64) {
        self.subscription.stand(claim.name(), claim.owner(), arrival);
    }

    /// Whether it is this claim that was told of a release, and it has not asked since.
    pub(super) fn has_told(&self, claim: &Claim) -> bool {
        self.subscription.board().is_told(claim.name(), claim.owner())
    }

    /// Whether another claim of this process that listens has a place before that of this one.
    pub(super) fn is_behind_another(&self, claim: &Claim) -> bool {
        self.subscription.board().is_behind_another(claim.name(), claim.owner())
    }

    /// Takes note that the claim need not ask, since one before it in this process does.
    pub(super) fn relies_on_another(&self, claim: &Claim) {
        self.subscription.relies_on_another(claim.name(), claim.owner());
    }

    /// Whether the claim has asked before, and waits.
    pub(super) fn knows(&self, claim: &Claim) -> bool {
        self.subscription.listing(claim.name(), claim.owner()).is_some()
    }

    /// Forgets a claim that no longer waits; returns whether the next one may have to be told. That
    /// is so if this claim, and nobody else, was told of a release; or if the claim has left
    /// before, since nothing is known of it then.
    pub(super) fn leave(&self, claim: &Claim) -> bool {
        let listing = self.subscription.listing(claim.name(), claim.owner());
        self.subscription.leave(claim.name(), claim.owner());
        listing.is_none_or(|listing| listing == Listing::Told)
    }

    /// Tells one waiter that the lock was let go: the one with the first place, if somebody has a
    /// place, or else the one that has waited longest, if somebody listens.
    pub(super) async fn ring(
        &self,
        name: &LockName,
        is_queued: bool,
        is_awaited: bool,
        within: Limit,
    ) {
        let (board, within) = (self.subscription.board(), Limit::new(LIMIT.min(within.left())));
        let mut rung = Rung::Nobody;
        if is_queued {
            rung = self.line.ring(name, true, board, within).await;
        }
        if rung == Rung::Nobody && is_awaited {
            rung = self.line.ring(name, false, board, within).await;
        }
        if rung == Rung::Other {
            let (now, mut handed_over) = (Instant::now(), self.handed_over());
            handed_over.retain(|_, at| now.duration_since(*at) < A_MOMENT);
            handed_over.insert(name.clone(), now);
        }
    }

    /// Whether this process has let go of the lock a moment ago, for another one to have.
    pub(super) fn has_handed_over(&self, name: &LockName) -> bool {
        let at = self.handed_over().get(name).copied();
        at.is_some_and(|at| at.elapsed() < A_MOMENT)
    }

    fn handed_over(&self) -> MutexGuard<'_, HashMap<LockName, Instant>> {
        // Every change is one call.
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next news for the claim; if it does not listen, there never is any.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news is taken only when this returns.
    pub(super) async fn changed(&self, claim: &Claim) -> Change {
        self.subscription.changed(claim.name(), claim.owner()).await
    }

    /// Ends the session that sleeps.
    pub(super) async fn close(&self) {
        if !self.subscription.close() {
            return;
        }
        if let Err(failure) = self.line.hang_up().await {
            tracing::debug!(endpoint = %self.line, %failure, "a session goes on sleeping for a while");
        }
    }
}

/// Where one process is reached, and how it reaches others.
#[derive(Clone, Debug)]
struct Line {
    endpoint: Endpoint,
    connections: Arc<Connections>,
    inbox: i64,
    /// Whether it was told that it may not wake another user's sessions.
    was_denied: Arc<AtomicBool>,
}

impl Line {
    /// Tells the process that has the first place, or the one that has waited longest. Returns who
    /// was told, as far as that is known.
    async fn ring(
        &self,
        name: &LockName,
        is_for_first: bool,
        board: &Board,
        within: Limit,
    ) -> Rung {
        loop {
            let is_awaited_here = board.is_awaited(name);
            let ring = Ring { name, is_for_first, own: self.inbox, is_awaited_here };
            match self.connections.sequence(&ring, Urgency::Releases, within).await {
                Ok(Rung::Own) if !deliver(board, name) => (),
                Ok(rung @ (Rung::Nobody | Rung::Own | Rung::Other)) => return rung,
                Ok(Rung::Dead) => (),
                Ok(Rung::Stranger) => {
                    if !self.was_denied.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            endpoint = %self.endpoint,
                            "this user may not wake waiters of another user; they ask once a second"
                        );
                    }
                }
                Err(failure) => {
                    let endpoint = &self.endpoint;
                    tracing::debug!(%endpoint, lock = %name, %failure, "could not tell who waits");
                    return Rung::Nobody;
                }
            }
        }
    }

    async fn hang_up(&self) -> Result<(), Failure> {
        let within = Limit::new(LIMIT);
        self.connections.sequence(&HangUp(self.inbox), Urgency::Releases, within).await
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}

struct Ring<'a> {
    name: &'a LockName,
    is_for_first: bool,
    own: i64,
    /// If not, this process comes last: it has begun to listen, and had the lock without being
    /// told.
    is_awaited_here: bool,
}

/// Who was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    /// There is nobody to tell.
    Nobody,
    Other,
    /// This process, which need not be woken.
    Own,
    /// Somebody who is no longer there.
    Dead,
    /// Somebody whose session this user may not wake, and who finds the note later.
    Stranger,
}

impl Steps for Ring<'_> {
    type Answer = Rung;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<Rung, Failure> {
        let [namespace, name] = claims::of(self.name);
        let [own, is_awaited_here, is_for_first] =
            [self.own, self.is_awaited_here.into(), self.is_for_first.into()].map(Value::Integer);
        let values = [own, namespace, name, is_for_first, namespace, name, own, is_awaited_here];
        let told = transaction.write(TELL, &values).await?;
        if told.rows_affected() == 0 {
            return Ok(Rung::Nobody);
        }
        if told.last_insert_id().cast_signed() == self.own {
            return Ok(Rung::Own);
        }
        match transaction.say(RING).await {
            Ok(()) => Ok(Rung::Other),
            Err(failure) => match failure.number() {
                Some(NO_SUCH_SESSION) => {
                    transaction.say(DROP_DEAD).await?;
                    Ok(Rung::Dead)
                }
                Some(NOT_ITS_OWNER) => Ok(Rung::Stranger),
                _ => Err(failure),
            },
        }
    }
}

/// Has this process told when a lock is let go. The answer is whether it was told, and may not have
/// heard: of a note that the statement has cleared, only its own answer tells.
struct List<'a> {
    values: [Value<'a>; 6],
}

impl Steps for List<'_> {
    type Answer = bool;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<bool, Failure> {
        let listed = transaction.write(LIST, &self.values).await?;
        Ok(transaction.is_in_doubt() || listed.last_insert_id() != 0)
    }
}

/// Ends the session that listens at this inbox.
struct HangUp(i64);

impl Steps for HangUp {
    type Answer = ();

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<(), Failure> {
        transaction.write(FIND, &[Value::text(&mark(self.0))]).await?;
        match transaction.say(END).await {
            Err(failure) if failure.number() != Some(NO_SUCH_SESSION) => Err(failure),
            _ => Ok(()),
        }
    }
}

impl Wire for Line {
    type Listener = Sleeper;
    type Failure = Failure;

    async fn listen(&self) -> Result<Sleeper, Failure> {
        self.endpoint
            .within_limit(async {
                let mut connection = self.endpoint.greeted().await?;
                sqlx::raw_sql(END_BY_ITSELF).execute(&mut connection).await?;
                let (mark, gate) = (mark(self.inbox), gate(self.inbox));
                // The session of a connection that was cut may not have noticed.
                self.hang_up().await?;
                // All rows, so that nothing of the answer is left on the connection.
                let rows = sqlx::query(MARK).bind(&mark).fetch_all(&mut connection).await?;
                let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
                if row.try_get::<i64, _>("is_ours")? == 0 {
                    let text = "the session that listened before has not ended yet";
                    return Err(Failure::found(ErrorKind::Unreachable, text));
                }
                Ok(Sleeper::new(connection, mark, gate, self.clone()))
            })
            .await
    }
}

/// A number that no other process has. It is shorter than an owner's, so that a reply has room for
/// it.
fn inbox() -> i64 {
    let digits = OwnerId::random().to_string();
    let digits = digits.chars().filter_map(|digit| digit.to_digit(16)).take(15);
    digits.fold(1, |number, digit| number << 4 | i64::from(digit))
}

/// The lock by which the session that listens there is found.
fn mark(inbox: i64) -> String {
    format!("lockkit {inbox}")
}

/// The lock that this session waits for.
fn gate(inbox: i64) -> String {
    format!("lockkit {inbox} gate")
}

/// Tells the waiters of this process; returns whether there are any.
fn deliver(board: &Board, name: &LockName) -> bool {
    board.deliver(name.namespace().as_str(), name.as_str(), News::Free)
}
