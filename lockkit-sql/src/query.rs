//! A statement with its values.

use sqlx::error::BoxDynError;
use sqlx::query::Query;
use sqlx::{Database, Error};

/// The statement with these values, each of which `bind` adds where the query is: `Query::bind`
/// would move the query with each.
pub(crate) fn query<'q, D: Database, V>(
    statement: &'static str,
    values: &[V],
    bind: impl Fn(&mut Query<'q, D, D::Arguments>, &V) -> Result<(), BoxDynError>,
) -> Result<Query<'q, D, D::Arguments>, Error> {
    let mut query = sqlx::query::<D>(statement);
    for value in values {
        bind(&mut query, value).map_err(Error::Encode)?;
    }
    Ok(query)
}
