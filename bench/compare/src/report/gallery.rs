//! Which pictures a run has: each of its entries is in one at least.

use std::collections::BTreeSet;

use lockkit_bench::{QUANTILES, Result, Spread, Unit};
use maud::Markup;

use super::canvas::{Look, Mark, Series};
use super::digest::{Group, Place, Row, Work, placed};
use super::pictures::{self, Dot, Dots, Line};
use super::scale::Axis;
use crate::run::{Entry, Placement, Role, Run};

/// How each subject looks, the same in all pictures.
#[derive(Debug)]
pub(super) struct Looks<'a> {
    lockkit: Vec<&'a str>,
    peers: Vec<&'a str>,
}

/// A picture, and what it is of.
#[derive(Debug)]
pub(super) struct Picture<'w, 'a> {
    pub(super) title: String,
    pub(super) svg: Markup,
    /// What it shows, to be told in figures as well.
    pub(super) groups: Vec<&'w Group<'a>>,
}

impl<'a> Looks<'a> {
    pub(super) fn of(run: &'a Run) -> Self {
        let mut looks = Self { lockkit: Vec::new(), peers: Vec::new() };
        for entry in &run.entries {
            let names = match entry.role {
                Role::Lockkit => &mut looks.lockkit,
                Role::Peer => &mut looks.peers,
                Role::Floor => continue,
            };
            if !names.contains(&&*entry.subject) {
                names.push(&entry.subject);
            }
        }
        looks
    }

    pub(super) fn look(&self, entry: &Entry) -> Look {
        let place = |names: &[&str]| names.iter().position(|name| *name == entry.subject);
        match entry.role {
            Role::Floor => Look::Floor,
            Role::Lockkit => Look::Lockkit(place(&self.lockkit).unwrap_or_default()),
            Role::Peer => Look::Peer(place(&self.peers).unwrap_or_default()),
        }
    }

    fn series(&self, entry: &Entry) -> Series {
        Series {
            workload: entry.workload.clone(),
            backend: entry.backend.clone(),
            placed: placed(entry.placement),
            subject: entry.subject.clone(),
            look: self.look(entry),
        }
    }

    fn mark(&self, entry: &Entry, says: String) -> Mark {
        Mark { look: self.look(entry), case: entry.case.clone(), says }
    }

    fn dot(&self, entry: &Entry, spread: Spread) -> Dot {
        let mark = self.mark(entry, format!("{}: {spread}", entry.subject));
        Dot { series: self.series(entry), mark, spread }
    }

