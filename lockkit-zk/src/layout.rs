//! Where a lock's nodes are and what they are called. `docs/zookeeper.md` describes it; a change
//! here is a change of layout.

use std::str::FromStr;

use lockkit_core::driver::OwnerId;
use lockkit_core::{LockName, Namespace};
use percent_encoding::percent_decode_str;

use crate::error::Failure;

/// Room for the longest name with every byte escaped, so that each name can be read back.
const LONGEST_SEGMENT: usize = 3 * LockName::MAX_LEN;

/// The nodes of a lock in the order in which they are served, unless there is something that is not
/// one of them.
pub(crate) type Queue = Result<Vec<String>, Failure>;

/// `ROOT/NAMESPACE/NAME/NODE`.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: String,
    dialect: Dialect,
}

/// Whose nodes they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `OWNER-SEQUENCE`.
    #[default]
    Lockkit,
    /// `_c_UUID-lock-SEQUENCE`, as `InterProcessMutex` of Apache Curator has them.
    Curator,
    /// `OWNER__lock__SEQUENCE`, as `Lock` of Kazoo has them.
    Kazoo,
}

impl FromStr for Dialect {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "lockkit" => Ok(Self::Lockkit),
            "curator" => Ok(Self::Curator),
            "kazoo" => Ok(Self::Kazoo),
            _ => Err("known are `lockkit`, `curator` and `kazoo`"),
        }
    }
}

impl Layout {
    /// Below `root`, which is empty, or begins with a slash and does not end with one.
    pub(crate) fn new(root: impl Into<String>, dialect: Dialect) -> Self {
        Self { root: root.into(), dialect }
    }

    /// A node above all others.
    pub(crate) fn top(&self) -> &str {
        if self.root.is_empty() { "/" } else { &self.root }
    }

    /// Where the locks of a namespace are.
    pub(crate) fn namespace(&self, namespace: &Namespace) -> String {
        let segment = match namespace.as_str() {
            // That node is the servers' own.
            "zookeeper" => "%7aookeeper".into(),
            _ => namespace.segment(),
        };
        [&self.root, "/", &segment].concat()
    }

    /// Where the nodes of a lock are.
    pub(crate) fn lock(&self, name: &LockName) -> String {
        let namespace = self.namespace(name.namespace());
        [&namespace, "/", &name.segment(LONGEST_SEGMENT)].concat()
    }

    /// Which lock of the namespace has its nodes at `segment`.
    pub(crate) fn name(&self, namespace: &Namespace, segment: &str) -> Option<LockName> {
        let text = percent_decode_str(segment).decode_utf8().ok()?;
        let name = LockName::new(namespace, &text).ok()?;
        (name.segment(LONGEST_SEGMENT) == segment).then_some(name)
    }

    /// What the nodes of an owner begin with. The server adds the sequence.
    pub(crate) fn prefix(&self, owner: OwnerId) -> String {
        let id = owner.to_string();
        match self.dialect {
            Dialect::Lockkit => id + "-",
            Dialect::Curator => {
                let part = |from: usize, to: usize| &id[from..to];
                let parts =
                    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-");
                ["_c_", &parts, "-lock-"].concat()
            }
            Dialect::Kazoo => id + "__lock__",
        }
    }

    /// The nodes of a lock in the order in which they are served, as far as names
    /// [tell](Self::is_told_by_names).
    pub(crate) fn queue(&self, mut nodes: Vec<String>) -> Queue {
        match self.dialect {
            Dialect::Lockkit => {
                let is_ours = |node: &str| sequence(node).is_some() && self.owner(node).is_some();
                if let Some(foreign) = nodes.iter().find(|node| !is_ours(node)) {
                    return Err(Failure::Foreign(foreign.clone()));
                }
                nodes.sort_by_cached_key(|node| sequence(node));
            }
            // Every child counts, ordered as text by what follows the last `lock-`.
            Dialect::Curator => nodes.sort_by_cached_key(|node| match node.rsplit_once("lock-") {
                Some((_, sequence)) => sequence.to_owned(),
                None => node.clone(),
            }),
            // A node that is named otherwise is not a contender.
            Dialect::Kazoo => {
                let sequence = |node: &str| {
                    let (_, text) = node.rsplit_once("__lock__")?;
                    text.parse::<i32>().is_ok().then(|| text.to_owned())
                };
                nodes.retain(|node| sequence(node).is_some());
                // As text, which gives another order at the end of the two billion.
                nodes.sort_by_cached_key(|node| sequence(node));
            }
        }
        Ok(nodes)
    }

    /// Whether the names of a queue tell its order. At the end of the two billion, the servers
    /// leave the sequence where it is, except for nodes that are made at about the same time: of
    /// these, all but the first get a sequence that begins anew below zero. Other software goes by
    /// the names even so.
    pub(crate) fn is_told_by_names(&self, nodes: &[String]) -> bool {
        let is_before = |end: i32| (0..i32::MAX).contains(&end);
        match self.dialect {
            Dialect::Lockkit => nodes.iter().filter_map(|node| sequence(node)).all(is_before),
            Dialect::Curator | Dialect::Kazoo => true,
        }
    }

