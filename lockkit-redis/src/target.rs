use std::fmt;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::sentinel::Sentinels;

/// The server that connections go to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// Always this one.
    Server(Endpoint),
    /// The one that sentinels call the primary.
    Primary(Arc<Sentinels>),
    /// A cluster, of which these members are known at first.
    Cluster(Vec<Endpoint>),
}

impl Target {
    /// Where it is now, as far as one can know.
    pub(crate) async fn locate(&self) -> Result<Endpoint, Failure> {
        match self {
            Self::Server(endpoint) => Ok(endpoint.clone()),
            Self::Primary(sentinels) => sentinels.locate().await,
            // In a cluster, each connection has a member as its target.
            Self::Cluster(members) => members.first().cloned().ok_or(Failure::NoOwner),
        }
    }

    /// The sentinels that tell when another server has become the primary.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match self {
            Self::Server(_) | Self::Cluster(_) => None,
            Self::Primary(sentinels) => Some(sentinels),
        }
    }

    /// The user that servers are greeted as.
    pub(crate) fn user(&self) -> &str {
        match self {
            Self::Server(endpoint) => endpoint.user(),
            Self::Primary(sentinels) => sentinels.server().user(),
            Self::Cluster(members) => members.first().map_or("default", Endpoint::user),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(endpoint) => endpoint.fmt(f),
            Self::Primary(sentinels) => sentinels.fmt(f),
            Self::Cluster(_) => f.write_str("a cluster"),
        }
    }
}
