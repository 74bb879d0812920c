//! A process that has many holds or many waiters, so that its memory and its time are its own.
//!
//! It goes from stage to stage: at the end of each it writes what it has seen as a line of JSON, and
//! waits for a line before the next, so that the servers can be looked at in between.

use std::io::{Write as _, stdout};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkit_bench::process::{cpu_time, memory};
use lockkit_bench::{Keeping, Result, Subject};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How many locks are taken or let go at a time.
const AT_A_TIME: usize = 16;

/// What a process is to do, as words of its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Whether it holds locks or waits for one.
    pub task: Task,
    /// Where they are.
    pub url: String,
    /// Whether they are first come, first served, where that has to be asked for.
    pub is_fair: bool,
    /// How many holds or waiters it has.
    pub number: usize,
    /// With which lease.
    pub lease: Duration,
}

/// What a process has many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Locks that it holds. Stages: connected, taken, kept for a lease, kept for half of one, let go.
    Holds,
    /// Those that wait for one lock. Stages: connected, waiting, waited for a third of a lease, all
    /// served.
    Waiters,
}

/// The end of a stage.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Mark {
    /// How long the stage took.
    pub(super) seconds: f64,
    /// How long the process was on a CPU meanwhile.
    pub(super) cpu: f64,
    /// How many bytes of memory it has now.
    pub(super) memory: u64,
    /// How many requests were made to the driver meanwhile.
    pub(super) asks: u64,
    /// How many renewals came late meanwhile.
    pub(super) late: u64,
    /// How many holds were lost meanwhile.
    pub(super) lost: u64,
}

impl Client {
    /// The words after the program's name that make it one, but for the first, by which it knows.
    pub fn words(&self) -> Vec<String> {
        let task = match self.task {
            Task::Holds => "holds",
            Task::Waiters => "waiters",
        };
        let order = if self.is_fair { "fair" } else { "plain" };
        let lease = self.lease.as_millis();
        vec![
            task.into(),
            self.url.clone(),
            order.into(),
            self.number.to_string(),
            lease.to_string(),
        ]
    }

    /// Of those words.
    ///
    /// # Errors
    ///
    /// If they are not those.
    pub fn parse(words: &[String]) -> Result<Self> {
        let [task, url, order, number, lease] = words else {
            return Err("it takes a task, a URL, an order, a number and a lease".into());
        };
        Ok(Self {
            task: match &**task {
                "holds" => Task::Holds,
                "waiters" => Task::Waiters,
                other => return Err(format!("no task `{other}`").into()),
            },
            url: url.clone(),
            is_fair: order == "fair",
            number: number.parse()?,
            lease: Duration::from_millis(lease.parse()?),
        })
    }
}

/// What such a process does.
///
/// # Errors
///
/// If locks are not granted, or whoever started it has gone.
pub async fn client(client: &Client) -> Result<()> {
    let subject = Subject::new("", &client.url)?;
    let subject = if client.is_fair { subject.fair() } else { subject };
    match client.task {
        Task::Holds => Box::pin(holds(client, &subject)).await,
        Task::Waiters => Box::pin(waiters(client, &subject)).await,
    }
}

async fn holds(client: &Client, subject: &Subject) -> Result<()> {
    let locks = subject.client().await?.with_lease(client.lease)?;
    // What a first use costs once is no part of what a hold costs.
    locks.lock("first")?.acquire().await?.release().await?;
    let mut stages = Stages::new();
    let asks = || locks.driver().requests();
    stages.end(asks(), None).await?;

    let mut guards = Vec::with_capacity(client.number);
    for numbers in numbers(client.number) {
        let mut taking = JoinSet::new();
        for number in numbers {
            let lock = locks.lock(&format!("many/{number}"))?;
            taking.spawn(async move { lock.acquire().await });
        }
        while let Some(taken) = taking.join_next().await {
            guards.push(taken??);
        }
    }
    stages.end(asks(), None).await?;

    for long in [client.lease, client.lease / 2] {
        let keeping = Keeping::watch(&guards, locks.lease(), long).await;
        stages.end(asks(), Some(keeping)).await?;
    }

    while !guards.is_empty() {
        let mut releasing = JoinSet::new();
        for guard in guards.drain(guards.len().saturating_sub(AT_A_TIME)..) {
            releasing.spawn(async move { guard.release().await });
        }
        while let Some(released) = releasing.join_next().await {
            released??;
        }
    }
    stages.end(asks(), None).await?;
    locks.close().await;
    Ok(())
}

