//! What the events of `tracing` tell.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit::driver::ErrorKind;
use lockkit::memory::{Fault, MemoryDriver};
use lockkit::{Lease, Locker, Operation};
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const TTL: Duration = Duration::from_secs(9);

/// Remembers the level and the fields of the last event of each message.
#[derive(Clone, Default)]
struct Notebook(Arc<Mutex<BTreeMap<String, Noted>>>);

type Noted = (Level, Vec<&'static str>);

#[derive(Default)]
struct Line {
    message: String,
    fields: Vec<&'static str>,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.push(name),
        }
    }
}

impl Subscriber for Notebook {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().unwrap().insert(line.message, (*event.metadata().level(), line.fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

async fn scene() {
    let backend = MemoryDriver::new();
    let fail = |operation| {
        backend.faults().inject(operation, Fault::Fail(ErrorKind::Unreachable));
    };
    let locker = Locker::builder(backend.clone()).ttl(TTL).build().unwrap();
    let lock = locker.lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    fail(Operation::Renew);
    assert!(lock.acquire_timeout(TTL).await.is_err());
    locker.break_hold("a", None).await.unwrap();
    guard.lost().await;
    sleep(TTL).await;
    fail(Operation::Acquire);
    fail(Operation::Release);
    lock.run(async |_| ()).await.unwrap();
    sleep(TTL).await;
    let guard = lock.leased(Lease::new(TTL * 10)).unwrap().acquire().await.unwrap();
    // More than a shutdown has time for.
    for _ in 0..100 {
        fail(Operation::Release);
    }
    locker.shutdown().await;
    sleep(TTL).await;
    assert!(!guard.is_held());
}

#[test]
fn each_event_is_told_of_with_its_lock_and_owner() {
    let notebook = Notebook::default();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    tracing::subscriber::with_default(notebook.clone(), || runtime.block_on(scene()));

    let events = notebook.0.lock().unwrap();
    let page = include_str!("../../docs/metrics.md");
    let (_, page) = page.split_once("<!-- events -->\n").unwrap();
    let (page, _) = page.split_once("<!-- /events -->").unwrap();
    let told: Vec<_> = page.lines().skip(2).map(|row| row.rsplit_once(" | ").unwrap().0).collect();
    let seen = events
        .iter()
        .map(|(message, (level, _))| format!("| `{message}` | {}", level.as_str().to_lowercase()));
    assert_eq!(Vec::from_iter(seen), told, "docs/metrics.md");
    for (message, (_, fields)) in &*events {
        let of_the_locker = fields.starts_with(&["driver"]);
        assert!(of_the_locker || fields.starts_with(&["lock", "owner"]), "{message}: {fields:?}");
    }
}
