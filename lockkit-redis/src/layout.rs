use lockkit_core::driver::OwnerId;
use lockkit_core::{LockName, Namespace};

/// The keys of a lock, and the channels of its news. `docs/redis.md` describes them; a change here
/// is a change of layout.
///
/// All begin with the same hash tag, so that a cluster keeps them on one node. The tag is not that
/// of the lock but that of its bucket, one of 1,024: the token counter must outlive the lock, and a
/// counter per lock would stay behind for every name ever used.
#[derive(Debug)]
pub(crate) struct Layout {
    /// All keys, one after the other: they are made for every request, so in one piece.
    text: String,
    /// Where each key ends in the text.
    ends: [usize; 5],
    /// The length of the tag that each begins with: `{NAMESPACE:BUCKET}`.
    tag: usize,
}

/// Where one locker hears its news, together with the bucket: 16 hexadecimal digits, which no two
/// lockers share.
#[derive(Debug)]
pub(crate) struct Inbox(String);

impl Inbox {
    pub(crate) fn new() -> Self {
        let mut digits = OwnerId::random().to_string();
        digits.truncate(16);
        Self(digits)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Layout {
    pub(crate) fn of(name: &LockName) -> Self {
        let [high, low, ..] = name.digest();
        let bucket = (u16::from_be_bytes([high, low]) % 1024).to_string();
        let (namespace, name) = (name.namespace().as_str(), name.as_str());
        // Neither a namespace nor a number has a brace in it.
        let tag = ["{", namespace, ":", &bucket, "}"].concat();
        let mut text = String::with_capacity(5 * (tag.len() + ":deadlines:".len() + name.len()));
        let ends = [":lock:", ":queue:", ":unordered:", ":deadlines:", ":bucket"].map(|kind| {
            text.push_str(&tag);
            text.push_str(kind);
            if kind != ":bucket" {
                text.push_str(name);
            }
            text.len()
        });
        Self { text, ends, tag: tag.len() }
    }

    /// The pattern with which a `SCAN` finds the keys of all locks that are held in a namespace. It
    /// finds others, too.
    pub(crate) fn pattern(namespace: &Namespace) -> String {
        // No character of a namespace has a meaning in a pattern, nor has a brace.
        format!("{{{namespace}:*}}:lock:*")
    }

    /// The lock of the namespace whose key this is.
    pub(crate) fn lock_at(key: &[u8], namespace: &Namespace) -> Option<LockName> {
        let (_, name) = std::str::from_utf8(key).ok()?.split_once("}:lock:")?;
        let name = LockName::new(namespace, name).ok()?;
        (Self::of(&name).lock().as_bytes() == key).then_some(name)
    }

    /// The keys that the scripts for taking, releasing, breaking and looking are given.
    pub(crate) fn keys(&self) -> [&str; 5] {
        [self.lock(), self.queue(), self.unordered(), self.deadlines(), self.bucket()]
    }

    /// A further key of the lock, besides those of this dialect.
    pub(crate) fn sibling(&self, kind: &str, name: &LockName) -> String {
        format!("{tag}:{kind}:{name}", tag = self.tag(), name = name.as_str())
    }

    /// The channel on which a locker hears that the lock is free or was handed to it: `free OWNER`,
    /// or `granted OWNER TOKEN`. All locks of the bucket share it.
    pub(crate) fn channel(&self, inbox: &Inbox) -> String {
        [self.tag(), ":inbox:", inbox.as_str()].concat()
    }

    fn tag(&self) -> &str {
        &self.text[..self.tag]
    }

    /// A hash: `owner`, `token`, `label`, and `since`, the server's time of the grant in
    /// milliseconds. Its expiry is the end of the lease.
    pub(crate) fn lock(&self) -> &str {
        &self.text[..self.ends[0]]
    }

    /// A sorted set of those who wait for their turn: `OWNER INBOX LABEL`, or `OWNER?INBOX LABEL`
    /// for one who is only told and never handed anything. They are sorted by the server's time of
    /// their arrival in microseconds, or by a later one if somebody who came before has that time
    /// or a later one.
    fn queue(&self) -> &str {
        &self.text[self.ends[0]..self.ends[1]]
    }

    /// A sorted set, in the same way, of those who wait and may be overtaken. Whoever was told that
    /// the lock is free and found it taken, or was passed over, comes before all others.
    fn unordered(&self) -> &str {
        &self.text[self.ends[1]..self.ends[2]]
    }

    /// A sorted set of all who wait, by the server's time at which their place ends, in
    /// milliseconds.
    fn deadlines(&self) -> &str {
        &self.text[self.ends[2]..self.ends[3]]
    }

    /// A hash for all locks of the bucket: `layout`, which is 1, and `token`, the last one given.
    fn bucket(&self) -> &str {
        &self.text[self.ends[3]..]
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::{LockName, Namespace};

    use super::{Inbox, Layout};

    #[test]
    fn keys_are_as_they_were() {
        let name = LockName::new(&Namespace::default(), "orders/{42} ü").unwrap();
        let layout = Layout::of(&name);
        assert_eq!(layout.lock(), "{lockkit:362}:lock:orders/{42} ü");
        assert_eq!(layout.queue(), "{lockkit:362}:queue:orders/{42} ü");
        assert_eq!(layout.deadlines(), "{lockkit:362}:deadlines:orders/{42} ü");
        assert_eq!(layout.unordered(), "{lockkit:362}:unordered:orders/{42} ü");
        let inbox = Inbox("0123456789abcdef".into());
        assert_eq!(layout.channel(&inbox), "{lockkit:362}:inbox:0123456789abcdef");
        assert_eq!(Inbox::new().as_str().len(), 16);
        assert_eq!(layout.bucket(), "{lockkit:362}:bucket");
    }

    #[test]
    fn a_lock_is_known_by_its_key_alone() {
        let namespace = Namespace::new("a.b").unwrap();
        for text in ["orders/{42} ü", "}:lock:}:lock:", "*?[a]\\", " ", "{a.b:7}:lock:x"] {
            let name = LockName::new(&namespace, text).unwrap();
            let key = Layout::of(&name).lock().to_owned();
            assert_eq!(Layout::lock_at(key.as_bytes(), &namespace), Some(name));
            assert_eq!(Layout::lock_at(key.as_bytes(), &Namespace::default()), None);
            assert_eq!(Layout::lock_at(&key.as_bytes()[1..], &namespace), None);
        }
        let queue = Layout::of(&LockName::new(&namespace, "}:lock:x").unwrap()).queue().to_owned();
        assert_eq!(Layout::lock_at(queue.as_bytes(), &namespace), None, "{queue}");
        assert_eq!(Layout::lock_at(b"{a.b:9}:lock:\xff", &namespace), None);
    }

    #[test]
    fn buckets_are_few_and_evenly_used() {
        let mut used = [0; 1024];
        for number in 0..20_480 {
            let name = LockName::new(&Namespace::default(), &number.to_string()).unwrap();
            let layout = Layout::of(&name);
            let number =
                layout.bucket().strip_prefix("{lockkit:").unwrap().strip_suffix("}:bucket");
            used[number.unwrap().parse::<usize>().unwrap()] += 1;
        }
        assert!(used.iter().all(|&names| (1..60).contains(&names)), "{used:?}");
    }
}
