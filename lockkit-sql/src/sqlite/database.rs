//! One connection to the database file, used for one request after another.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use lockkit_core::driver::filesystem::{self, FileId};
use lockkit_core::driver::{DriverError, ErrorKind, blocking};
use rustix::io::Errno;
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqliteConnection, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::error::Problem;
use super::layout;
use super::time::HostClock;
use crate::query::query;

const SWEEP: &str = include_str!("sweep.sql");

/// How long opening and closing may take.
const OPENING_LIMIT: Duration = Duration::from_secs(5);

/// How long opening waits for its turn to sweep.
const SWEEPING_LIMIT: Duration = Duration::from_secs(1);

/// A database file that is ours.
#[derive(Debug)]
pub(super) struct Database {
    location: Arc<Location>,
    clock: HostClock,
    /// Empty before the first request after a failure. Tokio's mutex serves in order.
    slot: Arc<Mutex<Slot>>,
}

type Slot = Option<SqliteConnection>;

/// A parameter of a request.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
}

impl Database {
    /// Opens the database at `path`; a file that is empty or missing becomes one.
    pub(super) async fn open(path: &Path) -> Result<Self, DriverError> {
        let deadline = Instant::now() + OPENING_LIMIT;
        // A relative path keeps its meaning when the process changes its directory.
        let path = std::path::absolute(path).map_err(|error| Problem::from(error).at(path))?;
        let opened = timeout_at(deadline, open_first(&path)).await.unwrap_or_else(|_| {
            Err(Problem::found(
                ErrorKind::Unreachable,
                format!("it did not open within {OPENING_LIMIT:?}"),
            ))
        });
        let (connection, file, clock) =
            opened.map_err(|problem| explain(problem, &path).at(&path))?;
        let slot = Arc::new(Mutex::new(Some(connection)));
        let database = Self { location: Arc::new(Location { path, file }), clock, slot };
        database.sweep().await?;
        Ok(database)
    }

    /// Removes what has run out under names that nobody asks for any more. Nobody needs this now:
    /// if others keep the database busy, it is left to whoever opens it next.
    async fn sweep(&self) -> Result<(), DriverError> {
        let values = [Value::Text(self.clock.id().into()), Value::Integer(self.clock.now())];
        match self.request(SWEEP, &values, Instant::now() + SWEEPING_LIMIT).await {
            Err(error) if !error.kind().is_transient() => Err(error),
            _ => Ok(()),
        }
    }

    /// Where it is.
    pub(super) fn location(&self) -> Arc<Location> {
        Arc::clone(&self.location)
    }

    /// The absolute path.
    pub(super) fn path(&self) -> &Path {
        self.location.path()
    }

    /// The file that was opened.
    pub(super) fn file(&self) -> FileId {
        self.location.file
    }

    /// The clock that leases count on.
    pub(super) fn clock(&self) -> &HostClock {
        &self.clock
    }

    /// Whether the path still leads to the file that is open. If not, others see another file or
    /// none, and what is written here binds nobody.
    pub(super) fn check_file(&self) -> Result<(), DriverError> {
        self.location.check().map_err(|problem| problem.at(self.path()))
    }

    /// The error of a request that did not begin in time.
    pub(super) fn busy(&self) -> DriverError {
        let text = "earlier requests are still being carried out";
        self.at(Problem::found(ErrorKind::Unreachable, text))
    }

    /// Whether what was written just now binds anybody: whether the path still leads to the file
    /// that is open. If that is unknown, so is what came of the request.
    pub(super) fn binds(&self) -> Result<bool, DriverError> {
        self.location.is_there().map_err(|error| {
            let text = format!("whether the file is still there cannot be found out: {error}");
            self.at(Problem::found(ErrorKind::Unknown, text))
        })
    }

    /// The same, but an error if it does not.
    pub(super) fn check_written(&self) -> Result<(), DriverError> {
        match self.binds()? {
            true => Ok(()),
            false => Err(self.at(gone())),
        }
    }

