//! What a lock file has in it: who was granted the lock last, and under which token.
//!
//! There are two slots, so that one is whole while the other is written: what was synced last is
//! never overwritten. Each slot is text that ends in its own checksum, padded with zeros to a
//! block, so that a block torn by a loss of power takes one slot with it and not both.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use lockkit_core::driver::{ErrorKind, OwnerId};
use lockkit_core::{FencingToken, LockName};
use sha2::{Digest as _, Sha256};

use crate::error::Problem;
use crate::reserve::{Boot, Reserve};

/// The length of a slot in bytes.
pub(crate) const SLOT: usize = 4096;

/// What a record begins with.
const HEADING: &str = "lockkit-file ";
const VERSION: &str = "1";
const CHECKSUM: &str = "\nsha256 ";

/// One grant, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) state: State,
    pub(crate) token: FencingToken,
    /// Which tokens may follow it without being synced.
    pub(crate) reserve: Option<Reserve>,
    pub(crate) owner: OwnerId,
    pub(crate) label: String,
    /// When it was granted, in microseconds of the host's boot-time clock.
    pub(crate) since: u64,
    pub(crate) name: String,
}

/// Whether a grant stands, as far as its holder could tell: a holder that died tells nothing. What
/// comes later is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Held,
    /// Its holder has let go, and copies that were given away may keep the lock.
    Left,
    Free,
}

impl Record {
    /// Writes it into a slot of the file.
    pub(crate) fn write(&self, file: &File, slot: usize) -> io::Result<()> {
        file.write_all_at(&self.encode(), offset(slot) as u64)
    }

    /// Whether the lock, if it is locked, may be so by this grant.
    pub(crate) fn may_stand(&self) -> bool {
        self.state != State::Free
    }

    /// Why a file with this record is not the lock's.
    pub(crate) fn is_of_another_lock(&self) -> Problem {
        let text = format!("it is the file of another lock, {:?}", self.name);
        Problem::found(ErrorKind::Foreign, text)
    }

    /// The content of a slot.
    fn encode(&self) -> Vec<u8> {
        let Self { state, token, reserve, owner, label, since, name } = self;
        let state = match state {
            State::Held => "held",
            State::Left => "left",
            State::Free => "free",
        };
        let reserve = reserve.as_ref().map(|reserve| format!("\nreserve {reserve}"));
        let reserve = reserve.unwrap_or_default();
        // None of the values has a line break in it.
        let mut text = format!(
            "{HEADING}{VERSION}\nstate {state}\ntoken {token}{reserve}\nowner {owner}\n\
             label {label}\nsince {since}\nname {name}"
        );
        let checksum = checksum(&text);
        text.extend([CHECKSUM, &checksum, "\n"]);
        let mut slot = text.into_bytes();
        slot.resize(SLOT, 0);
        slot
    }

    /// The highest token that may have been granted if all that was written after this is lost.
    fn highest(&self) -> FencingToken {
        self.reserve.as_ref().map_or(self.token, |reserve| reserve.until.max(self.token))
    }

    /// Lines that this version does not know are passed over.
    fn parse(text: &str) -> Option<Self> {
        let value =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        Some(Self {
            state: match value("state")? {
                "held" => State::Held,
                "left" => State::Left,
                "free" => State::Free,
                _ => return None,
            },
            token: value("token")?.parse().ok()?,
            reserve: match value("reserve") {
                Some(reserve) => Some(reserve.parse().ok()?),
                None => None,
            },
            owner: value("owner")?.parse().ok()?,
            label: value("label")?.into(),
            since: value("since")?.parse().ok()?,
            name: value("name")?.into(),
        })
    }
}

/// What the slots of a lock file say.
#[derive(Debug, Default)]
pub(crate) struct Records([Option<Record>; 2]);

impl Records {
    /// Reads the content of a lock file. A slot that is not whole counts for nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Foreign`] if the file has something else in it, and
    /// [`ErrorKind::Misconfigured`] if a later version of lockkit has used it.
    pub(crate) fn read(content: &[u8]) -> Result<Self, Problem> {
        let slots = [0, 1].map(|slot| content.get(range(slot, content.len())).and_then(whole));
        let mut records = Self::default();
        for (text, record) in slots.iter().zip(&mut records.0) {
            let Some(text) = text else { continue };
            let version = text.lines().next().and_then(|line| line.strip_prefix(HEADING));
            *record = match version {
                Some(VERSION) => Record::parse(text),
                Some(version) => {
                    return Err(Problem::found(
                        ErrorKind::Misconfigured,
                        format!("it has layout version {version}, this program knows {VERSION}"),
                    ));
                }
                None => None,
            };
        }
        if records.0.iter().all(Option::is_none) && !is_unborn(content) {
            let text = match content.starts_with(HEADING.as_bytes()) {
                true => {
                    "neither of its records is whole; delete it once nobody relies on this lock"
                }
                false => "it is no lock file of lockkit",
            };
            return Err(Problem::found(ErrorKind::Foreign, text));
        }
        Ok(records)
    }

