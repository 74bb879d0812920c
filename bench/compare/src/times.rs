//! Distributions of what agents tell.

use hdrhistogram::Histogram;
use lockkit_bench::{Result, Unit};
use serde_json::Value;

use crate::run::Figure;

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

    /// Those that are asked for everywhere, as far as so few can tell.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)]
            .into_iter()
            .map(|(name, share)| Figure {
                name: name.into(),
                unit: Unit::Time,
                value: self.at(share),
            })
            .collect()
    }

    pub(crate) fn distribution(&self) -> Vec<(f64, f64)> {
        SHARES.into_iter().map(|share| (share, self.at(share))).collect()
    }

    /// In seconds.
    fn at(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e9
    }
}
