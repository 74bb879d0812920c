//! The README tells of the newest run in `docs/benchmarks/`, and that run's reports are those that
//! are made today. `LOCKKIT_BLESS=1` writes both.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

#[path = "report/sample.rs"]
mod sample;

use std::path::{Path, PathBuf};
use std::{env, fs};

use lockkit_compare::report;
use lockkit_compare::run::Run;

#[test]
fn the_readme_and_the_reports_are_of_the_newest_run() {
    let stale = stale(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    if env::var_os("LOCKKIT_BLESS").is_some() {
        write(&stale);
    } else {
        let paths: Vec<_> = stale.iter().map(|(path, _)| path).collect();
        assert!(paths.is_empty(), "not up to date, LOCKKIT_BLESS=1 writes them: {paths:?}");
    }
}

#[test]
fn the_newest_run_is_told_of() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let readme = || fs::read_to_string(root.join("README.md")).unwrap();
    let text = "# lockkit\n\n<!-- benchmarks: a note -->\n<!-- /benchmarks -->\n\n## More\n";
    fs::write(root.join("README.md"), text).unwrap();
    assert_eq!(stale(root), []);

    // One that was cut short leaves no run.
    for day in ["2026-11-21", "2026-09-30", "2026-12-24"] {
        fs::create_dir_all(root.join("docs/benchmarks").join(day)).unwrap();
    }
    let newest = root.join("docs/benchmarks/2026-11-21");
    sample::sample(0.0).write(&newest.join("run.json")).unwrap();
    fs::write(root.join("docs/benchmarks/2026-09-30/run.json"), "of an older version").unwrap();
    let names: Vec<_> = stale(root).into_iter().map(|(path, _)| path).collect();
    let files = ["summary.md", "report.html", "overview.svg"].map(|name| newest.join(name));
    assert_eq!(names, [&files[..], &[root.join("README.md")]].concat());
    write(&stale(root));
    assert_eq!(stale(root), []);
    assert!(readme().contains("](docs/benchmarks/2026-11-21/overview.svg)"), "{}", readme());
    assert!(readme().starts_with("# lockkit\n\n<!-- benchmarks: a note -->\n## "), "{}", readme());
    assert!(readme().ends_with("|\n\n<!-- /benchmarks -->\n\n## More\n"), "{}", readme());

    fs::write(root.join("README.md"), readme().replace("| redis |", "| redis, faster |")).unwrap();
    assert_eq!(stale(root).len(), 1);
}

/// Files that are not as they are to be, and how they are to be.
fn stale(root: &Path) -> Vec<(PathBuf, String)> {
    let mut expected = Vec::new();
    let mut part = String::new();
    if let Some(folder) = newest(&root.join("docs/benchmarks")) {
        let run = Run::read(&folder.join("run.json")).unwrap();
        let files = report::files(&run).unwrap();
        expected.extend(files.map(|(name, text)| (folder.join(name), text)));
        let name = folder.file_name().unwrap().to_str().unwrap();
        part = report::readme(&run, &format!("docs/benchmarks/{name}"));
    }
    let readme = root.join("README.md");
    let text = fs::read_to_string(&readme).unwrap();
    let (before, rest) = text.split_once("<!-- benchmarks").unwrap();
    let (note, rest) = rest.split_once("-->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /benchmarks -->").unwrap();
    let text = format!("{before}<!-- benchmarks{note}-->\n{part}<!-- /benchmarks -->{after}");
    expected.push((readme, text));
    let is_stale = |(path, text): &(PathBuf, String)| {
        fs::read_to_string(path).map_or(true, |found| found != *text)
    };
    expected.into_iter().filter(is_stale).collect()
}

fn write(files: &[(PathBuf, String)]) {
    for (path, text) in files {
        fs::write(path, text).unwrap();
    }
}

/// Folders are called after days. None as long as there is no run.
fn newest(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let folders = entries.map(|entry| entry.unwrap().path());
    folders.filter(|folder| folder.join("run.json").exists()).max()
}
