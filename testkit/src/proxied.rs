use tokio::runtime::Runtime;

use crate::{Proxy, Server};

/// A server that is reached through a [`Proxy`]. The proxy runs in a runtime of its own, since the
/// runtimes of single tests end with them.
#[derive(Debug)]
pub struct Proxied {
    server: Server,
    proxy: Proxy,
    _runtime: Runtime,
}

impl Proxied {
    /// Puts a proxy before the server. Not to be called in a runtime.
    ///
    /// # Panics
    /// If there is no runtime to be had, or no port for the proxy.
    pub fn new(server: Server) -> Proxied {
        let runtime = Runtime::new().expect("threads can be started");
        let proxy = runtime.block_on(Proxy::start(server.addr()));
        Proxied { server, proxy, _runtime: runtime }
    }

    /// The URL that leads through the proxy.
    pub fn url(&self) -> String {
        self.server.url_at(self.proxy.addr())
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The proxy before it.
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }
}
