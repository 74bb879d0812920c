//! What is said to a server before anything is asked of it.

use std::collections::HashMap;
use std::io;

use redis::{
    Parser, Pipeline, RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind, Value, cmd,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::endpoint::Mode;
use crate::error::{Failure, code};

/// Says who we are, asks the server what it is, and chooses the database, all in one go.
///
/// It is our own, since that of the client library takes whatever the server answers to mean a
/// wrong password or database, and hears nothing from a server that says why it hangs up at once.
pub(crate) async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    greeting: &RedisConnectionInfo,
    wanted: Mode,
) -> Result<(), Failure> {
    let (password, database) = (greeting.password(), greeting.db());
    let mut all = Pipeline::with_capacity(3);
    if let Some(password) = password {
        let mut auth = cmd("AUTH");
        // A user that is not named is `default`.
        if let Some(user) = greeting.username().filter(|user| *user != "default") {
            auth.arg(user);
        }
        auth.arg(password);
        all.add_command(auth);
    }
    // Any user may send this, even before anything else.
    all.cmd("HELLO");
    if database != 0 {
        all.cmd("SELECT").arg(database);
    }
    stream.write_all(&all.get_packed_pipeline()).await?;
    stream.flush().await?;

    let mut answers = Answers { stream, bytes: Vec::with_capacity(512), taken: 0 };
    if let Some(password) = password {
        answers.next().await?.extract_error().map_err(|error| match error.detail() {
            Some(_) if is_unknown_command(&error) => Failure::NoAuth,
            Some(detail) if detail.contains("number of arguments") => Failure::NoUsers,
            _ if repeats(&error, password) => Failure::NoAuth,
            _ => error.into(),
        })?;
    }
    match answers.next().await?.extract_error() {
        Ok(server) => check(&redis::from_redis_value(server).map_err(RedisError::from)?, wanted)?,
        // Redis 5 does not know the command; it refuses to write on a replica by itself.
        Err(error) if is_unknown_command(&error) => (),
        Err(error) => return Err(error.into()),
    }
    if database != 0 {
        answers.next().await?.extract_error().map_err(|error| match code(&error) {
            Some("ERR") => Failure::Database(error),
            // This is about the user or the server.
            _ => error.into(),
        })?;
    }
    Ok(())
}

/// Whether the server is what was wanted.
fn check(server: &HashMap<String, Value>, wanted: Mode) -> Result<(), Failure> {
    let text = |field: &str| match server.get(field) {
        Some(Value::BulkString(text)) => std::str::from_utf8(text).ok(),
        _ => None,
    };
    let major = text("version").and_then(|text| text.split('.').next()?.parse::<u32>().ok());
    let mode = match text("mode") {
        Some("sentinel") => Mode::Sentinel,
        Some("cluster") => Mode::ClusterNode,
        _ => Mode::Single,
    };
    match () {
        () if mode != wanted => Err(Failure::Mode { is: mode.name(), wanted: wanted.name() }),
        // Before Redis 7, channels did not live in slots.
        () if mode == Mode::ClusterNode && major.is_some_and(|major| major < 7) => {
            Err(Failure::OldCluster)
        }
        // In a cluster, it is the replica itself that says where the primary is.
        () if mode == Mode::Single && matches!(text("role"), Some("replica" | "slave")) => {
            Err(Failure::Replica)
        }
        () => Ok(()),
    }
}

fn is_unknown_command(error: &RedisError) -> bool {
    error.kind() == ServerErrorKind::ResponseError.into()
        && error.detail().is_some_and(|detail| detail.starts_with("unknown command"))
}

/// Whether the answer to a password seems to have it in its text, and is not to be printed. What
/// servers say to any password has none in it but by chance.
fn repeats(error: &RedisError, password: &str) -> bool {
    let detail = error.detail().unwrap_or_default();
    let is_said_to_any = match code(error) {
        Some("WRONGPASS" | "NOAUTH" | "DENIED") => true,
        Some("ERR") => detail.starts_with("max number of clients") || detail == "invalid password",
        _ => false,
    };
    !is_said_to_any && !password.is_empty() && detail.contains(password)
}

/// The answers on a stream, as they come.
struct Answers<'a, S> {
    stream: &'a mut S,
    bytes: Vec<u8>,
    taken: usize,
}

impl<S: AsyncRead + Unpin> Answers<'_, S> {
    async fn next(&mut self) -> Result<Value, Failure> {
        loop {
            match self.parse() {
                Err(error) if error.is_io_error() => (),
                answer => {
                    self.taken += 1;
                    return Ok(answer?);
                }
            }
            match self.stream.read_buf(&mut self.bytes).await {
                Ok(0) => return Err(Failure::HungUp),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(Failure::HungUp);
                }
                read => _ = read?,
            }
        }
    }

    /// The next answer in what has come; an input error if more of it is to come. It parses from
    /// the beginning each time, since the parser does not tell how far it has read: answers are
    /// short.
    fn parse(&self) -> RedisResult<Value> {
        let (mut parser, mut bytes) = (Parser::new(), &*self.bytes);
        for _ in 0..self.taken {
            parser.parse_value(&mut bytes)?;
        }
        parser.parse_value(&mut bytes)
    }
}
