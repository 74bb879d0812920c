use std::fs;
use std::process::Command;
use std::thread::available_parallelism;
use std::time::{Duration, Instant, SystemTime};

use lockkit_bench::Result;

use crate::process::{Tree, machine};
use crate::run::Setup;

/// Tells how busy others kept the machine meanwhile.
#[derive(Debug)]
pub struct Gauge {
    began: Instant,
    all: Duration,
    used: Duration,
    own: Duration,
}

impl Gauge {
    /// From now on.
    ///
    /// # Errors
    ///
    /// If the system does not tell.
    pub fn begin() -> Result<Self> {
        let (all, used) = machine()?;
        Ok(Self { began: Instant::now(), all, used, own: Tree::own().cpu()? })
    }

    /// How long it was until now, in seconds, and the share of the machine's CPU time that others
    /// used.
    ///
    /// # Errors
    ///
    /// If the system does not tell.
    pub fn read(&self) -> Result<(f64, f64)> {
        let (all, used) = machine()?;
        let own = Tree::own().cpu()?.saturating_sub(self.own);
        let others = (used - self.used).saturating_sub(own);
        let noise = others.div_duration_f64((all - self.all).max(Duration::from_millis(1)));
        Ok((self.began.elapsed().as_secs_f64(), noise))
    }

    /// Until now: the set-up but for seed and rounds.
    ///
    /// # Errors
    ///
    /// If the system does not tell.
    pub fn end(&self, versions: Vec<(String, String)>) -> Result<Setup> {
        let (seconds, noise) = self.read()?;
        let today = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let mut all_versions = vec![("lockkit".into(), env!("CARGO_PKG_VERSION").into())];
        for (name, program, asked) in PROGRAMS {
            all_versions.extend(version_of(program, asked).map(|version| (name.into(), version)));
        }
        all_versions.extend(versions.into_iter().filter(|(name, _)| !name.starts_with("lockkit")));
        Ok(Setup {
            date: today[..10].into(),
            processor: line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cpus: available_parallelism()?.get(),
            memory: line_of("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .map_or(0, |kibibytes| kibibytes * 1024),
            system: system(),
            versions: all_versions,
            seed: 0,
            rounds: 0,
            seconds,
            noise,
        })
    }
}

/// What is measured with: its name, the program, and how it is asked for its version.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("rustc", "rustc", "--version"),
    ("python", "python3", "--version"),
    ("node", "node", "--version"),
    ("java", "java", "--version"),
    ("etcdctl", "etcdctl", "version"),
];

/// The number in what a program says of its version.
fn version_of(program: &str, asked: &str) -> Option<String> {
    let output = Command::new(program).arg(asked).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let is_version =
        |word: &&str| word.contains('.') && word.contains(|c: char| c.is_ascii_digit());
    let word = text.split_whitespace().find(is_version)?;
    Some(word.trim_start_matches('v').into())
}

/// The distribution and its kernel.
fn system() -> String {
    let kernel = rustix::system::uname();
    let (name, release) = (kernel.sysname().to_string_lossy(), kernel.release().to_string_lossy());
    // What stands behind the number says who has built it.
    let number = release.split('-').next().unwrap_or_default();
    let kernel = format!("{name} {number}");
    match line_of("/etc/os-release", "PRETTY_NAME") {
        Some(name) => format!("{}, {kernel}", name.trim_matches('"')),
        None => kernel,
    }
}

/// What stands behind a word in a file of lines such as `word: value` or `word=value`.
fn line_of(path: &str, word: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(word))?;
    Some(line.trim_start_matches([' ', '\t', ':', '=']).trim().into())
}
