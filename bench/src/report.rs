//! Tables for people.

use unicode_width::UnicodeWidthStr as _;

use crate::{Outcome, Row};

/// A heading, and a line for each case of each subject: medians, with the spread over the rounds in
/// brackets. A subject that could not be measured stands there with the reason.
pub fn table(outcome: &Outcome) -> String {
    let mut names: Vec<&str> = Vec::new();
    for summary in rows(outcome).flat_map(|row| &row.summaries) {
        if !names.contains(&summary.name) {
            names.push(summary.name);
        }
    }
    let has_cases = rows(outcome).any(|row| !row.case.is_empty());
    let mut lines = vec![Line::Cells(
        [""].into_iter()
            .chain(has_cases.then_some(""))
            .chain(names.iter().copied())
            .map(str::to_uppercase)
            .collect(),
    )];
    for subject in &outcome.subjects {
        match &subject.rows {
            Err(reason) => lines.push(Line::Reason(subject.label.clone(), reason.clone())),
            Ok(rows) => lines.extend(rows.iter().map(|row| {
                let mut cells = vec![subject.label.clone()];
                cells.extend(has_cases.then(|| row.case.clone()));
                cells.extend(names.iter().map(|name| {
                    let summary = row.summaries.iter().find(|summary| summary.name == *name);
                    summary.map_or_else(|| "-".into(), ToString::to_string)
                }));
                Line::Cells(cells)
            })),
        }
    }
    format!("{}: {}\n{}", outcome.workload, outcome.about, aligned(&lines))
}

fn rows(outcome: &Outcome) -> impl Iterator<Item = &Row> {
    outcome.subjects.iter().filter_map(|subject| subject.rows.as_ref().ok()).flatten()
}

enum Line {
    Cells(Vec<String>),
    /// Which subject could not be measured, and why.
    Reason(String, String),
}

fn aligned(lines: &[Line]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for line in lines {
        let cells = match line {
            Line::Cells(cells) => &cells[..],
            Line::Reason(label, _) => std::slice::from_ref(label),
        };
        widths.resize(widths.len().max(cells.len()), 0);
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.width());
        }
    }
    let mut text = String::new();
    for line in lines {
        let cells = match line {
            Line::Cells(cells) => cells.clone(),
            Line::Reason(label, reason) => vec![label.clone(), format!("not measured: {reason}")],
        };
        let mut written = String::from(" ");
        // A reason may stand where nobody has a figure.
        for (cell, width) in cells.iter().zip(widths.iter().chain([&0])) {
            written += " ";
            written += cell;
            written.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.width()) + 1));
        }
        text += written.trim_end();
        text.push('\n');
    }
    text
}
