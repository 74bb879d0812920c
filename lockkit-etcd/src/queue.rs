//! The requests about one lock, each one transaction.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use crate::error::Failure;
use crate::layout::Queue;
use crate::members::{Members, Reply};

/// What a look at the queue finds.
#[derive(Debug)]
pub(crate) enum Seen {
    /// The own key is not there.
    Absent,
    /// The own key is there.
    Present(Place),
}

/// A place in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// When the own key was created: the fencing token.
    pub(crate) created: i64,
    /// The lease that it hangs on.
    pub(crate) lease: i64,
    /// Who is just before it; none if it holds the lock.
    pub(crate) ahead: Option<Ahead>,
    /// How far the cluster was when this was so.
    pub(crate) revision: i64,
}

/// The key just before the own one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
    /// Whether it is the first, so that the lock comes to the own key when it goes.
    pub(crate) holds: bool,
}

/// Puts the own key unless it is there, and reads the queue.
pub(crate) async fn enter(
    members: &Members,
    queue: &Queue,
    key: &str,
    value: &[u8],
    lease: i64,
    limit: Duration,
) -> Reply<Place> {
    let is_new = Compare::create_revision(key, CompareOp::Equal, 0);
    let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
    // The own key, the one before it, and whether there are more.
    let last = GetOptions::new().with_prefix().with_limit(3).with_keys_only();
    let last = last.with_sort(SortTarget::Create, SortOrder::Descend);
    let all = GetOptions::new().with_prefix().with_keys_only();
    let all = all.with_sort(SortTarget::Create, SortOrder::Ascend);
    let txn = Txn::new()
        .when([is_new])
        .and_then([put, TxnOp::get(queue.prefix(), Some(last))])
        .or_else([TxnOp::get(queue.prefix(), Some(all))]);
    let reply = send(members, txn, limit).await;
    reply.and_then(|answer| {
        let revision = revision(&answer);
        match answer.succeeded() {
            true => {
                let mut kvs = keys(&answer, 1)?.into_iter();
                let own = kvs.next().filter(|own| own.key() == key.as_bytes()).ok_or(NO_ANSWER)?;
                let ahead = kvs.next().map(|kv| ahead(&kv, kvs.next().is_none()));
                Ok(Place { created: own.create_revision(), lease, ahead, revision })
            }
            false => {
                let kvs = keys(&answer, 0)?;
                let at = kvs.iter().position(|kv| kv.key() == key.as_bytes()).ok_or(NO_ANSWER)?;
                let ahead = at.checked_sub(1).map(|before| ahead(&kvs[before], before == 0));
                let own = &kvs[at];
                Ok(Place { created: own.create_revision(), lease: own.lease(), ahead, revision })
            }
        }
    })
}

/// Puts the own key if there is no other, so that a refusal leaves nothing. `None` is a refusal.
pub(crate) async fn try_enter(
    members: &Members,
    queue: &Queue,
    key: &str,
    value: &[u8],
    lease: i64,
    limit: Duration,
) -> Reply<Option<Place>> {
    let is_empty = Compare::create_revision(queue.prefix(), CompareOp::Equal, 0).with_prefix();
    let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
    let first = GetOptions::new().with_prefix().with_limit(1).with_keys_only();
    let first = first.with_sort(SortTarget::Create, SortOrder::Ascend);
    let txn = Txn::new()
        .when([is_empty])
        .and_then([put])
        .or_else([TxnOp::get(queue.prefix(), Some(first))]);
    let reply = send(members, txn, limit).await;
    reply.and_then(|answer| {
        let revision = revision(&answer);
        if answer.succeeded() {
            return Ok(Some(Place { created: revision, lease, ahead: None, revision }));
        }
        let kvs = keys(&answer, 0)?;
        let own = kvs.first().filter(|first| first.key() == key.as_bytes());
        Ok(own.map(|own| Place {
            created: own.create_revision(),
            lease: own.lease(),
            ahead: None,
            revision,
        }))
    })
}

