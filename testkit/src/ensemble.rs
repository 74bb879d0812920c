use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::port::{free_port, is_free};
use crate::{Backend, Server, Unavailable};

/// Several private servers that are one backend, made by [`Backend::start_ensemble`]. They end when
/// it is dropped.
///
/// Each member can be killed, stopped and restarted by itself; a restart waits until it serves,
/// which takes a majority.
pub struct Ensemble {
    backend: &'static Backend,
    joining: Joining,
    members: Vec<Server>,
}

/// How servers of a backend find one another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joining {
    /// How many ports a member has beside the one for clients.
    pub(crate) peer_ports: usize,
    /// Like [`Backend::arguments`], for a member.
    pub(crate) arguments: fn(&Seat, data: &Path) -> io::Result<Vec<String>>,
    /// Whether the member at that port leads the others.
    pub(crate) is_leader: fn(port: u16) -> io::Result<bool>,
    /// The URL of the whole, from the members' ports.
    pub(crate) url: fn(ports: &[u16]) -> String,
}

/// The place of a member among the others.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// Which one it is, from 0.
    pub(crate) index: usize,
    /// The ports of all of them: the one for clients first.
    pub(crate) ports: Arc<[Vec<u16>]>,
    /// A number that no other ensemble has.
    pub(crate) tag: u64,
    joining: Joining,
}

impl Seat {
    pub(crate) fn port(&self) -> u16 {
        self.ports[self.index][0]
    }

    pub(crate) fn arguments(&self, data: &Path) -> io::Result<Vec<String>> {
        (self.joining.arguments)(self, data)
    }
}

impl Ensemble {
    /// Its members, in no order.
    pub fn members(&self) -> &[Server] {
        &self.members
    }

    /// The URL that names all members.
    pub fn url(&self) -> String {
        self.url_at(&self.members.iter().map(Server::port).collect::<Vec<_>>())
    }

    /// The URL for whoever comes through proxies at these ports of 127.0.0.1.
    pub fn url_at(&self, ports: &[u16]) -> String {
        (self.joining.url)(ports)
    }

    /// The index of the member that leads the others. Waits until one is chosen, and looks only at
    /// members that run and answer.
    ///
    /// # Panics
    /// If there is none within 120 s.
    pub fn leader(&self) -> usize {
        const PATIENCE: Duration = Duration::from_secs(120);
        const PAUSE: Duration = Duration::from_millis(10);
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            // A member that does not answer leads nobody.
            let leads = |member: &Server| (self.joining.is_leader)(member.port()).unwrap_or(false);
            let running = |member: &&Server| member.pid().is_some();
            if let Some(leader) = self.members.iter().filter(running).find(|member| leads(member)) {
                let found = self.members.iter().position(|member| std::ptr::eq(member, leader));
                return found.unwrap_or_default();
            }
            thread::sleep(PAUSE);
        }
        panic!("{} chooses no leader within {PATIENCE:?}", self.backend.id)
    }

    pub(crate) fn start(
        backend: &'static Backend,
        joining: Joining,
        program: &Path,
        members: usize,
    ) -> Result<Ensemble, Unavailable> {
        const PORTS_TO_TRY: usize = 10;
        let failed = |error: io::Error| backend.failed(&error, String::new());
        let mut tried = 0;
        loop {
            tried += 1;
            let ports = free_ports(members, 1 + joining.peer_ports).map_err(failed)?;
            let tag = fastrand::u64(..);
            let seat = |index| Seat { index, ports: ports.clone(), tag, joining };
            let join = |index| Server::member(backend, program.into(), seat(index));
            let members: Vec<Server> =
                (0..members).map(join).collect::<io::Result<_>>().map_err(failed)?;
            let begun = members.iter().try_for_each(Server::begin);
            let settled = begun.and_then(|()| members.iter().try_for_each(Server::settle));
            let ensemble = Ensemble { backend, joining, members };
            match settled {
                Ok(()) => return Ok(ensemble),
                Err(unavailable) => {
                    drop(ensemble);
                    // Another process was faster at one of the ports.
                    let were_free = ports.iter().flatten().all(|&port| is_free(port));
                    if were_free || tried == PORTS_TO_TRY {
                        return Err(unavailable);
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Ensemble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ensemble").field(&self.members).finish()
    }
}

/// Different ports, `each` of them for every member.
fn free_ports(members: usize, each: usize) -> io::Result<Arc<[Vec<u16>]>> {
    let mut all: Vec<u16> = Vec::new();
    while all.len() < members * each {
        let port = free_port()?;
        if !all.contains(&port) {
            all.push(port);
        }
    }
    Ok(all.chunks(each).map(Vec::from).collect())
}
