use std::fmt;

use async_trait::async_trait;

use crate::{Figure, Result, Scale, Subject};

/// A way to use locks, of which something is measured.
#[async_trait]
pub trait Workload: fmt::Debug + Send + Sync {
    /// A short name in lower case, such as `hand-over`.
    fn name(&self) -> &'static str;

    /// What is measured, in a sentence.
    fn about(&self) -> &'static str;

    /// Measures once. Each subject has one round after the other; nothing else is measured at the
    /// same time.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from being measured: the report has that instead.
    ///
    /// # Cancel safety
    ///
    /// Dropped when it takes too long: what was taken is released.
    async fn round(&self, subject: &Subject, scale: &Scale) -> Result<Vec<Reading>>;
}

/// What one round has found out about one case of a workload.
#[derive(Clone, Debug)]
pub struct Reading {
    pub(crate) case: String,
    pub(crate) figures: Vec<Figure>,
}

impl Reading {
    /// The reading of a case, such as `8 clients`; empty if there is only one.
    pub fn of(case: impl Into<String>, figures: Vec<Figure>) -> Self {
        Self { case: case.into(), figures }
    }
}
