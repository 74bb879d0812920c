//! Which token is next, and whether it has to be on the disk before it is granted.
//!
//! Syncing takes several times as long as all the rest. So a grant that syncs reserves the tokens
//! of the next second along with its own: the [`Reserve`] stands in its record. As long as the
//! kernel runs on, each of these tokens is written without being synced, since all processes see
//! what one of them wrote. If the kernel stops, such writes may be lost, and with them which tokens
//! were granted. The reserve is not lost: whoever finds one of an earlier run of the kernel goes on
//! behind its end.
//!
//! That the reserve was synced is shown by a second record of it in the other slot, which nobody
//! writes before that: the note that the holder has let go. A holder that died with a new reserve
//! has left no such note, so the next one syncs, too.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use lockkit_core::FencingToken;

use crate::record::Records;

/// How many tokens are reserved: those of one second, where tokens are microseconds of the clock.
const LENGTH: u64 = 1_000_000;

/// Tokens that may be granted without syncing each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reserve {
    /// The last of them.
    pub(crate) until: FencingToken,
    /// The run of the kernel under which they were reserved: they may be granted while it goes on.
    pub(crate) boot: Boot,
}

/// What is to be granted next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) token: FencingToken,
    pub(crate) reserve: Option<Reserve>,
    /// Whether what is in the file has to be on the disk before this is written: otherwise the one
    /// record that is there for sure would be overwritten.
    pub(crate) is_preceded_by_a_sync: bool,
    /// Whether the token has to be on the disk before it is granted.
    pub(crate) is_to_be_synced: bool,
}

impl Next {
    /// One more than the last token that may have been granted, and no less than the time of day in
    /// microseconds, so that tokens rise even if the file was deleted. The time of day is compared
    /// with no other time. `None` if there is no higher token.
    ///
    /// `boot` is the run of the kernel, if there is a way to know it; otherwise each token is
    /// synced.
    pub(crate) fn after(records: &Records, boot: Option<&Boot>, time_of_day: u64) -> Option<Self> {
        let reserve = records.reserve_in_use(boot);
        let last = match reserve {
            // What this kernel was given to write is there.
            Some(_) => records.latest().map(|record| record.token),
            None => records.highest(),
        };
        let next = last.map_or(1, |last| last.get() + 1);
        let token = FencingToken::new(next.max(time_of_day))?;
        Some(match reserve.filter(|reserve| token <= reserve.until) {
            Some(reserve) => {
                let reserve = Some(reserve.clone());
                Self { token, reserve, is_preceded_by_a_sync: false, is_to_be_synced: false }
            }
            None => {
                // Where no more are left to reserve, each of the last ones is synced.
                let until = FencingToken::new(token.get() + LENGTH).unwrap_or(token);
                let reserve = boot.map(|boot| Reserve { until, boot: boot.clone() });
                let is_preceded_by_a_sync = last.is_some() && !records.are_settled();
                Self { token, reserve, is_preceded_by_a_sync, is_to_be_synced: true }
            }
        })
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { until, boot: Boot(boot) } = self;
        write!(f, "{until} {boot}")
    }
}

impl FromStr for Reserve {
    type Err = NoReserve;

    fn from_str(text: &str) -> Result<Self, NoReserve> {
        let (until, boot) = text.split_once(' ').ok_or(NoReserve)?;
        let until = until.parse().map_err(|_| NoReserve)?;
        Ok(Self { until, boot: Boot::new(boot).ok_or(NoReserve)? })
    }
}

/// The text is not that of a [`Reserve`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoReserve;

/// One run of the kernel, from start to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boot(String);

