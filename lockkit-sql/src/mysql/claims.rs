//! The requests about one claim that are one statement each, as a rule.

use std::collections::HashSet;
use std::time::Duration;

use lockkit_core::driver::{Claim, ErrorKind, Limit, OwnerId};
use lockkit_core::{FencingToken, LockName};
use sqlx::Row as _;

use super::connections::{Connections, Steps, Transaction, Value};
use super::error::Failure;
use crate::micros::{duration, micros};
use crate::neighbours::Standing;
use crate::seats::Urgency;
use crate::sights::{RunOut, Takeover};

pub(super) const TAKE: &str = include_str!("sql/take.sql");
pub(super) const RENEW: &str = include_str!("sql/renew.sql");
const RENEW_TOGETHER: &str = include_str!("sql/renew_together.sql");
pub(super) const RELEASE: &str = include_str!("sql/release.sql");

/// The statements that every connection for requests sends.
pub(super) const REQUESTS: &[&str] = &[TAKE, RENEW, RELEASE];

/// How many claims a statement about several has room for. A statement for each number of claims
/// would be prepared anew each time.
pub(super) const TOGETHER: usize = 64;

const IS_READ_ONLY: &str =
    "SELECT CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') AS is_read_only";

const RUN_OUT: &str = "SELECT token, beat, lease FROM lockkit_lock \
     WHERE namespace = ? AND name = ? AND owner IS NOT NULL \
       AND expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// For how long releases look for listeners. A listener asks once a second.
const AWAITED: Duration = Duration::from_secs(4);

/// What a refusal says is left where nothing is left.
const NONE_LEFT: Duration = Duration::from_micros(1);

/// What a claim finds when it asks.
#[derive(Debug)]
pub(super) enum Answer {
    Granted {
        token: FencingToken,
    },
    Taken {
        remaining: Option<Duration>,
        /// The hold in the way, if it has run out and may not be taken over.
        run_out: Option<RunOut>,
        /// Where the claim stands, if it has a place now.
        standing: Option<Standing>,
    },
}

/// What a claim finds when it lets go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Released {
    pub(super) hold: Ended,
    /// Whether somebody has a place.
    pub(super) is_queued: bool,
    /// Whether somebody listens.
    pub(super) is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It held the lock until now.
    Freed,
    /// Its hold had run out.
    TooLate,
    /// It had no hold.
    Nothing,
}

/// Takes the lock if nobody holds it and nobody has a place. `listens` says whether the claim is to
/// be told of a release.
pub(super) async fn take(
    connections: &Connections,
    claim: &Claim,
    takeover: Takeover,
    listens: bool,
    within: Limit,
) -> Result<Answer, Failure> {
    let [namespace, name, owner] = of_claim(claim);
    let (label, lease) = (label(claim), lease(claim));
    let (observes, token_seen, beat_seen) = takeover.parts();
    let awaited = if listens { micros(claim.ttl().min(AWAITED)) } else { 0 };
    let awaited = Value::Integer(awaited);
    let values = [
        namespace,
        name,
        owner,
        label,
        lease,
        owner,
        owner,
        Value::Integer(observes.into()),
        Value::Integer(token_seen),
        Value::Integer(beat_seen),
        owner,
        label,
        lease,
        lease,
        lease,
        awaited,
        awaited,
    ];
    let answer = connections.write(TAKE, &values, Urgency::Asks, within).await?;
    // The number travels without a sign, and was negative if the claim was refused.
    match answer.last_insert_id().cast_signed() {
        number @ 1.. => {
            connections.note_write(true);
            Ok(Answer::Granted { token: token(number)? })
        }
        number => {
            let remaining = Duration::from_micros(number.unsigned_abs());
            let run_out = match takeover {
                Takeover::Only(_) if remaining <= NONE_LEFT => {
                    run_out(connections, claim.name(), within).await?
                }
                _ => None,
            };
            Ok(Answer::Taken { remaining: Some(remaining), run_out, standing: None })
        }
    }
}

/// The hold in the way, if it has run out.
async fn run_out(
    connections: &Connections,
    name: &LockName,
    within: Limit,
) -> Result<Option<RunOut>, Failure> {
    let rows = connections.read(RUN_OUT, &of(name), within).await?;
    rows.first()
        .map(|row| {
            let (token, beat) = (row.try_get("token")?, row.try_get("beat")?);
            Ok(RunOut { token, beat, lease: duration(row.try_get("lease")?) })
        })
        .transpose()
}

/// Makes what the claim holds last for another TTL; returns whether it holds anything.
pub(super) async fn renew(
    connections: &Connections,
    claim: &Claim,
    within: Limit,
) -> Result<bool, Failure> {
    let renewed = connections.sequence(&Renew { claim }, Urgency::Renews, within).await;
    renewed.inspect(|&is_held| connections.note_write(is_held))
}

