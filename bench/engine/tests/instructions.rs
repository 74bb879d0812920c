//! Instructions for each operation, compared with those on record, so that a regression shows also
//! on a machine that is too noisy to time anything on.

#![expect(clippy::print_stdout, reason = "how far it is from failing")]

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use libtest_mimic::{Arguments, Completion, Trial};
use lockkit_bench_engine::{WORKS, Work};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// By how much a figure may be off, in both directions: what is better is to be put on record.
const TOLERANCE: f64 = 0.03;

fn main() -> ExitCode {
    let name = "operations_take_as_many_instructions_as_on_record";
    let trial = Trial::ignorable_test(name, || Ok(check()?));
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn check() -> Result<Completion> {
    if cfg!(not(target_os = "linux")) {
        return Ok(Completion::ignored_with("callgrind is used on Linux only"));
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return without_valgrind();
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.md");
    let (record, compiler) = (fs::read_to_string(&page)?, compiler()?);
    let is_blessed = env::var_os("LOCKKIT_BLESS").is_some();
    if !is_blessed && !record.contains(&compiler) {
        let reason = format!("{compiler} is not the compiler of the record, {}", page.display());
        return Ok(Completion::ignored_with(reason));
    }
    let program = build()?;
    let mut counts = Vec::new();
    for work in WORKS {
        counts.push((work, count(&program, work)?));
    }
    if is_blessed {
        fs::write(page, written(&compiler, &counts))?;
        return Ok(Completion::Completed);
    }
    let mut off = String::new();
    for (work, count) in &counts {
        let recorded =
            recorded(&record, work).ok_or_else(|| format!("no record of {}", work.name))?;
        let ratio = count / recorded;
        println!("{}: {count:.0}, {ratio:.3} of the record", work.name);
        if (ratio - 1.0).abs() > TOLERANCE {
            writeln!(off, "{} ({}): {count:.0}, not {recorded:.0}", work.name, work.what)?;
        }
    }
    match off.is_empty() {
        true => Ok(Completion::Completed),
        false => Err(format!("instructions that are not as on record:\n{off}\
            If that is meant: LOCKKIT_BLESS=1 cargo test -p lockkit-bench-engine --test instructions").into()),
    }
}

fn without_valgrind() -> Result<Completion> {
    let reason = "no valgrind in PATH: `scripts/test core` installs it";
    let required = env::var("LOCKKIT_REQUIRE_TOOLS").unwrap_or_default();
    match required.split(',').any(|tool| tool.trim() == "valgrind") {
        true => Err(reason.into()),
        false => Ok(Completion::ignored_with(reason)),
    }
}

/// Which compiler for which machine: with another one all figures are others.
fn compiler() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told = String::from_utf8(Command::new(rustc).arg("-vV").output()?.stdout)?;
    let version = told.lines().next().ok_or("the compiler does not tell its version")?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(format!("{version} for {}", host.ok_or("the compiler does not tell its host")?))
}

/// Builds the program as users would build theirs.
fn build() -> Result<PathBuf> {
    let name = "lockkit-bench-engine";
    let folder = Path::new(env!("CARGO_BIN_EXE_lockkit-bench-engine")).ancestors().nth(2);
    let folder = folder.ok_or("the program is in no folder of a build")?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--locked", "--release", "--package", name, "--bin", name]);
    let built = build.arg("--target-dir").arg(folder).status()?;
    if !built.success() {
        return Err(format!("{build:?}: {built}").into());
    }
    Ok(folder.join("release").join(name))
}

/// Instructions for doing the work once, without what it takes to begin.
fn count(program: &Path, work: &Work) -> Result<f64> {
    const FEW: u64 = 2_000;
    const MANY: u64 = 6_000;
    let more = run(program, work, MANY)? - run(program, work, FEW)?;
    Ok(more as f64 / (MANY - FEW) as f64)
}

fn run(program: &Path, work: &Work, times: u64) -> Result<i64> {
    let profile = program.with_extension("callgrind");
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--quiet").arg("--tool=callgrind");
    valgrind.arg(format!("--callgrind-out-file={}", profile.display()));
    let ended = valgrind.arg(program).args([work.name, &times.to_string()]).status()?;
    if !ended.success() {
        return Err(format!("{valgrind:?}: {ended}").into());
    }
    instructions_of(program, &fs::read_to_string(profile)?)
}

/// Sums up what a profile has for one object file. The C library's instructions are others with
/// each version and processor; what is asked of it is counted by `memory.rs`.
fn instructions_of(program: &Path, profile: &str) -> Result<i64> {
    let program = program.to_str().ok_or("the program's path is not UTF-8")?;
    // `(7) /lib/libc.so.6` the first time, `(7)` from then on.
    let number = profile
        .lines()
        .filter_map(|line| line.strip_prefix("ob=").or(line.strip_prefix("cob=")))
        .find_map(|object| object.strip_suffix(program)?.strip_suffix(' '))
        .ok_or("the profile does not have the program")?;
    let (mut is_program, mut is_call, mut sum) = (false, false, 0);
    for line in profile.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            is_program = object.starts_with(number);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*')) {
            // The line after a call has what the callee took, which is its own as well.
            if is_program && !std::mem::take(&mut is_call) {
                let count = line.split(' ').nth(1).ok_or("a line of the profile has no count")?;
                sum += count.parse::<i64>()?;
            }
            is_call = false;
        }
    }
    Ok(sum)
}

fn recorded(record: &str, work: &Work) -> Option<f64> {
    let row = record.lines().find_map(|line| line.strip_prefix(&format!("| {} |", work.name)))?;
    row.split('|').nth(1)?.trim().parse().ok()
}

fn written(compiler: &str, counts: &[(&Work, f64)]) -> String {
    let mut page = format!(
        "# Instructions per operation\n\n\
         What the engine and the runtime below it take, over a driver that answers at once, without what is\n\
         done in the C library. Counted by callgrind; `LOCKKIT_BLESS=1 cargo test -p lockkit-bench-engine\n\
         --test instructions` writes this page, and the same without the variable compares with it.\n\n\
         Built by {compiler}.\n\n\
         | work | what | instructions |\n| --- | --- | ---: |\n"
    );
    for (work, count) in counts {
        page += &format!("| {} | {} | {count:.0} |\n", work.name, work.what);
    }
    page
}
