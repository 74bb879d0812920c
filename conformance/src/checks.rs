use std::fmt;
use std::pin::Pin;

use crate::context::{Context, Verdict};

mod driver;
mod user;

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

    /// What is true if the check passes, as a sentence.
    pub fn asserts(&self) -> &'static str {
        self.asserts
    }

    /// What the driver has to declare, or the suite has to be given, for the check to apply.
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
    /// The driver tells who holds and who waits, and breaks holds.
    Inspection,
    /// The suite was given [`revoke`](crate::Suite::revoke), or the driver breaks holds itself.
    Revoke,
    /// The suite was given [`sever`](crate::Suite::sever).
    Sever,
    /// The suite was given [`silence`](crate::Suite::silence).
    Silence,
    /// The suite was given [`restart`](crate::Suite::restart).
    Restart,
    /// No other check is under way, since this one has many connections.
    Alone,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lease => "leases",
            Self::Fencing => "fencing tokens",
            Self::Notification => "notification",
            Self::Order => "an order of waiters",
            Self::Inspection => "inspection",
            Self::Revoke => "the hook `revoke` or inspection",
            Self::Sever => "the hook `sever`",
            Self::Silence => "the hook `silence`",
            Self::Restart => "the hook `restart`",
            Self::Alone => "to run alone",
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
        asking::it_is_what_it_declares [] "Every connection has the id and the capabilities that the suite was given, and can be inspected if it says so.";
        asking::a_free_lock_is_granted [] "A free lock is granted to whoever asks.";
        asking::a_held_lock_is_refused [] "A held lock is refused to other connections.";
        asking::two_claims_of_one_connection_exclude_each_other [] "Two claims of one connection exclude each other, whatever the backend lets one session do.";
        asking::a_refusal_comes_at_once [] "An ask does not wait for the holder: not for the end of its lease, nor for a fifth of that.";
        asking::claims_over_separate_connections_get_one_grant [] "Of 8 claims that ask at the same time over 8 connections, one gets the lock.";
        asking::claims_over_one_connection_get_one_grant [] "Of 8 claims that ask at the same time over one connection, one gets the lock.";
        asking::claims_to_what_ran_out_get_one_grant [Lease] "Of 8 claims that ask at the same time for a lock whose lease ran out, one gets it.";
        asking::a_repeated_ask_is_the_same_grant [] "A claim that asks again for what it holds gets it again, with the same token.";
        asking::a_repeated_ask_is_no_newcomer [Order] "A claim that asks again for what it holds gets it again while a fair claim waits, which keeps its place.";
        asking::an_ask_after_release_is_a_new_grant [] "A claim that asks again after its release gets the lock anew, with a higher token.";
        asking::an_ask_after_expiry_is_a_new_grant [Lease] "A claim that asks again after its lease ran out gets the lock anew, with a higher token than before, and than whoever had it in between, and is told no more of the hold before.";
        asking::a_try_leaves_nothing [] "A refused claim that does not wait is not waited for.";
        releasing::a_release_frees [] "A released lock can be taken at once over another connection.";
        releasing::release_answers_whether_it_freed [] "A release is answered `Freed` by a holder's first and `NotHeld` by all others.";
        releasing::release_before_any_ask_is_harmless [] "A claim that never asked can be released, and can ask afterwards.";
        releasing::only_the_owner_releases [] "The release of one owner leaves the hold of another as it is.";
        releasing::an_expired_hold_is_not_released [Lease] "The release of a hold whose lease ran out is answered `NotHeld`, also if nobody has taken the lock since.";
        releasing::a_stale_claim_cannot_release [Lease] "A claim whose lease ran out cannot release the hold of its successor.";
        releasing::closing_one_connection_leaves_the_others_alone [] "Closing a connection ends no hold of another connection.";
        releasing::a_closed_connection_leaves_nothing_for_long [] "What was held or waited for over a connection that was closed ends by itself.";
        closing::a_connection_may_be_closed_again [] "A connection can be closed within 5 seconds, also once more.";
        closing::requests_end_after_closing [] "Whatever is asked over a connection that was closed is answered, or fails.";
        renewing::only_the_owner_renews [] "A claim that does not hold the lock is told `Lost`, and does not prolong the hold.";
        renewing::a_waiter_cannot_renew [] "A claim that waits is told `Lost` when it renews, and gets nothing by it.";
        renewing::a_renewal_never_recreates [] "A renewal after the release is told `Lost` and leaves the lock free.";
        renewing::an_expired_hold_is_not_renewed [Lease] "A renewal after the end of the lease is told `Lost` and leaves the lock free.";
        renewing::a_stale_claim_cannot_renew [Lease] "A claim whose lease ran out cannot renew the hold of its successor.";
        renewing::a_revoked_hold_is_lost [Revoke] "A hold that was taken away is told `Lost`, and the lock is free.";
        overlapping::a_release_is_one_step [] "Releases of a claim that are under way while others take the lock end no hold but its own.";
        overlapping::a_renewal_is_one_step [] "A renewal that is under way while its claim is released neither brings the hold back nor ends that of the next owner.";
        overlapping::a_release_is_one_step_beside_a_break [Revoke] "A release that is under way while the hold is taken away does not end that of the next owner.";
        overlapping::a_renewal_is_one_step_beside_a_break [Revoke] "A renewal that is under way while the hold is taken away neither brings it back nor ends that of the next owner.";
        overlapping::a_repeated_ask_is_one_step_beside_a_break [Revoke] "A repeated ask that is under way while the hold is taken away does not end that of the next owner, nor hold the lock beside it.";
        vouching::a_hold_is_vouched_for_as_it_ends [] "Grants, repeated asks, renewals and grants that a waiter is told of are vouched for by what ends the hold: a lease and a session since before the answer, a session always for the same length, a process while it lives.";
        handing::a_descriptor_keeps_the_lock [] "Only a hold that ends with its process may have a descriptor, which is closed on `exec` and keeps the lock after the release until it is closed.";
        silence::requests_end_while_nobody_answers [Silence] "While the backend answers nothing, asks, renewals, releases, looks, lists, breaks and diagnoses end by themselves and say so; afterwards the connection works again.";
        silence::an_ask_that_did_not_arrive_leaves_nothing [Silence] "Of an ask without an answer it is only said that it was not carried out if it holds nothing, then or later.";
        silence::an_ask_in_a_silence_leaves_at_most_a_lease [Silence, Lease] "What was asked for without an answer and then released is free within a lease, also if the ask arrives late.";
        cutting::an_ask_that_was_cut_off_leaves_nothing [Sever] "Of an ask whose connection was cut it is only said that it was not carried out if it holds nothing, then or later.";
        resuming::a_release_after_a_cut_is_heard_of [Notification, Sever] "Who listens hears of a release that comes once a connection that was cut works again, whether it was refused before the cut or after it.";
        resuming::a_release_during_a_cut_is_not_missed [Notification, Sever] "Who was refused before its connection was cut hears of a release that came before it listened again, or is told to ask again.";
        leasing::a_lease_runs_out [Lease] "A hold that nobody renews or releases any more ends by itself, however often it was renewed before.";
        leasing::a_lease_lasts [Lease] "A lease does not end before its time, nor before the time that is vouched for, whether or not its claim waits.";
        leasing::a_lease_is_not_rounded_down [Lease] "A lease of an odd length lasts for all of it, whether or not its claim waits.";
        leasing::a_renewal_is_a_full_lease [Lease] "A renewed hold lasts for a full lease from the renewal, and for as long as is vouched for.";
        leasing::a_repeated_ask_refreshes [Lease] "A repeated ask makes the hold last for a full lease from then.";
        leasing::no_request_shortens_a_lease [Lease] "Neither an ask nor a renewal nor another's ask for less shortens a lease.";
        leasing::a_renewal_may_be_for_longer [Lease] "A renewal for a longer lease than the last makes the hold last as long.";
        leasing::a_lease_is_its_own [Lease] "A new grant lasts no longer for what was left of a longer lease that was released, be it another's or its claim's own.";
        leasing::a_lease_after_a_break_is_its_own [Lease, Revoke] "A new grant lasts no longer for what was left of a longer lease that was taken away.";
        leasing::the_shortest_lease_is_kept [Lease] "A lease of the least length declared is granted, lasts and ends.";
        leasing::the_longest_lease_is_kept [Lease] "A lease of the greatest length declared is granted, renewed, told, kept and released.";
        leasing::a_refusal_is_not_wrong_about_the_end [Lease] "Where a refusal says when the lock will be free, it is no later than the lease allows, by more than two seconds.";
        waiting::a_release_is_not_missed [Notification] "Who was refused and then listens hears of the release, also of one in between, or during the ask.";
        waiting::a_release_wakes_who_listens [Notification] "Who listens hears of a release that comes later.";
        waiting::listening_may_be_broken_off [Notification] "Who stops listening and listens again hears of a release in between.";
        waiting::silence_while_nothing_changes [Notification] "Who listens while nothing changes is not woken over and over, neither a waiter nor a holder.";
        waiting::a_waiter_is_refused_like_any_other [] "A claim that waits is refused at once while the lock is held.";
        waiting::a_dead_waiter_does_not_block [Lease] "A waiter that asks no more is passed over within a lease.";
        waiting::dead_waiters_run_out_together [Order, Lease] "However many waiters ask no more, whoever is behind them gets the lock as soon as behind one.";
        waiting::a_released_waiter_is_not_waited_for [] "A waiter that released its claim is passed over at once.";
        waiting::a_waiter_released_at_its_turn_passes_it_on [] "A waiter that released its claim after its turn had come, maybe without knowing, is passed over at once, and the next is told where the driver tells of releases.";
        waiting::places_are_served_in_order [Order] "Fair claims, and all that wait where there is always an order, are served in the order of their first asks.";
        waiting::a_waiter_keeps_its_place [Order, Lease] "A waiter that goes on asking keeps its place for many leases.";
        sharing::places_of_one_connection_are_in_order [Order] "Fair claims of one connection are served in the order of their first asks, also after one of them gave up.";
        sharing::who_shares_a_connection_is_told_in_turn [Order, Notification] "Fair claims that listen over one connection each hear when it is their turn, also after one of them gave up, or as another comes.";
        sharing::who_shares_a_connection_is_told_after_another_gave_up [Notification] "Of two that wait for a lock over one connection, fair or not, each is told of a release after the other gave up.";
        waiting::a_try_does_not_overtake_the_queue [Order] "While a fair claim waits, a claim that does not wait is refused.";
        waiting::a_try_does_not_overtake_at_the_end_of_a_lease [Order, Lease] "A lock whose lease runs out goes to the fair claim that has waited longest, and not to who asks first.";
        waiting::a_plain_waiter_does_not_overtake_the_queue [Order] "While a fair claim waits, a later waiter that is not fair is refused.";
        waiting::a_pushed_grant_lasts_from_the_last_ask [Notification, Lease] "A grant that a waiter is told of lasts for a lease from its last refused ask: no less, and not for a fresh one.";
        waiting::a_refusal_voids_an_earlier_push [Notification, Lease] "A grant that was pushed, and over, before a waiter was refused again is not told of after that.";
        waiting::who_only_listens_is_handed_nothing [Notification] "A claim that listens and does not wait is handed nothing when the lock is let go.";
        waiting::who_listens_and_is_heard_is_told [Notification] "A claim that listens and does not wait, and was told that it is heard, hears of a release.";
        tokens::tokens_are_given_if_declared [] "Every grant has a fencing token if the driver declares them, and none if not.";
        tokens::tokens_rise_over_releases [Fencing] "A later grant has a higher token, whoever released in between, and whether or not its claim waits.";
        tokens::tokens_rise_while_others_ask [Fencing] "Among 8 claims that ask over and over and release at once, whether or not they wait, each hold has a higher token than the holds before.";
        tokens::tokens_rise_over_expiry [Fencing, Lease] "The grant after one that ran out has a higher token.";
        tokens::tokens_rise_over_idleness [Fencing] "The first grant after a few leases in which nobody asked for the lock has a higher token than the last before.";
        tokens::tokens_rise_over_connections [Fencing] "Tokens go on rising when every connection was closed in between.";
        tokens::tokens_rise_over_revocation [Fencing, Revoke] "The grant after one that was taken away has a higher token.";
        tokens::tokens_rise_over_a_cut [Fencing, Sever] "Tokens go on rising when the connections were cut in between.";
        tokens::tokens_rise_over_a_restart [Fencing, Restart] "Tokens go on rising when the backend was restarted in between.";
        tokens::a_renewal_keeps_the_token [Fencing] "A renewal does not change the token of the hold.";
        tokens::a_pushed_grant_has_a_token_of_its_own [Fencing, Notification] "A grant that a waiter is told of has a higher token than the hold before, and the same as when the waiter asks again.";
        names::different_names_are_different_locks [] "Of 200 awkward names that differ in little, some of them as long as can be, each is a lock of its own: all can be held at once.";
        names::different_names_have_different_queues [Order] "Who waits for a lock of an awkward name gets it, whoever has waited for others for longer.";
        names::the_same_name_is_the_same_lock [] "Of 200 awkward names, each is the same lock for every connection.";
        names::namespaces_are_apart [] "The same names in other namespaces are other locks, also for who looks and breaks, however name and namespace are joined.";
        names::names_are_never_code [] "Names that look like statements or patterns touch nothing but their own lock.";
        names::a_release_is_heard_of_whatever_the_name [Notification] "Of awkward names, and in long namespaces, each release is heard of by who waits for that lock.";
        inspection::a_hold_is_seen [Inspection] "A hold is seen from every connection, with its owner, label and token.";
        inspection::labels_are_kept_as_given [Inspection] "The labels of holders and waiters are seen as they were given, to the last byte.";
        inspection::times_of_a_hold_are_right [Inspection] "A hold is seen to last since its grant, whatever was renewed and whoever had the lock before, and a lease to end when it would.";
        inspection::a_released_lock_is_seen_free [Inspection] "A lock that was never asked for or that was released is seen free.";
        inspection::a_lease_that_ran_out_is_seen_free [Inspection, Lease] "A lock whose lease ran out is seen free, and there is nothing to break.";
        inspection::places_are_seen_in_order [Inspection, Order] "Waiters are seen in the order in which they will be served.";
        inspection::times_of_a_place_are_right [Inspection, Order] "A waiter is seen to wait since its first ask, however often it has asked.";
        inspection::a_place_that_ran_out_is_not_seen [Inspection, Order, Lease] "A waiter that asks no more is seen no more.";
        inspection::held_locks_are_listed [Inspection] "The list has every held lock of its namespace, under the name it was given and in order, and no other.";
        looking::looking_changes_nothing [Inspection] "Whoever looks, lists or diagnoses leaves holds, places and free locks as they are.";
        looking::looking_keeps_nothing_alive [Inspection, Lease] "Leases and places end in time, however often they are looked at.";
        looking::looking_disturbs_nobody [Inspection] "Asks, renewals and releases go as ever while others look.";
        looking::a_look_may_be_dropped_anywhere [Inspection] "Whoever looks may go away at any time: the next requests of the same connection get their own answers.";
        inspection::a_sound_backend_has_no_errors [Inspection] "A diagnosis of the backend has findings, each in words, and none of them is an error.";
        breaking::a_broken_hold_is_over [Inspection] "A break says whose hold it was, which can be neither renewed nor released; the next grant has a higher token.";
        breaking::a_broken_hold_frees_the_lock_for_waiters [Inspection] "A lock whose hold was broken goes to whoever waits, in order.";
        breaking::a_break_wakes_who_listens [Inspection, Notification] "Who listens hears of a break, also of one between its refusal and the listening.";
        breaking::only_the_named_owner_is_broken [Inspection] "A break for an owner that does not hold the lock finds nobody, and leaves holds and places as they are.";
        breaking::a_break_for_an_owner_is_one_step [Inspection] "A break for an owner that releases at that moment does not hit its successor.";
        breaking::an_inspected_name_is_never_code [Inspection] "Names that look like statements or patterns are looked at and broken like any other.";
    }
    user {
        exclusion::eight_lockers_take_turns [] "Of 8 lockers on connections of their own, one at a time is inside.";
        exclusion::sixty_four_lockers_take_turns [Alone] "Of 64 lockers, on connections of their own unless the suite may make fewer, one at a time is inside.";
        exclusion::eight_tasks_of_one_locker_take_turns [] "Of 8 tasks that share a locker, one at a time is inside.";
        exclusion::sixty_four_tasks_of_one_locker_take_turns [] "Of 64 tasks that share a locker, one at a time is inside.";
        exclusion::one_task_excludes_itself [] "Without an owner, a second acquisition by the holder's own task is refused.";
        exclusion::tokens_rise_in_the_order_of_holds [Fencing] "Among contending lockers, each hold has a higher token than the holds before.";
        exclusion::a_stale_holder_is_fenced_off [Fencing, Revoke] "What a holder writes after its successor did is refused by its token.";
        exclusion::an_owner_reenters [] "An owner acquires again what it holds, with the same token, and it is free after the last release only.";
        exclusion::other_owners_are_kept_out [] "A lock that one owner holds is refused to other owners of the same locker.";
        exclusion::a_lost_hold_is_not_reentered [Revoke] "An owner that lost its hold is told so on re-entry, until its last guard is gone.";
        waiting::a_try_answers_at_once [] "A try on a held lock is one request and no wait.";
        waiting::a_wait_is_limited_in_all [] "A wait with a limit ends with it, however often it asked.";
        waiting::a_wait_may_have_no_time [] "A wait of no time takes a free lock and is refused a held one.";
        waiting::a_wait_may_have_no_end [] "A wait of the longest duration there is ends with the hold before it.";
        waiting::a_release_wakes_a_waiter [Notification] "A waiter has the lock because of the release, not because it polled.";
        waiting::waiters_are_served_in_order [Order] "Fair waiters get the lock in the order in which they came.";
        waiting::a_try_does_not_overtake_waiters [Order] "A try is refused while a fair waiter has yet to get the lock.";
        waiting::a_waiter_that_gave_up_is_passed_over [] "A wait that ended with its limit holds nobody up.";
        waiting::a_dead_waiter_holds_nobody_up [Lease] "A waiter that died is passed over within a lease.";
        waiting::a_dead_holder_blocks_for_a_lease [Lease] "A lock whose holder died goes to a waiter within a lease.";
        waiting::a_long_wait_ends_in_a_good_hold [] "A hold that was waited for during several leases is as good as any.";
        waiting::a_thousand_waiters_are_served [] "1,000 waiters of one locker on one lock all get it, 500 of them in order where the driver can.";
        waiting::a_wait_ends_while_nobody_answers [Silence] "A try and a wait with a limit end while the backend answers nothing; afterwards the same locker gets the lock.";
        waiting::a_wait_outlives_a_cut [Sever] "A waiter whose connection was cut gets the lock when it is released.";
        holding::a_hold_outlives_its_lease [] "A hold lasts for many leases, for which everybody else is refused.";
        holding::a_hold_is_not_lost_without_cause [] "Over many renewals, no loss is reported.";
        holding::a_lease_without_renewals_is_lost_in_time [Lease] "A guard that is not renewed says so before anybody else can be granted the lock.";
        holding::an_extended_lease_lasts [Lease] "An extended lease lasts for what was asked, and nobody else gets the lock meanwhile.";
        holding::the_longest_hold_ends [] "A hold of limited length ends with the limit, and the lock is free.";
        holding::a_revoked_hold_is_reported [Revoke] "The loss of a hold that was taken away is reported within a lease.";
        holding::a_release_after_the_loss_says_so [Revoke] "The release of a hold that was lost is answered `Lost`, and harms no successor.";
        holding::a_lost_lock_can_be_held_again [Revoke] "After a loss the same locker holds the lock again, renewals included.";
        holding::work_ends_with_its_hold [Revoke] "Work that runs under the lock is dropped when the hold is lost.";
        holding::a_thousand_names_are_held [] "One locker holds 1,000 locks over two leases and loses none.";
        holding::a_grant_whose_answer_was_lost_is_found [] "An acquisition whose first answers are lost gets the lock that it was granted.";
        holding::a_hold_survives_lost_answers [] "A hold survives renewals whose answers are lost.";
        holding::a_release_whose_answer_was_lost_frees [] "A release whose answer is lost leaves the lock free.";
        holding::a_hold_is_lost_in_time_while_nobody_answers [Silence] "A guard says that it is lost before its lease or session is over while the backend answers nothing, and its release ends.";
        holding::a_hold_survives_a_cut [Sever] "A lease survives that connections are cut; a session survives or is reported lost.";
        holding::a_restart_is_got_over [Restart] "A locker goes on working after a restart of the backend.";
        ending::an_acquisition_may_be_dropped_anywhere [] "An acquisition that is dropped, after whatever poll, leaves nothing.";
        ending::a_wait_may_be_dropped_anywhere [] "A wait that is dropped, after whatever poll, leaves neither a hold nor a place.";
        ending::a_release_may_be_dropped_anywhere [] "A release that is dropped, after whatever poll, frees the lock.";
        ending::a_guard_may_be_dropped_without_a_runtime [] "A guard that is dropped on a plain thread frees the lock.";
        ending::a_guard_may_be_dropped_in_a_panic [] "A guard that is dropped while its thread unwinds frees the lock.";
        ending::a_guard_may_be_dropped_by_another_task [] "A guard that is dropped in another task frees the lock.";
        ending::a_shutdown_leaves_nothing [] "A locker that is shut down leaves neither holds nor places, and its guards say so.";
        inspection::the_holds_of_all_lockers_are_seen [Inspection] "A locker sees and lists what any locker holds, until it is released.";
        inspection::a_waiting_locker_is_seen [Inspection, Order] "A locker that waits in a queue is seen there until it gives up.";
        inspection::a_broken_holder_is_told [Inspection] "The guard of a broken hold reports the loss within a lease, and its release says so.";
        inspection::a_break_serves_a_waiter [Inspection] "A waiter gets the lock when its hold is broken, with a higher token.";
    }
}
