use std::fmt::{self, Debug, Display, Formatter};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// Notes what is logged on this thread, for as long as it is there.
#[derive(Debug)]
pub struct Log {
    noted: Notes,
    _noting: DefaultGuard,
}

/// An event of `tracing`.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Logged {
    /// How grave it is.
    pub level: Level,
    /// Its message.
    pub message: String,
    /// The names and values of its other fields, in their order.
    pub fields: Vec<(&'static str, String)>,
}

impl Log {
    /// Notes what is logged from now on.
    pub fn start() -> Self {
        let noted = Notes::default();
        Self { _noting: set_default(noted.clone()), noted }
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Logged> {
        self.noted.lock().clone()
    }

    /// The first event so far that has this in its message or its fields, as one text.
    pub fn line(&self, part: &str) -> Option<String> {
        self.noted.lock().iter().map(ToString::to_string).find(|line| line.contains(part))
    }
}

impl Display for Logged {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.fields.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

#[derive(Clone, Debug, Default)]
struct Notes(Arc<Mutex<Vec<Logged>>>);

impl Notes {
    fn lock(&self) -> MutexGuard<'_, Vec<Logged>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Notes {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = *event.metadata().level();
        let mut logged = Logged { level, message: String::new(), fields: Vec::new() };
        event.record(&mut logged);
        self.lock().push(logged);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Logged {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            name => self.fields.push((name, text)),
        }
    }
}
