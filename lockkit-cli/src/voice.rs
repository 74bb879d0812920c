//! Standard error, written to by a thread of its own.
//!
//! Whoever reads there may stand still: a pager, or a terminal after Ctrl-S. A write then lasts for
//! as long as the reader pleases, and a thread that renews a lock and ends a command in time cannot
//! wait for that.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// How many texts may wait for somebody to read them.
const MOST: usize = 256;

/// How long the last texts may take when this program ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// From now on, nobody who writes waits for those who read.
pub(crate) fn begin() -> io::Result<()> {
    // Ends with the process.
    thread::Builder::new().name("voice".into()).spawn(speak)?;
    backlog().has_writer = true;
    Ok(())
}

/// Writes a text to standard error, or leaves it out if nobody has been reading for a long time.
pub(crate) fn write(text: String) {
    let mut backlog = backlog();
    match backlog.has_writer {
        true => backlog.push(text),
        false => put(&text),
    }
    CHANGED.notify_all();
}

/// Whether what is of interest only for a moment had better not be written.
pub(crate) fn is_behind() -> bool {
    backlog().texts.len() > MOST / 2
}

/// Waits, when it is dropped, until all is written, or until nobody seems to read it: also the words
/// of a panic that ends this program.
pub(crate) struct LastWords;

impl Drop for LastWords {
    fn drop(&mut self) {
        settle(PATIENCE);
    }
}

/// Returns when all is written, or after `patience`.
pub(crate) fn settle(patience: Duration) {
    let is_left = |backlog: &mut Backlog| backlog.is_at_work || !backlog.texts.is_empty();
    _ = CHANGED.wait_timeout_while(backlog(), patience, is_left);
}

static BACKLOG: Mutex<Backlog> = Mutex::new(Backlog::new());
static CHANGED: Condvar = Condvar::new();

fn backlog() -> MutexGuard<'static, Backlog> {
    // Nothing panics while this is locked.
    BACKLOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread does.
fn speak() {
    let mut backlog = backlog();
    loop {
        let text = backlog.pop();
        backlog.is_at_work = text.is_some();
        match text {
            Some(text) => {
                drop(backlog);
                put(&text);
                backlog = self::backlog();
            }
            None => {
                CHANGED.notify_all();
                backlog = CHANGED.wait(backlog).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

fn put(text: &str) {
    // After `stty tostop` a terminal stops whoever writes to it from the background, and all of the
    // process group, but not those who block the signal. A message is to stop neither `lockkit`
    // beside a command that runs on, nor a warden that `lockkit` waits for. A change of the mask
    // cannot fail.
    let before = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK);
    // If nobody hears, there is nobody to tell.
    _ = io::stderr().write_all(text.as_bytes());
    _ = before.and_then(|before| before.thread_set_mask());
}

/// What is still to be written.
#[derive(Debug)]
struct Backlog {
    /// Whether there is a thread that writes it.
    has_writer: bool,
    texts: VecDeque<String>,
    /// How many were left out since the last of `texts`.
    left_out: usize,
    /// Whether a text is being written.
    is_at_work: bool,
}

impl Backlog {
    const fn new() -> Self {
        Self { has_writer: false, texts: VecDeque::new(), left_out: 0, is_at_work: false }
    }

    fn push(&mut self, text: String) {
        if self.texts.len() >= MOST {
            self.left_out += 1;
            return;
        }
        self.admit();
        self.texts.push_back(text);
    }

    fn pop(&mut self) -> Option<String> {
        if self.texts.is_empty() {
            self.admit();
        }
        self.texts.pop_front()
    }

    /// Says what is missing, in the place where it is missing.
    fn admit(&mut self) {
        match std::mem::take(&mut self.left_out) {
            0 => (),
            left_out => self.texts.push_back(format!(
                "lockkit: messages left out here, since nobody read them in time: {left_out}\n"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Backlog, MOST};

    fn push(backlog: &mut Backlog, texts: std::ops::Range<usize>) {
        texts.for_each(|number| backlog.push(number.to_string()));
    }

    fn pop(backlog: &mut Backlog, texts: std::ops::Range<usize>) {
        texts.for_each(|number| assert_eq!(backlog.pop(), Some(number.to_string())));
    }

    #[test]
    fn what_is_left_out_is_told_where_it_is_missing() {
        let mut backlog = Backlog::new();
        push(&mut backlog, 0..MOST + 3);
        pop(&mut backlog, 0..1);
        push(&mut backlog, 1000..1002);
        pop(&mut backlog, 1..MOST);
        assert!(backlog.pop().unwrap().ends_with("in time: 3\n"));
        pop(&mut backlog, 1000..1001);
        let rest = backlog.pop();
        assert!(rest.as_ref().is_some_and(|rest| rest.ends_with("in time: 1\n")), "{rest:?}");
        assert_eq!(backlog.pop(), None);
    }
}
