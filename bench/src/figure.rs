use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing that was measured once.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What it is, such as `p99`.
    pub name: &'static str,
    /// The unit in which it is measured.
    pub unit: Unit,
    /// How much it is.
    pub value: f64,
}

impl Figure {
    /// A figure of that name.
    pub const fn new(name: &'static str, unit: Unit, value: f64) -> Self {
        Self { name, unit, value }
    }
}

/// The unit in which a figure is measured.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// How many there are.
    Count,
    /// How many there are in a second.
    PerSecond,
    /// How much it is of something else.
    Ratio,
    /// Seconds.
    Time,
    /// Bytes.
    Bytes,
}

/// What several rounds have measured.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// What it is.
    pub name: &'static str,
    /// The unit in which it is measured.
    pub unit: Unit,
    /// The value in the middle; of an even number of rounds, the greater of the two.
    pub median: f64,
    /// The smallest value.
    pub least: f64,
    /// The greatest value.
    pub most: f64,
}

/// How much it is over several rounds.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The unit in which it is measured.
    pub unit: Unit,
    /// The value in the middle; of an even number of rounds, the greater of the two.
    pub median: f64,
    /// The smallest value.
    pub least: f64,
    /// The greatest value.
    pub most: f64,
}

impl Summary {
    /// The summary of one figure over all rounds. `None` without rounds.
    pub fn of(rounds: &[Figure]) -> Option<Self> {
        let &Figure { name, unit, .. } = rounds.first()?;
        let Spread { median, least, most, .. } =
            Spread::of(unit, rounds.iter().map(|figure| figure.value))?;
        Some(Self { name, unit, median, least, most })
    }
}

/// Like a [`Spread`].
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { unit, median, least, most, .. } = self;
        Spread { unit, median, least, most }.fmt(f)
    }
}

impl Spread {
    /// The spread of these values. `None` if there are none.
    pub fn of(unit: Unit, values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        Some(Self { unit, median: values[values.len() / 2], least, most })
    }
}

/// Such as `31.2 µs (29.8 to 40.1)`; without the spread where there is none.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (factor, symbol) = self.unit.scale(self.median);
        let show = |value: f64| three_digits(value * factor);
        let (least, median, most) = (show(self.least), show(self.median), show(self.most));
        f.write_str(&median)?;
        f.write_str(symbol)?;
        match least == most {
            true => Ok(()),
            false => write!(f, " ({least} to {most})"),
        }
    }
}

impl Unit {
    /// As people write it, such as `31.2 µs`.
    pub fn show(self, value: f64) -> String {
        let (factor, symbol) = self.scale(value);
        three_digits(value * factor) + symbol
    }

    /// What to multiply by, and what to write behind it.
    fn scale(self, value: f64) -> (f64, &'static str) {
        match self {
            Self::Count | Self::Ratio => (1.0, ""),
            Self::PerSecond => (1.0, "/s"),
            Self::Time if value < 1e-6 => (1e9, " ns"),
            Self::Time if value < 1e-3 => (1e6, " µs"),
            Self::Time if value < 1.0 => (1e3, " ms"),
            Self::Time => (1.0, " s"),
            Self::Bytes if value < 1024.0 => (1.0, " B"),
            Self::Bytes if value < 1024.0 * 1024.0 => (1.0 / 1024.0, " KiB"),
            Self::Bytes => (1.0 / 1024.0 / 1024.0, " MiB"),
        }
    }
}

/// No more digits than can mean something.
fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 100.0 || value == 0.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 0.1 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(unit: Unit, values: &[f64]) -> String {
        let figures: Vec<_> = values.iter().map(|&value| Figure::new("it", unit, value)).collect();
        Summary::of(&figures).unwrap().to_string()
    }

    #[test]
    fn a_summary_is_the_median_and_the_spread_in_one_unit() {
        assert_eq!(summary(Unit::Time, &[4.1e-5, 3.12e-5, 9e-6]), "31.2 µs (9.00 to 41.0)");
        assert_eq!(summary(Unit::Time, &[2.0]), "2.00 s");
        assert_eq!(summary(Unit::PerSecond, &[1234.5, 99.9]), "1234/s (99.9 to 1234)");
        assert_eq!(summary(Unit::Count, &[0.0, 0.0]), "0");
        assert_eq!(summary(Unit::Ratio, &[1.044, 1.044, 1.051]), "1.04 (1.04 to 1.05)");
        assert_eq!(summary(Unit::Ratio, &[0.004_23]), "0.0042");
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Unit::Bytes.show(3072.0), "3.00 KiB");
    }
}
