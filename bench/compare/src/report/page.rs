//! `report.html`: one page that needs nothing else, not even a script.

use lockkit_bench::{Result, Unit};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::canvas::Look;
use super::digest::{Behind, Group, Place, Work, about, behind, notes, placed, works};
use super::gallery::{Looks, Picture, has_curves, is_alone, sames};
use super::noise::noise;
use super::summary::{
    BEHIND, CLEAR, DISK, FEW, UNCLEAR, better, cells, heading, loss, names, row_name,
};
use super::targets::{HEADS, Targets};
use crate::run::{Absence, Entry, Role, Run};

/// How plots look, here and in the picture of the README.
pub(super) const PLOT_STYLE: &str = include_str!("plot.css");

/// The workloads that tell most in one look.
pub(super) const OVERVIEW: [(&str, &str); 2] = [
    ("uncontended", "Acquire and release, nobody else waits (p50)"),
    ("hand-over", "From release to the waiter's guard (p50)"),
];

pub(super) fn page(run: &Run) -> Result<String> {
    const STYLE: &str = include_str!("page.css");
    let works = works(run);
    let (behind, targets) = (behind(&works), Targets::of(&works));
    let looks = Looks::of(run);
    let sections =
        works.iter().map(|work| section(work, &looks, &behind)).collect::<Result<Vec<_>>>()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "lockkit: benchmark of " (run.setup.date) }
                style { (PreEscaped(PLOT_STYLE)) (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "What a lock costs" }
                    (lead(run))
                    nav aria-label="Workloads" {
                        a href="#overview" { "Overview" }
                        @if targets.rows > 0 { a href="#targets" { "Targets" } }
                        a href="#behind" { "Behind" }
                        @for work in &works { a href={ "#" (anchor(work.name)) } { (heading(work.name)) } }
                        a href="#set-up" { "Set-up" }
                    }
                }
                main {
                    (overview(&works, &looks)?)
                    (targets_section(&targets))
                    (behind_section(&behind))
                    @for section in &sections { (section) }
                    (set_up(run))
                }
                footer {
                    "Raw data: run.json beside this page; all figures as text: summary.md."
                }
            }
        }
    };
    Ok(page.into_string() + "\n")
}

fn lead(run: &Run) -> Markup {
    let setup = &run.setup;
    html! {
        p {
            "Every backend of lockkit, the floor under it, and the libraries that one would pick \
             instead, on the same servers in the same run. Rows that lockkit loses are shown like \
             all others, and are listed first."
        }
        p.lead {
            (setup.date) " · " (setup.processor) ", " (setup.cpus) " CPUs, "
            (Unit::Bytes.show(setup.memory as f64)) " · " (setup.system) " · " (setup.rounds)
            " rounds, interleaved · others used " (format!("{:.1} %", setup.noise * 100.0))
            " of the CPU time"
        }
        p.lead { (DISK) }
        @if let Some(reason) = noise(run) {
            p.noisy role="note" {
                strong { "A noisy machine: " }
                (reason) ". Read differences below that with care."
            }
        }
    }
}

