//! Runs a command with private servers: `with-servers redis -- COMMAND [ARGUMENT...]`, with an
//! ensemble of three where it says `etcd:3`, and with several Redis servers where it says
//! `redis-sentinel` or `redis-cluster`.
//!
//! Each server's URL is in `LOCKKIT_TEST_<ID>_URL`. The servers end with the command, whose exit
//! code is passed on (128+n for a signal).

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use lockkit_testkit::{
    BACKENDS, Backend, Ensemble, RedisCluster, RedisSentinels, Server, Unavailable,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(std::env::args_os().skip(1).collect()).await {
        Ok(code) => ExitCode::from(code),
        Err(Stop { code, message }) => {
            eprintln!("with-servers: {message}");
            ExitCode::from(code)
        }
    }
}

struct Stop {
    code: u8,
    message: String,
}

impl Stop {
    const USAGE: u8 = 64;
    const NO_SERVER: u8 = 69;
    const NOT_EXECUTABLE: u8 = 126;
    const NOT_FOUND: u8 = 127;

    fn new(code: u8, message: impl ToString) -> Stop {
        Stop { code, message: message.to_string() }
    }
}

async fn run(arguments: Vec<OsString>) -> Result<u8, Stop> {
    let usage = || {
        Stop::new(Stop::USAGE, "usage: with-servers BACKEND[:MEMBERS]... -- COMMAND [ARGUMENT...]")
    };
    let end_of_backends = arguments.iter().position(|word| word == "--").ok_or_else(usage)?;
    let (program, rest) = arguments[end_of_backends + 1..].split_first().ok_or_else(usage)?;
    let mut command = Command::new(program);
    command.args(rest);
    // They end when this is dropped.
    let mut servers: Vec<Started> = Vec::new();
    for wanted in arguments[..end_of_backends].iter().map(find) {
        let wanted = wanted?;
        let started = wanted.start().map_err(|error| Stop::new(Stop::NO_SERVER, error))?;
        command.env(wanted.url_variable(), started.url());
        servers.push(started);
    }
    let status = attend(&mut command).await.map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Stop::NOT_FOUND,
            _ => Stop::NOT_EXECUTABLE,
        };
        Stop::new(code, format_args!("{}: {error}", program.display()))
    })?;
    Ok(code_of(status))
}

/// What is to be started.
enum Wanted {
    Backend(&'static Backend, Option<usize>),
    RedisSentinels,
    RedisCluster,
}

impl Wanted {
    fn start(&self) -> Result<Started, Unavailable> {
        // Longer than a busy machine keeps a server from answering.
        const PATIENCE: Duration = Duration::from_secs(5);
        Ok(match *self {
            Self::Backend(backend, None) => Started::Server(Box::new(backend.start()?)),
            Self::Backend(backend, Some(members)) => {
                Started::Ensemble(backend.start_ensemble(members)?)
            }
            Self::RedisSentinels => Started::RedisSentinels(RedisSentinels::start(PATIENCE)?),
            Self::RedisCluster => Started::RedisCluster(RedisCluster::start(PATIENCE)?),
        })
    }

    fn url_variable(&self) -> &'static str {
        match self {
            Self::Backend(backend, _) => backend.url_variable(),
            Self::RedisSentinels => "LOCKKIT_TEST_REDIS_SENTINEL_URL",
            Self::RedisCluster => "LOCKKIT_TEST_REDIS_CLUSTER_URL",
        }
    }
}

enum Started {
    Server(Box<Server>),
    Ensemble(Ensemble),
    RedisSentinels(RedisSentinels),
    RedisCluster(RedisCluster),
}

impl Started {
    fn url(&self) -> String {
        match self {
            Self::Server(server) => server.url(),
            Self::Ensemble(ensemble) => ensemble.url(),
            Self::RedisSentinels(set) => set.url(),
            Self::RedisCluster(cluster) => cluster.url(),
        }
    }
}

/// The backend, and the number of its members if the text says so.
fn find(wanted: &OsString) -> Result<Wanted, Stop> {
    let text = wanted.to_string_lossy();
    match &*text {
        "redis-sentinel" => return Ok(Wanted::RedisSentinels),
        "redis-cluster" => return Ok(Wanted::RedisCluster),
        _ => (),
    }
    let known = BACKENDS.map(Backend::id).join(", ");
    let (id, members) = match text.split_once(':') {
        Some((id, members)) => (id, Some(members)),
        None => (&*text, None),
    };
    let Some(backend) = BACKENDS.into_iter().find(|backend| id == backend.id()) else {
        let message = format!(
            "no server for `{}`, there is {known}, redis-cluster, redis-sentinel",
            wanted.display()
        );
        return Err(Stop::new(Stop::USAGE, message));
    };
    match members.map(str::parse) {
        None => Ok(Wanted::Backend(backend, None)),
        Some(Ok(members @ 1..=9)) => Ok(Wanted::Backend(backend, Some(members))),
        Some(_) => {
            let message = format!("`{}`: an ensemble has 1 to 9 members", wanted.display());
            Err(Stop::new(Stop::USAGE, message))
        }
    }
}

/// Runs the command to its end. The servers must outlast it, so signals do not end this process: a
/// terminal sends its own to the command as well, and the others are passed on.
async fn attend(command: &mut Command) -> io::Result<ExitStatus> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut child = command.spawn()?;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
            _ = hangup.recv() => pass_on(&child, Signal::HUP)?,
            _ = terminate.recv() => pass_on(&child, Signal::TERM)?,
        }
    }
}

fn pass_on(child: &Child, signal: Signal) -> io::Result<()> {
    match child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        Some(pid) => Ok(kill_process(pid, signal)?),
        // It has ended: there is nobody to tell.
        None => Ok(()),
    }
}

/// As a shell gives it: the command's own code, or 128 and the signal that ended it.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
