//! `summary.md`: all figures, for people who read text.

use std::fmt::Write as _;

use lockkit_bench::Unit;

use super::digest::{
    Behind, Group, Loss, Place, Row, TIMES, about, behind, greater_is_better, notes, placed, works,
};
use super::noise::noise;
use super::targets::{HEADS, Targets};
use crate::run::{Run, Setup};

pub(super) fn summary(run: &Run) -> String {
    let works = works(run);
    let mut text = format!("# Benchmark of {}\n\n", run.setup.date);
    text += &lead(run);
    text += &targets_table(&Targets::of(&works));
    text += "\n## Behind\n\n";
    text += &behind_table(&behind(&works));
    for work in &works {
        // Writing to a string does not fail.
        _ = writeln!(text, "\n## {}\n\n{}", heading(work.name), about(work.name));
        for place in &work.backends {
            text += &place_table(work.name, place);
        }
    }
    text + &everywhere(run) + &set_up(&run.setup)
}

/// What is to be known before any figure.
fn lead(run: &Run) -> String {
    let setup = &run.setup;
    let others = setup.noise * 100.0;
    let mut text = String::new();
    if let Some(reason) = noise(run) {
        text +=
            &format!("> **A noisy machine**: {reason}. Read differences below that with care.\n\n");
    }
    text + &format!(
        "{} on {} CPUs, {}; {} rounds, seed {}, {:.0} minutes; others used {others:.1} % of the CPU \
         time. Figures are medians of the rounds, with the least and the most in brackets. \
         `pinned` is with client and server on one CPU. Ratios are of the first figure. {FEW} {DISK}\n",
        cell(&setup.processor),
        setup.cpus,
        cell(&setup.system),
        setup.rounds,
        setup.seed,
        setup.seconds / 60.0,
    )
}

/// What is aimed at, and where it is missed.
fn targets_table(targets: &Targets) -> String {
    if targets.rows == 0 {
        return String::new();
    }
    let mut text = format!("\n## Targets\n\n{}\n", targets.lead());
    if !targets.missed.is_empty() {
        _ = write!(text, "\n{}{}", line(HEADS.map(cell)), line(HEADS.map(|_| "---".to_owned())));
    }
    text.extend(targets.missed.iter().map(|row| line(row.each_ref().map(|text| cell(text)))));
    text
}

