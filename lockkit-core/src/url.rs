mod host;
mod shown;

use std::str::FromStr;

use percent_encoding::percent_decode_str;

pub use self::host::Host;

use crate::parameters::{COMMON_PARAMETERS, Common, LABEL, Parameter, Parameters};
use crate::{Error, Result};

/// Where a backend is and how to use it, as text: `redis://user:password@host:6379/0?ttl=10s`.
///
/// ```text
/// SCHEME:PATH[?PARAMETERS]                                       memory:jobs  sqlite:/var/lib/locks.db
/// SCHEME://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/PATH][?PARAMETERS]
/// ```
///
/// User, password, path and the values of parameters are percent-decoded. Both
/// [`Display`](std::fmt::Display) and [`Debug`](std::fmt::Debug) leave out the password and
/// whatever looks like a secret among the parameters.
///
/// ```
/// # use lockkit_core as lockkit;
/// # fn main() -> lockkit::Result<()> {
/// let url: lockkit::BackendUrl = "redis://me:secret@[::1]:7000,other/0?ttl=10s".parse()?;
/// assert_eq!(url.hosts()[0].name(), "::1");
/// assert_eq!(url.hosts()[1].port(), None);
/// assert_eq!(url.to_string(), "redis://me:***@[::1]:7000,other/0?ttl=10s");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct BackendUrl {
    scheme: String,
    has_authority: bool,
    user: Option<String>,
    password: Option<String>,
    hosts: Vec<Host>,
    path: String,
    query: Vec<(String, String)>,
    /// How many parameters, and the hosts and the path before them, may be parts of a password that
    /// has a `?` in it: `redis://me:12?3=4@host` has one host, `me`, and `redis://me:1@2?3=4@host`
    /// has `2`.
    misread: usize,
}

impl BackendUrl {
    /// The part before the first colon, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user name.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password. Not to be printed.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// The hosts, in the order given; none if the URL has only a path.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Whether `//` follows the scheme.
    pub fn has_authority(&self) -> bool {
        self.has_authority
    }

