//! What the feature `metrics` counts.

use metrics::{Gauge, Label, SharedString, Unit, counter, gauge, histogram};

use crate::clock::Instant;
use crate::engine::Engine;
use crate::keeper::Acquired;
use crate::{Error, LockName};

/// A metric that the feature `metrics` records.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name by which recorders know it.
    pub name: &'static str,
    /// What is counted, or measured in seconds.
    pub what: &'static str,
    /// How it is recorded.
    pub kind: MetricKind,
}

/// How a [`Metric`] is recorded.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// How many there are now.
    Gauge,
    /// Durations, in seconds.
    Histogram,
}

const ACQUISITIONS: Metric = Metric {
    name: "lockkit_acquisitions_total",
    what: "acquisitions that have ended; `outcome` is acquired, taken, timed_out, failed or dropped",
    kind: MetricKind::Counter,
};
const ACQUIRING: Metric = Metric {
    name: "lockkit_acquiring",
    what: "acquisitions that are under way now, most of which wait",
    kind: MetricKind::Gauge,
};
const HOLDS: Metric =
    Metric { name: "lockkit_holds", what: "holds that stand now", kind: MetricKind::Gauge };
const CONTENDED: Metric = Metric {
    name: "lockkit_contended_total",
    what: "acquisitions that did not get the lock at once, and waited",
    kind: MetricKind::Counter,
};
const WAIT: Metric = Metric {
    name: "lockkit_wait_seconds",
    what: "from the call to the guard, where there is one",
    kind: MetricKind::Histogram,
};
const HOLD: Metric = Metric {
    name: "lockkit_hold_seconds",
    what: "from the guard to the end of the hold",
    kind: MetricKind::Histogram,
};
const RENEWAL_FAILURES: Metric = Metric {
    name: "lockkit_renewal_failures_total",
    what: "renewals that have failed; each is tried again until the lease is over",
    kind: MetricKind::Counter,
};
const LOSSES: Metric = Metric {
    name: "lockkit_losses_total",
    what: "holds that ended before they were released, other than by a shutdown",
    kind: MetricKind::Counter,
};

/// What the feature `metrics` records, with the labels `driver` and `namespace`. Names of locks are
/// not labels: there may be millions.
///
/// The metrics go to the recorder of the [`metrics`] crate that is installed in the process. The
/// recorder is best installed before the first locker is made, since making it tells the recorder
/// the units, and since gauges leave out what began before.
pub const METRICS: &[Metric] =
    &[ACQUISITIONS, ACQUIRING, CONTENDED, WAIT, HOLDS, HOLD, RENEWAL_FAILURES, LOSSES];

pub(crate) fn describe() {
    for metric in METRICS {
        let Metric { name, what, kind } = *metric;
        match kind {
            MetricKind::Counter => metrics::describe_counter!(name, Unit::Count, what),
            MetricKind::Gauge => metrics::describe_gauge!(name, Unit::Count, what),
            MetricKind::Histogram => metrics::describe_histogram!(name, Unit::Seconds, what),
        }
    }
}

/// A call that is under way. Unless it is ended, it counts as dropped.
pub(crate) struct Acquisition<'a> {
    engine: &'a Engine,
    name: &'a LockName,
    started: Instant,
    outcome: &'static str,
    /// Of the recorder that was told of the beginning.
    under_way: Gauge,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn begin(engine: &'a Engine, name: &'a LockName) -> Self {
        let under_way = one_more(ACQUIRING, engine, name);
        Self { engine, name, started: engine.clock.stamp(), outcome: "dropped", under_way }
    }

    pub(crate) fn end(mut self, acquired: &Acquired) {
        self.outcome = match acquired {
            Ok(_) => "acquired",
            Err(Error::Taken { .. }) => "taken",
            Err(Error::TimedOut { .. }) => "timed_out",
            Err(_) => "failed",
        };
        if acquired.is_ok() {
            record(WAIT, self.engine, self.name, self.started);
        }
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        self.under_way.decrement(1.0);
        let [driver, namespace] = labels(self.engine, self.name);
        let labels = [driver, namespace, Label::from_static_parts("outcome", self.outcome)];
        counter!(ACQUISITIONS.name, labels.iter()).increment(1);
    }
}

/// A hold that stands.
#[derive(Debug)]
pub(crate) struct Holding {
    granted: Instant,
    /// Of the recorder that was told of the beginning.
    standing: Gauge,
}

impl Holding {
    pub(crate) fn begin(engine: &Engine, name: &LockName) -> Self {
        Self { granted: engine.clock.stamp(), standing: one_more(HOLDS, engine, name) }
    }

    pub(crate) fn end(&self, engine: &Engine, name: &LockName) {
        self.standing.decrement(1.0);
        record(HOLD, engine, name, self.granted);
    }
}

pub(crate) fn contended(engine: &Engine, name: &LockName) {
    count(CONTENDED, engine, name);
}

pub(crate) fn renewal_failed(engine: &Engine, name: &LockName) {
    count(RENEWAL_FAILURES, engine, name);
}

pub(crate) fn lost(engine: &Engine, name: &LockName) {
    count(LOSSES, engine, name);
}

fn count(metric: Metric, engine: &Engine, name: &LockName) {
    counter!(metric.name, labels(engine, name).iter()).increment(1);
}

fn one_more(metric: Metric, engine: &Engine, name: &LockName) -> Gauge {
    let gauge = gauge!(metric.name, labels(engine, name).iter());
    gauge.increment(1.0);
    gauge
}

fn record(metric: Metric, engine: &Engine, name: &LockName, since: Instant) {
    let duration = engine.clock.now().saturating_duration_since(since);
    histogram!(metric.name, labels(engine, name).iter()).record(duration);
}

fn labels(engine: &Engine, name: &LockName) -> [Label; 2] {
    let namespace = SharedString::from_shared(name.namespace().shared());
    let driver = Label::from_static_parts("driver", engine.driver.id());
    [driver, Label::new("namespace", namespace)]
}
