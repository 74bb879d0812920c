//! A lock server in a hundred lines: a map behind a TCP port, one request and one answer a line.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{broadcast, watch};

/// Runs until the process ends.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    table: Mutex<Table>,
    hang_up: broadcast::Sender<()>,
    is_silent: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Table {
    locks: HashMap<String, Held>,
    last_token: u64,
}

#[derive(Debug)]
struct Held {
    owner: String,
    token: u64,
    expiry: Instant,
}

impl Server {
    /// Starts on a free port of this machine, in a thread of its own.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from that.
    pub fn start() -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let server = Arc::new(Self {
            address: listener.local_addr()?,
            table: Mutex::default(),
            hang_up: broadcast::Sender::new(1),
            is_silent: watch::Sender::new(false),
        });
        let serving = Arc::clone(&server);
        std::thread::spawn(move || {
            runtime.block_on(async {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(Arc::clone(&serving).serve(stream));
                }
            });
        });
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forgets who holds a lock.
    pub fn revoke(&self, name: &str) {
        self.table().locks.remove(name);
    }

    /// Cuts all connections.
    pub fn hang_up(&self) {
        _ = self.hang_up.send(());
    }

    /// Does nothing more until it is to go on.
    pub fn pause(&self) {
        self.is_silent.send_replace(true);
    }

    /// Answers again, first of all what was sent meanwhile.
    pub fn go_on(&self) {
        self.is_silent.send_replace(false);
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        _ = stream.set_nodelay(true);
        let mut hung_up = self.hang_up.subscribe();
        let mut is_silent = self.is_silent.subscribe();
        let (reader, mut writer) = stream.into_split();
        let mut lines = BufReader::new(reader).lines();
        loop {
            let line = tokio::select! {
                line = lines.next_line() => line,
                _ = hung_up.recv() => return,
            };
            let Ok(Some(line)) = line else { return };
            // Both may be ready, and a connection that was cut gets no answer.
            if !hung_up.is_empty() {
                return;
            }
            _ = is_silent.wait_for(|is_silent| !is_silent).await;
            let answer = self.table().answer(&line);
            if writer.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nobody panics with the table in hand")
    }
}

impl Table {
    fn answer(&mut self, request: &str) -> String {
        let (now, words) = (Instant::now(), Vec::from_iter(request.split(' ')));
        let [verb, name, owner, ttl] = words[..] else { return "what?".into() };
        let Ok(ttl) = ttl.parse().map(Duration::from_millis) else { return "what?".into() };
        self.locks.retain(|_, held| held.expiry > now);
        let held = self.locks.get_mut(name);
        let mine = held.as_ref().is_some_and(|held| held.owner == owner);
        match (verb, held) {
            ("take" | "renew", Some(held)) if mine => {
                held.expiry = held.expiry.max(now + ttl);
                format!("held {}", held.token)
            }
            ("take", Some(held)) => {
                format!("taken {}", held.expiry.duration_since(now).as_millis())
            }
            ("take", None) => {
                self.last_token += 1;
                let (owner, token) = (owner.into(), self.last_token);
                self.locks.insert(name.into(), Held { owner, token, expiry: now + ttl });
                format!("held {token}")
            }
            ("renew", _) => "lost".into(),
            ("release", Some(_)) if mine => {
                self.locks.remove(name);
                "freed".into()
            }
            ("release", _) => "not held".into(),
            _ => "what?".into(),
        }
    }
}
