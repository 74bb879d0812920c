//! A few connections to a server, each used for one request after another.

mod pool;
mod seat;
mod source;

use std::sync::Arc;

use lockkit_core::driver::Limit;
use tokio::sync::{AcquireError, Semaphore};

use self::pool::Pool;
use self::seat::Permits;
pub(crate) use self::seat::Seat;
pub(crate) use self::source::{Failing, NoSeat, Source, say_goodbye};

/// The connections of one driver.
///
/// Nobody keeps a connection while waiting for a lock. A request takes its time where somebody
/// keeps a row locked, so the less urgent ones leave seats for the others: one that only renewals
/// take, and another one that asks do not take. Where there are just two seats, an ask and a release
/// may sit on both; a renewal waits for one of them then, and no other comes before it. A renewal
/// takes its time, too, where it is the row of its own lock that is locked.
#[derive(Debug)]
pub(crate) struct Seats<S: Source> {
    pool: Arc<Pool<S>>,
    /// For releases, and for asks where there are more than two seats.
    permits_of_others: Semaphore,
    permits_of_asks: Semaphore,
    are_few: bool,
}

/// How many seats a request leaves for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    Renews,
    /// Whatever else lets others on.
    Releases,
    /// Everything else: asks and looks, which come to the same if they are sent twice.
    Asks,
}

impl<S: Source> Seats<S> {
    /// `number` seats, of which one has a connection already.
    pub(crate) fn new(source: S, first: S::Connection, number: usize) -> Self {
        Self::with(Pool::new(source, Some(first), number), number)
    }

    /// `number` seats, without connections until there is a request.
    pub(crate) fn empty(source: S, number: usize) -> Self {
        Self::with(Pool::new(source, None, number), number)
    }

    fn with(pool: Pool<S>, number: usize) -> Self {
        let all_but = |left: usize| Semaphore::new(number.saturating_sub(left).max(1));
        Self {
            pool: Arc::new(pool),
            permits_of_others: all_but(1),
            permits_of_asks: all_but(2),
            are_few: number <= 2,
        }
    }

    /// A seat with a connection, as soon as there is one; fails after `limit`.
    pub(crate) async fn sit(
        &self,
        urgency: Urgency,
        limit: Limit,
    ) -> Result<(Seat<'_, S>, S::Connection), S::Failure> {
        let permits = limit.bound(self.wait(urgency)).await;
        let permits = permits.map_err(|_| NoSeat::Busy)?.map_err(|_| NoSeat::Closed)?;
        let (connection, is_older) = self.pool.connection(limit).await?;
        Ok((Seat::new(&self.pool, is_older, permits), connection))
    }

    pub(crate) fn source(&self) -> &S {
        self.pool.source()
    }

    /// Gives up the idle connections: what has ended one connection has probably ended the others,
    /// which nobody looks at.
    pub(crate) fn leave_idle_ones(&self) {
        self.pool.leave_idle_ones();
    }

    /// Closes the connections. No request gets a seat from now on.
    pub(crate) async fn close(&self) {
        for permits in [&self.pool.permits, &self.permits_of_others, &self.permits_of_asks] {
            permits.close();
        }
        for connection in self.pool.close() {
            S::close(connection).await;
        }
    }

    /// The last permit is the one to sit. Asks and releases that wait for it have the others, so
    /// there are fewer of them than seats, or two where there are two: a renewal comes after these
    /// at most, however many there are in all. If there are more than two seats, they wait only
    /// where renewals have taken more than their one.
    async fn wait(&self, urgency: Urgency) -> Result<Permits<'_>, AcquireError> {
        let of_asks = match urgency {
            Urgency::Asks => Some(self.permits_of_asks.acquire().await?),
            Urgency::Renews | Urgency::Releases => None,
        };
        let of_others = match urgency {
            Urgency::Renews => None,
            Urgency::Asks if self.are_few => None,
            Urgency::Asks | Urgency::Releases => Some(self.permits_of_others.acquire().await?),
        };
        Ok([of_asks, of_others, Some(self.pool.permits.acquire().await?)])
    }
}

