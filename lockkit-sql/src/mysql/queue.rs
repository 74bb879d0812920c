//! The places of those who want to be served in order.
//!
//! A statement that takes a lock sees in the lock's own row whether anybody has a place. Whoever is
//! refused and wants one changes both tables, in a transaction that locks the lock's row first: so
//! places come and go one at a time, and each reads what is committed at every isolation.

use lockkit_core::LockName;
use lockkit_core::driver::{Claim, OwnerId};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::claims::{self, Answer, duration, token};
use super::connections::{Connections, Steps, Transaction, Value, Within};
use super::error::Failure;
use super::inspect::owner_of;
use crate::neighbours::Ahead;
use crate::seats::Urgency;
use crate::sights::{RunOut, Takeover};

const LOCK: &str = include_str!("sql/lock.sql");
const AHEAD: &str = include_str!("sql/ahead.sql");
const DROP_DEAD: &str =
    "DELETE FROM lockkit_place WHERE namespace = ? AND name = ? AND expires <= ?";
const DROP_DEAD_AND_OWN: &str =
    "DELETE FROM lockkit_place WHERE namespace = ? AND name = ? AND (expires <= ? OR owner = ?)";
const ARRIVE: &str = include_str!("sql/arrive.sql");
const STAY: &str = "UPDATE lockkit_place SET expires = GREATEST(expires, ?) \
     WHERE namespace = ? AND name = ? AND owner = ?";
const OCCUPY: &str = "UPDATE lockkit_lock SET queued = GREATEST(queued, ?) \
     WHERE namespace = ? AND name = ?";
const LEAVE: &str = "DELETE FROM lockkit_place WHERE namespace = ? AND name = ? AND owner = ?";
const REQUEUE: &str = include_str!("sql/requeue.sql");
const GRANT: &str = include_str!("sql/grant.sql");

/// Takes the lock if it is free and the claim's turn; else leaves a place, or keeps it for another
/// lease. `None` if there is no such lock, not even a free one: the next who asks makes it.
pub(super) async fn stand(
    connections: &Connections,
    claim: &Claim,
    takeover: Takeover,
    within: Within,
) -> Result<Option<Answer>, Failure> {
    connections.transact(&Stand { claim, takeover }, Urgency::Asks, within).await
}

/// Removes the claim's place.
pub(super) async fn leave(
    connections: &Connections,
    claim: &Claim,
    within: Within,
) -> Result<(), Failure> {
    connections.transact(&Leave { claim }, Urgency::Keeps, within).await
}

struct Stand<'a> {
    claim: &'a Claim,
    takeover: Takeover,
}

impl Steps for Stand<'_> {
    type Answer = Option<Answer>;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<Option<Answer>, Failure> {
        let claim = self.claim;
        let [namespace, name, owner] = claims::of_claim(claim);
        let Some(lock) = Lock::locked(transaction, claim.name()).await? else { return Ok(None) };
        if lock.is_held_by(claim.owner()) {
            // An ask that was given up has landed late.
            transaction.write(claims::RENEW, &claims::renewal(claim)).await?;
            return Ok(Some(Answer::Granted { token: token(lock.token)? }));
        }
        let time = Value::Integer(lock.time);
        let places = [namespace, name, time, namespace, name, time, owner];
        let rows = transaction.read(AHEAD, &places).await?;
        let ahead = rows.first().map(|row| row.try_get("owner")).transpose()?;
        let run_out = lock.run_out(claim.owner()).filter(|found| !self.takeover.allows(*found));
        if ahead.is_none() && !lock.is_held() && run_out.is_none() {
            transaction.write(DROP_DEAD_AND_OWN, &[namespace, name, time, owner]).await?;
            let [label, lease] = [claims::label(claim), claims::lease(claim)];
            let values = [namespace, name, owner, label, lease, namespace, name];
            let granted = transaction.write(GRANT, &values).await?;
            let token = token(granted.last_insert_id().cast_signed())?;
            return Ok(Some(Answer::Granted { token }));
        }
        transaction.write(DROP_DEAD, &[namespace, name, time]).await?;
        let end = Value::Integer(lock.time.saturating_add(claims::micros(claim.ttl())));
        let stay = [end, namespace, name, owner];
        let is_new = transaction.write(STAY, &stay).await?.rows_affected() == 0;
        if is_new {
            let label = claims::label(claim);
            let values = [namespace, name, owner, label, time, end, namespace, name];
            transaction.write(ARRIVE, &values).await?;
        }
        transaction.write(OCCUPY, &[end, namespace, name]).await?;
        let remaining = lock.is_held().then(|| duration(lock.expires - lock.time));
        let holder = lock.owner.as_deref().filter(|_| lock.is_held());
        let waits = ahead.is_some();
        let owner = ahead.or(holder).and_then(|owner| owner_of(owner).ok());
        let ahead = owner.map(|owner| Ahead { owner, waits, is_new });
        Ok(Some(Answer::Taken { remaining, run_out, ahead }))
    }
}

struct Leave<'a> {
    claim: &'a Claim,
}

impl Steps for Leave<'_> {
    type Answer = ();

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<(), Failure> {
        let name = self.claim.name();
        // First of all, as everybody does who changes places.
        transaction.read(LOCK, &claims::of(name)).await?;
        transaction.write(LEAVE, &claims::of_claim(self.claim)).await?;
        requeue(transaction, name).await
    }
}

/// Keeps the lock's own row in step with the places.
async fn requeue(transaction: &mut Transaction<'_>, name: &LockName) -> Result<(), Failure> {
    let ([namespace, lock], [of_namespace, of_lock]) = (claims::of(name), claims::of(name));
    transaction.write(REQUEUE, &[namespace, lock, of_namespace, of_lock]).await?;
    Ok(())
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

    /// The hold of somebody else that has run out.
    fn run_out(&self, but_of: OwnerId) -> Option<RunOut> {
        let owner = self.owner.as_deref()?;
        let is_one = !self.is_held() && owner != but_of.to_string().as_bytes();
        is_one.then(|| RunOut { token: self.token, beat: self.beat, lease: duration(self.lease) })
    }

    fn read(row: &MySqlRow) -> Result<Self, Failure> {
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
