//! A gate for fencing tokens in Redis: what a holder writes there is refused if a later holder has
//! been here.
//!
//! A holder can be paused for longer than its lease without noticing, and write when it goes on. It
//! is refused if every write that a lock protects [passes](pass) a gate, with the token of the guard:
//!
//! ```no_run
//! use lockkit_core::{BoxError, LockGuard};
//! use lockkit_redis::gate::{self, redis};
//!
//! # async fn example(client: redis::Client, guard: LockGuard) -> Result<(), BoxError> {
//! let mut connection = client.get_multiplexed_async_connection().await?; // your own
//! let token = guard.fencing_token().ok_or("this backend gives no token")?;
//!
//! let mut writes = redis::pipe();
//! writes.set("{report}:body", "all is well").incr("{report}:version", 1);
//! let (_, version): (String, u64) =
//!     gate::pass(&mut connection, "{report}:gate", token, &writes).await?;
//! # _ = version;
//! # Ok(())
//! # }
//! ```
//!
//! It is one script, one request: nothing comes between the comparison and the writes. The lock may be
//! on any backend that has tokens, also on another server. The gate is a key of yours, the highest token
//! in decimal; it has no expiry, and is not to be deleted while somebody may hold an older token.
//!
//! On a cluster, the gate and all keys that are written are to be in one slot: give them one hash tag,
//! as above.

use std::sync::LazyLock;

use lockkit_core::FencingToken;
/// The client whose connections these are.
pub use redis;
use redis::aio::ConnectionLike;
use redis::{Arg, FromRedisValue, Pipeline, RedisError, Script, Value, from_redis_value};

/// The check alone, in Lua, to be put before a script of your own.
///
/// Its first key is the gate, its first argument the token. Where the token is stale, the script ends
/// with an error whose code is `STALE`; [`Error::of`] understands it.
///
/// ```
/// use lockkit_redis::gate::{self, redis};
///
/// let sell = [gate::CHECK, "return redis.call('DECR', KEYS[2])"].concat();
/// let sell = redis::Script::new(&sell);
/// # _ = sell;
/// ```
pub const CHECK: &str = include_str!("scripts/gate/check.lua");

/// The most words of one command.
const MOST_WORDS: usize = 7_000;

/// Refuses the fencing token if it is lower than the highest that the gate has seen; else remembers it
/// and carries out the commands, all in one step.
///
/// Answers what the commands did, as a pipeline does; without commands, take `()`. An answer that
/// the pipeline is told to ignore is not left out.
///
/// An empty pipeline only tells that the token is not stale, and keeps older ones out from then on: a
/// holder that first reads, and then writes what follows from it, begins with that.
///
/// The user of the connection needs the rights `+evalsha +script|load +get +set`, beside those to the
/// commands.
///
/// # Errors
///
/// [`Error::Stale`] if a later holder has been here: nothing was written, and nothing of this holder may
/// be. [`Error::Redis`] for all else, with what the server said. Where that is about one of the commands,
/// those before it were carried out: Redis takes nothing back. A request that was not answered may
/// have been carried out, and passes again with the same token.
///
/// # Cancel safety
///
/// Not cancel-safe: whether the commands are carried out is unknown then.
pub async fn pass<T: FromRedisValue>(
    connection: &mut impl ConnectionLike,
    gate: &str,
    token: FencingToken,
    writes: &Pipeline,
) -> Result<T, Error> {
    static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
        Script::new(concat!(
            include_str!("scripts/gate/check.lua"),
            include_str!("scripts/gate/write.lua")
        ))
    });
    let failed = |source| Error::of(gate, token, source);
    let mut script = SCRIPT.prepare_invoke();
    script.key(gate).arg(token.get());
    for command in writes.cmd_iter() {
        let words = command.args_iter();
        if words.len() > MOST_WORDS {
            let problem = "a command behind a gate has too many words";
            return Err(failed((redis::ErrorKind::InvalidClientConfig, problem).into()));
        }
        script.arg(words.len());
        for word in words {
            match word {
                Arg::Simple(word) => script.arg(word),
                // It stands for the beginning.
                _ => script.arg("0"),
            };
        }
    }
    let answers: Value = script.invoke_async(connection).await.map_err(failed)?;
    let answers = match answers {
        Value::Array(answers) if answers.is_empty() => Value::Nil,
        answers => answers,
    };
    from_redis_value(answers).map_err(|error| failed(error.into()))
}

/// Why something did not pass a gate.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A later holder has been here: nothing was written. Do not try again.
    #[error("fencing token {token} is stale: {highest} was at the gate `{gate}` already")]
    #[non_exhaustive]
    Stale {
        /// The key of the gate.
        gate: String,
        /// The token that was refused.
        token: FencingToken,
        /// The highest token so far.
        highest: FencingToken,
    },
    /// What else the server or the connection to it said.
    #[error("fencing token {token} could not pass the gate `{gate}`")]
    #[non_exhaustive]
    Redis {
        /// The key of the gate.
        gate: String,
        /// The token that was to pass.
        token: FencingToken,
        /// What was said.
        source: RedisError,
    },
}

impl Error {
    /// What the error of a script means that begins with [`CHECK`].
    pub fn of(gate: &str, token: FencingToken, source: RedisError) -> Self {
        let highest = match source.code() {
            Some("STALE") => source.detail().and_then(|detail| detail.parse().ok()),
            _ => None,
        };
        let gate = gate.to_owned();
        match highest {
            Some(highest) => Self::Stale { gate, token, highest },
            None => Self::Redis { gate, token, source },
        }
    }
}
