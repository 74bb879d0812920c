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
        self.observe(move |folder, _| {
            let holder = look::holder(folder, &name);
            let holder = holder.map_err(|problem| problem.at(&folder.file_of(&name)))?;
            Ok(look::status(name, holder))
        })
        .await
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let namespace = namespace.clone();
        self.observe(move |folder, limit| held(folder, &namespace, limit)).await
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
        self.observe(move |folder, limit| Ok(diagnosis::diagnose(folder, &namespace, limit))).await
    }
}

impl FileDriver {
    /// Work that only reads, and so leaves nothing unknown. It is told by when to come to an end.
    async fn observe<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder, std::time::Instant) -> Result<T, DriverError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let folder = Arc::clone(&self.folder);
        let limit = patience(self.inspection_limit());
        let seen = self.claims.work_aside(self.deadline(), move || work(&folder, limit)).await;
        seen.map_err(DriverError::without_effect)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.inspection_limit()
    }

    fn inspection_limit(&self) -> Duration {
        self.call_limit.of_a_look()
    }
}

fn held(
    folder: &Folder,
    namespace: &Namespace,
    limit: std::time::Instant,
) -> Result<Vec<LockStatus>, DriverError> {
    let path = folder.path_of(namespace);
    let mut held = Vec::new();
    for entry in look::entries(folder, namespace, limit).map_err(|problem| problem.at(&path))? {
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use lockkit_core::Grade;
    use lockkit_core::driver::ErrorKind;

    use super::held;
    use crate::diagnosis::diagnose;
    use crate::hold::tests::{set_up, take};

    /// Otherwise it would go on while nobody waits for it any more, on a thread that others need.
    #[test]
    fn what_goes_through_all_files_ends_in_time() {
        let (_root, folder, claim) = set_up();
        let namespace = claim.name().namespace().clone();
        let later = Instant::now() + Duration::from_secs(60);
        let _hold = take(&folder, &claim).unwrap();
        assert_eq!(held(&folder, &namespace, later).unwrap().len(), 1);
        let error = held(&folder, &namespace, Instant::now()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        // One is not too many: the thread was late.
        let text = error.into_source().source().unwrap().to_string();
        assert_eq!(text, "there is no time left to look at all files");
        // The rest of a diagnosis stands.
        let findings = diagnose(&folder, &namespace, Instant::now());
        let files = findings.iter().find(|finding| finding.topic() == "files").unwrap();
        assert_eq!(files.grade(), Grade::Warning, "{files:?}");
        assert!(findings.iter().all(|finding| finding.grade() != Grade::Error), "{findings:?}");
    }
}
