//! The requests about one lock, each of them one transaction.

use std::iter;
use std::sync::Arc;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use lockkit_core::driver::{Claim, Limit};

use crate::board::Key;
use crate::error::Failure;
use crate::layout::{Queue, Value};
use crate::members::{self, Members, Reply, Wait};

/// What a look at the queue finds.
#[derive(Debug)]
pub(crate) enum Seen {
    /// The own key is not there.
    Absent,
    /// The own key is there.
    Present(Place),
}

/// The own key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own<'a> {
    pub(crate) key: &'a Arc<str>,
    /// Who it is of.
    pub(crate) claim: &'a Claim,
    /// The lease that it is to hang on.
    pub(crate) lease: i64,
}

impl Own<'_> {
    fn put(&self) -> TxnOp {
        let options = PutOptions::new().with_lease(self.lease);
        TxnOp::put(&**self.key, self.value().as_bytes(), Some(options))
    }

    fn value(&self) -> Value {
        Value::new(self.claim.owner(), self.claim.label())
    }

    /// Whether this is the own key, and not another of the same name.
    fn is_at(&self, kv: &KeyValue) -> Result<bool, Failure> {
        let is_named_so = kv.key() == self.key.as_bytes();
        match is_named_so && kv.value() != self.value().as_bytes() {
            // Nobody else has the lease that it is called after.
            true => Err(Failure::Foreign("the claim's key has another owner")),
            false => Ok(is_named_so),
        }
    }
}

/// A place in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) key: Arc<str>,
    /// When the own key was created: the fencing token.
    pub(crate) created: i64,
    /// Who is just before it; `None` if it holds the lock.
    pub(crate) ahead: Option<Ahead>,
    /// How far the cluster was when this was so.
    pub(crate) revision: i64,
}

/// The key just before the own one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) key: Key,
    pub(crate) created: i64,
    /// Whether it is the first, so that the lock comes to the own key when it goes.
    pub(crate) holds: bool,
}

/// The last keys of a queue.
#[derive(Debug)]
pub(crate) struct Last {
    /// Each key with when it was created, the last one first.
    keys: Vec<(Key, i64)>,
    /// Whether there are others before them.
    has_more: bool,
    /// How far the cluster was.
    revision: i64,
}

impl Last {
    /// Where the own key stands, if it is among these together with whoever is before it.
    pub(crate) fn place(&self, key: &Arc<str>, created: i64) -> Option<Place> {
        let at = self.keys.iter().position(|(_, other)| *other == created)?;
        let ahead = match self.keys.get(at + 1) {
            Some((key, created)) => {
                let holds = at + 2 == self.keys.len() && !self.has_more;
                Some(Ahead { key: Arc::clone(key), created: *created, holds })
            }
            None if self.has_more => return None,
            None => None,
        };
        Some(Place { key: Arc::clone(key), created, ahead, revision: self.revision })
    }
}

/// Puts the own key unless it is there; returns when it was created.
pub(crate) async fn put(members: &Members, own: Own<'_>, limit: Limit) -> Reply<i64> {
    let txn = || {
        let is_new = Compare::create_revision(&**own.key, CompareOp::Equal, 0);
        let read = TxnOp::get(&**own.key, None);
        Txn::new().when([is_new]).and_then([own.put()]).or_else([read])
    };
    let reply = send(members, txn, limit).await;
    reply.and_then(|answer| {
        if answer.succeeded() {
            return Ok(revision(&answer));
        }
        match keys(&answer, 0)?.first() {
            Some(kv) if own.is_at(kv)? => Ok(kv.create_revision()),
            _ => Err(NO_ANSWER),
        }
    })
}

/// Reads the last keys of the queue. This costs the server in proportion to the length of the
/// queue.
pub(crate) async fn last(members: &Members, queue: &Queue, limit: Limit) -> Result<Last, Failure> {
    /// More than come while one look is under way, from here and elsewhere.
    const MOST: i64 = 256;
    let read = || {
        let last = GetOptions::new().with_prefix().with_limit(MOST).with_keys_only();
        let last = last.with_sort(SortTarget::Create, SortOrder::Descend);
        Txn::new().and_then([TxnOp::get(queue.prefix(), Some(last))])
    };
    let answer = send(members, read, limit).await.outcome?;
    let revision = revision(&answer);
    let (kvs, has_more) = read_keys(&answer, 0)?;
    let keys = kvs.iter().map(|kv| (kv.key().into(), kv.create_revision())).collect();
    Ok(Last { keys, has_more, revision })
}

