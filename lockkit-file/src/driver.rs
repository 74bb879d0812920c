use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Claim, Driver, DriverError, ErrorKind, Grant, Inspect, Release, Renewal, Taken, Vouch,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Liveness, Result};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use crate::claims::Claims;
use crate::config::{Config, ID};
use crate::folder::Folder;
use crate::hold::Hold;

/// What the file driver promises.
///
/// There are no leases. The `ttl` says how often a hold is looked at; the least leaves 40 ms for a
/// request, of which syncing the disk is a part.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Process)
    .fencing()
    .inspection()
    .ttl(Duration::from_millis(200), Capabilities::MAX_TTL);

/// How long opening may take.
const OPENING_LIMIT: Duration = Duration::from_secs(5);

/// Locks in a folder, for the processes of one host.
///
/// Each hold is an open file of this process. Work on files is done on threads of the runtime that
/// may block, so that a slow disk keeps no task waiting but those that need it.
pub struct FileDriver {
    pub(crate) folder: Arc<Folder>,
    pub(crate) claims: Arc<Claims>,
    pub(crate) call_limit: Option<Duration>,
}

impl FileDriver {
    /// Opens the folder that `url` names.
    ///
    /// `file:locks` is relative to the current directory, `file:/var/lib/app/locks` and
    /// `file:///var/lib/app/locks` are absolute.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the URL names no folder or has parameters that the driver does not
    /// know, and whatever [`open`](Self::open) answers.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is made before a lock is asked for.
    pub async fn connect(url: &BackendUrl) -> Result<Self> {
        let Config { folder, call_limit } = Config::from_url(url)?;
        Ok(Self { call_limit, ..Self::open(folder).await? })
    }

    /// Opens the folder at `path`.
    ///
    /// Its users are its owner, and its group if that may write there. All of them can take any
    /// lock in it, and keep others from it.
    ///
    /// # Errors
    ///
    /// - [`Error::Misconfigured`] if there is no such folder, if it belongs to somebody else than
    ///   root or the user of this process, if everybody may replace files in it, or if its file
    ///   system is shared between hosts.
    /// - [`Error::Denied`] if this process may not look at it.
    /// - [`Error::Unreachable`] if it takes more than 5 s to find out.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is made before a lock is asked for.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let opening = spawn_blocking(move || Folder::open(&path));
        let opened = match timeout(OPENING_LIMIT, opening).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => Err(DriverError::new(ErrorKind::Unreachable, error)),
            Err(_) => {
                let text = format!("the folder did not open within {OPENING_LIMIT:?}");
                Err(DriverError::new(ErrorKind::Unreachable, text))
            }
        };
        let folder = opened.map_err(|error| Error::connecting(ID, error))?;
        Ok(Self { folder: Arc::new(folder), claims: Claims::new(), call_limit: None })
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Works on what the claim holds, within the call limit.
    async fn request<T: Send + 'static>(
        &self,
        claim: &Claim,
        work: impl FnOnce(&mut Option<Hold>) -> Result<T, DriverError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let deadline = Instant::now() + self.limit(claim);
        self.claims.work(claim.owner(), deadline, work).await
    }

    fn limit(&self, claim: &Claim) -> Duration {
        self.call_limit.unwrap_or(claim.call_limit())
    }
}

/// Until when a request waits for somebody else who is at the file: there has to be time to say so.
pub(crate) fn patience(call_limit: Duration) -> std::time::Instant {
    std::time::Instant::now() + call_limit * 3 / 4
}

#[async_trait]
impl Driver for FileDriver {
    fn id(&self) -> &'static str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let (folder, asking) = (Arc::clone(&self.folder), claim.clone());
        let limit = patience(self.limit(claim));
        self.request(claim, move |held| {
            let stands = held.as_ref().map(Hold::stands).transpose()?;
            if stands != Some(true) {
                // First lets go of a file that is not there any more.
                *held = None;
                *held = Hold::take(&folder, &asking, limit)?;
            }
            Ok(match held {
                Some(hold) => {
                    let grant = Grant::new().token(hold.token()).vouch(Vouch::WhileAlive);
                    Attempt::Granted(grant)
                }
                None => Attempt::Taken(Taken::new()),
            })
        })
        .await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.request(claim, |held| {
            let stands = held.as_ref().map(Hold::stands).transpose()?;
            Ok(match stands {
                Some(true) => Renewal::Held(Vouch::WhileAlive),
                _ => Renewal::Lost,
            })
        })
        .await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.request(claim, |held| {
            Ok(match held.take().is_some_and(Hold::end) {
                true => Release::Freed,
                false => Release::NotHeld,
            })
        })
        .await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>, DriverError> {
        self.request(claim, |held| held.as_mut().map(Hold::share).transpose()).await
    }

    async fn close(&self) {
        self.claims.close().await;
    }
}

impl fmt::Debug for FileDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDriver").field("path", &self.path()).finish_non_exhaustive()
    }
}
