use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::Result;

/// In milliseconds.
const LEASE: &str = "30000";

/// The library of that name, in a process of its own.
pub(crate) struct Rslock {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The program that uses it.
pub(crate) struct Program(PathBuf);

impl Rslock {
    /// Makes the program of `bench/peers/rust`, with this library only.
    pub(crate) fn build() -> Result<Program> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/peers/rust/Cargo.toml");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--release", "--quiet", "--locked", "--no-default-features"]);
        build.args(["--features", "rslock", "--manifest-path"]).arg(&manifest);
        // Beside what else is built.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../peers");
        if !build.arg("--target-dir").arg(&target).status()?.success() {
            return Err(format!("{} was not built", manifest.display()).into());
        }
        Ok(Program(target.join("release/lockkit-bench-peers")))
    }

    pub(crate) fn pairs(&mut self, number: usize) -> Result<Vec<Duration>> {
        writeln!(self.input, "uncontended rslock/pair {number}")?;
        let times = self.answer()?;
        let times = times["nanoseconds"].as_array().ok_or_else(|| times.to_string())?;
        let time = |time: &Value| time.as_u64().map(Duration::from_nanos);
        times
            .iter()
            .map(|value| time(value).ok_or_else(|| format!("no time: {value}").into()))
            .collect()
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("the program of rslock has ended".into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Program {
    pub(crate) fn start(&self, urls: &[String]) -> Result<Rslock> {
        let mut command = Command::new(&self.0);
        command.args(["rslock", LEASE]).args(urls).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let input = process.stdin.take().ok_or("it has no input")?;
        let output = BufReader::new(process.stdout.take().ok_or("it has no output")?);
        let mut rslock = Rslock { process, input, output };
        let greeting = rslock.answer()?;
        match greeting.get("peer") {
            Some(_) => Ok(rslock),
            None => Err(greeting.to_string().into()),
        }
    }
}

impl Drop for Rslock {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
