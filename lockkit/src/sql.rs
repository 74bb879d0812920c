//! What only SQL databases can do.

pub use lockkit_sql::transaction;
