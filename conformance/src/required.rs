//! `LOCKKIT_REQUIRE`: the drivers whose absence is a failure.

/// The drivers that lockkit has, and another server that one of them works with. A suite knows its
/// own name as well.
const KNOWN: &[&str] = &[
    "memory",
    "file",
    "sqlite",
    "postgres",
    "mysql",
    "mariadb",
    "redis",
    "redlock",
    "zookeeper",
    "etcd",
];

/// Whether `LOCKKIT_REQUIRE` names `driver`.
pub(crate) fn is_required(driver: &str) -> Result<bool, String> {
    match std::env::var("LOCKKIT_REQUIRE") {
        Ok(list) => names(&list, driver),
        Err(std::env::VarError::NotPresent) => Ok(false),
        Err(error) => Err(format!("LOCKKIT_REQUIRE: {error}")),
    }
}

fn names(list: &str, driver: &str) -> Result<bool, String> {
    let mut ids = list.split(',').map(str::trim).filter(|id| !id.is_empty());
    match ids.clone().find(|id| *id != driver && !KNOWN.contains(id)) {
        Some(unknown) => Err(format!(
            "LOCKKIT_REQUIRE names `{unknown}`, which is no driver; known are: {}",
            KNOWN.join(", ")
        )),
        None => Ok(ids.any(|id| id == driver)),
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn a_driver_is_required_if_the_list_names_it() {
        assert_eq!(names("", "redis"), Ok(false));
        assert_eq!(names("sqlite, redis", "redis"), Ok(true));
        assert_eq!(names("sqlite", "redis"), Ok(false), "no part of a word counts");
        assert_eq!(names("mine", "mine"), Ok(true));
    }

    #[test]
    fn an_unknown_driver_is_an_error() {
        let error = names("redis,reddis", "redis").unwrap_err();
        assert!(error.contains("`reddis`") && error.contains("redlock"), "{error}");
    }
}
