//! Looking at the locks of a folder, and breaking their holds.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{DriverError, ErrorKind, Inspect, OwnerId};
use lockkit_core::{Diagnosis, Holder, LockName, LockStatus, Namespace};
use tokio::time::Instant;

use crate::breaking;
use crate::diagnosis;
use crate::driver::{FileDriver, patience};
use crate::folder::Folder;
use crate::look;

/// Who waits is not known: waiters leave no trace.
#[async_trait]
impl Inspect for FileDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let name = name.clone();
        self.observe(move |folder| {
            let holder = look::holder(folder, &name);
            let holder = holder.map_err(|problem| problem.at(&folder.file_of(&name)))?;
            Ok(look::status(name, holder))
        })
        .await
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let namespace = namespace.clone();
        self.observe(move |folder| held(folder, &namespace)).await
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        let (folder, name) = (Arc::clone(&self.folder), name.clone());
        let limit = patience(self.inspection_limit());
        self.claims
            .work_aside(self.deadline(), move || {
                let broken = breaking::break_hold(&folder, &name, owner, limit);
                let broken = broken.map_err(|problem| problem.at(&folder.file_of(&name)))?;
                Ok(broken.as_ref().map(look::holder_of))
            })
            .await
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        let namespace = namespace.clone();
        self.observe(move |folder| Ok(diagnosis::diagnose(folder, &namespace))).await
    }
}

impl FileDriver {
    /// Work that only reads, and so leaves nothing unknown.
    async fn observe<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T, DriverError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let folder = Arc::clone(&self.folder);
        let seen = self.claims.work_aside(self.deadline(), move || work(&folder)).await;
        seen.map_err(|error| match error.kind() {
            ErrorKind::Unknown => DriverError::new(ErrorKind::Unreachable, error.into_source()),
            _ => error,
        })
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.inspection_limit()
    }

    fn inspection_limit(&self) -> Duration {
        self.call_limit.of_a_look()
    }
}

fn held(folder: &Folder, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
    let path = folder.path_of(namespace);
    let mut held = Vec::new();
    for entry in look::entries(folder, namespace).map_err(|problem| problem.at(&path))? {
        let entry = entry.map_err(|problem| problem.at(&path))?;
        let holder = entry.holder().map_err(|problem| problem.at(&entry.path))?;
        match entry.content {
            Ok(Some((name, _))) if holder.is_some() => held.push(look::status(name, holder)),
            Ok(_) => (),
            // What is not a lock file holds no lock. A diagnosis tells of it.
            Err(problem) if problem.kind() == ErrorKind::Foreign => (),
            Err(problem) => return Err(problem.at(&entry.path)),
        }
    }
    held.sort_by(|one, other| one.name().cmp(other.name()));
    Ok(held)
}
