use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, ServerErrorKind, Value};

use crate::connection::Request;

/// Takes a lock: `scripts/take.lua`.
pub(crate) static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/lock.lua"),
        include_str!("scripts/token.lua"),
        include_str!("scripts/queue.lua"),
        include_str!("scripts/take.lua")
    ))
});

/// Renews a lease: `scripts/renew.lua`.
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));

/// Releases a lock or leaves a queue: `scripts/release.lua`.
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/lock.lua"),
        include_str!("scripts/token.lua"),
        include_str!("scripts/queue.lua"),
        include_str!("scripts/release.lua")
    ))
});

/// Ends somebody's hold: `scripts/break.lua`.
pub(crate) static BREAK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/lock.lua"),
        include_str!("scripts/token.lua"),
        include_str!("scripts/queue.lua"),
        include_str!("scripts/break.lua")
    ))
});

/// Tells who holds and who waits: `scripts/look.lua`.
pub(crate) static LOOK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/lock.lua"),
        include_str!("scripts/token.lua"),
        include_str!("scripts/look.lua")
    ))
});

/// Tells which rights are missing: `scripts/rights.lua`.
pub(crate) static RIGHTS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("scripts/missing.lua"), include_str!("scripts/rights.lua")))
});

/// Those of the dialect `plain`: `scripts/plain/`.
pub(crate) mod plain {
    use std::sync::LazyLock;

    use super::Script;

    pub(crate) static TAKE: LazyLock<Script> = LazyLock::new(|| {
        Script::new(concat!(
            include_str!("scripts/token.lua"),
            include_str!("scripts/plain/lock.lua"),
            include_str!("scripts/plain/take.lua")
        ))
    });

    pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| {
        Script::new(concat!(
            include_str!("scripts/token.lua"),
            include_str!("scripts/plain/lock.lua"),
            include_str!("scripts/plain/renew.lua")
        ))
    });

    pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
        Script::new(concat!(
            include_str!("scripts/token.lua"),
            include_str!("scripts/plain/lock.lua"),
            include_str!("scripts/plain/release.lua")
        ))
    });

    pub(crate) static BREAK: LazyLock<Script> = LazyLock::new(|| {
        Script::new(concat!(
            include_str!("scripts/token.lua"),
            include_str!("scripts/plain/lock.lua"),
            include_str!("scripts/plain/break.lua")
        ))
    });

    pub(crate) static LOOK: LazyLock<Script> = LazyLock::new(|| {
        Script::new(concat!(
            include_str!("scripts/token.lua"),
            include_str!("scripts/plain/lock.lua"),
            include_str!("scripts/plain/look.lua")
        ))
    });

    /// Finds locks among keys.
    pub(crate) static SEARCH: LazyLock<Script> =
        LazyLock::new(|| Script::new(include_str!("scripts/plain/search.lua")));

    pub(crate) static RIGHTS: LazyLock<Script> = LazyLock::new(|| {
        Script::new(concat!(
            include_str!("scripts/missing.lua"),
            include_str!("scripts/plain/rights.lua")
        ))
    });
}

/// A script, known to a server by its hash once it was run there.
#[derive(Debug)]
pub(crate) struct Script {
    code: &'static str,
    hash: String,
}

impl Script {
    fn new(code: &'static str) -> Self {
        Self { code, hash: redis::Script::new(code).get_hash().into() }
    }

    /// A request to run the script.
    pub(crate) fn on<'a>(
        &'static self,
        keys: &'a [&'a str],
        arguments: &'a [&'a str],
    ) -> Invocation<'a> {
        Invocation { script: self, keys, arguments }
    }
}

/// A script with its keys and arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invocation<'a> {
    script: &'static Script,
    keys: &'a [&'a str],
    arguments: &'a [&'a str],
}

/// Runs the script by its hash, and by its text if the server does not know it: it forgets scripts
/// when it restarts or is told to.
impl Request for Invocation<'_> {
    async fn send(&self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        match connection.send_packed_command(&self.by_hash()).await?.extract_error() {
            Err(error) if error.kind() == ServerErrorKind::NoScript.into() => {
                connection.send_packed_command(&self.by_text()).await?.extract_error()
            }
            answer => answer,
        }
    }
}

impl Invocation<'_> {
    pub(crate) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    pub(crate) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.code)
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let arguments = self.keys.len() + self.arguments.len();
        let mut command = Cmd::with_capacity(3 + arguments, script.len() + 64 * arguments);
        command.arg(verb).arg(script).arg(self.keys.len()).arg(self.keys).arg(self.arguments);
        command
    }
}