/// All rows in which lockkit is behind: first those that all rounds tell.
fn behind_table(behind: &[Behind<'_>]) -> String {
    if behind.is_empty() {
        return "No peer is ahead of lockkit in any row, and uncontended the floor is within 1.10 \
                everywhere.\n"
            .into();
    }
    let (clear, unclear): (Vec<_>, Vec<_>) = behind.iter().partition(|one| one.is_clear());
    let mut text = format!("{BEHIND}\n");
    for (what, rows) in [(CLEAR, clear), (UNCLEAR, unclear)] {
        if rows.is_empty() {
            continue;
        }
        _ = write!(
            text,
            "\n{what}: {}.\n\n| workload | backend | row | lockkit's | behind | in |\n\
             | --- | --- | --- | --- | --- | --- |\n",
            rows.len()
        );
        for Behind { ours, theirs, figures } in rows {
            let figures: Vec<String> = figures.iter().map(loss).collect();
            let cells = [
                &ours.workload,
                &ours.backend,
                &row_name(&ours.case, placed(ours.placement)),
                &ours.subject,
                &theirs.subject,
                &figures.join("; "),
            ];
            text += &line(cells.map(|text| cell(text)));
        }
    }
    text
}

/// What is listed as behind.
pub(super) const BEHIND: &str = "Every row in which another library is ahead of lockkit in any \
    figure by more than 2 %, or lockkit is over 1.10 of the floor uncontended. Ratios are medians of \
    those of each round; ~ stands where some round says the opposite.";
pub(super) const FEW: &str = "A p99 is of 100 times in a round or more, and a p99.9 of 1,000: of \
    fewer it would be the longest.";
pub(super) const DISK: &str = "No server waits for a disk before it answers: where one does, each \
    request that writes takes as long as that besides, for all libraries alike. Files and SQLite do, as \
    they do for users.";
pub(super) const CLEAR: &str = "Behind in all rounds";
pub(super) const UNCLEAR: &str = "Behind in most rounds";

/// Such as `p50 41.2 µs against 31.0 µs (1.33×)`.
pub(super) fn loss(loss: &Loss<'_>) -> String {
    let Loss { name, ours, theirs, .. } = loss;
    let show = |spread: &lockkit_bench::Spread| spread.unit.show(spread.median);
    let unclear = if loss.is_unclear() { "~" } else { "" };
    match loss.factor() {
        factor if factor.is_finite() => {
            format!("{name} {} against {} ({unclear}{factor:.2}×)", show(ours), show(theirs))
        }
        _ => format!("{name} {} against {}", show(ours), show(theirs)),
    }
}

pub(super) fn row_name(case: &str, placed: &str) -> String {
    if case.is_empty() { placed.into() } else { format!("{case}, {placed}") }
}

fn place_table(workload: &str, place: &Place<'_>) -> String {
    let mut text = format!("\n### {}: {}\n\n", heading(workload), cell(place.backend));
    let names = names(&place.groups);
    if !place.groups.is_empty() {
        let first = ["case", "subject"].into_iter().map(str::to_owned);
        let last = ["of the floor", "of lockkit"].into_iter().map(str::to_owned);
        let head: Vec<_> = first.chain(names.iter().map(|it| cell(it.0))).chain(last).collect();
        text += &line(head.clone());
        text += &line(head.iter().map(|_| "---".to_owned()));
    }
    for group in &place.groups {
        for row in &group.rows {
            text += &line(cells(group, row, &names).into_iter().map(|text| cell(&text)));
        }
    }
    let notes = notes(workload, place);
    if !(place.absences.is_empty() && notes.is_empty()) {
        text.push('\n');
    }
    for (subject, note) in notes {
        _ = writeln!(text, "- {}: {note}", cell(subject));
    }
    for absence in &place.absences {
        _ = writeln!(text, "- {}: not measured, {}", cell(&absence.subject), cell(&absence.reason));
    }
    text
}

/// The figures of several groups, in the order of their first appearance; last, of how many times.
pub(super) fn names<'a, 'w>(groups: impl IntoIterator<Item = &'w Group<'a>>) -> Vec<(&'a str, Unit)>
where
    'a: 'w,
{
    let mut names: Vec<(&str, Unit)> = Vec::new();
    for (name, unit) in groups.into_iter().flat_map(Group::names) {
        if names.iter().all(|(other, _)| *other != name) {
            names.push((name, unit));
        }
    }
    names.sort_by_key(|(name, _)| *name == TIMES);
    names
}

/// The cells of a row, without marks of any language.
pub(super) fn cells(group: &Group<'_>, row: &Row<'_>, names: &[(&str, Unit)]) -> Vec<String> {
    let mut cells = vec![row_name(group.case, placed(group.placement)), row.entry.subject.clone()];
    let figure = |name| row.figure(name).map_or_else(|| "-".into(), |spread| spread.to_string());
    cells.extend(names.iter().map(|(name, _)| figure(name)));
    for ratio in [group.of_floor(row), group.of_lockkit(row)] {
        cells.push(ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")));
    }
    cells
}

/// What could not be measured in any workload.
fn everywhere(run: &Run) -> String {
    let absences = run.absences.iter().filter(|absence| absence.workload.is_none());
    let lines: Vec<String> = absences
        .map(|it| format!("- {}, {}: {}\n", cell(&it.backend), cell(&it.subject), cell(&it.reason)))
        .collect();
    match lines.is_empty() {
        true => String::new(),
        false => format!("\n## Not measured at all\n\n{}", lines.concat()),
    }
}

fn set_up(setup: &Setup) -> String {
    let mut text = String::from("\n## Set-up\n\n| what | version |\n| --- | --- |\n");
    for (what, version) in &setup.versions {
        text += &line([cell(what), cell(version)]);
    }
    _ = write!(
        text,
        "\nMemory: {}. The raw data is in `run.json`.\n",
        Unit::Bytes.show(setup.memory as f64)
    );
    text
}

/// Which way a figure is better, as a word.
pub(super) fn better(name: &str, unit: Unit) -> &'static str {
    if greater_is_better(name, unit) { "more is better" } else { "less is better" }
}

pub(super) fn heading(workload: &str) -> String {
    match workload {
        "hand-over" => "Hand-over".into(),
        "stock" => "Stock decrement".into(),
        other => {
            let mut letters = other.chars();
            let first = letters.next().map(|letter| letter.to_uppercase().to_string());
            first.unwrap_or_default() + &letters.as_str().replace('-', " ")
        }
    }
}

fn line(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {} |\n", cells.join(" | "))
}

/// A text that ends neither its cell nor its line, and marks nothing up.
fn cell(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '|' | '\\' | '*' | '_' | '`' | '<' | '[' | ']' => safe.extend(['\\', letter]),
            letter if letter.is_control() => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_in_its_cell() {
        assert_eq!(cell("a|b\nc *d*"), "a\\|b c \\*d\\*");
    }

    #[test]
    fn a_heading_reads_as_one() {
        assert_eq!(heading("many-names"), "Many names");
        assert_eq!(heading("hand-over"), "Hand-over");
    }
}
