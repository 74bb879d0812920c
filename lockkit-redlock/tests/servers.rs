//! Five Redis servers: the contract, with all of them and with one down or slow, and the weather.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use libtest_mimic::Arguments;
use lockkit_conformance::Suite;
use lockkit_core::driver::{Attempt, Claim, Driver, Inspect, Release, Renewal};
use lockkit_core::{BackendUrl, BoxError, Diagnosis, Error, LockName, Namespace};
use lockkit_redis::RedisDriver;
use lockkit_redlock::{CAPABILITIES, PARAMETERS, RedlockDriver, Settings};
use lockkit_testkit::{Proxy, REDIS, Server, Unavailable, or_skip, trial};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(2);
/// No test waits until it is over: what is gone was released.
const LONG: Duration = Duration::from_secs(60 * 60);
/// How far a clock is set forward, in seconds, and a lease that is over by that.
const STEP: i64 = 60;
const STEPPED: Duration = Duration::from_secs(50);
/// Fresh servers would sit out for a minute.
const YOUNG: &str = "max_ttl=2s&node_timeout=10s";
/// Those that do not sit out, with leases that are [`LONG`]. Nobody waits for a node for that long.
const FORGETFUL: &str = "delayed_restart=false&max_ttl=1h&node_timeout=10s";
/// The same where a node is waited for that does not answer.
const WAITED_FOR: &str = "delayed_restart=false&max_ttl=1h&node_timeout=3s";

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(8);
    let mut trials = Vec::new();
    for (id, weather) in
        [("redlock", None), ("one_down", Some(Weather::Down)), ("one_slow", Some(Weather::Slow))]
    {
        trials.extend(suite(id, weather));
    }
    trials.extend([
        trial("two_killed_in_mid_acquire_leave_nothing", five, two_killed),
        trial("a_stopped_node_slows_nobody", five, one_stopped),
        trial("nodes_restarted_empty_let_nobody_in", five, restarted_empty),
        trial("one_of_a_bare_majority_restarted_empty_lets_nobody_in", five, one_restarted_empty),
        trial("without_the_delay_there_are_two_holders", five, control),
        trial("a_clock_set_forward_lets_nobody_in", five_one_stepped, clock_set_forward),
        trial("on_one_server_a_clock_set_forward_makes_two_holders", stepped, control_of_clock),
        trial("a_clock_set_forward_in_a_bare_majority_makes_two_holders", five_one_stepped, bare),
        trial("a_server_that_keeps_its_locks_votes_at_once", five_durable, durable),
        trial("one_server_by_two_addresses_is_refused", || REDIS.start(), duplicates),
        trial("one_server_that_refuses_is_named", || REDIS.start(), refusing),
        trial("one_server_that_may_not_be_asked_which_it_is_is_named", || REDIS.start(), secretive),
        trial("what_comes_of_what_a_server_forgets_is_told", five, forgetful),
        trial("a_server_that_comes_back_votes_again", five, comes_back),
        trial("an_answer_that_is_swallowed_leaves_nothing", five, swallowed),
        trial("who_waits_for_many_locks_asks_for_each_less_often", five, many_locks),
        trial("a_driver_is_closed_though_a_server_says_nothing", two, speechless),
    ]);
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn five() -> Result<Vec<Server>, Unavailable> {
    (0..5).map(|_| REDIS.start()).collect()
}

fn two() -> Result<Vec<Server>, Unavailable> {
    (0..2).map(|_| REDIS.start()).collect()
}

fn five_durable() -> Result<Vec<Server>, Unavailable> {
    let keep = ["--appendonly", "yes", "--appendfsync", "always"];
    (0..5).map(|_| REDIS.start_with(&keep)).collect()
}

/// The wall clock of the first can be stepped.
fn five_one_stepped() -> Result<Vec<Server>, Unavailable> {
    let others = (1..5).map(|_| REDIS.start());
    std::iter::once(stepped()).chain(others).collect()
}

fn stepped() -> Result<Server, Unavailable> {
    REDIS.start_with_clock()
}

#[derive(Clone, Copy)]
enum Weather {
    Down,
    /// Each answer of one comes 200 ms late.
    Slow,
}