fn overview(works: &[Work<'_>], looks: &Looks<'_>) -> Result<Markup> {
    let mut figures = Vec::new();
    for (name, title) in OVERVIEW {
        if let Some(work) = works.iter().find(|work| work.name == name) {
            figures.push((title, looks.overview(work, title)?));
        }
    }
    Ok(html! {
        section id="overview" {
            h2 { "Overview" }
            p {
                "Medians on a logarithmic scale, client and server on one CPU; the floor is what \
                 the same requests cost when they are sent by hand. Point at a mark to see whose \
                 it is."
            }
            (keys())
            div.grid.wide {
                @for (title, svg) in &figures {
                    figure { figcaption { (title) } (svg) }
                }
            }
        }
    })
}

/// What marks and lines mean.
fn keys() -> Markup {
    let key = |look: Look, name: &str| {
        html! {
            li {
                svg viewBox="0 0 34 14" aria-hidden="true" class="plot-key" {
                    g class=(look.class()) {
                        polyline points="0,7 34,7" {}
                        path class="mark" d=(look.outline()) transform="translate(17 7)" {}
                    }
                }
                (name)
            }
        }
    };
    html! {
        ul.keys {
            (key(Look::Lockkit(0), "lockkit"))
            (key(Look::Lockkit(1), "lockkit, fair or by session"))
            (key(Look::Floor, "the floor: the same requests by hand"))
            (key(Look::Peer(0), "other libraries, each with a mark of its own"))
        }
    }
}

fn targets_section(targets: &Targets) -> Markup {
    html! {
        @if targets.rows > 0 {
            section id="targets" {
                h2 { "Targets" }
                p { (targets.lead()) }
                @if !targets.missed.is_empty() {
                    div.scroll.tall tabindex="0" role="region" aria-label="Targets that are missed" {
                        table.stack {
                            thead { tr { @for head in HEADS { th scope="col" { (head) } } } }
                            tbody { @for row in &targets.missed {
                                tr { @for cell in row { td { (cell) } } }
                            } }
                        }
                    }
                }
            }
        }
    }
}

fn behind_section(behind: &[Behind<'_>]) -> Markup {
    let (clear, unclear): (Vec<_>, Vec<_>) = behind.iter().partition(|one| one.is_clear());
    html! {
        section id="behind" {
            h2 { "Behind" }
            @if behind.is_empty() {
                p {
                    "No peer is ahead of lockkit in any row, and uncontended the floor is within \
                     1.10 everywhere."
                }
            } @else {
                p { (BEHIND) }
                (behind_rows(CLEAR, &clear, true))
                (behind_rows(UNCLEAR, &unclear, unclear.len() <= 12))
            }
        }
    }
}

fn behind_rows(what: &str, rows: &[&Behind<'_>], is_open: bool) -> Markup {
    html! {
        @if !rows.is_empty() {
            details open[is_open] {
                summary { (what) ": " (rows.len()) @if rows.len() == 1 { " row" } @else { " rows" } }
                div.scroll.tall tabindex="0" role="region" aria-label=(what) {
                    table.stack {
                        thead { tr {
                            @for head in ["workload", "backend", "row", "lockkit's", "behind", "in"] {
                                th scope="col" { (head) }
                            }
                        } }
                        tbody { @for one in rows { (behind_row(one)) } }
                    }
                }
            }
        }
    }
}

fn behind_row(Behind { ours, theirs, figures }: &Behind<'_>) -> Markup {
    html! {
        tr {
            td { a href={ "#" (anchor(&ours.workload)) } { (heading(&ours.workload)) } }
            td { (ours.backend) }
            td { (row_name(&ours.case, placed(ours.placement))) }
            td { (ours.subject) }
            td { (theirs.subject) }
            td { @for (at, figure) in figures.iter().enumerate() {
                @if at > 0 { br; }
                (loss(figure))
            } }
        }
    }
}

/// How curves are read.
const CURVES: &str = "A curve tells within which time how many of all were done: half of them at the \
    first mark, 99 % at the second, 99.9 % at the third. It ends where a round has too few to tell. \
    Each further nine takes as much room, so that the tail can be seen. Lower is better.";

fn section(work: &Work<'_>, looks: &Looks<'_>, behind: &[Behind<'_>]) -> Result<Markup> {
    let mut figures = Vec::new();
    if is_alone(work) {
        for picture in looks.of_backends(work)? {
            figures.push(figure(picture, &[], &[], &[]));
        }
    } else {
        for place in &work.backends {
            let pictures = looks.of_place(place)?;
            if pictures.is_empty() {
                figures.push(nothing(place));
            }
            for (at, picture) in pictures.into_iter().enumerate() {
                let (absences, notes) = match at {
                    0 => (&place.absences[..], notes(work.name, place)),
                    _ => (&[][..], Vec::new()),
                };
                figures.push(figure(picture, absences, &notes, behind));
            }
        }
    }
    let absences = work.backends.iter().flat_map(|place| &place.absences);
    let has_curves = !is_alone(work) && work.backends.iter().any(has_curves);
    Ok(html! {
        section id=(anchor(work.name)) {
            h2 { (heading(work.name)) }
            p { (about(work.name)) }
            @if has_curves { p.lead { (CURVES) } }
            div.grid { @for figure in &figures { (figure) } }
            @if is_alone(work) {
                @let sames = sames(work);
                @if !sames.is_empty() { p.lead { "The same everywhere: " (sames.join("; ")) "." } }
                (absent(absences.copied(), true))
            }
        }
    })
}

fn figure(
    picture: Picture<'_, '_>,
    absences: &[&Absence],
    notes: &[(&str, &str)],
    behind: &[Behind<'_>],
) -> Markup {
    let Picture { title, svg, groups } = picture;
    let is_of_it = |one: &&Behind<'_>| {
        let mut entries = groups.iter().flat_map(|group| &group.rows).map(|row| row.entry);
        entries.any(|entry| std::ptr::eq(entry, one.ours))
    };
    let lost = behind.iter().filter(is_of_it).filter(|one| one.is_clear()).count();
    html! {
        figure {
            figcaption {
                span { (title) }
                @if lost > 0 {
                    a.behind href="#behind" {
                        "◂ behind in " (lost) @if lost == 1 { " row" } @else { " rows" }
                    }
                }
            }
            (svg)
            (absent(absences.iter().copied(), false))
            @if !notes.is_empty() {
                ul.absent { @for (subject, note) in notes { li data-note=(subject) { (subject) ": " (note) } } }
            }
            @if !groups.is_empty() { (table(&title, &groups, behind)) }
        }
    }
}

/// A backend where nothing was measured, and why.
fn nothing(place: &Place<'_>) -> Markup {
    html! {
        figure {
            figcaption { span { (place.backend) } }
            (absent(place.absences.iter().copied(), false))
        }
    }
}

fn absent<'a>(absences: impl Iterator<Item = &'a Absence>, with_backend: bool) -> Markup {
    let absences: Vec<_> = absences.collect();
    html! {
        @if !absences.is_empty() {
            ul.absent { @for absence in absences {
                li data-absent=(absence.subject) {
                    @if with_backend { (absence.backend) ", " }
                    (absence.subject) ": not measured, " (absence.reason)
                }
            } }
        }
    }
}

fn table(title: &str, groups: &[&Group<'_>], behind: &[Behind<'_>]) -> Markup {
    let names = names(groups.iter().copied());
    // Next to the name of whoever is ahead of lockkit.
    let ahead = |entry: &Entry| {
        let mut over = behind.iter().filter(|one| std::ptr::eq(one.theirs, entry)).peekable();
        over.peek()?;
        Some(if over.any(Behind::is_clear) { "◂ ahead" } else { "◂ ahead, ~" })
    };
    html! {
        details {
            summary { "In figures" }
            div.scroll tabindex="0" role="region" aria-label={ "Figures: " (title) } {
                table {
                    caption { "Medians of the rounds, with the least and the most; ratios are of the first figure. " (FEW) }
                    thead { tr {
                        th scope="col" { "case" }
                        th scope="col" { "subject" }
                        @for (name, unit) in &names {
                            th scope="col" title=(better(name, *unit)) { (name) }
                        }
                        th scope="col" { "of the floor" }
                        th scope="col" { "of lockkit" }
                    } }
                    tbody { @for group in groups { @for row in &group.rows {
                        @let cells = cells(group, row, &names);
                        tr.lockkit[row.entry.role == Role::Lockkit] {
                            @for (at, cell) in cells.iter().enumerate() {
                                @if at == 1 {
                                    th scope="row" {
                                        (cell)
                                        @if let Some(ahead) = ahead(row.entry) {
                                            " " span.ahead { (ahead) }
                                        }
                                    }
                                }
                                @else { td.number { (cell) } }
                            }
                        }
                    } } }
                }
            }
        }
    }
}

fn set_up(run: &Run) -> Markup {
    let everywhere = run.absences.iter().filter(|absence| absence.workload.is_none());
    html! {
        section id="set-up" class="set-up" {
            h2 { "Set-up" }
            div.scroll tabindex="0" role="region" aria-label="Versions" {
                table { tbody {
                    tr { th scope="row" { "processor" } td { (run.setup.processor) } }
                    tr { th scope="row" { "system" } td { (run.setup.system) } }
                    tr { th scope="row" { "seed" } td { (run.setup.seed) } }
                    tr { th scope="row" { "took" } td { (format!("{:.0} minutes", run.setup.seconds / 60.0)) } }
                    @for (what, version) in &run.setup.versions {
                        tr { th scope="row" { (what) } td { (version) } }
                    }
                } }
            }
            (absent(everywhere, true))
        }
    }
}

/// What a workload is called in an address.
fn anchor(workload: &str) -> String {
    workload.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '-' }).collect()
}
