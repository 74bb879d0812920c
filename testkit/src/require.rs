use std::env;

use crate::{BACKENDS, Unavailable};

/// Backends that need no server: every test binary has them.
const SERVERLESS: [&str; 3] = ["memory", "file", "sqlite"];

/// Passes on what was found, or the reason to skip the test.
///
/// In a suite of libtest-mimic (or use [`trial`](crate::trial), which does this):
///
/// ```no_run
/// # use libtest_mimic::{Completion, Trial};
/// # use lockkit_testkit::{REDIS, or_skip};
/// Trial::ignorable_test("takes", || {
///     let url = match or_skip(REDIS.url()) {
///         Ok(url) => url,
///         Err(reason) => return Ok(Completion::ignored_with(reason)),
///     };
///     // ...
///     Ok(Completion::Completed)
/// });
/// ```
///
/// # Errors
/// The reason to skip the test, if the program is missing.
///
/// # Panics
/// To fail the test: if `LOCKKIT_REQUIRE` names the backend, or `LOCKKIT_REQUIRE_TOOLS` the tool,
/// whose program is missing; if `LOCKKIT_REQUIRE` names an unknown backend; or if the program is
/// there and does not come up.
pub fn or_skip<T>(found: Result<T, Unavailable>) -> Result<T, String> {
    let listed = |variable| env::var(variable).unwrap_or_default();
    sort_out(found, &listed("LOCKKIT_REQUIRE"), &listed("LOCKKIT_REQUIRE_TOOLS"))
}

fn sort_out<T>(found: Result<T, Unavailable>, backends: &str, tools: &str) -> Result<T, String> {
    let servers = BACKENDS.iter().map(|backend| backend.id());
    let known: Vec<&str> = servers.chain(SERVERLESS).collect();
    for id in words(backends) {
        assert!(
            known.contains(&id),
            "LOCKKIT_REQUIRE names `{id}`, known are {}",
            known.join(", ")
        );
    }
    let is_required = |id| words(backends).chain(words(tools)).any(|required| required == id);
    match found {
        Ok(found) => Ok(found),
        Err(missing @ Unavailable::Missing { backend, .. }) if !is_required(backend) => {
            Err(missing.to_string())
        }
        Err(unsupported @ Unavailable::Unsupported { .. }) => Err(unsupported.to_string()),
        Err(unavailable) => panic!("{unavailable}"),
    }
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: Unavailable =
        Unavailable::Missing { backend: "redis", programs: &["redis-server", "valkey-server"] };

    #[test]
    fn what_is_found_is_handed_on() {
        assert_eq!(sort_out(Ok(7), "redis", ""), Ok(7));
    }

    #[test]
    fn a_missing_program_is_a_reason_to_skip() {
        let reason = "no redis-server or valkey-server in PATH: `scripts/test redis` installs it";
        for required in ["", "memory, sqlite", "sqlite,"] {
            assert_eq!(sort_out::<()>(Err(MISSING), required, "browser"), Err(reason.into()));
        }
    }

    #[test]
    #[should_panic(expected = "no redis-server or valkey-server in PATH")]
    fn a_missing_program_that_is_required_is_a_failure() {
        let _ = sort_out::<()>(Err(MISSING), "sqlite, redis", "");
    }

    #[test]
    #[should_panic(expected = "no chromium in PATH")]
    fn a_missing_tool_that_is_required_is_a_failure() {
        let missing = Unavailable::Missing { backend: "browser", programs: &["chromium"] };
        let _ = sort_out::<()>(Err(missing), "redis", "valgrind, browser");
    }

    #[test]
    #[should_panic(expected = "port taken")]
    fn a_server_that_does_not_come_up_is_a_failure() {
        let failed = Unavailable::Failed {
            backend: "redis",
            reason: "port taken".into(),
            log: String::new(),
        };
        let _ = sort_out::<()>(Err(failed), "", "");
    }

    #[test]
    #[should_panic(
        expected = "LOCKKIT_REQUIRE names `reddis`, known are etcd, mariadb, mysql, postgres, \
                    redis, zookeeper, memory, file, sqlite"
    )]
    fn an_unknown_backend_is_a_failure() {
        let _ = sort_out(Ok(7), "reddis", "");
    }
}
