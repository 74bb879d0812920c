//! What stands in the reports.

use std::fs;

use libtest_mimic::{Failed, Trial};
use lockkit_bench::{Spread, Unit};
use lockkit_compare::report;
use lockkit_compare::run::{Entry, Role, Run};
use tempfile::TempDir;

use crate::sample::sample;

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok::<(), Failed>(())
        })
    };
    vec![
        trial("the_summary_has_every_row", the_summary_has_every_row),
        trial("nothing_that_is_behind_is_hidden", nothing_that_is_behind_is_hidden),
        trial("targets_that_are_missed_are_listed", targets_that_are_missed_are_listed),
        trial(
            "who_is_behind_in_every_round_is_so_for_certain",
            who_is_behind_in_every_round_is_so_for_certain,
        ),
        trial("rounds_are_paired_by_their_number", rounds_are_paired_by_their_number),
        trial("a_quantile_of_too_few_stands_nowhere", a_quantile_of_too_few_stands_nowhere),
        trial("what_figures_do_not_tell_stands_beside_them", what_figures_do_not_tell),
        trial("a_run_that_is_nowhere_behind_says_so", a_run_that_is_nowhere_behind_says_so),
        trial("a_noisy_run_says_so_first", a_noisy_run_says_so_first),
        trial("the_page_is_one_file", the_page_is_one_file),
        trial("what_others_have_written_is_text", what_others_have_written_is_text),
        trial("the_same_run_makes_the_same_reports", the_same_run_makes_the_same_reports),
        trial("a_run_of_almost_nothing_has_reports", a_run_of_almost_nothing_has_reports),
        trial("the_part_of_the_readme_is_short", the_part_of_the_readme_is_short),
    ]
}

fn file(run: &Run, name: &str) -> String {
    let files = report::files(run).unwrap();
    files.into_iter().find(|(other, _)| *other == name).unwrap().1
}

fn the_summary_has_every_row() {
    let run = sample(0.02);
    let summary = file(&run, "summary.md");
    let mut at_all = 0;
    for entry in &run.entries {
        let heading = format!(": {}\n", entry.backend);
        let main_figure = &entry.rounds[0].figures[0];
        let values = entry.rounds.iter().map(|round| round.figures[0].value);
        let cell = Spread::of(main_figure.unit, values).unwrap().to_string();
        let placed = format!("{:?}", entry.placement).to_lowercase();
        let row = match &*entry.case {
            "" => format!("| {placed} | {} | {cell} |", entry.subject),
            case => format!("| {case}, {placed} | {} |", entry.subject),
        };
        let found =
            summary.split("\n### ").any(|part| part.contains(&heading) && part.contains(&row));
        assert!(found, "{row}");
        at_all += 1;
    }
    assert!(at_all > 400, "{at_all}");
    for absence in &run.absences {
        assert!(summary.contains(&absence.subject), "{absence:?}");
    }
    assert!(summary.contains("not measured, no answer within 20 s"));
    assert!(summary.contains("| Redis | 7.0.15 |"));
    // Redis, pinned: rslock takes 1.21 times the requests of the floor, within 10 %.
    let rslock = summary.lines().find(|line| line.starts_with("| pinned | rslock |")).unwrap();
    let cells: Vec<&str> = rslock.split(" | ").collect();
    let of_floor: f64 = cells[5].parse().unwrap();
    assert!((1.08..1.34).contains(&of_floor), "{rslock}");
}

