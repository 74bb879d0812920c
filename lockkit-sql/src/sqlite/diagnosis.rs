//! Whether the database, and the place where it is, are fit to keep locks.

mod place;

use std::error::Error;
use std::time::Duration;

use lockkit_core::driver::{DriverError, ErrorKind, blocking};
use lockkit_core::{Diagnosis, Namespace};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use tokio::time::{Instant, timeout};

use super::database::{Database, Value};

const HEALTH: &str = include_str!("health.sql");
const INTEGRITY: &str = include_str!("integrity.sql");

/// How long it may take to look at the place, and then at the database.
const LIMIT: Duration = Duration::from_secs(5);

/// How large a database is checked page by page, in well under a second: some 100,000 locks at a
/// time.
const SMALL: i64 = 32 << 20;

/// Earlier versions could, in rare cases, damage a database with a write-ahead log
/// (<https://www.sqlite.org/wal.html#walresetbug>).
const SOUND_SQLITE: [u32; 3] = [3, 51, 3];

/// Findings about the file, where it is, and what is in it. Nothing is written.
pub(super) async fn diagnose(database: &Database, namespace: &Namespace) -> Vec<Diagnosis> {
    let location = database.location();
    // Not on the runtime's thread: a file system may not answer.
    let looking = blocking(move || place::look_at(&location));
    match timeout(LIMIT, looking).await {
        Ok(Ok(Ok(mut findings))) => {
            findings.extend(look_into(database, namespace).await);
            findings
        }
        Ok(Ok(Err(finding))) => vec![finding],
        // The work ends early only with its runtime, or for want of a thread.
        Err(_) | Ok(Err(_)) => vec![Diagnosis::error(
            "file system",
            format!("it does not answer within {LIMIT:?}"),
            "look for a mount that hangs or a disk that fails: `findmnt`, `dmesg`",
        )],
    }
}

/// What the database says about itself.
async fn look_into(database: &Database, namespace: &Namespace) -> Vec<Diagnosis> {
    let deadline = Instant::now() + LIMIT;
    match Health::of(database, namespace, deadline).await {
        Ok(health) => vec![
            health.version(),
            health.persistence(),
            health.clock(database.clock().id()),
            integrity(database, health.size, deadline).await,
        ],
        Err(error) => vec![unreadable(error)],
    }
}

struct Health {
    sqlite: String,
    journal_mode: String,
    /// 2 is FULL.
    synchronous: i64,
    /// Bytes.
    size: i64,
    /// How many rows count on another clock.
    elsewhere: i64,
}

impl Health {
    async fn of(
        database: &Database,
        namespace: &Namespace,
        deadline: Instant,
    ) -> Result<Self, DriverError> {
        let clock = Value::Text(database.clock().id().into());
        let values = [Value::Text(namespace.as_str().into()), clock];
        let rows = database.observe(HEALTH, &values, deadline).await?;
        database.read(|| {
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            Ok(Self {
                sqlite: row.try_get("sqlite")?,
                journal_mode: row.try_get("journal_mode")?,
                synchronous: row.try_get("synchronous")?,
                size: row.try_get("size")?,
                elsewhere: row.try_get("elsewhere")?,
            })
        })
    }

    fn version(&self) -> Diagnosis {
        let finding =
            format!("layout {}, read with SQLite {}", super::layout::VERSION, self.sqlite);
        let mut parts = self.sqlite.split('.').map(|part| part.parse().unwrap_or(0));
        let version = [(); 3].map(|()| parts.next().unwrap_or(0));
        if version >= SOUND_SQLITE {
            return Diagnosis::good("version", finding);
        }
        let [major, minor, patch] = SOUND_SQLITE;
        Diagnosis::warning(
            "version",
            format!("{finding}, which can damage a database when two connections write at once"),
            format!("build with a libsqlite3-sys that has SQLite {major}.{minor}.{patch} or later"),
        )
    }

