use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, ErrorKind, Grant, Inspect, Release,
    Renewal, Taken, Vouch,
};
use lockkit_core::{BackendUrl, Capabilities, Error, Liveness, Result};
use tokio::time::{Instant, timeout};

use crate::claims::{Claims, start_blocking};
use crate::config::{Config, ID};
use crate::folder::Folder;
use crate::hold::{Disturbance, Hold, Taking};
use crate::housekeeping::Housekeeping;
use crate::news::{self, Listening, News, PATIENCE};

/// What the file driver promises.
///
/// There are no leases. The `ttl` says how often a hold is looked at; the least one leaves 40 ms
/// for a request, which includes syncing the disk.
///
/// Waiters are told of a release on Linux and Android, and poll elsewhere.
pub const CAPABILITIES: Capabilities = {
    let everywhere = Capabilities::new(Liveness::Process)
        .fencing()
        .inspection()
        .ttl(Duration::from_millis(200), Capabilities::MAX_TTL);
    if news::ARE_TOLD { everywhere.notification() } else { everywhere }
};

/// How many times to begin to listen, and how soon to ask again if the lock changes hands each
/// time.
const TRIES: usize = 8;
const BUSY: Duration = Duration::from_millis(5);

/// How long opening may take.
const OPENING_LIMIT: Duration = Duration::from_secs(5);

/// Locks in a folder, for the processes of one host.
///
/// Each hold is an open file of this process. Work on files is done on threads of the runtime that
/// may block, so that a slow disk holds up only the tasks that need it.
pub struct FileDriver {
    pub(crate) folder: Arc<Folder>,
    pub(crate) claims: Arc<Claims>,
    news: Arc<News>,
    housekeeping: Housekeeping,
    pub(crate) call_limit: CallLimit,
}

impl FileDriver {
    /// Opens the folder that `url` names.
    ///
    /// `file:locks` is relative to the current directory, `file:/var/lib/app/locks` and
    /// `file:///var/lib/app/locks` are absolute.
    ///
    /// What `url` says about a locker, such as its `namespace`, is only checked here:
    /// [`Locker::from_url`](lockkit_core::Locker::from_url) applies it, and
    /// [`Locker::new`](lockkit_core::Locker::new) does not.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the URL names no folder or has parameters that the driver does not
    /// know, and the errors of [`open`](Self::open).
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
    /// Its users are its owner and, if the group may write there, its group. All of them can take
    /// any lock in it, and keep others from it.
    ///
    /// # Errors
    ///
    /// - [`Error::Misconfigured`] if there is no such folder, if it belongs to somebody other than
    ///   root or the user of this process, if everybody may replace files in it, or if its file
    ///   system is shared between hosts.
    /// - [`Error::Denied`] if this process may not look at it.
    /// - [`Error::Capacity`] if the system has no thread left to look with.
    /// - [`Error::Unreachable`] if it takes more than 5 s to find out.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is made before a lock is asked for.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let opened = async {
            let opening = start_blocking(move || Folder::open(&path))?;
            timeout(OPENING_LIMIT, opening).await.unwrap_or_else(|_| {
                let text = format!("the folder did not open within {OPENING_LIMIT:?}");
                Err(DriverError::new(ErrorKind::Unreachable, text))
            })
        };
        let folder = opened.await.map_err(|error| Error::connecting(ID, error))?;
        let (folder, news) = (Arc::new(folder), Arc::new(News::new()));
        let housekeeping = Housekeeping::begin(Arc::clone(&folder));
        Ok(Self {
            folder,
            claims: Claims::new(),
            news,
            housekeeping,
            call_limit: CallLimit::default(),
        })
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Works on what the claim holds, within the call limit.
    async fn request<T: Send + 'static>(
        &self,
        claim: &Claim,
        work: impl FnMut(&mut Option<Hold>) -> Result<T, DriverError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let deadline = Instant::now() + self.call_limit.of(claim);
        self.claims.work(claim.owner(), deadline, work).await
    }
}

