use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// A number that rises with every grant of a lock.
///
/// Hand it to the resource that the lock protects, and let the resource refuse a smaller one
/// than it has seen: only this keeps out a holder that was paused for longer than its lease
/// without noticing ([`FencedCell`](crate::FencedCell) is that check, in process).
///
/// Tokens are comparable within one lock name on one backend. They are never 0 and never greater
/// than `i64::MAX`, so that they fit a signed column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(NonZeroU64);

impl FencingToken {
    /// The token with this number, unless it is 0 or greater than `i64::MAX`.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) if number.get() <= i64::MAX as u64 => Some(Self(number)),
            _ => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// For a signed column.
impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        // No token is greater.
        Self::try_from(token.get()).unwrap_or(Self::MAX)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FencingToken {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits).and_then(Self::new).ok_or(ParseTokenError(()))
    }
}

/// The text is not the decimal form of a fencing token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fencing token is a decimal number from 1 to {max}", max = i64::MAX)]
pub struct ParseTokenError(());

#[cfg(test)]
mod tests {
    use super::FencingToken;

    #[test]
    fn tokens_are_positive_and_fit_a_signed_column() {
        assert_eq!(FencingToken::new(0), None);
        assert_eq!(FencingToken::new(i64::MAX as u64 + 1), None);
        let largest = FencingToken::new(i64::MAX as u64).unwrap();
        assert_eq!(largest.to_string().parse(), Ok(largest));
        assert_eq!(i64::from(largest), i64::MAX);
        for text in ["", "0", "-1", "+1", "1 ", "9223372036854775808", "one"] {
            assert!(text.parse::<FencingToken>().is_err(), "{text:?} was accepted");
        }
    }
}
