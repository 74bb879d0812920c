//! How busy things are.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::{Figure, Result, Unit};

/// How long each of many things took.
#[derive(Debug)]
pub(crate) struct Times(Histogram<u64>);

impl Times {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Histogram::new(3)?))
    }

    pub(crate) fn note(&mut self, time: Duration) -> Result<()> {
        Ok(self.0.record(u64::try_from(time.as_nanos())?)?)
    }

    pub(crate) fn add(&mut self, others: &Self) -> Result<()> {
        Ok(self.0.add(&others.0)?)
    }

    pub(crate) fn median(&self) -> Duration {
        self.at(50.0)
    }

    /// The figures that are asked for everywhere, as far as so few times can tell. There are none
    /// if nothing was timed, which must not be taken for no time.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let enough = QUANTILES.into_iter().filter(|&(_, share)| are_enough(self.0.len(), share));
        let figure = |(name, share): (&'static str, f64)| {
            Figure::new(name, Unit::Time, self.at(100.0 * share).as_secs_f64())
        };
        enough.map(figure).collect()
    }

    /// `None` if nothing was timed.
    pub(crate) fn longest(&self) -> Option<Figure> {
        let longest = || Figure::new("longest", Unit::Time, self.at(100.0).as_secs_f64());
        (!self.0.is_empty()).then(longest)
    }

    fn at(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }
}

/// The quantiles that are reported of whatever takes time: their names, and the share of all times
/// that is within each.
pub const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// Whether so many times are enough to tell within which of them that share stayed: with fewer, it
/// would be the longest. The median counts, however few there are.
pub fn are_enough(times: u64, share: f64) -> bool {
    const NEXT_TO_NOTHING: f64 = 1e-6;
    share <= 0.5 || times as f64 * (1.0 - share) >= 1.0 - NEXT_TO_NOTHING
}

/// [Jain's index](https://arxiv.org/abs/cs/9809099): 1 if all have got the same, 1/n if one has got
/// all. `None` if it would tell more about how few there were: four each are enough, since the
/// index is 0.99 where half have got four, and half five.
pub fn fairness(shares: &[u64]) -> Option<f64> {
    const ENOUGH: f64 = 4.0;
    let number = shares.len() as f64;
    let (sum, squares) =
        shares.iter().map(|&share| share as f64).fold((0.0, 0.0), |(sum, squares), share| {
            (sum + share, f64::mul_add(share, share, squares))
        });
    (sum > 0.0 && sum >= ENOUGH * number).then(|| sum * sum / (number * squares))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Times, fairness};

    #[test]
    fn fairness_is_one_for_equal_shares_and_least_for_one_that_has_all() {
        assert_eq!(fairness(&[7, 7, 7, 7]), Some(1.0));
        assert_eq!(fairness(&[16, 0, 0, 0]), Some(0.25));
        // With so few it would be 0.5 whoever got them.
        assert_eq!(fairness(&[1, 1, 0, 0]), None);
        assert_eq!(fairness(&[0, 0]), None);
        assert_eq!(fairness(&[]), None);
    }

    #[test]
    fn a_quantile_of_too_few_is_none() {
        let names = |number: u64| {
            let mut times = Times::new().unwrap();
            (1..=number).for_each(|time| times.note(Duration::from_nanos(time)).unwrap());
            times.figures().iter().map(|figure| figure.name).collect::<Vec<_>>()
        };
        assert_eq!(names(0), [""; 0]);
        assert_eq!(names(99), ["p50"]);
        assert_eq!(names(999), ["p50", "p99"]);
        assert_eq!(names(1_000), ["p50", "p99", "p99.9"]);
    }
}