/// The contract, on servers that are shared by its checks.
fn suite(id: &'static str, weather: Option<Weather>) -> Vec<libtest_mimic::Trial> {
    let backend: Arc<OnceLock<Result<Backend, String>>> = Arc::default();
    let (ready, connect) = (backend.clone(), backend);
    Suite::new("redlock", CAPABILITIES)
        .by_votes()
        .ttl(TTL)
        .skip_unless(move || {
            let backend = ready.get_or_init(|| or_skip(Backend::start(weather)));
            backend.as_ref().map(|_| ()).map_err(|reason| reason.clone().into())
        })
        .connect(move || {
            let urls =
                connect.get().and_then(|backend| backend.as_ref().ok()).unwrap().urls.clone();
            // They were started just now.
            async move { Ok::<_, BoxError>(over(urls, "delayed_restart=false&node_timeout=1s").await?) }
        })
        .trials()
        .into_iter()
        .map(|trial| trial.with_kind(id))
        .collect()
}

struct Backend {
    _servers: Vec<Server>,
    urls: Vec<String>,
}

impl Backend {
    fn start(weather: Option<Weather>) -> Result<Self, Unavailable> {
        let servers = five()?;
        let mut urls: Vec<_> = servers.iter().map(Server::url).collect();
        match weather {
            None => (),
            Some(Weather::Down) => servers[0].kill(),
            Some(Weather::Slow) => urls[0] = servers[0].url_at(slow_proxy(servers[0].addr())),
        }
        Ok(Self { _servers: servers, urls })
    }
}

/// A proxy that lasts as long as this program, on a thread of its own.
fn slow_proxy(upstream: SocketAddr) -> SocketAddr {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let proxy = Proxy::start(upstream).await;
            proxy.answers().delay(Duration::from_millis(200));
            tell.send(proxy.addr()).unwrap();
            std::future::pending::<()>().await
        })
    });
    told.recv().unwrap()
}

async fn over(urls: Vec<String>, parameters: &str) -> Result<RedlockDriver, Error> {
    let url: BackendUrl = format!("redlock:?{parameters}").parse()?;
    let settings = Settings::from_url(&url, PARAMETERS)?;
    let mut driver = RedlockDriver::builder().settings(settings);
    for url in urls {
        let url: BackendUrl = url.parse()?;
        driver = driver.node_at(url.to_string(), move || {
            let url = url.clone();
            async move { RedisDriver::connect(&url).await }
        });
    }
    driver.connect().await
}

/// Over servers that have run for long enough to vote.
async fn over_servers(servers: &[Server], parameters: &str) -> RedlockDriver {
    over_urls(servers.iter().map(Server::url).collect(), parameters).await
}

async fn over_urls(urls: Vec<String>, parameters: &str) -> RedlockDriver {
    let driver = over(urls, parameters).await.unwrap();
    let probe = claim("probe");
    while !matches!(driver.try_acquire(&probe).await, Ok(Attempt::Granted(_))) {
        sleep(Duration::from_millis(50)).await;
    }
    driver.release(&probe).await.unwrap();
    driver
}

/// As [`over_servers`], from where the last two cannot be reached: what is granted here is granted
/// by the first three, a bare majority.
async fn cut_off(servers: &[Server], parameters: &str) -> RedlockDriver {
    let mut urls: Vec<_> = servers.iter().map(Server::url).collect();
    for at in [3, 4] {
        let proxy = Proxy::start(servers[at].addr()).await;
        proxy.refuse().await;
        urls[at] = servers[at].url_at(proxy.addr());
    }
    over_urls(urls, parameters).await
}

fn claim(name: &str) -> Claim {
    Claim::new(LockName::new(&Namespace::default(), name).unwrap(), TTL)
}

async fn granted(driver: &RedlockDriver, claim: &Claim) -> bool {
    matches!(driver.try_acquire(claim).await, Ok(Attempt::Granted(_)))
}

/// Asks until it is granted, and tells when the ask left that was.
async fn take(driver: &RedlockDriver, claim: &Claim) -> Instant {
    loop {
        let asked = Instant::now();
        if granted(driver, claim).await {
            return asked;
        }
    }
}