impl<S: Source> Drop for Seats<S> {
    fn drop(&mut self) {
        // This also drops the connections that are being made.
        self.pool.close();
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures_util::future::{join_all, pending};
    use futures_util::poll;
    use lockkit_core::driver::Limit;
    use tokio::task::yield_now;
    use tokio::time::{Instant, sleep};

    use super::{Failing, NoSeat, Seats, Source, Urgency};

    const LIMIT: Duration = Duration::from_secs(3);
    /// How long an attempt to connect takes.
    const CONNECTING: Duration = Duration::from_millis(10);
    /// Longer than any attempt to connect.
    const A_WHILE: Duration = Duration::from_secs(1);

    /// A server that gives so many connections and no more.
    #[derive(Clone, Debug)]
    struct Host {
        left: Arc<AtomicUsize>,
        /// How many attempts to connect never end.
        hanging: Arc<AtomicUsize>,
        /// How long the others take.
        connecting: Duration,
        /// Shared with the attempts under way.
        attempts: Arc<()>,
    }

    #[derive(Clone, Copy, Debug, thiserror::Error)]
    enum Failure {
        #[error("{0:?}")]
        NoSeat(NoSeat),
        #[error("no connection left")]
        Full,
        #[error("no connection in time")]
        Late,
    }

    impl Host {
        fn with(connections: usize) -> Self {
            let [left, hanging] = [connections, 0].map(|number| Arc::new(number.into()));
            Self { left, hanging, connecting: CONNECTING, attempts: Arc::default() }
        }

        /// How many attempts to connect are under way.
        fn attempts(&self) -> usize {
            // Of those that share it, one is the host in the test and one is the pool's.
            Arc::strong_count(&self.attempts) - 2
        }
    }

    impl Source for Host {
        type Connection = usize;
        type Failure = Failure;

        async fn connect(&self) -> Result<usize, Failure> {
            let _attempt = Arc::clone(&self.attempts);
            let one_less = |left: usize| left.checked_sub(1);
            if self.hanging.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
                pending::<()>().await;
            }
            sleep(self.connecting).await;
            let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
            left.map_err(|_| Failure::Full)
        }

        async fn close(_: usize) {}
    }

