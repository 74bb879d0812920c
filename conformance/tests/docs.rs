//! The documents say what the code says.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use lockkit_conformance::{Check, Suite};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `LOCKKIT_BLESS=1` writes it.
#[test]
fn the_list_of_checks_is_up_to_date() {
    let mut list = String::new();
    for (level, heading) in
        [("driver", "The driver alone"), ("user", "Through the engine, as an application")]
    {
        _ = writeln!(
            list,
            "# {heading}\n\n| check | what is so | only with |\n| --- | --- | --- |"
        );
        for check in Suite::checks() {
            if let Some(name) = check.name().strip_prefix(level) {
                let name = name.trim_start_matches(':');
                _ = writeln!(list, "| `{name}` | {} | {} |", check.asserts(), needs(check));
            }
        }
        list.push('\n');
    }
    let path = package().join("CHECKS.md");
    if std::env::var_os("LOCKKIT_BLESS").is_some() {
        fs::write(path, list).unwrap();
    } else {
        let committed = fs::read_to_string(path).unwrap();
        assert!(list == committed, "CHECKS.md is out of date: LOCKKIT_BLESS=1 writes it anew");
    }
}

fn needs(check: &Check) -> String {
    let needs: Vec<_> = check.needs().iter().map(ToString::to_string).collect();
    needs.join(", ")
}

#[test]
fn names_of_checks_are_unique() {
    let mut names: Vec<_> = Suite::checks().iter().map(Check::name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// The contract names the check behind each of its rules.
#[test]
fn the_checks_that_the_contract_names_exist() {
    for (file, contract) in [("driver.rs", "pub trait Driver"), ("inspect.rs", "pub trait Inspect")]
    {
        let path = package().join("../lockkit-core/src").join(file);
        let source = fs::read_to_string(path).unwrap();
        let rules = source.split(contract).next().unwrap();
        let names: Vec<_> = rules
            .split("(`")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'))
            .flat_map(|(names, _)| names.split('`'))
            .filter(|word| word.contains('_') && word.chars().all(|c| c.is_lowercase() || c == '_'))
            .filter(|word| *word != "try_acquire")
            .collect();
        assert!(names.len() > 10, "the contract in {file} names only {names:?}");
        for name in names {
            let full = format!("driver::{name}");
            let exists = Suite::checks().iter().any(|check| check.name() == full);
            assert!(exists, "the contract in {file} names a check `{name}`, which does not exist");
        }
    }
}

/// The guide shows each file of the test `writing_a_driver` whole, in pieces.
#[test]
fn the_guide_to_writing_a_driver_is_its_code() {
    let guide = fs::read_to_string(package().join("../docs/writing-a-driver.md")).unwrap();
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for block in guide.split("```rust ").skip(1) {
        let (file, rest) = block.split_once('\n').unwrap();
        let (code, _) = rest.split_once("\n```\n").unwrap();
        _ = writeln!(files.entry(file).or_default(), "{code}");
    }
    let folder: PathBuf = package().join("tests/writing_a_driver");
    for entry in fs::read_dir(&folder).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let code = fs::read_to_string(folder.join(&file)).unwrap();
        let shown = files.remove(&*file).unwrap_or_default();
        let lines = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.trim().is_empty()).map(String::from).collect()
        };
        assert_eq!(lines(&shown), lines(&code), "{file} differs from what the guide shows");
    }
    assert!(files.is_empty(), "the guide shows files that are not there: {:?}", files.keys());
}

/// Documentation is published without the files of the repository: a link to one leads nowhere.
#[test]
fn comments_link_to_no_file() {
    let is_file = |link: &&str| {
        let is_elsewhere = link.starts_with("http:") || link.starts_with("https:");
        !is_elsewhere && (link.contains('/') || link.contains(".md"))
    };
    let (mut folders, mut comments, mut dead) = (vec![package().join("..")], 0, Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                folders.push(path);
            } else if name.ends_with(".rs") {
                let source = fs::read_to_string(&path).unwrap();
                let lines = source.lines().map(str::trim_start);
                for line in lines.filter(|line| line.starts_with("//!") || line.starts_with("///"))
                {
                    comments += 1;
                    let inline = line.split("](").skip(1).map(|rest| (rest, ')'));
                    let apart = line.split("]: ").skip(1).map(|rest| (rest, ' '));
                    let links =
                        inline.chain(apart).filter_map(|(rest, end)| rest.split(end).next());
                    dead.extend(links.filter(is_file).map(|link| format!("{name}: {link}")));
                }
            }
        }
    }
    assert!(comments > 1000, "only {comments} lines of comments were found");
    assert!(dead.is_empty(), "{dead:#?}");
}

/// The guides are published in the crate `lockkit`, where links between them lead to its modules.
#[test]
fn guides_link_to_no_file() {
    let crate_ = package().join("../lockkit");
    let links = fs::read_to_string(crate_.join("src/links.md")).unwrap();
    let guides = fs::read_to_string(crate_.join("src/guide.rs")).unwrap();
    let pages: Vec<_> = guides.split("include_str!(\"../docs/").skip(1).collect();
    assert!(pages.len() > 10, "only {} guides were found", pages.len());
    let mut dead = Vec::new();
    for page in pages {
        let page = page.split('"').next().unwrap();
        let text = fs::read_to_string(crate_.join("docs").join(page)).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !link.starts_with("https://") && !link.starts_with('#') {
                dead.push(format!("{page}: {link}"));
            }
        }
        for label in text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")) {
            if !links.contains(&format!("[{}]: ", label.0)) {
                dead.push(format!("{page}: {} is not in links.md", label.0));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}
