//! The members of the cluster: a client for each, and one of them at a time in use.
//!
//! The client library can balance over several members, but then goes on to send requests to those
//! that are down.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, ResponseHeader};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::Failure;

/// How long connecting to one member may take, logging in included.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Where the cluster is, and how to get in.
pub(crate) struct Members {
    members: Vec<Member>,
    options: ConnectOptions,
    /// Logs in with these, if the cluster wants a user.
    credentials: Option<(String, String)>,
    /// The index of the member in use. All go elsewhere when it fails.
    current: watch::Sender<usize>,
    /// The cluster that the members belong to; 0 while it is not known.
    cluster: AtomicU64,
    is_closed: AtomicBool,
}

struct Member {
    url: String,
    /// Shared, since it is many clients, one for each service.
    client: Mutex<Option<Arc<Client>>>,
}

/// What came of a request.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    pub(crate) outcome: Result<T, Failure>,
    /// Whether something that was sent was not answered, and may be carried out yet.
    pub(crate) in_doubt: bool,
}

impl Members {
    pub(crate) fn new(
        urls: Vec<String>,
        options: ConnectOptions,
        credentials: Option<(String, String)>,
    ) -> Self {
        let member = |url| Member { url, client: Mutex::default() };
        let members: Vec<_> = urls.into_iter().map(member).collect();
        // So that the clients of an application do not all go to the same.
        let first = fastrand::usize(..members.len().max(1));
        let (current, cluster) = (watch::Sender::new(first), AtomicU64::new(0));
        let is_closed = AtomicBool::new(false);
        Self { members, options, credentials, current, cluster, is_closed }
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The member in use.
    pub(crate) fn current(&self) -> usize {
        *self.current.borrow()
    }

    /// Tells of each change of the member in use.
    pub(crate) fn changes(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// What the member is called in messages.
    pub(crate) fn name(&self, member: usize) -> &str {
        let url = self.members.get(member).map_or("", |member| &member.url);
        url.split_once("://").map_or(url, |(_, host)| host)
    }

    /// Goes to the next member, unless somebody has already gone from this one.
    pub(crate) fn leave(&self, member: usize) {
        self.current.send_if_modified(|current| {
            let leaves = *current == member && self.members.len() > 1;
            if leaves {
                *current = (member + 1) % self.members.len();
                tracing::debug!(
                    from = self.name(member),
                    to = self.name(*current),
                    "another member"
                );
            }
            leaves
        });
    }

    /// Sends a request that may be sent twice: if the member in use does not answer within half of
    /// the limit, or says that it cannot, to the next one, and so on while there is time.
    pub(crate) async fn call<T, F>(
        &self,
        limit: Duration,
        request: impl Fn(Arc<Client>) -> F,
    ) -> Reply<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let end = Instant::now() + limit;
        let mut in_doubt = false;
        let mut failure = Failure::NoAnswer(limit);
        for tried in 0..self.members.len() {
            let member = self.current();
            let is_last = tried + 1 == self.members.len();
            let until = if is_last { end } else { Instant::now() + limit / 2 };
            let attempt = async { Ok(request(self.client(member).await?).await?) };
            // In a box: it is large, and who waits for the lock later is no smaller for it.
            failure = match timeout_at(until.min(end), Box::pin(attempt)).await {
                Ok(Ok(answer)) => return Reply { outcome: Ok(answer), in_doubt },
                Ok(Err(failure)) => failure,
                Err(_) => Failure::NoAnswer(limit),
            };
            if !failure.is_about_the_member() {
                break;
            }
            in_doubt |= !matches!(failure.kind(), lockkit_core::driver::ErrorKind::Unreachable);
            self.leave(member);
            if Instant::now() >= end {
                break;
            }
        }
        Reply { outcome: Err(failure), in_doubt }
    }

    /// As [`call`](Self::call), to one member and no other.
    pub(crate) async fn ask<T, F>(
        &self,
        member: usize,
        limit: Duration,
        request: impl FnOnce(Arc<Client>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let attempt = async { Ok(request(self.client(member).await?).await?) };
        timeout(limit, attempt).await.unwrap_or(Err(Failure::NoAnswer(limit)))
    }

    /// The client of a member, which is connected when it is first used.
    pub(crate) async fn client(&self, member: usize) -> Result<Arc<Client>, Failure> {
        let member = self.members.get(member).filter(|_| !self.is_closed.load(Ordering::Relaxed));
        let Some(member) = member else { return Err(Failure::Closed) };
        if let Some(client) = &*member.client() {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(Box::pin(self.log_in(&member.url)).await?);
        *member.client() = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Takes note of the cluster that an answer comes from.
    pub(crate) fn check(&self, header: Option<&ResponseHeader>) -> Result<(), Failure> {
        let Some(cluster) = header.map(ResponseHeader::cluster_id) else { return Ok(()) };
        let known = self.cluster.compare_exchange(0, cluster, Ordering::Relaxed, Ordering::Relaxed);
        match known {
            Err(known) if known != cluster => {
                Err(Failure::OtherCluster { member: self.name(self.current()).into() })
            }
            _ => Ok(()),
        }
    }

    /// Ends the connections.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.members.iter().for_each(|member| *member.client() = None);
    }

    async fn log_in(&self, url: &str) -> Result<Client, Failure> {
        let options = self.options.clone().with_connect_timeout(CONNECT_LIMIT);
        let Some((user, password)) = &self.credentials else {
            return Ok(Client::connect([url], Some(options)).await?);
        };
        let with_user = options.clone().with_user(user, password).with_auto_token_refresh(true);
        match Client::connect([url], Some(with_user)).await.map_err(Failure::from) {
            // As other clients of etcd do: users can be set up before they are demanded.
            Err(failure) if failure.needs_no_user() => {
                Ok(Client::connect([url], Some(options)).await?)
            }
            client => client,
        }
    }
}

impl Member {
    fn client(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        // Nothing panics while it holds the lock.
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without the password, which the options would print.
impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| &member.url)).finish()
    }
}
