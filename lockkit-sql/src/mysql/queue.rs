//! The places of claims that want to be served in order.
//!
//! A statement that takes a lock sees in the lock's own row whether anybody has a place. A claim
//! that is refused and wants a place changes both tables, in a transaction that locks the lock's
//! row first: so places come one at a time, and each transaction reads what is committed, whatever
//! the isolation level. A claim that has taken its turn removes its place afterwards; the place no
//! longer counts while its owner holds the lock.
//!
//! A claim that has a place looks before it asks for more: most find that it is not their turn.

use std::collections::HashSet;

use lockkit_core::LockName;
use lockkit_core::driver::{Claim, Limit, OwnerId};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::claims::{self, Answer, TOGETHER, token};
use super::connections::{Connections, Steps, Transaction, Value};
use super::error::Failure;
use super::inspect::owner_of;
use crate::micros::{duration, micros};
use crate::neighbours::{Ahead, Standing};
use crate::seats::Urgency;
use crate::sights::{RunOut, Takeover};

const LOOK: &str = include_str!("sql/look.sql");
const TURN: &str = include_str!("sql/turn.sql");
const LOCK: &str = include_str!("sql/lock.sql");
const AHEAD: &str = include_str!("sql/ahead.sql");
const DROP_DEAD: &str =
    "DELETE FROM lockkit_place WHERE namespace = ? AND name = ? AND expires <= ?";
const ARRIVE: &str = include_str!("sql/arrive.sql");
const STAY: &str = "UPDATE lockkit_place SET expires = GREATEST(expires, ?) \
     WHERE namespace = ? AND name = ? AND owner = ?";
const STAY_TOGETHER: &str = include_str!("sql/stay.sql");
const STANDING: &str = include_str!("sql/standing.sql");
const OCCUPY: &str = "UPDATE lockkit_lock SET queued = GREATEST(queued, ?) \
     WHERE namespace = ? AND name = ?";
const LEAVE: &str = "DELETE FROM lockkit_place WHERE namespace = ? AND name = ? AND owner = ?";
const REQUEUE: &str = include_str!("sql/requeue.sql");
const GRANT: &str = include_str!("sql/grant.sql");

/// What a claim that has asked before finds. Changes nothing and locks nothing.
pub(super) async fn look(
    connections: &Connections,
    claim: &Claim,
    takeover: Takeover,
    within: Limit,
) -> Result<Looked, Failure> {
    let [namespace, name, owner] = claims::of_claim(claim);
    let rows = connections.read(LOOK, &[owner, namespace, name], within).await?;
    let Some(row) = rows.first() else { return Ok(Looked::Stale) };
    let (lock, end) = (Lock::read(row)?, row.try_get::<Option<i64>, _>("own_end")?);
    let left = end.unwrap_or(0).saturating_sub(lock.time);
    if left <= 0 || lock.is_held_by(claim.owner()) {
        return Ok(Looked::Stale);
    }
    let arrival = row.try_get("own_arrival")?;
    let ahead = row.try_get::<Option<&[u8]>, _>("ahead")?;
    let run_out = lock.run_out(claim.owner()).filter(|found| !takeover.allows(*found));
    Ok(match ahead.is_none() && !lock.is_held() && run_out.is_none() {
        true => Looked::Next,
        false if left < micros(claim.ttl()) / 4 * 3 => Looked::Stale,
        false => Looked::Refused(lock.refusal(run_out, arrival, ahead)),
    })
}

/// What a claim that has asked before finds when it only looks.
#[derive(Debug)]
pub(super) enum Looked {
    /// It is the claim's turn.
    Next,
    Refused(Answer),
    /// Its place has to be refreshed, or is gone.
    Stale,
}

/// Takes the lock if it is free and it is the turn of the claim, which has a place.
pub(super) async fn take_turn(
    connections: &Connections,
    claim: &Claim,
    takeover: Takeover,
    within: Limit,
) -> Result<Option<Answer>, Failure> {
    let [namespace, name, owner] = claims::of_claim(claim);
    let (observes, token_seen, beat_seen) = takeover.parts();
    let values = [
        owner,
        owner,
        claims::label(claim),
        claims::lease(claim),
        namespace,
        name,
        owner,
        Value::Integer(observes.into()),
        Value::Integer(token_seen),
        Value::Integer(beat_seen),
        owner,
    ];
    let taken = connections.write(TURN, &values, Urgency::Asks, within).await?;
    if taken.rows_affected() == 0 {
        return Ok(None);
    }
    connections.note_write(true);
    let token = token(taken.last_insert_id().cast_signed())?;
    // If this fails, the next ask finds the hold, or the release finds both hold and place.
    connections.write(LEAVE, &[namespace, name, owner], Urgency::Releases, within).await?;
    Ok(Some(Answer::Granted { token }))
}