    /// Runs a script, and returns the rows of all its statements once the last one is done.
    ///
    /// While another process writes, the script is tried again until the deadline: SQLite's own
    /// waiting would keep its thread busy past it. The runtime is never in the middle of a
    /// transaction, since the thread runs all of the script in one go.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unreachable`] if the script did not begin by the deadline;
    /// [`ErrorKind::Unknown`] if it began and has not ended. It then goes on by itself, and the
    /// requests that come after it wait for it.
    pub(super) async fn request(
        &self,
        script: &'static str,
        values: &[Value],
        deadline: Instant,
    ) -> Result<Vec<SqliteRow>, DriverError> {
        let Ok(mut slot) = timeout_at(deadline, Arc::clone(&self.slot).lock_owned()).await else {
            return Err(self.busy());
        };
        // What begins later cannot be expected to end in time.
        let last_start = deadline - deadline.saturating_duration_since(Instant::now()) / 4;
        loop {
            let location = Arc::clone(&self.location);
            let mut attempt = Box::pin(attempt(slot, location, script, values.to_vec()));
            let Ok((returned, outcome)) = timeout_at(deadline, &mut attempt).await else {
                tokio::spawn(attempt);
                let text = "the request is still being carried out";
                return Err(self.at(Problem::found(ErrorKind::Unknown, text)));
            };
            let problem = match outcome {
                Ok(rows) => return Ok(rows),
                Err(problem) => problem,
            };
            // SQLite has no queue of writers: only one that asks often gets in between those that
            // write all the time. A try costs some 30 µs.
            let pause = Duration::from_micros(fastrand::u64(500..1_500));
            if !problem.is_busy() || Instant::now() + pause >= last_start {
                // If the file is gone, that is the reason.
                return Err(self.at(self.location.check().err().unwrap_or(problem)));
            }
            slot = returned;
            sleep(pause).await;
        }
    }

    /// Runs a script that only reads, on a connection of its own that cannot write: no request
    /// waits for it, and it waits for none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unreachable`] if it was not read by the deadline; never
    /// [`ErrorKind::Unknown`], since nothing is carried out.
    pub(super) async fn observe(
        &self,
        script: &'static str,
        values: &[Value],
        deadline: Instant,
    ) -> Result<Vec<SqliteRow>, DriverError> {
        let observing = async {
            loop {
                match self.location.observe(script, values).await {
                    // Readers wait for a connection that recovers the log, or keeps the file to
                    // itself.
                    Err(problem) if problem.is_busy() => sleep(Duration::from_millis(1)).await,
                    outcome => return outcome,
                }
            }
        };
        let observed = timeout_at(deadline, Box::pin(observing)).await.unwrap_or_else(|_| {
            Err(Problem::found(ErrorKind::Unreachable, "it was not read within the time for it"))
        });
        observed.map_err(|problem| self.at(problem).without_effect())
    }

    /// Reads an answer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Foreign`] if it is not what the tables can hold.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce() -> Result<T, sqlx::Error>,
    ) -> Result<T, DriverError> {
        read().map_err(|error| self.at(error.into()))
    }

    /// Closes the connection, after the requests under way.
    pub(super) async fn close(&self) {
        let closing = async {
            match self.slot.lock().await.take() {
                Some(connection) => connection.close().await,
                None => Ok(()),
            }
        };
        match timeout(OPENING_LIMIT, closing).await {
            Ok(Ok(())) => (),
            Ok(Err(error)) => tracing::warn!(%error, "the database was not closed in order"),
            // The connection's thread ends after what it is doing.
            Err(_) => tracing::warn!("the database does not close within {OPENING_LIMIT:?}"),
        }
    }

    fn at(&self, problem: Problem) -> DriverError {
        explain(problem, self.path()).at(self.path())
    }
}

