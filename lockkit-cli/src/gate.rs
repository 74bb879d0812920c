use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsRawFd as _;

use rustix::fs::fstat;

#[cfg(target_os = "linux")]
pub(crate) use self::linux::pass;

/// Holds back a process that was started, until it is opened. To be kept for as long as the process
/// may look for it.
///
/// Whoever starts a program cannot tell whether a signal came before the program was there, and has
/// to be passed on, or after that, when a terminal has sent it to both. So the program does not
/// begin before what has come is passed on: a process that waits is ended by a signal, and by a
/// second one just as well.
pub(crate) struct Gate {
    /// How it is found: which descriptor of this process, and which pipe that is.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nobody waits there"))]
    address: String,
    _way: PipeReader,
    /// Whoever reads from the other end reads until this is closed.
    bar: Option<PipeWriter>,
}

impl Gate {
    pub(crate) fn new() -> io::Result<Self> {
        let (way, bar) = io::pipe()?;
        let address = format!("{}:{}", way.as_raw_fd(), fstat(&way)?.st_ino);
        Ok(Self { address, _way: way, bar: Some(bar) })
    }

    pub(crate) fn open(&mut self) {
        self.bar = None;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{self, File};
    use std::io;
    use std::os::unix::fs::MetadataExt as _;

    use rustix::process::Pid;

    use super::Gate;

    impl Gate {
        pub(crate) fn address(&self) -> &str {
            &self.address
        }
    }

    /// Returns when the gate of that process is open, or the process is gone.
    pub(crate) fn pass(process: Pid, address: &str) -> io::Result<()> {
        let (number, pipe) = address.split_once(':').unwrap_or_default();
        let path = format!("/proc/{process}/fd/{number}");
        // Where /proc is kept from us, or shows other processes than those around us, nobody waits.
        let is_it = fs::metadata(&path).is_ok_and(|found| found.ino().to_string() == pipe);
        if is_it && let Ok(mut way) = File::open(path) {
            io::copy(&mut way, &mut io::sink())?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;
    use std::time::Duration;

    use rustix::process::getpid;

    use super::{Gate, pass};

    #[test]
    fn a_gate_lets_pass_once_it_is_open() {
        let mut gate = Gate::new().unwrap();
        let (address, (passed, has_passed)) = (gate.address().to_owned(), channel());
        thread::spawn(move || passed.send(pass(getpid(), &address)));
        // Whoever does not wait has passed before that.
        let early = has_passed.recv_timeout(Duration::from_millis(100));
        assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "{early:?}");
        gate.open();
        has_passed.recv().unwrap().unwrap();
        pass(getpid(), gate.address()).unwrap();
    }

    #[test]
    fn nobody_waits_at_what_is_no_gate() {
        let gate = Gate::new().unwrap();
        let (number, pipe) = gate.address().split_once(':').unwrap();
        pass(getpid(), &format!("{number}:1{pipe}")).unwrap();
        pass(getpid(), &format!("{}:{pipe}", i32::MAX)).unwrap();
    }
}
