use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime;

use crate::{Unavailable, or_skip};

/// A test of that name that gets what `find` finds, and shows as ignored with the reason where the
/// server is missing (see [`or_skip`]).
///
/// It runs in a runtime of its own, fails by panicking, and fails if it has not ended after 300 s:
/// a guard against hanging, not a measure of anything.
pub fn trial<T, F>(
    name: &str,
    find: impl FnOnce() -> Result<T, Unavailable> + Send + 'static,
    test: impl FnOnce(T) -> F + Send + 'static,
) -> Trial
where
    F: Future<Output = ()>,
{
    const PATIENCE: Duration = Duration::from_secs(300);
    Trial::ignorable_test(name, move || {
        let found = match or_skip(find()) {
            Ok(found) => found,
            Err(reason) => return Ok(Completion::ignored_with(reason)),
        };
        let runtime =
            runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let outcome = runtime.block_on(async { tokio::time::timeout(PATIENCE, test(found)).await });
        // A task that hangs in blocking code must not hang the test.
        runtime.shutdown_background();
        match outcome {
            Ok(()) => Ok(Completion::Completed),
            Err(_) => Err(Failed::from(format!("it has not ended after {PATIENCE:?}"))),
        }
    })
}

/// The `main` of a test binary with `harness = false`: runs the tests that the arguments select.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
