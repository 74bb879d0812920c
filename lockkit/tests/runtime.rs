//! What `connect` says where it cannot work.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use lockkit::Error;

#[test]
fn without_a_runtime_there_is_no_connection() {
    let connecting = pin!(lockkit::connect("memory:"));
    let Poll::Ready(outcome) = connecting.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits for what never comes");
    };
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("runtime"), "{error}");
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_server_that_cannot_be_connected_is_named_by_its_url() {
    use std::error::Error as _;

    // Nobody listens there.
    let url = "redis://me:hunter2@127.0.0.1:1/0?ttl=10s";
    let error = lockkit::connect(url).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let at = error.source().unwrap();
    assert_eq!(at.to_string(), "redis://me:***@127.0.0.1:1/0?ttl=10s");
    assert!(at.source().unwrap().to_string().contains("refused"), "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
}
