use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::{lock, reach};

/// One of the two ways through a [`Proxy`](super::Proxy): what becomes of the bytes that take it.
#[derive(Debug, Default)]
pub struct Direction {
    rule: Mutex<Rule>,
    is_blocked: watch::Sender<bool>,
    bytes: watch::Sender<u64>,
}

impl Direction {
    /// Forwards what comes in from now on. Bytes that are held stay held, and delayed ones come
    /// first.
    pub fn pass(&self) {
        lock(&self.rule).fault = Fault::None;
    }

    /// Forwards what comes in from now on, including ends of connections, that much later.
    /// Throughput stays as it is.
    pub fn delay(&self, by: Duration) {
        lock(&self.rule).fault = Fault::Delay(by);
    }

    /// Loses what comes in from now on, including ends of connections, without a sign: what is sent
    /// arrives nowhere, and the connections seem fine. Takes precedence over [`Direction::hold`].
    pub fn swallow(&self) {
        lock(&self.rule).fault = Fault::Swallow;
    }

    /// Holds the next message that contains `pattern`: from the pattern's first byte on, nothing
    /// more goes this way on that connection until [`Hold::go_on`] is called or the [`Hold`] is
    /// dropped. Other connections and later messages on them pass.
    ///
    /// One message can be waited for per direction; another call replaces it.
    ///
    /// # Panics
    /// If the pattern is empty, or longer than 1,024 bytes.
    pub fn hold(&self, pattern: impl AsRef<[u8]>) -> Hold {
        let pattern = pattern.as_ref().to_vec();
        assert!((1..=LONGEST_PATTERN).contains(&pattern.len()), "a pattern of 1 to 1,024 bytes");
        let (catch, caught) = watch::channel(false);
        let (go_on, gate) = oneshot::channel();
        lock(&self.rule).trap = Some(Trap { pattern, caught: catch, gate });
        Hold { caught, _go_on: go_on }
    }

    /// Lets nothing more go this way, not even ends of connections, until it is
    /// [unblocked](Self::unblock): then everything goes on in order.
    pub fn block(&self) {
        self.is_blocked.send_replace(true);
    }

    /// Ends what [`Direction::block`] began.
    pub fn unblock(&self) {
        self.is_blocked.send_replace(false);
    }

    /// How many bytes have come in so far, whatever became of them.
    pub fn bytes(&self) -> u64 {
        *self.bytes.borrow()
    }

    /// Waits until that many bytes have come in, in all.
    pub async fn bytes_reach(&self, count: u64) {
        reach(&self.bytes, count).await;
    }

    /// Decides what becomes of a chunk. `before` is what the connection carried before it.
    fn admit(&self, before: &mut Vec<u8>, chunk: &[u8], line: &mpsc::UnboundedSender<Item>) {
        let mut rule = lock(&self.rule);
        let Some(due) = rule.fault.due() else {
            return;
        };
        let known = before.len();
        before.extend_from_slice(chunk);
        let held = rule.trap.take_if(|trap| trap.position(before, known).is_some());
        let free = match &held {
            Some(trap) => trap.position(before, known).map_or(0, |at| at.saturating_sub(known)),
            None => chunk.len(),
        };
        let mut items = vec![Item::Until(due), Item::Bytes(chunk[..free].to_vec())];
        if let Some(trap) = held {
            items.extend([Item::Gate(trap.gate), Item::Bytes(chunk[free..].to_vec())]);
            trap.caught.send_replace(true);
        }
        before.drain(..before.len().saturating_sub(LONGEST_PATTERN));
        for item in items {
            // Nobody takes it if the receiving side has ended: then it is lost as in any network.
            let _ = line.send(item);
        }
    }
}

/// A message that is held up, or will be: see [`Direction::hold`].
#[derive(Debug)]
pub struct Hold {
    caught: watch::Receiver<bool>,
    /// Dropping it opens the gate.
    _go_on: oneshot::Sender<()>,
}

