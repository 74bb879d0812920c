//! `etcdctl lock`: a process for each hold, which lets go when its command ends.

use std::process::Stdio;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::{Client, Peer, Release};
use crate::Result;

pub struct Etcdctl {
    endpoints: String,
    lease: Duration,
}

pub async fn connect(peer: &Peer) -> Result<Etcdctl> {
    let client = Etcdctl { endpoints: peer.hosts().join(","), lease: peer.lease };
    let status = client.command(&["endpoint", "health"]).stdout(Stdio::null()).status().await?;
    if !status.success() {
        return Err("etcdctl finds no healthy server".into());
    }
    Ok(client)
}

impl Etcdctl {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(&self.endpoints).args(words);
        command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        command
    }
}

impl Client for Etcdctl {
    fn acquire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let seconds = self.lease.as_secs().max(1).to_string();
            let mut child = self
                .command(&[
                    "lock",
                    "--ttl",
                    &seconds,
                    name,
                    "--",
                    "sh",
                    "-c",
                    "echo $$; exec sleep 3600",
                ])
                .stdout(Stdio::piped())
                .spawn()?;
            let output = child.stdout.take().ok_or("no output")?;
            let id = BufReader::new(output).lines().next_line().await?;
            let id = id.ok_or("etcdctl ended without the lock")?;
            let release: Release = Box::pin(async move {
                // It lets go when its command has ended, and waits for that.
                Command::new("kill").arg(id).status().await?;
                child.wait().await?;
                Ok(())
            });
            Ok(release)
        })
    }
}
