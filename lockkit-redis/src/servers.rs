use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{DriverError, Run};
use redis::Value;
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::request::Request;
use crate::subscription::Subscription;
use crate::target::Target;

/// What requests are sent to.
#[derive(Debug)]
pub(crate) enum Servers {
    One(Connection),
    Cluster(Cluster),
}

impl Servers {
    pub(crate) async fn open(target: Target) -> Result<Self, Failure> {
        Ok(match target {
            Target::Cluster(seeds) => Self::Cluster(Cluster::open(seeds).await?),
            target => Self::One(Connection::open(target).await?),
        })
    }

    /// Sends a request to whoever it is for, and waits for its answer, for `limit` in all.
    pub(crate) async fn call(
        &self,
        request: &impl Request,
        limit: Duration,
    ) -> Result<Value, DriverError> {
        match self {
            Self::One(connection) => connection.call(request, limit).await,
            // Boxed, since this future is larger, and most have no cluster.
            Self::Cluster(cluster) => Box::pin(cluster.call(request, limit)).await,
        }
    }

    /// As [`call`](Self::call), to one of the [`members`](Self::members).
    pub(crate) async fn call_at(
        &self,
        member: Option<&Endpoint>,
        request: &impl Request,
        limit: Duration,
    ) -> Result<Value, DriverError> {
        match (self, member) {
            (Self::Cluster(cluster), Some(member)) => cluster.call_at(member, request, limit).await,
            _ => self.call(request, limit).await,
        }
    }

    /// Where the connection leads by which one of the [`members`](Self::members) is called.
    pub(crate) fn place_of(
        &self,
        member: Option<&Endpoint>,
    ) -> Result<watch::Receiver<Option<Endpoint>>, DriverError> {
        match (self, member) {
            (Self::Cluster(cluster), Some(member)) => cluster.place_of(member),
            (Self::Cluster(_), None) => Err(Failure::NoOwner.while_connecting()),
            (Self::One(connection), _) => Ok(connection.place()),
        }
    }

    /// The servers that have keys; one `None` if there is only one server.
    ///
    /// # Errors
    ///
    /// No member of the cluster says which these are.
    pub(crate) async fn members(&self) -> Result<Vec<Option<Endpoint>>, DriverError> {
        Ok(match self {
            Self::One(_) => vec![None],
            Self::Cluster(cluster) => cluster.primaries().await?.into_iter().map(Some).collect(),
        })
    }

    /// The connection for their news.
    pub(crate) fn subscription(&self) -> Subscription {
        match self {
            Self::One(connection) => Subscription::new(connection.place()),
            Self::Cluster(cluster) => Subscription::of_cluster(Arc::clone(cluster.shared())),
        }
    }

    /// Which run of the server the calls go to, if there is only one server.
    pub(crate) async fn run(&self, limit: Duration) -> Result<Run, DriverError> {
        match self {
            Self::One(connection) => connection.run(limit).await,
            Self::Cluster(_) => Err(Failure::NoOneRun.while_connecting()),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::One(connection) => connection.close(),
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}