/// How long a request waits for somebody else who is at the file: there has to be time to say so.
pub(crate) fn patience(call_limit: Duration) -> std::time::Instant {
    std::time::Instant::now() + call_limit * 3 / 4
}

/// What came of an ask.
enum Asked {
    Granted(Hold),
    Taken(Taken),
    Disturbed(Disturbance),
}

/// Takes the lock. A claim that waits and is refused hears of what comes after that.
///
/// It begins to listen only once it is refused, and then asks once more: a claim that need not wait
/// pays nothing for it.
fn take(
    folder: &Folder,
    claim: &Claim,
    before: Option<Disturbance>,
    news: &News,
) -> Result<Asked, DriverError> {
    let (owner, path) = (claim.owner(), folder.file_of(claim.name()));
    if claim.waits() && before.is_none() && news.are_in_vain(owner) {
        news.listen(owner, &path);
    }
    for _ in 0..TRIES {
        match Hold::take(folder, claim, before)? {
            Taking::Granted(hold) => {
                news.leave(owner);
                return Ok(Asked::Granted(hold));
            }
            Taking::Disturbed(by) => return Ok(Asked::Disturbed(by)),
            Taking::Taken if !claim.waits() => return Ok(Asked::Taken(Taken::new())),
            Taking::Taken => match news.listen(owner, &path) {
                Listening::Still => {
                    return Ok(Asked::Taken(Taken::new().ask_within(PATIENCE)));
                }
                Listening::Deaf => return Ok(Asked::Taken(Taken::new().unheard())),
                Listening::FromNow => (),
            },
        }
    }
    Ok(Asked::Taken(Taken::new().ask_within(BUSY)))
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
        let (folder, news) = (Arc::clone(&self.folder), Arc::clone(&self.news));
        let (asking, mut disturbed) = (claim.clone(), None);
        let call_limit = self.call_limit.of(claim);
        let (deadline, limit) = (Instant::now() + call_limit, patience(call_limit));
        let asked = self.claims.work_again(claim.owner(), deadline, move |held| {
            let granted = |hold: &Hold| {
                let grant = Grant::new().token(hold.token()).vouch(Vouch::WhileAlive);
                ControlFlow::Break(Attempt::Granted(grant))
            };
            match held {
                Some(hold) if hold.stands()? => return Ok(granted(hold)),
                // First lets go of a file that is no longer there.
                _ => *held = None,
            }
            match take(&folder, &asking, disturbed, &news)? {
                Asked::Granted(hold) => Ok(granted(held.insert(hold))),
                Asked::Taken(taken) => Ok(ControlFlow::Break(Attempt::Taken(taken))),
                Asked::Disturbed(by) => {
                    disturbed = Some(by);
                    match limit.saturating_duration_since(std::time::Instant::now()) {
                        Duration::ZERO => Err(by.goes_on().at(&folder.file_of(asking.name()))),
                        left => Ok(ControlFlow::Continue(left)),
                    }
                }
            }
        });
        let asked = asked.await;
        if asked.as_ref().is_err_and(|error| error.kind() != ErrorKind::Unknown) {
            // Such a claim need not be released.
            self.news.leave(claim.owner());
        }
        asked
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
        let (news, owner) = (Arc::clone(&self.news), claim.owner());
        self.request(claim, move |held| {
            // In here, so that it comes after an ask that is still being carried out.
            news.leave(owner);
            Ok(match held.take().is_some_and(Hold::end) {
                true => Release::Freed,
                false => Release::NotHeld,
            })
        })
        .await
    }

    async fn changed(&self, claim: &Claim) -> Change {
        self.news.changed(claim.owner()).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>, DriverError> {
        self.request(claim, |held| held.as_mut().map(Hold::share).transpose()).await
    }

    async fn close(&self) {
        self.housekeeping.end();
        self.news.close();
        self.claims.close().await;
    }
}

impl fmt::Debug for FileDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDriver").field("path", &self.path()).finish_non_exhaustive()
    }
}
