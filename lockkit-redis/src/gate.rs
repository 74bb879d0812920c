//! A gate for fencing tokens in Redis, which refuses what a holder writes if a later holder has
//! been there.
//!
//! A holder can be paused for longer than its lease without noticing, and write when it goes on.
//! Such a write is refused if every write that the lock protects [passes](pass) a gate, with the
//! token of the guard:
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
//! Passing a gate is one script and one request: nothing comes between the comparison and the
//! writes. The lock may be on any backend that has tokens, even on another server. The gate is a
//! key of yours that holds the highest token in decimal. It has no expiry, and must not be deleted
//! while somebody may hold an older token.
//!
//! In a cluster, the gate and all keys that are written must be in one slot: give them the same
//! hash tag, as above.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use lockkit_core::FencingToken;
/// The client library whose connections a gate takes.
pub use redis;
use redis::aio::ConnectionLike;
use redis::{Arg, FromRedisValue, Pipeline, RedisError, Script, Value, from_redis_value};

use crate::cluster::slots::hashed;

/// The check alone, in Lua, to be put in front of a script of your own.
///
/// The first key of that script is the gate, and its first argument is the token. If the token is
/// stale, the script ends with an error whose code is `STALE`; [`Error::of`] understands it.
///
/// ```
/// use lockkit_redis::gate::{self, redis};
///
/// let sell = [gate::CHECK, "return redis.call('DECR', KEYS[2])"].concat();
/// let sell = redis::Script::new(&sell);
/// # _ = sell;
/// ```
pub const CHECK: &str = include_str!("scripts/gate/check.lua");

/// The most words that one command may have.
const MOST_WORDS: usize = 7_000;

/// Refuses the fencing token if it is lower than the highest that the gate has seen; otherwise
/// remembers it and carries out the commands, all in one step.
///
/// Returns what the commands answer, as a pipeline does; without commands, take `()`. An answer
/// that the pipeline is told to ignore is not left out.
///
/// An empty pipeline only tells that the token is not stale, and keeps older ones out from then on.
/// A holder that first reads, and then writes what follows from that, begins with one.
///
/// Every argument that has the slot of the gate, by a hash tag, is declared as a key of the script,
/// so that nothing is carried out unless all keys are where the gate is, also while a slot moves.
/// A whole number of 2^53 or more that a command answers, as `INCR` may, is an error, since Lua
/// rounds it: the commands were carried out, and `GET` tells it.
///
/// The user of the connection needs the rights `+evalsha +script|load +get +set`, besides those for
/// the commands.
///
/// # Errors
///
/// [`Error::Stale`] if a later holder has been there: nothing was written, and nothing of this
/// holder's may be. [`Error::Redis`] for everything else, with what the server said. If that is
/// about one of the commands, those before it were carried out: Redis takes nothing back. A request
/// that was not answered may have been carried out, and passes again with the same token.
///
/// # Cancel safety
///
/// Not cancel-safe: it is then unknown whether the commands are carried out.
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
    let tag = hashed(gate.as_bytes());
    let mut keys = BTreeSet::new();
    for command in writes.cmd_iter() {
        let words = command.args_iter();
        if words.len() > MOST_WORDS {
            let problem = "a command behind a gate has too many words";
            return Err(failed((redis::ErrorKind::InvalidClientConfig, problem).into()));
        }
        script.arg(words.len());
        for word in words {
            match word {
                Arg::Simple(word) => {
                    // While a slot moves, the server looks at what is declared alone: whether all
                    // of it is there yet.
                    if hashed(word) == tag && word != gate.as_bytes() && keys.insert(word) {
                        script.key(word);
                    }
                    script.arg(word)
                }
                // A cursor, which stands for the beginning.
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
    /// A later holder has been there: nothing was written. Do not try again.
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
    /// Anything else that the server or the connection to it said.
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
    /// What the error of a script that begins with [`CHECK`] means.
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
