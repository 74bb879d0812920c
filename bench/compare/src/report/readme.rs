//! What the README tells of the newest run, and its picture.

use std::fmt::Write as _;

use lockkit_bench::{Result, Spread};
use maud::{PreEscaped, html};

use super::canvas::Look;
use super::digest::{Group, Place, Row, Work, place_of, works};
use super::gallery::Looks;
use super::noise::noise;
use super::page::{OVERVIEW, PLOT_STYLE};
use super::pictures::WIDTH;
use crate::run::{Placement, Role, Run};

/// No more backends than this are in the README: the plain ones, and all in the summary.
const ROWS: usize = 9;

/// The part of the README that tells of a run, whose folder is `folder` as links have it.
pub fn readme(run: &Run, folder: &str) -> String {
    let works = works(run);
    let mut text = format!(
        "## What it costs\n\n[![Medians of each backend, the floor under it and other libraries]\
         ({folder}/overview.svg)]({folder}/summary.md) p50 with client and server on one CPU, {}{}, with \
         servers that do not wait for a disk; ratios to the same requests sent by hand, and to the best other library. [All workloads, \
         and where lockkit is behind]({folder}/summary.md).\n\n\
         | backend | acquire and release | of the floor | of the best other | hand-over | of the best other |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        run.setup.date,
        if noise(run).is_some() { ", on a noisy machine" } else { "" },
    );
    for backend in backends(&works).into_iter().take(ROWS) {
        let [uncontended, hand_over] = OVERVIEW.map(|(name, _)| found(&works, name, backend));
        let cells = [
            backend.to_owned(),
            median(uncontended),
            of_floor(uncontended),
            of_best(uncontended),
            median(hand_over),
            of_best(hand_over),
        ];
        // Writing to a string does not fail.
        _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text + "\n"
}

/// The plain ones: no ensembles, no sessions.
fn backends<'a>(works: &[Work<'a>]) -> Vec<&'a str> {
    let measured = works.iter().filter(|work| work.name == OVERVIEW[0].0);
    let places = measured.flat_map(|work| &work.backends);
    let has_any = places.filter(|place| !place.groups.is_empty());
    has_any.map(|place| place.backend).filter(|name| !name.contains(", ")).collect()
}

fn found<'w, 'a>(works: &'w [Work<'a>], workload: &str, backend: &str) -> Option<&'w Group<'a>> {
    best_placed(place_of(works, workload, backend)?)
}

fn best_placed<'w, 'a>(place: &'w Place<'a>) -> Option<&'w Group<'a>> {
    let pinned = place.groups.iter().find(|group| group.placement == Placement::Pinned);
    pinned.or(place.groups.first())
}

fn ours<'w, 'a>(group: &'w Group<'a>) -> Option<(&'a str, &'w Row<'a>, Spread)> {
    let name = group.main_figure()?;
    let row = group.rows.iter().find(|row| row.entry.role == Role::Lockkit)?;
    Some((name, row, row.figure(name)?))
}

fn median(group: Option<&Group<'_>>) -> String {
    let found = group.and_then(ours);
    found.map_or_else(|| "-".into(), |(_, _, spread)| spread.unit.show(spread.median))
}

fn of_floor(group: Option<&Group<'_>>) -> String {
    let ratio = group.and_then(|group| group.of_floor(ours(group)?.1));
    ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"))
}

/// How much it is of the least that another library takes.
fn of_best(group: Option<&Group<'_>>) -> String {
    let ratio = group.and_then(|group| {
        let (name, row, _) = ours(group)?;
        let others = group.rows.iter().filter(|row| row.entry.role == Role::Peer);
        let others = others.filter_map(|row| Some((row, row.figure(name)?.median)));
        let (best, _) = others.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        row.ratio(best, name)
    });
    ratio.map_or_else(|| "-".into(), |ratio| format!("{:.2}", ratio.median))
}

/// The picture of the README: reads on light and on dark ground.
pub(super) fn picture(run: &Run) -> Result<String> {
    const FRAME: &str = "svg.frame{background:var(--paper)} .title{font-weight:600}";
    const TOP: u32 = 66;
    let works = works(run);
    let looks = Looks::of(run);
    let mut panels = Vec::new();
    for (name, title) in OVERVIEW {
        if let Some(work) = works.iter().find(|work| work.name == name) {
            panels.push((title, looks.overview(work, title)?, work.backends.len() as u32));
        }
    }
    let rows = panels.iter().map(|panel| panel.2).max().unwrap_or_default();
    let (width, height) = (2 * WIDTH + 60, TOP + rows * 22 + 56);
    let keys =
        [(Look::Lockkit(0), "lockkit"), (Look::Floor, "floor"), (Look::Peer(0), "other libraries")];
    let title = format!("lockkit: medians of {}", run.setup.date);
    let drawn = html! {
        svg xmlns="http://www.w3.org/2000/svg" class="frame plot" role="img"
            viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) {
            title { (title) }
            desc {
                "Acquire and release, and hand-over: a row for each backend with the medians of \
                 lockkit, of the same requests sent by hand, and of other libraries."
            }
            style { (PreEscaped(PLOT_STYLE)) (PreEscaped(FRAME)) }
            rect width="100%" height="100%" fill="var(--paper)" {}
            @for (at, (look, name)) in keys.iter().enumerate() {
                g transform={ "translate(" (24 + at * 110) " 20)" } {
                    g class=(look.class()) { path class="mark" d=(look.outline()) {} }
                    text x="10" dy="0.35em" { (name) }
                }
            }
            @for (at, (title, svg, _)) in panels.iter().enumerate() {
                g transform={ "translate(" (16 + at * (WIDTH as usize + 24)) " " (TOP - 14) ")" } {
                    text class="title" x="4" y="0" { (title) }
                    g transform="translate(0 4)" { (svg) }
                }
            }
        }
    };
    Ok(drawn.into_string() + "\n")
}