struct Renew<'a> {
    claim: &'a Claim,
}

impl Steps for Renew<'_> {
    type Answer = bool;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<bool, Failure> {
        let renewed = transaction.write(RENEW, &renewal(self.claim)).await?;
        let is_held = renewed.rows_affected() > 0;
        if !is_held {
            check_takes_writes(transaction).await?;
        }
        Ok(is_held)
    }
}

/// Fails where no writes are allowed any more: what is not there may be on the server that takes
/// writes by now.
pub(super) async fn check_takes_writes(transaction: &mut Transaction<'_>) -> Result<(), Failure> {
    let rows = transaction.read(IS_READ_ONLY, &[]).await?;
    match rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("is_read_only")? {
        true => Err(Failure::Demoted),
        false => Ok(()),
    }
}

/// Makes what these claims hold last for another TTL, which is that of `claim` for all of them.
/// Returns for which of them this was certainly done. There are at most [`TOGETHER`] claims.
pub(super) async fn renew_together(
    connections: &Connections,
    claim: &Claim,
    claims: &[Claim],
    within: Limit,
) -> Result<HashSet<OwnerId>, Failure> {
    const FEW: usize = TOGETHER / 8;
    let mut renewed = renew_all(connections, claim, claims, within).await?;
    if !renewed.is_empty() || claims.len() <= FEW {
        return Ok(renewed);
    }
    // The server does not tell which ones it left out. So all are sent again in parts, most of
    // which contain none of those.
    for part in claims.chunks(FEW) {
        renewed.extend(renew_all(connections, claim, part, within).await?);
    }
    Ok(renewed)
}

/// The same, but returns none if it was not done for all of them.
async fn renew_all(
    connections: &Connections,
    claim: &Claim,
    claims: &[Claim],
    within: Limit,
) -> Result<HashSet<OwnerId>, Failure> {
    let filled = || claims.iter().cycle().take(TOGETHER);
    let names = filled().flat_map(|claim| of(claim.name()));
    let owners = filled().map(|claim| Value::Owner(claim.owner()));
    let leases = [lease(claim), lease(claim)];
    let values = names.chain(owners).chain(leases).collect::<Vec<_>>();
    let renewed = connections.write(RENEW_TOGETHER, &values, Urgency::Renews, within).await?;
    connections.note_write(renewed.rows_affected() > 0);
    // An owner may be there twice.
    let owners: HashSet<_> = claims.iter().map(Claim::owner).collect();
    let are_all = renewed.rows_affected() == owners.len() as u64;
    Ok(if are_all { owners } else { HashSet::new() })
}

/// Ends what the claim holds.
pub(super) async fn release(
    connections: &Connections,
    claim: &Claim,
    within: Limit,
) -> Result<Released, Failure> {
    let found = connections.sequence(&Release { claim }, Urgency::Releases, within).await?;
    connections.note_write(found > 0);
    let hold = match found & 3 {
        1 => Ended::Freed,
        2 => Ended::TooLate,
        _ => Ended::Nothing,
    };
    Ok(Released { hold, is_queued: found & 4 != 0, is_awaited: found & 8 != 0 })
}

struct Release<'a> {
    claim: &'a Claim,
}

impl Steps for Release<'_> {
    /// The id of the reply.
    type Answer = u64;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<u64, Failure> {
        let released = transaction.write(RELEASE, &of_claim(self.claim)).await?;
        let found = released.last_insert_id();
        if found == 0 {
            check_takes_writes(transaction).await?;
        }
        Ok(found)
    }
}

/// The parameters of a renewal.
pub(super) fn renewal(claim: &Claim) -> [Value<'_>; 5] {
    let ([namespace, name, owner], lease) = (of_claim(claim), lease(claim));
    [lease, lease, namespace, name, owner]
}

/// What names a lock.
pub(super) fn of(name: &LockName) -> [Value<'_>; 2] {
    [Value::text(name.namespace().as_str()), Value::text(name.as_str())]
}

/// What names a claim.
pub(super) fn of_claim(claim: &Claim) -> [Value<'_>; 3] {
    let [namespace, name] = of(claim.name());
    [namespace, name, Value::Owner(claim.owner())]
}

pub(super) fn lease(claim: &Claim) -> Value<'static> {
    Value::Integer(micros(claim.ttl()))
}

pub(super) fn label(claim: &Claim) -> Value<'_> {
    Value::text(claim.label().as_str())
}

pub(super) fn token(number: i64) -> Result<FencingToken, Failure> {
    let reason = "the fencing token of the row is not positive";
    FencingToken::try_from(number).map_err(|_| Failure::found(ErrorKind::Foreign, reason))
}
