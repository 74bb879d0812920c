//! What this program says, all of it on standard error.

use std::error::Error;
use std::io::{self, Write as _};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Writes one message, at once so that those of several processes do not mix.
pub(crate) fn say(message: impl AsRef<str>) {
    let message = format!("lockkit: {}\n", message.as_ref());
    // If nobody hears, there is nobody to tell.
    _ = io::stderr().write_all(message.as_bytes());
}

/// An error and its sources on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        // Some libraries repeat the source in the message.
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text.replace(char::is_control, " ")
}

/// Lets lockkit's own events through: warnings, or with `verbose` all that is worth knowing.
pub(crate) fn listen(verbose: bool) {
    let level = if verbose { LevelFilter::DEBUG } else { LevelFilter::WARN };
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_level(false)
        .with_target(false)
        .without_time()
        .with_writer(|| Lines);
    tracing_subscriber::registry()
        .with(lines)
        .with(Targets::new().with_target("lockkit", level))
        .init();
}

/// Takes the formatter's events, each a whole line.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        say(String::from_utf8_lossy(line).trim_end());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
