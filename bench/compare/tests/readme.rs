//! The README tells of the newest run in `docs/benchmarks/`, and that run's reports are those that
//! are made today. `LOCKKIT_BLESS=1` writes both.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::path::{Path, PathBuf};
use std::{env, fs};

use lockkit_compare::report;
use lockkit_compare::run::Run;

#[test]
fn the_readme_and_the_reports_are_of_the_newest_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let newest = newest(&root.join("docs/benchmarks"));
    let mut part = String::new();
    if let Some(folder) = &newest {
        let run = Run::read(&folder.join("run.json")).unwrap();
        for (name, text) in report::files(&run).unwrap() {
            check(&folder.join(name), &text);
        }
        let name = folder.file_name().unwrap().to_str().unwrap();
        part = report::readme(&run, &format!("docs/benchmarks/{name}"));
    }
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (before, rest) = readme.split_once("<!-- benchmarks").unwrap();
    let (note, rest) = rest.split_once("-->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /benchmarks -->").unwrap();
    let mark = format!("<!-- benchmarks{note}-->\n");
    check(&root.join("README.md"), &format!("{before}{mark}{part}<!-- /benchmarks -->{after}"));
}

/// Compares a file with what it is to be, or writes it.
fn check(path: &Path, expected: &str) {
    if env::var_os("LOCKKIT_BLESS").is_some() {
        fs::write(path, expected).unwrap();
    } else {
        let found = fs::read_to_string(path).unwrap_or_default();
        // A whole page would say less than its name.
        assert!(found == expected, "{} is not up to date: LOCKKIT_BLESS=1", path.display());
    }
}

/// Folders are called after days. None as long as there is no run.
fn newest(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let folders = entries.map(|entry| entry.unwrap().path());
    folders.filter(|folder| folder.join("run.json").exists()).max()
}