/// All pairs, in another way than the report finds them.
fn nothing_that_is_behind_is_hidden() {
    let run = sample(0.02);
    let (summary, page) = (file(&run, "summary.md"), file(&run, "report.html"));
    let behind = summary.split("\n## ").find(|part| part.starts_with("Behind")).unwrap();
    let rows: Vec<&str> = behind.lines().filter(|line| line.contains(" against ")).collect();
    let (mut expected, mut ahead) = (0, Vec::new());
    for ours in run.entries.iter().filter(|entry| entry.role == Role::Lockkit) {
        for theirs in run.entries.iter().filter(|entry| is_beside(ours, entry)) {
            let worse: Vec<&str> =
                names(ours).filter(|name| is_behind(ours, theirs, name)).collect();
            if worse.is_empty() {
                continue;
            }
            expected += 1;
            if !ahead.iter().any(|other| std::ptr::eq(*other, theirs)) {
                ahead.push(theirs);
            }
            let placed = format!("{:?}", ours.placement).to_lowercase();
            let case =
                if ours.case.is_empty() { placed } else { format!("{}, {placed}", ours.case) };
            let row = format!(
                "| {} | {} | {case} | {} | {} | ",
                ours.workload, ours.backend, ours.subject, theirs.subject
            );
            let row = rows.iter().find(|line| line.starts_with(&row));
            let row = row.unwrap_or_else(|| panic!("{} of {ours:?}", theirs.subject));
            for name in worse {
                assert!(row.contains(&format!("{name} ")), "{name}: {row}");
            }
        }
    }
    assert!(expected > 40, "{expected}");
    assert_eq!(rows.len(), expected);
    assert_eq!(page.matches(" against ").count(), summary.matches(" against ").count());
    // Each is marked in the tables as well.
    assert_eq!(page.matches("class=\"ahead\"").count(), ahead.len());
}

/// In another way than the report finds them: uncontended, and the hand-over on Redis and etcd.
fn targets_that_are_missed_are_listed() {
    let run = sample(0.02);
    let (summary, page) = (file(&run, "summary.md"), file(&run, "report.html"));
    let targets = summary.split("\n## ").find(|part| part.starts_with("Targets")).unwrap();
    let rows: Vec<&str> = targets.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    let find = |ours: &Entry, backend: &str, subject: &str| {
        let is_it = |entry: &&Entry| {
            (&*entry.workload, &*entry.backend, &*entry.subject, entry.placement)
                == (&*ours.workload, backend, subject, ours.placement)
        };
        run.entries.iter().find(is_it)
    };
    let mut missed = 0;
    for ours in run.entries.iter().filter(|entry| entry.role == Role::Lockkit) {
        let (theirs, most, target) = match (&*ours.workload, &*ours.backend) {
            ("uncontended", backend) => {
                let floor = ours.subject.replace("lockkit", "floor").replace(", fair", "");
                (find(ours, backend, &floor), 1.10, "uncontended, of the floor")
            }
            ("hand-over", "redis") => {
                let theirs = find(ours, "redis", "python-redis-lock");
                (theirs, 0.25, "hand-over, of that of python-redis-lock")
            }
            ("hand-over", "etcd") => {
                let theirs = find(ours, "zookeeper", "Curator InterProcessMutex");
                (theirs, 0.5, "hand-over, of that of Curator InterProcessMutex")
            }
            _ => continue,
        };
        let Some(theirs) = theirs else { continue };
        let ours_in_each = values(ours, "p50").into_iter().zip(values(theirs, "p50"));
        let ratio = median(ours_in_each.map(|(ours, theirs)| ours / theirs).collect());
        let placed = format!("{:?}", ours.placement).to_lowercase();
        let start =
            format!("| {target} | {most:.2} | {} | {placed} | {} | ", ours.backend, ours.subject);
        let row = rows.iter().any(|row| row.starts_with(&start));
        assert_eq!(row, ratio > most, "{start}{ratio}");
        missed += usize::from(ratio > most);
    }
    assert!(missed > 3, "{missed}");
    // Those of a thousand waiters, which the sample reaches or not as its figures have it.
    assert!(rows.len() >= missed);
    for row in &rows {
        let subject = row.split(" | ").nth(4).unwrap();
        assert!(subject.starts_with("lockkit"), "{row}");
    }
    let section = page.split("<section id=\"targets\">").nth(1).unwrap();
    let section = section.split("</section>").next().unwrap();
    assert_eq!(section.matches("<tr>").count(), rows.len() + 1);
}

