use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use lockkit_core::driver::Backoff;
use tokio::time::Instant;

use crate::error::Failure;

/// After how long a silence a connection is given up. A server is slower than this now and then.
const SILENCE: Duration = Duration::from_secs(1);
/// The same for one that was made because of a silence, and over which nothing has come yet. It is
/// longer for each further one, so that a server that is slow is not connected to over and over.
/// Whoever waits for less than this cannot tell.
const FIRST_SILENCE: Duration = Duration::from_millis(1500);

/// The connection to a member, if there is one, and how it fares.
#[derive(Default)]
pub(super) struct Connection {
    /// Shared, since it is many clients, one for each service.
    pub(super) client: Option<Arc<Client>>,
    /// When the last answer came, if one ever did.
    pub(super) heard: Option<Instant>,
    /// When the first request was sent that got no answer, and since which no other has got one
    /// either.
    pub(super) silent_since: Option<Instant>,
    /// How many connections before this one were given up although nothing had come over them,
    /// since something came over one.
    pub(super) in_vain: u32,
    pub(super) outage: Option<Outage>,
}

impl Connection {
    /// Takes note that what was sent then got no answer; returns whether to give up the connection
    /// for that.
    pub(super) fn note_silence(&mut self, sent: Instant) -> bool {
        let patience = match self.heard {
            Some(heard) if heard >= sent => return false,
            Some(_) => SILENCE,
            None if sent.elapsed() < FIRST_SILENCE => return false,
            None => FIRST_SILENCE.saturating_mul(2_u32.saturating_pow(self.in_vain)),
        };
        let since = self.silent_since.map_or(sent, |since| since.min(sent));
        self.silent_since = Some(since);
        let is_silent = since.elapsed() >= patience;
        self.in_vain += u32::from(is_silent && self.heard.is_none());
        is_silent
    }

    /// What is to be in use instead: `client` or, without one, what the next request connects.
    pub(super) fn replace(&mut self, client: Option<Arc<Client>>) {
        let (outage, in_vain) = (self.outage.take(), self.in_vain);
        *self = Self { client, in_vain, outage, ..Self::default() };
    }

    /// Takes note that something came over it.
    pub(super) fn hears(&mut self) {
        self.heard = Some(Instant::now());
        (self.silent_since, self.in_vain, self.outage) = (None, 0, None);
    }

    /// Takes note that a connection failed on which something was sent, or was to be sent, then.
    pub(super) fn fails(&mut self, sent: Instant, failure: &Failure) {
        let now = Instant::now();
        // A connection may break once: the next is made at once.
        let mut backoff = Backoff::default();
        if let Some(outage) = &self.outage {
            // Of many requests that were sent on one connection, or waited for one, only one
            // counts.
            if sent < outage.noted {
                return;
            }
            backoff = outage.backoff.clone();
            backoff.failed();
        }
        let mut outage = Outage { failure: failure.clone(), noted: now, backoff, next: now };
        outage.next += outage.pause();
        self.outage = Some(outage);
    }
}

/// The outage of a member whose connections fail. The client library makes another connection for
/// each request.
pub(super) struct Outage {
    failure: Failure,
    noted: Instant,
    backoff: Backoff,
    /// When the next request may try.
    next: Instant,
}

impl Outage {
    /// Lets one request try, whenever it is time.
    pub(super) fn pass(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if now < self.next {
            return Err(Failure::LeftAlone(Box::new(self.failure.clone())));
        }
        self.next = now + self.pause();
        Ok(())
    }

    /// The pause is shorter than elsewhere, since leases may last for no more than two seconds.
    fn pause(&self) -> Duration {
        self.backoff.pause() / 4
    }
}
