//! What a run has found out, as it is written to `run.json`: all that reports are made from.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::Path;

use lockkit_bench::{QUANTILES, Result, Unit, are_enough};
use serde::{Deserialize, Serialize};

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Where and with what it was measured.
    pub setup: Setup,
    /// What was measured, in the order of reports.
    pub entries: Vec<Entry>,
    /// What could not be measured.
    pub absences: Vec<Absence>,
}

/// Where and with what a run was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The day, such as `2026-11-21`.
    pub date: String,
    /// The processor's name.
    pub processor: String,
    /// How many CPUs the machine has.
    pub cpus: usize,
    /// Its memory, in bytes.
    pub memory: u64,
    /// Its operating system and kernel.
    pub system: String,
    /// Servers, compilers and libraries, each with its version.
    pub versions: Vec<(String, String)>,
    /// What decided the order in which subjects were measured.
    pub seed: u64,
    /// How many rounds each was measured.
    pub rounds: usize,
    /// How long the whole took, in seconds.
    pub seconds: f64,
    /// The share of the machine's CPU time that others used, from 0 to 1.
    pub noise: f64,
}

/// One case of a workload, measured of one subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The workload's name, such as `hand-over`.
    pub workload: String,
    /// The servers, such as `redis` or `etcd, 3 members`.
    pub backend: String,
    /// Who was measured, such as `lockkit`, `lockkit, fair`, `floor` or `redis-py Lock`.
    pub subject: String,
    /// What it is to lockkit.
    pub role: Role,
    /// Where it ran.
    pub placement: Placement,
    /// Which case, such as `8 clients`; empty if there is only one.
    pub case: String,
    /// One after the other, from the first of the run on.
    pub rounds: Vec<Round>,
}

/// What a subject is to lockkit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It is lockkit.
    Lockkit,
    /// The requests of lockkit, sent by hand.
    Floor,
    /// Another library.
    Peer,
}

/// Where client and servers ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// All on one CPU.
    Pinned,
    /// Wherever the system put them.
    Unpinned,
}

/// What one round has found out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Round {
    /// What was measured.
    pub figures: Vec<Figure>,
    /// The distribution of a latency: a share of all, and the seconds that it stayed within.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distribution: Vec<(f64, f64)>,
    /// How many times that is the distribution of; older runs do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

/// One thing that was measured once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it is, such as `p99`.
    pub name: String,
    /// In what it is measured.
    pub unit: Unit,
    /// How much it is.
    pub value: f64,
}

/// A subject that could not be measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Absence {
    /// The workload's name; none if it is all of them.
    pub workload: Option<String>,
    /// The servers.
    pub backend: String,
    /// Who.
    pub subject: String,
    /// What it is to lockkit.
    pub role: Role,
    /// Why not.
    pub reason: String,
}

impl Round {
    /// What was measured, but for quantiles of too few.
    pub(crate) fn told(&self) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(|figure| {
            let quantile = QUANTILES.into_iter().find(|(name, _)| *name == figure.name);
            quantile.is_none_or(|(_, share)| self.tells(share))
        })
    }

    /// Whether there were enough to tell within which time that share of them stayed.
    pub(crate) fn tells(&self, share: f64) -> bool {
        if let Some(times) = self.times {
            return are_enough(times, share);
        }
        let known = self.distribution.iter().find(|(known, _)| *known >= share - 1e-9);
        let longest = self.distribution.iter().find(|(known, _)| *known >= 1.0);
        // Where a run does not say how many, too few have the longest there.
        match (known, longest) {
            (Some((_, within)), Some((_, longest))) => share <= 0.5 || within < longest,
            _ => true,
        }
    }
}

impl Run {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// If there is none, or something else.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(serde_json::from_reader(BufReader::new(File::open(path)?))?)
    }

    /// Writes it.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        serde_json::to_writer(&mut file, self)?;
        Ok(file.flush()?)
    }
}
