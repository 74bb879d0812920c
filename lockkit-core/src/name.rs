use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::error::beginning;
use crate::{Error, hex};

/// A valid lock name, in its namespace.
///
/// A name is any non-empty UTF-8 text of at most 512 bytes without control characters. It is
/// compared byte by byte: case matters and nothing is normalised. Two different names do not
/// exclude each other, on any driver, unless two hashes of 64 bits happen to be the same, by which
/// sessions of PostgreSQL know them; the same name always does. Where other software takes the same locks
/// (`keys=exact`, `dialect=plain` and the like), both this and which names there are depend on what
/// that software knows a lock by: the driver's page says how.
#[derive(Clone)]
pub struct LockName(Arc<Parts>);

struct Parts {
    namespace: Namespace,
    name: Box<str>,
    /// Some drivers need it for every request.
    digest: [u8; 32],
}

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 512;

    /// Checks `name` and puts it in `namespace`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] if the name is empty, too long, or has a control character.
    pub fn new(namespace: &Namespace, name: &str) -> Result<Self, Error> {
        let reason = if name.is_empty() {
            "it is empty"
        } else if name.len() > Self::MAX_LEN {
            "it is longer than 512 bytes"
        } else if name.chars().any(char::is_control) {
            "it has a control character"
        } else {
            return Ok(Self(Arc::new(Parts {
                namespace: namespace.clone(),
                name: name.into(),
                digest: digest(namespace, name),
            })));
        };
        Err(Error::InvalidName { name: name.into(), reason })
    }

    /// The name as the user wrote it.
    pub fn as_str(&self) -> &str {
        &self.0.name
    }

    /// The namespace that the name lives in.
    pub fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    /// The name as one path segment of at most `max` bytes, for backends that cannot take arbitrary
    /// text. `[a-z0-9_-]` and dots, except for a leading one, stand for themselves, and every other
    /// byte is `%xx`. A segment that would be longer is cut short and ends in `~` and the 64
    /// hexadecimal digits of [`digest`](Self::digest).
    ///
    /// Different names have different segments, even where the backend ignores case. The namespace
    /// is not part of a segment, except through the digest.
    ///
    /// # Panics
    ///
    /// If `max` is below 80, which leaves no room for the digest.
    pub fn segment(&self, max: usize) -> String {
        assert!(max >= 80, "a segment needs room for the digest");
        // Most names stand for themselves, and every request has one.
        if self.as_str().len() <= max && is_plain(self.as_str()) {
            return self.as_str().into();
        }
        let mut segment = String::with_capacity(max);
        for (at, byte) in self.as_str().bytes().enumerate() {
            let start = segment.len();
            push_escaped(&mut segment, at, byte);
            if segment.len() > max {
                segment.truncate(start.min(max - 65));
                push_hex(&mut segment, "~", &self.digest());
                return segment;
            }
        }
        segment
    }

    /// SHA-256 of the namespace, a zero byte, and the name.
    pub fn digest(&self) -> [u8; 32] {
        self.0.digest
    }

    fn parts(&self) -> (&str, &Namespace) {
        (self.as_str(), self.namespace())
    }
}

fn digest(namespace: &Namespace, name: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(namespace.as_str());
    hash.update([0]);
    hash.update(name);
    hash.finalize().into()
}

impl PartialEq for LockName {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for LockName {}

impl Hash for LockName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialOrd for LockName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

/// Appends what the byte at this position of a name is in a segment.
fn push_escaped(to: &mut String, at: usize, byte: u8) {
    match is_literal(at, byte) {
        true => to.push(byte.into()),
        false => push_hex(to, "%", &[byte]),
    }
}

fn is_literal(at: usize, byte: u8) -> bool {
    match byte {
        b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => true,
        b'.' => at > 0,
        _ => false,
    }
}

/// Whether the text is its own segment.
fn is_plain(text: &str) -> bool {
    text.bytes().enumerate().all(|(at, byte)| is_literal(at, byte))
}

fn push_hex(to: &mut String, mark: &str, bytes: &[u8]) {
    to.push_str(mark);
    to.extend(bytes.iter().flat_map(|&byte| hex::digits(byte)).map(char::from));
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}", self.as_str(), self.namespace())
    }
}

