use lockkit_core::{LockName, Namespace};

/// The keys of a lock, and the channel of its news. `docs/redis.md` describes them; a change here
/// is a change of layout.
///
/// All begin with the same hash tag, so that a cluster keeps them on one node. The tag is not that
/// of the lock but of its bucket, one of 1,024, since the token counter must outlive the lock and
/// a counter per lock would stay behind for every name ever used.
#[derive(Debug)]
pub(crate) struct Layout {
    /// All of them, one after the other: made for every request, so in one piece.
    text: String,
    /// Where in the text each ends.
    ends: [usize; 5],
}

impl Layout {
    pub(crate) fn of(name: &LockName) -> Self {
        let [high, low, ..] = name.digest();
        let bucket = (u16::from_be_bytes([high, low]) % 1024).to_string();
        let (namespace, name) = (name.namespace().as_str(), name.as_str());
        let mut text = String::with_capacity(5 * (namespace.len() + name.len() + 20));
        let ends = [":lock:", ":queue:", ":deadlines:", ":news:", ":bucket"].map(|kind| {
            // `{NAMESPACE:BUCKET}`: neither has a brace in it.
            ["{", namespace, ":", &bucket, "}", kind].iter().for_each(|part| text.push_str(part));
            if kind != ":bucket" {
                text.push_str(name);
            }
            text.len()
        });
        Self { text, ends }
    }

    /// What a `SCAN` must look for, to find the keys of all locks that are held in a namespace. It
    /// finds others, too.
    pub(crate) fn pattern(namespace: &Namespace) -> String {
        // No character of a namespace means anything in a pattern, nor does a brace.
        format!("{{{namespace}:*}}:lock:*")
    }

    /// Which lock of the namespace it is whose key this is.
    pub(crate) fn lock_at(key: &[u8], namespace: &Namespace) -> Option<LockName> {
        let (_, name) = std::str::from_utf8(key).ok()?.split_once("}:lock:")?;
        let name = LockName::new(namespace, name).ok()?;
        (Self::of(&name).lock().as_bytes() == key).then_some(name)
    }

    /// What the scripts for taking, releasing, breaking and looking are given.
    pub(crate) fn keys(&self) -> [&str; 4] {
        [self.lock(), self.queue(), self.deadlines(), self.bucket()]
    }

    /// A further key of the lock, beside those that this dialect has.
    pub(crate) fn sibling(&self, kind: &str, name: &LockName) -> String {
        let tag = self.bucket().trim_end_matches(":bucket");
        format!("{tag}:{kind}:{name}", name = name.as_str())
    }

    /// A hash: `owner`, `token`, `label`, and `since`, the server's time of the grant in
    /// milliseconds. Its expiry is the end of the lease.
    pub(crate) fn lock(&self) -> &str {
        &self.text[..self.ends[0]]
    }

    /// A sorted set of those who wait for their turn, `OWNER LABEL`, by the server's time of their
    /// arrival in microseconds; later where somebody came before who has that time or a later one.
    fn queue(&self) -> &str {
        &self.text[self.ends[0]..self.ends[1]]
    }

    /// The same, by the server's time at which their place ends, in milliseconds.
    fn deadlines(&self) -> &str {
        &self.text[self.ends[1]..self.ends[2]]
    }

    /// `released`, or `granted OWNER TOKEN`.
    pub(crate) fn channel(&self) -> &str {
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

    use super::Layout;

    #[test]
    fn keys_are_as_they_were() {
        let name = LockName::new(&Namespace::default(), "orders/{42} ü").unwrap();
        let layout = Layout::of(&name);
        assert_eq!(layout.lock(), "{lockkit:362}:lock:orders/{42} ü");
        assert_eq!(layout.queue(), "{lockkit:362}:queue:orders/{42} ü");
        assert_eq!(layout.deadlines(), "{lockkit:362}:deadlines:orders/{42} ü");
        assert_eq!(layout.channel(), "{lockkit:362}:news:orders/{42} ü");
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
