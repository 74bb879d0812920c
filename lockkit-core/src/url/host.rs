use std::fmt;
use std::str::FromStr;

/// A host of a [`BackendUrl`](super::BackendUrl).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    name: String,
    port: Option<u16>,
}

impl Host {
    /// The name or address; an IPv6 address without its brackets.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port, if one was given.
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

impl FromStr for Host {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or("a `[` in it is not closed")?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().map_err(|_| "a port is a number up to 65535")?)
            }
            None if port.is_empty() => None,
            _ => return Err("a port is a number; an IPv6 address stands in brackets"),
        };
        let is_legal = |c: char| c.is_alphanumeric() || "-._:%".contains(c);
        if name.is_empty() || !name.chars().all(is_legal) {
            return Err("a host is empty or has an illegal character");
        }
        Ok(Self { name: name.into(), port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]", self.name)?,
            false => f.write_str(&self.name)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}
