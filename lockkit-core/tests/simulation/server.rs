//! What a server does that keeps locks: in its own time, and with nothing on the way to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lockkit_core::driver::{Attempt, Change, Claim, Grant, OwnerId, Release, Renewal, Taken};
use lockkit_core::{Capabilities, Fairness, FencingToken, Liveness, LockName};

/// How waiters are served, which is where backends differ most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// First come, first served, and a release gives the lock to the next place.
    HandOver,
    /// First come, first served, and a release tells the next place to ask.
    Queue,
    /// First come, first served for those who ask for it. Of the others a release tells one.
    OnRequest,
    /// No order, and a release tells all.
    Crowd,
    /// No order, and nobody is told anything.
    Silent,
}

impl Kind {
    fn capabilities(self) -> Capabilities {
        let least = Capabilities::new(Liveness::Lease).fencing();
        match self {
            Self::HandOver | Self::Queue => least.fairness(Fairness::Fifo).notification(),
            Self::OnRequest => least.fairness(Fairness::OnRequest).notification(),
            Self::Crowd => least.notification(),
            Self::Silent => least,
        }
    }

    fn keeps_order(self, claim: &Claim) -> bool {
        match self.capabilities().fairness {
            Fairness::Fifo => claim.waits(),
            _ => claim.is_fair(),
        }
    }
}

/// Where news for a claim go: to a run of a process, and there to an owner.
pub(crate) type Address = (usize, OwnerId);

/// Something that the server says without being asked.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) to: Address,
    pub(crate) number: u64,
    pub(crate) change: Change,
}

/// All that it has done, whoever remembers it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) grants: BTreeMap<OwnerId, Vec<FencingToken>>,
    /// Whose holds were broken or forgotten, which they could not know in time.
    pub(crate) wronged: BTreeSet<OwnerId>,
    pub(crate) places_expired: usize,
}

#[derive(Debug)]
pub(crate) struct Server {
    kind: Kind,
    locks: BTreeMap<LockName, Entry>,
    last_token: u64,
    last_number: u64,
    news: Vec<News>,
    pub(crate) ledger: Ledger,
}

#[derive(Debug, Default)]
struct Entry {
    held: Option<Held>,
    /// In order of arrival.
    places: VecDeque<Place>,
    /// Those who wait in no order.
    crowd: VecDeque<Place>,
}

#[derive(Debug)]
struct Held {
    address: Address,
    token: FencingToken,
    expiry: Duration,
}

#[derive(Debug)]
struct Place {
    address: Address,
    /// A lease after the last ask.
    deadline: Duration,
}

