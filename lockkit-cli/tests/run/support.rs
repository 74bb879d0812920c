use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Executor as _};
use tempfile::TempDir;
use tokio::runtime;
use tokio::signal::unix::{self, SignalKind};

/// A guard against hanging, not a measure of anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// What ends a program that is not asked to do anything else.
pub(crate) const ENDS: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// The program.
pub(crate) fn lockkit() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkit"));
    for variable in
        ["LOCKKIT_URL", "LOCKKIT_NAME", "LOCKKIT_TOKEN", "LOCKKIT_OWNERS", "LOCKKIT_TOKENS"]
    {
        command.env_remove(variable);
    }
    command
}

/// Locks of one test, in a database of its own.
pub(crate) struct Locks {
    folder: TempDir,
    ttl: &'static str,
    gate: File,
}

impl Locks {
    pub(crate) fn new() -> Self {
        Self::with_ttl("30s")
    }

    pub(crate) fn with_ttl(ttl: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("gate");
        make_fifo(&gate);
        // For reading too, so that opening waits for nobody and what is written stays.
        let gate = File::options().read(true).write(true).open(gate).unwrap();
        Self { folder, ttl, gate }
    }

    /// Lets one command go on that does `read -r _ <gate`.
    pub(crate) fn open_gate(&self) {
        (&self.gate).write_all(b"go\n").unwrap();
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}?ttl={}", self.path("locks.db").display(), self.ttl)
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// `lockkit run OPTIONS NAME -- COMMAND`, in the folder of the test.
    pub(crate) fn run<A: AsRef<OsStr>>(
        &self,
        options: &[&str],
        name: &str,
        words: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = self.lockkit("run", options);
        command.args([name, "--"]).args(words);
        command
    }

    /// `lockkit SUBCOMMAND ARGUMENTS`, in the folder of the test.
    pub(crate) fn lockkit(&self, subcommand: &str, arguments: &[&str]) -> Command {
        let mut command = lockkit();
        command.current_dir(self.folder.path()).env("LOCKKIT_URL", self.url());
        command.arg(subcommand).args(arguments);
        command
    }

    /// Starts a shell script under a lock.
    pub(crate) fn start(&self, options: &[&str], name: &str, script: &str) -> Running {
        Running::start(self.run(options, name, ["sh", "-c", script]))
    }

    /// Runs a shell script under a lock until it ends.
    pub(crate) fn finish(&self, options: &[&str], name: &str, script: &str) -> Ended {
        self.start(options, name, script).finish()
    }

    /// A file for a command to open, as `exec 9>watched`, and what tells when it was last open:
    /// when the command, and whatever it started, is gone.
    pub(crate) fn watched(&self) -> Receiver<Instant> {
        let path = self.path("watched");
        make_fifo(&path);
        let (sender, gone) = mpsc::channel();
        thread::spawn(move || {
            File::open(path).unwrap().read_to_end(&mut Vec::new()).unwrap();
            // The test may have ended first.
            _ = sender.send(Instant::now());
        });
        gone
    }

    /// Keeps everybody else from writing to the database until dropped.
    pub(crate) async fn block(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path("locks.db"));
        let mut connection = options.connect().await.unwrap();
        connection.execute("BEGIN IMMEDIATE").await.unwrap();
        connection
    }
}

/// 8 processes, each of them one run after another, increment a plain file, under tokens that rise.
pub(crate) fn count(locks: &Locks, url: &str, name: &str) {
    let runs = count_runs(locks, url, name, |_| false, |ended| ended.code == 0);
    tokens_rise(locks, runs);
}

/// The same while servers elect, which may take longer than connecting may: a run that never
/// connected is begun again. Whatever fails once it has is a failure.
pub(crate) fn count_through_outages(locks: &Locks, url: &str, name: &str) {
    let never_connected =
        |ended: &Ended| ended.code == 69 && ended.err.contains("could not connect: ");
    let runs = count_runs(locks, url, name, never_connected, |ended| ended.code == 0);
    tokens_rise(locks, runs);
}

