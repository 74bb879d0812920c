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