    /// The pictures of a workload on one backend.
    pub(super) fn of_place<'w>(&self, place: &'w Place<'a>) -> Result<Vec<Picture<'w, 'a>>> {
        let numbers = numbers(place);
        if numbers.len() > 1 {
            return self.over_clients(place, &numbers);
        }
        let several = place.groups.iter().any(|group| group.placement != Placement::Unpinned);
        place.groups.iter().map(|group| self.of_group(place, group, several)).collect()
    }

    /// Where nobody is compared with, backends are: a picture for each case and each figure.
    pub(super) fn of_backends<'w>(&self, work: &'w Work<'a>) -> Result<Vec<Picture<'w, 'a>>> {
        let groups = || work.backends.iter().flat_map(|place| &place.groups);
        let mut kinds: Vec<(&str, &str, Unit)> = Vec::new();
        for group in groups() {
            for (name, unit) in group.names() {
                let is_drawn = same_for_all(work, group.case, name).is_none();
                if is_drawn && !kinds.contains(&(group.case, name, unit)) {
                    kinds.push((group.case, name, unit));
                }
            }
        }
        kinds.sort_by_key(|kind| kinds_before(groups(), kind.0));
        let picture = |&(case, name, unit): &(&'a str, &'a str, Unit)| {
            let of_case: Vec<&Group<'_>> = groups().filter(|group| group.case == case).collect();
            let dots = of_case.iter().flat_map(|group| &group.rows).filter_map(|row| {
                let label = labelled(row.entry);
                Some(Dots { label, dots: vec![self.dot(row.entry, row.figure(name)?)] })
            });
            let dots: Vec<_> = dots.collect();
            let title = titled(&[name, case]);
            let about = format!("{name} of each backend in {}", work.name);
            let svg = pictures::rows(&title, &about, unit, &dots, None)?;
            Ok(Picture { title, svg, groups: of_case })
        };
        kinds.iter().map(picture).collect()
    }

    /// A row for each backend, with the medians of all that were measured there.
    pub(super) fn overview(&self, work: &Work<'_>, title: &str) -> Result<Markup> {
        let mut unit = Unit::Time;
        let mut rows = Vec::new();
        for place in &work.backends {
            let pinned = place.groups.iter().find(|group| group.placement == Placement::Pinned);
            let Some(group) = pinned.or(place.groups.first()) else { continue };
            let Some(name) = group.main_figure() else { continue };
            let mut dots: Vec<Dot> = Vec::new();
            for row in &group.rows {
                if let Some(spread) = row.figure(name) {
                    unit = spread.unit;
                    dots.push(self.dot(row.entry, spread));
                }
            }
            dots.sort_by_key(|dot| match dot.series.look {
                Look::Peer(_) => 0,
                Look::Floor => 1,
                Look::Lockkit(_) => 2,
            });
            rows.push(Dots { label: place.backend.into(), dots });
        }
        let about =
            format!("{}: the medians of all that were measured, for each backend", work.name);
        pictures::rows(title, &about, unit, &rows, None)
    }

    fn of_group<'w>(
        &self,
        place: &Place<'_>,
        group: &'w Group<'a>,
        several: bool,
    ) -> Result<Picture<'w, 'a>> {
        let how = if several { placed(group.placement) } else { "" };
        let title = titled(&[place.backend, group.case, how]);
        let lines: Vec<Line> = group.rows.iter().map(|row| self.curve(row)).collect();
        let has_curves = group.rows.iter().any(|row| !distribution(row.entry).is_empty());
        let svg = match has_curves && lines.iter().all(|line| !line.points.is_empty()) {
            true => {
                let about = "the share of all that was done within a time, on a scale on which \
                             each further nine takes as much room";
                pictures::curves(&title, about, &lines)?
            }
            false => self.dots(&title, group)?,
        };
        Ok(Picture { title, svg, groups: vec![group] })
    }

    fn dots(&self, title: &str, group: &Group<'_>) -> Result<Markup> {
        let name = group.main_figure().unwrap_or_default();
        let rows = group.rows.iter().map(|row| {
            let figure = row.figure(name).map(|spread| self.dot(row.entry, spread));
            Dots { label: row.entry.subject.clone(), dots: figure.into_iter().collect() }
        });
        let rows: Vec<_> = rows.collect();
        let unit = rows.iter().flat_map(|row| &row.dots).map(|dot| dot.spread.unit).next();
        let lease = group.rows.iter().find_map(lease);
        let limit = lease.map(|lease| (lease, "the lease"));
        pictures::rows(title, name, unit.unwrap_or(Unit::Count), &rows, limit)
    }

    fn curve(&self, row: &Row<'_>) -> Line {
        let mut points = distribution(row.entry);
        if points.is_empty() {
            // The few that are known.
            let known = |(name, share)| Some((share, row.figure(name)?.median));
            points = QUANTILES.into_iter().filter_map(known).collect();
        }
        let mark = |(name, share): (&str, f64)| {
            let at = points.iter().position(|(other, _)| (other - share).abs() < 1e-9)?;
            let says = format!("{} {name}: {}", row.entry.subject, Unit::Time.show(points[at].1));
            Some((at, self.mark(row.entry, says)))
        };
        let marks = QUANTILES.into_iter().filter_map(mark).collect();
        Line { series: self.series(row.entry), points, marks }
    }

    fn over_clients<'w>(
        &self,
        place: &'w Place<'a>,
        numbers: &BTreeSet<usize>,
    ) -> Result<Vec<Picture<'w, 'a>>> {
        let numbers: Vec<usize> = numbers.iter().copied().collect();
        let mut kinds: Vec<(&str, Placement)> = Vec::new();
        for group in &place.groups {
            let kind = (section(group.case), group.placement);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let mut found = Vec::new();
        for (section_of, placement) in kinds {
            let is_it = |group: &&Group<'_>| {
                section(group.case) == section_of && group.placement == placement
            };
            let groups: Vec<&Group<'_>> = place.groups.iter().filter(is_it).collect();
            let main_figure = groups.iter().find_map(|group| group.main_figure());
            let names = main_figure.into_iter().chain(["requests a grant"]);
            for name in names {
                let mut lines: Vec<Line> = Vec::new();
                let mut unit = None;
                for row in groups.iter().flat_map(|group| &group.rows) {
                    let Some(spread) = row.figure(name) else { continue };
                    unit = Some(spread.unit);
                    let at = lines.iter().position(|it| it.series.subject == row.entry.subject);
                    let at = at.unwrap_or_else(|| {
                        let series = self.series(row.entry);
                        lines.push(Line { series, points: Vec::new(), marks: Vec::new() });
                        lines.len() - 1
                    });
                    let number = clients(&row.entry.case).unwrap_or_default();
                    let x = numbers.iter().position(|it| *it == number).unwrap_or_default() as f64;
                    let says = format!("{}, {}: {spread}", row.entry.subject, row.entry.case);
                    let line = &mut lines[at];
                    line.marks.push((line.points.len(), self.mark(row.entry, says)));
                    line.points.push((x, spread.median));
                }
                let Some(unit) = unit else { continue };
                let title = titled(&[place.backend, section_of, name]);
                let about = format!("{name} for {numbers:?} clients");
                let svg = pictures::growth(&title, &about, unit, &numbers, &lines)?;
                // In figures they stand under the first.
                let groups = if Some(name) == main_figure { groups.clone() } else { Vec::new() };
                found.push(Picture { title, svg, groups });
            }
        }
        Ok(found)
    }
}

