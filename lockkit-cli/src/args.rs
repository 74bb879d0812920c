use std::cmp::Reverse;
use std::env;
use std::ffi::OsString;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use lockkit::{Backend, BackendUrl};

use crate::exit;
use crate::report::{say, written};

/// Parses the arguments of this process, or says what is wrong with them and returns the exit
/// code.
pub(crate) fn parse() -> Result<Command, u8> {
    let error = match Cli::try_parse() {
        Ok(cli) => return Ok(cli.command),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::MissingRequiredArgument
        && let Some(run) = with_two_dashes(env::args_os().collect())
    {
        return run.map(Command::Run).map_err(|reason| {
            say(format!("the name: {reason}"));
            exit::USAGE
        });
    }
    if let ErrorKind::DisplayHelp | ErrorKind::DisplayVersion = error.kind() {
        return Err(written(error.print(), exit::OK));
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    say(without_passwords(text, env::args_os()));
    Err(exit::USAGE)
}

/// The text without what may be a password in one of the arguments that it repeats: a URL may stand
/// in a wrong place.
fn without_passwords(text: &str, arguments: impl Iterator<Item = OsString>) -> String {
    // As they are repeated.
    let arguments: Vec<_> = arguments.map(|it| it.to_string_lossy().into_owned()).collect();
    let mut urls: Vec<_> = arguments.iter().flat_map(|argument| urls_in(argument)).collect();
    // One of them may be a part of another.
    urls.sort_by_key(|url| Reverse(url.len()));
    urls.into_iter().fold(text.into(), |text, url| text.replace(url, &without_password(url)))
}

/// What may be a URL in an argument: all of it, the value behind an `=`, and, behind letters of
/// options, whatever begins with a scheme.
fn urls_in(argument: &str) -> impl Iterator<Item = &str> {
    let value = argument.split_once('=').map(|(_, value)| value);
    let letters = argument.strip_prefix('-').map_or(0, |rest| rest.find(':').unwrap_or(0));
    let behind_letters = (1..=letters).filter_map(move |at| argument.get(at..));
    [Some(argument), value].into_iter().flatten().chain(behind_letters)
}

fn without_password(url: &str) -> String {
    match (url.parse::<BackendUrl>(), url.split_once("://"), url.rsplit_once('@')) {
        (Ok(url), ..) => url.to_string(),
        (Err(_), Some((scheme, _)), _) => format!("{scheme}://***"),
        (Err(_), None, Some((_, host))) => format!("***@{host}"),
        (Err(_), None, None) => url.into(),
    }
}

/// The name of a lock, or the like, and not the URL of a backend, with what others are not to see.
fn no_password(text: &str) -> Result<String, &'static str> {
    let has_password = |url: BackendUrl| {
        let shown = url.to_string();
        let is_hidden = shown.split_once('?').is_some_and(|(_, query)| query.contains("***"));
        url.password().is_some() || url.has_authority() && is_hidden
    };
    // Others may well be the names of locks.
    let is_ours = |url: &BackendUrl| Backend::of(url).is_some();
    match text.parse().ok().filter(is_ours).is_some_and(has_password) {
        true => Err("that is a URL with a password; it goes behind --url or into LOCKKIT_URL"),
        false => Ok(text.into()),
    }
}

/// `run -- NAME -- COMMAND`, for a name that would be an option elsewhere.
fn with_two_dashes(mut words: Vec<OsString>) -> Option<Result<Run, &'static str>> {
    let dashes = words.iter().position(|word| word == "--")?;
    let name = no_password(words.get(dashes + 1)?.to_str()?);
    if words.get(dashes + 2)? != "--" {
        return None;
    }
    // With a plain name in its place, this is the usual form, unless there was a name before it.
    words.splice(dashes..dashes + 2, ["name".into()]);
    match Cli::try_parse_from(words).ok()?.command {
        Command::Run(run) => Some(name.map(|name| Run { name, ..run })),
        _ => None,
    }
}

/// What can be said to this program: for completions and manual pages.
pub(crate) fn grammar() -> clap::Command {
    Cli::command()
}

/// Locks between programs, machines and containers.
#[derive(Debug, clap::Parser)]
#[command(name = "lockkit", version, arg_required_else_help = false, after_help = AFTER_HELP)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Where the locks are: --url, or the variable LOCKKIT_URL, such as redis://HOST or sqlite:PATH. A URL
with a password belongs in the variable, since other users can see the arguments of a command.
Without either they are those of this user on this machine, in $XDG_STATE_HOME/lockkit/locks.db.

Examples:
  lockkit run nightly-report -- ./report.sh     one at a time, everybody else waits
  lockkit status                                who holds what
  lockkit doctor                                is the backend fit to keep locks?

