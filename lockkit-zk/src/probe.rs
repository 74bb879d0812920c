//! How long the sessions are that a server grants, found out by asking for one and ending it in the
//! same breath: the client library would leave a server early that takes its time for a short one.

use std::io;
use std::time::Duration;

/// The operation that ends a session.
const CLOSE_SESSION: i32 = -11;
/// The length of a session's password, which is empty in a request for a new one.
const PASSWORD: usize = 16;

/// Asks for a session of that length, and ends it.
pub(crate) fn request(wish: Duration) -> Vec<u8> {
    let (version, last_seen, session, is_read_only) = (0_i32, 0_i64, 0_i64, 0_u8);
    let wish = i32::try_from(wish.as_millis()).unwrap_or(i32::MAX);
    let mut begin = Vec::new();
    begin.extend(version.to_be_bytes());
    begin.extend(last_seen.to_be_bytes());
    begin.extend(wish.to_be_bytes());
    begin.extend(session.to_be_bytes());
    begin.extend((PASSWORD as i32).to_be_bytes());
    begin.extend([0; PASSWORD]);
    begin.push(is_read_only);
    let number = 1_i32;
    let end = [number.to_be_bytes(), CLOSE_SESSION.to_be_bytes()].concat();
    let message = |content: Vec<u8>| [&(content.len() as i32).to_be_bytes(), &*content].concat();
    [message(begin), message(end)].concat()
}

/// The length of the session, from the answer.
///
/// # Errors
///
/// There is none in it.
pub(crate) fn granted(answer: &[u8]) -> io::Result<Duration> {
    // After the length of the message and the version.
    let millis = answer.get(8..12).and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes);
    let millis = millis.and_then(|millis| u64::try_from(millis).ok()).filter(|&millis| millis > 0);
    let refused = || io::Error::new(io::ErrorKind::UnexpectedEof, "no session was granted");
    millis.map(Duration::from_millis).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{granted, request};

    #[test]
    fn a_session_is_asked_for_and_ended() {
        let sent = request(Duration::from_secs(1));
        assert_eq!(sent.len(), 4 + 45 + 4 + 8);
        assert_eq!((&sent[..4], &sent[16..20]), (&[0, 0, 0, 45][..], &[0, 0, 0x03, 0xe8][..]));
        assert_eq!(sent[49..], [0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5]);
        assert_eq!(request(Duration::MAX)[16..20], i32::MAX.to_be_bytes());
    }

    #[test]
    fn what_was_granted_is_read() {
        let answer = |millis: i32| [&[0; 8], &millis.to_be_bytes()[..], &[0; 29]].concat();
        assert_eq!(granted(&answer(4000)).unwrap(), Duration::from_secs(4));
        for refusal in [&answer(0)[..], &answer(-1), &answer(4000)[..11], b""] {
            assert!(granted(refusal).is_err());
        }
    }
}
