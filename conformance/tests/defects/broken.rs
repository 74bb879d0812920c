//! The memory driver behind a cable, with at most one fault.

mod inspection;
mod sharing;
mod silence;
mod steps;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::future::{pending, poll_fn};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, ErrorKind, Grant, Inspect, Instant, OwnerId,
    Release, Renewal, Taken, Vouch,
};
use lockkit_core::memory::{CAPABILITIES, MemoryDriver};
use lockkit_core::{Capabilities, FencingToken, Holder, Label, Liveness, LockName, Namespace};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use self::steps::between;
use crate::catalogue::Defect;

/// How long a session is, whatever is asked for.
const SESSION: Duration = Duration::from_secs(30);

/// The backend of a suite.
pub(crate) struct Server {
    defect: Option<Defect>,
    /// What it promises without the defect.
    capabilities: Capabilities,
    memory: MemoryDriver,
    /// How often the connections were cut.
    cuts: watch::Sender<u64>,
    /// Whether nothing is answered.
    is_silent: watch::Sender<bool>,
    /// How often a lock was released.
    releases: watch::Sender<u64>,
    /// How often places were put in another order.
    sorts: watch::Sender<u64>,
    restarts: AtomicU64,
    connections: AtomicU64,
    state: Mutex<State>,
}

/// What the faults need to know.
#[derive(Default)]
struct State {
    /// Claims that stand for the real ones at the backend, where the fault is in the translation.
    substitutes: HashMap<Key, Claim>,
    /// Whom the owners of these stand for.
    originals: HashMap<OwnerId, OwnerId>,
    /// Who was told that it holds which lock, and over which connection.
    holders: HashMap<LockName, (Claim, u64)>,
    /// The first lease that each owner asked for.
    first_leases: HashMap<OwnerId, Duration>,
    /// How many asks of each owner were answered with a grant.
    granted: HashMap<OwnerId, usize>,
    first_grants: HashMap<OwnerId, Grant>,
    /// When each lock was first held.
    first_granted: HashMap<LockName, Instant>,
    old_pushes: HashMap<OwnerId, Grant>,
    asked: HashSet<OwnerId>,
    released: HashSet<OwnerId>,
    /// Waiters that were refused and not released.
    waiters: HashMap<LockName, HashMap<OwnerId, Claim>>,
    /// When a hold ends that the backend would keep for longer.
    deadlines: HashMap<LockName, Instant>,
    /// How long the hold of a lock would last that is over, or is to be kept.
    written: HashMap<LockName, Instant>,
    /// Tokens up to here belong to another count.
    restarted_at: HashMap<LockName, u64>,
    last_token: u64,
    /// Until when the count of a lock's tokens is kept.
    counted_until: HashMap<LockName, Instant>,
    renewals: HashMap<OwnerId, u64>,
    renewed: HashMap<OwnerId, Instant>,
    refused: HashMap<OwnerId, Instant>,
    /// How many releases there had been when a claim that only listens was refused, or told.
    listened: HashMap<OwnerId, u64>,
    /// The token that an owner drew before it asked.
    drawn: HashMap<OwnerId, u64>,
    /// The token that each owner was told.
    told: HashMap<OwnerId, Option<FencingToken>>,
    /// Who held which lock last.
    last_holders: HashMap<LockName, Claim>,
    /// Whose hold was broken.
    broken: HashSet<OwnerId>,
    lost: HashSet<(LockName, u64)>,
    names: HashSet<LockName>,
    /// Who has the place of all claims of a connection.
    places: HashMap<(u64, LockName), OwnerId>,
    /// Who came to a queue, in order of arrival.
    arrivals: HashMap<LockName, Vec<OwnerId>>,
    /// Who has asked for which lock, in order of the first ask.
    comers: HashMap<LockName, Vec<OwnerId>>,
    /// How many had asked for anything before each owner did.
    first_asked: HashMap<OwnerId, usize>,
    /// Who was told of a grant.
    pushed: HashSet<OwnerId>,
    /// Whose hold ran out, and was followed by another's.
    overtaken: HashSet<OwnerId>,
}

/// Whom the backend takes for one owner.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Owner(OwnerId),
    Connection(u64, LockName),
}