Exit codes: 64 wrong usage; 69 backend unreachable; 74 output cannot be written; 77 refused by the
backend; 78 wrong URL or unsupported; for the others see the help of each command.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Status(Status),
    Break(Break),
    Doctor(Doctor),
    Conformance(Conformance),
    #[cfg(feature = "bench")]
    Bench(Bench),
    Completions(Completions),
    Man(Man),
}

/// Where the locks are.
#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// Where the locks are, such as `redis://HOST` or `sqlite:PATH` [default: the variable
    /// LOCKKIT_URL, else this user's own locks on this machine]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<OsString>,
}

/// Runs a command while holding a lock, and ends it if the lock cannot be kept
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_RUN)]
#[command(override_usage = "lockkit run [OPTIONS] <NAME> -- <COMMAND>...")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) place: Place,

    /// How long the lock outlives a dead holder [default: as the URL says, or 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Option<Duration>,

    /// Waits no longer than this for the lock [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<Duration>,

    /// Does not wait for the lock
    #[arg(long = "try", conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Takes turns with others who wait: first come, first served
    #[arg(long)]
    pub(crate) fair: bool,

    /// Holds the lock for at least this long, even if the command ends sooner: for a job that many
    /// hosts start by clocks that differ
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) at_least: Option<Duration>,

    /// How long the command has to end when the lock cannot be kept, at most half of the TTL, or of
    /// `max_hold` in the URL if that is less, and less in a session that is not good for all of the
    /// TTL [default: 5s, or a third of it if that is less]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) grace: Option<Duration>,

    /// The exit code that says that somebody else has the lock
    #[arg(short = 'E', long, value_name = "N", default_value_t = exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,

    /// Says nothing while all goes well: neither who is waited for nor that the lock is taken
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Says what happens to the lock meanwhile
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// The name of the lock; one that begins with a dash goes behind a `--` of its own
    #[arg(value_parser = no_password)]
    pub(crate) name: String,

    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

const AFTER_RUN: &str = "\
A URL with a password belongs in the variable LOCKKIT_URL, since other users can see the arguments
of a command. Without a URL the locks are those of this user on this machine, in
$XDG_STATE_HOME/lockkit/locks.db, with a TTL of 10s.

The command finds LOCKKIT_NAME, LOCKKIT_TOKEN, LOCKKIT_OWNER and LOCKKIT_DRIVER in its environment,
and those of the runs around it in LOCKKIT_OWNERS and LOCKKIT_TOKENS.

Examples:
  lockkit run nightly-report -- ./report.sh              waits for as long as it takes
  lockkit run --wait 5m --fair deploy -- make deploy     in turn, but not for ever
  lockkit run --try --at-least 55s -qE 0 tick -- ./tick  in the crontab of many hosts: one runs it

Exit codes: the command's own, 128+N if signal N ended it; 64 wrong usage; 69 backend unreachable;
70 lock lost, command ended; 75 lock taken or not free in time; 77 refused by the backend;
78 wrong URL, unsupported, or held by the run that this one is in; 126 command cannot be executed;
127 command not found.";

/// Shows who holds locks and who waits for them
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_STATUS)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) place: Place,

    /// Writes JSON, as docs/status.schema.json describes it
    #[arg(long)]
    pub(crate) json: bool,

    /// Shows it on the whole terminal, as it changes; q ends it
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) watch: bool,

    /// Only this lock, with everybody who has a place in its queue [default: all that are held]
    #[arg(value_parser = no_password)]
    pub(crate) name: Option<String>,
}

const AFTER_STATUS: &str = "\
Looking changes nothing, but that a database without lockkit's tables gets them. What it shows is
old when it arrives: for people, not for decisions.

Examples:
  lockkit status                                       all locks that are held
  lockkit status nightly-report                        who holds it, who waits, and the exit code
  lockkit status --json | jq -r '.locks[].name'        for programs
  lockkit status --watch                               like top

Exit codes: 0 free, 1 held; without NAME 0. Else as `lockkit --help` says.";

/// Ends somebody's hold of a lock
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_BREAK)]
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) place: Place,

    /// Only the hold of this owner: the id that `lockkit status NAME` shows, or its first 8 digits
    /// or more
    #[arg(long, value_name = "ID", value_parser = owner)]
    pub(crate) owner: Option<String>,

    /// Does not ask
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// The name of the lock
    #[arg(value_parser = no_password)]
    pub(crate) name: String,
}

const AFTER_BREAK: &str = "\
Whoever waits gets the lock, with a higher fencing token. The holder learns of it at its next
renewal, within a third of its TTL, and goes on until then, for `lockkit run` until its command has
been ended: only a resource that checks fencing tokens refuses it at once.

At a terminal it shows who holds the lock and asks; elsewhere it needs --yes.

Examples:
  lockkit break nightly-report                         shows the holder, and asks
  lockkit break --yes --owner 5f0c2b9e nightly-report  in a script: this hold and no other

