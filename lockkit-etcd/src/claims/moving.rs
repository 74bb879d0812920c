//! Hanging a key on a lease other than the one it was put with.

use std::sync::Arc;

use lockkit_core::driver::{Claim, Limit};

use super::Claims;
use crate::entry::{Entry, Standing};
use crate::error::Failure;
use crate::leases::Lease;
use crate::queue::{self, Own};
use crate::reader::Haste;

impl Claims {
    /// Hangs the key on a lease of the length that the claim wishes for; returns whether the key is
    /// there.
    ///
    /// Renewals of one claim may overlap. One of them moves the key, and the others find it moved:
    /// otherwise, the second would end the lease that the first has moved it to.
    pub(super) async fn lengthen(
        &self,
        entry: &Entry,
        claim: &Claim,
        limit: Limit,
    ) -> Result<bool, Failure> {
        let _turn = entry.turn(limit).await?;
        if self.is_long_enough(entry, claim) {
            return self.keep(entry, limit).await;
        }
        while !self.is_long_enough(entry, claim) {
            // A lease that was asked for before comes first, whatever its length: the key may hang
            // on it.
            let begun = entry.traces().longer.clone();
            let is_moved = match begun {
                Some(longer) => match self.move_to(entry, claim, longer, true, limit).await {
                    Err(failure) if failure.is_about_space() && entry.is_enough_for(claim) => {
                        return self.keep_on_either(entry, failure, limit).await;
                    }
                    moved => moved?,
                },
                None => {
                    let longer = self.leases.take(claim.ttl(), limit).await?;
                    // A lease from the pool may have less left than the hold is vouched for.
                    match self.refresh(&longer, limit).await {
                        Ok(true) => self.move_to(entry, claim, longer, false, limit).await?,
                        Ok(false) => continue,
                        Err(failure) => {
                            self.leases.give_back(longer);
                            return Err(failure);
                        }
                    }
                }
            };
            if !is_moved {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Hangs the key on another lease, which an earlier request may have done already, and lets go
    /// of the lease that it hung on. Returns whether the key is there.
    async fn move_to(
        &self,
        entry: &Entry,
        claim: &Claim,
        longer: Arc<Lease>,
        was_begun: bool,
        limit: Limit,
    ) -> Result<bool, Failure> {
        let Some(stands) = entry.standing() else { return Ok(false) };
        entry.traces().longer = Some(Arc::clone(&longer));
        let own = Own { key: &stands.key, claim, lease: longer.id() };
        let (changed, is_alive, was_alive) = tokio::join!(
            queue::change_lease(&self.members, own, stands.created, Some(stands.lease.id()), limit),
            self.refresh(&longer, limit),
            // The lease that the key hangs on until then, and after a failure.
            self.refresh(&stands.lease, limit),
        );
        let may_be_carried_out = changed.may_be_carried_out();
        let may_be_named = was_begun || may_be_carried_out;
        let is_in_doubt = {
            let mut traces = entry.traces();
            traces.in_doubt |= may_be_carried_out;
            traces.in_doubt
        };
        let is_moved = match changed.outcome {
            Ok(is_moved) => is_moved,
            Err(failure) => {
                if failure.is_a_lost_lease() {
                    longer.write_off();
                }
                if !may_be_named || longer.is_gone() {
                    entry.traces().longer = None;
                    self.leases.give_back(longer);
                }
                // That the key has gone with its lease is known all the same.
                return match was_alive {
                    Ok(false) if !may_be_named => Ok(false),
                    _ => Err(failure),
                };
            }
        };
        if !is_moved || !is_alive? {
            return Ok(false);
        }
        if is_in_doubt {
            // An ask that was not answered may name that lease.
            self.leases.revoke(&stands.lease, limit).await?;
            entry.moves_to(longer);
        } else {
            entry.moves_to(longer);
            // The key is named after that lease: another claim with it would take the key for its
            // own.
            self.leases.retire(&stands.lease);
        }
        Ok(true)
    }

    /// As [`keep`](Self::keep), where the key may hang on either of two leases and cannot be moved.
    async fn keep_on_either(
        &self,
        entry: &Entry,
        failure: Failure,
        limit: Limit,
    ) -> Result<bool, Failure> {
        let (stands, longer) = (entry.standing(), entry.traces().longer.clone());
        let (Some(Standing { key, created, lease }), Some(longer)) = (stands, longer) else {
            return Err(failure);
        };
        let (stands, is_alive, longer_is_alive) = tokio::join!(
            self.reader.stands(key, created, Haste::WithOthers, limit),
            self.refresh(&lease, limit),
            self.refresh(&longer, limit),
        );
        match stands?.is_some() {
            true if is_alive? && longer_is_alive? => Ok(true),
            true => Err(failure),
            false => Ok(false),
        }
    }

    /// Hangs the key, which is there although its lease is over, on another lease. That is the
    /// claim's once the server has said so: until then, the key may hang on either.
    pub(super) async fn hang(
        &self,
        entry: &Entry,
        stands: &Standing,
        claim: &Claim,
        limit: Limit,
    ) -> Result<(), Failure> {
        let _turn = entry.turn(limit).await?;
        if entry.lease().is_some_and(|lease| !lease.is_gone()) {
            // Somebody has done it meanwhile.
            return Ok(());
        }
        let begun = entry.traces().longer.clone();
        let lease = match begun {
            Some(begun) => begun,
            None => self.leases.take(claim.ttl(), limit).await?,
        };
        entry.traces().longer = Some(Arc::clone(&lease));
        let own = Own { key: &stands.key, claim, lease: lease.id() };
        // What is answered then is good for a full TTL; after a failure, for what is known.
        let (changed, _) = tokio::join!(
            queue::change_lease(&self.members, own, stands.created, None, limit),
            self.refresh(&lease, limit),
        );
        entry.traces().in_doubt |= changed.may_be_carried_out();
        match changed.outcome {
            Ok(true) => {
                entry.moves_to(lease);
                Ok(())
            }
            Ok(false) => {
                self.displaced(entry);
                Err(Failure::Displaced)
            }
            Err(failure) => {
                if failure.is_a_lost_lease() {
                    lease.write_off();
                    entry.traces().longer = None;
                }
                Err(failure)
            }
        }
    }

    pub(super) fn is_long_enough(&self, entry: &Entry, claim: &Claim) -> bool {
        entry.traces().longer.is_none() && entry.is_enough_for(claim)
    }
}
