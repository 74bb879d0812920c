use std::fmt;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lockkit_core::driver::Driver;
use lockkit_core::{BoxError, Capabilities, LockName, Namespace};

use crate::checks::{ALL, Check};
use crate::context::Stop;
use crate::required;
use crate::run::run;
use crate::setup::{Hook, Setup};

/// The checks, aimed at one driver.
///
/// See the [crate's page](crate) for an example.
pub struct Suite {
    setup: Arc<Setup>,
    name: &'static str,
    ready: Option<Ready>,
    is_ready: OnceLock<Result<(), String>>,
}

type Ready = Box<dyn Fn() -> Result<(), BoxError> + Send + Sync>;

impl Suite {
    /// A suite for the driver that calls itself `id`.
    ///
    /// The capabilities are taken as data, so that listing the checks does no I/O.
    pub fn new(id: &'static str, capabilities: Capabilities) -> Self {
        let setup = Arc::new(Setup::new(id, capabilities));
        Self { setup, name: id, ready: None, is_ready: OnceLock::new() }
    }

    /// What the checks' names begin with, where there are several suites for one driver: its id
    /// unless said otherwise.
    #[must_use]
    pub fn called(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// How to open a connection to the backend. Called several times within one check: each call
    /// is another client of the same backend.
    #[must_use]
    pub fn connect<D: Driver, F>(self, connect: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<D, BoxError>> + Send + 'static,
    {
        self.connect_arc(move || {
            let driver = connect();
            async { Ok(Arc::new(driver.await?) as Arc<dyn Driver>) }
        })
    }

    /// Like [`connect`](Self::connect), for a driver that was chosen at run time.
    #[must_use]
    pub fn connect_arc<F>(mut self, connect: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn Driver>, BoxError>> + Send + 'static,
    {
        let setup = Arc::make_mut(&mut self.setup);
        setup.connect = Some(Arc::new(move || Box::pin(connect())));
        self
    }

    /// The namespace of the locks that the checks take: `conformance` unless said otherwise. Checks
    /// that try out namespaces take further ones, whose names begin with this one.
    #[must_use]
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        Arc::make_mut(&mut self.setup).namespace = Some(namespace);
        self
    }

    /// How to take a lock away behind its holder's back, as an operator would; if nobody holds it any
    /// more, there is nothing to do, which is no failure. A driver that declares inspection does not
    /// need this: its holds are [broken](lockkit_core::driver::Inspect::break_hold).
    #[must_use]
    pub fn revoke<F>(mut self, revoke: impl Fn(LockName) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Arc::make_mut(&mut self.setup).revoke = Some(Arc::new(move |name| Box::pin(revoke(name))));
        self
    }

    /// How to cut every connection to the backend, as a fault of the network would. New ones can
    /// be made at once. Checks that use it run alone.
    #[must_use]
    pub fn sever<F>(mut self, sever: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Arc::make_mut(&mut self.setup).sever = Some(Arc::new(move || Box::pin(sever())));
        self
    }

    /// How to make the backend answer nothing while its connections stay as they are, and how to
    /// make it go on: like a process that is suspended, or a network that loses what is sent.
    /// Checks that use it run alone.
    #[must_use]
    pub fn silence<F, G>(
        mut self,
        fall_silent: impl Fn() -> F + Send + Sync + 'static,
        speak: impl Fn() -> G + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
        G: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let fall_silent: Hook = Arc::new(move || Box::pin(fall_silent()));
        let speak: Hook = Arc::new(move || Box::pin(speak()));
        Arc::make_mut(&mut self.setup).silence = Some((fall_silent, speak));
        self
    }

    /// How to restart the backend, as an operator would; completes when the backend answers again.
    /// Checks that use it run alone.
    #[must_use]
    pub fn restart<F>(mut self, restart: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Arc::make_mut(&mut self.setup).restart = Some(Arc::new(move || Box::pin(restart())));
        self
    }

    /// The lease that the checks ask for, or the nearest one that the driver can keep. Unless said
    /// otherwise it is 1 second, 30 in [virtual time](Self::virtual_time), or a quarter of the
    /// longest that the driver can keep, so that others outlast it.
    ///
    /// Many checks wait for a few of these leases, so a short one makes a fast suite. The backend
    /// has to answer well within a fifth of it. It may end leases late, by up to two of them and 5
    /// seconds, but not one much later than another that began at the same time.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        Arc::make_mut(&mut self.setup).ttl = Some(ttl);
        self
    }

    /// Runs the checks on tokio's paused clock, which jumps to the next timer when there is
    /// nothing else to do: for drivers whose backend lives in the process and counts time on the
    /// [claim's clock](lockkit_core::driver::Claim::clock).
    #[must_use]
    pub fn virtual_time(mut self) -> Self {
        Arc::make_mut(&mut self.setup).virtual_time = true;
        self
    }

    /// Says that the driver asks several backends, which vote: when several claims ask at the same
    /// time, it may be that none gets a majority.
    #[must_use]
    pub fn by_votes(mut self) -> Self {
        Arc::make_mut(&mut self.setup).by_votes = true;
        self
    }

    /// How many [connections](Self::connect) one check may have at most, for a backend that takes no
    /// more: each may be several to the server. The one check that has more, 64, shares them then, and
    /// it runs alone in any case; what else is under way at the same time has some 30 in all.
    ///
    /// # Panics
    ///
    /// For fewer than 16.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        assert!(most >= 16, "checks need up to 16 connections");
        Arc::make_mut(&mut self.setup).connections = most;
        self
    }

