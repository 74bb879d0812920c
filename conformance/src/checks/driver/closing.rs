use std::time::Duration;

use lockkit_core::driver::{Claim, Driver as _};

use crate::connection::Connection;
use crate::context::{Context, Verdict};

pub(in crate::checks) async fn a_connection_may_be_closed_again(context: &Context) -> Verdict {
    let (connection, other) = context.pair().await?;
    let claim = context.long_claim()?;
    connection.take(&claim).await?;
    connection.release(&claim).await?;
    for _ in 0..3 {
        close(context, &connection).await?;
    }
    other.take(&context.long_claim()?).await?;
    Ok(())
}

pub(in crate::checks) async fn requests_end_after_closing(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let [held, other] = ["held-@", "other-@"].map(|shape| context.name(shape));
    let held = Claim::new(held?, context.ttl());
    let other = context.queued(Claim::new(other?, context.ttl()));
    connection.take(&held).await?;
    close(context, &connection).await?;
    // Some drivers connect anew, and that is as good as an error.
    for claim in [&held, &other] {
        let requests = async {
            _ = connection.renew(claim).await;
            _ = connection.try_acquire(claim).await;
            _ = connection.release(claim).await;
        };
        context.promptly("the answers of a connection that was closed", requests).await?;
    }
    close(context, &connection).await?;
    // What these requests may have left would end by itself, and stay as a trace with some backends.
    let tidier = context.connect().await?;
    for claim in [&held, &other] {
        tidier.release(claim).await?;
    }
    Ok(())
}

/// Ends a connection in the time that the engine gives it.
async fn close(context: &Context, connection: &Connection) -> Verdict {
    const LIMIT: Duration = Duration::from_secs(5);
    context.within(LIMIT, "the end of a connection", connection.close()).await
}