    /// The path, with the slash that it begins with, if any.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The value of one parameter, unchecked: for code that chooses the driver, which is what knows
    /// the others.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let (_, value) = self.query.iter().find(|(other, _)| other == name)?;
        Some(value)
    }

    /// The parameters, checked against the [`COMMON_PARAMETERS`] and those that the driver knows
    /// besides.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a parameter that is unknown or given twice, with a list of the known
    /// ones, and for a value of one of the [`COMMON_PARAMETERS`] that cannot be used.
    pub fn parameters(&self, known: &'static [Parameter]) -> Result<Parameters<'_>> {
        let all = || COMMON_PARAMETERS.iter().chain(known);
        for (at, (name, _)) in self.query.iter().enumerate() {
            let problem = if !all().any(|parameter| parameter.name == name) {
                "unknown"
            } else if self.query[..at].iter().any(|(earlier, _)| earlier == name) {
                "given twice"
            } else {
                continue;
            };
            let names: Vec<_> = all().map(|parameter| parameter.name).collect();
            let which = match at < self.misread {
                true => {
                    "in a password `?` is written `%3F`, and in a value `@` is `%40`; a parameter"
                        .into()
                }
                false => format!("parameter `{name}`"),
            };
            return Err(Error::config(
                format!("{self}"),
                format!("{which} is {problem}; known are: {}", names.join(", ")),
            ));
        }
        let parameters = self.unchecked();
        // These are for the locker, which is made only when the driver has been connected.
        Common::of(&parameters)?;
        Ok(parameters)
    }

    /// The parameters, which were checked when the driver was connected.
    pub(crate) fn unchecked(&self) -> Parameters<'_> {
        Parameters::of(self)
    }

    /// The URL of one of this URL's hosts, with another scheme and only those parameters that
    /// `known` or [`COMMON_PARAMETERS`] names: for a driver over several drivers.
    #[must_use]
    pub fn of_host(&self, scheme: &str, host: &Host, known: &[Parameter]) -> Self {
        let mut url = self.clone();
        url.scheme = scheme.into();
        url.hosts = vec![host.clone()];
        let is_known =
            |name: &str| COMMON_PARAMETERS.iter().chain(known).any(|known| known.name == name);
        let misread = url.query.iter().take(url.misread);
        url.misread = misread.filter(|(name, _)| is_known(name)).count();
        url.query.retain(|(name, _)| is_known(name));
        url
    }

    /// The URL with this user, as it is: nothing in it is percent-encoded. For names and passwords
    /// that come from somewhere else.
    ///
    /// ```
    /// # fn main() -> lockkit_core::Result<()> {
    /// # use lockkit_core::BackendUrl;
    /// let password = "what %40 the vault / gave out";
    /// let url: BackendUrl = "postgres://db.internal/locks".parse()?;
    /// let url = url.with_user("jobs")?.with_password(password)?;
    /// assert_eq!(url.password(), Some(password));
    /// assert_eq!(url.to_string(), "postgres://jobs:***@db.internal/locks");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if there is a NUL in it, which protocols end a text with.
    pub fn with_user(self, user: impl Into<String>) -> Result<Self> {
        let user = self.without_nul("user", user.into())?;
        Ok(Self { user: Some(user).filter(|user| !user.is_empty()), ..self })
    }

    /// The URL with this password, as it is: nothing in it is percent-encoded. See
    /// [`with_user`](Self::with_user).
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if there is a NUL in it, which protocols end a text with.
    pub fn with_password(self, password: impl Into<String>) -> Result<Self> {
        let password = self.without_nul("password", password.into())?;
        Ok(Self { password: Some(password), ..self })
    }

    fn without_nul(&self, what: &str, text: String) -> Result<String> {
        match text.contains('\0') {
            true => Err(self.error(format!("a {what} is text without NUL"))),
            false => Ok(text),
        }
    }

    /// An error that says what is wrong with this URL.
    pub fn error(&self, reason: impl Into<String>) -> Error {
        Error::config(self.to_string(), reason)
    }
}

impl FromStr for BackendUrl {
    type Err = Error;

    /// Error messages do not repeat the text, since it may hold a password.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |reason: &str| Error::config("backend URL", reason);
        let decode = |text: &str| match percent_decode_str(text).decode_utf8() {
            _ if has_broken_escape(text) => Err(bad("`%` itself is written `%25`")),
            Ok(text) if !text.contains('\0') => Ok(text.into_owned()),
            _ => Err(bad("a percent-encoded part is not UTF-8 text without NUL")),
        };
        if text.chars().any(|c| c.is_control() || c == '#') {
            return Err(bad("control characters and `#` are written percent-encoded"));
        }
        let (scheme, rest) = text.split_once(':').ok_or_else(|| bad("it begins with no scheme"))?;
        let scheme = scheme.to_ascii_lowercase();
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.bytes().all(legal) {
            return Err(bad("it begins with no scheme"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (Some(authority), path)
            }
            None => (None, rest),
        };
        let (user_info, hosts) = match authority {
            Some(authority) => match authority.rsplit_once('@') {
                Some((user_info, hosts)) => (Some(user_info), hosts),
                None => (None, authority),
            },
            None => (None, ""),
        };
        // The first hosts would be taken for a part of the password.
        if user_info.and_then(|it| it.split_once('@')).is_some_and(|(_, rest)| rest.contains(',')) {
            return Err(bad(
                "user and password stand once, before all hosts; in them `@` is written `%40`",
            ));
        }
        // The rest of the password would be shown.
        if !hosts.is_empty() && path.contains('@') {
            return Err(bad("in a password `/` is written `%2F`, and in a path `@` is `%40`"));
        }
        if !hosts.is_empty() && path.contains(['&', '=']) {
            return Err(bad("parameters begin with `?`; in a path `&` is `%26`, and `=` is `%3D`"));
        }
        let (user, password) = match user_info {
            Some(user_info) => match user_info.split_once(':') {
                Some((user, password)) => (Some(decode(user)?), Some(decode(password)?)),
                None => (Some(decode(user_info)?), None),
            },
            None => (None, None),
        };
        let hosts = match hosts {
            "" => Vec::new(),
            hosts => hosts.split(',').map(str::parse).collect::<Result<_, _>>().map_err(bad)?,
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        // As it stands: what is written `%40` is no end of a password.
        let is_misread = |pair: &str| match pair.split_once('=') {
            Some((name, _)) if name == LABEL.name => false,
            _ => pair.contains('@'),
        };
        let misread = pairs.clone().enumerate().filter(|(_, pair)| is_misread(pair)).last();
        let misread = misread.map_or(0, |(at, _)| at + 1);
        let pairs = pairs.map(|pair| {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| bad("a parameter has no `=`"))?;
            Ok((decode(name)?, decode(value)?))
        });
        Ok(Self {
            scheme,
            has_authority: authority.is_some(),
            user: user.filter(|user| !user.is_empty()),
            password,
            hosts,
            path: decode(path)?,
            query: pairs.collect::<Result<_>>()?,
            misread,
        })
    }
}

