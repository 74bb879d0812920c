use std::sync::Arc;

use fastrand::Rng;
use futures_util::future::join_all;
use lockkit_testkit::Proxy;
use tokio::time::sleep;

use crate::backend::Backend;
use crate::process::Process;
use crate::witness::Witness;
use crate::{NAMES, PROCESSES};

/// What happens to processes, to servers, and between them.
pub(crate) struct Weather<'a> {
    backend: &'a Backend,
    witness: &'a Arc<Witness>,
    dice: Rng,
    leader_may_stop: bool,
    /// Of each process, to each server.
    ways: Vec<Vec<Proxy>>,
    processes: Vec<Process>,
}

impl<'a> Weather<'a> {
    pub(crate) async fn new(backend: &'a Backend, witness: &'a Arc<Witness>, dice: Rng) -> Self {
        let (ways, processes) = (Vec::new(), Vec::new());
        let leader_may_stop = backend.has_sound_leaders().await;
        let mut weather = Self { backend, witness, dice, leader_may_stop, ways, processes };
        for at in 0..PROCESSES {
            let servers = backend.servers().iter();
            weather.ways.push(join_all(servers.map(|server| Proxy::start(server.addr()))).await);
            let process = weather.start(at).await;
            weather.processes.push(process);
        }
        weather
    }

    /// One event, from its beginning to its end.
    pub(crate) async fn change(&mut self) {
        let long = self.backend.ttl.mul_f64(2.0 * self.dice.f64());
        // Most of it goes unnoticed where nothing is held.
        let name = NAMES[self.dice.usize(..NAMES.len())];
        let process = self.witness.holder(name).unwrap_or(0);
        let at = self.dice.usize(..self.backend.servers().len());
        let ways = &self.ways[process];
        let (way, server) = (&ways[at], &self.backend.servers()[at]);
        match self.dice.u32(..12) {
            0 => way.reset().await,
            1 => way.close().await,
            2 => {
                way.requests().swallow();
                sleep(long).await;
                clears_up(way).await;
            }
            3 => {
                way.answers().swallow();
                sleep(long).await;
                clears_up(way).await;
            }
            4 => {
                ways.iter().for_each(|way| {
                    way.requests().swallow();
                    way.answers().swallow();
                });
                sleep(long).await;
                join_all(ways.iter().map(clears_up)).await;
            }
            5 => {
                way.requests().delay(long);
                sleep(long).await;
                way.requests().pass();
            }
            6 => {
                way.answers().delay(long);
                sleep(long).await;
                way.answers().pass();
            }
            7 => {
                way.refuse().await;
                way.reset().await;
                sleep(long).await;
                way.accept().await;
            }
            8 if !self.leader_may_stop && self.backend.leader() == Some(at) => (),
            8 => {
                server.stop().unwrap();
                sleep(long).await;
                server.cont().unwrap();
            }
            9 => {
                server.kill();
                sleep(long).await;
                server.restart().unwrap();
            }
            10 => {
                let next = self.start(process).await;
                std::mem::replace(&mut self.processes[process], next).die();
            }
            _ => {
                let next = self.start(process).await;
                std::mem::replace(&mut self.processes[process], next).end().await;
            }
        }
    }

    /// The processes, to which nothing happens any more.
    pub(crate) fn calm(&mut self) -> Vec<Process> {
        std::mem::take(&mut self.processes)
    }

    async fn start(&mut self, at: usize) -> Process {
        let addresses: Vec<_> = self.ways[at].iter().map(Proxy::addr).collect();
        let url = self.backend.url_at(&addresses);
        Process::start(at, url, self.witness, self.backend.ttl, &mut self.dice).await
    }
}

/// What was swallowed is missing in the stream, so that no connection goes on.
async fn clears_up(way: &Proxy) {
    way.requests().pass();
    way.answers().pass();
    way.reset().await;
}
