//! The requests about one claim, each a script that SQLite runs in one go.

use std::collections::HashSet;

use lockkit_core::FencingToken;
use lockkit_core::driver::{Claim, DriverError, OwnerId};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use tokio::time::Instant;

use super::database::{Database, Value};
use super::time::{self, HostClock};
use crate::micros::micros;
use crate::neighbours::{Ahead, Standing};

const LOOK: &str = include_str!("look.sql");
const TAKE: &str =
    concat!(include_str!("take.sql"), include_str!("look.sql"), include_str!("commit.sql"));
const RENEW: &str = include_str!("renew.sql");
const RENEW_TOGETHER: &str = include_str!("renew_together.sql");
const RELEASE: &str = include_str!("release.sql");
const STAY: &str = include_str!("stay.sql");
const FORGET: &str = include_str!("forget.sql");

/// Takes the lock if it is free and it is the claim's turn; otherwise leaves a place, if the claim
/// is fair.
///
/// The time is read before the script waits for the database, so it may lag behind. A hold then
/// looks alive for a little longer than it is, and the lease that is granted counts from a little
/// earlier, but not from before the ask.
pub(super) async fn take(
    database: &Database,
    claim: &Claim,
    deadline: Instant,
) -> Result<Answer, DriverError> {
    let [namespace, name, owner, clock, now] = about(database, claim);
    let ttl = Value::Integer(micros(claim.ttl()));
    let wall_clock = Value::Integer(time::wall_clock());
    let fair = Value::Integer(claim.is_fair().into());
    let label = Value::Text(claim.label().as_str().into());
    let values = [namespace, name, owner, clock, now, ttl, wall_clock, fair, label];
    let rows = database.request(TAKE, &values, deadline).await?;
    database.read(|| Answer::read(&rows))
}

/// What [`take`] would find, without writing.
pub(super) async fn look(
    database: &Database,
    claim: &Claim,
    deadline: Instant,
) -> Result<Answer, DriverError> {
    let rows = database.request(LOOK, &about(database, claim), deadline).await?;
    database.read(|| Answer::read(&rows))
}

/// Keeps the places of these owners for another TTL, which is that of `claim`. Returns the owners
/// whose places stand.
pub(super) async fn stay(
    database: &Database,
    claim: &Claim,
    owners: Vec<OwnerId>,
    deadline: Instant,
) -> Result<HashSet<OwnerId>, DriverError> {
    let clock = database.clock();
    let values = [
        list(owners.iter().map(OwnerId::to_string)),
        Value::Text(clock.id().into()),
        Value::Integer(clock.now()),
        Value::Integer(micros(claim.ttl())),
    ];
    let rows = database.request(STAY, &values, deadline).await?;
    database.read(|| rows.iter().map(owner).collect())
}

/// Makes what these claims hold last for another TTL, which is that of `claim` for all of them.
/// Returns which of them hold anything.
pub(super) async fn renew_together(
    database: &Database,
    claim: &Claim,
    claims: &[Claim],
    deadline: Instant,
) -> Result<HashSet<OwnerId>, DriverError> {
    let holds = claims.iter().map(|claim| {
        let (name, owner) = (claim.name(), claim.owner().to_string());
        [name.namespace().as_str().to_owned(), name.as_str().to_owned(), owner]
    });
    let clock = database.clock();
    let values = [
        list(holds),
        Value::Text(clock.id().into()),
        Value::Integer(clock.now()),
        Value::Integer(micros(claim.ttl())),
    ];
    let rows = database.request(RENEW_TOGETHER, &values, deadline).await?;
    database.read(|| rows.iter().map(owner).collect())
}

/// Makes what the claim holds last for another TTL; returns whether it holds anything.
pub(super) async fn renew(
    database: &Database,
    claim: &Claim,
    deadline: Instant,
) -> Result<bool, DriverError> {
    let [namespace, name, owner, clock, now] = about(database, claim);
    let ttl = Value::Integer(micros(claim.ttl()));
    let values = [namespace, name, owner, clock, now, ttl];
    let rows = database.request(RENEW, &values, deadline).await?;
    Ok(!rows.is_empty())
}

/// Removes the claim's hold and place.
pub(super) async fn release(
    database: &Database,
    claim: &Claim,
    deadline: Instant,
) -> Result<Released, DriverError> {
    let rows = database.request(RELEASE, &about(database, claim), deadline).await?;
    database.read(|| {
        let mut released = Released { stood: false, next: None };
        for row in &rows {
            match row.try_get("kind")? {
                "hold" => released.stood = row.try_get("stood")?,
                _ => released.next = Some(owner(row)?),
            }
        }
        Ok(released)
    })
}

/// Removes a hold or place, if it is still exactly this one; returns whether it was.
pub(super) async fn forget(
    database: &Database,
    claim: &Claim,
    row: &Entry,
    deadline: Instant,
) -> Result<bool, DriverError> {
    let [namespace, name, ..] = about(database, claim);
    let owner = Value::Text(row.owner.to_string());
    let clock = Value::Text(row.clock.clone());
    let values =
        [namespace, name, owner, clock, Value::Integer(row.expires), Value::Integer(row.ttl)];
    let rows = database.request(FORGET, &values, deadline).await?;
    Ok(!rows.is_empty())
}