/// Whether a `%` is not followed by two hexadecimal digits.
fn has_broken_escape(text: &str) -> bool {
    text.split('%').skip(1).any(|rest| {
        let digits = rest.bytes().take(2).take_while(u8::is_ascii_hexdigit);
        digits.count() < 2
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{BackendUrl, Parameter};
    use crate::parameters::CALL_LIMIT;

    fn url(text: &str) -> BackendUrl {
        text.parse().unwrap()
    }

    #[test]
    fn a_host_of_several_has_a_url_of_its_own() {
        const KNOWN: &[Parameter] = &[CALL_LIMIT];
        let all = url("redlock://me:pw@a:1,b/2?ttl=1s&max_ttl=2s&call_limit=3s");
        let one = all.of_host("redis", &all.hosts()[1], KNOWN);
        assert_eq!(one, url("redis://me:pw@b/2?ttl=1s&call_limit=3s"));
    }

    #[test]
    fn a_url_has_the_parts_that_drivers_need() {
        let full = url("Redis+Sentinel://me:p%40%2Fss@a:1,[::1]:2,c/7?ttl=1m%2030s&namespace=x");
        assert_eq!(full.scheme(), "redis+sentinel");
        assert_eq!((full.user(), full.password()), (Some("me"), Some("p@/ss")));
        assert_eq!(
            full.hosts().iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["a:1", "[::1]:2", "c"]
        );
        assert_eq!(full.path(), "/7");
        let parameters = full.parameters(&[]).unwrap();
        assert_eq!(parameters.duration("ttl").unwrap(), Some(Duration::from_secs(90)));
        assert_eq!(parameters.text("namespace"), Some("x"));

        assert_eq!(url("memory:").path(), "");
        assert_eq!(url("memory:jobs").path(), "jobs");
        assert_eq!(url("sqlite:/var/a%20b.db").path(), "/var/a b.db");
        assert_eq!(url("sqlite:///var/x.db").path(), "/var/x.db");
        assert_eq!(url("redis://:pw@h").password(), Some("pw"));
        assert_eq!(url("redis://:pw@h").user(), None);
    }

    #[test]
    fn what_a_vault_gives_out_is_taken_as_it_is() {
        let odd = "%41/?#@:,";
        let filled = url("redis://h/0").with_user(odd).unwrap().with_password(odd).unwrap();
        assert_eq!((filled.user(), filled.password()), (Some(odd), Some(odd)));
        let parsed = url(&filled.to_string().replace("***", "%2541%2F%3F%23%40%3A%2C"));
        assert_eq!((parsed.user(), parsed.password()), (Some(odd), Some(odd)));
        assert_eq!(url("redis://me@h").with_user("").unwrap().user(), None);
        // A text that ends early would be a shorter password, or another message.
        let cut = url("redis://h").with_password("hunter\u{0}2").unwrap_err().to_string();
        assert!(cut.contains("password") && !cut.contains("hunter"), "{cut}");
        assert!(url("redis://h").with_user("a\u{0}b").is_err());
    }

    #[test]
    fn secrets_are_not_printed() {
        let secret = url("redis://me:hunter2@h/0?ttl=1s&sentinel_password=hunter3&pw=hunter4");
        let shown = "redis://me:***@h/0?ttl=1s&sentinel_password=***&pw=***";
        assert_eq!(secret.to_string(), shown);
        assert_eq!(format!("{secret:?}"), format!("{shown:?}"));
        let error = secret.parameters(&[]).unwrap_err().to_string();
        assert!(!error.contains("hunter"), "{error}");
        let without_its_colon = url("redis://hunter2@h/0?tll=1s");
        assert_eq!(without_its_colon.to_string(), "redis://***@h/0?tll=1s");
        let error = without_its_colon.parameters(&[]).unwrap_err().to_string();
        assert!(error.starts_with("redis://***@h/0"), "{error}");
        for bad in [
            "redis://me:hunter2@[h/0",
            "redis://me:hunter2@h:x",
            "redis://me:hunter2@h#",
            "redis://me:12/hunter2@h/0",
            "redis://me:hunter2%@h/0",
            "redis://me:hunter2@a,me:hunter2@b",
            "redis://me:p@ss/hunter2@h/0",
        ] {
            let error = format!("{:?}", bad.parse::<BackendUrl>().unwrap_err());
            assert!(!error.contains("hunter2"), "{error}");
        }
        // Forgotten: `//`, one of the slashes, the scheme, `?`, `%3F` for a question mark. Or there is a
        // slash too many, or a letter too few.
        for misread in [
            "redis:me:hunter2@h",
            "redis:/me:hunter2@h/0",
            "redis:///me:hunter2@h/0",
            "me:hunter2@h",
            "jdbc:postgres://me:hunter2@h/db",
            "redis+sentinel://h/main&password=hunter2",
            "redis://me:hunter2@34?5=6@h",
            "redis://me:12@hunter2?3=4@h",
            "redis://hunter2?3=4@h",
            "redis://me:12?k=hunter2@h",
            "redis://me:12@34?k=hunter2@h",
            "redis://me:12?k=hunter2&l=m@h",
            "redis://me:12?hunter2=l@h",
            "redis://me:12?hunter2@h/0?ttl=1s",
            "redis://me:12?ttl=hunter2@h",
            "redis://me:12/hunter2?k=l@h",
            "redis:me:12/hunter2?k=l@h",
            "redis+sentinel://h/main?sentinel_pasword=hunter2",
        ] {
            let url = misread.parse::<BackendUrl>();
            let shown = format!("{url:?} {:?}", url.as_ref().map(|url| url.parameters(&[])));
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        let encoded = "postgres://u:pw@h/orders?tll=1s&sslrootcert=/etc/me%40corp.pem";
        assert_eq!(url(encoded).to_string(), encoded.replace("pw", "***"));
        let error = url(encoded).parameters(&[]).unwrap_err().to_string();
        assert!(error.contains("`tll` is unknown"), "{error}");
        for path in ["sqlite:/srv/app@1/locks.db", "sqlite:./app@1.db", "sqlite:/a?label=me@h"] {
            assert!(url(path).to_string().starts_with(path.split('?').next().unwrap()), "{path}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for bad in [
            "",
            "redis",
            "/a/b",
            "1x:a",
            "r d:a",
            "redis://a:b:c",
            "redis://a,,b",
            "redis://a:99999",
            "redis://h?ttl",
            "m:%ff",
            "m:%",
            "m:%5",
            "m:%zz",
            "redis://me:50%off@h",
            "etcd://me:p@a:1,me:p@b:2",
            "m:a%00b",
            "m:a\nb",
        ] {
            assert!(bad.parse::<BackendUrl>().is_err(), "{bad:?} was accepted");
        }
    }
}
