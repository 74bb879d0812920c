use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, ServerErrorKind, Value};

use crate::cluster::slots;
use crate::endpoint::Mode;
use crate::request::{Request, To};

/// A script that begins with how news travels, which differs in a cluster.
macro_rules! with_news {
    ($($file:literal),*) => {
        Script::with_news(
            concat!(include_str!("scripts/news.lua"), $(include_str!($file)),*),
            concat!(include_str!("scripts/sharded_news.lua"), $(include_str!($file)),*),
        )
    };
}

/// Takes a lock: `scripts/take.lua`.
pub(crate) static TAKE: LazyLock<Script> = LazyLock::new(|| {
    with_news!(
        "scripts/keys.lua",
        "scripts/token.lua",
        "scripts/grant.lua",
        "scripts/take_free.lua",
        "scripts/lock.lua",
        "scripts/queue.lua",
        "scripts/take.lua"
    )
});

/// Renews a lease: `scripts/renew.lua`.
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));

/// Releases a lock or leaves a queue: `scripts/release.lua`.
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    with_news!(
        "scripts/keys.lua",
        "scripts/release_alone.lua",
        "scripts/token.lua",
        "scripts/grant.lua",
        "scripts/queue.lua",
        "scripts/release.lua"
    )
});

/// Ends somebody's hold: `scripts/break.lua`.
pub(crate) static BREAK: LazyLock<Script> = LazyLock::new(|| {
    with_news!(
        "scripts/keys.lua",
        "scripts/token.lua",
        "scripts/grant.lua",
        "scripts/lock.lua",
        "scripts/queue.lua",
        "scripts/break.lua"
    )
});

/// Tells who holds and who waits: `scripts/look.lua`.
pub(crate) static LOOK: LazyLock<Script> = LazyLock::new(|| {
    with_news!("scripts/keys.lua", "scripts/token.lua", "scripts/lock.lua", "scripts/look.lua")
});

/// Tells which rights are missing: `scripts/rights.lua`.
pub(crate) static RIGHTS: LazyLock<Script> =
    LazyLock::new(|| with_news!("scripts/missing.lua", "scripts/rights.lua"));

/// The scripts of the dialect `plain`: `scripts/plain/`.
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

/// A script, known to a server by its hash once it has run there.
#[derive(Debug)]
pub(crate) struct Script {
    text: Text,
    /// What a cluster is given instead, if that differs.
    of_cluster: Option<Text>,
}

#[derive(Debug)]
struct Text {
    code: &'static str,
    hash: String,
}

impl Text {
    fn new(code: &'static str) -> Self {
        Self { code, hash: redis::Script::new(code).get_hash().into() }
    }
}

impl Script {
    fn new(code: &'static str) -> Self {
        Self { text: Text::new(code), of_cluster: None }
    }

    fn with_news(code: &'static str, of_cluster: &'static str) -> Self {
        Self { text: Text::new(code), of_cluster: Some(Text::new(of_cluster)) }
    }

    /// Its text for a server that is not a member of a cluster.
    pub(crate) fn code(&self) -> &'static str {
        self.text.code
    }

    /// A request to run the script.
    pub(crate) fn on<'a>(
        &'static self,
        keys: &'a [&'a str],
        arguments: &'a [&'a str],
    ) -> Invocation<'a> {
        Invocation { script: self, keys, arguments }
    }

    fn text_for(&self, to: To) -> &Text {
        match (to.mode, &self.of_cluster) {
            (Mode::ClusterNode, Some(text)) => text,
            _ => &self.text,
        }
    }
}

/// A script with its keys and arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invocation<'a> {
    script: &'static Script,
    keys: &'a [&'a str],
    arguments: &'a [&'a str],
}

/// Runs the script by its hash, and by its text if the server does not know it: a server forgets
/// scripts when it restarts or is told to.
impl Request for Invocation<'_> {
    fn slot(&self) -> Option<u16> {
        self.keys.first().map(|key| slots::slot(key))
    }

    async fn send(&self, connection: &mut MultiplexedConnection, to: To) -> RedisResult<Value> {
        match ask(connection, self.by_hash(to), to).await {
            Err(error) if error.kind() == ServerErrorKind::NoScript.into() => {
                ask(connection, self.by_text(to), to).await
            }
            answer => answer,
        }
    }
}

async fn ask(connection: &mut MultiplexedConnection, command: Cmd, to: To) -> RedisResult<Value> {
    if !to.asking {
        return connection.send_packed_command(&command).await?.extract_error();
    }
    let mut both = redis::Pipeline::with_capacity(2);
    both.add_command(redis::cmd("ASKING")).add_command(command);
    let answers = Box::pin(connection.send_packed_commands(&both, 1, 1)).await?;
    answers.into_iter().next().unwrap_or(Value::Nil).extract_error()
}

impl Invocation<'_> {
    pub(crate) fn by_hash(&self, to: To) -> Cmd {
        self.command("EVALSHA", &self.script.text_for(to).hash)
    }

    pub(crate) fn by_text(&self, to: To) -> Cmd {
        self.command("EVAL", self.script.text_for(to).code)
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let arguments = self.keys.len() + self.arguments.len();
        let mut command = Cmd::with_capacity(3 + arguments, script.len() + 64 * arguments);
        command.arg(verb).arg(script).arg(self.keys.len()).arg(self.keys).arg(self.arguments);
        command
    }
}
