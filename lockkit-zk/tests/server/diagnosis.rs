//! What is said about servers.

use libtest_mimic::Trial;
use lockkit_core::driver::{Driver, ErrorKind, Inspect};
use lockkit_core::{Diagnosis, Grade, Namespace};
use lockkit_testkit::{Ensemble, Server, Unavailable, ZOOKEEPER, trial};

use zookeeper_client::{Acls, CreateMode};

use crate::sessions::set;
use crate::support::{Place, claim, driver, kind, take, with};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("one_server_is_told_as_it_is", || ZOOKEEPER.start(), one),
        trial("an_ensemble_is_told_as_it_is", || ZOOKEEPER.start_ensemble(3), three),
        trial(
            "a_server_that_tells_nothing_is_told",
            || silent_with("maxSessionTimeout=6000\n"),
            told_nothing,
        ),
        trial(
            "a_tick_that_the_bounds_of_sessions_tell_is_known",
            || silent_with("tickTime=1000\n"),
            bounds,
        ),
        trial("locks_that_cannot_be_taken_are_told", || ZOOKEEPER.url(), sealed),
        trial("what_belongs_to_others_is_told", || ZOOKEEPER.url(), others),
        trial("another_tick_than_reckoned_with_is_told", || ZOOKEEPER.url(), tick),
    ]
}

async fn findings(driver: &impl Inspect) -> Vec<Diagnosis> {
    driver.diagnose(&Namespace::default()).await.unwrap()
}

fn on(findings: &[Diagnosis], topic: &str) -> (Grade, String) {
    let finding = findings.iter().find(|finding| finding.topic() == topic).unwrap();
    (finding.grade(), finding.finding().into())
}

async fn one(server: Server) {
    let place = Place::on(&server.url()).await;
    let told = findings(&driver(&with(&place.url, "ttl=4s")).await).await;
    assert_eq!(on(&told, "ensemble").0, Grade::Warning);
    for topic in ["version", "servers", "tick", "session", "rights"] {
        assert_eq!(on(&told, topic).0, Grade::Good, "{told:#?}");
    }
    let told = findings(&driver(&with(&place.url, "ttl=1h")).await).await;
    assert_eq!(on(&told, "session").0, Grade::Warning);
}

async fn three(ensemble: Ensemble) {
    let driver = driver(&ensemble.url()).await;
    let told = findings(&driver).await;
    assert_eq!(on(&told, "ensemble"), (Grade::Good, "3 servers vote".into()));
    assert_eq!(on(&told, "servers").0, Grade::Good);
    let one = crate::support::driver(&ensemble.members()[0].url()).await;
    let (grade, text) = on(&findings(&one).await, "ensemble");
    assert_eq!((grade, &*text), (Grade::Warning, "3 servers vote, and the URL names 1"));
    ensemble.members()[(ensemble.leader() + 1) % 3].kill();
    let told = findings(&driver).await;
    assert_eq!(on(&told, "servers").0, Grade::Warning);
    // The leader has to notice first.
    let text = loop {
        match on(&findings(&driver).await, "ensemble") {
            (Grade::Good, _) => (),
            (_, text) => break text,
        }
    };
    assert!(text.starts_with("2 of 3 voters are in step"), "{text}");
}

/// Tells no more than servers do by default.
pub(crate) fn silent() -> Result<Server, Unavailable> {
    silent_with("")
}

pub(crate) fn silent_with(settings: &str) -> Result<Server, Unavailable> {
    let server = ZOOKEEPER.start()?;
    set_silent(&server, settings)?;
    Ok(server)
}

pub(crate) fn set_silent(server: &Server, settings: &str) -> Result<(), Unavailable> {
    set(server, &format!("4lw.commands.whitelist=srvr\n{settings}"))
}

/// The tick is then a twentieth of the longest session.
async fn told_nothing(server: Server) {
    let driver = driver(&with(&server.url(), "ttl=4s")).await;
    take(&driver, &claim()).await;
    let (grade, text) = on(&findings(&driver).await, "tick");
    assert_eq!(grade, Grade::Warning);
    assert!(text.contains("300ms"), "{text}");
    let sure = crate::support::driver(&with(&server.url(), "tick=200ms")).await;
    assert_eq!(on(&findings(&sure).await, "tick").0, Grade::Good);
}

/// Both bounds of sessions follow from the tick, unless they are set.
async fn bounds(server: Server) {
    let url = with(&server.url(), "ttl=5s");
    let told = findings(&driver(&url).await).await;
    assert_eq!(
        on(&told, "tick"),
        (Grade::Good, "the bounds of sessions are those of a tick of 1s".into())
    );
    set_silent(&server, "tickTime=1000\nmaxSessionTimeout=10000\n").unwrap();
    assert_eq!(on(&findings(&driver(&url).await).await, "tick").0, Grade::Warning);
}

/// Locks that can be seen, and not taken.
async fn sealed(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let readable = CreateMode::Persistent.with_acls(Acls::anyone_read());
    for below in ["", "/lockkit"] {
        assert_eq!(on(&findings(&driver).await, "rights").0, Grade::Good);
        let options = match below {
            "" => CreateMode::Persistent.with_acls(Acls::anyone_all()),
            _ => readable.clone(),
        };
        place.raw.create(&place.path(below), b"", &options).await.unwrap();
    }
    let (grade, text) = on(&findings(&driver).await, "rights");
    assert_eq!(grade, Grade::Error);
    assert!(text.contains("nothing can be made or removed"), "{text}");
    assert_eq!(kind(driver.try_acquire(&claim()).await).0, ErrorKind::Denied);
    assert_eq!(place.raw.list_children(&place.path("")).await.unwrap(), ["lockkit"]);
}

async fn others(server: String) {
    let place = Place::on(&server).await;
    let theirs = place.url.replace("zookeeper://", "zookeeper://app:secret@");
    let theirs = driver(&theirs).await;
    take(&theirs, &claim()).await;
    assert_eq!(on(&findings(&theirs).await, "rights").0, Grade::Good);
    let ours = driver(&place.url).await;
    assert_eq!(on(&findings(&ours).await, "rights").0, Grade::Error);
    assert!(ours.inspect().is_some());
}

async fn tick(server: String) {
    let driver = driver(&with(&server, "tick=100ms")).await;
    let (grade, text) = on(&findings(&driver).await, "tick");
    assert_eq!(grade, Grade::Error);
    assert!(text.contains("200ms"), "{text}");
}
