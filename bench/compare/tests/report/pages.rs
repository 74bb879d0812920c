//! What a real browser shows of the page and of the picture.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use lockkit_compare::report;
use lockkit_compare::run::{Entry, Placement, Role, Run};
use lockkit_testkit::trial;
use serde_json::Value;
use tempfile::TempDir;

use crate::browser::{Browser, View};
use crate::sample::sample;

const DESK_LIGHT: View = View { width: 1280, scheme: "light" };
const DESK_DARK: View = View { width: 1280, scheme: "dark" };
const PHONE_LIGHT: View = View { width: 390, scheme: "light" };
const PHONE_DARK: View = View { width: 390, scheme: "dark" };

pub(crate) fn trials() -> Vec<Trial> {
    let page = |name: &str, view| {
        let find = lockkit_testkit::browser;
        trial(name, find, move |program| async move { the_page_in(&program, view).await })
    };
    vec![
        page("a_browser_shows_every_series_in_the_light", DESK_LIGHT),
        page("a_browser_shows_every_series_in_the_dark", DESK_DARK),
        page("a_phone_shows_every_series_in_the_light", PHONE_LIGHT),
        page("a_phone_shows_every_series_in_the_dark", PHONE_DARK),
        trial("the_picture_reads_on_any_ground", lockkit_testkit::browser, the_picture),
    ]
}

async fn the_page_in(program: &Path, view: View) {
    let run = sample(0.02);
    let (_folder, path) = written(&run);
    let mut browser = Browser::start(program).await;
    browser.open(&path.join("report.html"), view).await;
    for unfolded in [false, true] {
        let seen = look(&mut browser, unfolded).await;
        assert_eq!(seen["wide"], 0, "it is wider than the screen");
        assert_eq!(seen["scripts"], 0);
        every_series_is_seen(&run, &seen);
        for absence in &run.absences {
            let text = seen["text"].as_str().unwrap();
            assert!(text.contains(&absence.reason), "{absence:?}");
        }
    }
    is_quiet(&browser, &path.join("report.html"));
    browser.close().await;
}

async fn the_picture(program: PathBuf) {
    let (_folder, path) = written(&sample(0.02));
    let mut browser = Browser::start(&program).await;
    let mut grounds = Vec::new();
    for view in [DESK_LIGHT, DESK_DARK] {
        browser.open(&path.join("overview.svg"), view).await;
        let seen = look(&mut browser, false).await;
        is_quiet(&browser, &path.join("overview.svg"));
        assert!(seen["marks"].as_array().unwrap().len() > 30);
        grounds.push(seen["ground"].clone());
    }
    assert_ne!(grounds[0], grounds[1]);
    browser.close().await;
}

fn written(run: &Run) -> (TempDir, PathBuf) {
    let folder = TempDir::with_prefix("lockkit-report-").unwrap();
    report::write(run, folder.path()).unwrap();
    let path = fs::canonicalize(folder.path()).unwrap();
    (folder, path)
}

/// It asked for the file alone, and has nothing to complain about.
fn is_quiet(browser: &Browser, file: &Path) {
    for kind in ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"] {
        let told: Vec<_> = browser.told(kind).collect();
        assert!(told.is_empty(), "{told:?}");
    }
    let requests: Vec<_> = browser.told("Network.requestWillBeSent").collect();
    let urls: Vec<_> = requests.iter().map(|it| it["params"]["request"]["url"].as_str()).collect();
    assert_eq!(urls, [Some(&*format!("file://{}", file.display()))], "it needs something else");
}

/// What is seen, which is right in all that is right for any file.
async fn look(browser: &mut Browser, unfolded: bool) -> Value {
    let look = format!("({})({unfolded})", include_str!("look.js"));
    let seen = browser.evaluate(&look).await;
    for what in ["faint", "cut", "tiny", "mixed"] {
        let texts = seen[what].as_array().unwrap();
        assert!(texts.is_empty(), "{} texts are {what}: {texts:?}", texts.len());
    }
    assert_eq!(seen["unnamed"], 0, "a picture has no name or no description");
    seen
}

/// Each entry has a mark that is seen, in a colour that only its role has.
fn every_series_is_seen(run: &Run, seen: &Value) {
    let entries: HashMap<[&str; 5], &Entry> =
        run.entries.iter().map(|entry| (named(entry), entry)).collect();
    let mut found = HashSet::new();
    let mut roles: HashMap<&str, Role> = HashMap::new();
    for mark in seen["marks"].as_array().unwrap() {
        let keys = ["workload", "backend", "placed", "series", "case"];
        let name = keys.map(|key| mark[key].as_str().unwrap());
        assert_eq!(mark["isSeen"], true, "{mark}");
        let role = entries[&name].role;
        let color = mark["color"].as_str().unwrap();
        assert_eq!(*roles.entry(color).or_insert(role), role, "{mark}");
        found.insert(name);
    }
    let missing: Vec<_> = entries.keys().filter(|name| !found.contains(*name)).collect();
    assert!(missing.is_empty(), "{} entries are not seen: {missing:?}", missing.len());
}

fn named(entry: &Entry) -> [&str; 5] {
    let placed = match entry.placement {
        Placement::Pinned => "pinned",
        Placement::Unpinned => "unpinned",
    };
    [&entry.workload, &entry.backend, placed, &entry.subject, &entry.case]
}