    /// Whose node it is. A foreign client may name its nodes as it likes.
    pub(crate) fn owner(&self, node: &str) -> Option<OwnerId> {
        match self.dialect {
            Dialect::Lockkit => node.get(..32)?.parse().ok(),
            Dialect::Curator => {
                let id = node.strip_prefix("_c_")?.get(..36)?;
                id.replace('-', "").parse().ok()
            }
            Dialect::Kazoo => node.rsplit_once("__lock__")?.0.parse().ok(),
        }
    }
}

/// The sequence of one of lockkit's own nodes.
fn sequence(node: &str) -> Option<i32> {
    node.get(32..)?.strip_prefix('-')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use lockkit_core::driver::OwnerId;
    use lockkit_core::{LockName, Namespace};

    use super::{Dialect, Layout};

    const OWNER: &str = "0123456789abcdef0123456789abcdef";

    fn order(dialect: Dialect, nodes: &[&str]) -> Vec<String> {
        let nodes = nodes.iter().map(|node| (*node).into()).collect();
        Layout::new("", dialect).queue(nodes).unwrap()
    }

    #[test]
    fn nodes_are_where_they_were() {
        let layout = Layout::new("/apps/shop", Dialect::Lockkit);
        let name = LockName::new(&Namespace::default(), "orders/{42} ü").unwrap();
        assert_eq!(layout.lock(&name), "/apps/shop/lockkit/orders%2f%7b42%7d%20%c3%bc");
        assert_eq!(layout.top(), "/apps/shop");
        let plain = Layout::new("", Dialect::Lockkit);
        let dots = LockName::new(&Namespace::new("zookeeper").unwrap(), "..").unwrap();
        assert_eq!(plain.lock(&dots), "/%7aookeeper/%2e.");
        assert_eq!(plain.top(), "/");
    }

    #[test]
    fn nodes_are_called_as_they_were() {
        let owner: OwnerId = OWNER.parse().unwrap();
        for (dialect, prefix) in [
            (Dialect::Lockkit, "0123456789abcdef0123456789abcdef-"),
            (Dialect::Curator, "_c_01234567-89ab-cdef-0123-456789abcdef-lock-"),
            (Dialect::Kazoo, "0123456789abcdef0123456789abcdef__lock__"),
        ] {
            let layout = Layout::new("", dialect);
            assert_eq!(layout.prefix(owner), prefix);
            let node = format!("{prefix}0000000007");
            assert_eq!(layout.owner(&node), Some(owner));
            assert_eq!(layout.queue(vec![node.clone()]).unwrap(), [node]);
        }
    }

    #[test]
    fn a_name_is_read_back() {
        let layout = Layout::new("", Dialect::Lockkit);
        let namespace = Namespace::default();
        for text in ["orders/{42} ü", ".", "..", "%", "~", &"Ü".repeat(256)] {
            let name = LockName::new(&namespace, text).unwrap();
            let segment = layout.lock(&name)["/lockkit/".len()..].to_owned();
            assert_eq!(layout.name(&namespace, &segment), Some(name));
        }
        assert_eq!(layout.name(&namespace, "Orders"), None, "not as lockkit writes it");
    }

    #[test]
    fn who_came_first_is_served_first() {
        let [a, b, c] = ["f", "0", "9"].map(|digit| digit.repeat(32));
        let nodes = [format!("{a}-0000000012"), format!("{b}-0000000003"), format!("{c}-2147")];
        let [one, two, three] = nodes.each_ref().map(String::as_str);
        assert_eq!(order(Dialect::Lockkit, &[one, two, three]), [two, one, three]);
        let curator = ["_c_b-lock-0000000002", "_c_a-lock-0000000010", "x-lock-0000000001", "0"];
        assert_eq!(
            order(Dialect::Curator, &curator),
            [curator[3], curator[2], curator[0], curator[1]]
        );
        let kazoo = ["b__lock__0000000002", "a__rlock__0000000001", "z__lock__0000000001", "y"];
        assert_eq!(order(Dialect::Kazoo, &kazoo), [kazoo[2], kazoo[0]]);
    }

    #[test]
    fn names_tell_the_order_until_the_sequence_has_come_to_its_end() {
        let is_told = |dialect, sequences: &[&str]| {
            let nodes = sequences.iter().map(|sequence| format!("{OWNER}-{sequence}"));
            Layout::new("", dialect).is_told_by_names(&nodes.collect::<Vec<_>>())
        };
        assert!(is_told(Dialect::Lockkit, &["0000000000", "2147483646"]));
        for end in ["2147483647", "-2147483648", "-000000001"] {
            assert!(!is_told(Dialect::Lockkit, &["2147483646", end]), "{end}");
            assert!(is_told(Dialect::Curator, &["2147483646", end]), "they go by {end}");
        }
    }

    #[test]
    fn what_is_no_node_of_ours_is_foreign() {
        let layout = Layout::new("", Dialect::Lockkit);
        for node in ["x", "", "_c_01234567-lock-0000000001", &format!("{OWNER}__lock__0000000001")]
        {
            assert!(layout.queue(vec![node.into()]).is_err(), "{node:?} was accepted");
        }
    }
}