/// Whether distributions are drawn of a backend.
pub(super) fn has_curves(place: &Place<'_>) -> bool {
    let mut rows = place.groups.iter().flat_map(|group| &group.rows);
    numbers(place).len() <= 1 && rows.any(|row| !distribution(row.entry).is_empty())
}

/// Whether only lockkit is in it, so that its backends are what there is to be compared.
pub(super) fn is_alone(work: &Work<'_>) -> bool {
    let groups = work.backends.iter().flat_map(|place| &place.groups);
    groups.flat_map(|group| &group.rows).all(|row| row.entry.role == Role::Lockkit)
}

/// What a figure is everywhere and in each round, if it is the same: no picture would tell more. The
/// main one is drawn in any case, so that all are seen.
fn same_for_all(work: &Work<'_>, case: &str, name: &str) -> Option<Spread> {
    let groups = work.backends.iter().flat_map(|place| &place.groups);
    let groups = groups.filter(|group| group.case == case);
    if groups.clone().any(|group| group.main_figure() == Some(name)) {
        return None;
    }
    let mut spreads = groups.flat_map(|group| &group.rows).map(|row| row.figure(name));
    let first = spreads.next()??;
    let is_same = |spread: Option<Spread>| {
        spread.is_some_and(|it| [it.least, it.most].iter().all(|value| *value == first.median))
    };
    (is_same(Some(first)) && spreads.all(is_same)).then_some(first)
}

/// What is the same everywhere, as a sentence each: `10000, connections: 1.00`.
pub(super) fn sames(work: &Work<'_>) -> Vec<String> {
    let mut sames = Vec::new();
    for group in work.backends.iter().flat_map(|place| &place.groups) {
        for (name, _) in group.names() {
            if let Some(spread) = same_for_all(work, group.case, name) {
                let same = format!("{}: {spread}", titled(&[name, group.case]));
                if !sames.contains(&same) {
                    sames.push(same);
                }
            }
        }
    }
    sames
}