    /// What was written last.
    pub(crate) fn latest(&self) -> Option<&Record> {
        self.0.iter().flatten().max_by_key(|record| (record.token, record.state))
    }

    /// What was written last, which has to be about this lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Foreign`] if it is about another lock.
    pub(crate) fn latest_of(&self, name: &LockName) -> Result<Option<&Record>, Problem> {
        match self.latest() {
            Some(other) if other.name != name.as_str() => Err(other.is_of_another_lock()),
            latest => Ok(latest),
        }
    }

    /// The highest token that may have been granted, whatever was lost for not being synced.
    pub(crate) fn highest(&self) -> Option<FencingToken> {
        self.0.iter().flatten().map(Record::highest).max()
    }

    /// The tokens that may be granted without being synced under this run of the kernel.
    pub(crate) fn reserve_in_use(&self, boot: Option<&Boot>) -> Option<&Reserve> {
        let reserve = self.latest()?.reserve.as_ref()?;
        (self.are_settled() && Some(&reserve.boot) == boot).then_some(reserve)
    }

    /// Whether the last reserve is on the disk, and with it the name of the file: both slots have
    /// the reserve, and the second is written only once the first was synced. Where nothing is
    /// reserved, so it is with the last token. Otherwise whoever wrote it may have died before that,
    /// or could not sync it, or the file has just been made or put here.
    pub(crate) fn are_settled(&self) -> bool {
        let [Some(one), Some(other)] = &self.0 else { return false };
        one.reserve == other.reserve && (one.reserve.is_some() || one.token == other.token)
    }

    /// Which slot is written next: not that of the last record that was synced, which has to be
    /// there if this write is torn. What came after that record is worth less: nobody made sure
    /// that it reached the disk.
    pub(crate) fn loose(&self) -> usize {
        let rank = |slot: usize| {
            let record = self.0[slot].as_ref()?;
            Some((record.highest(), Reverse((record.token, record.state))))
        };
        if rank(0) > rank(1) { 1 } else { 0 }
    }
}

/// Where in the file a slot is.
fn offset(slot: usize) -> usize {
    slot * SLOT
}

fn range(slot: usize, length: usize) -> Range<usize> {
    offset(slot)..offset(slot + 1).min(length)
}

/// The text of a slot whose checksum is right.
fn whole(slot: &[u8]) -> Option<&str> {
    let end = slot.iter().position(|byte| *byte == 0).unwrap_or(slot.len());
    let text = std::str::from_utf8(&slot[..end]).ok()?;
    let (text, found) = text.rsplit_once(CHECKSUM)?;
    (found.strip_suffix('\n')? == checksum(text)).then_some(text)
}

/// Whether nothing was ever granted under the file: what there is of it is what is left of a first
/// record that was not written to its end.
fn is_unborn(content: &[u8]) -> bool {
    let heading = [HEADING, VERSION, "\n"].concat().into_bytes();
    let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let written = &content[..end];
    content.len() <= SLOT && (written.starts_with(&heading) || heading.starts_with(written))
}