/// Puts the own key unless it is there, and reads the queue.
pub(crate) async fn enter(
    members: &Members,
    queue: &Queue,
    own: Own<'_>,
    limit: Limit,
) -> Reply<Place> {
    let txn = || {
        let is_new = Compare::create_revision(&**own.key, CompareOp::Equal, 0);
        // The own key, the one before it, and whether there are more.
        let last = GetOptions::new().with_prefix().with_limit(3).with_keys_only();
        let last = last.with_sort(SortTarget::Create, SortOrder::Descend);
        let all = GetOptions::new().with_prefix().with_keys_only();
        let all = all.with_sort(SortTarget::Create, SortOrder::Ascend);
        Txn::new()
            .when([is_new])
            .and_then([own.put(), TxnOp::get(queue.prefix(), Some(last))])
            .or_else([TxnOp::get(queue.prefix(), Some(all)), TxnOp::get(&**own.key, None)])
    };
    let reply = send(members, txn, limit).await;
    reply.and_then(|answer| {
        let (key, revision) = (Arc::clone(own.key), revision(&answer));
        let is_own = |kv: &KeyValue| kv.key() == own.key.as_bytes();
        match answer.succeeded() {
            true => {
                let mut kvs = keys(&answer, 1)?.into_iter();
                let own = kvs.next().filter(is_own).ok_or(NO_ANSWER)?;
                let ahead = kvs.next().map(|kv| ahead(&kv, kvs.next().is_none()));
                Ok(Place { key, created: own.create_revision(), ahead, revision })
            }
            false => {
                for kv in keys(&answer, 1)? {
                    own.is_at(&kv)?;
                }
                let kvs = keys(&answer, 0)?;
                let at = kvs.iter().position(is_own).ok_or(NO_ANSWER)?;
                let ahead = at.checked_sub(1).map(|before| ahead(&kvs[before], before == 0));
                Ok(Place { key, created: kvs[at].create_revision(), ahead, revision })
            }
        }
    })
}

/// Puts the own key if there is no other, so that a refusal leaves nothing behind. `None` is a
/// refusal.
pub(crate) async fn try_enter(
    members: &Members,
    queue: &Queue,
    own: Own<'_>,
    limit: Limit,
) -> Reply<Option<Place>> {
    let txn = || {
        let is_empty = Compare::create_revision(queue.prefix(), CompareOp::Equal, 0).with_prefix();
        let first = GetOptions::new().with_prefix().with_limit(1);
        let first = first.with_sort(SortTarget::Create, SortOrder::Ascend);
        Txn::new()
            .when([is_empty])
            .and_then([own.put()])
            .or_else([TxnOp::get(queue.prefix(), Some(first))])
    };
    let reply = send(members, txn, limit).await;
    reply.and_then(|answer| {
        let revision = revision(&answer);
        let place = |created| Place { key: Arc::clone(own.key), created, ahead: None, revision };
        if answer.succeeded() {
            return Ok(Some(place(revision)));
        }
        match keys(&answer, 0)?.first() {
            Some(first) if own.is_at(first)? => Ok(Some(place(first.create_revision()))),
            _ => Ok(None),
        }
    })
}

/// Reads where the own key, which was created then, stands in the queue. This costs the server in
/// proportion to the length of the queue.
pub(crate) async fn look(
    members: &Members,
    queue: &Queue,
    key: &Arc<str>,
    created: i64,
    limit: Limit,
) -> Reply<Seen> {
    let reads = || {
        let own = GetOptions::new().with_keys_only();
        let before = GetOptions::new().with_prefix().with_limit(2).with_keys_only();
        let before = before
            .with_max_create_revision(created - 1)
            .with_sort(SortTarget::Create, SortOrder::Descend);
        let reads = [TxnOp::get(&**key, Some(own)), TxnOp::get(queue.prefix(), Some(before))];
        Txn::new().and_then(reads)
    };
    let reply = send(members, reads, limit).await;
    reply.and_then(|answer| {
        if !keys(&answer, 0)?.iter().any(|own| own.create_revision() == created) {
            return Ok(Seen::Absent);
        }
        let mut before = keys(&answer, 1)?.into_iter();
        let ahead = before.next().map(|kv| ahead(&kv, before.next().is_none()));
        let (key, revision) = (Arc::clone(key), revision(&answer));
        Ok(Seen::Present(Place { key, created, ahead, revision }))
    })
}