/// A list as JSON, which SQLite reads.
fn list(items: impl Iterator<Item = impl Into<serde_json::Value>>) -> Value {
    Value::Text(items.collect::<serde_json::Value>().to_string())
}

/// The parameters that every script begins with.
fn about(database: &Database, claim: &Claim) -> [Value; 5] {
    [
        Value::Text(claim.name().namespace().as_str().into()),
        Value::Text(claim.name().as_str().into()),
        Value::Text(claim.owner().to_string()),
        Value::Text(database.clock().id().into()),
        Value::Integer(database.clock().now()),
    ]
}

/// What [`release`] found.
#[derive(Debug)]
pub(super) struct Released {
    /// Whether the claim held the lock until now.
    pub(super) stood: bool,
    /// The owner whose place is the first one now.
    pub(super) next: Option<OwnerId>,
}

/// Who holds a lock and who waits for it, as far as it matters to one claim.
#[derive(Debug)]
pub(super) struct Answer {
    hold: Option<Entry>,
    /// In order of arrival: the first one, the claim's own and the one before it, and those in
    /// doubt.
    places: Vec<Entry>,
}

impl Answer {
    /// The claim's own hold.
    pub(super) fn hold_of(&self, claim: &Claim) -> Option<&Entry> {
        self.hold.as_ref().filter(|hold| hold.owner == claim.owner())
    }

    /// What keeps the claim out.
    pub(super) fn obstacle(&self, claim: &Claim) -> Option<&Entry> {
        let not_its_own = |entry: &&Entry| entry.owner != claim.owner();
        match &self.hold {
            Some(hold) => Some(hold).filter(not_its_own),
            None => self.places.first().filter(not_its_own),
        }
    }

    /// Whether nobody holds the lock.
    pub(super) fn is_free(&self) -> bool {
        self.hold.is_none()
    }

    /// Where the claim stands, if it has a place.
    pub(super) fn standing(&self, claim: &Claim) -> Option<Standing> {
        let at = self.places.iter().position(|place| place.owner == claim.owner())?;
        let before = at.checked_sub(1).and_then(|before| self.places.get(before));
        let ahead = before.or(self.hold.as_ref());
        let ahead = ahead.map(|entry| Ahead { owner: entry.owner, waits: before.is_some() });
        Some(Standing { arrival: self.places.get(at)?.arrival, ahead })
    }

    /// Whether asking would change nothing: the claim is refused, and its place, if it is to have
    /// one, was refreshed at most a quarter of its TTL ago.
    pub(super) fn is_final_for(&self, claim: &Claim, now: i64) -> bool {
        let own_place = || self.places.iter().find(|place| place.owner == claim.owner());
        let is_fresh = |place: &Entry| place.expires.saturating_sub(now) >= place.ttl / 4 * 3;
        self.obstacle(claim).is_some() && (!claim.is_fair() || own_place().is_some_and(is_fresh))
    }

    /// The hold, then the places.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.hold.iter().chain(&self.places)
    }

    fn read(rows: &[SqliteRow]) -> Result<Self, sqlx::Error> {
        let mut answer = Self { hold: None, places: Vec::new() };
        for row in rows {
            let entry = Entry::read(row)?;
            match row.try_get("kind")? {
                "hold" => answer.hold = Some(entry),
                _ => answer.places.push(entry),
            }
        }
        Ok(answer)
    }
}

/// A hold or a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) owner: OwnerId,
    /// 0 for a place.
    pub(super) token: i64,
    /// Greater than that of every place before it; 0 for a hold.
    arrival: i64,
    /// Microseconds.
    pub(super) ttl: i64,
    /// Microseconds on `clock`.
    pub(super) expires: i64,
    pub(super) clock: String,
}

impl Entry {
    pub(super) fn read(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            owner: owner(row)?,
            token: row.try_get("token")?,
            arrival: row.try_get("arrival")?,
            ttl: row.try_get("ttl")?,
            expires: row.try_get("expires")?,
            clock: row.try_get("clock")?,
        })
    }

    /// The token of a hold; `None` if it is not one that the driver gave.
    pub(super) fn fencing_token(&self) -> Option<FencingToken> {
        FencingToken::try_from(self.token).ok()
    }

    /// Whether it is over by its own clock.
    pub(super) fn has_run_out(&self, clock: &HostClock, now: i64) -> bool {
        self.clock == clock.id() && self.expires <= now
    }

    /// Whether its clock does not tell when it is over.
    pub(super) fn is_doubtful(&self, clock: &HostClock, now: i64) -> bool {
        self.clock != clock.id() || self.expires.saturating_sub(self.ttl) > now
    }
}

pub(super) fn owner(row: &SqliteRow) -> Result<OwnerId, sqlx::Error> {
    let text: &str = row.try_get("owner")?;
    text.parse().map_err(|error| sqlx::Error::ColumnDecode {
        index: "owner".into(),
        source: Box::new(error),
    })
}
