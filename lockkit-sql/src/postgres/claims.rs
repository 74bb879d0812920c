//! The requests about one claim, each a call of one function of the layout.

use std::collections::HashSet;
use std::time::Duration;

use lockkit_core::driver::{Claim, DriverError, ErrorKind, OwnerId};
use lockkit_core::{FencingToken, LockName};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::connections::{Connections, Value};
use super::error::Failure;
use super::inspect::owner_of;
use crate::micros::{duration, micros};
use crate::seats::Urgency;
use crate::sights::{RunOut, Takeover};

const TAKE: &str = include_str!("sql/take.sql");
// The types are given, since a function of the same name for other types is somebody else's.
const RENEW: &str = "SELECT lockkit_renew($1::text, $2::text, $3::text, $4::bigint, $5::integer) \
     AS is_held";
const RELEASE: &str = "SELECT lockkit_release($1::text, $2::text, $3::text, $4::boolean, \
                            $5::integer) AS was_held";

const RENEW_TOGETHER: &str = "SELECT owner \
     FROM lockkit_renew_together($1::text[], $2::text[], $3::text[], $4::bigint, $5::integer) \
     AS owner";
const STAY: &str = "SELECT owner, remaining \
     FROM lockkit_stay($1::text, $2::text, $3::text[], $4::bigint, $5::integer)";

/// The statements that every connection for requests sends.
pub(super) const REQUESTS: &[&str] = &[TAKE, RENEW, RELEASE];

/// What [`take`] finds.
#[derive(Debug)]
pub(super) enum Answer {
    Granted {
        token: FencingToken,
    },
    /// `run_out` is the hold in the way, if it has run out and may not be taken over.
    Taken {
        holder: FencingToken,
        remaining: Duration,
        run_out: Option<RunOut>,
    },
}

/// Takes the lock if it is free and it is the claim's turn; otherwise leaves a place, if there is
/// an inbox for its news.
pub(super) async fn take(
    connections: &Connections,
    claim: &Claim,
    inbox: Option<&str>,
    takeover: Takeover,
    limit: Duration,
) -> Result<Answer, DriverError> {
    let [namespace, name] = of(claim.name());
    let (observes, seen_token, seen_beat) = takeover.parts();
    let values = [
        namespace,
        name,
        Value::Owner(Some(claim.owner())),
        Value::Text(claim.label().as_str()),
        ttl(claim),
        Value::Inbox(inbox),
        Value::Boolean(claim.is_fair()),
        Value::Boolean(observes),
        Value::Integer(seen_token),
        Value::Integer(seen_beat),
        Value::Patience,
    ];
    let row = connections.request(TAKE, &values, Urgency::Asks, limit).await;
    let row = row.map_err(Failure::of_a_request)?;
    read(&row, |row| {
        let token = token(row.try_get("last_token")?)?;
        Ok(match row.try_get("is_granted")? {
            true => Answer::Granted { token },
            false => {
                let remaining: i64 = row.try_get("remaining")?;
                let run_out = match remaining {
                    1.. => None,
                    _ => Some(RunOut {
                        token: row.try_get("last_token")?,
                        beat: row.try_get("last_beat")?,
                        lease: duration(row.try_get("last_lease")?),
                    }),
                };
                Answer::Taken { holder: token, remaining: duration(remaining), run_out }
            }
        })
    })
    // A claim that is to be told has written its place.
    .inspect(|answer| {
        let is_granted = matches!(answer, Answer::Granted { .. });
        connections.note_write(is_granted || inbox.is_some());
    })
}

