//! The axes of plots.

use std::ops::Range;

use lockkit_bench::Unit;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// An axis. Values are what is measured; places are where they are on a line.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    kind: Kind,
    /// Places.
    ends: (f64, f64),
    /// Values.
    ticks: Vec<f64>,
}

#[derive(Clone, Debug)]
enum Kind {
    Linear(Unit),
    Logarithmic(Unit),
    /// Shares, so drawn that each further nine takes as much room.
    Tail,
    /// These, one beside the other: a value is how many are before it.
    Numbers(Vec<usize>),
    /// One below the other, from the top.
    Rows,
}

/// Four nines are the last that a few thousand samples can tell.
const NINES: f64 = 4.0;

impl Axis {
    /// One that has room for all these. It is logarithmic if some are twenty times the others.
    pub(super) fn of(unit: Unit, values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        match least > 0.0 && most / least > 20.0 {
            true => Self::logarithmic(unit, least, most),
            false => Self::linear(unit, most),
        }
    }

    /// A logarithmic one.
    pub(super) fn logarithmic(unit: Unit, least: f64, most: f64) -> Self {
        let room = 0.05 + 0.05 * (most / least).log10();
        let (from, to) = (least.log10() - room, most.log10() + room);
        // What stands beside the other axis is not to be mixed up with it.
        let first = from + 0.05 * (to - from);
        let steps: &[f64] = match to - from {
            decades if decades < 1.2 => &[1.0, 2.0, 3.0, 5.0, 7.0],
            decades if decades < 2.2 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let decades = from.floor() as i32..=to.ceil() as i32;
        let ticks =
            decades.flat_map(|decade| steps.iter().map(move |step| 10f64.powi(decade) * step));
        let ticks = ticks.filter(|tick| (first..=to).contains(&tick.log10())).collect();
        Self { kind: Kind::Logarithmic(unit), ends: (from, to), ticks }.with_at_most(6)
    }

    /// With every second tick, as often as it takes.
    pub(super) fn with_at_most(mut self, ticks: usize) -> Self {
        while self.ticks.len() > ticks {
            self.ticks = self.ticks.into_iter().step_by(2).collect();
        }
        self
    }

    /// Shares of all.
    pub(super) fn tail() -> Self {
        let ticks = (0..=NINES as i32).map(|nines| 1.0 - 10f64.powi(-nines)).collect();
        Self { kind: Kind::Tail, ends: (0.0, NINES), ticks }
    }

    /// These numbers, one beside the other.
    pub(super) fn numbers(numbers: &[usize]) -> Self {
        let last = numbers.len().saturating_sub(1) as f64;
        let ticks = (0..numbers.len()).map(|at| at as f64).collect();
        Self { kind: Kind::Numbers(numbers.to_vec()), ends: (-0.15, last + 0.1), ticks }
    }

    /// So many, one below the other.
    pub(super) fn rows(number: usize) -> Self {
        Self { kind: Kind::Rows, ends: (number as f64, 0.0), ticks: Vec::new() }
    }

    /// Places of curves on an axis of shares, evenly and at these shares.
    pub(super) fn shares(marked: &[f64]) -> Vec<f64> {
        let even = (0..=20).map(|step| 1.0 - 10f64.powf(-f64::from(step) * NINES / 20.0));
        let mut shares: Vec<f64> = even.chain(marked.iter().copied()).collect();
        shares.sort_by(f64::total_cmp);
        shares.dedup_by(|one, other| (*one - *other).abs() < 1e-9);
        shares
    }

    /// The values at its ends.
    pub(super) fn ends(&self) -> (f64, f64) {
        (self.value(self.ends.0), self.value(self.ends.1))
    }

    fn linear(unit: Unit, most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let rough = most / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
        let step = match unit {
            Unit::Bytes => 2f64.powf(rough.log2().ceil()),
            _ => steps.into_iter().find(|step| *step >= rough).unwrap_or(power),
        };
        let ticks = (0..6).map(|at| f64::from(at) * step).filter(|tick| *tick <= most * 1.05);
        Self { kind: Kind::Linear(unit), ends: (0.0, most * 1.08), ticks: ticks.collect() }
    }

    fn place(&self, value: f64) -> f64 {
        let (from, to) = self.ends;
        match &self.kind {
            Kind::Logarithmic(_) if value > 0.0 => value.log10().clamp(from, to),
            Kind::Logarithmic(_) => from,
            Kind::Tail => -(1.0 - value).max(10f64.powf(-NINES)).log10(),
            Kind::Linear(_) | Kind::Numbers(_) | Kind::Rows => value,
        }
    }

    fn value(&self, place: f64) -> f64 {
        match &self.kind {
            Kind::Logarithmic(_) => 10f64.powf(place),
            Kind::Tail => 1.0 - 10f64.powf(-place),
            Kind::Linear(_) | Kind::Numbers(_) | Kind::Rows => place,
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (from, to) = self.ends;
        let part = (self.place(*value) - from) / (to - from);
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        let (from, to) = self.ends();
        from..to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        value.to_string()
    }

    fn format_ext(&self, value: &f64) -> String {
        match &self.kind {
            Kind::Linear(unit) | Kind::Logarithmic(unit) => short(*unit, *value),
            Kind::Tail => share(*value),
            Kind::Numbers(numbers) => {
                numbers.get(value.round() as usize).map_or_else(String::new, ToString::to_string)
            }
            Kind::Rows => String::new(),
        }
    }
}

fn share(value: f64) -> String {
    match -(1.0 - value).log10().round() {
        nines if nines < 1.0 => "least".into(),
        nines => format!("p{:.1$}", value * 100.0, (nines as usize).saturating_sub(2)),
    }
}

/// As short as it can be: `10 µs`, `2.5k/s`.
pub(super) fn short(unit: Unit, value: f64) -> String {
    let (value, suffix) = match unit {
        _ if value == 0.0 => return "0".into(),
        Unit::Time if value < 0.999e-6 => (value * 1e9, " ns"),
        Unit::Time if value < 0.999e-3 => (value * 1e6, " µs"),
        Unit::Time if value < 0.999 => (value * 1e3, " ms"),
        Unit::Time => (value, " s"),
        Unit::Bytes if value >= 1024.0 * 1024.0 => (value / 1024.0 / 1024.0, " MiB"),
        Unit::Bytes if value >= 1024.0 => (value / 1024.0, " KiB"),
        Unit::Bytes => (value, " B"),
        Unit::PerSecond if value >= 0.999e6 => (value / 1e6, "M/s"),
        Unit::PerSecond if value >= 0.999e3 => (value / 1e3, "k/s"),
        Unit::PerSecond => (value, "/s"),
        _ if value >= 0.999e6 => (value / 1e6, "M"),
        _ if value >= 0.999e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value {
        value if value >= 9.95 => 0,
        value if value >= 0.995 => 1,
        value if value >= 0.0995 => 2,
        value if value >= 0.00995 => 3,
        _ => 5,
    };
    let text = format!("{value:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|tick| axis.format_ext(tick)).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        let wide = Axis::of(Unit::Time, [9e-6, 0.4]);
        assert_eq!(labels(&wide), ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms"]);
        let narrow = Axis::of(Unit::PerSecond, [800.0, 2_900.0]);
        assert_eq!(labels(&narrow), ["0", "1k/s", "2k/s", "3k/s"]);
        assert_eq!(labels(&Axis::of(Unit::Count, [0.0, 0.0])), ["0", "0.25", "0.5", "0.75", "1"]);
    }

    #[test]
    fn each_nine_takes_as_much_room() {
        let axis = Axis::tail();
        assert_eq!(labels(&axis), ["least", "p90", "p99", "p99.9", "p99.99"]);
        let places: Vec<i32> = axis.ticks.iter().map(|tick| axis.map(tick, (0, 400))).collect();
        assert_eq!(places, [0, 100, 200, 300, 400]);
    }
}
