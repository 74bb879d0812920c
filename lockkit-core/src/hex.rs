//! Hexadecimal digits, by hand: the standard library takes several times as long, and every request
//! has some.

/// The two lower-case digits of a byte.
pub(crate) fn digits(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}
