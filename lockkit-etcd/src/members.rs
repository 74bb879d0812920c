//! The members of the cluster: a client for each, one of which is in use at a time.
//!
//! The client library can balance over several members, but then goes on sending requests to those
//! that are down.

mod connection;
mod wait;

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, KvClient, ResponseHeader};
use lockkit_core::driver::Limit;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use self::connection::{Connection, Outage};
pub(crate) use self::wait::Wait;
use crate::error::Failure;
use crate::tls::Tls;

/// How long connecting to one member may take, logging in included.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Where the cluster is, and how to get in.
pub(crate) struct Members {
    members: Vec<Member>,
    options: ConnectOptions,
    /// What to encrypt with, if that is in files.
    tls: Option<Tls>,
    /// Logs in with these, if the cluster wants a user.
    credentials: Option<(String, String)>,
    /// What is in use. When it fails, all go elsewhere.
    current: watch::Sender<Current>,
    /// The cluster that the members belong to; 0 while it is not known.
    cluster: AtomicU64,
    is_closed: AtomicBool,
}

/// What all requests and streams go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Current {
    /// The index of the member.
    pub(crate) member: usize,
    /// How many connections to members in use were given up before.
    connection: u64,
}

struct Member {
    url: String,
    connection: Mutex<Connection>,
    /// Held by whoever connects, so that many do not log in at once: when connecting last failed,
    /// and why.
    connecting: tokio::sync::Mutex<Option<(Instant, Failure)>>,
}

/// What came of a request.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    pub(crate) outcome: Result<T, Failure>,
    /// Whether something that was sent was not answered, and may yet be carried out.
    pub(crate) in_doubt: bool,
}

impl<T> Reply<T> {
    /// Whether the request may be carried out, or has been, although that is not known.
    pub(crate) fn may_be_carried_out(&self) -> bool {
        self.in_doubt || self.outcome.as_ref().is_err_and(Failure::may_be_carried_out)
    }
}