/// The medians over the rounds, at places that are the same for all, as far as each round has enough
/// to tell: without one of them, the median of the others may be less than further to the left. Empty
/// if there is none.
fn distribution(entry: &Entry) -> Vec<(f64, f64)> {
    let all_tell = |share: &f64| entry.rounds.iter().all(|round| round.tells(*share));
    let point = |share: f64| {
        let seconds = entry.rounds.iter().filter_map(|round| within(&round.distribution, share));
        Some((share, Spread::of(Unit::Time, seconds)?.median))
    };
    let shares = Axis::shares(&QUANTILES.map(|(_, share)| share)).into_iter();
    shares.take_while(all_tell).filter_map(point).collect()
}

/// What that share stayed within; between two that are known, on a line as it is drawn.
fn within(distribution: &[(f64, f64)], share: f64) -> Option<f64> {
    let place = |share: f64| -(1.0 - share).max(1e-9).log10();
    let after = distribution.iter().position(|(known, _)| *known >= share - 1e-9);
    let Some(after) = after else { return distribution.last().map(|known| known.1) };
    let (right, above) = distribution[after];
    let before = after.checked_sub(1).map(|at| distribution[at]);
    let Some((left, below)) = before.filter(|(_, below)| *below > 0.0) else { return Some(above) };
    let part = (place(share) - place(left)) / (place(right) - place(left));
    Some(below * (above / below).powf(part.clamp(0.0, 1.0)))
}

/// Of `8 clients, empty`, the 8.
fn clients(case: &str) -> Option<usize> {
    let (number, rest) = case.split_once(' ')?;
    rest.starts_with("client").then(|| number.parse().ok()).flatten()
}

/// Of `8 clients, empty`, what stands behind the number.
fn section(case: &str) -> &str {
    case.split_once(", ").map_or("", |(_, rest)| rest)
}

fn numbers(place: &Place<'_>) -> BTreeSet<usize> {
    place.groups.iter().filter_map(|group| clients(group.case)).collect()
}

/// How long the lease was that ran out, if that is known.
fn lease(row: &Row<'_>) -> Option<f64> {
    let (free_after, share) = (row.figure("free after")?, row.figure("of the lease")?);
    (share.median > 0.0).then_some(free_after.median / share.median)
}

fn labelled(entry: &Entry) -> String {
    match entry.subject.strip_prefix("lockkit") {
        Some("") => entry.backend.clone(),
        Some(kind) => format!("{}{kind}", entry.backend),
        None => format!("{}: {}", entry.backend, entry.subject),
    }
}

fn titled(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join(" · ")
}

/// Cases stand together, in the order of their first appearance.
fn kinds_before<'w, 'a: 'w>(groups: impl Iterator<Item = &'w Group<'a>>, case: &str) -> usize {
    groups.map(|group| group.case).position(|other| other == case).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::distribution;
    use crate::run::{Entry, Placement, Role, Round};

    /// A round of so many times, each twice as long for another 9 in 10.
    fn round(times: u64, slower: f64) -> Round {
        let shares = [0.5, 0.9, 0.99, 0.999, 0.9999, 1.0];
        let within = |(at, share)| (share, slower * f64::powi(2.0, at));
        let distribution = (0..).zip(shares).map(within).collect();
        Round { figures: Vec::new(), distribution, times: Some(times) }
    }

    #[test]
    fn a_curve_never_falls_where_a_slow_round_was_short() {
        let rounds = vec![round(200, 100.0), round(100_000, 1.0), round(200, 50.0)];
        let entry = Entry {
            workload: "uncontended".into(),
            backend: "file".into(),
            subject: "lockkit".into(),
            role: Role::Lockkit,
            placement: Placement::Pinned,
            case: String::new(),
            rounds,
        };
        let curve = distribution(&entry);
        assert!(curve.len() > 2 && curve.is_sorted_by_key(|(_, within)| *within), "{curve:?}");
    }
}