impl Server {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            locks: BTreeMap::new(),
            last_token: 0,
            last_number: 0,
            news: Vec::new(),
            ledger: Ledger::default(),
        }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.kind.capabilities()
    }

    pub(crate) fn ask(&mut self, now: Duration, run: usize, claim: &Claim) -> Attempt {
        self.settle(now, claim.name());
        let (address, expiry) = ((run, claim.owner()), now + claim.ttl());
        let in_order = self.kind.keeps_order(claim);
        let entry = self.locks.entry(claim.name().clone()).or_default();
        let first = entry.places.front().map(|place| place.address.1);
        match &mut entry.held {
            Some(held) if held.address.1 == claim.owner() => {
                held.expiry = held.expiry.max(expiry);
                return Attempt::Granted(Grant::new().token(held.token));
            }
            None if first.is_none_or(|first| first == claim.owner()) => {
                let token = self.grant(now, claim.name(), address, expiry);
                return Attempt::Granted(Grant::new().token(token));
            }
            _ => (),
        }
        let taken = match &entry.held {
            Some(held) => Taken::new().free_in(held.expiry - now),
            None => Taken::new(),
        };
        if claim.waits() {
            let places = if in_order { &mut entry.places } else { &mut entry.crowd };
            match places.iter_mut().find(|place| place.address.1 == claim.owner()) {
                Some(place) => place.deadline = place.deadline.max(expiry),
                None => places.push_back(Place { address, deadline: expiry }),
            }
        }
        self.settle(now, claim.name());
        Attempt::Taken(taken)
    }

    pub(crate) fn renew(&mut self, now: Duration, claim: &Claim) -> Renewal {
        self.settle(now, claim.name());
        let held = self.locks.get_mut(claim.name()).and_then(|entry| entry.held.as_mut());
        match held.filter(|held| held.address.1 == claim.owner()) {
            Some(held) => {
                held.expiry = held.expiry.max(now + claim.ttl());
                Renewal::Held(Default::default())
            }
            None => Renewal::Lost,
        }
    }

    pub(crate) fn release(&mut self, now: Duration, claim: &Claim) -> Release {
        self.settle(now, claim.name());
        let Some(entry) = self.locks.get_mut(claim.name()) else { return Release::NotHeld };
        let is_meant = |address: Address| address.1 == claim.owner();
        let freed = entry.held.take_if(|held| is_meant(held.address)).is_some();
        entry.places.retain(|place| !is_meant(place.address));
        entry.crowd.retain(|place| !is_meant(place.address));
        self.settle(now, claim.name());
        if freed { Release::Freed } else { Release::NotHeld }
    }

    /// Takes a lock away from its holder, as an operator may.
    pub(crate) fn break_hold(&mut self, now: Duration, name: &LockName) -> bool {
        let held = self.locks.get_mut(name).and_then(|entry| entry.held.take());
        let Some(Held { address, .. }) = held else { return false };
        self.ledger.wronged.insert(address.1);
        self.tell(address, Change::Lost);
        self.settle(now, name);
        true
    }

    /// Loses all that it has acknowledged.
    pub(crate) fn forget(&mut self) {
        let holders = self.locks.values().filter_map(|entry| entry.held.as_ref());
        self.ledger.wronged.extend(holders.map(|held| held.address.1));
        self.locks.clear();
        self.last_token = 0;
    }

    /// What it last said: whatever it says from now on comes after that.
    pub(crate) fn last_number(&self) -> u64 {
        self.last_number
    }

    pub(crate) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    pub(crate) fn holder(&self, name: &LockName) -> Option<OwnerId> {
        Some(self.locks.get(name)?.held.as_ref()?.address.1)
    }

    /// Who holds anything now.
    pub(crate) fn holders(&self, now: Duration) -> Vec<Address> {
        let held = self.locks.values().filter_map(|entry| entry.held.as_ref());
        held.filter(|held| held.expiry > now).map(|held| held.address).collect()
    }

    /// Who has anything here now.
    pub(crate) fn residue(&mut self, now: Duration) -> Vec<OwnerId> {
        for name in self.locks.keys().cloned().collect::<Vec<_>>() {
            self.settle(now, &name);
        }
        let entries = self.locks.values();
        let owners = entries.flat_map(|entry| {
            let places = entry.places.iter().chain(&entry.crowd);
            let alive = places.filter(|place| place.deadline > now).map(|place| place.address);
            entry.held.iter().map(|held| held.address).chain(alive)
        });
        owners.map(|(_, owner)| owner).collect()
    }

    /// Ends a lease that has run out, and serves whoever is next if the lock is free.
    fn settle(&mut self, now: Duration, name: &LockName) {
        let Some(entry) = self.locks.get_mut(name) else { return };
        entry.held.take_if(|held| held.expiry <= now);
        if entry.held.is_some() {
            return;
        }
        while entry.places.pop_front_if(|place| place.deadline <= now).is_some() {
            self.ledger.places_expired += 1;
        }
        entry.crowd.retain(|place| place.deadline > now);
        let next = entry.places.front().map(|place| (place.address, place.deadline));
        match (self.kind, next) {
            (Kind::Queue, Some((address, _))) => self.tell(address, Change::AskAgain),
            (_, Some((address, deadline))) => {
                let token = self.grant(now, name, address, deadline);
                self.tell(address, Change::Granted(Grant::new().token(token)));
            }
            (Kind::Crowd, None) => {
                for place in std::mem::take(&mut entry.crowd) {
                    self.tell(place.address, Change::Freed);
                }
            }
            (_, None) => {
                if let Some(place) = entry.crowd.pop_front() {
                    self.tell(place.address, Change::AskAgain);
                }
            }
        }
        self.locks.retain(|_, entry| {
            entry.held.is_some() || !entry.places.is_empty() || !entry.crowd.is_empty()
        });
    }

    fn grant(
        &mut self,
        now: Duration,
        name: &LockName,
        address: Address,
        expiry: Duration,
    ) -> FencingToken {
        // Rises over forgotten state as well, as long as the clock does.
        let microseconds = u64::try_from(now.as_micros()).unwrap();
        self.last_token = microseconds.max(self.last_token + 1);
        let token = FencingToken::new(self.last_token).unwrap();
        let entry = self.locks.entry(name.clone()).or_default();
        entry.places.retain(|place| place.address != address);
        entry.crowd.retain(|place| place.address != address);
        entry.held = Some(Held { address, token, expiry });
        self.ledger.grants.entry(address.1).or_default().push(token);
        token
    }

    fn tell(&mut self, to: Address, change: Change) {
        self.last_number += 1;
        if self.kind != Kind::Silent {
            self.news.push(News { to, number: self.last_number, change });
        }
    }
}