/// Takes the lock if it is free and it is the claim's turn; otherwise leaves a place, or keeps it
/// for another lease. `None` if there is no such lock, not even a free one: the next claim that
/// asks makes it.
pub(super) async fn stand(
    connections: &Connections,
    claim: &Claim,
    inbox: Value<'static>,
    takeover: Takeover,
    within: Limit,
) -> Result<Option<Answer>, Failure> {
    connections.transact(&Stand { claim, inbox, takeover }, Urgency::Asks, within).await
}

/// Keeps the places of these claims of one lock for another lease, as [`stand`] would. Returns the
/// owners whose places stand.
pub(super) async fn stay(
    connections: &Connections,
    claim: &Claim,
    owners: Vec<OwnerId>,
    within: Limit,
) -> Result<HashSet<OwnerId>, Failure> {
    connections.transact(&Stay { claim, owners: &owners }, Urgency::Asks, within).await
}

/// Removes the claim's place; returns whether nobody holds the lock.
pub(super) async fn leave(
    connections: &Connections,
    claim: &Claim,
    within: Limit,
) -> Result<bool, Failure> {
    connections.transact(&Leave { claim }, Urgency::Releases, within).await
}

struct Stand<'a> {
    claim: &'a Claim,
    /// Where the claim's process listens.
    inbox: Value<'static>,
    takeover: Takeover,
}

impl Steps for Stand<'_> {
    type Answer = Option<Answer>;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<Option<Answer>, Failure> {
        let claim = self.claim;
        let [namespace, name, owner] = claims::of_claim(claim);
        let Some(lock) = Lock::locked(transaction, claim.name()).await? else { return Ok(None) };
        if lock.is_held_by(claim.owner()) {
            // An ask that was given up has arrived late.
            let renewed = transaction.write(claims::RENEW, &claims::renewal(claim)).await?;
            if renewed.rows_affected() == 0 {
                // The hold has just run out.
                return Ok(None);
            }
            transaction.write(LEAVE, &[namespace, name, owner]).await?;
            return Ok(Some(Answer::Granted { token: token(lock.token)? }));
        }
        let time = Value::Integer(lock.time);
        let places = [namespace, name, time, namespace, name, time, owner];
        let rows = transaction.read(AHEAD, &places).await?;
        let own = rows.first().filter(|row| is_of(row, claim.owner()));
        let own = own.map(|row| row.try_get::<i64, _>("arrival")).transpose()?;
        let ahead = rows.get(usize::from(own.is_some()));
        let ahead = ahead.map(|row| row.try_get::<&[u8], _>("owner")).transpose()?;
        let run_out = lock.run_out(claim.owner()).filter(|found| !self.takeover.allows(*found));
        if ahead.is_none() && !lock.is_held() && run_out.is_none() {
            transaction.write(LEAVE, &[namespace, name, owner]).await?;
            let [label, lease] = [claims::label(claim), claims::lease(claim)];
            let values = [namespace, name, owner, label, lease, namespace, name];
            let granted = transaction.write(GRANT, &values).await?;
            let token = token(granted.last_insert_id().cast_signed())?;
            return Ok(Some(Answer::Granted { token }));
        }
        transaction.write(DROP_DEAD, &[namespace, name, time]).await?;
        let end = Value::Integer(lock.time.saturating_add(micros(claim.ttl())));
        let arrival = match own {
            Some(arrival) => {
                transaction.write(STAY, &[end, namespace, name, owner]).await?;
                arrival
            }
            None => {
                let label = claims::label(claim);
                let place = [namespace, name, owner, label, self.inbox, time, end];
                let values = place.into_iter().chain([namespace, name]).collect::<Vec<_>>();
                let arrived = transaction.write(ARRIVE, &values).await?;
                arrived.last_insert_id().cast_signed()
            }
        };
        transaction.write(OCCUPY, &[end, namespace, name]).await?;
        Ok(Some(lock.refusal(run_out, arrival, ahead)))
    }
}

struct Stay<'a> {
    /// One of the claims, which has the name and lease of all of them.
    claim: &'a Claim,
    owners: &'a [OwnerId],
}

