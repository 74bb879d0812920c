use crate::endpoint::Endpoint;
use crate::error::Failure;

/// How many slots keys are spread over.
pub(crate) const SLOTS: usize = 16_384;

/// The slot that a key is in.
pub(crate) fn slot(key: &str) -> u16 {
    crc16(hashed(key.as_bytes())) % SLOTS as u16
}

/// What the slot of a key comes from: its hash tag, which is what stands between the first opening
/// brace and the next closing one, if anything does
/// (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags>).
pub(crate) fn hashed(key: &[u8]) -> &[u8] {
    let split = |text, sign| <[u8]>::splitn(text, 2, move |byte| *byte == sign);
    let rest = split(key, b'{').nth(1);
    let tag = rest.and_then(|rest| {
        let mut parts = split(rest, b'}');
        parts.next().filter(|tag| !tag.is_empty() && parts.next().is_some())
    });
    tag.unwrap_or(key)
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0_u16, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    })
}

/// Who has which slot, as far as is known.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    /// An index of `primaries` for each slot, or [`NOBODY`].
    owners: Vec<u16>,
    primaries: Vec<Endpoint>,
    /// The servers that copy them, to be asked when primaries are down.
    replicas: Vec<Endpoint>,
}

const NOBODY: u16 = u16::MAX;

/// What `CLUSTER SLOTS` answers: for each range, its first and last slot, then its primary, and
/// then the replicas of that primary.
pub(crate) type Told = Vec<Vec<redis::Value>>;

impl Map {
    pub(crate) fn empty() -> Self {
        Self { owners: vec![NOBODY; SLOTS], primaries: Vec::new(), replicas: Vec::new() }
    }

    /// The map as a member tells it, which gives no address where it means its own host.
    pub(crate) fn told_by(member: &Endpoint, told: Told) -> Result<Self, Failure> {
        let mut map = Self::empty();
        for range in told {
            let mut parts = range.into_iter();
            let mut number = || parse::<u16>(parts.next().unwrap_or(redis::Value::Nil));
            let (first, last) = (usize::from(number()?), usize::from(number()?));
            for (at, node) in parts.enumerate() {
                let Node(host, port) = parse(node)?;
                let endpoint = match host.filter(|host| !host.is_empty() && host != "?") {
                    Some(host) => member.at(&host, port),
                    None => member.at_port(port),
                };
                match at {
                    0 => {
                        let owner = map.index_of(&endpoint);
                        map.owners.get_mut(first..=last).unwrap_or_default().fill(owner);
                    }
                    _ if map.replicas.iter().any(|it| it.is_where(&endpoint)) => (),
                    _ => map.replicas.push(endpoint),
                }
            }
        }
        Ok(map)
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<&Endpoint> {
        self.primaries.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    pub(crate) fn primaries(&self) -> &[Endpoint] {
        &self.primaries
    }

    pub(crate) fn is_primary(&self, member: &Endpoint) -> bool {
        self.primaries.iter().any(|primary| primary.is_where(member))
    }

    /// All members that it names.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Endpoint> {
        self.primaries.iter().chain(&self.replicas)
    }

    /// How many slots nobody has.
    pub(crate) fn uncovered(&self) -> usize {
        self.owners.iter().filter(|&&owner| owner == NOBODY).count()
    }

    /// The same map, except that one slot is another member's.
    pub(crate) fn moved(&self, slot: u16, to: &Endpoint) -> Self {
        let mut map = self.clone();
        let owner = map.index_of(to);
        // A server may name any number.
        if let Some(known) = map.owners.get_mut(usize::from(slot)) {
            *known = owner;
        }
        map
    }

    pub(crate) fn is_the_same(&self, other: &Self) -> bool {
        let is_where = |(one, other): (&Endpoint, &Endpoint)| one.is_where(other);
        self.owners == other.owners
            && self.primaries.len() == other.primaries.len()
            && self.primaries.iter().zip(&other.primaries).all(is_where)
    }

    fn index_of(&mut self, primary: &Endpoint) -> u16 {
        let known = self.primaries.iter().position(|known| known.is_where(primary));
        let index = known.unwrap_or_else(|| {
            self.primaries.push(primary.clone());
            self.primaries.len() - 1
        });
        // A cluster has at most a thousand members.
        u16::try_from(index).unwrap_or(NOBODY)
    }
}

/// Host and port; the rest is of no use here.
struct Node(Option<String>, u16);

impl redis::FromRedisValue for Node {
    fn from_redis_value(value: redis::Value) -> Result<Self, redis::ParsingError> {
        let fields: Vec<redis::Value> = redis::from_redis_value(value)?;
        let mut fields = fields.into_iter();
        let mut next = || fields.next().unwrap_or(redis::Value::Nil);
        Ok(Self(redis::from_redis_value(next())?, redis::from_redis_value(next())?))
    }
}

fn parse<T: redis::FromRedisValue>(value: redis::Value) -> Result<T, Failure> {
    Ok(redis::from_redis_value(value).map_err(redis::RedisError::from)?)
}

#[cfg(test)]
mod tests {
    use super::slot;

    #[test]
    fn slots_are_those_of_the_server() {
        // As `CLUSTER KEYSLOT` has them.
        for (key, expected) in [
            ("123456789", 12_739),
            ("key", 12_539),
            ("{user1000}.following", 3_443),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", 4_015),
            ("foo{bar}{zap}", 5_061),
            ("", 0),
        ] {
            assert_eq!(slot(key), expected, "{key}");
        }
    }
}
