//! One stream of watches, from its opening to its end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, WatchRequestSender, WatchResponse, WatchStream};
use lockkit_core::driver::Backoff;
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{OPEN_LIMIT, REFUSED_PAUSE};
use crate::board::{Board, Command, LINGER};
use crate::error::Failure;
use crate::members::{Current, Members};

/// How long a stream is kept that nobody needs.
const IDLE: Duration = Duration::from_secs(30);

/// Watches until the stream breaks, nobody needs it, or another member is in use. If something was
/// refused just before, another login is no cause to begin anew: what is refused is asked for again
/// later on.
pub(super) async fn watch(
    members: &Members,
    current: Current,
    client: &Arc<Client>,
    was_refused: bool,
    board: &Board,
    inbox: &mut mpsc::UnboundedReceiver<Command>,
) -> Result<(), Failure> {
    let (mut changes, began) = (members.changes(), Instant::now());
    let may_log_in = || members.has_user() && !(was_refused && began.elapsed() < Backoff::CALM);
    let (mut outbox, mut sweep) = (board.all(inbox), Instant::now());
    let (mut refused, mut ask_again) = (Vec::new(), Instant::now());
    let Some((first, (mut sender, mut stream))) = open(client, board, &mut outbox).await? else {
        return Ok(());
    };
    // What the server has not answered yet.
    let mut asked = VecDeque::from([first]);
    members.heard(current.member, client);
    loop {
        if *changes.borrow_and_update() != current {
            return Ok(());
        }
        let next = outbox.front().copied();
        select! {
            message = stream.message() => match message? {
                Some(message) => {
                    members.check(message.header())?;
                    let answered = message.created().then(|| asked.pop_front()).flatten();
                    match answered.filter(|_| is_refusal(&message) && !may_log_in()) {
                        Some(id) => {
                            let reason = message.cancel_reason();
                            tracing::warn!(reason, "etcd tells no news of a key; waiters poll");
                            board.refused(id);
                            if refused.is_empty() {
                                ask_again = Instant::now() + REFUSED_PAUSE;
                            }
                            refused.push(id);
                        }
                        None => board.deliver(&message, answered)?,
                    }
                }
                None => return Err(Failure::Ended),
            },
            sent = send(&mut sender, board, next), if next.is_some() => {
                asked.extend(sent?);
                outbox.pop_front();
            }
            command = inbox.recv() => match command {
                Some(command) => outbox.push_back(command),
                None => return Ok(()),
            },
            () = sleep_until(sweep), if board.has_lingering() => {
                outbox.extend(board.sweep());
                sweep = Instant::now() + LINGER;
            }
            () = sleep_until(ask_again), if !refused.is_empty() => {
                outbox.extend(refused.drain(..).map(Command::Create));
            }
            _ = changes.changed() => (),
            () = sleep(IDLE), if board.is_empty() => return Ok(()),
        }
    }
}

/// Whether a watch was refused from the start. Not every release says which: it has no id then.
fn is_refusal(message: &WatchResponse) -> bool {
    message.created() && message.canceled() && message.compact_revision() == 0
}

type Opened = (WatchRequestSender, etcd_client::WatchResponseStream);

/// Opens a stream, which takes a key to begin with, and returns the id of its watch too; `None` if
/// there is none.
async fn open(
    client: &Client,
    board: &Board,
    outbox: &mut VecDeque<Command>,
) -> Result<Option<(i64, Opened)>, Failure> {
    while let Some(command) = outbox.pop_front() {
        let Command::Create(id) = command else { continue };
        let Some((key, options)) = board.target(id) else { continue };
        let opening = async { Ok(client.watch_client().watch(&*key, Some(options)).await?) };
        let opened = timeout(OPEN_LIMIT, opening).await;
        let opened: WatchStream = opened.unwrap_or(Err(Failure::NoAnswer(OPEN_LIMIT)))?;
        return Ok(Some((id, opened.split())));
    }
    Ok(None)
}

/// Sends a command, unless it has become unnecessary. Returns the id of a watch that is asked for.
///
/// # Cancel safety
///
/// Cancel-safe: what is dropped was not sent.
async fn send(
    sender: &mut WatchRequestSender,
    board: &Board,
    command: Option<Command>,
) -> Result<Option<i64>, Failure> {
    match command {
        Some(Command::Create(id)) => {
            if let Some((key, options)) = board.target(id) {
                sender.watch(&*key, Some(options)).await?;
                return Ok(Some(id));
            }
        }
        Some(Command::Cancel(id)) => sender.cancel(id).await?,
        None => (),
    }
    Ok(None)
}
