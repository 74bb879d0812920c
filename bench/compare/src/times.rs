//! Distributions of what agents tell.

use hdrhistogram::Histogram;
use lockkit_bench::{QUANTILES, Result, Unit, are_enough};
use serde_json::Value;

use crate::run::{Figure, Round};

/// The shares of all at which a distribution is told, besides the percentiles that are figures.
const SHARES: [f64; 13] =
    [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9999, 1.0];

/// How long many things took each.
#[derive(Debug)]
pub(crate) struct Times(Histogram<u64>);

impl Times {
    /// None yet.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Histogram::new(3)?))
    }

    /// Of a list of nanoseconds, but for the first `unused`: those make connections.
    pub(crate) fn read(list: &Value, unused: usize) -> Result<Self> {
        let list = list.as_array().ok_or_else(|| format!("no list of times: {list}"))?;
        let mut times = Self::new()?;
        for time in list.iter().skip(unused) {
            // An agent that takes its times in two threads may see the later one first.
            let time = time.as_f64().ok_or_else(|| format!("no time: {time}"))?.max(0.0);
            times.0.record(time as u64)?;
        }
        Ok(times)
    }

    pub(crate) fn add(&mut self, others: &Self) -> Result<()> {
        Ok(self.0.add(&others.0)?)
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// None of nothing.
    pub(crate) fn longest(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.at(1.0))
    }

    /// Those that are asked for everywhere, as far as so few can tell.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        QUANTILES
            .into_iter()
            .filter(|&(_, share)| are_enough(self.0.len(), share))
            .map(|(name, share)| Figure {
                name: name.into(),
                unit: Unit::Time,
                value: self.at(share),
            })
            .collect()
    }

    /// A round of nothing else.
    pub(crate) fn round(&self) -> Round {
        self.round_of(self.figures())
    }

    /// A round of these figures.
    pub(crate) fn round_of(&self, figures: Vec<Figure>) -> Round {
        Round { figures, distribution: self.distribution(), times: Some(self.0.len()) }
    }

    fn distribution(&self) -> Vec<(f64, f64)> {
        SHARES.into_iter().map(|share| (share, self.at(share))).collect()
    }

    /// In seconds. Of an even number there are two in the middle.
    fn at(&self, share: f64) -> f64 {
        let number = self.0.len();
        let one = self.0.value_at_quantile(share) as f64 / 1e9;
        if share == 0.5 && number.is_multiple_of(2) && number > 0 {
            // Half of one more, so that rounding leads to no other.
            let next = (number as f64 / 2.0 + 0.5) / number as f64;
            return f64::midpoint(one, self.0.value_at_quantile(next) as f64 / 1e9);
        }
        one
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        let median = |list: &[u64]| {
            let list: Vec<u64> = list.iter().map(|time| time * 1_000_000_000).collect();
            Times::read(&list.into(), 0).unwrap().median()
        };
        for (list, middle) in
            [(&[1, 2, 9][..], 2.0), (&[1, 2, 4, 9], 3.0), (&[5], 5.0), (&[1, 3], 2.0)]
        {
            assert!((median(list) - middle).abs() < 0.01, "{list:?}: {}", median(list));
        }
        let many: Vec<u64> = (1..=100).collect();
        assert!((median(&many) - 50.5).abs() < 0.1, "{}", median(&many));
    }

    #[test]
    fn a_quantile_of_too_few_is_none() {
        let names = |number: u64| {
            let times = Times::read(&(1..=number).collect::<Value>(), 0).unwrap();
            let round = times.round();
            let told: Vec<String> = round.told().map(|figure| figure.name.clone()).collect();
            assert_eq!(told.len(), round.figures.len());
            told
        };
        for few in [1, 4, 44, 99] {
            assert_eq!(names(few), ["p50"], "{few}");
        }
        for more in [100, 999] {
            assert_eq!(names(more), ["p50", "p99"], "{more}");
        }
        assert_eq!(names(1_000), ["p50", "p99", "p99.9"]);
    }
}
