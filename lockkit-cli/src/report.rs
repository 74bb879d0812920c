//! What this program says: its answers on standard output, all else on standard error.

use std::error::Error;
use std::io::{self, IsTerminal as _, Write as _};
use std::panic;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcgetwinsize};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::table::cut;
use crate::{exit, voice};

/// Writes what was asked for to standard output, and returns `code`, unless that failed.
pub(crate) fn answer(text: impl AsRef<[u8]>, code: u8) -> u8 {
    let mut out = io::stdout().lock();
    written(out.write_all(text.as_ref()).and_then(|()| out.flush()), code)
}

/// What comes of an answer: `code`, unless it could not be written.
pub(crate) fn written(outcome: io::Result<()>, code: u8) -> u8 {
    match outcome {
        Ok(()) => code,
        // The reader, `head` say, has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => code,
        Err(error) => {
            say(format!("standard output: {error}"));
            exit::IO
        }
    }
}

/// Writes one message, all at once so that those of several processes do not mix.
pub(crate) fn say(message: impl AsRef<str>) {
    let line = line();
    let erase = if line.is_empty() { "" } else { ERASE };
    voice::write(format!("{erase}lockkit: {}\n{line}", message.as_ref()));
}

/// From now on a panic is one message among others. Some are caught, as where the system has no
/// thread left, and what Rust does by itself lasts until somebody has read it.
pub(crate) fn tell_of_panics() {
    panic::set_hook(Box::new(|panic| say(on_one_line(&panic.to_string()))));
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
    on_one_line(&text)
}

fn on_one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// How much is said about what happens to locks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Volume {
    Errors,
    Warnings,
    Everything,
}

/// Lets lockkit's own events through.
pub(crate) fn listen(volume: Volume) {
    let level = match volume {
        Volume::Errors => LevelFilter::ERROR,
        Volume::Warnings => LevelFilter::WARN,
        Volume::Everything => LevelFilter::DEBUG,
    };
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

/// Takes the formatter's events, each of which is a whole line.
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

/// The last line of the terminal, kept up to date until dropped. What is said meanwhile appears
/// above it.
#[derive(Debug)]
pub(crate) struct LiveLine(());

impl LiveLine {
    /// `None` where there is no terminal that can erase a line, or where it is somebody else's turn
    /// to write there.
    pub(crate) fn begin() -> Option<Self> {
        (terminals_erase() && io::stderr().is_terminal() && is_in_foreground()).then_some(Self(()))
    }

    pub(crate) fn show(&self, text: &str) {
        let mut line = line();
        // A shell may have put this program into the background meanwhile.
        if is_in_foreground() && !voice::is_behind() {
            let columns = tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col));
            // A terminal that does not tell has no columns.
            let columns = if columns == 0 { 80 } else { columns };
            *line = cut(&format!("lockkit: {text}"), columns.saturating_sub(1)).into_owned();
            voice::write(format!("{ERASE}{line}"));
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        let mut line = line();
        if !std::mem::take(&mut *line).is_empty() && is_in_foreground() {
            voice::write(ERASE.into());
        }
    }
}

/// Whether a terminal that this process has can do more than print one line after the other.
pub(crate) fn terminals_erase() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Goes to the beginning of the line and erases it.
const ERASE: &str = "\r\x1b[K";

/// What the live line shows.
fn line() -> MutexGuard<'static, String> {
    static LINE: Mutex<String> = Mutex::new(String::new());
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_in_foreground() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp())
}
