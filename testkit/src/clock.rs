use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What comes between a program and the wall clock.
const SHIM: &str = include_str!("clockshim.c");

/// The wall clock of one server, stepped by the content of a file. Needs a C compiler, and a system
/// that can load a library before the others (`LD_PRELOAD`).
#[derive(Debug)]
pub(crate) struct SteppedClock {
    shim: PathBuf,
    step: PathBuf,
}

impl SteppedClock {
    /// The program that it needs.
    pub(crate) const COMPILER: &str = "cc";

    /// Makes it in a folder that the server may read.
    pub(crate) fn in_folder(folder: &Path) -> io::Result<Self> {
        let (source, shim) = (folder.join("clockshim.c"), folder.join("clockshim.so"));
        fs::write(&source, SHIM)?;
        let mut compile = Command::new(Self::COMPILER);
        let compiled =
            compile.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&shim).arg(source).output()?;
        if !compiled.status.success() {
            let said = String::from_utf8_lossy(&compiled.stderr);
            return Err(io::Error::other(format!("cc ended with {}: {said}", compiled.status)));
        }
        let step = folder.join("step");
        fs::write(&step, 0_i64.to_ne_bytes())?;
        Ok(Self { shim, step })
    }

    pub(crate) fn environment(&self) -> [(&'static str, OsString); 2] {
        [("LD_PRELOAD", self.shim.clone().into()), ("LOCKKIT_CLOCK", self.step.clone().into())]
    }

    /// Sets it that many nanoseconds ahead of the true time, or behind it if negative.
    pub(crate) fn step(&self, nanoseconds: i64) -> io::Result<()> {
        // In place: the server has the file in its memory.
        OpenOptions::new().write(true).open(&self.step)?.write_all(&nanoseconds.to_ne_bytes())
    }
}
