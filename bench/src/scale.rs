use std::time::Duration;

/// How much is measured: what bounds each round of a workload.
#[derive(Clone, Debug)]
pub struct Scale {
    pub(crate) slice: Duration,
    pub(crate) clients: Vec<usize>,
    pub(crate) names: usize,
    pub(crate) waiters: usize,
    pub(crate) lease: Duration,
    pub(crate) limit: Duration,
}

impl Scale {
    /// Enough to compare backends that differ: a quarter of a second for each thing that is
    /// measured over time, 100 names, 200 waiters, leases of two seconds.
    pub fn quick() -> Self {
        Self {
            slice: Duration::from_millis(250),
            clients: vec![2, 8, 64],
            names: 100,
            waiters: 200,
            lease: Duration::from_secs(2),
            limit: Duration::from_secs(20),
        }
    }

    /// Enough for the tails: three seconds, a thousand names and waiters, leases of five seconds.
    pub fn full() -> Self {
        Self {
            slice: Duration::from_secs(3),
            clients: vec![2, 8, 64],
            names: 1_000,
            waiters: 1_000,
            lease: Duration::from_secs(5),
            limit: Duration::from_secs(120),
        }
    }

    /// How long to measure each thing that is measured over time.
    #[must_use]
    pub fn slice(mut self, slice: Duration) -> Self {
        self.slice = slice;
        self
    }

    /// How many clients contend for one name, one number after the other.
    #[must_use]
    pub fn clients(mut self, numbers: impl Into<Vec<usize>>) -> Self {
        self.clients = numbers.into();
        self
    }

    /// How many locks one client holds.
    #[must_use]
    pub fn names(mut self, number: usize) -> Self {
        self.names = number;
        self
    }

    /// How many waiters of one client wait for one name.
    #[must_use]
    pub fn waiters(mut self, number: usize) -> Self {
        self.waiters = number;
        self
    }

    /// The lease of locks that are to be kept or to be lost, or the nearest to it that a driver can
    /// keep.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long a round of a workload may take on one subject before it is given up.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}
