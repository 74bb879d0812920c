//! A world: some processes, a server, and what goes wrong between them, all of it made of one seed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use lockkit_core::driver::{Clock, Driver};
use lockkit_core::{LockName, Locker, Namespace, Owner};
use tokio::runtime::{Builder, Handle};
use tokio::select;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::history::History;
use crate::network::{Condition, Network};
use crate::people::{Person, Run};
use crate::server::Kind;
use crate::society::Society;

/// Longer than any world lasts, in leases: what takes longer hangs.
const FOR_EVER: u32 = 2_000;

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Nothing.
    Calm,
    /// Everything but what a lock cannot stand.
    Stormy,
    /// That too: the server forgets, and operators break holds.
    Forgetful,
}

/// What came of a world.
pub(crate) struct Outcome {
    pub(crate) weather: Weather,
    /// What was wrong, after what came before it.
    pub(crate) verdict: Result<(), String>,
    pub(crate) history: String,
    /// How often what happened.
    pub(crate) counts: BTreeMap<&'static str, usize>,
}

/// Plays the world of this seed.
pub(crate) fn play(kind: Kind, seed: u64) -> Outcome {
    // For the engine's own jitter.
    fastrand::seed(seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut rng = Rng::with_seed(seed);
        let world = World::new(kind, seed, &mut rng);
        if timeout(world.society.ttl * FOR_EVER, world.unfold(rng)).await.is_err() {
            world.society.network.history.violation("something hangs");
        }
        world.outcome()
    })
}

struct World {
    weather: Weather,
    is_crowded: bool,
    society: Arc<Society>,
    /// The runs that live, and their clocks.
    living: Arc<Mutex<BTreeMap<usize, Clock>>>,
}

impl World {
    fn new(kind: Kind, seed: u64, rng: &mut Rng) -> Self {
        let weather = match seed % 4 {
            0 => Weather::Calm,
            1 | 2 => Weather::Stormy,
            _ => Weather::Forgetful,
        };
        let is_calm = weather == Weather::Calm;
        let rate = if is_calm { 1.0 } else { 0.9915 + rng.f64() * 0.017 };
        let ttl = Duration::from_millis(rng.u64(500..30_000));
        // More of a process wait for a lock than have places at once.
        let is_crowded = seed % 5 == 4;
        let locks = if is_crowded { 1 } else { rng.u32(1..=3) };
        let names = (0..locks).map(|number| format!("lock-{number}")).collect();
        let history = History::new();
        history.note(|| format!("{kind:?}, {weather:?}, leases of {ttl:?}, rate {rate}"));
        let network = Network::new(kind, rate, ttl, rng.fork(), history);
        let society = Society::new(network, names, ttl, is_calm);
        Self { weather, is_crowded, society, living: Arc::default() }
    }

    async fn unfold(&self, mut rng: Rng) {
        let mut processes = JoinSet::new();
        let mut weather = JoinSet::new();
        for _ in 0..rng.u32(2..=4) {
            processes.spawn(self.process(rng.fork()).live());
        }
        if self.weather != Weather::Calm {
            for _ in 0..2 {
                weather.spawn(self.nemesis(rng.fork()).act());
            }
        }
        weather.spawn(watch_for_ghosts(Arc::clone(&self.society)));
        join(&mut processes).await;
        weather.shutdown().await;
        self.clear();
        self.audit().await;
    }

    fn process(&self, rng: Rng) -> Process {
        let (society, living) = (Arc::clone(&self.society), Arc::clone(&self.living));
        Process { society, living, is_crowded: self.is_crowded, rng }
    }

    fn nemesis(&self, rng: Rng) -> Nemesis {
        let (society, living) = (Arc::clone(&self.society), Arc::clone(&self.living));
        Nemesis { society, living, forgets: self.weather == Weather::Forgetful, rng }
    }

    fn clear(&self) {
        let network = &self.society.network;
        network.disturb(0, 0);
        network.set(Condition::Running);
        for run in 0..network.runs() {
            network.mend(run);
        }
    }