impl Steps for Stay<'_> {
    type Answer = HashSet<OwnerId>;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<HashSet<OwnerId>, Failure> {
        let (claim, owners) = (self.claim, self.owners);
        let [namespace, name] = claims::of(claim.name());
        let Some(lock) = Lock::locked(transaction, claim.name()).await? else {
            return Ok(HashSet::new());
        };
        let time = Value::Integer(lock.time);
        let end = Value::Integer(lock.time.saturating_add(micros(claim.ttl())));
        let mut standing = HashSet::with_capacity(owners.len());
        for owners in owners.chunks(TOGETHER) {
            let mut values = vec![end, namespace, name, time];
            values.extend(owners.iter().cycle().take(TOGETHER).copied().map(Value::Owner));
            let kept = transaction.write(STAY_TOGETHER, &values).await?;
            if kept.rows_affected() == owners.len() as u64 {
                standing.extend(owners);
                continue;
            }
            for row in transaction.read(STANDING, &values[1..]).await? {
                standing.insert(owner_of(row.try_get("owner")?)?);
            }
        }
        if !standing.is_empty() {
            transaction.write(OCCUPY, &[end, namespace, name]).await?;
        }
        Ok(standing)
    }
}

struct Leave<'a> {
    claim: &'a Claim,
}

impl Steps for Leave<'_> {
    type Answer = bool;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<bool, Failure> {
        let name = self.claim.name();
        // This comes first, as in everything that changes places.
        let lock = Lock::locked(transaction, name).await?;
        transaction.write(LEAVE, &claims::of_claim(self.claim)).await?;
        requeue(transaction, name).await?;
        Ok(lock.is_some_and(|lock| !lock.is_held()))
    }
}

/// Keeps the lock's own row in step with the places.
async fn requeue(transaction: &mut Transaction<'_>, name: &LockName) -> Result<(), Failure> {
    transaction.write(REQUEUE, &claims::of(name)).await?;
    Ok(())
}

fn is_of(row: &MySqlRow, owner: OwnerId) -> bool {
    row.try_get::<&[u8], _>("owner").is_ok_and(|of| of == owner.to_string().as_bytes())
}

/// The row of a lock, which the transaction has locked, and what time it was then.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) owner: Option<Vec<u8>>,
    pub(super) label: Option<Vec<u8>>,
    pub(super) token: i64,
    pub(super) since: i64,
    lease: i64,
    beat: i64,
    pub(super) expires: i64,
    pub(super) time: i64,
}

impl Lock {
    /// Locks the row, if there is one.
    pub(super) async fn locked(
        transaction: &mut Transaction<'_>,
        name: &LockName,
    ) -> Result<Option<Self>, Failure> {
        let rows = transaction.read(LOCK, &claims::of(name)).await?;
        rows.first().map(Self::read).transpose()
    }

    pub(super) fn is_held(&self) -> bool {
        self.owner.is_some() && self.expires > self.time
    }

    pub(super) fn is_held_by(&self, owner: OwnerId) -> bool {
        self.is_held() && self.owner.as_deref() == Some(owner.to_string().as_bytes())
    }

    /// Somebody else's hold, if it has run out.
    fn run_out(&self, but_of: OwnerId) -> Option<RunOut> {
        let owner = self.owner.as_deref()?;
        let is_one = !self.is_held() && owner != but_of.to_string().as_bytes();
        is_one.then(|| RunOut { token: self.token, beat: self.beat, lease: duration(self.lease) })
    }

    /// What to tell a claim whose place is behind `ahead`.
    fn refusal(&self, run_out: Option<RunOut>, arrival: i64, ahead: Option<&[u8]>) -> Answer {
        let remaining = self.is_held().then(|| duration(self.expires - self.time));
        let holder = self.owner.as_deref().filter(|_| self.is_held());
        let waits = ahead.is_some();
        let owner = ahead.or(holder).and_then(|owner| owner_of(owner).ok());
        let ahead = owner.map(|owner| Ahead { owner, waits });
        Answer::Taken { remaining, run_out, standing: Some(Standing { arrival, ahead }) }
    }

    fn read(row: &MySqlRow) -> Result<Self, Failure> {
        // By then, the lock is another server's.
        if row.try_get("is_read_only")? {
            return Err(Failure::Demoted);
        }
        Ok(Self {
            owner: row.try_get("owner")?,
            label: row.try_get("label")?,
            token: row.try_get("token")?,
            since: row.try_get("since")?,
            lease: row.try_get("lease")?,
            beat: row.try_get("beat")?,
            expires: row.try_get("expires")?,
            time: row.try_get("time")?,
        })
    }
}
