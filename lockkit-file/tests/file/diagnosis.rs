use std::fs;

use lockkit_core::driver::{Driver as _, Inspect as _};
use lockkit_core::{Diagnosis, Grade, Namespace};
use lockkit_file::FileDriver;

use crate::support::{Fixture, claim, forge, granted, set_mode};

async fn diagnose(driver: &FileDriver) -> Vec<Diagnosis> {
    driver.diagnose(&Namespace::default()).await.unwrap()
}

fn about<'a>(findings: &'a [Diagnosis], topic: &str) -> &'a Diagnosis {
    let mut about = findings.iter().filter(|finding| finding.topic() == topic);
    let finding = about.next().unwrap_or_else(|| panic!("nothing about {topic}: {findings:?}"));
    assert_eq!(about.next(), None);
    finding
}

#[tokio::test]
async fn a_folder_in_order_is_found_so() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let are_good = async |topics: &[&str]| {
        let findings = diagnose(&driver).await;
        for topic in topics {
            assert_eq!(about(&findings, topic).grade(), Grade::Good, "{topic}");
        }
        findings
    };
    are_good(&["file system", "space", "descriptors", "rights"]).await;

    let [held, released] = [claim("held"), claim("released")];
    granted(&driver, &held).await;
    granted(&driver, &released).await;
    driver.release(&released).await.unwrap();
    let findings =
        are_good(&["file system", "space", "descriptors", "rights", "files", "clock"]).await;
    let text = about(&findings, "files").finding();
    assert!(text.contains("has 2 lock files, of which 1 are held"), "{text}");
}

#[tokio::test]
async fn a_folder_that_is_unfit_is_an_error() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    set_mode(fixture.path(), 0o777);
    let findings = diagnose(&driver).await;
    let finding = about(&findings, "folder");
    assert_eq!(finding.grade(), Grade::Error);
    assert!(finding.finding().contains("written to by everybody"), "{finding:?}");

    set_mode(fixture.path(), 0o700);
    fs::write(fixture.path().join("lockkit"), "").unwrap();
    let findings = diagnose(&driver).await;
    let finding = about(&findings, "folder");
    assert_eq!(finding.grade(), Grade::Error);
    assert!(finding.finding().contains("lockkit: its folder is not a folder"), "{finding:?}");
}

#[tokio::test]
async fn files_that_are_no_locks_are_a_warning() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("a")).await;
    fs::write(fixture.file("diary"), "Dear diary,").unwrap();
    let findings = diagnose(&driver).await;
    let finding = about(&findings, "foreign files");
    assert_eq!(finding.grade(), Grade::Warning);
    assert!(finding.finding().contains("diary: it is no lock file"), "{finding:?}");
    assert_eq!(about(&findings, "files").grade(), Grade::Good);
}

#[tokio::test]
async fn tokens_ahead_of_the_clock_are_a_warning() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    forge(&fixture, 4_102_444_800_000_000).await;
    let findings = diagnose(&driver).await;
    assert_eq!(about(&findings, "clock").grade(), Grade::Warning);
}