    /// When all are gone nothing is left, and a newcomer has every lock at once.
    async fn audit(&self) {
        let Society { network, names, ttl, .. } = &*self.society;
        if self.weather != Weather::Calm {
            // A request may land late, and what it took be handed over once.
            sleep(*ttl * 6).await;
        }
        let residue = network.at_server(|server, now| server.residue(now));
        if !residue.is_empty() {
            network.history.violation(format!("left at the server: {residue:?}"));
        }
        let locker = locker(network.connect(), *ttl, Clock::simulated());
        for name in names {
            match locker.lock(name).unwrap().try_acquire().await {
                Ok(Some(guard)) => drop(guard),
                refused => network.history.violation(format!("{name} for a newcomer: {refused:?}")),
            }
        }
        locker.shutdown().await;
        drop(locker);
        // What was on its way, as news are.
        sleep(*ttl * 6).await;
        let (tasks, drivers) = (Handle::current().metrics().num_alive_tasks(), network.drivers());
        if tasks + drivers > 0 {
            network.history.violation(format!("{tasks} tasks and {drivers} drivers are left"));
        }
        self.society.check_effects();
    }

    fn outcome(&self) -> Outcome {
        let network = &self.society.network;
        let places_expired = network.at_server(|server, _| server.ledger.places_expired);
        if self.weather == Weather::Calm && places_expired > 0 {
            network.history.violation(format!("{places_expired} places ran out"));
        }
        Outcome {
            weather: self.weather,
            verdict: network.history.verdict(),
            history: network.history.text(),
            counts: network.history.counts(),
        }
    }
}

/// One process after the other, on one machine.
struct Process {
    society: Arc<Society>,
    living: Arc<Mutex<BTreeMap<usize, Clock>>>,
    is_crowded: bool,
    rng: Rng,
}

impl Process {
    async fn live(mut self) {
        for _ in 0..self.rng.u32(1..=3) {
            self.run().await;
        }
    }

    async fn run(&mut self) {
        let Society { network, ttl, is_calm, .. } = &*self.society;
        let (clock, remote) = (Clock::simulated(), network.connect());
        let number = remote.run();
        let locker = locker(remote.clone(), *ttl, clock.clone());
        self.living.lock().unwrap().insert(number, clock.clone());
        let (owner, leaving) = (Owner::new(), Arc::default());
        let run = Run { locker, owner, clock, leaving };
        let mut people = JoinSet::new();
        let (how_many, active) = if self.is_crowded { (20..=30, 1..4) } else { (1..=3, 3..12) };
        for _ in 0..self.rng.u32(how_many) {
            let person = Person::new(Arc::clone(&self.society), run.clone(), self.rng.fork());
            people.spawn(person.live(self.rng.usize(active.clone())));
        }
        let soon = *ttl * self.rng.u32(1..20);
        // Killed, shut down in the midst of it, or shut down when all is done.
        let end = self.rng.u32(u32::from(*is_calm)..4);
        // Wherever its people are, or when they have done what they wanted.
        select! {
            biased;
            () = sleep(soon), if end < 2 => (),
            () = join(&mut people) => (),
        }
        if end == 0 {
            network.history.note(|| format!("run {number} is killed"));
            self.living.lock().unwrap().remove(&number);
            network.kill(number);
            people.shutdown().await;
            return;
        }
        network.history.note(|| format!("run {number} shuts down"));
        run.leaving.store(true, Ordering::Relaxed);
        let began = Instant::now();
        run.locker.shutdown().await;
        let (took, limit) = match is_calm {
            true => (began.elapsed(), Duration::from_secs(1)),
            false => (began.elapsed(), *ttl + Duration::from_secs(10)),
        };
        network.history.note(|| format!("run {number} was shut down within {took:?}"));
        if took > limit {
            network.history.violation(format!("run {number} took {took:?} to shut down"));
        }
        join(&mut people).await;
        self.living.lock().unwrap().remove(&number);
        let left = remote.left();
        if *is_calm && !left.is_empty() {
            network.history.violation(format!("run {number} left {left:?}"));
        }
    }
}

/// What goes wrong, one thing after the other.
struct Nemesis {
    society: Arc<Society>,
    living: Arc<Mutex<BTreeMap<usize, Clock>>>,
    forgets: bool,
    rng: Rng,
}

impl Nemesis {
    async fn act(mut self) {
        loop {
            let quiet = self.up_to(self.society.ttl * 2);
            sleep(quiet).await;
            self.strike().await;
        }
    }