async fn waiters(client: &Client, subject: &Subject) -> Result<()> {
    let holder = subject.client().await?.with_lease(client.lease)?;
    let locks = subject.client().await?.with_lease(client.lease)?;
    locks.lock("first")?.acquire().await?.release().await?;
    let guard = holder.lock("waiters")?.acquire().await?;
    let mut stages = Stages::new();
    let asks = || locks.driver().requests();
    stages.end(asks(), None).await?;

    // If they ask for order each has its place; otherwise the first of them ask for all.
    let refused = locks.driver().refused(if client.is_fair { client.number } else { 1 });
    let mut waiting = JoinSet::new();
    for _ in 0..client.number {
        let lock = locks.lock("waiters")?;
        waiting.spawn(async move { lock.acquire().await?.release().await });
    }
    refused.await;
    stages.end(asks(), None).await?;

    sleep(client.lease / 3).await;
    stages.end(asks(), None).await?;

    guard.release().await?;
    while let Some(ended) = waiting.join_next().await {
        ended??;
    }
    stages.end(asks(), None).await?;
    holder.close().await;
    locks.close().await;
    Ok(())
}

fn numbers(all: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..all).step_by(AT_A_TIME).map(move |from| from..all.min(from + AT_A_TIME))
}

/// From the side of the client.
struct Stages {
    lines: Lines<BufReader<tokio::io::Stdin>>,
    begun: Instant,
    cpu: Duration,
    asks: u64,
}

impl Stages {
    fn new() -> Self {
        let lines = BufReader::new(tokio::io::stdin()).lines();
        Self { lines, begun: Instant::now(), cpu: cpu_time(), asks: 0 }
    }

    /// Tells, and waits until it may go on.
    async fn end(&mut self, asks: u64, keeping: Option<Keeping>) -> Result<()> {
        let mark = Mark {
            seconds: self.begun.elapsed().as_secs_f64(),
            cpu: (cpu_time() - self.cpu).as_secs_f64(),
            memory: memory().unwrap_or_default(),
            asks: asks - self.asks,
            late: keeping.map_or(0, |keeping| keeping.late),
            lost: keeping.map_or(0, |keeping| keeping.lost),
        };
        let mut line = serde_json::to_string(&mark)?;
        line.push('\n');
        stdout().write_all(line.as_bytes())?;
        stdout().flush()?;
        self.lines.next_line().await?.ok_or("whoever started this process has gone")?;
        (self.begun, self.cpu, self.asks) = (Instant::now(), cpu_time(), asks);
        Ok(())
    }
}

/// From the side of the one who studies. Ends with it.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    errors: tokio::process::ChildStderr,
    limit: Duration,
}

impl Process {
    /// Starts it. No stage may take longer than that.
    pub(super) fn start(program: &Path, client: &Client, limit: Duration) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("client").args(client.words()).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let errors = child.stderr.take().ok_or("no errors")?;
        let (input, output) = (input.ok_or("no input")?, output.ok_or("no output")?);
        Ok(Self { child, input, output: BufReader::new(output).lines(), errors, limit })
    }

    /// What it has seen until the end of the stage that it is in.
    pub(super) async fn stage(&mut self) -> Result<Mark> {
        let limit = self.limit;
        let line = timeout(limit, self.output.next_line()).await;
        match line.map_err(|_| format!("not done within {limit:?}"))?? {
            Some(line) => Ok(serde_json::from_str(&line)?),
            None => Err(self.complaint().await?.into()),
        }
    }

    /// Lets it go on to the next.
    pub(super) async fn go_on(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"\n").await?)
    }

    /// Waits until it has ended.
    pub(super) async fn end(mut self) -> Result<()> {
        self.go_on().await?;
        let status = timeout(self.limit, self.child.wait()).await;
        match status.map_err(|_| "it does not end")??.success() {
            true => Ok(()),
            false => Err(self.complaint().await?.into()),
        }
    }

    /// The last of what it has said.
    async fn complaint(&mut self) -> Result<String> {
        use tokio::io::AsyncReadExt as _;

        let mut said = String::new();
        let reading = self.errors.read_to_string(&mut said);
        timeout(self.limit, reading).await.map_err(|_| "it has ended, and says nothing")??;
        Ok(said.lines().next_back().unwrap_or("it has ended, and says nothing").to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_words_say_what_it_is_to_do() {
        let client = Client {
            task: Task::Waiters,
            url: "memory:x".into(),
            is_fair: true,
            number: 7,
            lease: Duration::from_millis(1_500),
        };
        assert_eq!(Client::parse(&client.words()).unwrap(), client);
        assert!(Client::parse(&client.words()[1..]).is_err());
    }
}
