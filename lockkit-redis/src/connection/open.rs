use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use lockkit_core::driver::{DriverError, Run};
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::node;
use crate::request::{Request, Stage, To};
use crate::spares::Spares;

/// A connection that works, as far as we know. It is closed once it has been replaced and the last
/// call on it has ended.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: u64,
    pub(super) endpoint: Endpoint,
    pub(super) connection: MultiplexedConnection,
    /// Whether sentinels have made another server the primary since; `None` if there are no
    /// sentinels.
    pub(super) deposed: Option<watch::Sender<bool>>,
    pub(super) spares: Spares,
    /// Which run of the server it leads to, once somebody has asked.
    pub(super) run: OnceLock<Run>,
    /// Whether somebody is finding out if it answers at all.
    pub(super) is_probed: AtomicBool,
    pub(super) _running: AbortOnDropHandle<()>,
}

impl Open {
    /// Sends a request and waits for its answer, for as long as it takes. `stage` tells how far the
    /// request has come.
    pub(super) async fn send<R: Request>(
        &self,
        request: &R,
        stage: &Stage,
        asking: bool,
    ) -> Result<Value, Failure> {
        let to = To { mode: self.endpoint.mode(), asking };
        // Pinned here, since it is large, and would be copied to where it is awaited.
        let mut answering = pin!(async {
            if !R::BLOCKS {
                stage.sends();
                let answer = request.send(&mut self.connection.clone(), to).await;
                return answer.map_err(Failure::of_what_was_sent);
            }
            let permit = self.spares.permit(stage).await?;
            stage.connects();
            let lending = self.spares.lend(permit, &self.endpoint, self.run.get());
            let mut lent = Box::pin(lending).await?;
            // For its turn, or for the connection.
            stage.has_waited();
            stage.sends();
            let answer = request.send(lent.connection(), to).await;
            lent.give_back();
            answer.map_err(Failure::of_what_was_sent)
        });
        let Some(deposed) = &self.deposed else { return answering.await };
        let mut deposed = deposed.subscribe();
        tokio::select! {
            biased;
            answer = &mut answering => answer,
            _ = deposed.wait_for(|&deposed| deposed) => Err(Failure::Deposed),
        }
    }

    pub(super) fn follows_sentinels(&self) -> bool {
        self.deposed.is_some()
    }

    /// Asks which run of the server it leads to, and remembers it if the server tells.
    pub(super) async fn ask_run(&self) -> Result<Result<Run, DriverError>, Failure> {
        let mut connection = self.connection.clone();
        let info = connection.send_packed_command(&redis::cmd("INFO")).await?.extract_error()?;
        let mut ask_settings = redis::cmd("CONFIG");
        ask_settings.arg("GET").arg(node::SYNC_SETTINGS);
        let settings = connection.send_packed_command(&ask_settings).await;
        let settings = match settings.and_then(Value::extract_error).map_err(Failure::from) {
            Ok(settings) => Some(settings),
            Err(failure) if failure.is_end() => return Err(failure),
            // The user lacks the right to ask, or the server the command.
            Err(_) => None,
        };
        let run = node::run(info, settings);
        if let Ok(run) = &run {
            _ = self.run.set(run.clone());
        }
        Ok(run)
    }
}