/// Hangs the own key, which was created then, on its lease; returns whether it was there. If it is
/// known which lease it hangs on, `from` says so: then a request that comes late, when the key has
/// moved on from that, does not move it back.
pub(crate) async fn change_lease(
    members: &Members,
    own: Own<'_>,
    created: i64,
    from: Option<i64>,
    limit: Limit,
) -> Reply<bool> {
    let key = &**own.key;
    let txn = || {
        let is_there = Compare::create_revision(key, CompareOp::Equal, created);
        let hangs_there = from.map(|from| Compare::lease(key, CompareOp::Equal, from));
        let compares: Vec<_> = iter::once(is_there).chain(hangs_there).collect();
        let keys_only = GetOptions::new().with_keys_only();
        Txn::new().when(compares).and_then([own.put()]).or_else([TxnOp::get(key, Some(keys_only))])
    };
    let reply = send(members, txn, limit).await;
    reply.and_then(|answer| {
        if answer.succeeded() {
            return Ok(true);
        }
        match keys(&answer, 0)?.iter().find(|kv| kv.create_revision() == created) {
            Some(kv) if kv.lease() == own.lease => Ok(true),
            Some(_) => Err(Failure::Foreign("the claim's key hangs on a lease of somebody else")),
            None => Ok(false),
        }
    })
}

/// Removes the key if it was created then; returns whether it was there.
pub(crate) async fn leave(
    members: &Members,
    key: &[u8],
    created: i64,
    limit: Limit,
) -> Reply<bool> {
    let txn = || {
        let is_there = Compare::create_revision(key, CompareOp::Equal, created);
        Txn::new().when([is_there]).and_then([TxnOp::delete(key, None)])
    };
    let reply = send(members, txn, limit).await;
    reply.and_then(|answer| Ok(answer.succeeded()))
}

impl<T> Reply<T> {
    fn and_then<U>(self, read: impl FnOnce(T) -> Result<U, Failure>) -> Reply<U> {
        Reply { outcome: self.outcome.and_then(read), in_doubt: self.in_doubt }
    }
}

const NO_ANSWER: Failure = Failure::Foreign("the answer has not what was asked for");

/// Sends a transaction, which is made anew for each member that is asked.
pub(crate) async fn send(
    members: &Members,
    txn: impl Fn() -> Txn,
    wait: impl Into<Wait>,
) -> Reply<TxnResponse> {
    let request = |client: Arc<Client>| {
        let txn = txn();
        async move { members::kv(&client).txn(txn).await }
    };
    let reply = members.call(wait, request).await;
    reply.and_then(|answer| members.check(answer.header()).map(|()| answer))
}

pub(crate) fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, etcd_client::ResponseHeader::revision)
}

/// What the read at this place of the transaction found.
fn keys(answer: &TxnResponse, at: usize) -> Result<Vec<KeyValue>, Failure> {
    read_keys(answer, at).map(|(keys, _)| keys)
}

/// The same, and whether there are more.
fn read_keys(answer: &TxnResponse, at: usize) -> Result<(Vec<KeyValue>, bool), Failure> {
    match answer.op_responses().into_iter().nth(at) {
        Some(TxnOpResponse::Get(mut read)) => {
            let has_more = read.more();
            Ok((GetResponse::take_kvs(&mut read), has_more))
        }
        _ => Err(NO_ANSWER),
    }
}

fn ahead(kv: &KeyValue, holds: bool) -> Ahead {
    Ahead { key: kv.key().into(), created: kv.create_revision(), holds }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Ahead, Last, Place};

    fn last(keys: &[(&str, i64)], has_more: bool) -> Last {
        let keys = keys.iter().map(|&(key, created)| (key.as_bytes().into(), created)).collect();
        Last { keys, has_more, revision: 20 }
    }

    fn ahead(key: &str, created: i64, holds: bool) -> Ahead {
        Ahead { key: key.as_bytes().into(), created, holds }
    }

    #[test]
    fn the_one_before_is_ahead_and_the_first_of_all_holds() {
        let last = last(&[("c", 9), ("b", 7), ("a", 5)], false);
        let ahead_of = |key: &str, created| {
            let place = last.place(&Arc::from(key), created);
            place.map(|Place { ahead, .. }| ahead)
        };
        assert_eq!(ahead_of("c", 9), Some(Some(ahead("b", 7, false))));
        assert_eq!(ahead_of("b", 7), Some(Some(ahead("a", 5, true))));
        assert_eq!(ahead_of("a", 5), Some(None));
        assert_eq!(ahead_of("b", 6), None, "an earlier key of that name");
    }

    #[test]
    fn of_a_longer_queue_not_all_is_known() {
        let last = last(&[("c", 9), ("b", 7)], true);
        let place = last.place(&Arc::from("c"), 9).unwrap();
        assert_eq!(place.ahead, Some(ahead("b", 7, false)), "it may not be the first");
        assert!(last.place(&Arc::from("b"), 7).is_none(), "who is ahead of it");
    }
}
