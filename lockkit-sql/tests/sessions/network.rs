//! A network that forgets connections.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

/// Forwards, and can reset the clients' ends of its connections alone: what a router does that has
/// forgotten them.
pub(crate) struct Network {
    pub(crate) addr: SocketAddr,
    server: SocketAddr,
    forget: watch::Sender<u32>,
    /// One for each that was reset.
    forgotten: Arc<Semaphore>,
    /// The task that accepts connections.
    accepting: JoinHandle<()>,
}

impl Network {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (forget, forgotten) = (watch::Sender::new(0), Arc::new(Semaphore::new(0)));
        let accepting = Self::listen(listener, server, forget.clone(), Arc::clone(&forgotten));
        Self { addr, server, forget, forgotten, accepting }
    }

    fn listen(
        listener: TcpListener,
        server: SocketAddr,
        forget: watch::Sender<u32>,
        forgotten: Arc<Semaphore>,
    ) -> JoinHandle<()> {
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut server = TcpStream::connect(server).await.unwrap();
                let (mut told, forgotten) = (forget.subscribe(), Arc::clone(&forgotten));
                tokio::spawn(async move {
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => return,
                        _ = told.changed() => client.set_zero_linger().unwrap(),
                    }
                    drop(client);
                    drop(told);
                    forgotten.add_permits(1);
                    // As if it were still there, until the server has enough of it.
                    _ = server.read_to_end(&mut Vec::new()).await;
                });
            }
        })
    }

    /// Refuses new connections. The present ones stay.
    pub(crate) async fn refuse(&mut self) {
        self.accepting.abort();
        assert!((&mut self.accepting).await.unwrap_err().is_cancelled());
    }

    /// Accepts new connections again.
    pub(crate) async fn accept(&mut self) {
        let listener = TcpListener::bind(self.addr).await.unwrap();
        let (forget, forgotten) = (self.forget.clone(), Arc::clone(&self.forgotten));
        self.accepting = Self::listen(listener, self.server, forget, forgotten);
    }

    /// Returns when they are reset.
    pub(crate) async fn forget_clients(&self) {
        let clients = self.forget.receiver_count().try_into().unwrap();
        self.forget.send_modify(|times| *times += 1);
        self.forgotten.acquire_many(clients).await.unwrap().forget();
    }
}
