//! `lockkit conformance`: the checks that every driver passes, on a backend of the user's.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use lockkit::driver::{Driver, OwnerId};
use lockkit::{BackendUrl, Error, Locker, Namespace, Result};
use lockkit_conformance::libtest_mimic::{self, Arguments};
use lockkit_conformance::{Check, Suite};

use crate::args::Conformance;
use crate::report::{self, Volume, answer, chain, say};
use crate::table::columns;
use crate::{backend, exit};

/// How many checks run at once. Most of the time they wait.
const AT_ONCE: usize = 8;

/// Runs the checks and returns the exit code.
pub(crate) fn conformance(options: &Conformance) -> u8 {
    let filter = options.filter.as_deref().unwrap_or_default();
    let chosen: Vec<_> =
        Suite::checks().iter().filter(|check| check.name().contains(filter)).collect();
    if chosen.is_empty() {
        say(format!("no check has `{filter}` in its name; see `lockkit conformance --list`"));
        return exit::USAGE;
    }
    if options.list {
        return answer(list(&chosen), exit::OK);
    }
    report::listen(Volume::Errors);
    match attempt(options, filter) {
        Ok(code) => code,
        Err(error) => backend::failed(&error),
    }
}

fn attempt(options: &Conformance, filter: &str) -> Result<u8> {
    let url = backend::url(&options.place)?;
    // Nobody else has this one, so that all that is in it may be removed.
    let id = &OwnerId::random().to_string()[..12];
    let namespace = Namespace::new(&format!("conformance-{id}"))?;
    let driver = backend::block_on(connect(&url))??;
    let suite = suite(&url, &*driver, namespace.clone()).ttl(options.ttl);
    drop(driver);
    let passed = run(suite, filter);
    if let Err(error) = backend::block_on(clean_up(&url, namespace))? {
        say(format!("what the checks have left runs out by itself, since {}", chain(&error)));
    }
    Ok(if passed { exit::OK } else { exit::NO })
}

fn list(checks: &[&Check]) -> String {
    let row = |check: &&Check| vec![check.name().to_owned(), check.asserts().to_owned()];
    columns(&checks.iter().map(row).collect::<Vec<_>>()).join("\n") + "\n"
}

async fn connect(url: &BackendUrl) -> Result<Arc<dyn Driver>> {
    Ok(Arc::clone(lockkit::connect_url(url).await?.driver()))
}

fn suite(url: &BackendUrl, driver: &dyn Driver, namespace: Namespace) -> Suite {
    let url = url.clone();
    Suite::new(driver.id(), driver.capabilities()).namespace(namespace).connect_arc(move || {
        let url = url.clone();
        async move { Ok(connect(&url).await?) }
    })
}

/// Whether all checks with this in their names passed, or do not apply.
fn run(suite: Suite, filter: &str) -> bool {
    let arguments = Arguments {
        filter: Some(filter.into()),
        test_threads: Some(AT_ONCE),
        ..Arguments::default()
    };
    !libtest_mimic::run(&arguments, suite.trials()).has_failed()
}

/// Removes what checks have left in their namespace, and says what cannot be removed.
async fn clean_up(url: &BackendUrl, namespace: Namespace) -> Result<()> {
    let driver = connect(url).await?;
    let locker = Locker::builder_from_arc(driver).namespace(namespace.clone()).build()?;
    if locker.capabilities().inspection {
        for lock in locker.held().await? {
            locker.break_hold(lock.name().as_str(), None).await?;
        }
    }
    locker.shutdown().await;
    let table = match url.parameter("hold") {
        Some("session") => "lockkit_session",
        _ => "lockkit_lock",
    };
    match url.scheme() {
        "file" => remove_folders(Path::new(url.path()), namespace.as_str())
            .map_err(|error| Error::config(url.path(), error.to_string()))?,
        "redis" | "rediss" | "redis+unix" | "unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => say(format!(
            "the counters of fencing tokens stay, since a driver never removes them; to do so on \
             that server, or on each primary of a cluster: redis-cli --scan --pattern '{{{namespace}*' | xargs redis-cli del",
            namespace = namespace.as_str(),
        )),
        "postgres" | "postgresql" => say(format!(
            "the rows of the locks stay for a day, for their fencing tokens; to remove them now: \
             DELETE FROM {table} WHERE starts_with(namespace, '{namespace}')",
            namespace = namespace.as_str(),
        )),
        "mysql" | "mariadb" => say(format!(
            "the rows of the locks stay for a day, for their fencing tokens; to remove them now: \
             DELETE FROM {table} WHERE namespace LIKE '{namespace}%'",
            namespace = namespace.as_str(),
        )),
        // Nothing stays.
        _ => (),
    }
    Ok(())
}

/// Removes the folders of the namespaces whose names begin so.
fn remove_folders(within: &Path, prefix: &str) -> io::Result<()> {
    for entry in fs::read_dir(within)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