fn tokens_rise(locks: &Locks, runs: usize) {
    let tokens = fs::read_to_string(locks.path("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), runs);
    assert!(tokens.is_sorted_by(|one, other| one < other), "{tokens:?}");
}

/// The same on a quorum without tokens, whose nodes forget what they have: a hold that three of five
/// have granted is lost with one of them, which is found out when it is let go of, by a command that
/// has run alone until then.
pub(crate) fn count_through_losses(locks: &Locks, url: &str, name: &str) {
    let is_done = |ended: &Ended| {
        ended.code == 0 || ended.code == 70 && ended.err.contains("was lost before it was released")
    };
    count_runs(locks, url, name, |_| false, is_done);
}

/// Returns how many runs there were.
fn count_runs(
    locks: &Locks,
    url: &str,
    name: &str,
    again: fn(&Ended) -> bool,
    is_done: fn(&Ended) -> bool,
) -> usize {
    let rounds = env::var("LOCKKIT_TEST_ROUNDS").map_or(25, |rounds| rounds.parse().unwrap());
    fs::write(locks.path("counter"), "0").unwrap();
    let increment = "set -eC; : >probe; n=$(cat counter); sleep 0.001; echo $((n + 1)) >|counter; \
                     echo $LOCKKIT_TOKEN >>tokens; rm probe";
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (begun, mut done) = (Instant::now(), 0);
                while done < rounds {
                    let mut command = locks.run(&[], name, ["sh", "-c", increment]);
                    command.env("LOCKKIT_URL", url);
                    let ended = Running::start(command).finish();
                    if again(&ended) && begun.elapsed() < LIMIT {
                        continue;
                    }
                    assert!(is_done(&ended), "{ended:?}");
                    done += 1;
                }
            });
        }
    });
    let counter = fs::read_to_string(locks.path("counter")).unwrap();
    assert_eq!(counter.trim().parse::<usize>().unwrap(), 8 * rounds);
    8 * rounds
}

/// Runs a command that is to be killed before its lock ends, until it was gone in time: three times at
/// most. It has half a second for that, and a machine under load may take longer; code that kills it too
/// late does so each time.
pub(crate) async fn gone_in_time(run: impl AsyncFn() -> Result<(), String>) {
    let mut late = Vec::new();
    while late.len() < 3 {
        match run().await {
            Ok(()) => return,
            Err(how) => late.push(how),
        }
    }
    panic!("{late:#?}");
}

/// A client without limits: a machine under load is not to be taken for a server that does not answer.
pub(crate) async fn redis_at(url: &str) -> MultiplexedConnection {
    let patient =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let client = Client::open(url).unwrap();
    client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
}

/// A process that is killed if the test ends before it does.
pub(crate) struct Running {
    pub(crate) pid: Pid,
    pub(crate) input: ChildStdin,
    out: Receiver<String>,
    err: Receiver<String>,
    status: Receiver<ExitStatus>,
}

/// What became of a process.
#[derive(Debug)]
pub(crate) struct Ended {
    /// As a shell says it: 128 + N if signal N ended it.
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// What it said on standard error, but for the word that it waits: a run says so whenever the
    /// answer to its ask takes long, and of a machine under load that is true of a free lock.
    pub(crate) fn complaints(&self) -> String {
        let is_wait = |line: &&str| line.starts_with("lockkit: waiting for lock ");
        self.err.lines().filter(|line| !is_wait(line)).map(|line| format!("{line}\n")).collect()
    }
}

impl Running {
    pub(crate) fn start(command: Command) -> Self {
        let (mut running, out) = Self::spawn(command);
        running.out = lines(out);
        running
    }

    /// Leaves it to the caller to read standard error, which is `error`.
    pub(crate) fn start_with(command: Command, error: impl Into<Stdio>) -> Self {
        let (mut running, out, _) = Self::spawn_with(command, error.into());
        running.out = lines(out);
        running
    }

    /// Leaves it to the caller to read the output.
    fn spawn(command: Command) -> (Self, ChildStdout) {
        let (mut running, out, err) = Self::spawn_with(command, Stdio::piped());
        running.err = lines(err.unwrap());
        (running, out)
    }