/// Keeps the places of these owners for another TTL, which is that of `claim`. Returns the owners
/// whose places stand, and what is left of the hold.
pub(super) async fn stay(
    connections: &Connections,
    claim: &Claim,
    owners: &[OwnerId],
    limit: Duration,
) -> Result<(HashSet<OwnerId>, Duration), DriverError> {
    let [namespace, name] = of(claim.name());
    let values = [namespace, name, Value::Owners(owners), ttl(claim), Value::Patience];
    let rows = connections.request(STAY, &values, Urgency::Asks, limit).await;
    let rows = rows.map_err(Failure::of_a_request)?;
    let owners = rows.iter().map(owner_of);
    let owners: HashSet<_> = owners.collect::<Result<_, _>>().map_err(Failure::of_a_request)?;
    connections.note_write(!owners.is_empty());
    let remaining = rows.first().map_or(Ok(0), |row| row.try_get("remaining"));
    let remaining = remaining.map_err(|error| Failure::from(error).of_a_request())?;
    Ok((owners, duration(remaining)))
}

/// Makes what the claim holds last for another TTL; returns whether it holds anything.
pub(super) async fn renew(
    connections: &Connections,
    claim: &Claim,
    limit: Duration,
) -> Result<bool, DriverError> {
    let [namespace, name] = of(claim.name());
    let owner = Value::Owner(Some(claim.owner()));
    let values = [namespace, name, owner, ttl(claim), Value::Patience];
    let row = connections.request(RENEW, &values, Urgency::Renews, limit).await;
    read(&row.map_err(Failure::of_a_request)?, |row| Ok(row.try_get("is_held")?))
        .inspect(|&is_held| connections.note_write(is_held))
}

/// Makes what these claims hold last for another TTL, which is that of `claim` for all of them.
/// Returns for which of them this was certainly done.
pub(super) async fn renew_together(
    connections: &Connections,
    claim: &Claim,
    claims: &[Claim],
    limit: Duration,
) -> Result<HashSet<OwnerId>, DriverError> {
    let names = claims.iter().map(Claim::name);
    let namespaces = names.clone().map(|name| name.namespace().as_str()).collect::<Vec<_>>();
    let names = names.map(LockName::as_str).collect::<Vec<_>>();
    let owners = claims.iter().map(Claim::owner).collect::<Vec<_>>();
    let values = [
        Value::Texts(&namespaces),
        Value::Texts(&names),
        Value::Owners(&owners),
        ttl(claim),
        Value::Patience,
    ];
    let rows = connections.request(RENEW_TOGETHER, &values, Urgency::Renews, limit).await;
    let owners = rows.and_then(|rows| rows.iter().map(owner_of).collect::<Result<_, _>>());
    let owners: HashSet<_> = owners.map_err(Failure::of_a_request)?;
    connections.note_write(!owners.is_empty());
    Ok(owners)
}

/// Removes the claim's hold and place; returns whether there was a hold.
pub(super) async fn release(
    connections: &Connections,
    claim: &Claim,
    observes: bool,
    limit: Duration,
) -> Result<bool, DriverError> {
    let [namespace, name] = of(claim.name());
    let owner = Value::Owner(Some(claim.owner()));
    let values = [namespace, name, owner, Value::Boolean(observes), Value::Patience];
    let row = connections.request(RELEASE, &values, Urgency::Releases, limit).await;
    read(&row.map_err(Failure::of_a_request)?, |row| Ok(row.try_get("was_held")?))
        .inspect(|&was_held| connections.note_write(was_held))
}

/// The parameters that every request about a lock begins with.
pub(super) fn of(name: &LockName) -> [Value<'_>; 2] {
    [Value::Text(name.namespace().as_str()), Value::Text(name.as_str())]
}

pub(super) fn token(number: i64) -> Result<FencingToken, Failure> {
    let reason = "the fencing token of the row is not positive";
    FencingToken::try_from(number).map_err(|_| Failure::found(ErrorKind::Foreign, reason))
}

/// Reads an answer. Since the answer was given, one that cannot be read is no unknown outcome.
fn read<T>(
    rows: &[PgRow],
    read: impl FnOnce(&PgRow) -> Result<T, Failure>,
) -> Result<T, DriverError> {
    rows.first()
        .ok_or(Failure::found(ErrorKind::Foreign, "the function has no answer"))
        .and_then(read)
        .map_err(Failure::of_a_request)
}

/// The TTL that the claim asks for.
fn ttl(claim: &Claim) -> Value<'static> {
    Value::Integer(micros(claim.ttl()))
}