fn is_beside(ours: &Entry, theirs: &Entry) -> bool {
    // A session's floor is under sessions, and the other under all else.
    let is_of_its_kind = theirs.subject.ends_with("session") == ours.subject.ends_with("session");
    theirs.role != Role::Lockkit
        && (theirs.role == Role::Peer || is_of_its_kind)
        && (&ours.workload, &ours.backend, &ours.case, ours.placement)
            == (&theirs.workload, &theirs.backend, &theirs.case, theirs.placement)
}

fn names(entry: &Entry) -> impl Iterator<Item = &str> {
    entry.rounds[0].figures.iter().map(|figure| &*figure.name)
}

fn is_behind(ours: &Entry, theirs: &Entry, name: &str) -> bool {
    let ratio = match (values(ours, name), values(theirs, name)) {
        (ours, theirs) if ours.len() == theirs.len() => {
            median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect())
        }
        (ours, theirs) => median(ours) / median(theirs),
    };
    if theirs.role == Role::Floor {
        return ours.workload == "uncontended" && name == "p50" && ratio > 1.10;
    }
    // As the reports say: what is nearer than that is the same.
    match name {
        "grants" | "pairs" | "sold" | "Jain" => 1.0 / ratio > 1.02,
        _ => ratio > 1.02,
    }
}