    fn spawn_with(mut command: Command, error: Stdio) -> (Self, ChildStdout, Option<ChildStderr>) {
        heed_signals();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(error);
        // Not in the foreground of the terminal that the tests may be run at.
        let mut child = command.process_group(0).spawn().unwrap();
        let (pid, input) = (Pid::from_child(&child), child.stdin.take().unwrap());
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take());
        let (sender, status) = mpsc::channel();
        thread::spawn(move || sender.send(child.wait().unwrap()));
        let [(_, no_out), (_, no_err)] = [mpsc::channel(), mpsc::channel()];
        (Self { pid, input, out: no_out, err: no_err, status }, out, err)
    }

    /// The next line of standard output; `None` once nobody can write there any more: the
    /// program, its command, and whatever that has started.
    pub(crate) fn line(&self) -> Option<String> {
        next(&self.out)
    }

    /// The next line of standard error.
    pub(crate) fn complaint(&self) -> Option<String> {
        next(&self.err)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        assert!(!is_ignored(signal), "{signal:?} is ignored here, and so by what is started");
        kill_process(self.pid, signal).unwrap();
    }

    /// How the program itself has ended; what it started may go on.
    pub(crate) fn status(&self) -> ExitStatus {
        self.status.recv_timeout(LIMIT).expect("the program does not end")
    }

    /// Returns when the program and all that writes to its outputs has ended.
    pub(crate) fn finish(self) -> Ended {
        let rest = |lines: &Receiver<String>| {
            std::iter::from_fn(|| next(lines)).map(|line| line + "\n").collect::<String>()
        };
        let (out, err) = (rest(&self.out), rest(&self.err));
        let status = self.status();
        // Of the others a program does not end in its own time.
        let signal = status.signal().inspect(|signal| {
            let is_expected = ENDS.iter().any(|end| end.as_raw() == *signal);
            assert!(is_expected && !status.core_dumped(), "killed: {status}: {out}{err}");
        });
        let code = status.code().or(signal.map(|signal| 128 + signal)).unwrap();
        Ended { code, signal, out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(mpsc::TryRecvError::Empty) = self.status.try_recv() {
            // It may end by itself at this moment.
            _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

/// A shell command at a terminal, which `script` of util-linux makes. It finds the program as
/// `$PROGRAM`.
pub(crate) struct AtTerminal {
    running: Running,
    shown: Arc<(Mutex<String>, Condvar)>,
}

impl AtTerminal {
    /// None where there is no `script`.
    pub(crate) fn start(locks: &Locks, shell: &str) -> Option<Self> {
        if Command::new("script").arg("--version").output().is_err() {
            eprintln!("left out: the program `script` of util-linux is not there");
            return None;
        }
        let mut command = Command::new("script");
        command.args(["-qec", shell, "/dev/null"]);
        command.env("PROGRAM", lockkit().get_program()).env("SHELL", "/bin/sh");
        command.env("TERM", "xterm").env_remove("LOCKKIT_OWNERS");
        command.env("LOCKKIT_URL", locks.url()).current_dir(locks.path(""));
        let (mut running, mut out) = Running::spawn(command);
        let shown = Arc::<(Mutex<String>, Condvar)>::default();
        let (sender, end) = mpsc::channel();
        thread::spawn({
            let shown = shown.clone();
            move || {
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = out.read(&mut bytes) {
                    shown.0.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
                    shown.1.notify_all();
                }
                // Ends what `Running` takes for the lines of the output.
                drop(sender);
            }
        });
        running.out = end;
        Some(Self { running, shown })
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.running.input.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns when all that was shown so far is `enough`.
    pub(crate) fn until(&self, what: &str, enough: impl Fn(&str) -> bool) {
        let shown = self.shown.0.lock().unwrap();
        let wait = self.shown.1.wait_timeout_while(shown, LIMIT, |shown| !enough(shown));
        let (shown, timeout) = wait.unwrap();
        assert!(!timeout.timed_out(), "not within {LIMIT:?}: {what}: {shown:?}");
    }

    /// Returns when the command has ended; its output is all that was shown.
    pub(crate) fn finish(self) -> Ended {
        let mut ended = self.running.finish();
        ended.out = self.shown.0.lock().unwrap().clone();
        ended
    }
}

/// Waits for what no event tells of.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What `lockkit status --json` says of a lock once as many as this are seen to wait: a run may say
/// that it waits before it has its place.
pub(crate) fn waited_for(locks: &Locks, url: &str, name: &str, waiters: usize) -> Value {
    let mut lock = Value::Null;
    eventually("the waiters are seen", || {
        let mut command = locks.lockkit("status", &["--json", name]);
        command.env("LOCKKIT_URL", url);
        let seen = Running::start(command).finish();
        assert_eq!(seen.code, 1, "{seen:?}");
        lock = serde_json::from_str::<Value>(&seen.out).unwrap()["locks"][0].take();
        lock["waiters"].as_array().unwrap().len() == waiters
    });
    lock
}

/// The state of a process as /proc has it, `T` for stopped; `None` if there is no such process.
pub(crate) fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
    (state != 'Z').then_some(state)
}

/// Has what is started heed the signals that this process was told to ignore, as under nohup or
/// after `&`: what a process catches, a program that it starts does not ignore.
fn heed_signals() {
    static CAUGHT: Once = Once::new();
    // On a thread of its own: the caller may be in a runtime, where no other one may end.
    CAUGHT.call_once(|| thread::spawn(catch_ignored).join().unwrap());
}

fn catch_ignored() {
    let runtime = runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _inside = runtime.enter();
    for signal in ENDS.into_iter().chain([Signal::TSTP, Signal::TTIN, Signal::TTOU]) {
        if is_ignored(signal) {
            // Goes on being caught.
            drop(unix::signal(SignalKind::from_raw(signal.as_raw())).unwrap());
        }
    }
}

/// Whether this process was told to ignore a signal, where the system tells.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.map(|mask| u64::from_str_radix(mask.trim(), 16).unwrap());
    mask.is_some_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0)
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // A terminal ends lines in its own way.
            if sender.send(line.trim_end_matches('\r').into()).is_err() {
                return;
            }
        }
    });
    lines
}

fn next(lines: &Receiver<String>) -> Option<String> {
    match lines.recv_timeout(LIMIT) {
        Ok(line) => Some(line),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => panic!("no line within {LIMIT:?}"),
    }
}
