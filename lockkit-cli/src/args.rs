use std::ffi::OsString;
use std::time::Duration;

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::exit;
use crate::report::say;

/// Parses the arguments of this process, or says what is wrong with them and returns the exit
/// code.
pub(crate) fn parse() -> Result<Command, u8> {
    let error = match Cli::try_parse() {
        Ok(cli) => return Ok(cli.command),
        Err(error) => error,
    };
    if let ErrorKind::DisplayHelp | ErrorKind::DisplayVersion = error.kind() {
        // Whoever asked for help and closed its output does not want it.
        _ = error.print();
        return Err(exit::OK);
    }
    let text = error.render().to_string();
    say(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    Err(exit::USAGE)
}

/// Locks between programs, machines and containers.
#[derive(Debug, clap::Parser)]
#[command(name = "lockkit", version, arg_required_else_help = false)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Run(Run),
}

/// Runs a command while holding a lock, and ends it if the lock cannot be kept.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Run {
    /// Where the locks are: `redis://HOST`, `sqlite:PATH`; see below for the default
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<OsString>,

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

    /// How long the command has to end when the lock cannot be kept, at most half of the TTL
    /// [default: 5s, or a third of the TTL if that is less]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) grace: Option<Duration>,

    /// The exit code that says that somebody else has the lock
    #[arg(short = 'E', long, value_name = "N", default_value_t = exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,

    /// Says what happens to the lock meanwhile
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// The name of the lock
    pub(crate) name: String,

    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Without --url the variable LOCKKIT_URL says where the locks are. A URL with a password belongs
there, since other users can see the arguments of a command. Without either the locks are those
of this user on this machine, in $XDG_STATE_HOME/lockkit/locks.db, with a TTL of 10s.

The command finds LOCKKIT_NAME, LOCKKIT_TOKEN, LOCKKIT_OWNER and LOCKKIT_DRIVER in its environment.

Exit codes: the command's own, 128+N if signal N ended it; 64 wrong usage; 69 backend unreachable;
70 lock lost, command ended; 75 lock taken or not free in time; 77 refused by the backend;
78 wrong URL or unsupported; 126 command cannot be executed; 127 command not found.";
