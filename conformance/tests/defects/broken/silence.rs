//! Requests to a backend that answers nothing: they arrive when it goes on.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkit_core::driver::{
    Attempt, CallLimit, Claim, Driver as _, DriverError, ErrorKind, Release, Renewal, Vouch,
};
use lockkit_core::{Capabilities, Diagnosis, Holder, LockName, LockStatus};
use tokio::time::sleep;

use super::{Broken, Server};
use crate::catalogue::Defect;

impl Server {
    pub(crate) fn fall_silent(&self) {
        self.is_silent.send_replace(true);
    }

    pub(crate) fn speak(&self) {
        self.is_silent.send_replace(false);
    }

    /// Resolves when it answers.
    pub(super) async fn speaks(&self) {
        // The sender is its own.
        _ = self.is_silent.subscribe().wait_for(|is_silent| !is_silent).await;
    }
}

impl Broken {
    pub(super) fn is_silent(&self) -> bool {
        *self.server.is_silent.borrow()
    }

    pub(super) async fn ask_in_silence(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let stored = self.translate(claim)?;
        let server = self.server.clone();
        tokio::spawn(async move {
            server.speaks().await;
            let arrived = if server.has(Defect::RenewsWhatWasGivenUp) {
                sleep(stored.ttl() / 10).await;
                stored.with_ttl(Capabilities::MAX_TTL)
            } else {
                stored
            };
            _ = server.memory.try_acquire(&arrived).await;
        });
        self.unanswered(claim.call_limit()).await
    }

    pub(super) async fn renew_in_silence(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        if self.has(Defect::RenewsInSilence) {
            return Ok(Renewal::Held(Vouch::FromRequest));
        }
        let stored = self.translate(claim)?;
        let server = self.server.clone();
        tokio::spawn(async move {
            server.speaks().await;
            _ = server.memory.renew(&stored).await;
        });
        self.unanswered(claim.call_limit()).await
    }

    pub(super) async fn release_in_silence(&self, claim: &Claim) -> Result<Release, DriverError> {
        let stored = self.translate(claim)?;
        let server = self.server.clone();
        tokio::spawn(async move {
            server.speaks().await;
            _ = server.memory.release(&stored).await;
        });
        self.unanswered(claim.call_limit()).await
    }

    pub(super) async fn look_in_silence(&self) -> Result<LockStatus, DriverError> {
        if self.has(Defect::LooksWithoutALimit) {
            return pending().await;
        }
        self.unanswered(CallLimit::default().of_a_look()).await
    }

    pub(super) async fn list_in_silence(&self) -> Result<Vec<LockStatus>, DriverError> {
        match self.server.defect {
            Some(Defect::ListsWithoutALimit) => pending().await,
            Some(Defect::ListsNothingInSilence) => Ok(Vec::new()),
            _ => self.unanswered(CallLimit::default().of_a_look()).await,
        }
    }

    pub(super) async fn diagnose_in_silence(&self) -> Result<Vec<Diagnosis>, DriverError> {
        match self.server.defect {
            Some(Defect::DiagnosesWithoutALimit) => pending().await,
            Some(Defect::AllIsWellInSilence) => Ok(vec![Diagnosis::good("backend", "it answers")]),
            _ => self.unanswered(CallLimit::default().of_a_look()).await,
        }
    }

    pub(super) async fn break_in_silence(
        &self,
        name: LockName,
    ) -> Result<Option<Holder>, DriverError> {
        if self.has(Defect::BreaksWithoutALimit) {
            return pending().await;
        }
        let server = self.server.clone();
        tokio::spawn(async move {
            server.speaks().await;
            server.revoke(&name);
        });
        self.unanswered(CallLimit::default().of_a_look()).await
    }

    async fn unanswered<T>(&self, limit: Duration) -> Result<T, DriverError> {
        if self.has(Defect::WaitsForAnswers) {
            return pending().await;
        }
        sleep(limit).await;
        self.has_given_up.store(true, Ordering::Relaxed);
        let kind = match self.has(Defect::CallsTheUnansweredUnreachable) {
            true => ErrorKind::Unreachable,
            false => ErrorKind::Unknown,
        };
        Err(DriverError::new(kind, "no answer"))
    }
}
