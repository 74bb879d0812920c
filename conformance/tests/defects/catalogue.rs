//! What is wrong with drivers that people have used.

macro_rules! defects {
    ($($name:ident $what:literal $seen:literal;)+) => {
        /// A planted fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Defect {
            $($name,)+
        }

        impl Defect {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];

            /// What it does.
            pub(crate) fn what(self) -> &'static str {
                match self {
                    $(Self::$name => $what,)+
                }
            }

            /// Where a real driver did the like.
            pub(crate) fn seen(self) -> &'static str {
                match self {
                    $(Self::$name => $seen,)+
                }
            }
        }
    };
}

defects! {
    // Exclusion.
    GrantsToAll "Answers every ask with a grant." "a plain write instead of a conditional one: `SET` without `NX`";
    ChecksThenTakes "Looks whether the lock is free in one request and takes it in another." "select, then insert or update, outside one transaction";
    ChecksThenTakesInOrder "Looks whether the lock is free in one request and takes it in another, where the claim is a fair one." "a queue that is read before the hold is written";
    TakesTheEndOfALease "Gives a waiter the lock when less than a third of its holder's lease is left." "a look at the expiry that allows for clocks that differ, in the wrong direction";
    RemovesThenTakes "Removes a hold that ran out in one request, and takes the lock in another." "`DELETE` by the name and `INSERT`, after a `SELECT` of what ran out";
    OwnerIsTheConnection "Takes all claims of one connection for the same owner." "PostgreSQL's advisory locks, MySQL's `GET_LOCK` and an etcd lease let one session in twice; redisson#4467";
    LocksOfTheConnection "Keeps the locks in the connection." "two clients configured for different databases or prefixes";
    HangsWhenRefused "Never answers an ask for a held lock." "redisson#5761, redisson#763";
    WaitsForTheHolder "Lets the ask of a waiter wait for the holder." "`BLPOP`, `pg_advisory_lock`, `SELECT ... FOR UPDATE` without a time-out";
    TriesWait "Lets the ask of a try wait for the holder for up to two leases." "a session's lock time-out that is left at its default";
    TriesWaitBriefly "Lets the ask of a try wait for the holder for less than a lease." "a lock time-out of half a second; a client helper that tries for 0.8 seconds before it says no";
    RefusesAtFirst "Refuses the first ask of each claim." "RedLock.net#91, redisson#4822";
    DeclaresOtherwise "Declares other capabilities than it is documented with." "dynamodb-lock-client#1: documentation that promises more than the code does";

    // Retries.
    RefusesRetries "Refuses a claim what it holds already." "`SET NX` repeated after a time-out; simstudioai/sim#6864, DistributedLock#147";
    RefusesRetriesBeforeAQueue "Refuses a fair claim what it holds already, while another waits." "a look at the queue that comes before the one at the holder";
    CountsAsks "Counts repeated asks, and frees the lock after as many releases." "redisson#6025";
    LooksThenAsksInTurn "Looks in one request whether the claim holds the lock and writes it down in another, with one call at a time on a connection." "`GET`, a comparison, and `SET` without `NX` where it is one's own";
    NewTokenOnRetry "Draws a new token for each ask of the holder." "an increment that is repeated by a client library";
    AnswersRetriesItself "Answers a repeated ask without asking the backend." "a local table of holds (consul#4935)";
    RefusesTheReleased "Refuses a claim for good once it was released." "a tombstone against late requests that is never removed";

    // Release.
    ReleasesForOthers "Releases whoever holds the lock." "`DEL` without a comparison; ShedLock#74, aredis#119, etcd#22082";
    LooksThenReleases "Compares the owner in one request, and releases in another." "`GET`, a comparison, and `DEL`";
    LooksThenReleasesInTurn "Compares the owner in one request and releases in another, with one call at a time on a connection." "a connection behind a mutex: `SELECT`, a comparison, and `DELETE` by the name";
    ReleasesNothing "Answers a release, and releases nothing." "pglock#36, pglock#175";
    ReleasesLater "Answers a release before it is carried out, a moment later." "an acknowledgement that comes before the write";
    FailsToReleaseTwice "Fails to release what is not held." "node-redlock#131, redsync#107";
    SaysFreed "Answers every release with `Freed`." "a delete whose count of rows nobody reads; spring-integration#2661";
    FreesTheExpired "Answers `Freed` to the release of a lease that ran out, unless the lock was taken since." "`DELETE ... WHERE owner = ?` without a look at the expiry";
    SaysNotHeld "Answers every release with `NotHeld`." "redisson#2224: not locked by the current thread";
    ReleasedWaitersStay "Releases holds, but no places." "etcd#10111, zk-ruby#49, CURATOR-79, kazoo#732";
    TurnsCannotBeDeclined "Does not release what was handed to a waiter that has not heard of it." "a cancelled waiter that is notified at that moment; CURATOR-335";
    TurnsAreDeclinedInSilence "Passes on what was handed to a waiter that gives up, and does not tell the next one." "a release that only wakes others if the lock was held; CURATOR-335";
    OneCloseEndsAll "Ends the holds of all connections when one is closed." "DistributedLock#83: connections that share a session";
    ClosesSlowly "Takes eight seconds to end a connection." "a farewell to a server that does not answer it";
    HangsWhenClosedAgain "Never comes back from a second end of a connection." "a task that is waited for and has ended";
    HangsAfterClosing "Never answers a request after the end of its connection." "a queue of requests that nobody reads any more";

    // Leases.
    NeverExpires "Sets no expiry." "`SETNX`, and a crash before `EXPIRE`";
    HalfALease "Ends leases early." "an expiry computed from a skewed client's clock, which shows only between machines; ShedLock#231";
    HalfALeaseInOrder "Gives a fair claim half its lease." "two scripts for what a claim is granted, of which one counts in another unit";
    LongLeasesWrap "Keeps the length of a lease in 32 bits of microseconds." "an `int` that holds milliseconds or microseconds";
    WholeSeconds "Rounds leases down to seconds." "milliseconds given to an interface that takes seconds";
    WholeSecondsInOrder "Rounds the leases of fair claims down to seconds." "two scripts for a grant, of which one has `EXPIRE` for `PEXPIRE`";
    WholeSecondsOnRetry "Rounds the lease down to seconds when its holder asks again." "`EXPIRE` for a hold that is the claim's own, and `SET` with `PX` for a new one";
    WholeSecondsOnRenewal "Rounds leases down to seconds on renewal." "`SET` with `PX`, and `EXPIRE` for the renewal";
    RenewalDoesNothing "Answers renewals without lengthening the lease." "redisson#5698, dynamolock#14";
    RefreshesSeldom "Answers a renewal or a repeated ask without lengthening the lease where most of it is left." "a refresh that is spared because the last one is recent";
    RenewalsAddUp "Lengthens the lease by what each renewal asks for." "`UPDATE ... SET expires = expires + ttl`";
    RenewsForOthers "Renews the lock for whoever asks." "`EXPIRE` without a comparison";
    LooksThenRenews "Compares the owner in one request, and renews in another." "`GET`, a comparison, and `SET` with `PX`";
    LooksThenRenewsInTurn "Compares the owner in one request and renews in another, with one call at a time on a connection." "a connection behind a mutex: `GET`, a comparison, and `SET` with `PX`";
    RenewalTakes "Takes a free lock on renewal." "an upsert, or `SET` without `XX`; redsync's option to do so";
    RenewsTheExpired "Renews a lease that ran out." "`UPDATE ... WHERE owner = ?` without a look at the expiry";
    RenewsAlways "Answers every renewal with yes, and tells of no loss." "pglock#18, redisson#4698, DistributedLock#133";
    RenewsForTheFirstLease "Renews for the length that was first asked for." "a time-out stored in the object; dynamodb-lock-client#44";
    ShortensLeases "Lets the last request set the expiry, also to earlier." "`PEXPIRE` without `GT`";
    InheritsLeases "Lets a new grant last for what was left of the hold that was released or broken before it." "`GREATEST` of the row's expiry and the new one, whoever's it was";
    InheritsBrokenLeases "Lets a new grant last for what was left of the hold that was broken before it." "a break that clears the owner and not the expiry";
    RefusesLongLeases "Refuses leases of more than an hour." "an overflow of an interval; Redis and etcd refuse what overflows";
    WrongUnit "Gives the remaining time in milliseconds for seconds." "`PTTL` taken for `TTL`";
    VouchesTooLong "Vouches for a lease of twice the length, from the answer on." "redsync#72; etcd's Go client counts from the answer, which shows only where answers are slow";
    VouchesTooLongOnRenewal "Vouches for a renewal for twice the length, from the answer on." "a keep-alive whose answer is taken for the beginning of the lease, and was slow";
    VouchesForNothing "Vouches for a lease that is over." "a grant whose elapsed time is never checked; node-redlock";
    SessionsVouchFromTheRequest "Vouches for a hold that ends with a session for as long as the claim asked for." "a grant without a vouch, which is that of a lease";
    SessionsRenewFromTheRequest "Vouches for a renewal of a hold that ends with a session for as long as the claim asked for." "a renewal answered like that of a lease";
    SessionsPushFromTheRequest "Vouches for a hold that ends with a session, and was handed over, for as long as the claim asked for." "a hand-over that says no more than that it took place";
    SessionsVouchWhileAlive "Vouches for a hold that ends with a session for as long as the process lives." "`GET_LOCK` and advisory locks, taken for locks of the process; DistributedLock#83";
    SessionsVouchForTheClaim "Vouches for a session for the length that the claim asked for, since its last refresh." "the lease of the options, copied into the vouch of a session that has a time-out of its own";
    SessionsVouchAhead "Vouches for a session from when it will next be refreshed." "a keep-alive that counts from when it is due";
    ProcessesVouchFromTheRequest "Vouches for a hold that ends with the process for as long as the claim asked for." "a lock file whose holder gives it up after a stop";
    LosesWithoutCause "Answers every third renewal with `Lost`." "pglock#40, DistributedLock#263";
    KeepsFewHolds "Renews no more than 500 holds." "redisson#6844: lost updates in a table of renewals";
    StuckAfterLoss "Refuses a lock to the connection that lost it." "consul#4902, redisson#2515";

    LeasesHaveDescriptors "Hands out a descriptor for a hold that is a lease." "any open file of the driver's, where it is that of the lock which is meant";
    DescriptorsKeepNothing "Hands out a descriptor that keeps nothing, for a hold that ends with the process." "a file that is opened again, which shares no lock of flock(2) with the first";

    // News.
    Mute "Tells of nothing." "redisson#3829, redisson#6540";
    TellsTheFairOnly "Tells waiters that are not fair of nothing." "a hand-over to who has a place, and no message to who has none";
    SubscribesAfterTheAnswer "Listens only from the answer to an ask on." "`SUBSCRIBE` after the refusal";
    OldLossStays "Tells a holder of the loss of its claim's hold before." "a mailbox that outlives the hold that it was for";
    SubscribesLate "Listens only from the first call of `changed` after an ask." "redisson#1763, CURATOR-527";
    DropsNews "Loses the news that arrives as a listener is dropped." "a message taken from a channel before the caller can have it";
    WakesHolders "Says every other second to a holder that there is news." "a watch that sees the renewals which it causes";
    WakesAllTheTime "Says to waiters every second that there is news." "spring-integration#3690";
    GrantsOutOfSilence "Tells a fair waiter of a grant when nothing happens for 25 seconds." "the time-out of a blocking read that is taken for a message";
    CutsChannels "Tells nobody of news who waits for a name of more than 63 bytes." "PostgreSQL cuts off the channel of `LISTEN` and refuses that of `pg_notify`";
    ChannelsAreStatements "Tells nobody of news who waits for a name with a double quotation mark." "`LISTEN` put together as a string";
    NewcomersTakeNews "Takes from those who wait, as a fair claim comes, the news that they have not heard." "a note to a process that whoever asks for the next one clears";
    OneListenerAConnection "Tells the last fair claim of a connection that listened, and none of those before." "a table of listeners by lock, in each connection";
    LeavingEndsListening "Listens no more for a lock, once a waiter of the connection gave up that was not fair." "`UNSUBSCRIBE` from a channel that another waiter listens to as well";

    // Places.
    DeadWaitersStay "Keeps the place of a waiter that asks no more." "redisson#1104, redisson#2883: the dead waiters of fair locks";
    RefreshesAllPlaces "Lets each ask of a fair waiter refresh the places of all who wait." "one `EXPIRE` for the key of the whole queue";
    PlacesOfTheConnection "Has one place in a queue for all fair claims of a connection." "a queue of sessions: an etcd key that is named after the session's lease";
    PlacesRunOut "Ends a place a lease after the first ask, however often its owner asks." "redisson#2099: time-outs of a fair lock that drift";
    PlacesAreShort "Keeps a place for a third of the lease." "a place whose length is a time between asks, without an allowance";
    BackOfTheQueue "Gives a waiter a new place at the back with each ask." "a queue ordered by the time of the last ask";
    PlacesAreSortedAsText "Serves the tenth place before the ninth." "numbers in a column of text; a ZooKeeper sequence without its zeros";
    QueuesIgnoreCase "Has one queue for names that differ only in their case." "a table of places with another collation than that of the holds";
    QueuesIgnoreNamespaces "Has one queue for the same name in all namespaces." "a prefix for the key of the lock and none for that of the queue";
    NoPlaces "Lets waiters race for a lock that is declared to be fair." "consul#7523";
    OrdersTheFairOnly "Lets waiters race that are not fair, though the order is declared to be for all." "a queue that one asks for";
    ExpiryForgetsTheQueue "Grants a lock whose lease ran out to whichever waiter asks first." "a queue that is looked at on release only";
    TriesOvertake "Grants a try what it is a waiter's turn for." "a fast path that does not look at the queue";
    PlainWaitersOvertake "Grants a waiter that is not fair what it is a fair one's turn for." "plain and fair locks with scripts of their own";
    TriesLeavePlaces "Leaves the place of a try that was refused." "kazoo#732: the contender of a failed non-blocking acquire";
    ServesListeners "Hands the lock to a claim that listens and does not wait." "a quorum that stands in the queues of its servers, of which each hands the lock to another";
    ForgetsListeners "Tells a claim of nothing that listens and does not wait, and says that it is heard." "a promise of the driver's, taken for one to each claim";
    KeepsFewWaiters "Fails the waiters from the hundredth on." "redisson#1847, DistributedLock#27: a pool of subscriptions or connections";
    PushedGrantsAreFresh "Gives a fresh lease to whoever is told of a grant." "a hand-over that sets the full expiry for a waiter that may be dead";
    PushedGrantsAreVouchedAnew "Vouches for a pushed grant from when it was told of." "a hand-over whose lease began before anybody heard of it";
    PushedGrantsAreShort "Ends a pushed grant after a quarter of its lease." "a hand-over that sets a claim time instead of the lease";
    OldPushesStay "Tells of a pushed grant after the ask that found it over." "a message that stays in a mailbox while its waiter asks";
    UnorderedPushesAreFresh "Gives a fresh lease to whoever is told of a grant, where waiters are in no order." "a hand-over to any of those who wait";
    UnorderedOldPushesStay "Tells of a pushed grant after the ask that found it over, where waiters are in no order." "a message to any of those who wait, that stays while they ask";
    PushedGrantsHaveNoToken "Tells of a grant without its token." "a message that carries no more than the event";

    // Tokens.
    NoTokens "Gives no tokens, though it declares them." "dynamodb-lock-client#62: an identifier instead of a number";
    OneToken "Gives every grant the same token." "redlease and others before they counted";
    OldTokenOnNewGrant "Gives a claim its first token again after a release." "a cache of grants by owner";
    OldTokenAfterExpiry "Gives a claim its first token again after its lease ran out." "a cache of grants by owner, which only a release clears";
    OldTokenOfTheExpired "Gives a claim its last token again after its lease ran out, unless the lock was taken since." "`UPDATE ... WHERE owner = ?` without a look at the expiry";
    PushesTheLastToken "Tells a fair waiter of a grant with the token of the hold before." "a message made before the counter was raised";
    NewTokenAfterAPush "Draws a new token when a waiter asks that was told of its grant." "a hand-over that writes the owner and not the token";
    DrawsTheTokenFirst "Draws the token in one request and takes the lock in another." "`INCR`, and then `SET NX` with the answer";
    TokensOfTheConnection "Counts tokens in the connection." "a counter in the client process";
    TokensCountRenewals "Raises the token with each renewal." "pglock: the record's version number";
    TokensOfTheClock "Takes tokens from the client's clock." "timestamps of clients whose clocks differ, as those of one machine do not";
    OldTokenInOrder "Gives a fair claim the token of the last grant." "two scripts for a grant, of which one only reads the counter";
    TokensRestartOnExpiry "Restarts the tokens when a lease runs out." "a counter inside the lock's own key; DistributedLock on MongoDB";
    TokensRestartWhenIdle "Restarts the tokens of a lock that nobody asked for during two leases." "`INCR`, and `PEXPIRE` on the counter lest it stay for ever";
    TokensRestartOnRevocation "Restarts the tokens when the lock is taken away." "a counter that is deleted by hand along with the lock";
    TokensRestartWithTheServer "Restarts the tokens when the backend is restarted." "a Redis without persistence";

    // Names.
    IgnoresCase "Folds the case of names." "MySQL's default collation; matrixone#24909";
    CutsNames "Cuts names off after 64 bytes." "MySQL's `GET_LOCK`; php-lock#84, nextras/migrations#57";
    CutsEncodedNames "Cuts names off after 1,024 bytes of what they are with percent signs." "S3's limit for keys, met by names of which each byte is three";
    NumbersAreNumbers "Takes names that are the same number for the same." "a column without a type, or with the affinity of a number; a YAML key";
    TrimsNames "Ignores blanks at the end of a name." "SQL's comparison of padded strings";
    Normalises "Puts letters and their accents together." "file systems that normalise names";
    JoinsNamespaces "Joins namespace and name with a dot." "a separator that both sides may contain";
    IgnoresNamespaces "Ignores the namespace." "a prefix that is forgotten in one of the requests";
    CutsNamespaces "Cuts namespaces off after 63 bytes." "PostgreSQL's identifiers: schemas and channels";
    CutsKeys "Cuts namespace and name off after 560 bytes together." "a column that was measured with a short namespace";
    NamesArePatterns "Releases all names that match, taking `*`, `%` and `_` for wildcards." "`LIKE` and `KEYS` where equality is meant";
    NamesAreStatements "Fails on names with a quotation mark." "statements put together as strings";

    // Looking.
    CannotBeInspected "Declares inspection, and has none." "a method of the interface that one of its drivers does not support";
    SeesItself "Gives the label of whoever looks for that of the holder." "cli-printing-press#4468: the process id of a command that tells, and does not hold";
    CutsLabels "Cuts labels off after 64 bytes." "a column that is too narrow";
    SeesTheReleased "Tells of the last holder until there is another." "a row that is kept for its token, and read without its state";
    SeesTheExpired "Tells of holders whose leases ran out." "mongo-lock#4: expired locks are there until they are purged";
    CountsFromTheRenewal "Counts from the last renewal for how long a lock is held." "one column for the time of the grant and of the renewal";
    CountsFromTheFirstGrant "Counts from the first grant of a lock for how long it is held, whoever has it." "`ON CONFLICT ... DO UPDATE` that sets the owner and not the time of the grant";
    CountsFromTheLastAsk "Counts from the last ask for how long a waiter has waited." "one column for the arrival and the time-out of a place";
    SeesNoTimeLeft "Says of every lease that it ends now." "rustfs#5939: each entry of the list has `ttl_secs: 0`";
    SeesPlacesBackwards "Lists places from the last to the first." "a sorted set that is read from the wrong end";
    SeesDeadWaiters "Tells of waiters whose places ran out." "a queue that is read without its time-outs";
    LooksInAllNamespaces "Tells of a holder of the same name in whatever namespace." "a look by the name alone";
    ListsStoredNames "Lists names as they are stored." "a list of keys where names are meant";
    ListsByPrefix "Lists the locks of every namespace that begins like the one asked for." "better-auth#10507: a prefix that is taken for a pattern";
    ListsOnePage "Lists the first 100 locks." "`SCAN` without a look at the cursor";
    ListsNoPlaces "Lists locks without their waiters." "a list that is read from the holds alone";
    LooksByTaking "Looks by taking a free lock for a moment." "`flock --nonblock` to see whether a lock is held";
    LooksLeaveAnswers "Leaves the answer to a look that was dropped to whoever asks next." "redis-py#2624: a command that was cancelled, whose answer the next one reads";
    LooksRefresh "Renews a lease that is looked at." "`GETEX`; a session that lives on with any request";
    DiagnosisTidiesUp "Removes places while it diagnoses." "a check-up that deletes what it takes for left behind";
    DiagnosisCriesWolf "Reports as an error what it has no right to find out." "`CONFIG GET` on a hosted Redis";

    // Breaking.
    BreaksNothing "Answers a break, and breaks nothing." "a break that removes a record beside the lock";
    BreaksWithoutAWord "Breaks a hold, and says that there was none." "`DEL` whose answer nobody reads";
    BreaksForTheMoment "Lets the next renewal bring a broken hold back." "a renewal that writes the record anew";
    BreaksInAllNamespaces "Breaks the holds of the same name in all namespaces." "a break by the name alone";
    BreaksTheQueue "Removes the places along with the broken hold." "`DEL` of all that begins with the name";
    BreaksSilently "Tells nobody who listens of a break." "redisson#3829: a lock whose key was deleted by hand";
    BreaksWhoeverHolds "Breaks the hold of whoever has the lock, whomever it was asked for." "warlock#15: releases by the name alone";
    LooksThenBreaks "Looks who holds the lock in one request, and breaks the hold in another." "`GET`, a comparison, and `DEL`";

    // Connections.
    NeverReconnects "Stays unreachable after its connection was cut." "redsync#147, DistributedLock#263";
    BoundToTheSession "Ends leases when connections are cut." "locks that live in a session, declared as leases";
    WatchesAreNotResumed "Forgets who listens when connections are cut." "etcd-client#54: watches are not resumed";
    DeafAfterACut "Tells of nothing any more once its connection was cut." "a task that listens and ends with its first error";
    SkipsTheGap "Listens again after a cut, and does not say that something may have happened meanwhile." "a subscription that is made anew in silence, as by `recv` of sqlx's `PgListener`";
    CallsTheCutOffUnreachable "Says of what was cut off before its answer that it was not carried out." "any error of a socket for unreachable, and only a time-out for unknown";
    ForgetsItsScripts "Fails after a restart of the backend." "`EVALSHA` without a way back to `EVAL`";

    // Silence.
    WaitsForAnswers "Waits for an answer for as long as there is none." "a client without a time-out, behind a firewall that drops what it sends";
    LooksWithoutALimit "Waits for the answer to a look for as long as there is none." "a time-out that goes by the lease, which a look has not";
    ListsWithoutALimit "Waits for the answer to a list for as long as there is none." "a time-out for each request, and none for reading page after page";
    ListsNothingInSilence "Lists nothing while the backend answers nothing." "an error that is logged, and an empty list";
    DiagnosesWithoutALimit "Waits for a diagnosis for as long as there is no answer." "a diagnosis that is not a request for a lock, and gets no time-out";
    AllIsWellInSilence "Has nothing but good findings while the backend answers nothing." "findings that are only made where there is an answer";
    BreaksWithoutALimit "Waits for the answer to a break for as long as there is none." "a time-out that goes by the lease, which a break has not";
    CallsTheUnansweredUnreachable "Says of what was not answered that it was not carried out." "one kind of error for all that a client library may say";
    RenewsInSilence "Answers renewals itself while the backend answers nothing." "a keep-alive that is taken for granted until an error comes";
    RenewsWhatWasGivenUp "Goes on renewing what was asked for without an answer, also after its release." "a watchdog that the ask starts and an answer ends";
    StaysSilent "Uses a connection no more that once did not answer, nor replaces it." "a pool whose broken connections count as its own";
}