/// Runs a script on the connection, which is opened if there is none. After a failure the
/// connection is closed, which ends what was begun on it.
async fn attempt(
    mut slot: OwnedMutexGuard<Slot>,
    location: Arc<Location>,
    script: &'static str,
    values: Vec<Value>,
) -> (OwnedMutexGuard<Slot>, Result<Vec<SqliteRow>, Problem>) {
    let mut connection = match slot.take() {
        Some(connection) => connection,
        None => match location.open(options(&location.path)).await {
            Ok(connection) => connection,
            Err(problem) => return (slot, Err(problem)),
        },
    };
    let mut has_begun = false;
    let outcome = run(&mut connection, script, &values, &mut has_begun).await;
    // Mostly it is the first statement of a script that finds the database busy, and nothing is left
    // open. Without a write-ahead log, whoever reads keeps others from committing.
    if outcome.as_ref().err().is_none_or(|problem| problem.is_busy() && !has_begun) {
        *slot = Some(connection);
    }
    (slot, outcome)
}

/// `has_begun` tells whether a statement was carried out.
async fn run(
    connection: &mut SqliteConnection,
    script: &'static str,
    values: &[Value],
    has_begun: &mut bool,
) -> Result<Vec<SqliteRow>, Problem> {
    let query = query::<Sqlite, _>(script, values, |query, value| match value {
        Value::Text(text) => query.try_bind(text.clone()),
        Value::Integer(integer) => query.try_bind(*integer),
    });
    let mut rows = Vec::new();
    let mut answers = connection.fetch_many(query?);
    // To the last row: an answer counts only once the commit after it is done.
    while let Some(answer) = answers.try_next().await? {
        *has_begun = true;
        rows.extend(answer.right());
    }
    Ok(rows)
}

/// Where the database is, and which file that was.
#[derive(Debug)]
pub(super) struct Location {
    path: PathBuf,
    file: FileId,
}

impl Location {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the path still leads to that file.
    pub(super) fn check(&self) -> Result<(), Problem> {
        match self.is_there()? {
            true => Ok(()),
            false => Err(gone()),
        }
    }

