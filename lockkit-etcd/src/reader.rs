use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::error::Failure;
use crate::members::Members;

/// How many keys are read at once. The server allows 128 unless it is told otherwise.
const MOST_AT_ONCE: usize = 100;

/// Looks whether keys are there. While one look is under way, others gather for the next, so that a
/// thousand locks are no thousand requests.
#[derive(Debug)]
pub(crate) struct Reader {
    asks: mpsc::UnboundedSender<Ask>,
    task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Ask {
    key: String,
    created: i64,
    limit: Duration,
    answer: oneshot::Sender<Result<bool, Failure>>,
}

impl Reader {
    pub(crate) fn new(members: Arc<Members>) -> Self {
        let (asks, inbox) = mpsc::unbounded_channel();
        Self { asks, task: AbortOnDropHandle::new(tokio::spawn(read(members, inbox))) }
    }

    /// Whether the key is there that was created then.
    pub(crate) async fn stands(
        &self,
        key: &str,
        created: i64,
        limit: Duration,
    ) -> Result<bool, Failure> {
        let (answer, answered) = oneshot::channel();
        // After the end of the task the answer's channel breaks, which says so.
        _ = self.asks.send(Ask { key: key.into(), created, limit, answer });
        match tokio::time::timeout(limit, answered).await {
            Ok(answer) => answer.unwrap_or(Err(Failure::Closed)),
            Err(_) => Err(Failure::NoAnswer(limit)),
        }
    }

    /// Reads no more.
    pub(crate) fn close(&self) {
        self.task.abort();
    }
}

async fn read(members: Arc<Members>, mut inbox: mpsc::UnboundedReceiver<Ask>) {
    let mut asks = Vec::new();
    while inbox.recv_many(&mut asks, MOST_AT_ONCE).await > 0 {
        // Whoever is given less time than the others does not wait for them.
        let limit = asks.iter().map(|ask| ask.limit).min().unwrap_or_default();
        let get = |ask: &Ask| TxnOp::get(&*ask.key, Some(GetOptions::new().with_keys_only()));
        let txn = Txn::new().and_then(asks.iter().map(get).collect::<Vec<_>>());
        let request = |client: Arc<Client>| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        };
        let answer = members.call(limit, request).await.outcome;
        let answer = answer.and_then(|answer| members.check(answer.header()).map(|()| answer));
        let found = answer.as_ref().map(TxnResponse::op_responses);
        let mut found = found.map(Vec::into_iter);
        for Ask { created, answer, .. } in asks.drain(..) {
            let is_there = match &mut found {
                Ok(found) => match found.next() {
                    Some(TxnOpResponse::Get(read)) => {
                        Ok(read.kvs().iter().any(|kv| kv.create_revision() == created))
                    }
                    _ => Err(Failure::Foreign("the answer has not what was asked for")),
                },
                Err(failure) => Err(Failure::clone(failure)),
            };
            // Whoever asked may have given up.
            _ = answer.send(is_there);
        }
    }
}
