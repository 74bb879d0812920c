//! Makes the tables, and refuses databases that are not ours.

use lockkit_core::driver::ErrorKind;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection as _, Row as _};

use super::error::Problem;

const LAYOUT: &str = include_str!("layout.sql");
const STATE: &str = include_str!("state.sql");
const OBJECTS: &str = include_str!("objects.sql");

/// "lkit", as `layout.sql` has it.
const APPLICATION_ID: i64 = 0x6c6b_6974;
pub(super) const VERSION: i64 = 1;

/// Makes sure that the database is ours; an empty one becomes ours. Nothing is written to any
/// other.
///
/// However many processes do this at once, only one makes the tables.
pub(super) async fn prepare(connection: &mut SqliteConnection) -> Result<(), Problem> {
    let is_ours = check(connection).await?;
    // A property of the file, which cannot be set within a transaction.
    let journal: String =
        sqlx::query_scalar("PRAGMA journal_mode = WAL").fetch_one(&mut *connection).await?;
    if journal != "wal" {
        return Err(Problem::found(
            ErrorKind::Misconfigured,
            "the file system has no shared memory for a write-ahead log",
        ));
    }
    if is_ours {
        return Ok(());
    }
    make_tables(connection).await
}

/// Makes the tables, unless another process has just done it.
async fn make_tables(connection: &mut SqliteConnection) -> Result<(), Problem> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    if !check(&mut transaction).await? {
        sqlx::raw_sql(LAYOUT).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Whether the database is ours; if not, it is empty.
pub(super) async fn check(connection: &mut SqliteConnection) -> Result<bool, Problem> {
    let state = sqlx::query(STATE).fetch_one(&mut *connection).await?;
    let objects: i64 = state.try_get("objects")?;
    match (state.try_get("application_id")?, state.try_get("user_version")?) {
        (0, 0) if objects == 0 => return Ok(false),
        (APPLICATION_ID, VERSION) => (),
        (APPLICATION_ID, newer @ VERSION..) => {
            return Err(Problem::found(
                ErrorKind::Misconfigured,
                format!(
                    "it has layout version {newer}, of a newer lockkit; this one knows {VERSION}"
                ),
            ));
        }
        _ => {
            return Err(Problem::found(
                ErrorKind::Foreign,
                "it is the database of something else; locks need a file of their own",
            ));
        }
    }
    let tables = sqlx::query(OBJECTS).fetch_all(&mut *connection).await?;
    let mut missing = vec!["counter", "hold", "place", "place_of_name", "place_end", "place_begin"];
    for table in &tables {
        let (name, sql): (&str, &str) = (table.try_get("name")?, table.try_get("sql")?);
        if LAYOUT.contains(sql) {
            missing.retain(|expected| name.strip_prefix("lockkit_") != Some(expected));
        }
    }
    if !missing.is_empty() {
        return Err(Problem::found(
            ErrorKind::Foreign,
            format!("it is marked as lockkit's, but has other tables; wrong: {missing:?}"),
        ));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use sqlx::ConnectOptions as _;
    use sqlx::sqlite::SqliteConnectOptions;

    use super::{check, make_tables};

    #[tokio::test]
    async fn the_tables_are_made_once() {
        let mut connection = SqliteConnectOptions::new().connect().await.unwrap();
        assert!(!check(&mut connection).await.unwrap());
        // The second one stands for a process that also found the database empty.
        for _ in 0..2 {
            make_tables(&mut connection).await.unwrap();
            assert!(check(&mut connection).await.unwrap());
        }
    }
}