    /// Whether the path still leads to that file.
    fn is_there(&self) -> io::Result<bool> {
        match file_at(&self.path) {
            Ok(file) => Ok(file == self.file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Connects to the same file again.
    async fn open(&self, options: SqliteConnectOptions) -> Result<SqliteConnection, Problem> {
        self.check()?;
        let mut connection = options.connect().await?;
        match layout::check(&mut connection).await? {
            true => Ok(connection),
            false => Err(Problem::found(ErrorKind::Foreign, "its tables are gone")),
        }
    }

    async fn observe(
        &self,
        script: &'static str,
        values: &[Value],
    ) -> Result<Vec<SqliteRow>, Problem> {
        let mut connection = self.open(options(&self.path).read_only(true)).await?;
        let rows = run(&mut connection, script, values, &mut false).await?;
        connection.close().await?;
        Ok(rows)
    }
}

async fn open_first(path: &Path) -> Result<(SqliteConnection, FileId, HostClock), Problem> {
    check_place(path).await?;
    let clock = HostClock::new()?;
    let (connection, file) = loop {
        let before = file_at(path).ok();
        match create(path).await {
            Err(problem) if problem.is_busy() => {
                sleep(Duration::from_micros(fastrand::u64(1_000..20_000))).await;
            }
            Err(problem) => return Err(problem),
            Ok(connection) => match file_at(path)? {
                file if before == Some(file) => break (connection, file),
                // The file was made or replaced meanwhile: the one that is open may be another.
                _ => connection.close().await?,
            },
        }
    };
    // A link may have led to where there was no file before.
    check_place(path).await?;
    Ok((connection, file, clock))
}

/// The file at `path`. It is not opened: closing a database file, other than by SQLite, would end
/// the locks that SQLite has on it.
fn file_at(path: &Path) -> io::Result<FileId> {
    Ok(FileId::of(&std::fs::metadata(path)?))
}

async fn create(path: &Path) -> Result<SqliteConnection, Problem> {
    let mut connection = options(path).create_if_missing(true).connect().await?;
    layout::prepare(&mut connection).await?;
    Ok(connection)
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .synchronous(SqliteSynchronous::Full)
        // Without, macOS leaves what is synced in the cache of the disk.
        .pragma("fullfsync", "ON")
        .pragma("checkpoint_fullfsync", "ON")
        // `Database::request` waits instead.
        .busy_timeout(Duration::ZERO)
        // So that a script never stops in the middle to wait until its rows are fetched.
        .row_buffer_size(4096)
        // 64 KiB: a request uses few pages, and the system keeps them, too.
        .pragma("cache_size", "-64")
        .disable_statement_logging()
        .thread_name(|number| format!("lockkit-sqlite-{number}"))
}

fn gone() -> Problem {
    Problem::found(
        ErrorKind::Misconfigured,
        "the file was deleted or replaced while in use, so that holds in it bind nobody; connect \
         again once nobody relies on them",
    )
}

/// Refuses what SQLite would open, but cannot lock safely.
async fn check_place(path: &Path) -> Result<(), Problem> {
    let path = path.to_owned();
    // Not on the runtime's thread: a network file system may not answer.
    blocking(move || check_place_blocking(&path)).await?
}

/// [`check_place`] on this thread.
pub(super) fn check_place_blocking(path: &Path) -> Result<(), Problem> {
    let misconfigured = |text: &'static str| Problem::found(ErrorKind::Misconfigured, text);
    let existing = match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err(misconfigured("it is not a file")),
        // A database's log and shared memory are named after the file: under two names, there would
        // be two of them
        // (https://www.sqlite.org/howtocorrupt.html#_multiple_links_to_the_same_file).
        Ok(metadata) if metadata.nlink() > 1 => {
            return Err(misconfigured("the file has several names (hard links)"));
        }
        // The same where it was mounted by itself, as into a container: its log is beside the mount.
        Ok(_) if is_mounted_alone(path)? => {
            return Err(misconfigured(
                "the file is mounted by itself, and its log would not be; mount its folder",
            ));
        }
        Ok(_) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().ok_or_else(|| misconfigured("it names no file"))?;
            if !folder.is_dir() {
                return Err(misconfigured("its directory does not exist"));
            }
            folder
        }
        Err(error) => return Err(error.into()),
    };
    match filesystem::shared(existing)? {
        None => Ok(()),
        Some(name) => Err(Problem::found(
            ErrorKind::Misconfigured,
            format!(
                "it is on {name}, where SQLite's locks and shared memory do not reach every user \
                 of the file; use a local file system"
            ),
        )),
    }
}

/// Whether the file is on another mount than its folder; `false` where the system does not tell.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_mounted_alone(path: &Path) -> io::Result<bool> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let mount = |path: &Path| match statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID) {
        Ok(found) => {
            let is_told = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
            Ok(is_told.then_some(found.stx_mnt_id))
        }
        Err(rustix::io::Errno::NOSYS) => Ok(None),
        Err(error) => Err(io::Error::from(error)),
    };
    let path = path.canonicalize()?;
    let Some(folder) = path.parent() else { return Ok(false) };
    let (file, folder) = (mount(&path)?, mount(folder)?);
    Ok(file.is_some() && folder.is_some() && file != folder)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_mounted_alone(_path: &Path) -> io::Result<bool> {
    Ok(false)
}

/// SQLite says only that it cannot open a file. This finds out whether that is for want of a right
/// or of descriptors.
fn explain(problem: Problem, path: &Path) -> Problem {
    use rustix::fs::{Access, access};
    let Some(folder) = path.parent().filter(|_| problem.is_cannot_open()) else { return problem };
    let may_enter = access(folder, Access::WRITE_OK | Access::EXEC_OK);
    match may_enter.and_then(|()| access(path, Access::READ_OK | Access::WRITE_OK)) {
        // The file may not be there yet.
        Ok(()) | Err(Errno::NOENT) => (),
        Err(error) => return Problem::System(error.into()),
    }
    // Without the right to read the folder, this tells nothing.
    match File::open(folder).map_err(Problem::System) {
        Err(none_left) if none_left.kind() == ErrorKind::Capacity => none_left,
        _ => problem,
    }
}