impl Members {
    pub(crate) fn new(
        urls: Vec<String>,
        options: ConnectOptions,
        tls: Option<Tls>,
        credentials: Option<(String, String)>,
    ) -> Self {
        let member = |url| {
            let (connection, connecting) = Default::default();
            Member { url, connection, connecting }
        };
        let members: Vec<_> = urls.into_iter().map(member).collect();
        // So that the clients of an application do not all go to the same member.
        let first = fastrand::usize(..members.len().max(1));
        let current = watch::Sender::new(Current { member: first, connection: 0 });
        let cluster = AtomicU64::new(0);
        let is_closed = AtomicBool::new(false);
        Self { members, options, tls, credentials, current, cluster, is_closed }
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The member in use, and its connection.
    pub(crate) fn current(&self) -> Current {
        *self.current.borrow()
    }

    /// Tells of each change of what is in use.
    pub(crate) fn changes(&self) -> watch::Receiver<Current> {
        self.current.subscribe()
    }

    /// What the member is called in messages.
    pub(crate) fn name(&self, member: usize) -> &str {
        let url = self.members.get(member).map_or("", |member| &member.url);
        url.split_once("://").map_or(url, |(_, host)| host)
    }

    /// Goes to the next member, unless somebody has already left this one.
    pub(crate) fn leave(&self, member: usize) {
        self.current.send_if_modified(|current| {
            let leaves = current.member == member && self.members.len() > 1;
            if leaves {
                current.member = (member + 1) % self.members.len();
                tracing::debug!(
                    from = self.name(member),
                    to = self.name(current.member),
                    "another member"
                );
            }
            leaves
        });
    }

    /// Takes note that something came back from a member.
    pub(crate) fn heard(&self, member: usize, client: &Arc<Client>) {
        if let Some(mut connection) = self.connection(member, client) {
            connection.hears();
        }
    }

    /// Takes note of the failure of what was sent then: a member whose connection failed is left
    /// alone for a moment, and one that answers is not.
    pub(crate) fn failed(
        &self,
        member: usize,
        client: &Arc<Client>,
        sent: Instant,
        failure: &Failure,
    ) {
        let Some(mut connection) = self.connection(member, client) else { return };
        if failure.is_of_the_connection() {
            connection.fails(sent, failure);
            drop(connection);
            // The library would show the same certificate again.
            if self.tls.is_some() {
                self.give_up(member, client);
            }
        } else if failure.is_an_answer() {
            connection.outage = None;
        }
    }

    /// Takes note that what was sent then got no answer. Nobody can tell whether a silent
    /// connection is cut or its server is slow: it is given up. If nothing comes over the next one
    /// either, more patience is had with that, and yet more with the one after it.
    pub(crate) fn unheard(&self, member: usize, client: &Arc<Client>, sent: Instant) {
        let connection = self.connection(member, client);
        if connection.is_some_and(|mut connection| connection.note_silence(sent)) {
            self.give_up(member, client);
        }
    }

    /// Has the next request log in anew, if there is a user, and returns whether there is one: what
    /// a connection's user may do is settled when it logs in.
    pub(crate) fn log_out(&self, member: usize, client: &Arc<Client>) -> bool {
        if self.has_user() {
            self.give_up(member, client);
        }
        self.has_user()
    }

    /// Whether it logs in.
    pub(crate) fn has_user(&self) -> bool {
        self.credentials.is_some()
    }

    /// Has the next request connect anew, unless somebody has already seen to it, and has the open
    /// streams move to that connection.
    fn give_up(&self, member: usize, client: &Arc<Client>) {
        let Some(mut connection) = self.connection(member, client) else { return };
        connection.replace(None);
        drop(connection);
        tracing::debug!(member = self.name(member), "another connection");
        self.current.send_if_modified(|current| {
            let is_in_use = current.member == member;
            current.connection += u64::from(is_in_use);
            is_in_use
        });
    }

    /// The member's connection, if it is still that client's.
    fn connection(
        &self,
        member: usize,
        client: &Arc<Client>,
    ) -> Option<MutexGuard<'_, Connection>> {
        let connection = self.members.get(member)?.connection();
        let is_it = connection.client.as_ref().is_some_and(|known| Arc::ptr_eq(known, client));
        is_it.then_some(connection)
    }

