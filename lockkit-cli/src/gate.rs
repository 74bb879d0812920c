use std::io::{self, PipeReader, PipeWriter};

/// Holds back a process that was started, until it is opened. To be kept for as long as the process
/// may look for it.
///
/// Who starts a program cannot tell of a signal whether it came before the program was there, and is
/// to be passed on, or after it, when a terminal has sent it to both. So the program does not begin
/// before what has come is passed on: a process that waits is ended by a signal, and by a second one
/// as well.
pub(crate) struct Gate {
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nobody waits there"))]
    way: PipeReader,
    /// Whoever reads from the other end reads until this is closed.
    bar: Option<PipeWriter>,
}

impl Gate {
    pub(crate) fn new() -> io::Result<Self> {
        let (way, bar) = io::pipe()?;
        Ok(Self { way, bar: Some(bar) })
    }

    pub(crate) fn open(&mut self) {
        self.bar = None;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd as _, RawFd};

    use rustix::process::Pid;

    use super::Gate;

    impl Gate {
        /// By which [`pass`] finds it, in the process that has made it.
        pub(crate) fn number(&self) -> RawFd {
            self.way.as_raw_fd()
        }
    }

    /// Returns when the gate of that process is open, or the process is gone.
    pub(crate) fn pass(process: Pid, number: RawFd) -> io::Result<()> {
        // Where /proc is kept from us, nobody waits.
        let Ok(mut way) = File::open(format!("/proc/{process}/fd/{number}")) else { return Ok(()) };
        io::copy(&mut way, &mut io::sink()).map(|_| ())
    }
}

#[cfg(target_os = "linux")]
pub(crate) use self::linux::pass;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::thread;

    use rustix::process::getpid;

    use super::{Gate, pass};

    #[test]
    fn a_gate_lets_pass_once_it_is_open() {
        let mut gate = Gate::new().unwrap();
        let number = gate.number();
        let waiting = thread::spawn(move || pass(getpid(), number));
        gate.open();
        waiting.join().unwrap().unwrap();
        pass(getpid(), number).unwrap();
    }

    #[test]
    fn nobody_waits_for_a_gate_that_is_not_there() {
        pass(getpid(), i32::MAX).unwrap();
    }
}
