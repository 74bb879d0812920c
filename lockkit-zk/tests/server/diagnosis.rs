//! What is said about servers.

use libtest_mimic::Trial;
use lockkit_core::driver::{Driver, Inspect};
use lockkit_core::{Diagnosis, Grade, Namespace};
use lockkit_testkit::{Ensemble, Server, Unavailable, ZOOKEEPER, trial};

use crate::support::{Place, claim, driver, take, with};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("one_server_is_told_as_it_is", || ZOOKEEPER.start(), one),
        trial("an_ensemble_is_told_as_it_is", || ZOOKEEPER.start_ensemble(3), three),
        trial("a_server_that_tells_nothing_is_told", silent, told_nothing),
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
    ensemble.members()[(ensemble.leader() + 1) % 3].kill();
    assert_eq!(on(&findings(&driver).await, "servers").0, Grade::Warning);
}

fn silent() -> Result<Server, Unavailable> {
    let server = ZOOKEEPER.start()?;
    std::fs::write(server.data().join("settings"), "4lw.commands.whitelist=srvr\n").unwrap();
    server.restart()?;
    Ok(server)
}

/// The tick is then a twentieth of the longest session.
async fn told_nothing(server: Server) {
    let driver = driver(&with(&server.url(), "ttl=4s")).await;
    take(&driver, &claim()).await;
    let (grade, text) = on(&findings(&driver).await, "tick");
    assert_eq!(grade, Grade::Warning);
    assert!(text.contains("200ms"), "{text}");
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