fn checksum(text: &str) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text) {
        // Writing to a string cannot fail.
        _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
pub(crate) mod tests {
    use lockkit_core::FencingToken;
    use lockkit_core::driver::ErrorKind;

    use super::{Record, Records, SLOT, State, offset};
    use crate::error::Problem;
    use crate::reserve::{Boot, Reserve};

    pub(crate) fn record(token: u64, state: State) -> Record {
        Record {
            state,
            token: FencingToken::new(token).unwrap(),
            reserve: None,
            owner: "00112233445566778899aabbccddeeff".parse().unwrap(),
            label: "web-3:4711".into(),
            since: 7,
            name: "sha256 & friends = Ⅸ ".into(),
        }
    }

    /// A record in the reserve of token 5.
    fn reserved(token: u64, state: State) -> Record {
        let boot = Boot::new("8d3c2a10-52d1-4d6e-9a70-0c1f5b1f2e3d").unwrap();
        let reserve = Reserve { until: FencingToken::new(1_000_005).unwrap(), boot };
        Record { reserve: Some(reserve), ..record(token, state) }
    }

    /// A file whose slots have these records in them.
    pub(crate) fn file(slots: &[&Record]) -> Vec<u8> {
        slots.iter().flat_map(|record| record.encode()).collect()
    }

    pub(crate) fn read(content: &[u8]) -> Result<Records, ErrorKind> {
        Records::read(content).map_err(|problem| match problem {
            Problem::Found { kind, .. } => kind,
            Problem::System(error) => panic!("{error}"),
        })
    }

    fn latest(content: &[u8]) -> Result<Option<Record>, ErrorKind> {
        Ok(read(content)?.latest().cloned())
    }

    #[test]
    fn what_was_written_last_counts() {
        let (first, second) = (record(1, State::Held), record(2, State::Held));
        assert_eq!(latest(&file(&[&first])), Ok(Some(first.clone())));
        assert_eq!(latest(&file(&[&first, &second])), Ok(Some(second.clone())));
        assert_eq!(latest(&file(&[&second, &first])), Ok(Some(second.clone())));
        for state in [State::Left, State::Free] {
            let ended = record(2, state);
            assert_eq!(latest(&file(&[&second, &ended])), Ok(Some(ended.clone())));
            assert_eq!(latest(&file(&[&ended, &second])), Ok(Some(ended)));
        }
        assert_eq!(latest(b""), Ok(None));
    }

    #[test]
    fn what_was_synced_last_is_not_written_over() {
        let [old, last] = [1, 2].map(|token| record(token, State::Held));
        let released = record(2, State::Free);
        // In the reserve of the first, which was synced.
        let [synced, granted] = [5, 7].map(|token| reserved(token, State::Held));
        let ended = reserved(7, State::Free);
        let left = reserved(5, State::Left);
        for (slots, loose) in [
            (vec![&last], 1),
            (vec![&old, &last], 0),
            (vec![&last, &old], 1),
            (vec![&last, &released], 1),
            (vec![&released, &last], 0),
            (vec![], 0),
            (vec![&last, &synced], 0),
            (vec![&granted, &synced], 0),
            (vec![&ended, &synced], 0),
            (vec![&synced, &ended], 1),
            (vec![&synced, &left], 1),
            (vec![&left, &synced], 0),
        ] {
            assert_eq!(read(&file(&slots)).unwrap().loose(), loose, "{slots:?}");
        }
    }

    /// Whatever part of the new record has reached the disk, over whatever was there before.
    #[test]
    fn a_record_torn_at_any_byte_leaves_the_last_grant() {
        let [oldest, last, next] = [1, 2, 3].map(|token| record(token, State::Held));
        let released = record(2, State::Free);
        for before in [file(&[&last, &oldest]), file(&[&last, &released]), file(&[&last])] {
            let slot = read(&before).unwrap().loose();
            let (start, new) = (offset(slot), next.encode());
            let length = new.iter().position(|byte| *byte == 0).unwrap();
            for written in 0..length {
                let mut beginning = before.clone();
                beginning.resize(beginning.len().max(start + written), 0);
                beginning[start..start + written].copy_from_slice(&new[..written]);
                let mut end = before.clone();
                end.resize(end.len().max(start + SLOT), 0);
                end[start + written + 1..start + SLOT].copy_from_slice(&new[written + 1..]);
                for torn in [beginning, end] {
                    if torn.get(start..start + SLOT) == Some(&new[..]) {
                        continue; // What is missing was there before.
                    }
                    let records = read(&torn).unwrap();
                    assert_eq!(records.loose(), slot, "torn at byte {written}");
                    let token = records.latest().unwrap().token;
                    assert_eq!(token, last.token, "torn at byte {written}");
                }
            }
        }
    }

    #[test]
    fn a_first_record_torn_at_any_byte_is_none() {
        let new = record(1, State::Held).encode();
        let length = new.iter().position(|byte| *byte == 0).unwrap();
        for written in 0..length {
            assert_eq!(latest(&new[..written]), Ok(None), "torn after {written} bytes");
            let mut torn = new.clone();
            torn[written..].fill(0);
            assert_eq!(latest(&torn), Ok(None), "torn after {written} bytes");
        }
        assert_eq!(latest(&[0; SLOT]), Ok(None));
    }

    #[test]
    fn a_byte_flipped_anywhere_takes_one_record_at_most() {
        let [old, last] = [1, 2].map(|token| record(token, State::Held));
        let sound = file(&[&old, &last]);
        for at in 0..sound.len() {
            for mask in [0x01, 0x20, 0x80, 0xff] {
                let mut flipped = sound.clone();
                flipped[at] ^= mask;
                let found = latest(&flipped).unwrap().unwrap();
                let expected = if at < offset(1) { &last } else { &found };
                assert_eq!(&found, expected, "byte {at} by {mask:#x}");
                assert!(found == last || found == old, "byte {at} by {mask:#x} made {found:?}");
            }
        }
    }

    #[test]
    fn a_file_cut_off_anywhere_never_invents_a_record() {
        let [old, last] = [1, 2].map(|token| record(token, State::Held));
        let sound = file(&[&old, &last]);
        for length in 0..sound.len() {
            let found = latest(&sound[..length]).unwrap();
            assert!(
                [None, Some(&old), Some(&last)].contains(&found.as_ref()),
                "cut off after {length} bytes: {found:?}"
            );
            if length >= SLOT {
                assert!(found.is_some(), "cut off after {length} bytes");
            }
        }
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let damaged = {
            let mut content = file(&[&record(1, State::Held), &record(2, State::Held)]);
            content[20] ^= 1;
            content[offset(1) + 20] ^= 1;
            content
        };
        for foreign in [
            b"4711\n".as_slice(),
            b"lockkit-fil",
            b"lockkit-file 2",
            b"\0x",
            &[0; SLOT + 1],
            &[0xff; 2 * SLOT],
            &damaged,
        ] {
            let expected =
                if foreign == b"lockkit-fil" { Ok(None) } else { Err(ErrorKind::Foreign) };
            assert_eq!(latest(foreign), expected, "{:?}", &foreign[..foreign.len().min(20)]);
        }
    }

    /// Otherwise its tokens would be granted again.
    #[test]
    fn a_later_layout_is_refused_also_beside_one_that_is_known() {
        let later = String::from_utf8(record(2, State::Held).encode()).unwrap();
        let later = later.replace("lockkit-file 1", "lockkit-file 2");
        let text = later.split(super::CHECKSUM).next().unwrap();
        let mut later = format!("{text}{}{}\n", super::CHECKSUM, super::checksum(text));
        later.extend(std::iter::repeat_n('\0', SLOT - later.len()));
        let mut content = file(&[&record(1, State::Held)]);
        content.extend(later.bytes());
        assert_eq!(latest(&content), Err(ErrorKind::Misconfigured));
    }

    #[test]
    fn lines_that_are_not_known_are_passed_over() {
        let text = String::from_utf8(record(1, State::Held).encode()).unwrap();
        let text =
            text.split(super::CHECKSUM).next().unwrap().replace("\nsince", "\nmore yes\nsince");
        let content = format!("{text}{}{}\n", super::CHECKSUM, super::checksum(&text));
        assert_eq!(latest(content.as_bytes()), Ok(Some(record(1, State::Held))));
    }

    /// A change here is a change of layout.
    #[test]
    fn layout_1_is_as_it_was() {
        let slot = record(1_763_690_000_000_001, State::Free).encode();
        assert_eq!(slot.len(), SLOT);
        let text = std::str::from_utf8(&slot).unwrap().trim_end_matches('\0');
        assert_eq!(
            text,
            "lockkit-file 1\n\
             state free\n\
             token 1763690000000001\n\
             owner 00112233445566778899aabbccddeeff\n\
             label web-3:4711\n\
             since 7\n\
             name sha256 & friends = Ⅸ \n\
             sha256 e3d5b14b98afcce8be681c37b246318c5796f6d0da3495c930d0c1f6da738ee3\n"
        );
        let slot = reserved(7, State::Held).encode();
        let text = std::str::from_utf8(&slot).unwrap();
        assert_eq!(
            text.lines().nth(3),
            Some("reserve 1000005 8d3c2a10-52d1-4d6e-9a70-0c1f5b1f2e3d")
        );
        assert_eq!(latest(&slot), Ok(Some(reserved(7, State::Held))));
        let slot = record(7, State::Left).encode();
        assert_eq!(std::str::from_utf8(&slot).unwrap().lines().nth(1), Some("state left"));
        assert_eq!(latest(&slot), Ok(Some(record(7, State::Left))));
    }
}