    async fn strike(&mut self) {
        let society = Arc::clone(&self.society);
        let Society { network, names, ttl, .. } = &*society;
        let living = self.living.lock().unwrap().clone();
        let Some((run, clock)) = self.rng.choice(living.iter()) else { return };
        let note = |what: String| network.history.note(|| format!("weather: {what}"));
        match self.rng.u32(..if self.forgets { 10 } else { 8 }) {
            0 | 1 => {
                let (outward, inward) =
                    self.rng.choice([(true, true), (true, false), (false, true)]).unwrap();
                note(format!("run {run} is cut off: outward {outward}, inward {inward}"));
                network.cut(*run, outward, inward);
                sleep(self.up_to(*ttl * 2)).await;
                note(format!("run {run} is connected"));
                network.mend(*run);
            }
            2 => {
                let (lost, slow) = (self.rng.u32(..300), self.rng.u32(..300));
                note(format!("{lost} of 1000 are lost, {slow} slow"));
                network.disturb(lost, slow);
                sleep(self.up_to(*ttl * 2)).await;
                network.disturb(0, 0);
            }
            3 => {
                note("the server stops".into());
                network.set(Condition::Stopped);
                sleep(self.up_to(*ttl)).await;
                note("the server goes on".into());
                network.set(Condition::Running);
            }
            4 => {
                // What is answered late is the last that is answered.
                note(format!("all is slow, and then run {run} is cut off"));
                network.disturb(0, 700);
                sleep(*ttl / 2).await;
                network.disturb(0, 0);
                network.cut(*run, true, false);
                sleep(*ttl + self.up_to(*ttl)).await;
                note(format!("run {run} is connected"));
                network.mend(*run);
            }
            5 => {
                let by = self.up_to(*ttl * 2);
                note(format!("run {run} finds itself {by:?} later"));
                network.has_jumped();
                clock.suspend(by);
            }
            6 => {
                let by = self.up_to(*ttl * 2);
                note(format!("everybody finds themselves {by:?} later"));
                network.jump(by);
                network.has_jumped();
                for clock in living.values() {
                    clock.suspend(by);
                }
            }
            7 => self.restart(false).await,
            8 => self.restart(true).await,
            _ => {
                let name = self.rng.choice(names).unwrap();
                let name = LockName::new(&Namespace::default(), name).unwrap();
                note(format!("the hold of {name} is broken"));
                network.at_server(|server, now| server.break_hold(now, &name));
            }
        }
    }

    async fn restart(&mut self, forgets: bool) {
        let society = Arc::clone(&self.society);
        let network = &society.network;
        network.history.note(|| format!("weather: the server is down, and forgets: {forgets}"));
        network.set(Condition::Down);
        if forgets {
            network.at_server(|server, _| server.forget());
        }
        sleep(self.up_to(society.ttl / 2)).await;
        network.history.note(|| "weather: the server is up".into());
        network.set(Condition::Running);
        for run in 0..network.runs() {
            network.reconnect(run);
        }
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        up_to(&mut self.rng, longest)
    }
}

/// Some time, none or `longest` included.
pub(crate) fn up_to(rng: &mut Rng, longest: Duration) -> Duration {
    Duration::from_micros(rng.u64(0..=longest.as_micros() as u64))
}

fn locker(driver: Arc<dyn Driver>, ttl: Duration, clock: Clock) -> Locker {
    Locker::builder_from_arc(driver).ttl(ttl).clock(clock).build().unwrap()
}

/// Looks for locks that are kept from others for nobody: whoever took them has given them up, could
/// have said so, and does not.
async fn watch_for_ghosts(society: Arc<Society>) {
    let Society { network, ttl, .. } = &*society;
    let mut seen = BTreeMap::new();
    loop {
        sleep(*ttl / 16).await;
        if !network.is_clear() {
            seen.clear();
            continue;
        }
        let ghosts = network.ghosts();
        seen.retain(|owner, _| ghosts.contains(owner));
        for owner in ghosts {
            let since = *seen.entry(owner).or_insert_with(Instant::now);
            // A release that was not answered is sent again within a quarter of the longest lease.
            if since.elapsed() > *ttl * 3 / 5 {
                network.history.violation(format!("{owner} has a lock that nobody wants"));
                seen.remove(&owner);
            }
        }
    }
}

async fn join(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}
