//! A run: one loop over agents that all speak one protocol, on the same servers, in turns.

mod book;
mod setup;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fastrand::Rng;
use lockkit::BoxError;
use lockkit_bench::Result;
use tokio::task::JoinSet;

use self::book::{Book, Key};
pub use self::setup::Gauge;
use crate::agent::reason;
use crate::hired::Hired;
use crate::process;
use crate::run::{Absence, Placement, Role, Run, Setup};
use crate::scale::Scale;
use crate::servers::{Backend, Servers};
use crate::subject::Subject;
use crate::workloads::{self, Uncontended, Waits};

/// What a run is to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// On which backends, one after the other.
    pub backends: Vec<Backend>,
    /// How much is measured in each round.
    pub scale: Scale,
    /// How many rounds there are. Whoever takes long to contend does so in the first only.
    pub rounds: usize,
    /// What decides the order within each.
    pub seed: u64,
}

/// Holds of agents that are not killed outlive none of them.
const LEASE: Duration = Duration::from_secs(30);

/// Contending for so much longer than was wanted is not repeated: each client has the lock once more
/// after the end, which takes those long who poll.
const LENGTHY: Duration = Duration::from_millis(500);

/// For how long an agent is used before anything is measured whose language compiles what is used.
const WARM_UP: Duration = Duration::from_secs(2);

/// Measures all that `subjects` finds on each backend's servers, and tells what it does.
///
/// Whoever fails is not asked the same again, and stands among the absences with the reason.
///
/// # Errors
///
/// If the machine does not let itself be measured.
pub async fn run(
    plan: &Plan,
    subjects: impl Fn(&Servers) -> Vec<Subject>,
    progress: impl Fn(&str),
) -> Result<Run> {
    let gauge = Gauge::begin()?;
    let mut rng = Rng::with_seed(plan.seed);
    let mut book = Book::default();
    let mut versions = Vec::new();
    for &backend in &plan.backends {
        let name = backend.names().0;
        match Servers::start(backend) {
            Ok(servers) => {
                versions.extend(servers.version().await?);
                let subjects = subjects(&servers);
                let mut stage = Stage { plan, servers: &servers, rng: &mut rng, book: &mut book };
                let tell = |what: &str, began: Instant| {
                    progress(&format!("{name}: {what} measured in {:.0?}", began.elapsed()));
                };
                versions.extend(stage.measure(&name, subjects, tell).await?);
            }
            Err(error) => book.absence(Absence {
                workload: None,
                backend: name.clone(),
                subject: "lockkit".into(),
                role: Role::Lockkit,
                reason: reason(&*error),
            }),
        }
    }
    versions.sort();
    versions.dedup();
    let (entries, absences) = book.close();
    let setup = Setup { seed: plan.seed, rounds: plan.rounds, ..gauge.end(versions)? };
    Ok(Run { setup, entries, absences })
}

/// A backend whose servers run.
struct Stage<'a> {
    plan: &'a Plan,
    servers: &'a Servers,
    rng: &'a mut Rng,
    book: &'a mut Book,
}

/// A subject and its agent.
struct Actor {
    at: usize,
    subject: Subject,
    agent: Option<Hired>,
    /// The cases of contention that took it long.
    lengthy: BTreeSet<usize>,
}

impl Actor {
    /// Its agent: another one if the last has been ended, which may not start as that did.
    async fn ready(&mut self, scale: &Scale) -> Result<&mut Hired> {
        let agent = match self.agent.take() {
            Some(agent) => agent,
            None => Hired::start(&self.subject, LEASE, scale.limit).await?,
        };
        Ok(self.agent.insert(agent))
    }

    /// Its agent, on this CPU.
    async fn pinned(&mut self, scale: &Scale, cpu: Option<usize>) -> Result<&mut Hired> {
        let agent = self.ready(scale).await?;
        agent.tree().pin(cpu)?;
        Ok(agent)
    }
}

