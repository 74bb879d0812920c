//! The dialect `plain`: the key is the name of the lock, and whoever sets it where it is missing
//! holds the lock until the key is deleted or expires. Most libraries for locks on Redis work this
//! way.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkit_core::driver::{
    Attempt, Claim, DriverError, ErrorKind, Grant, OwnerId, Release, Renewal,
};
use lockkit_core::driver::{Taken, Vouch};
use lockkit_core::{FencingToken, Holder, LockName, LockStatus, Namespace};

use crate::driver::{RedisDriver, milliseconds, parse, unintelligible};
use crate::inspect::foreign;
use crate::layout::Layout;
use crate::script::plain::{BREAK, LOOK, RELEASE, RENEW, SEARCH, TAKE};

/// The keys of a lock. `docs/redis.md` describes them; a change here is a change of layout.
#[derive(Debug)]
pub(crate) struct PlainLayout {
    /// A string, `OWNER.TOKEN` if the holder is lockkit. Its expiry is the end of the lease.
    lock: String,
    /// A string, `OWNER SINCE LABEL`, for those who look. It ends with the lease.
    holder: String,
    /// The layout of the dialect `lockkit`, which has the bucket.
    layout: Layout,
}

impl PlainLayout {
    pub(crate) fn of(name: &LockName) -> Self {
        let layout = Layout::of(name);
        let holder = layout.sibling("holder", name);
        Self { lock: prefix(name.namespace()) + name.as_str(), holder, layout }
    }

    pub(crate) fn keys(&self) -> [&str; 3] {
        let [.., bucket] = self.layout.keys();
        [&self.lock, bucket, &self.holder]
    }
}

/// What stands before a name: nothing for the default namespace, since other software knows no
/// namespaces.
fn prefix(namespace: &Namespace) -> String {
    match *namespace == Namespace::default() {
        true => String::new(),
        false => format!("{namespace}:"),
    }
}

/// The pattern with which a `SCAN` finds the keys of all locks in a namespace. It finds others,
/// too.
pub(crate) fn pattern(namespace: &Namespace) -> String {
    // No character of a namespace has a meaning in a pattern.
    prefix(namespace) + "*"
}

/// Whether the lock's key could be one of those that this driver keeps beside the locks of some
/// namespace: `{NAMESPACE:BUCKET}:KIND` and what follows.
fn is_reserved(name: &LockName) -> bool {
    let own = || {
        let (tag, kind) = name.as_str().strip_prefix('{')?.split_once("}:")?;
        let (namespace, bucket) = tag.rsplit_once(':')?;
        let is_bucket = bucket.parse::<u16>().is_ok_and(|bucket| bucket < 1024);
        let kinds = ["bucket", "holder", "lock", "queue", "unordered", "deadlines"];
        let is_kind = kinds.contains(&kind.split_once(':').map_or(kind, |(kind, _)| kind));
        Some(is_bucket && is_kind && Namespace::new(namespace).is_ok())
    };
    *name.namespace() == Namespace::default() && own().unwrap_or(false)
}

fn check(name: &LockName) -> Result<(), DriverError> {
    match is_reserved(name) {
        true => {
            let what = "a name that looks like one of the driver's own keys";
            Err(DriverError::new(ErrorKind::Unsupported, what))
        }
        false => Ok(()),
    }
}

pub(crate) async fn try_acquire(
    driver: &RedisDriver,
    claim: &Claim,
) -> Result<Attempt, DriverError> {
    check(claim.name())?;
    let (layout, owner) = (PlainLayout::of(claim.name()), claim.owner().to_string());
    let (keys, ttl) = (layout.keys(), milliseconds(claim));
    let answer =
        driver.call(claim, TAKE.on(&keys, &[&owner, &ttl, claim.label().as_str()])).await?;
    let (granted, token, remaining): (bool, Option<String>, i64) = parse(answer)?;
    if granted {
        let token: FencingToken = token.unwrap_or_default().parse().map_err(unintelligible)?;
        return Ok(Attempt::Granted(Grant::new().token(token)));
    }
    Ok(Attempt::Taken(match milliseconds_left(remaining) {
        Some(remaining) => Taken::new().free_in(remaining),
        None => Taken::new(),
    }))
}

pub(crate) async fn renew(driver: &RedisDriver, claim: &Claim) -> Result<Renewal, DriverError> {
    let (layout, owner) = (PlainLayout::of(claim.name()), claim.owner().to_string());
    let (keys, ttl) = (layout.keys(), milliseconds(claim));
    match parse(driver.call(claim, RENEW.on(&keys, &[&owner, &ttl])).await?)? {
        true => Ok(Renewal::Held(Vouch::FromRequest)),
        false => Ok(Renewal::Lost),
    }
}

