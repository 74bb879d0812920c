//! Waiting until replicas have what was written.

use std::time::Duration;

use lockkit_core::driver::{DriverError, ErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, RedisResult, ServerErrorKind, Value, cmd};

use crate::driver::parse;
use crate::error::Failure;
use crate::request::{Request, To};
use crate::script::Invocation;

/// Fewer replicas than wanted have acknowledged a grant or a renewal in time: the source of the
/// error that says so. A claim that waits keeps such a grant, and asks again; any other claim has
/// given it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{acknowledged} of {wanted} replicas acknowledged within {timeout:?}")]
#[non_exhaustive]
pub struct TooFewReplicas {
    /// How many replicas were to acknowledge.
    pub wanted: u32,
    /// How many did.
    pub acknowledged: u32,
    /// How long they had.
    pub timeout: Duration,
}

/// How many replicas are to acknowledge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) wanted: u32,
    pub(crate) timeout: Option<Duration>,
}

impl Replicas {
    /// How long they have.
    pub(crate) fn timeout(&self, limit: Duration) -> Duration {
        // Zero would mean for ever.
        self.timeout.unwrap_or(limit / 2).max(Duration::from_millis(1))
    }
}

/// A script and, in one go, the wait for replicas to have what the server had written by then: even
/// if the script itself has written nothing, or the server does not know it.
///
/// It keeps a connection for itself, since the server answers nothing else on it meanwhile.
#[derive(Debug)]
pub(crate) struct Acknowledged<'a> {
    pub(crate) invocation: Invocation<'a>,
    pub(crate) wanted: u32,
    pub(crate) timeout: Duration,
}

impl Request for Acknowledged<'_> {
    const BLOCKS: bool = true;

    fn slot(&self) -> Option<u16> {
        self.invocation.slot()
    }

    /// Answers with what the script says and with what the wait says; the latter may be an error.
    async fn send(&self, connection: &mut MultiplexedConnection, to: To) -> RedisResult<Value> {
        let answers = self.ask(connection, self.invocation.by_hash(to), to).await?;
        let is_unknown = |error: &RedisError| error.kind() == ServerErrorKind::NoScript.into();
        match answers[0].clone().extract_error() {
            Err(error) if is_unknown(&error) => {
                let answers = self.ask(connection, self.invocation.by_text(to), to).await?;
                answers[0].clone().extract_error()?;
                Ok(Value::Array(answers.into()))
            }
            Err(error) => Err(error),
            Ok(_) => Ok(Value::Array(answers.into())),
        }
    }
}

impl Acknowledged<'_> {
    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        script: redis::Cmd,
        to: To,
    ) -> RedisResult<[Value; 2]> {
        let timeout = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let mut wait = cmd("WAIT");
        wait.arg(self.wanted).arg(timeout);
        let mut all = Pipeline::with_capacity(3);
        if to.asking {
            all.add_command(cmd("ASKING"));
        }
        all.add_command(script).add_command(wait);
        let answers = connection.send_packed_commands(&all, to.asking.into(), 2).await?;
        answers.try_into().map_err(|_| (redis::ErrorKind::Parse, "two answers were due").into())
    }

    /// What the script said, and how many replicas have acknowledged what it wrote, or why too few
    /// have.
    pub(crate) fn read(
        &self,
        answers: Value,
    ) -> Result<(Value, Result<u32, DriverError>), DriverError> {
        let (answer, count): (Value, Value) = parse(answers)?;
        let acknowledged = match count.extract_error() {
            Ok(count) => parse::<u32>(count)?,
            // As from a primary that became a replica: the wait has ended, and the write may or may
            // not be lost.
            Err(error) => return Ok((answer, Err(Failure::from(error).of_a_wait()))),
        };
        if acknowledged >= self.wanted {
            return Ok((answer, Ok(acknowledged)));
        }
        let (wanted, timeout) = (self.wanted, self.timeout);
        let too_few = TooFewReplicas { wanted, acknowledged, timeout };
        Ok((answer, Err(DriverError::new(ErrorKind::Unknown, too_few))))
    }
}