    /// Shows every check as ignored if `ready` fails, with the error as the reason: for instance,
    /// that there is no server to run against. If the environment variable `LOCKKIT_REQUIRE` (a
    /// comma-separated list) names the driver, this is a failure instead.
    ///
    /// Called once, on a plain thread, before the first check that runs; not when checks are only
    /// listed.
    #[must_use]
    pub fn skip_unless(
        mut self,
        ready: impl Fn() -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.ready = Some(Box::new(ready));
        self
    }

    /// All checks there are.
    pub fn checks() -> &'static [Check] {
        ALL
    }

    /// The checks as tests, to be run together with others.
    ///
    /// What the driver does not declare, or what the suite has no hook for, is shown as ignored,
    /// with the reason.
    pub fn trials(self) -> Vec<Trial> {
        let suite = Arc::new(self);
        let trial = |check: &'static Check| {
            let suite = Arc::clone(&suite);
            let name = format!("{}::{}", suite.name, check.name());
            Trial::ignorable_test(name, move || match suite.run(check) {
                Outcome::Passed => Ok(Completion::Completed),
                Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
                Outcome::Failed(reason) => {
                    Err(Failed::from(format!("{reason}\nwhat is checked: {}", check.asserts())))
                }
            })
        };
        ALL.iter().map(trial).collect()
    }

    /// Runs one check here and now: for reports other than that of a test binary.
    pub fn run(&self, check: &'static Check) -> Outcome {
        let required = match required::is_required(self.setup.id) {
            Ok(required) => required,
            Err(reason) => return Outcome::Failed(reason),
        };
        if let Some(reason) = self.setup.lacks(check) {
            return Outcome::Ignored(reason.into());
        }
        match self.is_ready() {
            Err(reason) if required => Outcome::Failed(reason.clone()),
            Err(reason) => Outcome::Ignored(reason.clone()),
            Ok(()) => match run(&self.setup, check) {
                Ok(()) => Outcome::Passed,
                Err(Stop::DoesNotApply(reason)) => Outcome::Ignored(reason),
                Err(Stop::Failed(reason) | Stop::Refuted(reason)) => Outcome::Failed(reason),
            },
        }
    }

    /// The namespaces in which checks have asked for locks so far.
    pub fn namespaces(&self) -> Vec<Namespace> {
        self.setup.asks.namespaces().iter().cloned().collect()
    }

    /// From now on no check takes a lock, also none that is under way: what it asks for fails.
    /// Returns when all that was asked for before has been answered.
    pub async fn stop(&self) {
        self.setup.asks.end().await;
    }

    fn is_ready(&self) -> &Result<(), String> {
        self.is_ready.get_or_init(|| match &self.ready {
            Some(ready) => ready().map_err(|error| error.to_string()),
            None => Ok(()),
        })
    }

    /// Runs the checks that the arguments select.
    ///
    /// Checks in real time mostly wait, so eight of them run at once unless the arguments say
    /// otherwise.
    pub fn run_with(self, mut arguments: Arguments) -> ExitCode {
        if !self.setup.virtual_time {
            arguments.test_threads.get_or_insert(8);
        }
        libtest_mimic::run(&arguments, self.trials()).exit_code()
    }

    /// Runs the checks that the command line selects: the whole of a test binary's `main`.
    pub fn main(self) -> ExitCode {
        self.run_with(Arguments::from_args())
    }
}

/// What a check came to.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The driver does what it should.
    Passed,
    /// The check does not apply, and why.
    Ignored(String),
    /// The driver does not do what it should, and what it does.
    Failed(String),
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").field("id", &self.setup.id).finish_non_exhaustive()
    }
}