impl Stage<'_> {
    /// Measures all of them, and says of which version they are.
    async fn measure(
        &mut self,
        backend: &str,
        subjects: Vec<Subject>,
        progress: impl Fn(&str, Instant),
    ) -> Result<Vec<(String, String)>> {
        let mut actors = Vec::new();
        let mut versions = Vec::new();
        for (at, subject) in subjects.into_iter().enumerate() {
            match Hired::start(&subject, LEASE, self.plan.scale.limit).await {
                Ok(agent) => {
                    if !agent.version.is_empty() {
                        versions.push((subject.name.clone(), agent.version.clone()));
                    }
                    let lengthy = BTreeSet::new();
                    actors.push(Actor { at, subject, agent: Some(agent), lengthy });
                }
                Err(error) => {
                    let reason = reason(&*error);
                    self.book.absence(absence(None, backend, &subject, reason));
                }
            }
        }
        self.warm_up(&mut actors).await?;
        for round in 0..self.plan.rounds {
            let began = Instant::now();
            let mut placements = [Placement::Pinned, Placement::Unpinned];
            self.rng.shuffle(&mut placements);
            for placement in placements {
                self.latencies(backend, &mut actors, placement).await?;
            }
            progress(&format!("latencies of round {}", round + 1), began);
            let began = Instant::now();
            self.contended(backend, &mut actors, round == 0).await?;
            progress(&format!("contention of round {}", round + 1), began);
        }
        let mut subjects = Vec::new();
        for actor in actors {
            if let Some(agent) = actor.agent {
                agent.end().await?;
            }
            subjects.push((actor.at, actor.subject));
        }
        let began = Instant::now();
        self.recovery(backend, subjects).await?;
        progress("recovery", began);
        Ok(versions)
    }

    /// An agent that fails here is ended, and fails again where that is noted.
    async fn warm_up(&mut self, actors: &mut [Actor]) -> Result<()> {
        let scale = &self.plan.scale;
        let waits = Waits::draw(self.rng, self.servers.backend(), scale);
        for actor in actors.iter_mut().filter(|actor| actor.subject.compiles_as_it_runs) {
            let begun = Instant::now();
            let warmed = async {
                let agent = actor.ready(scale).await?;
                while begun.elapsed() < WARM_UP.min(scale.slice * 8) {
                    Uncontended::begin(agent, scale).await?;
                }
                workloads::hand_over(agent, &waits, scale).await
            };
            if warmed.await.is_err()
                && let Some(agent) = actor.agent.take()
            {
                agent.end().await?;
            }
        }
        Ok(())
    }

    /// All in turns, wherever the system puts them or all on one CPU.
    async fn latencies(
        &mut self,
        backend: &str,
        actors: &mut [Actor],
        placement: Placement,
    ) -> Result<()> {
        let cpu = match placement {
            // Where there is only one CPU, or none that can be chosen, they are always together.
            Placement::Pinned => match process::cpus()?[..] {
                [_, .., last] => Some(last),
                _ => return Ok(()),
            },
            Placement::Unpinned => None,
        };
        self.servers.pin(cpu)?;
        self.uncontended(backend, actors, placement, cpu).await?;
        self.hand_over(backend, actors, placement, cpu).await?;
        for agent in actors.iter().filter_map(|actor| actor.agent.as_ref()) {
            agent.tree().pin(None)?;
        }
        self.servers.pin(None)
    }

    async fn uncontended(
        &mut self,
        backend: &str,
        actors: &mut [Actor],
        placement: Placement,
        cpu: Option<usize>,
    ) -> Result<()> {
        let (scale, mut begun) = (&self.plan.scale, BTreeMap::new());
        for _ in 0..Uncontended::TURNS {
            self.rng.shuffle(actors);
            for actor in &mut *actors {
                let key = Key::new("uncontended", actor.at, placement, 0);
                if self.book.is_given_up(backend, &key) {
                    continue;
                }
                let so_far = begun.remove(&actor.at);
                let turn = async {
                    let agent = actor.pinned(scale, cpu).await?;
                    let mut measured = match so_far {
                        Some(measured) => measured,
                        None => Uncontended::begin(agent, scale).await?,
                    };
                    measured.take_turn(agent, scale).await?;
                    Result::Ok(measured)
                };
                match turn.await {
                    Ok(measured) => _ = begun.insert(actor.at, measured),
                    Err(error) => self.give_up(backend, actor, key, "", error).await?,
                }
            }
        }
        for actor in &*actors {
            let key = Key::new("uncontended", actor.at, placement, 0);
            if let Some(measured) = begun.remove(&actor.at) {
                self.book.enter(key, backend, &actor.subject, "", measured.end());
            }
        }
        Ok(())
    }

    async fn hand_over(
        &mut self,
        backend: &str,
        actors: &mut [Actor],
        placement: Placement,
        cpu: Option<usize>,
    ) -> Result<()> {
        let scale = &self.plan.scale;
        let waits = Waits::draw(self.rng, self.servers.backend(), scale);
        self.rng.shuffle(actors);
        for actor in actors {
            let key = Key::new("hand-over", actor.at, placement, 0);
            if self.book.is_given_up(backend, &key) {
                continue;
            }
            let measured = async {
                let agent = actor.pinned(scale, cpu).await?;
                workloads::hand_over(agent, &waits, scale).await
            };
            match measured.await {
                Ok(round) => self.book.enter(key, backend, &actor.subject, "", round),
                Err(error) => self.give_up(backend, actor, key, "", error).await?,
            }
            self.hand_over_between(backend, actor, &waits, placement, cpu).await?;
        }
        Ok(())
    }

    /// Between two processes, where those of one may do without what is between.
    async fn hand_over_between(
        &mut self,
        backend: &str,
        actor: &mut Actor,
        waits: &Waits,
        placement: Placement,
        cpu: Option<usize>,
    ) -> Result<()> {
        let is_of_a_host = matches!(self.servers.backend(), Backend::File | Backend::Sqlite);
        let key = Key::new("hand-over", actor.at, placement, 1);
        if !is_of_a_host
            || actor.subject.role != Role::Lockkit
            || self.book.is_given_up(backend, &key)
        {
            return Ok(());
        }
        let (scale, case) = (&self.plan.scale, workloads::TWO_PROCESSES);
        let measured = async {
            let mut waiter = Hired::start(&actor.subject, LEASE, scale.limit).await?;
            waiter.tree().pin(cpu)?;
            let holder = actor.pinned(scale, cpu).await?;
            let round = workloads::hand_over_between(holder, &mut waiter, waits, scale).await?;
            waiter.end().await?;
            Result::Ok(round)
        };
        match measured.await {
            Ok(round) => self.book.enter(key, backend, &actor.subject, case, round),
            Err(error) => self.give_up(backend, actor, key, case, error).await?,
        }
        Ok(())
    }

    async fn contended(
        &mut self,
        backend: &str,
        actors: &mut [Actor],
        is_first: bool,
    ) -> Result<()> {
        let scale = &self.plan.scale;
        for (at, case) in workloads::cases(scale).iter().enumerate() {
            self.rng.shuffle(actors);
            for actor in &mut *actors {
                let key = Key::new("contended", actor.at, Placement::Unpinned, at);
                let is_floor = actor.subject.role == Role::Floor;
                let is_lengthy = actor.lengthy.contains(&at);
                if is_floor || is_lengthy || self.book.is_given_up(backend, &key) {
                    continue;
                }
                let counting = match is_first && case.is_counted() {
                    true => Some(self.servers),
                    false => None,
                };
                let measured = async {
                    let agent = actor.ready(scale).await?;
                    workloads::contended(agent, counting, case, scale).await
                };
                match measured.await {
                    Ok((round, overtime)) => {
                        self.book.enter(key, backend, &actor.subject, &case.name, round);
                        if overtime > LENGTHY {
                            actor.lengthy.insert(at);
                        }
                    }
                    Err(error) => self.give_up(backend, actor, key, &case.name, error).await?,
                }
            }
        }
        Ok(())
    }

    /// They wait for most of the time, and so all at once, one round after the other. All holders of
    /// a round are killed after the same time.
    async fn recovery(&mut self, backend: &str, subjects: Vec<(usize, Subject)>) -> Result<()> {
        for _ in 0..self.plan.rounds {
            let share = self.rng.f64();
            let mut measured = JoinSet::new();
            for (at, subject) in &subjects {
                let key = Key::new("recovery", *at, Placement::Unpinned, 0);
                let is_floor = subject.role == Role::Floor;
                if is_floor || self.book.is_given_up(backend, &key) {
                    continue;
                }
                if self.servers.backend() == Backend::Memory {
                    let reason = "these locks end with the process that makes them";
                    let absence = absence(Some("recovery"), backend, subject, reason.into());
                    self.book.give_up(key, absence);
                    continue;
                }
                let (subject, scale) = (subject.clone(), self.plan.scale.clone());
                measured.spawn(async move {
                    let measured = workloads::recovery(&subject, &scale, share).await;
                    (key, subject, measured)
                });
            }
            while let Some(ended) = measured.join_next().await {
                let (key, subject, measured) = ended?;
                match measured {
                    Ok(round) => self.book.enter(key, backend, &subject, "", round),
                    Err(error) => {
                        let reason = reason(&*error);
                        let absence = absence(Some("recovery"), backend, &subject, reason);
                        self.book.give_up(key, absence);
                    }
                }
            }
        }
        Ok(())
    }

    /// Of an agent that could not do one thing nothing is known any more: it is ended.
    async fn give_up(
        &mut self,
        backend: &str,
        actor: &mut Actor,
        key: Key,
        case: &str,
        error: BoxError,
    ) -> Result<()> {
        if let Some(agent) = actor.agent.take() {
            agent.end().await?;
        }
        let reason = match case {
            "" => reason(&*error),
            case => format!("{case}: {}", reason(&*error)),
        };
        let absence = absence(Some(key.workload()), backend, &actor.subject, reason);
        self.book.give_up(key, absence);
        Ok(())
    }
}

fn absence(workload: Option<&str>, backend: &str, subject: &Subject, reason: String) -> Absence {
    Absence {
        workload: workload.map(Into::into),
        backend: backend.into(),
        subject: subject.name.clone(),
        role: subject.role,
        reason,
    }
}
