//! How busy things are.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::{Figure, Result, Unit};

/// How long many things took each.
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

    /// Those that are asked for everywhere. None of nothing, which is not to be taken for no time.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let figure =
            |(name, percent)| Figure::new(name, Unit::Time, self.at(percent).as_secs_f64());
        [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)].map(figure).to_vec()
    }

    fn at(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }
}

/// Jain's index: 1 if all have got the same, 1/n if one has got all.
pub(crate) fn fairness(shares: &[u64]) -> f64 {
    let shares = shares.iter().map(|&share| share as f64);
    let (sum, squares) = shares
        .clone()
        .fold((0.0, 0.0), |(sum, squares), share| (sum + share, share.mul_add(share, squares)));
    match squares {
        0.0 => 1.0,
        squares => sum * sum / (shares.len() as f64 * squares),
    }
}

#[cfg(test)]
mod tests {
    use super::fairness;

    #[test]
    fn fairness_is_one_for_equal_shares_and_least_for_one_that_has_all() {
        assert_eq!(fairness(&[7, 7, 7, 7]), 1.0);
        assert_eq!(fairness(&[9, 0, 0, 0]), 0.25);
        assert_eq!(fairness(&[0, 0]), 1.0);
    }
}
