//! Names that backends have confused. An `@` stands for what makes a name fresh.

use lockkit_core::LockName;

/// Statements and patterns of the languages that backends speak.
pub(crate) const HOSTILE: &[&str] = &[
    "@'; DROP TABLE locks; --",
    "@'; DELETE FROM lockkit_locks; --",
    "@' OR '1'='1",
    "@\" OR \"\"=\"",
    "@\\'; --",
    "@`; --",
    "@$1",
    "@?",
    "@:name",
    "@%s",
    "@%",
    "@_",
    "@*",
    "*@",
    "%@",
    "_@",
    "lock_@",
    "lock-@%",
    "lock-@*",
    "@[a-z]",
    "@]]",
    "@') return 1 --",
    "@', redis.call('FLUSHALL')) --",
    "KEYS[1]@",
    "@}{",
    "{@",
    "@ EX 1",
    "@\"]]> <x/>",
    "@$(rm -rf .)",
    "@`rm -rf .`",
    "@; rm -rf .",
    "@ && true",
    "@/../../../x",
    "../@",
    "@%00",
    "@%2e%2e%2f",
    "@\\0",
    "@\\r\\nDEL x",
    "@\u{202e}kcol",
];

/// Texts of which pairs differ little. Each is different from all others, and so are the names made
/// of them.
pub(crate) fn awkward() -> Vec<String> {
    let mut names = Vec::new();
    // Lengths at which columns, keys and file names are cut off, differing in the last byte.
    const TAG: usize = 12;
    for length in [32, 63, 64, 65, 127, 128, 191, 192, 193, 200, 201, 254, 255, 256, 511, 512] {
        debug_assert!(length <= LockName::MAX_LEN);
        for last in ["x", "y"] {
            names.push(format!("@{}{last}", "x".repeat(length - TAG - 1)));
        }
    }
    // As long as can be, and longer where such letters are encoded.
    for last in ["\u{fc}", "\u{f6}"] {
        names.push(format!("@{}{last}", "\u{fc}".repeat((LockName::MAX_LEN - TAG) / 2 - 1)));
    }
    names.extend(ALIKE.iter().copied().map(String::from));
    // Every printable character, at the end and at the beginning.
    for c in (' '..='~').filter(|c| *c != '@') {
        names.push(format!("@a{c}"));
    }
    for c in (' '..='~').filter(|c| !c.is_ascii_alphanumeric() && *c != '@') {
        names.push(format!("{c}@"));
    }
    names
}

/// One line, one confusion.
const ALIKE: &[&str] = &[
    "@",
    "@@", // a prefix
    "lock-@",
    "Lock-@",
    "LOCK-@",
    "lock-@ ",
    " lock-@",
    "lock_@",
    "lock.@", // case, blanks
    "stra\u{df}e-@",
    "strasse-@",
    "STRASSE-@", // folding
    "\u{e9}-@",
    "e\u{301}-@",
    "e-@",
    "E-@", // composition, accents
    "\u{ef}-@",
    "i\u{308}-@",
    "i-@",
    "\u{131}-@",
    "\u{130}-@",
    "I-@", // Turkish
    "\u{212b}-@",
    "\u{c5}-@",
    "A\u{30a}-@", // compatibility
    "\u{fb01}-@",
    "fi-@", // ligatures
    "\u{ff41}-@",
    "a-@",       // width
    "\u{430}-@", // looks like a Latin a
    "\u{3a3}-@",
    "\u{3c3}-@",
    "\u{3c2}-@", // three sigmas
    "a\u{200b}-@",
    "a\u{200d}-@",
    "a\u{feff}-@",
    "a\u{a0}-@",
    "a\u{ad}-@", // invisible
    "\u{1f512}-@",
    "\u{1f513}-@",
    "\u{10ffff}-@", // beyond 16 bits
    "1-@",
    "01-@",
    "1.0-@",
    "1e0-@",
    "+1-@",
    "-1-@",
    "0x1-@", // numbers
    "null-@",
    "NULL-@",
    "nil-@",
    "true-@", // words of languages
    "a/@",
    "a//@",
    "a/./@",
    "a/../a/@",
    "/a/@",
    "a\\@",
    "@/a/",
    "@/a", // paths
    "@.lock",
    "@.lck",
    "@.tmp",
    "@~",
    "@.",
    "@..",
    "..@", // file names
    "a%2f@",
    "a%2F@",
    "a%252f@",
    "a+@",
    "a%20@",
    "a @",
    "a\\u0020@", // encodings
    "{@}",
    "{@}a",
    "a{@}",
    "{}@",
    "{a}@",
    "{a}{@}", // hash tags
    "a:@",
    "a::@",
    "@:token",
    "@:queue",
    "@:fence",
    "@:channel",
    "@:0",
    "@:1", // keys
    "lockkit:@",
    "lockkit:lockkit:@",
    "conformance:@",
    "conformance/@", // prefixes
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use lockkit_core::{LockName, Namespace};

    use super::{HOSTILE, awkward};

    #[test]
    fn two_hundred_names_are_valid_and_pairwise_different() {
        let names: HashSet<_> = awkward()
            .into_iter()
            .map(|shape| shape.replace('@', "0123456789ab"))
            .inspect(|name| {
                LockName::new(&Namespace::default(), name).unwrap();
            })
            .collect();
        assert_eq!(names.len(), awkward().len());
        assert!(names.len() >= 200, "{}", names.len());
        assert!(names.iter().any(|name| name.len() == LockName::MAX_LEN));
    }

    #[test]
    fn hostile_names_are_valid() {
        for shape in HOSTILE {
            LockName::new(&Namespace::default(), shape).unwrap();
        }
    }
}
