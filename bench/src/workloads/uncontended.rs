use std::time::Instant;

use async_trait::async_trait;
use lockkit::driver::{Attempt, Driver as _};

use crate::load::Times;
use crate::{Client, Figure, Reading, Result, Scale, Subject, Unit, Workload};

/// Acquire and release, with nobody else about, in turn with the same requests to the driver alone:
/// the ratio is what the engine adds to them.
#[derive(Clone, Copy, Debug)]
pub struct Uncontended;

#[async_trait]
impl Workload for Uncontended {
    fn name(&self) -> &'static str {
        "uncontended"
    }

    fn about(&self) -> &'static str {
        "an acquisition with its release, one client"
    }

    async fn round(&self, subject: &Subject, scale: &Scale) -> Result<Vec<Reading>> {
        let client = subject.client().await?;
        let (name, other) = ("uncontended", "uncontended/driver");
        let lock = client.lock(name)?;
        // What is done once for a name or a connection is not part of it.
        lock.acquire().await?.release().await?;
        by_driver(&client, other).await?;
        let [mut locks, mut driver] = [Times::new()?, Times::new()?];
        let begun = Instant::now();
        loop {
            let start = Instant::now();
            lock.acquire().await?.release().await?;
            locks.note(start.elapsed())?;

            let start = Instant::now();
            by_driver(&client, other).await?;
            driver.note(start.elapsed())?;
            if begun.elapsed() >= scale.slice {
                break;
            }
        }
        let mut figures = locks.figures();
        let ratio = locks.median().as_secs_f64() / driver.median().as_secs_f64();
        figures.push(Figure::new("of driver", Unit::Ratio, ratio));
        client.close().await;
        Ok(vec![Reading::of("", figures)])
    }
}

async fn by_driver(client: &Client, name: &str) -> Result<()> {
    let claim = client.claim(name)?;
    match client.driver().try_acquire(&claim).await? {
        Attempt::Granted(_) => {
            client.driver().release(&claim).await?;
            Ok(())
        }
        other => Err(format!("nobody else is about, and yet: {other:?}").into()),
    }
}