impl Hold {
    /// Waits until a message has been caught.
    ///
    /// # Panics
    /// If none can be any more: another hold has taken the place, or the proxy is gone.
    pub async fn caught(&self) {
        let mut caught = self.caught.clone();
        caught.wait_for(|&caught| caught).await.expect("the hold stands until something is caught");
    }

    /// Lets the message go on its way, or calls the hold off if none has been caught yet.
    pub fn go_on(self) {}
}

const LONGEST_PATTERN: usize = 1024;

#[derive(Debug, Default)]
struct Rule {
    fault: Fault,
    trap: Option<Trap>,
}

#[derive(Debug, Default)]
enum Fault {
    #[default]
    None,
    Delay(Duration),
    Swallow,
}

impl Fault {
    /// When what comes in now is to go on, if at all.
    fn due(&self) -> Option<Instant> {
        match self {
            Fault::None => Some(Instant::now()),
            Fault::Delay(by) => Some(Instant::now() + *by),
            Fault::Swallow => None,
        }
    }
}

#[derive(Debug)]
struct Trap {
    pattern: Vec<u8>,
    caught: watch::Sender<bool>,
    gate: oneshot::Receiver<()>,
}

impl Trap {
    /// Where the pattern begins, if it ends after the first `known` bytes.
    fn position(&self, bytes: &[u8], known: usize) -> Option<usize> {
        let from = (known + 1).saturating_sub(self.pattern.len());
        let found = bytes[from..].windows(self.pattern.len()).position(|part| part == self.pattern);
        found.map(|at| from + at)
    }
}

/// What goes through a connection one way, in order.
enum Item {
    Bytes(Vec<u8>),
    /// Nothing goes on before this time.
    Until(Instant),
    /// Nothing goes on before this is sent or dropped.
    Gate(oneshot::Receiver<()>),
}

/// Carries one connection's bytes one way, and its end after them.
pub(super) async fn relay(direction: &Direction, from: ReadHalf<'_>, to: WriteHalf<'_>) {
    let (line, items) = mpsc::unbounded_channel();
    tokio::join!(take_in(direction, from, line), put_out(direction, items, to));
}

/// Reads on whatever happens to the bytes, so that a delay is only a delay, not a lack of
/// throughput.
async fn take_in(direction: &Direction, mut from: ReadHalf<'_>, line: mpsc::UnboundedSender<Item>) {
    let mut buffer = vec![0; 16 * 1024];
    let mut before = Vec::new();
    loop {
        match from.read(&mut buffer).await {
            // A reset is passed on as an end, so that the bytes before it are not lost.
            Ok(0) | Err(_) => break,
            Ok(read) => {
                direction.admit(&mut before, &buffer[..read], &line);
                direction.bytes.send_modify(|bytes| *bytes += read as u64);
            }
        }
    }
    let due = lock(&direction.rule).fault.due();
    match due {
        Some(due) => {
            let _ = line.send(Item::Until(due));
        }
        // The end is swallowed too: the other side hears nothing, and the line stays open.
        None => std::future::pending().await,
    }
}

async fn put_out(
    direction: &Direction,
    mut items: mpsc::UnboundedReceiver<Item>,
    mut to: WriteHalf<'_>,
) {
    let mut is_blocked = direction.is_blocked.subscribe();
    let mut unblocked = async || {
        is_blocked
            .wait_for(|is_blocked| !is_blocked)
            .await
            .expect("it lives as long as its borrow");
    };
    while let Some(item) = items.recv().await {
        let written = match item {
            Item::Bytes(bytes) => {
                unblocked().await;
                to.write_all(&bytes).await
            }
            Item::Until(due) => {
                // A timer that is due already takes up to a millisecond.
                if due > Instant::now() {
                    sleep_until(due).await;
                }
                Ok(())
            }
            Item::Gate(gate) => {
                // An error means that the hold was dropped, which opens the gate as well.
                let _ = gate.await;
                Ok(())
            }
        };
        if written.is_err() {
            return;
        }
    }
    unblocked().await;
    // An error means that the other side was faster to end the connection.
    let _ = to.shutdown().await;
}
