use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// A number that rises with every grant of a lock.
///
/// Hand it to the resource that the lock protects, and let the resource refuse a smaller number
/// than it has already seen: only this keeps out a holder that was paused for longer than its lease
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

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.get()
    }
}

impl TryFrom<u64> for FencingToken {
    type Error = ParseTokenError;

    fn try_from(number: u64) -> Result<Self, ParseTokenError> {
        Self::new(number).ok_or(ParseTokenError(()))
    }
}

/// From a signed column.
impl TryFrom<i64> for FencingToken {
    type Error = ParseTokenError;

    fn try_from(number: i64) -> Result<Self, ParseTokenError> {
        u64::try_from(number).map_err(|_| ParseTokenError(()))?.try_into()
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

/// The number, or the decimal text, is not a fencing token.
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
        assert_eq!(i64::MAX.try_into(), Ok(largest));
        assert_eq!(u64::from(largest).try_into(), Ok(largest));
        for number in [0, -1, i64::MIN] {
            assert!(FencingToken::try_from(number).is_err(), "{number} was accepted");
        }
        assert!(FencingToken::try_from(u64::MAX).is_err());
        for text in ["", "0", "-1", "+1", "1 ", "9223372036854775808", "one"] {
            assert!(text.parse::<FencingToken>().is_err(), "{text:?} was accepted");
        }
    }
}