    /// Sends a request that may be sent twice. If the member in use does not answer while there is
    /// patience with it, or says that it cannot, the request goes to the next one, and so on while
    /// there is time.
    pub(crate) async fn call<T, F>(
        &self,
        wait: impl Into<Wait>,
        request: impl Fn(Arc<Client>) -> F,
    ) -> Reply<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let wait = wait.into();
        let limit = wait.limit;
        let mut in_doubt = false;
        let mut failure = Failure::NoAnswer(limit.length());
        for tried in 0..self.members.len() {
            let member = self.current().member;
            let is_last = tried + 1 == self.members.len();
            let given = if is_last { limit.left() } else { limit.left().min(wait.patience()) };
            let answer = self.attempt(member, [wait.shortest, given], &request).await;
            // Everybody goes along, so it is no reason to leave that one call came late.
            let leaves = answer.is_some() || wait.is_over_after(given);
            failure = match answer {
                Some(Ok(answer)) => return Reply { outcome: Ok(answer), in_doubt },
                Some(Err(failure)) => failure,
                None => Failure::NoAnswer(limit.length()),
            };
            if !failure.is_about_the_member() {
                break;
            }
            in_doubt |= !matches!(failure.kind(), lockkit_core::driver::ErrorKind::Unreachable);
            if leaves {
                self.leave(member);
            }
            if limit.left().is_zero() {
                break;
            }
        }
        Reply { outcome: Err(failure), in_doubt }
    }

    /// As [`call`](Self::call), to one member only.
    pub(crate) async fn ask<T, F>(
        &self,
        member: usize,
        limit: Limit,
        request: impl Fn(Arc<Client>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let answer = self.attempt(member, [limit.left(); 2], request).await;
        answer.unwrap_or(Err(Failure::NoAnswer(limit.length())))
    }

    /// The answer of one member, if there is one within the longer time. If there is none within
    /// the shorter time, that is noted.
    async fn attempt<T, F>(
        &self,
        member: usize,
        [shorter, longer]: [Duration; 2],
        request: impl Fn(Arc<Client>) -> F,
    ) -> Option<Result<T, Failure>>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let (begun, sent) = (Instant::now(), Mutex::new(None));
        // Nothing panics while it holds the lock.
        let sent = || sent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut attempt = pin!(async {
            let mut is_again = false;
            loop {
                let client = self.client(member).await?;
                let asked = Instant::now();
                *sent() = Some((Arc::clone(&client), asked));
                // Boxed, since it is large: nobody around it has room for it then.
                let asking = Box::pin(request(Arc::clone(&client)));
                let answer = asking.await.map_err(Failure::from);
                let Err(failure) = &answer else {
                    self.heard(member, &client);
                    return answer;
                };
                self.failed(member, &client, asked, failure);
                // Such a request was refused, so it is not carried out twice.
                if is_again || !failure.needs_another_login() || !self.log_out(member, &client) {
                    return answer;
                }
                is_again = true;
            }
        });
        for given in [shorter.min(longer), longer] {
            if let Ok(answer) = timeout_at(begun + given, &mut attempt).await {
                return Some(answer);
            }
            let unanswered = sent().clone();
            if let Some((client, sent)) = unanswered {
                self.unheard(member, &client, sent);
            }
        }
        None
    }

    /// The client of a member, which is connected when it is first used. A member whose connections
    /// fail is left alone for a moment, and then tried by one request at a time.
    pub(crate) async fn client(&self, member: usize) -> Result<Arc<Client>, Failure> {
        let member = self.members.get(member).filter(|_| !self.is_closed.load(Ordering::Relaxed));
        let Some(member) = member else { return Err(Failure::Closed) };
        let asked = Instant::now();
        {
            let mut connection = member.connection();
            connection.outage.as_mut().map_or(Ok(()), Outage::pass)?;
            if let Some(client) = &connection.client {
                return Ok(Arc::clone(client));
            }
        }
        let mut last_failure = member.connecting.lock().await;
        // Somebody else may have connected meanwhile, or failed to.
        if let Some(client) = &member.connection().client {
            return Ok(Arc::clone(client));
        }
        if let Some((_, failure)) = last_failure.as_ref().filter(|(when, _)| *when >= asked) {
            return Err(failure.clone());
        }
        let logging_in = timeout(CONNECT_LIMIT, self.log_in(&member.url));
        match Box::pin(logging_in).await.unwrap_or(Err(Failure::NotConnected(CONNECT_LIMIT))) {
            Ok(client) => {
                let client = Arc::new(client);
                let mut connection = member.connection();
                // Whoever closes clears it under its lock.
                if self.is_closed.load(Ordering::Relaxed) {
                    return Err(Failure::Closed);
                }
                connection.replace(Some(Arc::clone(&client)));
                Ok(client)
            }
            Err(failure) => {
                if failure.is_of_the_connection() {
                    member.connection().fails(asked, &failure);
                }
                *last_failure = Some((Instant::now(), failure.clone()));
                Err(failure)
            }
        }
    }

    /// Takes note of the cluster that an answer comes from.
    pub(crate) fn check(&self, header: Option<&ResponseHeader>) -> Result<(), Failure> {
        // The proxy that comes with etcd leaves the id out of some answers.
        let told = header.map(ResponseHeader::cluster_id).filter(|&cluster| cluster != 0);
        let Some(cluster) = told else { return Ok(()) };
        let known = self.cluster.compare_exchange(0, cluster, Ordering::Relaxed, Ordering::Relaxed);
        match known {
            Err(known) if known != cluster => {
                Err(Failure::OtherCluster { member: self.name(self.current().member).into() })
            }
            _ => Ok(()),
        }
    }

    /// Ends the connections.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.members.iter().for_each(|member| *member.connection() = Connection::default());
    }

    async fn log_in(&self, url: &str) -> Result<Client, Failure> {
        let mut options = self.options.clone().with_connect_timeout(CONNECT_LIMIT);
        if let Some(tls) = &self.tls {
            options = options.with_tls(tls.options().await);
        }
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

/// For reads that find as much as there is: unless it is told otherwise, the client library takes
/// no answer longer than 4 MiB.
pub(crate) fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(usize::MAX)
}

