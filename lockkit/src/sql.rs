//! What only SQL databases can do, and their drivers.

#[cfg(feature = "mysql")]
pub use lockkit_sql::mysql;
#[cfg(feature = "postgres")]
pub use lockkit_sql::postgres;
#[cfg(feature = "sqlite")]
pub use lockkit_sql::sqlite;
pub use lockkit_sql::transaction;
