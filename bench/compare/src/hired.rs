//! An agent at work for this process: it is told what to measure, and ends when this one no longer
//! has it.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use lockkit_bench::Result;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::process::Tree;
use crate::subject::Subject;

/// The program of an agent, with all that it has started.
#[derive(Debug)]
pub struct Hired {
    child: Child,
    id: u32,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What it has said of a line that is not complete.
    line: Vec<u8>,
    complaints: File,
    /// As it says itself.
    pub version: String,
}

impl Hired {
    /// Starts one, with holds that outlive it for so long.
    ///
    /// # Errors
    ///
    /// Why it cannot run; also if it does not say so by the limit.
    pub async fn start(subject: &Subject, lease: Duration, limit: Duration) -> Result<Self> {
        let (program, words) = subject.agent.split_first().ok_or("no program")?;
        let complaints = tempfile::tempfile()?;
        let mut command = Command::new(program);
        command.args(words).arg(lease.as_millis().to_string()).args(&subject.urls);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints.try_clone()?);
        // So that it can be ended with all that it has started.
        let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(|error| {
            // Its folder is this machine's.
            let name = Path::new(program).file_name().unwrap_or(program);
            format!("{} cannot be started: {error}", name.to_string_lossy())
        })?;
        let id = child.id().ok_or("it has ended")?;
        let input = child.stdin.take().ok_or("it has no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("it has no output")?);
        let (line, version) = (Vec::new(), String::new());
        let mut hired = Self { child, id, input, output, line, complaints, version };
        let greeting = hired.answer(limit).await?;
        if let Some(reason) = greeting.get("cannot") {
            return Err(text(reason).into());
        }
        hired.version = text(&greeting["version"]);
        Ok(hired)
    }

    /// Tells it something, and waits for the answer.
    ///
    /// # Errors
    ///
    /// What it says went wrong, or that it does not answer by the limit. It is then of no more use.
    pub async fn ask(&mut self, what: &str, limit: Duration) -> Result<Value> {
        self.tell(what).await?;
        let answer = self.answer(limit).await?;
        match answer.get("error") {
            Some(reason) => Err(text(reason).into()),
            None => Ok(answer),
        }
    }

    /// Tells it something whose [answer](Self::answer) is to be waited for later.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub async fn tell(&mut self, what: &str) -> Result<()> {
        self.input.write_all(format!("{what}\n").as_bytes()).await?;
        Ok(self.input.flush().await?)
    }

    /// What it says next.
    ///
    /// # Errors
    ///
    /// If it says nothing by the limit, or nothing that can be understood.
    pub async fn answer(&mut self, limit: Duration) -> Result<Value> {
        let reading = self.output.read_until(b'\n', &mut self.line);
        let read = timeout(limit, reading).await;
        if read.map_err(|_| format!("no answer within {limit:?}"))?? == 0 {
            return Err(format!("it has ended: {}", self.last_words()).into());
        }
        let line = std::mem::take(&mut self.line);
        serde_json::from_slice(&line).map_err(|error| {
            format!("not understood ({error}): {}", String::from_utf8_lossy(&line).trim()).into()
        })
    }

    /// Its processes.
    pub fn tree(&self) -> Tree {
        Tree::of(self.id)
    }

    /// Ends it at once, as a machine that fails would.
    pub fn kill(&self) {
        // Until it is waited for, which nobody else does, its id is no other's.
        if let Some(group) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            // It may have ended by itself.
            _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Ends it and waits for its end, so that it takes no more time from others.
    ///
    /// # Errors
    ///
    /// If the system does not tell.
    pub async fn end(mut self) -> Result<()> {
        self.kill();
        self.child.wait().await?;
        Ok(())
    }

    /// The last line that it has written to where errors go.
    fn last_words(&mut self) -> String {
        let mut text = Vec::new();
        let read = self.complaints.rewind().and_then(|()| self.complaints.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
        match (read, last) {
            (Ok(_), Some(line)) => line.into(),
            _ => "without a word".into(),
        }
    }
}

impl Drop for Hired {
    fn drop(&mut self) {
        self.kill();
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