pub(crate) async fn release(driver: &RedisDriver, claim: &Claim) -> Result<Release, DriverError> {
    let (layout, owner) = (PlainLayout::of(claim.name()), claim.owner().to_string());
    match parse(driver.call(claim, RELEASE.on(&layout.keys(), &[&owner])).await?)? {
        true => Ok(Release::Freed),
        false => Ok(Release::NotHeld),
    }
}

pub(crate) async fn look(driver: &RedisDriver, name: &LockName) -> Result<LockStatus, DriverError> {
    check(name)?;
    let layout = PlainLayout::of(name);
    let status = LockStatus::free(name.clone());
    Ok(match parse::<Option<Told>>(driver.read(LOOK.on(&layout.keys(), &[])).await?)? {
        Some(hold) => status.held_by(holder(hold)?),
        None => status,
    })
}

pub(crate) async fn break_hold(
    driver: &RedisDriver,
    name: &LockName,
    owner: Option<OwnerId>,
) -> Result<Option<Holder>, DriverError> {
    check(name)?;
    let layout = PlainLayout::of(name);
    let owner = owner.map(|owner| owner.to_string()).unwrap_or_default();
    let answer = driver.write(BREAK.on(&layout.keys(), &[&owner])).await?;
    parse::<Option<Told>>(answer)?.map(holder).transpose()
}

/// The locks of the namespace that have one of these keys and are held by lockkit. What others hold
/// looks like any other data.
pub(crate) async fn locks_at(
    driver: &RedisDriver,
    keys: &[Vec<u8>],
    namespace: &Namespace,
) -> Result<BTreeSet<LockName>, DriverError> {
    let prefix = prefix(namespace);
    let name = |key: &str| LockName::new(namespace, key.strip_prefix(&prefix)?).ok();
    // Keys other than a lock's need not be text.
    let keys: Vec<&str> = keys.iter().filter_map(|key| std::str::from_utf8(key).ok()).collect();
    let keys: Vec<&str> = keys.into_iter().filter(|key| name(key).is_some()).collect();
    if keys.is_empty() {
        return Ok(BTreeSet::new());
    }
    let found: Vec<String> = parse(driver.read(SEARCH.on(&[], &keys)).await?)?;
    Ok(found.iter().filter_map(|key| name(key)).collect())
}

/// A hold as the scripts report it: owner, token, label, milliseconds since the grant, milliseconds
/// left or -1.
type Told = (String, Option<String>, Option<String>, Option<u64>, i64);

fn holder((owner, token, label, since, remaining): Told) -> Result<Holder, DriverError> {
    let mut holder = Holder::new(owner.parse().map_err(foreign)?);
    let label = match token {
        Some(token) => {
            holder = holder.with_token(token.parse().map_err(foreign)?);
            label.unwrap_or_default()
        }
        None => "not lockkit".into(),
    };
    holder = holder.labelled(label);
    if let Some(since) = since {
        holder = holder.with_held_for(Duration::from_millis(since));
    }
    Ok(match milliseconds_left(remaining) {
        Some(remaining) => holder.with_remaining(remaining),
        None => holder,
    })
}

/// `None` for what never expires.
fn milliseconds_left(remaining: i64) -> Option<Duration> {
    u64::try_from(remaining).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use lockkit_core::{LockName, Namespace};

    use super::{PlainLayout, is_reserved};

    #[test]
    fn no_lock_has_a_key_that_the_driver_has_beside_others() {
        let is_reserved = |namespace: &Namespace, name: &str| {
            is_reserved(&LockName::new(namespace, name).unwrap())
        };
        let (default, other) = (Namespace::default(), Namespace::new("shop").unwrap());
        let beside = PlainLayout::of(&LockName::new(&default, "a").unwrap());
        let [_, bucket, holder] = beside.keys();
        assert!(is_reserved(&default, bucket) && is_reserved(&default, holder));
        assert!(is_reserved(&default, "{shop:1023}:bucket"));
        for name in ["{user:5}:a", "{user:2000}:lock:a", "{lockkit}:bucket", "lockkit:5", "a"] {
            assert!(!is_reserved(&default, name), "{name}");
        }
        assert!(!is_reserved(&other, bucket), "the namespace stands before it");
    }

    #[test]
    fn keys_are_as_they_were() {
        let keys = |namespace: &Namespace| {
            let name = LockName::new(namespace, "orders/{42} ü").unwrap();
            PlainLayout::of(&name).keys().map(str::to_owned)
        };
        let expected =
            ["orders/{42} ü", "{lockkit:362}:bucket", "{lockkit:362}:holder:orders/{42} ü"];
        assert_eq!(keys(&Namespace::default()), expected);
        assert_eq!(keys(&Namespace::new("shop").unwrap())[0], "shop:orders/{42} ü");
    }
}