Exit codes: 0 broken; 1 nothing was broken: nobody held it, or another owner, or the answer was no.
Else as `lockkit --help` says.";

/// Looks at how the backend is set up and says what is wrong with it
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_DOCTOR)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) place: Place,

    /// Writes JSON, as docs/doctor.schema.json describes it
    #[arg(long)]
    pub(crate) json: bool,
}

const AFTER_DOCTOR: &str = "\
It changes nothing, but that a database without lockkit's tables gets them. Each finding comes with
what to do about it.

Examples:
  lockkit doctor --url redis://localhost
  lockkit doctor --json | jq '.findings[] | select(.grade != \"good\")'

Exit codes: 0 locks work; 1 there is an error among the findings, such as a backend that cannot be
reached; 64 wrong usage.";

/// Checks whether locks behave as they should on a backend
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_CONFORMANCE)]
pub(crate) struct Conformance {
    #[command(flatten)]
    pub(crate) place: Place,

    /// The lease of the checks, longer for a backend that is far away [default: 1s, or 5s on etcd,
    /// which grants no less than 2s and counts whole seconds]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Option<Duration>,

    /// Names the checks, with what they find out, and runs none
    #[arg(long)]
    pub(crate) list: bool,

    /// Only the checks with this in their name
    #[arg(value_parser = no_password)]
    pub(crate) filter: Option<String>,
}

const AFTER_CONFORMANCE: &str = "\
The checks take, keep, lose and release locks of their own, in a namespace `conformance-ID` that
nobody else has. What they leave behind is removed, and what cannot be is named.

Examples:
  lockkit conformance --list
  LOCKKIT_URL=redis://localhost lockkit conformance
  lockkit conformance --url sqlite:/srv/locks.db --ttl 3s tokens

Exit codes: 0 all passed or do not apply; 1 a check failed. Else as `lockkit --help` says.";

/// Measures how long locks take
#[cfg(feature = "bench")]
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_BENCH)]
pub(crate) struct Bench {
    /// Where to measure, beside the embedded backends and the variable LOCKKIT_URL; can be given
    /// several times
    #[arg(long = "url", value_name = "URL")]
    pub(crate) urls: Vec<OsString>,

    /// Less of everything, done in under two minutes with one URL
    #[arg(long)]
    pub(crate) quick: bool,

    /// Leaves out the embedded backends: memory, file, SQLite
    #[arg(long)]
    pub(crate) no_embedded: bool,

    /// Also measures locks first come, first served, where that has to be asked for
    #[arg(long)]
    pub(crate) fair: bool,

    /// How often each thing is measured [default: 5, or 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: Option<u16>,

    /// What decides the order in which backends are measured in each round [default: a random one]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Writes what docs/bench.schema.json describes, when all is measured
    #[arg(long)]
    pub(crate) json: bool,

    /// Only these [default: all]
    #[arg(value_name = "WORKLOAD", value_parser = crate::bench::WORKLOADS)]
    pub(crate) workloads: Vec<String>,
}

#[cfg(feature = "bench")]
const AFTER_BENCH: &str = "\
A URL with a password belongs in the variable LOCKKIT_URL, since other users can see the arguments
of a command. Each figure is the median of the rounds, with the least and the most in brackets. The
backends take turns in each round, so that what else the machine does is shared among them.

Locks are taken under names that nobody else has. What released locks leave on a backend, such as
the counters of fencing tokens, these leave as well.

Examples:
  lockkit bench --quick
  lockkit bench --quick --url redis://localhost --url postgres://localhost
  lockkit bench --no-embedded --url redis://localhost --fair hand-over contended
  lockkit bench --quick --json | jq '.workloads[] | {name, subjects}'

Exit codes: 0 measured; 1 something could not be measured, and says why. Else as `lockkit --help`
says.";

/// Writes a script that completes arguments in a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockkit completions bash >~/.local/share/bash-completion/completions/lockkit
  lockkit completions zsh >/usr/local/share/zsh/site-functions/_lockkit
  lockkit completions fish >~/.config/fish/completions/lockkit.fish")]
pub(crate) struct Completions {
    /// Which shell
    pub(crate) shell: clap_complete::Shell,
}

/// Writes a page of the manual
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockkit man run | man -l -
  lockkit man status >/usr/local/share/man/man1/lockkit-status.1")]
pub(crate) struct Man {
    /// The command that the page is about [default: lockkit itself]
    pub(crate) command: Option<String>,
}

/// The first digits of an owner's id.
fn owner(text: &str) -> Result<String, &'static str> {
    match text.len() {
        8..=32 if text.bytes().all(|byte| byte.is_ascii_hexdigit()) => Ok(text.to_lowercase()),
        _ => Err("an owner is 8 to 32 hexadecimal digits"),
    }
}