    impl fmt::Display for Host {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("host")
        }
    }

    impl Failing for Failure {
        fn no_connection(_: Duration, _: Option<Self>) -> Self {
            Self::Late
        }

        fn is_lasting(&self) -> bool {
            false
        }
    }

    impl From<NoSeat> for Failure {
        fn from(reason: NoSeat) -> Self {
            Self::NoSeat(reason)
        }
    }

    /// Many requests are stuck; others of this urgency are not.
    async fn passes(number: usize, stuck: &[Urgency], urgency: Urgency) -> bool {
        let seats = Seats::empty(Host::with(number), number);
        let stuck = stuck.iter().flat_map(|urgency| [*urgency; 20]);
        let stuck = join_all(stuck.map(async |urgency| {
            let seat = seats.sit(urgency, Limit::new(LIMIT)).await;
            pending::<()>().await;
            drop(seat);
        }));
        let passing = async {
            sleep(A_WHILE).await;
            seats.sit(urgency, Limit::new(LIMIT)).await.is_ok()
        };
        tokio::select! {
            _ = stuck => false,
            passes = passing => passes,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_leave_seats_to_the_more_urgent_ones() {
        use Urgency::{Asks, Releases, Renews};
        for number in [2, 3, 4, 10] {
            assert!(passes(number, &[Releases], Renews).await, "{number}");
            assert!(passes(number, &[Asks], Renews).await, "{number}");
            assert!(passes(number, &[Asks], Releases).await, "{number}");
            assert!(!passes(number, &[Renews], Renews).await, "{number}");
        }
        for number in [3, 4, 10] {
            assert!(passes(number, &[Asks, Releases], Renews).await, "{number}");
            assert!(passes(number, &[Releases, Asks], Renews).await, "{number}");
        }
    }

    /// Also where it comes before those that are less urgent.
    #[tokio::test(start_paused = true)]
    async fn of_two_seats_the_first_one_left_is_a_renewal_s() {
        let seats = Seats::empty(Host::with(2), 2);
        let sit = |urgency| seats.sit(urgency, Limit::new(LIMIT));
        let (ask, release) = tokio::join!(sit(Urgency::Asks), sit(Urgency::Releases));
        let (_ask, (release, connection)) = (ask.unwrap(), release.unwrap());
        let mut others = pin!(join_all([Urgency::Asks, Urgency::Releases].map(sit)));
        assert!(poll!(&mut others).is_pending());
        let mut renewal = pin!(sit(Urgency::Renews));
        assert!(poll!(&mut renewal).is_pending());
        release.give_back(connection);
        assert!(poll!(&mut others).is_pending());
        assert!(poll!(&mut renewal).is_ready());
    }

    /// Also where attempts go on that will not succeed.
    #[tokio::test(start_paused = true)]
    async fn what_is_given_back_goes_to_who_has_waited_longest() {
        let host = Host::with(1);
        let seats = Seats::empty(host.clone(), 4);
        let sit = || seats.sit(Urgency::Renews, Limit::new(LIMIT));
        let (seat, connection) = sit().await.unwrap();
        let (mut first, mut second) = (pin!(sit()), pin!(sit()));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        sleep(A_WHILE).await;
        let start = Instant::now();
        seat.give_back(connection);
        let mut newcomer = pin!(sit());
        assert!(poll!(&mut newcomer).is_pending() && poll!(&mut second).is_pending());
        let (seat, connection) = first.await.unwrap();
        seat.give_back(connection);
        let (seat, connection) = second.await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        // The attempts have gone on, for whoever is left.
        host.left.store(1, Ordering::Relaxed);
        let (_newcomer, another) = newcomer.await.unwrap();
        assert_eq!((connection, another), (1, 1));
        drop(seat);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_ended_is_made_up_for_twice() {
        let host = Host::with(10);
        let seats = Seats::new(host.clone(), 10, 3);
        let limit = Limit::new(LIMIT);
        let sit = || seats.sit(Urgency::Renews, limit);
        let (mut seat, _) = sit().await.unwrap();
        // Each time, another request is done before there is a new connection.
        for _ in 0..2 {
            let (other, connection) = sit().await.unwrap();
            let mut another = pin!(seat.another(limit));
            assert!(poll!(&mut another).is_pending());
            other.give_back(connection);
            assert_eq!(another.await, Some(connection));
            // The attempt has gone on.
            sleep(A_WHILE).await;
        }
        assert_eq!(seat.another(limit).await, None, "they may all have ended");
        drop(seat);
        // A new one cannot have ended before.
        let (mut seat, _) = sit().await.unwrap();
        seats.leave_idle_ones();
        assert!(seat.another(limit).await.is_some());
        assert_eq!(seat.another(limit).await, None, "it was new");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_being_made_for_an_earlier_request_may_have_ended() {
        let seats = Seats::new(Host::with(10), 10, 3);
        let limit = Limit::new(LIMIT);
        let sit = || seats.sit(Urgency::Renews, limit);
        let ((mut seat, _), (other, connection)) = (sit().await.unwrap(), sit().await.unwrap());
        let mut earlier = Box::pin(sit());
        assert!(poll!(&mut earlier).is_pending());
        other.give_back(connection);
        assert!(poll!(&mut earlier).is_ready());
        drop(earlier);
        // This waits for what the earlier one had begun, which is under way.
        assert!(seat.another(limit).await.is_some());
        assert!(seat.another(limit).await.is_some(), "it may have ended as well");
        assert_eq!(seat.another(limit).await, None, "it was new");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_request_no_longer_waits_for_is_not_lost() {
        let seats = Seats::empty(Host::with(1), 2);
        let sit = || seats.sit(Urgency::Renews, Limit::new(LIMIT));
        let (seat, connection) = sit().await.unwrap();
        let mut given_up = Box::pin(sit());
        assert!(poll!(&mut given_up).is_pending());
        seat.give_back(connection);
        drop(given_up);
        let start = Instant::now();
        let (seat, _) = sit().await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        // One that has ended makes room.
        drop(seat);
        assert!(matches!(sit().await, Err(Failure::Late)));
        assert_eq!(start.elapsed(), LIMIT);
    }

    /// Not even where it never ends.
    #[tokio::test(start_paused = true)]
    async fn nobody_relies_on_an_attempt_that_takes_long() {
        let host = Host::with(10);
        host.hanging.store(1, Ordering::Relaxed);
        let seats = Seats::empty(host.clone(), 4);
        let sit = || seats.sit(Urgency::Renews, Limit::new(A_WHILE));
        assert!(matches!(sit().await, Err(Failure::Late)));
        let start = Instant::now();
        let (first, _) = sit().await.unwrap();
        assert_eq!(start.elapsed(), CONNECTING);
        drop(first);

        // Where others fail as well.
        host.hanging.store(1, Ordering::Relaxed);
        assert!(matches!(sit().await, Err(Failure::Late)));
        let left = host.left.swap(0, Ordering::Relaxed);
        let mut second = pin!(sit());
        assert!(poll!(&mut second).is_pending());
        sleep(2 * CONNECTING).await;
        host.left.store(left, Ordering::Relaxed);
        second.await.unwrap();
    }

    /// A server that is far away, or encrypts, is slower than an impatient request.
    #[tokio::test(start_paused = true)]
    async fn an_attempt_outlives_the_request_that_began_it() {
        let host = Host::with(10);
        let seats = Seats::empty(host.clone(), 4);
        let start = Instant::now();
        let sit = || seats.sit(Urgency::Renews, Limit::new(CONNECTING / 5 * 2));
        for _ in 0..2 {
            assert!(matches!(sit().await, Err(Failure::Late)));
        }
        sit().await.unwrap();
        assert_eq!(start.elapsed(), CONNECTING);
        assert_eq!(host.left.load(Ordering::Relaxed), 9);
    }

    /// Nor do two that take turns, where attempts take so long that each newcomer takes them to hang.
    #[tokio::test(start_paused = true)]
    async fn a_slow_server_is_reached_by_impatient_requests() {
        for (number, in_use) in [(2, 0), (2, 1), (4, 0), (4, 3)] {
            let host = Host { connecting: Duration::from_millis(800), ..Host::with(10) };
            let seats = Seats::empty(host.clone(), number);
            let sit = |limit| seats.sit(Urgency::Renews, Limit::new(limit));
            let _in_use = join_all((0..in_use).map(|_| sit(LIMIT))).await;
            let impatient = async || {
                while let Err(failure) = sit(Duration::from_millis(600)).await {
                    let is_late = matches!(failure, Failure::Late | Failure::NoSeat(NoSeat::Busy));
                    assert!(is_late, "{failure:?}");
                }
            };
            let start = Instant::now();
            tokio::select! {
                () = impatient() => (),
                () = impatient() => (),
                () = sleep(Duration::from_secs(10)) => panic!("{number}, {in_use}"),
            }
            assert_eq!(start.elapsed(), host.connecting, "{number}, {in_use}");
        }
    }

    /// As where a server lets everybody in, and takes no writes.
    #[tokio::test(start_paused = true)]
    async fn connections_of_no_use_are_made_with_pauses() {
        let seats = Seats::empty(Host::with(100), 4);
        let sit = || seats.sit(Urgency::Renews, Limit::new(LIMIT));
        let start = Instant::now();
        for _ in 0..10 {
            let (seat, _) = sit().await.unwrap();
            seat.was_in_vain(&Failure::Full);
        }
        assert!(start.elapsed() > A_WHILE);
        // One that is of use puts an end to that.
        let (seat, connection) = sit().await.unwrap();
        seat.give_back(connection);
        seats.leave_idle_ones();
        let start = Instant::now();
        sit().await.unwrap();
        assert_eq!(start.elapsed(), CONNECTING);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_that_hang_take_no_more_than_the_seats() {
        let host = Host::with(10);
        let seats = Seats::empty(host.clone(), 4);
        let sit = || seats.sit(Urgency::Renews, Limit::new(A_WHILE));
        let _in_use = sit().await.unwrap();
        host.hanging.store(usize::MAX, Ordering::Relaxed);
        for expected in [1, 2, 3, 3, 3] {
            assert!(matches!(sit().await, Err(Failure::Late)));
            assert_eq!(host.attempts(), expected);
        }
        host.hanging.store(0, Ordering::Relaxed);
        sit().await.unwrap();
        seats.close().await;
        yield_now().await;
        assert_eq!(host.attempts(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_no_more_connections_than_seats() {
        let host = Host::with(10);
        let seats = Seats::new(host.clone(), 10, 3);
        // Some take what is given back while attempts are under way.
        let requests = (0..20).map(async |number| {
            for _ in 0..5 {
                let limit = Limit::new(LIMIT);
                let (seat, connection) = seats.sit(Urgency::Renews, limit).await.unwrap();
                sleep(Duration::from_millis(number)).await;
                seat.give_back(connection);
            }
        });
        join_all(requests).await;
        assert_eq!(host.left.load(Ordering::Relaxed), 8);
        seats.close().await;
        let closed = seats.sit(Urgency::Renews, Limit::new(LIMIT)).await;
        assert!(matches!(closed, Err(Failure::NoSeat(NoSeat::Closed))));
    }
}