/// Reads where the own key, which was created then, stands in the queue. To read all of a long queue
/// costs the server as much as it is long, so that is not done while who is known to be ahead is there.
pub(crate) async fn look(
    members: &Members,
    queue: &Queue,
    key: &str,
    created: i64,
    known: Option<Ahead>,
    limit: Duration,
) -> Reply<Seen> {
    if let Some(ahead) = known {
        let own = GetOptions::new().with_keys_only();
        let reads = [TxnOp::get(key, Some(own.clone())), TxnOp::get(&*ahead.key, Some(own))];
        let reply = send(members, Txn::new().and_then(reads), limit).await;
        let reply = reply.and_then(|answer| {
            let at = |created: i64| move |kv: &KeyValue| kv.create_revision() == created;
            let Some(own) = keys(&answer, 0)?.into_iter().find(at(created)) else {
                return Ok(Some(Seen::Absent));
            };
            let is_there = keys(&answer, 1)?.iter().any(at(ahead.created));
            let (lease, revision) = (own.lease(), revision(&answer));
            let place = Place { created, lease, ahead: Some(ahead), revision };
            Ok(is_there.then_some(Seen::Present(place)))
        });
        match reply.outcome {
            Ok(None) => (),
            Ok(Some(seen)) => return Reply { outcome: Ok(seen), in_doubt: false },
            Err(failure) => return Reply { outcome: Err(failure), in_doubt: false },
        }
    }
    let own = GetOptions::new().with_keys_only();
    let before = GetOptions::new().with_prefix().with_limit(2).with_keys_only();
    let before = before
        .with_max_create_revision(created - 1)
        .with_sort(SortTarget::Create, SortOrder::Descend);
    let reads = [TxnOp::get(key, Some(own)), TxnOp::get(queue.prefix(), Some(before))];
    let reply = send(members, Txn::new().and_then(reads), limit).await;
    reply.and_then(|answer| {
        let own = keys(&answer, 0)?.into_iter().find(|own| own.create_revision() == created);
        let Some(own) = own else { return Ok(Seen::Absent) };
        let mut before = keys(&answer, 1)?.into_iter();
        let ahead = before.next().map(|kv| ahead(&kv, before.next().is_none()));
        let revision = revision(&answer);
        Ok(Seen::Present(Place { created, lease: own.lease(), ahead, revision }))
    })
}

/// Hangs the own key, which was created then, on another lease; whether it was there.
pub(crate) async fn change_lease(
    members: &Members,
    key: &str,
    created: i64,
    value: &[u8],
    lease: i64,
    limit: Duration,
) -> Reply<bool> {
    let is_there = Compare::create_revision(key, CompareOp::Equal, created);
    let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
    let reply = send(members, Txn::new().when([is_there]).and_then([put]), limit).await;
    reply.and_then(|answer| Ok(answer.succeeded()))
}

/// Removes the key if it was created then; whether it was there.
pub(crate) async fn leave(
    members: &Members,
    key: impl Into<Vec<u8>>,
    created: i64,
    limit: Duration,
) -> Reply<bool> {
    let key = key.into();
    let is_there = Compare::create_revision(key.clone(), CompareOp::Equal, created);
    let delete = TxnOp::delete(key, None);
    let reply = send(members, Txn::new().when([is_there]).and_then([delete]), limit).await;
    reply.and_then(|answer| Ok(answer.succeeded()))
}

impl<T> Reply<T> {
    fn and_then<U>(self, read: impl FnOnce(T) -> Result<U, Failure>) -> Reply<U> {
        Reply { outcome: self.outcome.and_then(read), in_doubt: self.in_doubt }
    }
}

const NO_ANSWER: Failure = Failure::Foreign("the answer has not what was asked for");

async fn send(members: &Members, txn: Txn, limit: Duration) -> Reply<TxnResponse> {
    let request = |client: Client| {
        let txn = txn.clone();
        async move { client.kv_client().txn(txn).await }
    };
    let reply = members.call(limit, request).await;
    reply.and_then(|answer| members.check(answer.header()).map(|()| answer))
}

fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, etcd_client::ResponseHeader::revision)
}

/// What the read at this place of the transaction found.
fn keys(answer: &TxnResponse, at: usize) -> Result<Vec<KeyValue>, Failure> {
    match answer.op_responses().into_iter().nth(at) {
        Some(TxnOpResponse::Get(mut read)) => Ok(GetResponse::take_kvs(&mut read)),
        _ => Err(NO_ANSWER),
    }
}

fn ahead(kv: &KeyValue, holds: bool) -> Ahead {
    Ahead { key: kv.key().into(), created: kv.create_revision(), holds }
}