/// Waits until none of these servers knows of a hold of that name.
async fn nothing_is_left_on(servers: &[Server], name: &str) {
    for server in servers {
        let driver = RedisDriver::connect(&server.url().parse().unwrap()).await.unwrap();
        while driver.look(claim(name).name()).await.unwrap().holder().is_some() {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// How many servers have that claim as the holder.
async fn held_on(servers: &[Server], claim: &Claim) -> usize {
    let mut count = 0;
    for server in servers {
        let driver = RedisDriver::connect(&server.url().parse().unwrap()).await.unwrap();
        let status = driver.look(claim.name()).await.unwrap();
        count += usize::from(status.holder().is_some_and(|by| by.owner() == claim.owner()));
    }
    count
}

/// Returns when all servers have it: the last answers are collected in the background.
async fn everywhere(servers: &[Server], claim: &Claim) {
    while held_on(servers, claim).await < servers.len() {
        sleep(Duration::from_millis(5)).await;
    }
}

async fn two_killed(servers: Vec<Server>) {
    let proxies = [Proxy::start(servers[0].addr()).await, Proxy::start(servers[1].addr()).await];
    let mut urls: Vec<_> = servers.iter().map(Server::url).collect();
    for (at, proxy) in proxies.iter().enumerate() {
        urls[at] = servers[at].url_at(proxy.addr());
    }
    // With the third one down, these two would make the majority.
    let driver = over_urls(urls, WAITED_FOR).await;
    servers[2].kill();
    let claim = claim("killed").with_ttl(LONG);
    let holds = [
        proxies[0].requests().hold(claim.owner().to_string()),
        proxies[1].requests().hold(claim.owner().to_string()),
    ];
    let asking = driver.try_acquire(&claim);
    tokio::pin!(asking);
    tokio::select! {
        answer = &mut asking => panic!("{answer:?}"),
        () = async { for hold in &holds { hold.caught().await; } } => (),
    }
    servers[0].kill();
    servers[1].kill();
    asking.await.unwrap_err();
    nothing_is_left_on(&servers[3..], "killed").await;
}

async fn one_stopped(servers: Vec<Server>) {
    let driver = over_servers(&servers, FORGETFUL).await;
    servers[0].stop().unwrap();
    // Asks, renewals and releases end when the others have answered, not when this one fails.
    let claims: Vec<_> = (0..20).map(|at| claim(&format!("stopped {at}")).with_ttl(LONG)).collect();
    let all = async {
        for claim in &claims {
            assert!(granted(&driver, claim).await);
            assert!(matches!(driver.renew(claim).await, Ok(Renewal::Held(_))));
            assert_eq!(driver.release(claim).await.unwrap(), Release::Freed);
        }
    };
    // Sixty requests that waited for it would take at least twenty call limits.
    timeout(10 * claims[0].call_limit(), all).await.unwrap();
    servers[0].cont().unwrap();
    for claim in &claims {
        nothing_is_left_on(&servers[..1], claim.name().as_str()).await;
    }
}

async fn restarted_empty(servers: Vec<Server>) {
    let driver = over_servers(&servers, YOUNG).await;
    take(&driver, &claim("kept")).await;
    let start = Instant::now();
    for server in &servers[..3] {
        server.restart().unwrap();
    }
    let others = over(servers.iter().map(Server::url).collect(), YOUNG).await.unwrap();
    while start.elapsed() < TTL {
        for driver in [&driver, &others] {
            assert!(
                !granted(driver, &claim("kept")).await || start.elapsed() >= TTL,
                "two hold it"
            );
        }
    }
    while !granted(&others, &claim("kept")).await {
        sleep(Duration::from_millis(20)).await;
    }
}

/// With the two that the holder does not reach it would make a majority.
async fn one_restarted_empty(servers: Vec<Server>) {
    let driver = cut_off(&servers, YOUNG).await;
    let witness = over_servers(&servers, YOUNG).await;
    let start = take(&driver, &claim("kept")).await;
    servers[0].restart().unwrap();
    let newcomer = over(servers.iter().map(Server::url).collect(), YOUNG).await.unwrap();
    while start.elapsed() < TTL {
        for driver in [&witness, &newcomer] {
            assert!(
                !granted(driver, &claim("kept")).await || start.elapsed() >= TTL,
                "two hold it"
            );
        }
    }
}

/// What the delayed restart is for.
async fn control(servers: Vec<Server>) {
    let driver = cut_off(&servers, FORGETFUL).await;
    let others = over_servers(&servers, FORGETFUL).await;
    let held = claim("forgotten").with_ttl(LONG);
    take(&driver, &held).await;
    assert!(!granted(&others, &claim("forgotten")).await);
    servers[0].restart().unwrap();
    while !granted(&others, &claim("forgotten")).await {}
    // They all but one still have the first.
    assert_eq!(held_on(&servers, &held).await, 2);
}

async fn clock_set_forward(servers: Vec<Server>) {
    let driver = over_servers(&servers, FORGETFUL).await;
    let others = over_servers(&servers, FORGETFUL).await;
    let held = claim("stepped").with_ttl(STEPPED);
    assert!(granted(&driver, &held).await);
    everywhere(&servers, &held).await;
    servers[0].step_clock(STEP).unwrap();
    assert_eq!(held_on(&servers, &held).await, 4);
    for _ in 0..100 {
        assert!(!granted(&others, &claim("stepped")).await, "two hold it");
    }
    // The holder takes it there again beside a renewal, when nobody's try is in the way.
    while held_on(&servers, &held).await < 5 {
        assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
    }
}

async fn control_of_clock(server: Server) {
    let driver = RedisDriver::connect(&server.url().parse().unwrap()).await.unwrap();
    let takes =
        async |claim: &Claim| matches!(driver.try_acquire(claim).await, Ok(Attempt::Granted(_)));
    assert!(takes(&claim("stepped").with_ttl(STEPPED)).await);
    assert!(!takes(&claim("stepped")).await);
    server.step_clock(STEP).unwrap();
    assert!(takes(&claim("stepped")).await, "Redis counts leases on its wall clock");
}

/// A limit of Redlock, which `docs/redlock.md` tells: no majority is without this node.
async fn bare(servers: Vec<Server>) {
    let driver = cut_off(&servers, FORGETFUL).await;
    let others = over_servers(&servers, FORGETFUL).await;
    let held = claim("stepped").with_ttl(STEPPED);
    take(&driver, &held).await;
    assert!(!granted(&others, &claim("stepped")).await);
    servers[0].step_clock(STEP).unwrap();
    while !granted(&others, &claim("stepped")).await {}
    assert_eq!(held_on(&servers, &held).await, 2);
}

async fn durable(servers: Vec<Server>) {
    let driver = over(servers.iter().map(Server::url).collect(), "max_ttl=1h&node_timeout=10s")
        .await
        .unwrap();
    let held = claim("durable").with_ttl(LONG);
    assert!(granted(&driver, &held).await);
    for server in &servers[..3] {
        server.restart().unwrap();
    }
    let renewal = loop {
        match driver.renew(&held).await {
            Ok(renewal) => break renewal,
            Err(error) => assert!(error.kind().is_transient(), "{error:?}"),
        }
    };
    assert!(matches!(renewal, Renewal::Held(_)));
    assert!(!granted(&driver, &claim("durable")).await);
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    assert!(granted(&driver, &claim("durable").with_ttl(LONG)).await);
}

async fn duplicates(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    // Nobody listens at the last one: no majority is without both of the others.
    let urls = || vec![server.url(), server.url_at(proxy.addr()), "redis://127.0.0.1:1".into()];
    let error = over(urls(), "").await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    over(urls(), "allow=duplicates").await.unwrap();
}

async fn refusing(server: Server) {
    let stranger = server.url().replace("://", "://:hunter2@");
    // Nobody listens at the last one.
    let error = over(vec![server.url(), stranger, "redis://127.0.0.1:1".into()], "").await;
    let text = denied(error.unwrap_err());
    let node = format!("node redis://:***@{}", server.addr());
    assert!(text.starts_with("redlock could not connect") && text.contains(&node), "{text}");
}

async fn secretive(server: Server) {
    let client = redis::Client::open(server.url()).unwrap();
    let mut raw = client.get_multiplexed_async_connection().await.unwrap();
    let mut set_user = redis::cmd("ACL");
    set_user.arg(&["SETUSER", "me", "on", ">pw", "~*", "&*", "+@all", "-info"]);
    set_user.query_async::<()>(&mut raw).await.unwrap();
    let stranger = server.url().replace("://", "://me:pw@");
    let error = over(vec![server.url(), stranger, "redis://127.0.0.1:1".into()], "").await;
    let text = denied(error.unwrap_err());
    let node = format!("node redis://me:***@{}: ", server.addr());
    assert!(text.contains(&node) && text.contains("'info'"), "{text}");
}

/// What the error says, and what is behind it.
fn denied(error: Error) -> String {
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
    format!("{error}: {}", std::error::Error::source(&error).unwrap())
}

/// Whatever a single server would be told: there are no tokens to check.
async fn forgetful(servers: Vec<Server>) {
    for (parameters, then) in [
        (YOUNG, "; it then gives no vote for 3s, until every lease is over"),
        (FORGETFUL, "; it then votes at once, and two may hold a lock"),
    ] {
        let driver = over(servers.iter().map(Server::url).collect(), parameters).await.unwrap();
        let found = driver.inspect().unwrap().diagnose(&Namespace::default()).await.unwrap();
        let kept: Vec<_> = found.iter().filter(|it| it.topic() == "persistence").collect();
        assert!(!kept.is_empty(), "{found:?}");
        for it in kept {
            assert!(it.finding().ends_with(then), "{it:?}");
            assert!(it.advice().unwrap().contains("`CONFIG SET appendonly yes`"), "{it:?}");
        }
        assert!(!format!("{found:?}").contains("token"), "{found:?}");
    }
}

async fn comes_back(servers: Vec<Server>) {
    let driver = over_servers(&servers, YOUNG).await;
    // Who has started last may sit out yet, and all that are left are needed.
    let sits_out = |found: &Diagnosis| found.finding().contains("has no vote");
    while driver
        .inspect()
        .unwrap()
        .diagnose(&Namespace::default())
        .await
        .unwrap()
        .iter()
        .any(sits_out)
    {
        sleep(Duration::from_millis(50)).await;
    }
    servers[0].kill();
    assert!(granted(&driver, &claim("while it is down").with_ttl(LONG)).await);
    servers[0].restart().unwrap();
    servers[1].kill();
    servers[2].kill();
    while !granted(&driver, &claim("when it is back")).await {
        sleep(Duration::from_millis(50)).await;
    }
}

async fn swallowed(servers: Vec<Server>) {
    let proxy = Proxy::start(servers[0].addr()).await;
    let mut urls: Vec<_> = servers.iter().map(Server::url).collect();
    urls[0] = servers[0].url_at(proxy.addr());
    let driver = over_urls(urls, WAITED_FOR).await;
    servers[1].kill();
    servers[2].kill();
    proxy.answers().swallow();
    let claim = claim("swallowed").with_ttl(LONG);
    driver.try_acquire(&claim).await.unwrap_err();
    nothing_is_left_on(&servers[3..], "swallowed").await;
    proxy.answers().pass();
    proxy.reset().await;
    nothing_is_left_on(&servers[..1], "swallowed").await;
}

/// Nobody accepts its connections, so that it is still being connected to.
async fn speechless(servers: Vec<Server>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("redis://{}", listener.local_addr().unwrap());
    let has_given_up = Arc::new(AtomicBool::new(false));
    let settings = Settings::default().delayed_restart(false);
    let mut driver = RedlockDriver::builder().settings(settings);
    for url in [servers[0].url(), servers[1].url(), silent] {
        let has_given_up = Arc::clone(&has_given_up);
        driver = driver.node_at(url.clone(), move || {
            let (url, has_given_up) = (url.parse().unwrap(), Arc::clone(&has_given_up));
            async move {
                let connected = RedisDriver::connect(&url).await;
                has_given_up.fetch_or(connected.is_err(), Ordering::Relaxed);
                connected
            }
        });
    }
    let driver = driver.connect().await.unwrap();
    let claim = claim("speechless");
    take(&driver, &claim).await;
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    driver.close().await;
    assert!(!has_given_up.load(Ordering::Relaxed), "it was waited for");
}

async fn many_locks(servers: Vec<Server>) {
    let [near, far] =
        [over_servers(&servers, FORGETFUL).await, over_servers(&servers, FORGETFUL).await];
    let mut paces = Vec::new();
    for number in 0..400 {
        let claim = || claim(&number.to_string()).with_ttl(LONG);
        assert!(granted(&far, &claim()).await);
        let waiter = claim().waiting();
        let pace = loop {
            match near.try_acquire(&waiter).await.unwrap() {
                Attempt::Taken(taken) => {
                    let pace = taken.asks_within().map_or(0, |it| it.as_millis());
                    // Less where the holder does not have all nodes yet.
                    if pace >= 100 {
                        break pace;
                    }
                }
                other => panic!("{other:?}"),
            }
        };
        paces.push(pace);
    }
    assert_eq!([paces[0], paces[198], paces[199], paces[399]], [100, 100, 200, 400]);
}
