use lockkit_core::driver::OwnerId;
use lockkit_core::{LockName, Namespace};
use percent_encoding::percent_decode_str;

/// What all keys begin with. `docs/etcd.md` describes them; a change here is a change of layout,
/// and takes another root.
const ROOT: &str = "lockkit/v1/";

/// The longest segment of a legal name: nothing is ever cut, so that a key tells its name.
const LONGEST_SEGMENT: usize = 3 * LockName::MAX_LEN;

/// The keys of a lock: its queue, with a key for each who holds or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    prefix: String,
}

impl Queue {
    pub(crate) fn of(name: &LockName) -> Self {
        let (namespace, segment) = (name.namespace().segment(), name.segment(LONGEST_SEGMENT));
        // No segment has a slash in it, so that no lock's prefix holds another's.
        Self { prefix: [ROOT, &namespace, "/", &segment, "/"].concat() }
    }

    /// What all keys of the queue begin with, and no other key.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key of one who holds or waits.
    pub(crate) fn key(&self, owner: OwnerId) -> String {
        format!("{}{owner}", self.prefix)
    }

    /// Whose key of this queue it is.
    pub(crate) fn owner_at(&self, key: &[u8]) -> Option<OwnerId> {
        std::str::from_utf8(key.strip_prefix(self.prefix.as_bytes())?).ok()?.parse().ok()
    }
}

/// What all keys of a namespace begin with, and no other key.
pub(crate) fn prefix_of(namespace: &Namespace) -> String {
    [ROOT, &namespace.segment(), "/"].concat()
}

/// What all keys begin with that the driver reads or writes.
pub(crate) fn root() -> &'static str {
    ROOT
}

/// Which lock of the namespace it is whose queue this key is in.
pub(crate) fn name_at(key: &[u8], namespace: &Namespace) -> Option<LockName> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(&prefix_of(namespace))?;
    let (segment, _) = rest.split_once('/')?;
    let name = percent_decode_str(segment).decode_utf8().ok()?;
    let name = LockName::new(namespace, &name).ok()?;
    // The same text can be encoded otherwise; that is no key of ours.
    key.starts_with(Queue::of(&name).prefix().as_bytes()).then_some(name)
}

#[cfg(test)]
mod tests {
    use lockkit_core::driver::OwnerId;
    use lockkit_core::{LockName, Namespace};

    use super::{Queue, name_at};

    #[test]
    fn keys_are_as_they_were() {
        let name = LockName::new(&Namespace::new("Shop").unwrap(), "orders/{42} ü").unwrap();
        let owner: OwnerId = "00112233445566778899aabbccddeeff".parse().unwrap();
        let key = "lockkit/v1/%53hop/orders%2f%7b42%7d%20%c3%bc/00112233445566778899aabbccddeeff";
        assert_eq!(Queue::of(&name).key(owner), key);
    }

    #[test]
    fn a_lock_is_known_by_its_keys_alone() {
        let namespace = Namespace::new("a.b").unwrap();
        let owner = OwnerId::random();
        let longest = "ü".repeat(LockName::MAX_LEN / 2);
        for text in ["orders/42", "a", "a/b", "%61", "..", " ", "~", &longest] {
            let queue = Queue::of(&LockName::new(&namespace, text).unwrap());
            let key = queue.key(owner);
            assert_eq!(name_at(key.as_bytes(), &namespace).unwrap().as_str(), text);
            assert_eq!(queue.owner_at(key.as_bytes()), Some(owner));
            assert_eq!(name_at(key.as_bytes(), &Namespace::default()), None);
        }
        for foreign in ["lockkit/v1/a.b/%61/x", "lockkit/v1/a.b/a", "lockkit/v1/a.b//x", "a"] {
            assert_eq!(name_at(foreign.as_bytes(), &namespace), None, "{foreign}");
        }
    }

    #[test]
    fn no_queue_is_within_another() {
        let names = ["a", "a/b", "a/", "ab", "A", "a%2fb"];
        let queues =
            names.map(|text| Queue::of(&LockName::new(&Namespace::default(), text).unwrap()));
        for (at, one) in queues.iter().enumerate() {
            for other in &queues[at + 1..] {
                assert!(!one.prefix().starts_with(other.prefix()), "{one:?} {other:?}");
                assert!(!other.prefix().starts_with(one.prefix()), "{one:?} {other:?}");
            }
        }
    }
}
