//! What the feature `metrics` records.
#![cfg(feature = "metrics")]
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::driver::ErrorKind;
use lockkit_core::memory::{Fault, MemoryDriver};
use lockkit_core::{Locker, METRICS, Namespace, Operation};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(9);

/// Remembers counts, the values of gauges, and measurements in full seconds.
#[derive(Default)]
struct Notebook {
    described: Mutex<BTreeSet<String>>,
    recorded: Arc<Mutex<BTreeMap<String, Vec<u64>>>>,
}

/// One metric with its labels.
struct Line {
    key: String,
    recorded: Arc<Mutex<BTreeMap<String, Vec<u64>>>>,
}

impl Notebook {
    fn line(&self, key: &Key) -> Arc<Line> {
        let labels: String =
            key.labels().map(|label| format!(" {}={}", label.key(), label.value())).collect();
        let key = format!("{}{labels}", key.name());
        Arc::new(Line { key, recorded: self.recorded.clone() })
    }

    fn describe(&self, key: &KeyName, unit: Option<Unit>, what: &str) {
        assert!(unit.is_some() && !what.is_empty());
        self.described.lock().unwrap().insert(key.as_str().into());
    }
}

impl Recorder for Notebook {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(&key, unit, &what);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(&key, unit, &what);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(&key, unit, &what);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.line(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.line(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.line(key))
    }
}

impl CounterFn for Line {
    fn increment(&self, by: u64) {
        self.recorded.lock().unwrap().entry(self.key.clone()).or_insert_with(|| vec![0])[0] += by;
    }

    fn absolute(&self, _: u64) {
        panic!("{} was set", self.key);
    }
}

/// Each value that it had, in turn.
impl GaugeFn for Line {
    fn increment(&self, by: f64) {
        let mut recorded = self.recorded.lock().unwrap();
        let values = recorded.entry(self.key.clone()).or_default();
        let now = values.last().map_or(0.0, |last| *last as f64) + by;
        assert!(now >= 0.0, "{} is {now}", self.key);
        values.push(now as u64);
    }

    fn decrement(&self, by: f64) {
        GaugeFn::increment(self, -by);
    }

    fn set(&self, _: f64) {
        panic!("{} was set", self.key);
    }
}

impl HistogramFn for Line {
    fn record(&self, seconds: f64) {
        let seconds = seconds.round() as u64;
        self.recorded.lock().unwrap().entry(self.key.clone()).or_default().push(seconds);
    }
}

async fn scene() {
    let backend = MemoryDriver::new();
    let namespace = Namespace::new("shop").unwrap();
    let locker = Locker::builder(backend.clone()).namespace(namespace).ttl(TTL).build().unwrap();
    let lock = locker.lock("a").unwrap();

    let guard = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_timeout(Duration::from_secs(1)).await.is_err());
    assert!(timeout(Duration::from_secs(1), lock.acquire()).await.is_err());
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    backend.faults().inject(Operation::Renew, Fault::Fail(ErrorKind::Unreachable));
    sleep(Duration::from_secs(5)).await;
    guard.release().await.unwrap();

    let second = waiting.await.unwrap();
    backend.revoke(lock.name());
    second.lost().await;
    drop(second);

    backend.faults().inject(Operation::Acquire, Fault::Fail(ErrorKind::Denied));
    assert!(lock.acquire().await.is_err());
    // A hold that ends with its locker is no loss.
    let _third = lock.acquire().await.unwrap();
    locker.shutdown().await;
}

#[test]
fn waits_holds_and_losses_are_recorded_by_driver_and_namespace() {
    let notebook = Notebook::default();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&notebook, || runtime.block_on(scene()));

    let labels = "driver=memory namespace=shop";
    let expected = [
        (format!("lockkit_acquisitions_total {labels} outcome=acquired"), vec![3]),
        (format!("lockkit_acquisitions_total {labels} outcome=taken"), vec![1]),
        (format!("lockkit_acquisitions_total {labels} outcome=timed_out"), vec![1]),
        (format!("lockkit_acquisitions_total {labels} outcome=failed"), vec![1]),
        (format!("lockkit_acquisitions_total {labels} outcome=dropped"), vec![1]),
        (format!("lockkit_acquiring {labels}"), vec![1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]),
        (format!("lockkit_holds {labels}"), vec![1, 0, 1, 0, 1, 0]),
        (format!("lockkit_contended_total {labels}"), vec![3]),
        (format!("lockkit_wait_seconds {labels}"), vec![0, 5, 0]),
        (format!("lockkit_hold_seconds {labels}"), vec![7, 0, 0]),
        (format!("lockkit_renewal_failures_total {labels}"), vec![1]),
        (format!("lockkit_losses_total {labels}"), vec![1]),
    ];
    assert_eq!(*notebook.recorded.lock().unwrap(), BTreeMap::from(expected));
    let described = METRICS.iter().map(|metric| metric.name.to_owned()).collect();
    assert_eq!(*notebook.described.lock().unwrap(), described);
}

/// It would be below zero when that ends.
#[test]
fn a_gauge_leaves_out_what_began_before_the_recorder() {
    let notebook = Notebook::default();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    let lock = Locker::new(MemoryDriver::new()).lock("a").unwrap();
    let guard = runtime.block_on(lock.acquire()).unwrap();
    metrics::with_local_recorder(&notebook, || runtime.block_on(guard.release())).unwrap();

    let recorded = notebook.recorded.lock().unwrap();
    let recorded: Vec<_> = recorded.keys().map(String::as_str).collect();
    assert_eq!(recorded, ["lockkit_hold_seconds driver=memory namespace=lockkit"]);
}

/// A release that is sent again finds the lock free, which is no loss.
#[test]
fn a_loss_that_only_the_release_finds_out_is_counted() {
    let notebook = Notebook::default();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    let scene = async {
        let backend = MemoryDriver::new();
        let lock = Locker::builder(backend.clone()).ttl(TTL).build().unwrap().lock("a").unwrap();
        for old in [false, true] {
            // A hold that has lived for a while has a task of its own.
            for dropped in [false, true] {
                let guard = lock.acquire().await.unwrap();
                if old {
                    sleep(TTL).await;
                }
                backend.revoke(lock.name());
                match dropped {
                    true => drop(guard),
                    false => assert!(guard.release().await.is_err()),
                }
                sleep(TTL).await;
            }
        }
        backend.faults().inject(Operation::Release, Fault::LoseAnswer);
        assert!(lock.acquire().await.unwrap().release().await.is_err());
        sleep(TTL).await;
        assert!(backend.is_idle());
    };
    metrics::with_local_recorder(&notebook, || runtime.block_on(scene));

    let recorded = notebook.recorded.lock().unwrap();
    let losses = recorded.get("lockkit_losses_total driver=memory namespace=lockkit");
    assert_eq!(losses, Some(&vec![4]));
}