/// Keeps the locks of one application apart from those of another on the same backend.
///
/// It has 1 to 64 characters of `[A-Za-z0-9._-]`. The default is `lockkit`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Checks `namespace`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it is empty, longer than 64 characters, or has characters other than
    /// `[A-Za-z0-9._-]`.
    pub fn new(namespace: &str) -> Result<Self, Error> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match namespace.len() {
            1..=64 if namespace.bytes().all(legal) => Ok(Self(namespace.into())),
            _ => Err(Error::config(
                "namespace",
                format!("{} is not 1 to 64 characters of [A-Za-z0-9._-]", beginning(namespace)),
            )),
        }
    }

    /// The namespace as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The namespace as one path segment of at most 192 bytes, by the rule of
    /// [`LockName::segment`].
    pub fn segment(&self) -> String {
        if is_plain(&self.0) {
            return self.as_str().into();
        }
        let mut segment = String::new();
        self.0.bytes().enumerate().for_each(|(at, byte)| push_escaped(&mut segment, at, byte));
        segment
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl FromStr for Namespace {
    type Err = Error;

    fn from_str(namespace: &str) -> Result<Self, Error> {
        Self::new(namespace)
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("lockkit".into())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{LockName, Namespace};

    fn name(text: &str) -> LockName {
        LockName::new(&Namespace::default(), text).unwrap()
    }

    #[test]
    fn names_that_no_backend_could_keep_apart_are_refused() {
        for bad in ["", "a\nb", "a\0b", "\u{85}", &"x".repeat(513)] {
            assert!(LockName::new(&Namespace::default(), bad).is_err(), "{bad:?} was accepted");
        }
        for bad in ["", "a b", "a/b", "{a}", "ä", &"x".repeat(65)] {
            assert!(Namespace::new(bad).is_err(), "{bad:?} was accepted");
        }
    }

    /// The layout of what is stored in backends: a change here is a change of layout.
    #[test]
    fn segments_are_as_they_were() {
        for (text, segment) in [
            ("orders-42", "orders-42"),
            ("orders/42", "orders%2f42"),
            ("Orders", "%4frders"),
            (".", "%2e"),
            ("..", "%2e."),
            ("a.b", "a.b"),
            ("50%", "50%25"),
            ("~a", "%7ea"),
            ("é", "%c3%a9"),
            (" ", "%20"),
        ] {
            assert_eq!(name(text).segment(200), segment);
        }
        let long = "x".repeat(201);
        let digest = "dd8656d33cbde244106ac14bd41360678862639f97b65ec873f51091d2a3dbf3";
        assert_eq!(name(&long).segment(200), format!("{}~{digest}", "x".repeat(135)));
        assert_eq!(name(&"x".repeat(200)).segment(200), "x".repeat(200));
    }

    /// As above.
    #[test]
    fn segments_of_namespaces_are_as_they_were() {
        for (text, segment) in
            [("lockkit", "lockkit"), ("A.b_c-1", "%41.b_c-1"), (".", "%2e"), ("..", "%2e.")]
        {
            assert_eq!(Namespace::new(text).unwrap().segment(), segment);
        }
        assert_eq!(Namespace::new(&"Z".repeat(64)).unwrap().segment().len(), 192);
    }

    #[test]
    fn segments_keep_different_names_apart_even_without_case() {
        let mut seen = HashMap::new();
        let long = "y".repeat(199);
        for text in ["a", "A", "%41", "%61", "a/", "a%2f", "/a", ".a", "%2ea", "ä", "a\u{308}"]
            .map(String::from)
            .into_iter()
            .chain((0..3).map(|n| format!("{long}{}", "z".repeat(n))))
            .chain((0..3).map(|n| format!("{long}/{n}")))
        {
            let segment = name(&text).segment(200);
            assert!(segment.len() <= 200);
            let previous = seen.insert(segment.to_lowercase(), text.clone());
            assert_eq!(previous, None, "{text:?} is not kept apart");
        }
    }

    #[test]
    fn namespaces_are_part_of_the_digest() {
        let other = Namespace::new("other").unwrap();
        assert_ne!(name("a").digest(), LockName::new(&other, "a").unwrap().digest());
    }
}
