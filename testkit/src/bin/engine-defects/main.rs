//! Shows that the engine's tests can fail: plants one defect at a time in a copy of the engine and
//! sees the named test go red.
//!
//! `cargo run -p lockkit-testkit --bin engine-defects` compares what it saw with
//! `lockkit-core/DEFECTS.md`; with `LOCKKIT_BLESS=1` it writes that file.
#![expect(clippy::print_stdout, reason = "a tool that reports what it does")]

mod catalogue;

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use catalogue::DEFECTS;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("engine-defects: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let copy = copy_core(&root)?;
    let mut table = String::from(
        "# Defects of the engine, and the tests that notice them\n\n\
         Each is planted in a copy of the engine by `engine-defects` of the test kit, which writes this\n\
         page. The sound engine passes all tests.\n\n| defect | noticed by |\n| --- | --- |\n",
    );
    let failing = failing(&copy)?;
    if !failing.is_empty() {
        return Err(format!("the sound engine fails: {}", failing.join(", ")).into());
    }
    for defect in DEFECTS {
        let path = copy.join("lockkit-core/src").join(defect.file);
        let sound = fs::read_to_string(&path)?;
        if sound.matches(defect.sound).count() != 1 {
            return Err(format!("{:?} does not stand once in {}", defect.sound, defect.file).into());
        }
        fs::write(&path, sound.replace(defect.sound, defect.broken))?;
        let passes = passes(&copy, defect.test);
        fs::write(&path, sound)?;
        if passes? {
            return Err(format!("not noticed by {}: {}", defect.test, defect.what).into());
        }
        println!("{}: {}", defect.what, defect.test);
        writeln!(table, "| {} | `{}` |", defect.what, defect.test)?;
    }
    let page = root.join("lockkit-core/DEFECTS.md");
    if env::var_os("LOCKKIT_BLESS").is_some() {
        fs::write(page, table)?;
    } else if fs::read_to_string(page)? != table {
        return Err("lockkit-core/DEFECTS.md is not up to date: LOCKKIT_BLESS=1 writes it".into());
    }
    Ok(())
}

/// A workspace with the core only, built in a folder of its own.
fn copy_core(root: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let copy = target.join("engine-defects");
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let only_core = |manifest: &str, list: &str| {
        let (before, rest) = manifest.split_once(list)?;
        let (_, after) = rest.split_once(']')?;
        Some([before, list, "\"lockkit-core\"]", after].concat())
    };
    let manifest = only_core(&manifest, "\nmembers = [").ok_or("no members")?;
    let manifest = only_core(&manifest, "\ndefault-members = [").ok_or("no default members")?;
    // An earlier run may have copied what is no longer there.
    if copy.join("lockkit-core").exists() {
        fs::remove_dir_all(copy.join("lockkit-core"))?;
    }
    copy_folder(&root.join("lockkit-core"), &copy.join("lockkit-core"))?;
    fs::write(copy.join("Cargo.toml"), manifest)?;
    fs::copy(root.join("Cargo.lock"), copy.join("Cargo.lock"))?;
    Ok(copy)
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Which tests of the engine do not pass.
fn failing(copy: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let (text, success) = test(copy, &["--lib", "--tests"], "", "120")?;
    let named = |line: &str| {
        let path = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned();
        path.rsplit("::").next().map(String::from)
    };
    let mut failing: Vec<_> = text.lines().filter_map(named).collect();
    if !success && failing.is_empty() {
        failing.push("one that does not end".into());
    }
    Ok(failing)
}

/// Whether one test of the engine passes.
fn passes(copy: &Path, name: &str) -> Result<bool, Box<dyn Error>> {
    let definition = format!("fn {name}()");
    let mut of_file = vec!["--lib".into()];
    for entry in fs::read_dir(copy.join("lockkit-core/tests"))? {
        let path = entry?.path();
        if has(&path, &definition)? {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            of_file = vec!["--test".into(), stem.ok_or("a file without a name")?.to_owned()];
        }
    }
    let of_file = of_file.iter().map(String::as_str).collect::<Vec<_>>();
    let (text, _) = test(copy, &of_file, name, "20")?;
    if text.contains("running 0 tests") {
        return Err(format!("there is no test {name}").into());
    }
    // Cut off before it began, it has noticed nothing.
    if !text.lines().any(|line| line.starts_with("running ")) {
        return Err(format!("{name} was not run: {text}").into());
    }
    let passed = format!("{name} ... ok");
    Ok(text.lines().any(|line| line.ends_with(&passed)))
}

/// Whether a file, or one of those in a folder, has the text in it.
fn has(path: &Path, text: &str) -> Result<bool, Box<dyn Error>> {
    if !path.is_dir() {
        return Ok(fs::read_to_string(path)?.contains(text));
    }
    for entry in fs::read_dir(path)? {
        if has(&entry?.path(), text)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Builds tests of the engine and runs them. Returns what they print, and whether all passed. A
/// broken engine may wait for ever, so a run is cut off after that many seconds.
fn test(
    copy: &Path,
    targets: &[&str],
    name: &str,
    limit: &str,
) -> Result<(String, bool), Box<dyn Error>> {
    let cargo = |limit: &str| {
        let mut command = Command::new("timeout");
        command
            .args([limit, env!("CARGO"), "test", "--offline", "--no-fail-fast"])
            .args(["-p", "lockkit-core"])
            .args(targets)
            .env("CARGO_TARGET_DIR", copy.join("target"))
            .env_remove("CARGO_MANIFEST_DIR")
            .current_dir(copy);
        command
    };
    let built = cargo("600").arg("--no-run").output()?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned().into());
    }
    let output = cargo(limit).args(["--", name]).output()?;
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
}