    fn persistence(&self) -> Diagnosis {
        let Self { journal_mode, synchronous, .. } = self;
        match (journal_mode.as_str(), synchronous) {
            ("wal", 2..) => Diagnosis::good(
                "persistence",
                "every change is synced to a write-ahead log before it is answered",
            ),
            ("wal", _) => Diagnosis::error(
                "persistence",
                format!(
                    "changes are not synced before they are answered (synchronous = {synchronous})"
                ),
                "build SQLite without a setting that overrides `PRAGMA synchronous = FULL`",
            ),
            _ => Diagnosis::warning(
                "persistence",
                format!(
                    "somebody has set the journal mode {journal_mode}: readers and writers keep \
                     each other waiting, and asks may fail as busy"
                ),
                "stop all that use the database and start them again, which sets WAL",
            ),
        }
    }

    fn clock(&self, clock: &str) -> Diagnosis {
        match self.elsewhere {
            0 => Diagnosis::good(
                "clock",
                format!("all leases are counted on this clock (boot:time namespace) {clock}"),
            ),
            rows => Diagnosis::warning(
                "clock",
                format!(
                    "holds and places counted on another clock than {clock} (boot:time \
                     namespace): {rows}; when they run out is not known here"
                ),
                "those from before a reboot are freed once somebody has asked for the lock for as \
                 long as its lease, or at once by `lockkit break NAME`; let all users of the file \
                 run in one time namespace",
            ),
        }
    }
}

async fn integrity(database: &Database, size: i64, deadline: Instant) -> Diagnosis {
    let path = database.path().display();
    if size > SMALL {
        return Diagnosis::warning(
            "integrity",
            format!("not checked, since the database is large: {} MiB", size >> 20),
            format!("check it at a quiet time: `sqlite3 {path} 'PRAGMA quick_check'`"),
        );
    }
    let rows = match database.observe(INTEGRITY, &[], deadline).await {
        Ok(rows) => rows,
        Err(error) => return unreadable(error),
    };
    let verdict = rows.first().map(|row: &SqliteRow| row.try_get::<String, _>(0));
    match verdict {
        Some(Ok(verdict)) if verdict == "ok" => {
            Diagnosis::good("integrity", "every page of the database makes sense")
        }
        Some(Ok(problems)) => {
            // The first line names the database; there is only one.
            let problem = problems.lines().last().unwrap_or_default();
            Diagnosis::error("integrity", format!("{path} is damaged: {problem}"), START_ANEW)
        }
        Some(Err(_)) | None => unreadable(DriverError::new(
            ErrorKind::Foreign,
            "SQLite's check of the database has no answer",
        )),
    }
}

const START_ANEW: &str = "stop all that use it and move it aside, with the files that have its \
    name and `-wal` or `-shm`: it is made anew, and fencing tokens go on rising; if it is not \
    lockkit's, give the locks another file instead";

/// The database could not be read.
fn unreadable(error: DriverError) -> Diagnosis {
    let kind = error.kind();
    let finding = told(&*error.into_source());
    match kind {
        ErrorKind::Foreign => Diagnosis::error("integrity", finding, START_ANEW),
        ErrorKind::Misconfigured => Diagnosis::error(
            "version",
            finding,
            "use the same file and the same version of lockkit wherever these locks are used, and \
             start anew whoever still has a file that was deleted or replaced",
        ),
        ErrorKind::Denied => Diagnosis::error(
            "rights",
            finding,
            "let the user that runs this read and write the database",
        ),
        _ => Diagnosis::warning(
            "integrity",
            finding,
            "look again; if it stays so, find who has it open: `fuser -v`",
        ),
    }
}

/// An error with its sources, each said once.
fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use lockkit_core::Grade;

    use super::Health;

    #[test]
    fn a_client_that_can_damage_the_database_is_a_warning() {
        for (sqlite, grade) in [
            ("3.51.2", Grade::Warning),
            ("3.9.12", Grade::Warning),
            ("3.51.3", Grade::Good),
            ("3.52.0", Grade::Good),
            ("4.0.0", Grade::Good),
        ] {
            let (sqlite, journal_mode) = (sqlite.into(), "wal".into());
            let health = Health { sqlite, journal_mode, synchronous: 2, size: 0, elsewhere: 0 };
            assert_eq!(health.version().grade(), grade, "{:?}", health.version());
        }
    }

    #[test]
    fn changes_that_are_not_synced_are_an_error() {
        let (sqlite, journal_mode) = (String::new(), "wal".into());
        let health = Health { sqlite, journal_mode, synchronous: 1, size: 0, elsewhere: 0 };
        assert_eq!(health.persistence().grade(), Grade::Error);
    }
}
