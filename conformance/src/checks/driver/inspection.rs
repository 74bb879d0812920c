use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Claim, Driver as _, Instant, OwnerId};
use lockkit_core::{FencingToken, Grade, Holder, Label, Liveness, LockName, LockStatus, Waiter};

use super::waiting::MANY;
use crate::connection::Connection;
use crate::context::{Context, Verdict};
use crate::names;

pub(in crate::checks) async fn a_hold_is_seen(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    for label in ["the first", "the second"] {
        let claim = context.long_claim()?.with_label(Label::new(label)?);
        let token = holder.take(&claim).await?.fencing_token();
        for connection in [&other, &holder] {
            is_seen(connection, &claim, token).await?;
        }
        other.is_refused(&context.long_claim()?, "it is held").await?;
        holder.keep(&claim).await?;
        is_seen(&other, &claim, token).await?;
        holder.release(&claim).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn labels_are_kept_as_given(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let longest = "\u{fc}".repeat(Label::MAX_LEN / 2);
    for label in LABELS.iter().chain([&&*longest]) {
        let label = Label::new(label)?;
        let held = context.long_claim()?.with_label(label.clone());
        let waiting = context.queued(context.long_claim()?).with_label(label);
        let token = holder.take(&held).await?.fencing_token();
        waiter.is_refused(&waiting, "it is held").await?;
        is_seen(&waiter, &held, token).await?;
        if context.has_order() {
            are_seen_waiting(&holder.look(held.name()).await?, &[&waiting])?;
        }
        waiter.release(&waiting).await?;
        holder.release(&held).await?;
    }
    Ok(())
}

/// Labels that a separator, a pattern, a quotation or a character set may spoil.
const LABELS: &[&str] = &[
    "web-3:4711",
    " a  b ",
    "a|b,c;d=e:f/g\\h",
    "it's \"quoted\" `so`",
    "100% %s $1 ?",
    "{\"a\":[1]}",
    "null",
    "-1",
    "'; DROP TABLE locks; --",
    "e\u{301} is not \u{e9}",
    "B\u{fc}ro 7, \u{1f512}",
];

pub(in crate::checks) async fn times_of_a_hold_are_right(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    // Long enough that a stall of the machine ends no hold.
    let claim = context.claim()?.with_ttl((3 * context.ttl()).min(context.capabilities().max_ttl));
    let (asked, token) = (claim.now(), holder.take(&claim).await?.fencing_token());
    let granted = Period { from: asked, to: claim.now() };
    let mut refreshed = granted;
    has_times(&other, &claim, token, granted, refreshed).await?;
    let [waiting, next] = [context.claim()?, context.claim()?].map(|it| it.with_ttl(claim.ttl()));
    let waiting = context.queued(waiting);
    for _ in 0..3 {
        other.is_refused(&waiting, "it is held").await?;
        tokio::time::sleep(claim.ttl() / 3).await;
        has_times(&other, &claim, token, granted, refreshed).await?;
        let asked = claim.now();
        holder.keep(&claim).await?;
        refreshed = Period { from: asked, to: claim.now() };
        has_times(&other, &claim, token, granted, refreshed).await?;
    }
    // Neither who may be handed the lock then nor who takes it after that has held it for as long.
    let mut before = (&holder, &claim);
    for (connection, heir) in [(&other, &waiting), (&holder, &next)] {
        let freed = heir.now();
        before.0.release(before.1).await?;
        let token = connection.take(heir).await?.fencing_token();
        let granted = Period { from: freed, to: heir.now() };
        // A backend may be told the time of a grant only later, as its holder listens.
        let listening = async {
            loop {
                connection.changed(heir).await;
                connection.keep(heir).await?;
            }
        };
        let looks = async {
            loop {
                match has_times(&other, heir, token, granted, granted).await {
                    Err(_) if granted.to + heir.ttl() / 2 > heir.now() => {
                        tokio::time::sleep(heir.ttl() / 50).await;
                    }
                    verdict => return verdict,
                }
            }
        };
        tokio::select! {
            stop = listening => stop,
            verdict = looks => verdict,
        }?;
        before = (connection, heir);
    }
    Ok(())
}

/// The time between an ask and its answer, in which the backend decided.
#[derive(Clone, Copy)]
struct Period {
    from: Instant,
    to: Instant,
}

impl Period {
    /// How long ago it was at `now`, at the least and at the most.
    fn past_at(self, now: Self) -> (Duration, Duration) {
        (now.from.saturating_duration_since(self.to), now.to.saturating_duration_since(self.from))
    }
}

/// What a backend may count in at most.
pub(super) const UNIT: Duration = Duration::from_secs(1);

async fn has_times(
    connection: &Connection,
    claim: &Claim,
    token: Option<FencingToken>,
    granted: Period,
    refreshed: Period,
) -> Verdict {
    let (asked, holder) = (claim.now(), is_seen(connection, claim, token).await?);
    let now = Period { from: asked, to: claim.now() };
    // The time is for people, and in whatever unit the backend counts.
    let ttl = claim.ttl();
    let margin = UNIT.max(ttl / 4);
    if let Some(since) = holder.held_for() {
        let (least, most) = granted.past_at(now);
        ensure!(
            least <= since + margin && since <= most + margin,
            "a lock that is held for {least:?} to {most:?} is seen as held for {since:?}"
        );
    }
    match (connection.capabilities().liveness, holder.remaining()) {
        (Liveness::Lease, Some(remaining)) => {
            let (least, most) = refreshed.past_at(now);
            let (least, most) = (ttl.saturating_sub(most), ttl.saturating_sub(least));
            ensure!(
                // It may have been rounded up as well.
                least <= remaining + margin && remaining <= most + margin.max(2 * UNIT),
                "a lease with {least:?} to {most:?} left is seen to end in {remaining:?}"
            );
        }
        (Liveness::Lease, None) => fail!("a lease is seen without its end"),
        (_, Some(_)) => fail!("a hold that is no lease is seen to end"),
        (_, None) => (),
    }
    Ok(())
}

pub(in crate::checks) async fn a_released_lock_is_seen_free(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let claim = context.long_claim()?;
    is_seen_free(context, &other, claim.name(), "nobody has asked for it").await?;
    holder.take(&claim).await?;
    holder.keep(&claim).await?;
    holder.release(&claim).await?;
    for connection in [&other, &holder] {
        is_seen_free(context, connection, claim.name(), "it was released").await?;
    }
    Ok(())
}

pub(in crate::checks) async fn a_lease_that_ran_out_is_seen_free(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let claim = context.claim()?;
    holder.take(&claim).await?;
    context.outlive(claim.ttl()).await?;
    is_seen_free(context, &other, claim.name(), "its lease ran out").await?;
    for owner in [Some(claim.owner()), None] {
        is_nobodys(&other, claim.name(), owner, "the lease had run out").await?;
    }
    Ok(())
}

pub(in crate::checks) async fn places_are_seen_in_order(context: &Context) -> Verdict {
    let holder = context.connect().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    let mut queue = Vec::new();
    for place in 1..=MANY {
        let label = Label::new(&format!("waiter {place}"))?;
        let claim = context.long_claim()?.fair().with_label(label);
        let connection = context.connect().await?;
        connection.is_refused(&claim, "it is held").await?;
        queue.push((connection, claim));
    }
    let is_as_seen = async |queue: &[(Arc<Connection>, Claim)]| {
        let waiting: Vec<_> = queue.iter().map(|(_, claim)| claim).collect();
        are_seen_waiting(&holder.look(held.name()).await?, &waiting)
    };
    is_as_seen(&queue).await?;
    for (connection, claim) in queue.iter().rev() {
        connection.is_refused(claim, "it is held").await?;
    }
    is_as_seen(&queue).await?;
    let (second, left) = queue.remove(1);
    second.release(&left).await?;
    is_as_seen(&queue).await?;
    holder.release(&held).await?;
    let (first, next) = queue.remove(0);
    let token = first.take(&next).await?.fencing_token();
    is_seen(&holder, &next, token).await?;
    is_as_seen(&queue).await
}

pub(in crate::checks) async fn times_of_a_place_are_right(context: &Context) -> Verdict {
    context.needs_long_leases()?;
    let (holder, waiter) = context.pair().await?;
    let held = context.long_claim()?;
    // The time is for people, and in whatever unit the backend counts.
    let (waiting, margin) = (context.long_claim()?.fair(), context.ttl() * 3 / 2);
    holder.take(&held).await?;
    let asked = waiting.now();
    waiter.is_refused(&waiting, "it is held").await?;
    let placed = Period { from: asked, to: waiting.now() };
    for asks_between in [0, 2] {
        for _ in 0..asks_between {
            tokio::time::sleep(context.ttl()).await;
            holder.keep(&held).await?;
            waiter.is_refused(&waiting, "it is held").await?;
        }
        let looked = waiting.now();
        let status = holder.look(held.name()).await?;
        are_seen_waiting(&status, &[&waiting])?;
        let (least, most) = placed.past_at(Period { from: looked, to: waiting.now() });
        for since in status.waiters().iter().filter_map(Waiter::waiting_for) {
            ensure!(
                least <= since + margin && since <= most + margin,
                "who has waited for {least:?} to {most:?} is seen to wait for {since:?}"
            );
        }
    }
    Ok(())
}

pub(in crate::checks) async fn a_place_that_ran_out_is_not_seen(context: &Context) -> Verdict {
    context.needs_long_leases()?;
    let (holder, dead) = context.pair().await?;
    let alive = context.connect().await?;
    let held = context.long_claim()?;
    let [left, waiting] = [context.claim()?.fair(), context.long_claim()?.fair()];
    holder.take(&held).await?;
    dead.is_refused(&left, "it is held").await?;
    alive.is_refused(&waiting, "it is held").await?;
    let begun = held.now();
    while holder.look(held.name()).await?.waiters().len() > 1 {
        let lasted = held.now().saturating_duration_since(begun);
        ensure!(
            lasted < context.expiry(left.ttl()),
            "{lasted:?} after a waiter asked for {:?} it is still seen to wait",
            left.ttl()
        );
        tokio::time::sleep(left.ttl() / 20).await;
    }
    are_seen_waiting(&holder.look(held.name()).await?, &[&waiting])
}

pub(in crate::checks) async fn held_locks_are_listed(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let namespace = context.namespace_beside("list-@")?;
    // Namespaces that a prefix or a pattern would take for it.
    for alike in ["list-@-a", "list-@.a", "list-@a", "a-list-@", "list_@", "LIST-@", "list-"] {
        let neighbour = context.namespace_beside(alike)?;
        let name = LockName::new(&neighbour, &context.text("lock-@"))?;
        holder.take(&Claim::new(name, context.long())).await?;
    }
    ensure!(other.held(&namespace).await?.is_empty(), "a list shows locks of other namespaces");

    let shapes = names::awkward().into_iter().chain(names::HOSTILE.iter().copied().map(Into::into));
    let names: Result<BTreeSet<_>, _> =
        shapes.map(|shape| LockName::new(&namespace, &context.text(&shape))).collect();
    let mut held = Vec::new();
    for (number, name) in names?.into_iter().enumerate() {
        let label = Label::new(&format!("holder {number}"))?;
        let claim = Claim::new(name, context.long()).with_label(label);
        let token = holder.take(&claim).await?.fencing_token();
        held.push((claim, token));
    }
    are_listed(&other.held(&namespace).await?, &held)?;

    let mut number = 0;
    let released = held.extract_if(.., |_| {
        number += 1;
        number % 2 == 0
    });
    for (claim, _) in released.collect::<Vec<_>>() {
        holder.release(&claim).await?;
    }
    let waiting = context.queued(Claim::new(held[0].0.name().clone(), context.long()));
    other.is_refused(&waiting, "it is held").await?;
    let listed = other.held(&namespace).await?;
    are_listed(&listed, &held)?;
    if context.has_order() {
        are_seen_waiting(&listed[0], &[&waiting])?;
    }
    Ok(())
}

/// The list has the held locks, which are in order, and no others.
fn are_listed(listed: &[LockStatus], held: &[(Claim, Option<FencingToken>)]) -> Verdict {
    let names: BTreeSet<_> = listed.iter().map(LockStatus::name).collect();
    for (claim, _) in held {
        ensure!(names.contains(claim.name()), "{:?} is held and not listed", claim.name());
    }
    for name in &names {
        let is_held = held.iter().any(|(claim, _)| claim.name() == *name);
        ensure!(is_held, "{name:?} is listed and not held");
    }
    ensure!(
        listed.len() == held.len(),
        "{} held locks are listed twice",
        listed.len() - held.len()
    );
    ensure!(listed.is_sorted_by_key(LockStatus::name), "the list is not in order of names");
    for (status, (claim, token)) in listed.iter().zip(held) {
        match status.holder() {
            Some(holder) => is_of(holder, claim, *token)?,
            None => fail!("{:?} is listed without its holder", status.name()),
        }
    }
    Ok(())
}

pub(in crate::checks) async fn a_sound_backend_has_no_errors(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    connection.take(&context.long_claim()?).await?;
    let findings = connection.diagnose(&context.own_namespace()?).await?;
    ensure!(!findings.is_empty(), "a diagnosis finds nothing, neither good nor bad");
    for finding in findings {
        let (topic, advice) = (finding.topic(), finding.advice().unwrap_or("none"));
        for text in [topic, finding.finding(), advice] {
            ensure!(!text.trim().is_empty(), "a finding has no words where it should: {finding:?}");
        }
        ensure!(finding.grade() != Grade::Error, "{topic}: {}; {advice}", finding.finding());
    }
    Ok(())
}

/// The lock is seen to be held by this claim.
pub(super) async fn is_seen(
    connection: &Connection,
    claim: &Claim,
    token: Option<FencingToken>,
) -> Verdict<Holder> {
    match connection.look(claim.name()).await?.holder() {
        Some(holder) => is_of(holder, claim, token).map(|()| holder.clone()),
        None => fail!("{:?} is held and seen free", claim.name()),
    }
}

pub(super) fn is_of(holder: &Holder, claim: &Claim, token: Option<FencingToken>) -> Verdict {
    let (owner, label) = (claim.owner(), claim.label());
    ensure!(holder.owner() == owner, "the holder {owner} is seen as {}", holder.owner());
    let called = holder.label();
    ensure!(called == Some(label), "a holder that calls itself {label:?} is seen as {called:?}");
    let seen = holder.fencing_token();
    ensure!(seen == token, "a hold with the token {token:?} is seen with {seen:?}");
    Ok(())
}

/// Neither a look nor the list has a holder; `why` completes "is seen to be held, although".
pub(super) async fn is_seen_free(
    context: &Context,
    connection: &Connection,
    name: &LockName,
    why: &str,
) -> Verdict {
    let status = connection.look(name).await?;
    ensure!(status.holder().is_none(), "a lock is seen to be held, although {why}");
    let listed = connection.held(&context.own_namespace()?).await?;
    let is_listed = listed.iter().any(|status| status.name() == name);
    ensure!(!is_listed, "a lock is listed as held, although {why}");
    Ok(())
}

/// A break finds nobody; `why` completes "was broken, although".
pub(super) async fn is_nobodys(
    connection: &Connection,
    name: &LockName,
    owner: Option<OwnerId>,
    why: &str,
) -> Verdict {
    let broken = connection.break_hold(name, owner).await?;
    ensure!(broken.is_none(), "{broken:?} was broken, although {why}");
    Ok(())
}

/// The claims, and no others, are seen to wait, in this order.
pub(super) fn are_seen_waiting(status: &LockStatus, waiting: &[&Claim]) -> Verdict {
    let seen: Vec<_> = status.waiters().iter().map(|it| (it.owner(), it.label())).collect();
    let real: Vec<_> = waiting.iter().map(|it| (it.owner(), Some(it.label()))).collect();
    ensure!(seen == real, "{real:?} wait in this order, and are seen as {seen:?}");
    let times: Vec<_> = status.waiters().iter().filter_map(|waiter| waiter.waiting_for()).collect();
    let is_falling = times.is_sorted_by(|earlier, later| earlier >= later);
    ensure!(is_falling, "waiters came one after another, and are seen to wait for {times:?}");
    Ok(())
}
