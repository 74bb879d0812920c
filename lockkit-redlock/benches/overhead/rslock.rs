use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::Result;

/// The library of that name, in a process of its own.
pub(crate) struct Rslock {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The program that uses it.
pub(crate) struct Program(PathBuf);

impl Rslock {
    /// Makes the program of `bench/peers`.
    pub(crate) fn build() -> Result<Program> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/peers/Cargo.toml");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--release", "--quiet", "--locked", "--manifest-path"]).arg(&manifest);
        // Beside what else is built.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../peers");
        if !build.arg("--target-dir").arg(&target).status()?.success() {
            return Err(format!("{} was not built", manifest.display()).into());
        }
        Ok(Program(target.join("release/lockkit-peers")))
    }

    pub(crate) fn pairs(&mut self, number: usize) -> Result<Vec<Duration>> {
        writeln!(self.input, "pairs {number}")?;
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("the program of rslock has ended".into());
        }
        let times = line.split_whitespace().map(|time| Ok(Duration::from_nanos(time.parse()?)));
        times.collect()
    }
}

impl Program {
    pub(crate) fn start(&self, urls: &[String]) -> Result<Rslock> {
        let mut command = Command::new(&self.0);
        command.arg("rslock").args(urls).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let input = process.stdin.take().ok_or("it has no input")?;
        let output = BufReader::new(process.stdout.take().ok_or("it has no output")?);
        Ok(Rslock { process, input, output })
    }
}

impl Drop for Rslock {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
