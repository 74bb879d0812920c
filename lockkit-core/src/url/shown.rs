//! A URL as people may see it: without the password, and without what may be one.

use std::fmt;

use percent_encoding::percent_encode_byte;

use super::BackendUrl;
use crate::parameters::LABEL;

impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme, if self.has_authority { "//" } else { "" })?;
        let user = encoded(self.user.as_deref().unwrap_or(""), "/?:@");
        match (&self.user, &self.password) {
            (_, Some(_)) => write!(f, "{user}:***@")?,
            // It may be the password, if the colon before it was forgotten.
            (Some(_), None) => f.write_str("***@")?,
            (None, None) => (),
        }
        match self.misread {
            0 => {
                for (at, host) in self.hosts.iter().enumerate() {
                    write!(f, "{}{host}", if at > 0 { "," } else { "" })?;
                }
            }
            _ => f.write_str("***")?,
        }
        match misread_password(&self.path).filter(|_| self.hosts.is_empty()) {
            _ if self.misread > 0 => (),
            Some(rest) => write!(f, "***@{}", encoded(rest, "?"))?,
            None if self.hosts.is_empty() => f.write_str(&encoded(&self.path, "?"))?,
            None => f.write_str(&encoded(&self.path, "?@&="))?,
        }
        for (at, (name, value)) in self.query.iter().enumerate() {
            f.write_str(if at > 0 { "&" } else { "?" })?;
            // Without a user, what is at an `@` of the label may be one.
            let is_hidden = looks_secret(name) || self.user.is_none() && value.contains('@');
            match encoded(name, "&=") {
                _ if at < self.misread => f.write_str("***")?,
                name if is_hidden => write!(f, "{name}=***")?,
                // What is written `@` would be misread as the end of a password, but in a label.
                name if name == LABEL.name => write!(f, "{name}={}", encoded(value, "&"))?,
                name => write!(f, "{name}={}", encoded(value, "&@"))?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// The text as it stands in a URL where the `reserved` characters have a meaning, so that it is one
/// line.
fn encoded(text: &str, reserved: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || "%#".contains(c) || reserved.contains(c) {
            encoded.extend(c.encode_utf8(&mut [0; 4]).bytes().map(percent_encode_byte));
        } else {
            encoded.push(c);
        }
    }
    encoded
}

/// What follows what may be a user and password, where `//` or the scheme was forgotten or has one
/// slash too many. A path in a file system may have an `@`, too.
fn misread_password(path: &str) -> Option<&str> {
    let (before, rest) = path.rsplit_once('@')?;
    let is_path = before.starts_with(['/', '.']) && !before.contains(':');
    (!is_path).then_some(rest)
}

fn looks_secret(parameter: &str) -> bool {
    let parameter = parameter.to_ascii_lowercase();
    ["pas", "pw", "secret", "token", "key", "auth", "cred"]
        .iter()
        .any(|word| parameter.contains(word))
}
