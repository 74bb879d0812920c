use std::fmt;
use std::pin::Pin;

use crate::context::{Context, Verdict};

mod driver;

/// A property that every driver has, and how to find out.
#[derive(Clone, Copy)]
pub struct Check {
    name: &'static str,
    asserts: &'static str,
    needs: &'static [Need],
    run: for<'a> fn(&'a Context) -> Pin<Box<dyn Future<Output = Verdict> + 'a>>,
}

impl Check {
    /// The level, two colons, and the name: `driver::a_lease_runs_out`.
    ///
    /// Checks of the level `driver` ask the driver alone; those of the level `user` go through the
    /// engine, as an application does.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What is so if the check passes, as a sentence.
    pub fn asserts(&self) -> &'static str {
        self.asserts
    }

    /// What the driver has to declare, or the suite to be given, for the check to apply.
    pub fn needs(&self) -> &'static [Need] {
        self.needs
    }

    pub(crate) fn run<'a>(
        &self,
        context: &'a Context,
    ) -> Pin<Box<dyn Future<Output = Verdict> + 'a>> {
        (self.run)(context)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Check").field(&self.name).finish()
    }
}

/// What a check needs to apply.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Holds are leases.
    Lease,
    /// Grants carry fencing tokens.
    Fencing,
    /// The driver tells of a release.
    Notification,
    /// The driver serves waiters in order, always or on request.
    Order,
    /// The suite was given [`revoke`](crate::Suite::revoke).
    Revoke,
    /// The suite was given [`sever`](crate::Suite::sever).
    Sever,
    /// The suite was given [`restart`](crate::Suite::restart).
    Restart,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lease => "leases",
            Self::Fencing => "fencing tokens",
            Self::Notification => "notification",
            Self::Order => "an order of waiters",
            Self::Revoke => "the hook `revoke`",
            Self::Sever => "the hook `sever`",
            Self::Restart => "the hook `restart`",
        })
    }
}

macro_rules! table {
    ($($level:ident { $($module:ident::$name:ident [$($need:ident),*] $asserts:literal;)+ })+) => {
        /// The index of the suite: every check is one line.
        pub(crate) const ALL: &[Check] = &[$($(Check {
            name: concat!(stringify!($level), "::", stringify!($name)),
            asserts: $asserts,
            needs: &[$(Need::$need),*],
            run: |context| Box::pin($level::$module::$name(context)),
        },)+)+];
    };
}

