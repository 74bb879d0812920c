//! What the system tells about processes, and where it lets them run. Linux only.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use lockkit_bench::Result;
use rustix::param::{clock_ticks_per_second, page_size};

/// A process and all that it has started, while it lives.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    root: u32,
}

impl Tree {
    /// Of the process of that id.
    pub fn of(root: u32) -> Self {
        Self { root }
    }

    /// Of this process.
    pub fn own() -> Self {
        Self::of(std::process::id())
    }

    /// How long its processes were on a CPU so far, those that have ended and were waited for
    /// included.
    ///
    /// # Errors
    ///
    /// If the system does not tell.
    pub fn cpu(&self) -> Result<Duration> {
        let ticks: u64 = self.members()?.iter().map(|member| member.ticks).sum();
        Ok(Duration::from_secs(ticks) / u32::try_from(clock_ticks_per_second())?)
    }

    /// Its memory, in bytes: what several of its processes share counts once, and what they share
    /// with others in proportion.
    ///
    /// # Errors
    ///
    /// If the system does not tell.
    pub fn memory(&self) -> Result<u64> {
        let mut bytes = 0;
        for member in self.members()? {
            bytes += match proportional_set(member.id) {
                Ok(bytes) => bytes,
                // It has ended meanwhile, or is not ours to look at.
                Err(_) => member.resident_pages * page_size() as u64,
            };
        }
        Ok(bytes)
    }

    /// Lets its threads run on that CPU only, or wherever this process may run; what they start,
    /// too.
    ///
    /// # Errors
    ///
    /// If the system does not let them.
    #[cfg(target_os = "linux")]
    pub fn pin(&self, cpu: Option<usize>) -> Result<()> {
        use rustix::process::Pid;
        use rustix::thread::sched_setaffinity;

        let cpus = match cpu {
            Some(cpu) => only(cpu),
            None => allowed()?,
        };
        for member in self.members()? {
            for thread in numbers_in(Path::new(&format!("/proc/{}/task", member.id)))? {
                let thread = Pid::from_raw(i32::try_from(thread)?);
                match sched_setaffinity(thread, &cpus) {
                    // It has ended meanwhile.
                    Err(rustix::io::Errno::SRCH) => (),
                    done => done?,
                }
            }
        }
        Ok(())
    }

    /// As on Linux, which is the only system that can.
    ///
    /// # Errors
    ///
    /// Always.
    #[cfg(not(target_os = "linux"))]
    pub fn pin(&self, _: Option<usize>) -> Result<()> {
        Err("a process is pinned to a CPU on Linux only".into())
    }

    /// Its root first.
    fn members(&self) -> Result<Vec<Member>> {
        let mut others = Vec::new();
        for id in numbers_in(Path::new("/proc"))? {
            match Member::read(id) {
                Ok(member) => others.push(member),
                Err(error) if has_ended(&error) => (),
                Err(error) => return Err(error.into()),
            }
        }
        let mut found = Vec::new();
        let mut parents = vec![self.root];
        let at = others.iter().position(|member| member.id == self.root);
        found.push(others.swap_remove(at.ok_or("the process has ended")?));
        while let Some(parent) = parents.pop() {
            let children: Vec<_> = others.extract_if(.., |other| other.parent == parent).collect();
            parents.extend(children.iter().map(|child| child.id));
            found.extend(children);
        }
        Ok(found)
    }
}

/// The CPUs that this process may use.
///
/// # Errors
///
/// If the system does not tell.
#[cfg(target_os = "linux")]
pub fn cpus() -> Result<Vec<usize>> {
    let allowed = allowed()?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

/// None that could be chosen.
///
/// # Errors
///
/// Never.
#[cfg(not(target_os = "linux"))]
pub fn cpus() -> Result<Vec<usize>> {
    Ok(Vec::new())
}

#[cfg(target_os = "linux")]
fn allowed() -> Result<rustix::thread::CpuSet> {
    Ok(rustix::thread::sched_getaffinity(None)?)
}

#[cfg(target_os = "linux")]
fn only(cpu: usize) -> rustix::thread::CpuSet {
    let mut only = rustix::thread::CpuSet::new();
    only.set(cpu);
    only
}

/// How busy the machine was so far: the time of all CPUs, and how much of it was used.
///
/// # Errors
///
/// If the system does not tell.
pub fn machine() -> Result<(Duration, Duration)> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().ok_or("it is empty")?;
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).map(str::parse).collect::<std::result::Result<_, _>>()?;
    // The time of guests is part of the first two already.
    let all: u64 = ticks.iter().take(8).sum();
    // Idle, and waiting for a disk.
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    let second = u32::try_from(clock_ticks_per_second())?;
    Ok((Duration::from_secs(all) / second, Duration::from_secs(all - idle) / second))
}

/// A line of `/proc/ID/stat`.
#[derive(Debug)]
struct Member {
    id: u32,
    parent: u32,
    /// With those of children that it has waited for.
    ticks: u64,
    resident_pages: u64,
}

impl Member {
    fn read(id: u32) -> io::Result<Self> {
        let line = fs::read_to_string(format!("/proc/{id}/stat"))?;
        Self::parse(id, &line).ok_or_else(|| io::Error::other(format!("of process {id}: {line}")))
    }

    fn parse(id: u32, line: &str) -> Option<Self> {
        // The program's name is in parentheses, and may have some.
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let ticks = (11..=14).map(number).sum::<Option<u64>>()?;
        let parent = u32::try_from(number(1)?).ok()?;
        Some(Self { id, parent, ticks, resident_pages: number(21)? })
    }
}

/// A process that has ended while it was looked at.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn proportional_set(id: u32) -> Result<u64> {
    const KIB: u64 = 1024;
    let text = fs::read_to_string(format!("/proc/{id}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("no such line")?;
    Ok(line.split_whitespace().next().ok_or("no number")?.parse::<u64>()? * KIB)
}

fn numbers_in(folder: &Path) -> Result<Vec<u32>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if has_ended(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(number).collect())
}
