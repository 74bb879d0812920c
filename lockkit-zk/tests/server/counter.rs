//! What the numbers in the names of nodes are worth once their counter has come to its end.

use std::fs;
use std::path::Path;

use libtest_mimic::Trial;
use lockkit_core::driver::{Claim, Driver, Inspect};
use lockkit_testkit::{Server, Unavailable, ZOOKEEPER, trial};

use crate::support::{FOLDER, Place, claim, driver, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("a_counter_that_has_come_to_its_end_orders_nobody_wrongly", plain, at_its_end)]
}

/// Without what its snapshots would have behind their checksum: digests, and from 3.9 on the last change.
fn plain() -> Result<Server, Unavailable> {
    let server = ZOOKEEPER.start()?;
    let settings = "digest.enabled=false\nserializeLastProcessedZxid.enabled=false\n";
    fs::write(server.data().join("settings"), settings).unwrap();
    server.restart()?;
    Ok(server)
}

async fn at_its_end(server: Server) {
    const TURNS: usize = 20;
    let place = Place::made_on(&server.url()).await;
    // It takes a snapshot when it starts.
    server.restart().unwrap();
    server.kill();
    count_up_to(i32::MAX - 2, &place.path(FOLDER), &server.data());
    server.restart().unwrap();
    let driver = driver(&place.url).await;
    let held = claim();
    take(&driver, &held).await;
    // Some are made at about the same time, and some after all that were made before.
    let many: Vec<_> = (0..TURNS).map(|_| claim().fair()).collect();
    futures_util::future::join_all(many.iter().map(|claim| refused(&driver, claim))).await;
    let late: Vec<_> = (0..TURNS).map(|_| claim().fair()).collect();
    for claim in &late {
        refused(&driver, claim).await;
    }
    let status = driver.look(held.name()).await.unwrap();
    assert_eq!(status.holder().unwrap().owner(), held.owner());
    let owners: Vec<_> = status.waiters().iter().map(|waiter| waiter.owner()).collect();
    assert_eq!(owners[TURNS..], late.iter().map(Claim::owner).collect::<Vec<_>>());
    let mut last = held;
    for owner in owners {
        let next = many.iter().chain(&late).find(|claim| claim.owner() == owner).unwrap();
        refused(&driver, &claim()).await;
        driver.release(&last).await.unwrap();
        take(&driver, next).await;
        last = next.clone();
    }
}

/// Sets how many nodes have been made in a folder, in the newest snapshot.
fn count_up_to(made: i32, folder: &str, data: &Path) {
    let files = fs::read_dir(data.join("version-2")).unwrap().map(|entry| entry.unwrap().path());
    let snapshots = files.filter(|path| path.to_str().unwrap().contains("snapshot."));
    let newest = snapshots.max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
    let newest = newest.unwrap();
    let mut content = fs::read(&newest).unwrap();
    let at = content.windows(folder.len()).position(|bytes| bytes == folder.as_bytes()).unwrap();
    // Behind its path: its data, of which there are none, its rights, four times and numbers of
    // transactions, and the version of its data.
    let at = at + folder.len() + 4 + 8 + 4 * 8 + 4;
    content[at..at + 4].copy_from_slice(&made.to_be_bytes());
    // At the end: a checksum of what comes before, and the path `/`.
    let end = content.len() - 8 - 5;
    let sum = u64::from(adler32(&content[..end]));
    content[end..end + 8].copy_from_slice(&sum.to_be_bytes());
    fs::write(&newest, content).unwrap();
}

fn adler32(bytes: &[u8]) -> u32 {
    const BASE: u32 = 65_521;
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), &byte| {
        let a = (a + u32::from(byte)) % BASE;
        (a, (b + a) % BASE)
    });
    b << 16 | a
}