table! {
    driver {
        asking::it_is_what_it_declares [] "Every connection has the id and the capabilities that the suite was given.";
        asking::a_free_lock_is_granted [] "A free lock is granted to whoever asks.";
        asking::a_held_lock_is_refused [] "A held lock is refused to other connections.";
        asking::two_claims_of_one_connection_exclude_each_other [] "Two claims of one connection exclude each other, whatever the backend lets one session do.";
        asking::a_refusal_comes_at_once [] "An ask does not wait for the holder, not even for the end of its lease.";
        asking::claims_over_separate_connections_get_one_grant [] "Of 8 claims that ask at the same time over 8 connections, one gets the lock.";
        asking::claims_over_one_connection_get_one_grant [] "Of 8 claims that ask at the same time over one connection, one gets the lock.";
        asking::a_repeated_ask_is_the_same_grant [] "A claim that asks again for what it holds gets it again, with the same token.";
        asking::an_ask_after_release_is_a_new_grant [] "A claim that asks again after its release gets the lock anew, with a higher token.";
        asking::a_try_leaves_nothing [] "A refused claim that does not wait is not waited for.";
        releasing::a_release_frees [] "A released lock can be taken at once over another connection.";
        releasing::release_answers_whether_it_freed [] "A release is answered `Freed` by a holder's first and `NotHeld` by all others.";
        releasing::release_before_any_ask_is_harmless [] "A claim that never asked can be released, and can ask afterwards.";
        releasing::only_the_owner_releases [] "The release of one owner leaves the hold of another as it is.";
        releasing::a_stale_claim_cannot_release [Lease] "A claim whose lease ran out cannot release the hold of its successor.";
        releasing::closing_one_connection_leaves_the_others_alone [] "Closing a connection ends no hold of another connection.";
        renewing::only_the_owner_renews [] "A claim that does not hold the lock is told `Lost`, and does not prolong the hold.";
        renewing::a_waiter_cannot_renew [] "A claim that waits is told `Lost` when it renews, and gets nothing by it.";
        renewing::a_renewal_never_recreates [] "A renewal after the release is told `Lost` and leaves the lock free.";
        renewing::an_expired_hold_is_not_renewed [Lease] "A renewal after the end of the lease is told `Lost` and leaves the lock free.";
        renewing::a_stale_claim_cannot_renew [Lease] "A claim whose lease ran out cannot renew the hold of its successor.";
        renewing::a_revoked_hold_is_lost [Revoke] "A hold that was taken away is told `Lost`, and the lock is free.";
        leasing::a_lease_runs_out [Lease] "A hold that nobody renews or releases ends by itself.";
        leasing::a_lease_lasts [Lease] "A lease does not end before its time.";
        leasing::a_lease_is_not_rounded_down [Lease] "A lease of an odd length lasts for all of it.";
        leasing::a_renewal_is_a_full_lease [Lease] "A renewed hold lasts for a full lease from the renewal.";
        leasing::a_repeated_ask_refreshes [Lease] "A repeated ask makes the hold last for a full lease from then.";
        leasing::no_request_shortens_a_lease [Lease] "Neither an ask nor a renewal nor another's ask for less shortens a lease.";
        leasing::a_renewal_may_be_for_longer [Lease] "A renewal for a longer lease than the last makes the hold last as long.";
        leasing::the_shortest_lease_is_kept [Lease] "A lease of the least length declared is granted, lasts and ends.";
        leasing::the_longest_lease_is_kept [Lease] "A lease of the greatest length declared is granted, renewed, kept and released.";
        leasing::a_refusal_is_not_wrong_about_the_end [Lease] "Where a refusal says when the lock will be free, it is no later than the lease allows.";
        waiting::a_release_is_not_missed [Notification] "Who was refused and then listens hears of the release, also of one in between.";
        waiting::a_release_wakes_who_listens [Notification] "Who listens hears of a release that comes later.";
        waiting::listening_may_be_broken_off [Notification] "Who stops listening and listens again hears of a release in between.";
        waiting::silence_while_nothing_changes [Notification] "Who listens while nothing changes is not woken over and over.";
        waiting::a_waiter_is_refused_like_any_other [] "A claim that waits is refused at once while the lock is held.";
        waiting::a_dead_waiter_does_not_block [Lease] "A waiter that asks no more is passed over within a lease.";
        waiting::a_released_waiter_is_not_waited_for [] "A waiter that released its claim is passed over at once.";
        waiting::a_waiter_released_at_its_turn_passes_it_on [] "A waiter that released its claim after its turn had come, maybe without knowing, is passed over at once.";
        waiting::places_are_served_in_order [Order] "Fair claims are served in the order of their first asks.";
        waiting::a_waiter_keeps_its_place [Order, Lease] "A waiter that goes on asking keeps its place for many leases.";
        waiting::a_try_does_not_overtake_the_queue [Order] "While a fair claim waits, a claim that does not wait is refused.";
        waiting::a_plain_waiter_does_not_overtake_the_queue [Order] "While a fair claim waits, a later waiter that is not fair is refused.";
        waiting::a_pushed_grant_lasts_from_the_last_ask [Order, Notification, Lease] "A grant that a waiter is told of lasts for a lease from its last refused ask: no less, and not for a fresh one.";
        tokens::tokens_are_given_if_declared [] "Every grant has a fencing token if the driver declares them, and none if not.";
        tokens::tokens_rise_over_releases [Fencing] "A later grant has a higher token, whoever released in between.";
        tokens::tokens_rise_over_expiry [Fencing, Lease] "The grant after one that ran out has a higher token.";
        tokens::tokens_rise_over_connections [Fencing] "Tokens go on rising when every connection was closed in between.";
        tokens::tokens_rise_over_revocation [Fencing, Revoke] "The grant after one that was taken away has a higher token.";
        tokens::tokens_rise_over_a_cut [Fencing, Sever] "Tokens go on rising when the connections were cut in between.";
        tokens::tokens_rise_over_a_restart [Fencing, Restart] "Tokens go on rising when the backend was restarted in between.";
        tokens::a_renewal_keeps_the_token [Fencing] "A renewal does not change the token of the hold.";
        names::different_names_are_different_locks [] "Of 200 awkward names that differ in little, each is a lock of its own: all can be held at once.";
        names::the_same_name_is_the_same_lock [] "Of 200 awkward names, each is the same lock for every connection.";
        names::namespaces_are_apart [] "The same names in other namespaces are other locks, however name and namespace are joined.";
        names::names_are_never_code [] "Names that look like statements or patterns touch nothing but their own lock.";
    }
}
