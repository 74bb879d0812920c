//! Why a majority gives no answer.

use lockkit_core::driver::{DriverError, ErrorKind};

use crate::driver::Quorum;
use crate::member::causes;

/// What a request may have left on the nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Left {
    Nothing,
    Something,
    /// What their failures tell of.
    AsTheySay,
}

impl Quorum {
    /// Why there is no answer, when so many nodes gave a vote. `failures` has one entry per node.
    pub(crate) fn no_majority(
        &self,
        given: usize,
        failures: impl IntoIterator<Item = Option<DriverError>>,
        left: Left,
    ) -> DriverError {
        let failures: Vec<_> = failures
            .into_iter()
            .zip(&self.nodes.members)
            .filter_map(|(failure, member)| Some((&*member.name, failure?)))
            .collect();
        let kinds: Vec<_> = failures.iter().map(|(_, error)| error.kind()).collect();
        let is_lasting = |kind: &ErrorKind| !kind.is_transient();
        let blocks = |kind: &ErrorKind| {
            kinds.iter().filter(|other| *other == kind).count()
                > self.nodes.len() - self.nodes.quorum()
        };
        let kind = match kinds.iter().find(|kind| is_lasting(kind) && blocks(kind)) {
            Some(lasting) => *lasting,
            None => match left {
                Left::Nothing => ErrorKind::Unreachable,
                Left::Something => ErrorKind::Unknown,
                Left::AsTheySay if kinds.contains(&ErrorKind::Unknown) => ErrorKind::Unknown,
                Left::AsTheySay => ErrorKind::Unreachable,
            },
        };
        let reasons = failures
            .into_iter()
            .map(|(name, error)| format!("{name}: {}", causes(&*error.into_source())))
            .collect();
        let (nodes, needed) = (self.nodes.len(), self.nodes.quorum());
        DriverError::new(kind, NoMajority { given, nodes, needed, reasons })
    }
}

pub(crate) fn unreachable(reason: impl Into<String>) -> DriverError {
    DriverError::new(ErrorKind::Unreachable, reason.into())
}

pub(crate) fn silent() -> DriverError {
    DriverError::new(ErrorKind::Unknown, "no answer in time")
}

pub(crate) fn strange() -> DriverError {
    DriverError::new(ErrorKind::Unsupported, "an answer that a quorum does not understand")
}

/// Too few nodes gave a vote.
#[derive(Debug, thiserror::Error)]
#[error("{given} of {nodes} nodes gave a vote, {needed} are needed ({})", reasons.join("; "))]
pub(crate) struct NoMajority {
    given: usize,
    nodes: usize,
    needed: usize,
    reasons: Vec<String>,
}