fn values(entry: &Entry, name: &str) -> Vec<f64> {
    let figures = entry.rounds.iter().flat_map(|round| &round.figures);
    figures.filter(|figure| figure.name == name).map(|figure| figure.value).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// However far the rounds lie apart, since they do so for both.
fn who_is_behind_in_every_round_is_so_for_certain() {
    let mut run = sample(0.02);
    for entry in &mut run.entries {
        let factor = if entry.role == Role::Lockkit { 1.5 } else { 1.0 };
        for (number, round) in entry.rounds.iter_mut().enumerate() {
            let p50 = round.figures.iter_mut().find(|figure| figure.name == "p50");
            p50.into_iter().for_each(|figure| figure.value = factor * 4_f64.powi(number as i32));
        }
    }
    let summary = file(&run, "summary.md");
    assert!(summary.contains("(1.50×)"));
    assert!(!summary.contains("(~1.50×)"));
}

/// Where a figure is missing in another round of each, however many there are.
fn rounds_are_paired_by_their_number() {
    let mut run = sample(0.02);
    for entry in &mut run.entries {
        let is_ours = entry.role == Role::Lockkit;
        let (factor, without) = if is_ours { (1.5, 0) } else { (1.0, entry.rounds.len() - 1) };
        for (number, round) in entry.rounds.iter_mut().enumerate() {
            let p99 = round.figures.iter_mut().find(|figure| figure.name == "p99");
            p99.into_iter().for_each(|figure| figure.value = factor * 4_f64.powi(number as i32));
        }
        entry.rounds[without].figures.retain(|figure| figure.name != "p99");
    }
    let summary = file(&run, "summary.md");
    let losses = summary.lines().flat_map(|line| line.split(['|', ';'])).map(str::trim);
    let is_p99 = |loss: &&str| loss.starts_with("p99 ") && loss.contains(" against ");
    let p99s: Vec<_> = losses.filter(is_p99).collect();
    assert!(p99s.len() > 20, "{p99s:?}");
    assert!(p99s.iter().all(|loss| loss.ends_with("(1.50×)")), "{p99s:?}");
}

/// Neither printed nor drawn nor compared: four hand-overs have no p99, whether a run says that they
/// were four or, as older ones, does not.
fn a_quantile_of_too_few_stands_nowhere() {
    for times in [Some(4), None] {
        let mut run = sample(0.02);
        let few = |entry: &&mut Entry| entry.workload == "hand-over" && entry.subject != "rslock";
        for round in run.entries.iter_mut().filter(few).flat_map(|entry| &mut entry.rounds) {
            let median = round.figures[0].value;
            let told = [(0.5, median), (0.75, median * 1.1), (0.9, median * 1.2)];
            let longest = [0.99, 0.999, 1.0].map(|share| (share, median * 1.2));
            round.distribution = [&told[..], &longest].concat();
            round.figures[1..].iter_mut().for_each(|figure| figure.value = median * 1.2);
            round.times = times;
        }
        let (summary, page) = (file(&run, "summary.md"), file(&run, "report.html"));
        let part = |heading: &str| summary.split("\n### ").find(|it| it.starts_with(heading));
        let row = |part: &str, subject: &str| -> Vec<String> {
            let row = part.lines().find(|line| line.contains(&format!("| {subject} |")));
            row.unwrap().split(" | ").map(str::to_owned).collect()
        };
        assert!(!part("Hand-over: postgres").unwrap().contains("p99"));
        // Beside one that has them.
        let redis = part("Hand-over: redis\n").unwrap();
        assert_eq!(row(redis, "lockkit")[3..5], ["-", "-"]);
        assert!(row(redis, "rslock")[3..5].iter().all(|cell| cell.contains("ms")), "{redis}");
        let behind = summary.split("\n## ").find(|part| part.starts_with("Behind")).unwrap();
        let rows: Vec<_> = behind.lines().filter(|it| it.starts_with("| hand-over |")).collect();
        assert!(!rows.is_empty() && rows.iter().all(|row| !row.contains("p99")), "{rows:?}");
        for (what, is_there) in [("rslock p99", true), ("PgAdvisoryLock p99", false)] {
            let section = page.split("<section").find(|it| it.starts_with(" id=\"hand-over\""));
            assert_eq!(section.unwrap().contains(what), is_there, "{what}");
        }
    }
}

fn what_figures_do_not_tell() {
    let run = sample(0.02);
    let (summary, page) = (file(&run, "summary.md"), file(&run, "report.html"));
    let notes = [
        ("Hand-over: sqlite\n", "lockkit: All clients are of one process"),
        ("Contended: sqlite\n", "lockkit: All clients are of one process"),
        ("Hand-over: file\n", "lockkit: All clients are of one process"),
        ("Contended: file\n", "lockkit: All clients are of one process"),
        ("Uncontended: zookeeper\n", "zookeeper-client lock: Its release is a drop"),
        ("Contended: zookeeper\n", "zookeeper-client lock: Its release is a drop"),
    ];
    let mut parts = summary.split("\n### ");
    for (heading, note) in notes {
        let part = parts.clone().find(|part| part.starts_with(heading)).unwrap();
        assert!(part.contains(&format!("\n- {note}")), "{heading}: {part}");
        assert!(page.contains(note), "{note}");
    }
    let is_noted = |part: &str| notes.iter().any(|(heading, _)| part.starts_with(heading));
    assert!(parts.all(|part| is_noted(part) || !part.contains("are of one process")));
    // Once for each place.
    assert_eq!(page.matches("data-note=").count(), summary.matches("\n- ").count() - told(&run));
}

/// How many lines tell what is not measured.
fn told(run: &Run) -> usize {
    let summary = file(run, "summary.md");
    let everywhere = run.absences.iter().filter(|absence| absence.workload.is_none()).count();
    summary.matches(": not measured, ").count() + everywhere
}

fn a_run_that_is_nowhere_behind_says_so() {
    let mut run = sample(0.02);
    run.entries.retain(|entry| entry.role == Role::Lockkit);
    for name in ["summary.md", "report.html"] {
        assert!(file(&run, name).contains("No peer is ahead of lockkit in any row"), "{name}");
    }
}

fn a_noisy_run_says_so_first() {
    for (name, first_figure) in [("summary.md", "## Behind"), ("report.html", "<svg")] {
        let quiet = file(&sample(0.02), name);
        assert!(!quiet.contains("noisy machine"), "{name}");
        let noisy = file(&sample(0.31), name);
        let (before, _) = noisy.split_once(first_figure).unwrap();
        assert!(before.contains("noisy machine") && before.contains("31 %"), "{name}");
    }
    let mut unsteady = sample(0.02);
    for entry in unsteady.entries.iter_mut().filter(|entry| entry.role == Role::Floor) {
        for figure in &mut entry.rounds[0].figures {
            figure.value *= 1.5;
        }
    }
    for (name, first_figure) in [("summary.md", "\n## Behind"), ("report.html", "<svg")] {
        let unsteady = file(&unsteady, name);
        let (before, _) = unsteady.split_once(first_figure).unwrap();
        assert!(before.contains("noisy machine") && before.contains("sent by hand, lay"), "{name}");
    }
    assert!(!report::readme(&sample(0.02), "there").contains("noisy"));
    assert!(report::readme(&sample(0.31), "there").contains("on a noisy machine"));
}

fn the_page_is_one_file() {
    let page = file(&sample(0.02), "report.html");
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "src=", "url(", "@import", "<link", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

fn what_others_have_written_is_text() {
    let mut run = sample(0.02);
    let evil = "<img src=x onerror=alert(1)> | [x](y)";
    run.setup.processor = evil.into();
    for entry in run.entries.iter_mut().filter(|entry| entry.subject == "rslock") {
        entry.subject = evil.into();
    }
    run.absences[0].reason = evil.into();
    let page = file(&run, "report.html");
    assert!(!page.contains("<img") && page.contains("&lt;img"));
    let summary = file(&run, "summary.md");
    assert!(
        !summary.contains(evil)
            && summary.contains("\\<img src=x onerror=alert(1)> \\| \\[x\\](y)")
    );
}

fn the_same_run_makes_the_same_reports() {
    let folder = TempDir::with_prefix("lockkit-report-").unwrap();
    let run = sample(0.02);
    run.write(&folder.path().join("run.json")).unwrap();
    let read = Run::read(&folder.path().join("run.json")).unwrap();
    report::write(&read, folder.path()).unwrap();
    for (name, text) in report::files(&run).unwrap() {
        assert!(fs::read_to_string(folder.path().join(name)).unwrap() == text, "{name}");
    }
}

/// A round that was cut short, figures of nothing, a workload that nobody knows.
fn a_run_of_almost_nothing_has_reports() {
    let mut run = sample(0.02);
    run.entries.truncate(1);
    run.entries[0].workload = "something new".into();
    run.entries[0].rounds.truncate(1);
    for figure in &mut run.entries[0].rounds[0].figures {
        (figure.value, figure.unit) = (0.0, Unit::Bytes);
    }
    run.entries[0].rounds[0].distribution.clear();
    assert!(file(&run, "summary.md").contains("## Something new"));
    assert!(file(&run, "report.html").contains("Something new"));
    run.entries.clear();
    run.absences.clear();
    assert!(file(&run, "report.html").contains("</html>"));
    assert!(!report::readme(&run, "there").contains("| - |"));
}

fn the_part_of_the_readme_is_short() {
    let part = report::readme(&sample(0.02), "docs/benchmarks/2026-11-21");
    let lines: Vec<&str> = part.trim_end().lines().collect();
    assert!(lines.len() <= 15, "{part}");
    assert!(part.contains("(docs/benchmarks/2026-11-21/overview.svg)"), "{part}");
    assert!(part.contains("| redis | "), "{part}");
    // What was measured of the floor stands there to two digits.
    let redis = lines.iter().find(|line| line.starts_with("| redis |")).unwrap();
    let of_floor: f64 = redis.split(" | ").nth(2).unwrap().parse().unwrap();
    assert!((0.96..1.20).contains(&of_floor), "{redis}");
}