impl Boot {
    /// The current run; `None` where the system does not tell.
    pub(crate) fn current() -> Option<&'static Self> {
        static CURRENT: OnceLock<Option<Boot>> = OnceLock::new();
        CURRENT.get_or_init(|| Self::new(&tell_boot()?)).as_ref()
    }

    pub(crate) fn new(text: &str) -> Option<Self> {
        let text = text.trim_end();
        let is_id = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
        let is_one = text.len() >= 32 && text.len() <= 64 && text.bytes().all(is_id);
        is_one.then(|| Self(text.into()))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn tell_boot() -> Option<String> {
    // Where it cannot be read, each token is synced.
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn tell_boot() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use lockkit_core::FencingToken;

    use super::{Boot, LENGTH, Next, Reserve};
    use crate::record::tests::{file, read, record};
    use crate::record::{Record, Records, SLOT, State};

    fn boot(digit: char) -> Boot {
        Boot::new(&String::from(digit).repeat(36)).unwrap()
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    /// A file, and what its disk may have of it when the kernel stops.
    #[derive(Clone, Default)]
    struct Disk {
        content: Vec<u8>,
        /// What each slot may be by then: as it was synced, or as it was written since.
        slots: [Vec<Vec<u8>>; 2],
        granted: Option<FencingToken>,
    }

    /// What becomes of a holder.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Fate {
        Ends,
        /// While copies keep the lock.
        Leaves,
        Dies,
        /// When it has written its grant, and not yet synced it.
        DiesBefore,
    }

    impl Disk {
        /// Does what a holder does.
        fn grant(&mut self, boot: Option<&Boot>, time_of_day: u64, fate: Fate) -> Next {
            let records = read(&self.content).unwrap();
            let next = Next::after(&records, boot, time_of_day).unwrap();
            if next.is_preceded_by_a_sync {
                self.sync();
            }
            let held =
                Record { reserve: next.reserve.clone(), ..record(next.token.get(), State::Held) };
            self.put(&held);
            if fate == Fate::DiesBefore {
                return next;
            }
            if next.is_to_be_synced {
                self.sync();
            }
            assert!(self.granted < Some(next.token), "{next:?} after {:?}", self.granted);
            self.granted = Some(next.token);
            match fate {
                Fate::Ends => self.put(&Record { state: State::Free, ..held }),
                Fate::Leaves => self.put(&Record { state: State::Left, ..held }),
                Fate::Dies | Fate::DiesBefore => (),
            }
            next
        }

        fn put(&mut self, record: &Record) {
            let slot = read(&self.content).unwrap().loose();
            let (start, new) = (slot * SLOT, file(&[record]));
            self.content.resize(self.content.len().max(start + SLOT), 0);
            self.content[start..start + SLOT].copy_from_slice(&new);
            let mut torn = new.clone();
            torn[30] ^= 1;
            self.slots[slot].extend([torn, new]);
            // Whatever else was written there in between is as good as what is there now.
            let last = self.slots[slot].len() - 2;
            if last > 3 {
                self.slots[slot].drain(1..last - 1);
            }
        }

        fn sync(&mut self) {
            for (slot, synced) in self.content.chunks(SLOT).zip(&mut self.slots) {
                *synced = vec![slot.to_vec()];
            }
        }

        /// What the next run of the kernel may find.
        fn crashes(&self) -> Vec<Vec<u8>> {
            let nothing = [Vec::new()];
            let [one, other] = [0, 1].map(|slot| match &*self.slots[slot] {
                [] => &nothing[..],
                found => found,
            });
            let both =
                one.iter().flat_map(|one| other.iter().map(|other| [&**one, other].concat()));
            both.collect()
        }
    }

    fn next(content: &[u8], boot: Option<&Boot>, time_of_day: u64) -> Next {
        Next::after(&read(content).unwrap(), boot, time_of_day).unwrap()
    }

    #[test]
    fn a_second_of_grants_is_synced_once() {
        for fate in [Fate::Ends, Fate::Leaves] {
            let (this, mut disk) = (boot('1'), Disk::default());
            let mut synced = Vec::new();
            for time in (5_000_000..7_500_000).step_by(1_000) {
                let next = disk.grant(Some(&this), time, fate);
                assert_eq!(next.token, token(time));
                if next.is_to_be_synced {
                    synced.push(time);
                }
            }
            let first = 5_000_000;
            assert_eq!(synced, [first, first + LENGTH + 1_000, first + 2 * (LENGTH + 1_000)]);
        }
    }

    #[test]
    fn tokens_go_on_in_the_reserve_while_the_clock_is_behind() {
        let (this, mut disk) = (boot('1'), Disk::default());
        assert!(disk.grant(Some(&this), 5_000_000, Fate::Ends).is_to_be_synced);
        for number in 5_000_001..5_000_010 {
            let next = disk.grant(Some(&this), 7, Fate::Ends);
            assert_eq!((next.token, next.is_to_be_synced), (token(number), false));
        }
    }

    /// Whatever of the writes since the last sync has reached the disk, and however whole: after each
    /// step of each course of five holders, with a reserve that is used up or not.
    fn go_through_crashes(before: Option<&Boot>, after: Option<&Boot>) {
        let later = 2 * LENGTH;
        let steps = [
            (Fate::Ends, 0),
            (Fate::Ends, later),
            (Fate::Leaves, 0),
            (Fate::Dies, 0),
            (Fate::Dies, later),
            (Fate::DiesBefore, 0),
            (Fate::DiesBefore, later),
        ];
        let courses = (0..5).fold(vec![(Disk::default(), 5_000_000)], |disks, _| {
            let mut longer = Vec::new();
            for (disk, time) in disks {
                for (fate, step) in steps {
                    let (mut disk, time) = (disk.clone(), time + step);
                    disk.grant(before, time, fate);
                    for found in disk.crashes() {
                        let next = next(&found, after, 7);
                        assert!(next.is_to_be_synced);
                        assert!(Some(next.token) > disk.granted, "{next:?} {:?}", disk.granted);
                    }
                    longer.push((disk, time));
                }
            }
            longer
        });
        assert_eq!(courses.len(), steps.len().pow(5));
    }

    #[test]
    fn what_the_kernel_lost_is_not_granted_again() {
        go_through_crashes(Some(&boot('1')), Some(&boot('2')));
    }

    #[test]
    fn what_a_kernel_lost_that_is_not_known_is_not_granted_again() {
        go_through_crashes(None, None);
    }

    /// A process was killed in the middle of a write, which this kernel goes on with.
    #[test]
    fn a_record_that_is_not_whole_ends_the_reserve() {
        let (this, mut disk) = (boot('1'), Disk::default());
        let mut last = token(1);
        for _ in 0..5 {
            last = disk.grant(Some(&this), 5_000_000, Fate::Ends).token;
        }
        for slot in [0, 1] {
            let mut torn = disk.content.clone();
            torn[slot * SLOT + 30] ^= 1;
            let next = next(&torn, Some(&this), 7);
            assert!(next.token > last && next.is_to_be_synced, "{next:?} after {last}");
        }
    }

    #[test]
    fn where_the_kernel_is_not_known_each_token_is_synced() {
        let mut disk = Disk::default();
        for number in 5_000_000..5_000_005 {
            let next = disk.grant(None, 5_000_000, Fate::Ends);
            assert_eq!((next.token, next.reserve), (token(number), None));
            assert!(next.is_to_be_synced && (number == 5_000_000 || !next.is_preceded_by_a_sync));
        }
        // Nor is a reserve used that was made where the run is known.
        let this = boot('1');
        let reserved = disk.grant(Some(&this), 7, Fate::Ends).reserve.unwrap();
        let next = next(&disk.content, None, 7);
        assert_eq!(next.token.get(), reserved.until.get() + 1);
        assert!(next.is_to_be_synced);
    }

    #[test]
    fn the_last_tokens_are_granted_and_no_more() {
        let (this, mut disk) = (boot('1'), Disk::default());
        let last = i64::MAX as u64;
        for number in last - 3..=last {
            assert_eq!(disk.grant(Some(&this), last - 3, Fate::Ends).token, token(number));
        }
        let records = read(&disk.content).unwrap();
        assert_eq!(Next::after(&records, Some(&this), 7), None);
        assert_eq!(Next::after(&Records::default(), None, u64::MAX), None);
    }

    #[test]
    fn a_reserve_is_written_and_read() {
        let reserve = Reserve { until: token(7), boot: boot('a') };
        assert_eq!(reserve.to_string().parse(), Ok(reserve));
        for text in ["", "7", "7 ", "x 0123456789abcdef0123456789abcdef", "7 a b"] {
            assert!(text.parse::<Reserve>().is_err(), "{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_run_of_the_kernel_is_known() {
        assert!(Boot::current().is_some());
    }
}