impl Server {
    pub(crate) fn new(defect: Option<Defect>, capabilities: Capabilities) -> Arc<Self> {
        Arc::new(Self {
            defect,
            capabilities,
            memory: MemoryDriver::new(),
            cuts: watch::Sender::new(0),
            is_silent: watch::Sender::new(false),
            releases: watch::Sender::new(0),
            sorts: watch::Sender::new(0),
            restarts: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    pub(crate) fn connect(self: &Arc<Self>) -> Broken {
        Broken {
            server: Arc::clone(self),
            number: self.connections.fetch_add(1, Ordering::Relaxed),
            memory: MemoryDriver::new(),
            cuts_before: *self.cuts.borrow(),
            cuts_seen: AtomicU64::new(*self.cuts.borrow()),
            restarts_seen: self.restarts.load(Ordering::Relaxed),
            tokens: AtomicU64::new(0),
            fresh: Mutex::default(),
            listeners: Mutex::default(),
            listened_to: watch::Sender::default(),
            closes: AtomicU64::new(0),
            has_given_up: AtomicBool::new(false),
            is_unread: AtomicBool::new(false),
            turn: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn revoke(&self, name: &LockName) {
        let name = &self.translate_name(name);
        self.note_loss(name);
        self.memory.revoke(name);
    }

    fn note_loss(&self, name: &LockName) {
        let mut state = self.state();
        if let Some((_, connection)) = state.holders.remove(name) {
            state.lost.insert((name.clone(), connection));
        }
        if self.has(Defect::TokensRestartOnRevocation) {
            let last = state.last_token;
            state.restarted_at.insert(name.clone(), last);
        }
    }

    pub(crate) fn sever(&self) {
        if self.has(Defect::BoundToTheSession) {
            self.end_all_holds();
        }
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub(crate) fn restart(&self) {
        if self.has(Defect::TokensRestartWithTheServer) {
            for name in self.names() {
                let mut state = self.state();
                let last = state.last_token;
                state.restarted_at.insert(name, last);
            }
        }
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    fn end_all_holds(&self) {
        for name in self.names() {
            self.memory.revoke(&name);
        }
    }

    /// Every name that was ever asked for.
    fn names(&self) -> Vec<LockName> {
        self.state().names.iter().cloned().collect()
    }

    fn translate_name(&self, name: &LockName) -> LockName {
        let text = name.as_str();
        let (namespace, text) = match self.defect {
            Some(Defect::NumbersAreNumbers) => match text.parse::<f64>() {
                Ok(number) => (name.namespace().clone(), number.to_string()),
                Err(_) => return name.clone(),
            },
            Some(Defect::IgnoresCase) => (name.namespace().clone(), text.to_lowercase()),
            Some(Defect::CutsNames) => {
                (name.namespace().clone(), text[..text.floor_char_boundary(64)].into())
            }
            Some(Defect::CutsEncodedNames) => {
                (name.namespace().clone(), cut_when_encoded(text, 1024).into())
            }
            Some(Defect::CutsKeys) => {
                let room = 560 - name.namespace().as_str().len();
                (name.namespace().clone(), text[..text.floor_char_boundary(room)].into())
            }
            Some(Defect::TrimsNames) => (name.namespace().clone(), text.trim_end().into()),
            Some(Defect::Normalises) => {
                (name.namespace().clone(), text.replace("e\u{301}", "\u{e9}"))
            }
            Some(Defect::JoinsNamespaces) => {
                (Namespace::default(), format!("{}.{text}", name.namespace()))
            }
            Some(Defect::IgnoresNamespaces) => (Namespace::default(), text.into()),
            Some(Defect::CutsNamespaces) => {
                let namespace = name.namespace().as_str();
                let cut = Namespace::new(&namespace[..namespace.len().min(63)]);
                (cut.unwrap_or_default(), text.into())
            }
            _ => return name.clone(),
        };
        LockName::new(&namespace, &text).unwrap_or_else(|_| name.clone())
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with the state in hand")
    }
}

/// One connection.
pub(crate) struct Broken {
    server: Arc<Server>,
    number: u64,
    /// Used instead of the server's by one defect.
    memory: MemoryDriver,
    /// How many cuts there had been when it was made.
    cuts_before: u64,
    cuts_seen: AtomicU64,
    restarts_seen: u64,
    tokens: AtomicU64,
    /// Who has asked and not listened since.
    fresh: Mutex<HashSet<OwnerId>>,
    /// How often anybody began to listen.
    listeners: Mutex<HashMap<LockName, watch::Sender<u64>>>,
    /// What some who are not fair wait for, until one of them gives up.
    listened_to: watch::Sender<HashSet<LockName>>,
    closes: AtomicU64,
    /// Whether it once had no answer.
    has_given_up: AtomicBool,
    /// Whether the answer to a look is still to be read.
    is_unread: AtomicBool,
    /// Had by one call at a time, where that is part of the defect.
    turn: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broken").field("defect", &self.server.defect).finish_non_exhaustive()
    }
}

impl Broken {
    fn has(&self, defect: Defect) -> bool {
        self.server.has(defect)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.server.state()
    }

    fn fresh(&self) -> MutexGuard<'_, HashSet<OwnerId>> {
        self.fresh.lock().expect("nobody panics with it in hand")
    }

    fn promises_leases(&self) -> bool {
        self.server.capabilities.liveness == Liveness::Lease
    }

    fn memory(&self) -> &MemoryDriver {
        match self.has(Defect::LocksOfTheConnection) {
            true => &self.memory,
            false => &self.server.memory,
        }
    }

    /// Reads what waiters were told of holds that are over, before the backend forgets that.
    async fn keep_old_pushes(&self, name: &LockName) -> Result<(), DriverError> {
        let status = self.memory().look(name).await?;
        let waiters = self.state().waiters.get(name).cloned().unwrap_or_default();
        for (owner, waiter) in waiters {
            if status.holder().is_some_and(|holder| holder.owner() == owner) {
                continue;
            }
            // Asked once, so that nothing is pushed since the look.
            let mut changed = self.memory().changed(&waiter);
            let news = poll_fn(|context| Poll::Ready(changed.as_mut().poll(context))).await;
            if let Poll::Ready(Change::Granted(grant)) = news {
                self.state().old_pushes.insert(owner, grant);
            }
        }
        Ok(())
    }

    /// Fails once after a cut, as a connection does that finds out and is replaced.
    async fn reach(&self) -> Result<(), DriverError> {
        if self.has(Defect::HangsAfterClosing) && self.closes.load(Ordering::Relaxed) > 0 {
            return pending().await;
        }
        if self.has(Defect::ForgetsItsScripts)
            && self.restarts_seen != self.server.restarts.load(Ordering::Relaxed)
        {
            return Err(DriverError::new(ErrorKind::Misconfigured, "no such script"));
        }
        if self.has(Defect::StaysSilent) && self.has_given_up.load(Ordering::Relaxed) {
            return Err(DriverError::new(ErrorKind::Unreachable, "the connection is not used"));
        }
        let cuts = *self.server.cuts.borrow();
        if self.cuts_seen.load(Ordering::Relaxed) == cuts {
            return Ok(());
        }
        if !self.has(Defect::NeverReconnects) {
            self.cuts_seen.store(cuts, Ordering::Relaxed);
        }
        Err(DriverError::new(ErrorKind::Unreachable, "the connection was cut"))
    }

    /// The name as the backend sees it.
    fn stored(&self, name: &LockName) -> Result<LockName, DriverError> {
        let name = self.server.translate_name(name);
        if self.has(Defect::NamesAreStatements) && name.as_str().contains('\'') {
            return Err(DriverError::new(ErrorKind::Misconfigured, "syntax error"));
        }
        Ok(name)
    }

    /// The claim as the backend sees it.
    fn translate(&self, claim: &Claim) -> Result<Claim, DriverError> {
        let name = self.stored(claim.name())?;
        let key = match self.server.defect {
            Some(Defect::OwnerIsTheConnection) => Key::Connection(self.number, name.clone()),
            _ => Key::Owner(claim.owner()),
        };
        let mut state = self.state();
        state.names.insert(name.clone());
        let label = match self.server.defect {
            Some(Defect::CutsLabels) => {
                let label = claim.label().as_str();
                let cut = &label[..label.floor_char_boundary(64)];
                Label::new(cut).unwrap_or_else(|_| claim.label().clone())
            }
            _ => claim.label().clone(),
        };
        let substitute = state.substitutes.entry(key).or_insert_with(|| {
            let substitute = Claim::new(name, claim.ttl()).with_clock(claim.clock().clone());
            let substitute = substitute.with_label(label);
            match self.server.defect {
                Some(Defect::NoPlaces) => substitute,
                Some(Defect::OrdersTheFairOnly) if !claim.is_fair() => substitute,
                Some(Defect::TriesLeavePlaces) => substitute.waiting(),
                Some(Defect::ServesListeners) if claim.listens() => substitute.waiting(),
                _ if claim.is_fair() => substitute.fair(),
                _ if claim.waits() => substitute.waiting(),
                _ => substitute,
            }
        });
        let substitute = substitute.clone();
        state.originals.entry(substitute.owner()).or_insert(claim.owner());
        let ttl = match self.server.defect {
            Some(Defect::NeverExpires) => Capabilities::MAX_TTL,
            Some(Defect::HalfALease) => claim.ttl() / 2,
            Some(Defect::HalfALeaseInOrder) if claim.is_fair() => claim.ttl() / 2,
            Some(Defect::LongLeasesWrap) => {
                let micros = claim.ttl().as_micros() & u128::from(u32::MAX);
                Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
            }
            Some(Defect::WholeSeconds) => in_whole_seconds(claim.ttl()),
            Some(Defect::WholeSecondsInOrder) if claim.is_fair() => in_whole_seconds(claim.ttl()),
            _ => claim.ttl(),
        };
        Ok(substitute.with_ttl(ttl))
    }

    /// Takes the lock from a holder whose time is over by the defect's count.
    fn expire(&self, claim: &Claim) {
        let mut state = self.state();
        if state.deadlines.get(claim.name()).is_some_and(|deadline| *deadline <= claim.now()) {
            state.deadlines.remove(claim.name());
            drop(state);
            self.memory().revoke(claim.name());
        }
    }

    /// Keeps the count of the lock's tokens for two more leases, if it is still there.
    fn keep_count(&self, claim: &Claim) {
        let mut state = self.state();
        let (now, last) = (claim.now(), state.last_token);
        let until = state.counted_until.entry(claim.name().clone()).or_insert(now);
        let is_over = *until < now;
        *until = (*until).max(now + 2 * claim.ttl());
        if is_over && self.has(Defect::TokensRestartWhenIdle) {
            state.restarted_at.insert(claim.name().clone(), last);
        }
    }

    fn is_holder(&self, claim: &Claim) -> bool {
        let state = self.state();
        state.holders.get(claim.name()).is_some_and(|(holder, _)| holder.owner() == claim.owner())
    }

    /// Whether the lock could be taken now.
    async fn is_free(&self, name: &LockName) -> Result<bool, DriverError> {
        let probe = Claim::new(name.clone(), Duration::from_secs(1));
        let free = matches!(self.memory().try_acquire(&probe).await?, Attempt::Granted(_));
        self.memory().release(&probe).await?;
        Ok(free)
    }

    /// One ask, as the backend answers it.
    async fn ask(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        match self.server.defect {
            Some(Defect::TakesTheEndOfALease) if claim.waits() => {
                let status = self.memory().look(claim.name()).await?;
                let left = status.holder().and_then(Holder::remaining);
                let is_anothers = !self.is_holder(claim);
                if is_anothers && left.is_some_and(|left| left < claim.ttl() / 3) {
                    self.memory().revoke(claim.name());
                }
                self.memory().try_acquire(claim).await
            }
            Some(Defect::RefreshesSeldom) if self.has_most_of_its_lease(claim).await? => {
                self.memory().try_acquire(&claim.clone().with_ttl(Duration::ZERO)).await
            }
            Some(Defect::ChecksThenTakesInOrder) if !claim.is_fair() => {
                self.memory().try_acquire(claim).await
            }
            Some(Defect::ChecksThenTakes | Defect::ChecksThenTakesInOrder) => {
                let free = self.is_free(claim.name()).await?;
                for _ in 0..20 {
                    yield_now().await;
                }
                let answer = self.memory().try_acquire(claim).await?;
                if free && matches!(answer, Attempt::Taken(_)) {
                    self.memory().revoke(claim.name());
                    return self.memory().try_acquire(claim).await;
                }
                Ok(answer)
            }
            Some(Defect::WholeSecondsOnRetry) if self.is_holder(claim) => {
                let whole = claim.clone().with_ttl(in_whole_seconds(claim.ttl()));
                self.memory().try_acquire(&whole).await
            }
            Some(Defect::DrawsTheTokenFirst) if !self.holds(claim).await? => {
                let drawn = self.draw(&mut self.state(), claim.owner());
                // Some take longer than others.
                for _ in 0..drawn / 1000 % 5 * 10 {
                    yield_now().await;
                }
                let answer = self.memory().try_acquire(claim).await?;
                if matches!(answer, Attempt::Taken(_)) {
                    self.state().drawn.remove(&claim.owner());
                }
                Ok(answer)
            }
            Some(Defect::WaitsForTheHolder) if claim.waits() => loop {
                match self.memory().try_acquire(claim).await? {
                    Attempt::Taken(_) => sleep(Duration::from_secs(1)).await,
                    granted => return Ok(granted),
                }
            },
            Some(Defect::TriesWait) if !claim.waits() => {
                let granted = async {
                    loop {
                        match self.memory().try_acquire(claim).await? {
                            Attempt::Taken(_) => sleep(Duration::from_secs(1)).await,
                            granted => return Ok(granted),
                        }
                    }
                };
                match timeout(2 * claim.ttl(), granted).await {
                    Ok(granted) => granted,
                    Err(_) => self.memory().try_acquire(claim).await,
                }
            }
            Some(Defect::TriesWaitBriefly) if !claim.waits() => {
                let until = claim.now() + Duration::from_secs(7);
                loop {
                    match self.memory().try_acquire(claim).await? {
                        Attempt::Taken(_) if claim.now() < until => {
                            sleep(Duration::from_secs(1)).await;
                        }
                        answer => return Ok(answer),
                    }
                }
            }
            Some(Defect::DeadWaitersStay) if claim.waits() => {
                match self.memory().try_acquire(claim).await? {
                    Attempt::Taken(_) => {
                        let immortal = claim.clone().with_ttl(Capabilities::MAX_TTL);
                        self.memory().try_acquire(&immortal).await
                    }
                    granted => Ok(granted),
                }
            }
            Some(Defect::PlacesRunOut) if claim.waits() && self.has_place(claim) => {
                let brief = claim.clone().with_ttl(Duration::ZERO);
                match self.memory().try_acquire(&brief).await? {
                    Attempt::Granted(_) => self.memory().try_acquire(claim).await,
                    taken => Ok(taken),
                }
            }
            Some(Defect::PlacesAreShort) if claim.waits() => {
                let brief = claim.clone().with_ttl(claim.ttl() / 3);
                match self.memory().try_acquire(&brief).await? {
                    Attempt::Granted(_) => self.memory().try_acquire(claim).await,
                    taken => Ok(taken),
                }
            }
            Some(Defect::BackOfTheQueue) if self.has_place(claim) => {
                match self.memory().try_acquire(claim).await? {
                    Attempt::Taken(_) => {
                        self.memory().release(claim).await?;
                        self.memory().try_acquire(claim).await
                    }
                    granted => Ok(granted),
                }
            }
            Some(Defect::ExpiryForgetsTheQueue) if claim.waits() => {
                let status = self.memory().look(claim.name()).await?;
                if status.holder().is_none() {
                    self.remove_other_places(claim).await?;
                }
                self.memory().try_acquire(claim).await
            }
            Some(Defect::InheritsLeases | Defect::InheritsBrokenLeases) => {
                self.take_and_inherit(claim).await
            }
            Some(Defect::RemovesThenTakes) => self.remove_then_take(claim).await,
            Some(Defect::LooksThenAsksInTurn) => self.look_then_ask(claim).await,
            Some(Defect::PlacesAreSortedAsText) if claim.waits() => {
                let answer = self.memory().try_acquire(claim).await?;
                if matches!(answer, Attempt::Taken(_)) && !self.has_place(claim) {
                    self.sort_places(claim).await?;
                }
                Ok(answer)
            }
            Some(Defect::PlacesOfTheConnection)
                if claim.is_fair() && self.shares_a_place(claim) =>
            {
                self.memory().try_acquire(&claim.clone().not_waiting()).await
            }
            Some(Defect::RefreshesAllPlaces) if claim.is_fair() => {
                let answer = self.memory().try_acquire(claim).await?;
                if matches!(answer, Attempt::Taken(_)) {
                    self.refresh_others(claim).await?;
                }
                Ok(answer)
            }
            Some(Defect::TriesOvertake) if !claim.waits() => self.overtake(claim).await,
            Some(Defect::PlainWaitersOvertake) if claim.waits() && !claim.is_fair() => {
                self.overtake(claim).await
            }
            _ => self.memory().try_acquire(claim).await,
        }
    }

    /// Takes the lock for whatever is longer: its own lease, or the last that was written down.
    async fn take_and_inherit(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let answer = self.memory().try_acquire(claim).await?;
        if matches!(answer, Attempt::Granted(_)) {
            let now = claim.now();
            let until = {
                let mut state = self.state();
                let written = state.written.entry(claim.name().clone()).or_insert(now);
                *written = (*written).max(now + claim.ttl());
                *written
            };
            let longer = claim.clone().with_ttl(until.saturating_duration_since(now));
            self.memory().renew(&longer).await?;
        }
        Ok(answer)
    }

    async fn has_most_of_its_lease(&self, claim: &Claim) -> Result<bool, DriverError> {
        let status = self.memory().look(claim.name()).await?;
        let own = status.holder().filter(|holder| holder.owner() == claim.owner());
        let left = own.and_then(Holder::remaining);
        Ok(left.is_some_and(|left| left > claim.ttl() * 3 / 4))
    }

    /// Asks as if nobody waited.
    async fn overtake(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let answer = self.memory().try_acquire(claim).await?;
        if matches!(answer, Attempt::Granted(_)) || self.state().holders.contains_key(claim.name())
        {
            return Ok(answer);
        }
        // It is the turn of a waiter who does not know yet.
        let waiters = self.state().waiters.remove(claim.name()).unwrap_or_default();
        for waiter in waiters.values() {
            self.memory().release(waiter).await?;
        }
        self.memory().try_acquire(claim).await
    }

    /// The backend, which knows nothing of that, is asked by a claim that does not.
    fn only_listens(&self, claim: &Claim) -> bool {
        claim.listens() && !self.has(Defect::ServesListeners)
    }

    /// Resolves when anything was released since.
    async fn released(&self, owner: OwnerId) -> Change {
        if self.has(Defect::Mute) || self.has(Defect::ForgetsListeners) {
            return pending().await;
        }
        let before = self.state().listened.get(&owner).copied().unwrap_or(0);
        let mut releases = self.server.releases.subscribe();
        // The server outlives its connections.
        _ = releases.wait_for(|releases| *releases > before).await;
        self.state().listened.insert(owner, *releases.borrow());
        Change::AskAgain
    }

    fn has_place(&self, claim: &Claim) -> bool {
        let state = self.state();
        state.waiters.get(claim.name()).is_some_and(|them| them.contains_key(&claim.owner()))
    }

    fn note_comer(&self, claim: &Claim) {
        let mut state = self.state();
        let number = state.first_asked.len();
        state.first_asked.entry(claim.owner()).or_insert(number);
        let comers = state.comers.entry(claim.name().clone()).or_default();
        if !comers.contains(&claim.owner()) {
            comers.push(claim.owner());
        }
    }

    /// The later a claim has come, the longer.
    fn head_start(&self, claim: &Claim) -> Duration {
        let state = self.state();
        let comers = state.comers.get(claim.name());
        let at = comers.and_then(|them| them.iter().position(|owner| *owner == claim.owner()));
        Duration::from_millis(at.unwrap_or(0).try_into().unwrap_or(u64::MAX))
    }

    fn note_refusal(&self, claim: &Claim) {
        if claim.waits() {
            let mut state = self.state();
            state.refused.insert(claim.owner(), claim.now());
            let waiters = state.waiters.entry(claim.name().clone()).or_default();
            waiters.insert(claim.owner(), claim.clone());
        }
    }

    /// Writes a grant down and breaks it.
    fn grant(&self, claim: &Claim, grant: Grant) -> Grant {
        let owner = claim.owner();
        let mut state = self.state();
        let before = state.holders.insert(claim.name().clone(), (claim.clone(), self.number));
        if let Some(waiters) = state.waiters.get_mut(claim.name()) {
            waiters.remove(&owner);
        }
        *state.granted.entry(owner).or_default() += 1;
        state.released.remove(&owner);
        let first_lease = *state.first_leases.entry(owner).or_insert(claim.ttl());
        if self.has(Defect::ShortensLeases) {
            state.deadlines.insert(claim.name().clone(), claim.now() + claim.ttl());
        }
        if let Some((before, _)) = &before
            && before.owner() != owner
        {
            state.overtaken.insert(before.owner());
        }
        let is_its_last = before.as_ref().is_some_and(|(holder, _)| holder.owner() == owner);
        let token = grant.fencing_token().map_or(1, FencingToken::get);
        let last = state.last_token.max(1);
        state.last_token = state.last_token.max(token);
        let expired = before.is_some_and(|(holder, _)| holder.owner() != owner);
        if expired && self.has(Defect::TokensRestartOnExpiry) {
            state.restarted_at.insert(claim.name().clone(), token - 1);
        }
        let own = state.told.get(&owner).copied().flatten().map(FencingToken::get);
        let token = match (self.server.defect, own) {
            (Some(Defect::OldTokenOfTheExpired), Some(own)) if is_its_last => own,
            _ => token,
        };
        let token = match self.server.defect {
            Some(Defect::OneToken) => 1,
            Some(Defect::OldTokenInOrder) if claim.is_fair() => last,
            Some(Defect::NewTokenOnRetry) => self.tokens_of_all(&mut state),
            Some(Defect::NewTokenAfterAPush) if state.pushed.contains(&owner) => {
                self.tokens_of_all(&mut state)
            }
            Some(Defect::DrawsTheTokenFirst) => match state.drawn.get(&owner) {
                Some(drawn) => *drawn,
                None => self.draw(&mut state, owner),
            },
            Some(Defect::TokensOfTheConnection) => self.tokens.fetch_add(1, Ordering::Relaxed) + 1,
            Some(Defect::TokensCountRenewals) => {
                token + state.renewals.get(&owner).copied().unwrap_or(0)
            }
            Some(Defect::TokensOfTheClock) => token + 1000 * (self.number % 2),
            _ => token - state.restarted_at.get(claim.name()).copied().unwrap_or(0),
        };
        let grant = match FencingToken::new(token) {
            Some(token) if !self.has(Defect::NoTokens) => Grant::new().token(token),
            _ => Grant::new(),
        };
        let grant = grant.vouch(self.vouch(claim.now(), claim.ttl()));
        let grant = match self.server.defect {
            Some(
                Defect::OldTokenOnNewGrant
                | Defect::OldTokenAfterExpiry
                | Defect::AnswersRetriesItself,
            ) => state.first_grants.entry(owner).or_insert(grant).clone(),
            Some(Defect::VouchesTooLong) => {
                grant.vouch(Vouch::Lease { since: claim.now(), ttl: 2 * first_lease })
            }
            Some(Defect::VouchesForNothing) => {
                grant.vouch(Vouch::Lease { since: claim.now(), ttl: Duration::ZERO })
            }
            _ => grant,
        };
        state.told.insert(owner, grant.fencing_token());
        state.first_granted.entry(claim.name().clone()).or_insert(claim.now());
        state.last_holders.insert(claim.name().clone(), claim.clone());
        grant
    }

    /// What a hold is good for that was last refreshed at `since`.
    fn vouch(&self, since: Instant, ttl: Duration) -> Vouch {
        match (self.server.defect, self.server.capabilities.liveness) {
            (Some(Defect::SessionsVouchWhileAlive), _) => Vouch::WhileAlive,
            (Some(Defect::SessionsVouchAhead), _) => {
                Vouch::Lease { since: since + SESSION / 4, ttl: SESSION }
            }
            (
                Some(Defect::SessionsVouchFromTheRequest | Defect::ProcessesVouchFromTheRequest),
                _,
            ) => Vouch::FromRequest,
            (Some(Defect::SessionsVouchForTheClaim), _) => Vouch::Lease { since, ttl },
            (_, Liveness::Session) => Vouch::Lease { since, ttl: SESSION },
            (_, Liveness::Process) => Vouch::WhileAlive,
            _ => Vouch::FromRequest,
        }
    }

    /// The token of whoever held the lock last.
    fn last_token(&self, name: &LockName) -> Option<FencingToken> {
        let state = self.state();
        state.told.get(&state.last_holders.get(name)?.owner()).copied().flatten()
    }

    fn tokens_of_all(&self, state: &mut State) -> u64 {
        state.last_token += 1000;
        state.last_token
    }

    fn draw(&self, state: &mut State, owner: OwnerId) -> u64 {
        let token = self.tokens_of_all(state);
        state.drawn.insert(owner, token);
        token
    }

    /// Frees what the name matches as a pattern.
    fn release_pattern(&self, name: &LockName) {
        for other in self.server.names() {
            if other != *name && matches(name.as_str(), other.as_str()) {
                self.memory().revoke(&other);
            }
        }
    }
}

#[async_trait]
impl Driver for Broken {
    fn id(&self) -> &'static str {
        "broken"
    }

    fn capabilities(&self) -> Capabilities {
        match self.has(Defect::DeclaresOtherwise) {
            true => CAPABILITIES.ttl(Duration::from_secs(1), Duration::from_secs(3600)),
            false => self.server.capabilities,
        }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let _turn = self.turn().await;
        self.reach().await?;
        if self.is_silent() {
            return self.ask_in_silence(claim).await;
        }
        let only_listens = self.only_listens(claim);
        if only_listens {
            self.state().listened.insert(claim.owner(), *self.server.releases.borrow());
        }
        let claim = &self.translate(claim)?;
        let owner = claim.owner();
        self.expire(claim);
        self.keep_count(claim);
        self.fresh().insert(owner);
        self.note_comer(claim);
        match self.server.defect {
            Some(Defect::LooksLeaveAnswers) if self.is_unread.swap(false, Ordering::Relaxed) => {
                return Ok(Attempt::Granted(Grant::new()));
            }
            Some(Defect::RefusesAtFirst) if self.state().asked.insert(owner) => {
                return Ok(Attempt::Taken(Taken::new()));
            }
            Some(Defect::RefusesRetries) if self.is_holder(claim) => {
                return Ok(Attempt::Taken(Taken::new()));
            }
            Some(Defect::RefusesRetriesBeforeAQueue)
                if claim.is_fair()
                    && self.is_holder(claim)
                    && !self.waiters(claim.name()).is_empty() =>
            {
                return Ok(Attempt::Taken(Taken::new()));
            }
            Some(Defect::QueuesIgnoreCase | Defect::QueuesIgnoreNamespaces)
                if claim.is_fair() && self.is_behind_a_stranger(claim) =>
            {
                self.note_refusal(claim);
                return Ok(Attempt::Taken(Taken::new()));
            }
            Some(Defect::LeavingEndsListening) if claim.waits() && !claim.is_fair() => {
                self.listened_to.send_modify(|names| _ = names.insert(claim.name().clone()));
            }
            Some(Defect::NewcomersTakeNews) if claim.is_fair() => self.take_news(claim).await,
            Some(Defect::AnswersRetriesItself) => {
                if let Some(grant) = self.state().first_grants.get(&owner) {
                    return Ok(Attempt::Granted(grant.clone()));
                }
            }
            Some(Defect::RefusesTheReleased) if self.state().released.contains(&owner) => {
                return Ok(Attempt::Taken(Taken::new()));
            }
            Some(Defect::RefusesLongLeases) if claim.ttl() > Duration::from_secs(3600) => {
                return Err(DriverError::new(ErrorKind::Unsupported, "too long"));
            }
            Some(Defect::StuckAfterLoss)
                if self.state().lost.contains(&(claim.name().clone(), self.number)) =>
            {
                return Ok(Attempt::Taken(Taken::new()));
            }
            Some(Defect::OldPushesStay | Defect::UnorderedOldPushesStay) => {
                self.keep_old_pushes(claim.name()).await?;
            }
            Some(Defect::KeepsFewWaiters) if claim.waits() => {
                let waiting = self.state().waiters.get(claim.name()).map_or(0, HashMap::len);
                if waiting >= 100 && !self.has_place(claim) {
                    return Err(DriverError::new(ErrorKind::Capacity, "too many waiters"));
                }
            }
            _ => (),
        }
        let cuts = *self.server.cuts.borrow();
        let answer = self.ask(claim).await?;
        if self.has(Defect::CallsTheCutOffUnreachable) {
            between().await;
            if *self.server.cuts.borrow() != cuts {
                return Err(DriverError::new(ErrorKind::Unreachable, "connection reset"));
            }
        }
        match answer {
            Attempt::Granted(grant) => Ok(Attempt::Granted(self.grant(claim, grant))),
            Attempt::Taken(_) if self.has(Defect::GrantsToAll) => {
                let token = self.tokens_of_all(&mut self.state());
                let grant = FencingToken::new(token).map(|token| Grant::new().token(token));
                Ok(Attempt::Granted(grant.unwrap_or_default()))
            }
            Attempt::Taken(_) if self.has(Defect::HangsWhenRefused) => pending().await,
            Attempt::Taken(taken) => {
                self.note_refusal(claim);
                if self.has(Defect::SubscribesAfterTheAnswer) && claim.waits() {
                    yield_now().await;
                    // What comes now is not heard.
                    _ = timeout(Duration::ZERO, self.memory().changed(claim)).await;
                }
                match (self.server.defect, taken.remaining()) {
                    (Some(Defect::WrongUnit), Some(remaining)) => {
                        Ok(Attempt::Taken(taken.free_in(remaining * 1000)))
                    }
                    _ if only_listens => Ok(Attempt::Taken(taken.heard())),
                    _ => Ok(Attempt::Taken(taken)),
                }
            }
            other => Ok(other),
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let _turn = self.turn().await;
        self.reach().await?;
        if self.is_silent() {
            return self.renew_in_silence(claim).await;
        }
        let claim = &self.translate(claim)?;
        self.expire(claim);
        self.keep_count(claim);
        let renewals = {
            let mut state = self.state();
            let renewals = state.renewals.entry(claim.owner()).or_default();
            *renewals += 1;
            let renewals = *renewals;
            state.renewed.insert(claim.owner(), claim.now());
            renewals
        };
        let claim = &match self.server.defect {
            Some(Defect::RenewalDoesNothing) => claim.clone().with_ttl(Duration::ZERO),
            Some(Defect::RefreshesSeldom) if self.has_most_of_its_lease(claim).await? => {
                claim.clone().with_ttl(Duration::ZERO)
            }
            Some(Defect::RenewalsAddUp) => {
                let status = self.memory().look(claim.name()).await?;
                let left = status.holder().and_then(Holder::remaining).unwrap_or_default();
                claim.clone().with_ttl((left + claim.ttl()).min(Capabilities::MAX_TTL))
            }
            Some(Defect::WholeSecondsOnRenewal) => {
                claim.clone().with_ttl(in_whole_seconds(claim.ttl()))
            }
            Some(Defect::RenewsForTheFirstLease) => {
                let first = self.state().first_leases.get(&claim.owner()).copied();
                claim.clone().with_ttl(first.unwrap_or(claim.ttl()))
            }
            _ => claim.clone(),
        };
        if self.has(Defect::RefusesLongLeases) && claim.ttl() > Duration::from_secs(3600) {
            return Err(DriverError::new(ErrorKind::Unsupported, "too long"));
        }
        let answer = match self.server.defect {
            Some(Defect::LooksThenRenews | Defect::LooksThenRenewsInTurn) => {
                self.look_then_renew(claim).await?
            }
            _ => self.memory().renew(claim).await?,
        };
        match (self.server.defect, answer) {
            (Some(Defect::LosesWithoutCause), Renewal::Held(_)) if renewals.is_multiple_of(3) => {
                Ok(Renewal::Lost)
            }
            (Some(Defect::KeepsFewHolds), Renewal::Held(_)) if self.state().holders.len() > 500 => {
                Ok(Renewal::Lost)
            }
            (Some(Defect::ShortensLeases), Renewal::Held(vouch)) => {
                let deadline = claim.now() + claim.ttl();
                self.state().deadlines.insert(claim.name().clone(), deadline);
                Ok(Renewal::Held(vouch))
            }
            (Some(Defect::VouchesTooLong), Renewal::Held(_)) => {
                Ok(Renewal::Held(Vouch::Lease { since: claim.now(), ttl: 2 * claim.ttl() }))
            }
            (Some(Defect::VouchesTooLongOnRenewal), Renewal::Held(_)) => {
                Ok(Renewal::Held(Vouch::Lease { since: claim.now(), ttl: 2 * claim.ttl() }))
            }
            (Some(Defect::RenewsAlways), _) => Ok(Renewal::Held(Vouch::FromRequest)),
            (Some(Defect::RenewsForOthers), Renewal::Lost) => {
                let holder = self.state().holders.get(claim.name()).cloned();
                match holder {
                    Some((holder, _)) => self.memory().renew(&holder).await,
                    None => Ok(Renewal::Lost),
                }
            }
            (Some(Defect::RenewalTakes), Renewal::Lost) if self.is_free(claim.name()).await? => {
                self.memory().try_acquire(claim).await?;
                Ok(Renewal::Held(Vouch::FromRequest))
            }
            (Some(Defect::RenewsTheExpired), Renewal::Lost)
                if self.is_holder(claim) && self.is_free(claim.name()).await? =>
            {
                self.memory().try_acquire(claim).await?;
                Ok(Renewal::Held(Vouch::FromRequest))
            }
            (Some(Defect::BreaksForTheMoment), Renewal::Lost)
                if self.state().broken.contains(&claim.owner())
                    && self.is_free(claim.name()).await? =>
            {
                self.memory().try_acquire(claim).await?;
                Ok(Renewal::Held(Vouch::FromRequest))
            }
            (Some(Defect::SessionsRenewFromTheRequest), answer) => Ok(answer),
            (_, Renewal::Held(_)) => Ok(Renewal::Held(self.vouch(claim.now(), claim.ttl()))),
            (_, answer) => Ok(answer),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let _turn = self.turn().await;
        self.reach().await?;
        if self.is_silent() {
            return self.release_in_silence(claim).await;
        }
        let claim = &self.translate(claim)?;
        let owner = claim.owner();
        self.expire(claim);
        self.keep_count(claim);
        let is_holder = self.is_holder(claim);
        if !is_holder && self.has_place(claim) {
            self.listened_to.send_modify(|names| _ = names.remove(claim.name()));
        }
        match self.server.defect {
            Some(Defect::ReleasesNothing) => return Ok(Release::Freed),
            Some(Defect::CountsAsks) if is_holder => {
                let mut state = self.state();
                let granted = state.granted.entry(owner).or_default();
                *granted = granted.saturating_sub(1);
                if *granted > 0 {
                    return Ok(Release::Freed);
                }
            }
            Some(Defect::FailsToReleaseTwice) if !is_holder => {
                return Err(DriverError::new(ErrorKind::Misconfigured, "not the owner"));
            }
            Some(Defect::ReleasedWaitersStay) if !is_holder => return Ok(Release::NotHeld),
            Some(Defect::TurnsCannotBeDeclined) if !is_holder => {
                let at_all = claim.clone().with_ttl(Duration::ZERO);
                if matches!(self.memory().renew(&at_all).await?, Renewal::Held(_)) {
                    return Ok(Release::NotHeld);
                }
            }
            Some(Defect::ReleasesLater) => {
                let (memory, claim) = (self.memory().clone(), claim.clone());
                tokio::spawn(async move {
                    sleep(Duration::from_millis(100)).await;
                    _ = memory.release(&claim).await;
                });
                return Ok(if is_holder { Release::Freed } else { Release::NotHeld });
            }
            _ => (),
        }
        {
            let mut state = self.state();
            if is_holder {
                state.holders.remove(claim.name());
                state.deadlines.remove(claim.name());
                if self.has(Defect::InheritsBrokenLeases) {
                    state.written.remove(claim.name());
                }
            }
            if let Some(waiters) = state.waiters.get_mut(claim.name()) {
                waiters.remove(&owner);
            }
            if !self.has(Defect::OldTokenOnNewGrant) {
                state.first_grants.remove(&owner);
            }
            state.first_leases.remove(&owner);
            state.drawn.remove(&owner);
            state.released.insert(owner);
            state.pushed.remove(&owner);
        }
        self.leave_place(claim);
        let answer = match self.server.defect {
            Some(Defect::LooksThenReleases | Defect::LooksThenReleasesInTurn) => {
                self.look_then_release(claim).await?
            }
            Some(Defect::TurnsAreDeclinedInSilence) if !is_holder => {
                self.decline_in_silence(claim).await?
            }
            _ => self.memory().release(claim).await?,
        };
        self.server.releases.send_modify(|releases| *releases += 1);
        match (self.server.defect, answer) {
            (Some(Defect::ReleasesForOthers), Release::NotHeld) => {
                self.memory().revoke(claim.name());
                Ok(Release::NotHeld)
            }
            (Some(Defect::NamesArePatterns), answer) => {
                self.release_pattern(claim.name());
                Ok(answer)
            }
            (Some(Defect::SaysFreed), _) => Ok(Release::Freed),
            (Some(Defect::FreesTheExpired), _) if is_holder => Ok(Release::Freed),
            (Some(Defect::SaysNotHeld), _) => Ok(Release::NotHeld),
            (_, answer) => Ok(answer),
        }
    }

    async fn changed(&self, claim: &Claim) -> Change {
        if self.only_listens(claim) {
            return self.released(claim.owner()).await;
        }
        let Ok(claim) = &self.translate(claim) else { return pending().await };
        let mut cuts = self.server.cuts.subscribe();
        let was_cut = self.cuts_seen.load(Ordering::Relaxed) != *cuts.borrow_and_update();
        let fresh = self.fresh().remove(&claim.owner());
        match self.server.defect {
            Some(Defect::Mute) => return pending().await,
            Some(Defect::TellsTheFairOnly) if !self.is_holder(claim) && !claim.is_fair() => {
                return pending().await;
            }
            Some(Defect::OldLossStays)
                if self.is_holder(claim) && self.state().overtaken.contains(&claim.owner()) =>
            {
                return Change::Lost;
            }
            Some(Defect::WakesHolders) if self.is_holder(claim) => {
                let news = timeout(Duration::from_secs(2), self.memory().changed(claim));
                return news.await.unwrap_or(Change::AskAgain);
            }
            Some(Defect::WakesAllTheTime) if !self.is_holder(claim) => {
                let news = timeout(Duration::from_secs(1), self.memory().changed(claim));
                return news.await.unwrap_or(Change::AskAgain);
            }
            Some(Defect::CutsChannels)
                if !self.is_holder(claim) && claim.name().as_str().len() > 63 =>
            {
                return pending().await;
            }
            Some(Defect::ChannelsAreStatements)
                if !self.is_holder(claim) && claim.name().as_str().contains('"') =>
            {
                return pending().await;
            }
            Some(Defect::GrantsOutOfSilence) if !self.is_holder(claim) && claim.is_fair() => {
                let news = timeout(Duration::from_secs(25), self.memory().changed(claim));
                return news.await.unwrap_or(Change::Granted(Grant::new()));
            }
            Some(Defect::NeverReconnects) if was_cut => return pending().await,
            Some(Defect::OldPushesStay | Defect::UnorderedOldPushesStay) => {
                let old = self.state().old_pushes.remove(&claim.owner());
                if let Some(grant) = old {
                    return Change::Granted(grant);
                }
            }
            Some(Defect::NoPlaces | Defect::OrdersTheFairOnly)
                if !self.is_holder(claim) && !claim.is_fair() =>
            {
                // Waiters are told of every release, and race. The last to come is the fastest, so
                // that it does not depend on chance who wins.
                let mut releases = self.server.releases.subscribe();
                _ = releases.changed().await;
                sleep(Duration::from_millis(100).saturating_sub(self.head_start(claim))).await;
                return Change::AskAgain;
            }
            Some(Defect::SubscribesLate) if fresh => {
                _ = timeout(Duration::ZERO, self.memory().changed(claim)).await;
            }
            Some(Defect::WatchesAreNotResumed) if was_cut => return pending().await,
            Some(Defect::DeafAfterACut) if *cuts.borrow() != self.cuts_before => {
                return pending().await;
            }
            Some(Defect::SkipsTheGap) if was_cut => self.skip_the_gap(claim).await,
            _ if was_cut => return Change::AskAgain,
            _ => (),
        }
        let change = tokio::select! {
            // What was sent over a connection that is cut does not arrive.
            biased;
            // The server outlives its connections, so this is a cut.
            _ = cuts.changed() => match self.server.defect {
                Some(Defect::WatchesAreNotResumed | Defect::DeafAfterACut) => {
                    return pending().await;
                }
                Some(Defect::SkipsTheGap) => {
                    self.skip_the_gap(claim).await;
                    self.news(claim).await
                }
                _ => return Change::AskAgain,
            },
            () = self.displaced(claim) => return pending().await,
            () = self.unsubscribed(claim) => return pending().await,
            change = self.news(claim) => change,
        };
        self.server.speaks().await;
        match (self.server.defect, change) {
            (Some(Defect::DropsNews), change) => {
                sleep(Duration::from_millis(10)).await;
                change
            }
            (Some(Defect::RenewsAlways), Change::Lost) => pending().await,
            (defect, Change::Granted(grant)) => {
                let before = self.last_token(claim.name());
                let grant = self.grant(claim, grant);
                self.state().pushed.insert(claim.owner());
                let asked = self.state().refused.get(&claim.owner()).copied();
                let vouch = self.vouch(asked.unwrap_or(claim.now()), claim.ttl());
                let grant = if self.promises_leases() { grant } else { grant.vouch(vouch) };
                match defect {
                    Some(Defect::PushesTheLastToken) if claim.is_fair() => {
                        return Change::Granted(before.map_or(grant, |it| Grant::new().token(it)));
                    }
                    Some(Defect::SessionsPushFromTheRequest) => {
                        return Change::Granted(grant.vouch(Vouch::FromRequest));
                    }
                    Some(Defect::PushedGrantsAreFresh | Defect::UnorderedPushesAreFresh) => {
                        _ = self.memory().renew(claim).await;
                    }
                    Some(Defect::PushedGrantsAreShort) => {
                        let early = claim.now() + claim.ttl() / 4;
                        self.state().deadlines.insert(claim.name().clone(), early);
                    }
                    Some(Defect::PushedGrantsAreVouchedAnew) => {
                        let vouch = Vouch::Lease { since: claim.now(), ttl: claim.ttl() };
                        return Change::Granted(grant.vouch(vouch));
                    }
                    Some(Defect::PushedGrantsHaveNoToken) => return Change::Granted(Grant::new()),
                    _ => (),
                }
                Change::Granted(grant)
            }
            (_, change) => change,
        }
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        (!self.has(Defect::CannotBeInspected)).then_some(self)
    }

    async fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>, DriverError> {
        match self.server.defect {
            Some(Defect::LeasesHaveDescriptors | Defect::DescriptorsKeepNothing)
                if self.is_holder(&self.translate(claim)?) =>
            {
                let file = File::open("/dev/null");
                let file = file.map_err(|error| DriverError::new(ErrorKind::Capacity, error))?;
                Ok(Some(file.into()))
            }
            _ => Ok(None),
        }
    }

    async fn close(&self) {
        if self.has(Defect::ClosesSlowly) {
            sleep(Duration::from_secs(8)).await;
        }
        if self.closes.fetch_add(1, Ordering::Relaxed) > 0 && self.has(Defect::HangsWhenClosedAgain)
        {
            pending().await
        }
        if self.has(Defect::OneCloseEndsAll) {
            self.server.end_all_holds();
        }
    }
}

/// The beginning of a name that has at most `limit` bytes with a percent sign and two digits for each
/// byte that is not ASCII.
fn cut_when_encoded(name: &str, limit: usize) -> &str {
    let mut length = 0;
    let end = name.char_indices().find(|(_, c)| {
        length += if c.is_ascii() { 1 } else { 3 * c.len_utf8() };
        length > limit
    });
    end.map_or(name, |(at, _)| &name[..at])
}

fn in_whole_seconds(ttl: Duration) -> Duration {
    Duration::from_secs(ttl.as_secs())
}

/// Whether `text` matches `pattern`, in which `*` and `%` stand for anything and `_` for one
/// character.
fn matches(pattern: &str, text: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => text.is_empty(),
        Some('*' | '%') => {
            let tails = text.char_indices().map(|(at, _)| &text[at..]).chain([""]);
            tails.into_iter().any(|tail| matches(rest.as_str(), tail))
        }
        Some(c) => text.chars().next().is_some_and(|first| {
            (c == '_' || c == first) && matches(rest.as_str(), &text[first.len_utf8()..])
        }),
    }
}
