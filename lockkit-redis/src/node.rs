use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{DriverError, ErrorKind, Node, Run};
use lockkit_core::{Diagnosis, Namespace};
use redis::Value;

use crate::diagnosis::{self, Part};
use crate::driver::{RedisDriver, parse};

/// What tells one run of a server from others, since when it has been running, and what it keeps.
#[async_trait]
impl Node for RedisDriver {
    async fn run(&self, limit: Duration) -> Result<Run, DriverError> {
        self.servers.run(limit).await
    }

    async fn diagnose_node(
        &self,
        namespace: &Namespace,
    ) -> Option<Result<Vec<Diagnosis>, DriverError>> {
        Some(diagnosis::diagnose(self, namespace, Part::OneOfSeveral).await)
    }
}

/// The settings that tell when a server syncs its file, as a pattern for `CONFIG GET`.
pub(crate) const SYNC_SETTINGS: &str = "*appendfsync*";

/// What the server says about itself, in the answers to `INFO` and to `CONFIG GET` for
/// [`SYNC_SETTINGS`].
pub(crate) fn run(info: Value, settings: Option<Value>) -> Result<Run, DriverError> {
    let info: String = parse(info)?;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default()
    };
    // It says that it keeps nothing until it has read its file.
    if field("loading") == "1" {
        return Err(DriverError::new(ErrorKind::Unreachable, "the server is loading its data"));
    }
    let mut run = Run::new(field("run_id"));
    // In whole seconds, rounded down, on the server's wall clock.
    if let Ok(seconds) = field("uptime_in_seconds").parse() {
        run = run.lasting(Duration::from_secs(seconds));
    }
    let settings: HashMap<String, String> =
        settings.and_then(|settings| parse(settings).ok()).unwrap_or_default();
    let is = |setting: &str, value| settings.get(setting).is_some_and(|it| it == value);
    // While a child of it rewrites the file or saves, a server can be told to sync nothing.
    let syncs_always = is("appendfsync", "always") && !is("no-appendfsync-on-rewrite", "yes");
    if field("aof_enabled") == "1" && syncs_always {
        run = run.durable();
    }
    if field("role") == "slave" {
        run = run.replica();
    }
    Ok(run)
}
