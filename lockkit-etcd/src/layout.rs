//! Where a lock's keys are, what they are called and what they contain. `docs/etcd.md` describes
//! this; a change here is a change of layout.

use std::str::FromStr;
use std::sync::Arc;

use etcd_client::KeyValue;
use lockkit_core::driver::OwnerId;
use lockkit_core::{Label, LockName, Namespace};
use percent_encoding::percent_decode_str;

use crate::error::Failure;

/// What all of lockkit's own keys begin with. Another layout takes another root.
const ROOT: &str = "lockkit/v1/";

/// The longest segment of a legal name: nothing is ever cut, so that a key tells the name of its
/// lock.
const LONGEST_SEGMENT: usize = 3 * LockName::MAX_LEN;

/// Whose keys they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `lockkit/v1/NAMESPACE/NAME/LEASE`.
    #[default]
    Lockkit,
    /// `NAMESPACE/NAME/LEASE`, as `etcdctl lock NAMESPACE/NAME` has them.
    Etcdctl,
}

impl FromStr for Dialect {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "lockkit" => Ok(Self::Lockkit),
            "etcdctl" => Ok(Self::Etcdctl),
            _ => Err("known are `lockkit` and `etcdctl`"),
        }
    }
}

impl Dialect {
    /// The prefix of all keys of a namespace, and of no other key of a lock.
    pub(crate) fn prefix_of(self, namespace: &Namespace) -> String {
        let root = match self {
            Self::Lockkit => ROOT,
            Self::Etcdctl => "",
        };
        [root, &namespace.segment(), "/"].concat()
    }

    /// The lock of the namespace whose queue this key is in.
    pub(crate) fn name_at(self, key: &[u8], namespace: &Namespace) -> Option<LockName> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix_of(namespace))?;
        let (segment, _) = rest.split_once('/')?;
        let name = percent_decode_str(segment).decode_utf8().ok()?;
        let name = LockName::new(namespace, &name).ok()?;
        // The same text can be encoded in other ways; such a key is not ours.
        (name.segment(LONGEST_SEGMENT) == segment).then_some(name)
    }

    /// Who has this key, and the text in place of the owner's label.
    pub(crate) fn owner_of(self, kv: &KeyValue) -> Result<(OwnerId, &str), Failure> {
        if let Some(told) = Value::read(kv.value()) {
            return Ok(told);
        }
        match (self, stand_in(kv.create_revision()).parse()) {
            (Self::Etcdctl, Ok(owner)) => Ok((owner, "")),
            _ => Err(Failure::Foreign("a key in the queue is none of lockkit's")),
        }
    }
}

/// Foreign clients have no owner ids. This one serves to tell them apart, even by its first digits,
/// which people take to name it (Knuth's multiplicative hash).
fn stand_in(created: i64) -> String {
    let hash = u128::from(created.unsigned_abs());
    let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    format!("{hash:032x}")
}

/// The keys of a lock: its queue, with a key for each claim that holds or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    prefix: String,
}

impl Queue {
    pub(crate) fn of(name: &LockName, dialect: Dialect) -> Self {
        let (namespace, segment) =
            (dialect.prefix_of(name.namespace()), name.segment(LONGEST_SEGMENT));
        // No segment has a slash in it, so no lock's prefix is within another's.
        Self { prefix: [&namespace, &*segment, "/"].concat() }
    }

    /// The prefix of all keys of the queue, and of no other key.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key that is put with this lease. Leases are used again, and so are the keys: until its
    /// history is compacted, the server visits each key that ever was in the queue.
    pub(crate) fn key(&self, lease: i64) -> Arc<str> {
        format!("{}{lease:x}", self.prefix).into()
    }
}

/// What a key contains: the owner, and its label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value(Box<[u8]>);

impl Value {
    pub(crate) fn new(owner: OwnerId, label: &Label) -> Self {
        Self([&*owner.to_string(), " ", label.as_str()].concat().into_bytes().into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The owner, and the text in place of its label.
    fn read(value: &[u8]) -> Option<(OwnerId, &str)> {
        let (owner, label) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        Some((owner.parse().ok()?, label))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use lockkit_core::driver::OwnerId;
    use lockkit_core::{Label, LockName, Namespace};

    use super::{Dialect, Queue, Value, stand_in};

    #[test]
    fn keys_are_as_they_were() {
        let name = LockName::new(&Namespace::new("Shop").unwrap(), "orders/{42} ü").unwrap();
        let lease = 0x694d_73ab_0c1d_2e3f;
        for (dialect, key) in [
            (Dialect::Lockkit, "lockkit/v1/%53hop/orders%2f%7b42%7d%20%c3%bc/694d73ab0c1d2e3f"),
            (Dialect::Etcdctl, "%53hop/orders%2f%7b42%7d%20%c3%bc/694d73ab0c1d2e3f"),
        ] {
            assert_eq!(&*Queue::of(&name, dialect).key(lease), key);
        }
        assert!(Queue::of(&name, Dialect::Lockkit).key(0xf).ends_with("/f"), "as Go prints it");
    }

    #[test]
    fn values_are_as_they_were_and_can_be_read() {
        let owner: OwnerId = "00112233445566778899aabbccddeeff".parse().unwrap();
        let label = Label::new("web 3").unwrap();
        let value = Value::new(owner, &label);
        assert_eq!(value.as_bytes(), b"00112233445566778899aabbccddeeff web 3");
        assert_eq!(Value::read(value.as_bytes()), Some((owner, "web 3")));
        for foreign in ["", "web 3", "00112233445566778899aabbccddeeff"] {
            assert_eq!(Value::read(foreign.as_bytes()), None, "{foreign}");
        }
    }

    #[test]
    fn who_has_no_owner_is_told_apart_by_eight_digits() {
        let owners: HashSet<String> = (1..10_000).map(|at| stand_in(at)[..8].into()).collect();
        assert_eq!(owners.len(), 9_999);
        stand_in(i64::MAX).parse::<OwnerId>().unwrap();
    }

    #[test]
    fn a_lock_is_known_by_its_keys_alone() {
        let namespace = Namespace::new("a.b").unwrap();
        let longest = "ü".repeat(LockName::MAX_LEN / 2);
        for dialect in [Dialect::Lockkit, Dialect::Etcdctl] {
            for text in ["orders/42", "a", "a/b", "%61", "..", " ", "~", &longest] {
                let queue = Queue::of(&LockName::new(&namespace, text).unwrap(), dialect);
                let key = queue.key(1);
                assert_eq!(dialect.name_at(key.as_bytes(), &namespace).unwrap().as_str(), text);
                assert_eq!(dialect.name_at(key.as_bytes(), &Namespace::default()), None);
            }
        }
        for foreign in ["lockkit/v1/a.b/%61/x", "lockkit/v1/a.b/a", "lockkit/v1/a.b//x", "a"] {
            assert_eq!(Dialect::Lockkit.name_at(foreign.as_bytes(), &namespace), None, "{foreign}");
        }
    }

    #[test]
    fn no_queue_is_within_another() {
        let names = ["a", "a/b", "a/", "ab", "A", "a%2fb"];
        for dialect in [Dialect::Lockkit, Dialect::Etcdctl] {
            let queues = names.map(|text| {
                Queue::of(&LockName::new(&Namespace::default(), text).unwrap(), dialect)
            });
            for (at, one) in queues.iter().enumerate() {
                for other in &queues[at + 1..] {
                    assert!(!one.prefix().starts_with(other.prefix()), "{one:?} {other:?}");
                    assert!(!other.prefix().starts_with(one.prefix()), "{one:?} {other:?}");
                }
            }
        }
    }
}
