use std::pin::Pin;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use lockkit_core::driver::Driver;
use lockkit_core::{BoxError, Capabilities, Fairness, Liveness, LockName, Namespace};

use crate::asks::Asks;
use crate::checks::{Check, Need};

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
pub(crate) type Hook = Arc<dyn Fn() -> BoxFuture<Result<(), BoxError>> + Send + Sync>;
type Connect = Arc<dyn Fn() -> BoxFuture<Result<Arc<dyn Driver>, BoxError>> + Send + Sync>;
type Revoke = Arc<dyn Fn(LockName) -> BoxFuture<Result<(), BoxError>> + Send + Sync>;

/// What the author of a driver said about it.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) id: &'static str,
    pub(crate) capabilities: Capabilities,
    pub(crate) connect: Option<Connect>,
    pub(crate) namespace: Option<Namespace>,
    pub(crate) revoke: Option<Revoke>,
    pub(crate) sever: Option<Hook>,
    /// How the backend falls silent, and how it speaks again.
    pub(crate) silence: Option<(Hook, Hook)>,
    pub(crate) restart: Option<Hook>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) virtual_time: bool,
    pub(crate) by_votes: bool,
    /// How many connections one check may have at most.
    pub(crate) connections: usize,
    /// Held alone by checks that disturb the backend.
    pub(crate) backend: Arc<RwLock<()>>,
    pub(crate) asks: Arc<Asks>,
}

impl Setup {
    pub(crate) fn new(id: &'static str, capabilities: Capabilities) -> Self {
        Self {
            id,
            capabilities,
            connect: None,
            namespace: None,
            revoke: None,
            sever: None,
            silence: None,
            restart: None,
            ttl: None,
            virtual_time: false,
            by_votes: false,
            connections: usize::MAX,
            backend: Arc::default(),
            asks: Arc::default(),
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        let Capabilities { min_ttl, max_ttl, .. } = self.capabilities;
        let usual = Duration::from_secs(if self.virtual_time { 30 } else { 1 });
        // A long lease is to outlast some of these, where it can.
        self.ttl.unwrap_or(usual.min(max_ttl / 4)).clamp(min_ttl, max_ttl)
    }

    /// Why the check cannot be run on this driver.
    pub(crate) fn lacks(&self, check: &Check) -> Option<&'static str> {
        let capabilities = &self.capabilities;
        check.needs().iter().find_map(|need| match need {
            Need::Lease if capabilities.liveness != Liveness::Lease => {
                Some("the driver's holds are no leases")
            }
            Need::Fencing if !capabilities.fencing => Some("the driver gives no fencing tokens"),
            Need::Notification if !capabilities.notification => {
                Some("the driver tells of no release")
            }
            Need::Order if capabilities.fairness == Fairness::Unordered => {
                Some("the driver serves waiters in no order")
            }
            Need::Inspection if !capabilities.inspection => Some("the driver cannot be inspected"),
            Need::Revoke if self.revoke.is_none() && !capabilities.inspection => {
                Some("the suite was given no `revoke`")
            }
            Need::Sever if self.sever.is_none() => Some("the suite was given no `sever`"),
            Need::Silence if self.silence.is_none() => Some("the suite was given no `silence`"),
            Need::Restart if self.restart.is_none() => Some("the suite was given no `restart`"),
            _ => None,
        })
    }
}