impl Member {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        // Nothing panics while it holds the lock.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves out the password, which the options would print.
impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| &member.url)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::time::Duration;

    use etcd_client::ConnectOptions;
    use lockkit_core::driver::Limit;
    use tokio::time::{Instant, sleep};

    use super::{Members, Wait};
    use crate::error::Failure;

    const LENGTH: Duration = Duration::from_secs(1);

    /// None is connected to: a client connects with its first request.
    fn members<const COUNT: usize>() -> Members {
        let urls = (0..COUNT).map(|number| format!("http://{number}.invalid")).collect();
        Members::new(urls, ConnectOptions::new(), None, None)
    }

    /// The limit of a call that has spent so much of it.
    async fn limit_after(spent: Duration) -> Limit {
        let limit = Limit::new(LENGTH);
        sleep(spent).await;
        limit
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_is_asked_late_has_as_much_time_as_others() {
        let members = members::<3>();
        let (limit, before) = (limit_after(LENGTH * 41 / 100).await, members.current());
        let slow = |_| async {
            sleep(LENGTH * 4 / 10).await;
            Ok(())
        };
        let reply = members.call(limit, slow).await;
        assert!(reply.outcome.is_ok() && !reply.in_doubt, "{reply:?}");
        assert_eq!(members.current(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_leaves_a_member_for_want_of_time() {
        let (members, start) = (members::<3>(), Instant::now());
        let (limit, before) = (limit_after(LENGTH * 9 / 10).await, members.current());
        let reply = members.call::<(), _>(limit, |_| pending()).await;
        assert!(matches!(reply.outcome, Err(Failure::NoAnswer(LENGTH))) && reply.in_doubt);
        assert_eq!((members.current(), start.elapsed()), (before, LENGTH));
    }

    #[tokio::test(start_paused = true)]
    async fn members_that_hang_are_left_while_there_is_time() {
        for hang in [1, 2] {
            let (members, start) = (members::<3>(), Instant::now());
            let (first, asked) = (members.current().member, Cell::new(0));
            let request = |_| {
                let hangs = asked.replace(asked.get() + 1) < hang;
                async move {
                    match hangs {
                        true => pending().await,
                        false => Ok(()),
                    }
                }
            };
            // The second is given a little less than the first.
            let limit = limit_after(LENGTH / 100).await;
            let reply = members.call(limit, request).await;
            assert_eq!((reply.outcome.is_ok(), reply.in_doubt), (hang == 1, true));
            assert_eq!(members.current().member, (first + hang) % 3);
            let expected = if hang == 1 { LENGTH * 51 / 100 } else { LENGTH };
            assert_eq!(start.elapsed(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_shares_a_request_has_its_time_and_who_has_less_notes_the_silence() {
        let members = members::<1>();
        members.call(Limit::new(LENGTH), |_| async { Ok(()) }).await.outcome.unwrap();
        sleep(LENGTH).await;
        let before = members.current().connection;
        let slow = |_| async {
            sleep(LENGTH * 2).await;
            Ok(())
        };
        let wait = Wait { limit: Limit::new(LENGTH * 3), shortest: LENGTH };
        assert!(members.call(wait, slow).await.outcome.is_ok());
        assert_eq!(members.current().connection, before + 1);
    }
}
