//! How far away a server is, and how its clock runs.

use std::time::{Duration, Instant};

use lockkit_core::driver::DriverError;
use lockkit_core::{Capabilities, Diagnosis};
use redis::cmd;

use super::ask;
use crate::driver::RedisDriver;

/// How many round trips a lease should have room for. By default a request may take a fifth of
/// the lease, so that each of them may take ten times as long as usual.
const ROOM: u32 = 50;
/// With a slower round trip, leases of several seconds have too little room.
const SLOW: Duration = Duration::from_millis(100);
/// How far apart two clocks may be that both run right: 1 % and this.
const SLACK: Duration = Duration::from_millis(1);

/// What the server's clock said, and between which moments of ours.
#[derive(Debug)]
pub(super) struct Reading {
    asked: Instant,
    said: Duration,
    answered: Instant,
}

impl Reading {
    /// `None` if this user may not ask for the time, which is a missing right.
    pub(super) async fn take(driver: &RedisDriver) -> Result<Option<Self>, DriverError> {
        let asked = Instant::now();
        let time = ask::<(u64, u64)>(driver, cmd("TIME")).await?;
        let answered = Instant::now();
        Ok(time.ok().map(|(seconds, micros)| {
            let said = Duration::from_secs(seconds) + Duration::from_micros(micros);
            Self { asked, said, answered }
        }))
    }

    pub(super) fn round_trip(&self) -> Duration {
        self.answered - self.asked
    }
}

pub(super) fn latency(round_trip: Duration) -> Diagnosis {
    let least = (round_trip * ROOM).max(Capabilities::MIN_TTL);
    let (trip, least) = (whole(round_trip, 1_000), whole(least, 1_000_000));
    let finding =
        format!("a round trip takes {trip:?}: leases of {least:?} and more have room for it");
    match round_trip < SLOW {
        true => Diagnosis::good("latency", finding),
        false => Diagnosis::warning("latency", finding, "take no shorter ones: `ttl` in the URL"),
    }
}

/// The duration, rounded up to whole units of `unit` nanoseconds.
fn whole(duration: Duration, unit: u64) -> Duration {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(nanos.div_ceil(unit).saturating_mul(unit))
}

pub(super) fn clock(first: &Reading, last: &Reading) -> Diagnosis {
    let (least, most) = (last.asked - first.answered, last.answered - first.asked);
    let good = least.mul_f64(0.99).saturating_sub(SLACK)..=most.mul_f64(1.01) + SLACK;
    match last.said.checked_sub(first.said) {
        Some(passed) if good.contains(&passed) => {
            Diagnosis::good("clock", "the server's clock goes as fast as that of this host")
        }
        passed => {
            let passed = match passed {
                Some(passed) => format!("went on by {passed:.1?}"),
                None => "went back".into(),
            };
            Diagnosis::error(
                "clock",
                format!(
                    "the server's clock {passed} while {least:.1?} passed: leases end too early or too late"
                ),
                "keep the clock of the server's host steady: let NTP slew it, not step it",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use lockkit_core::Grade;

    use super::{Reading, clock, latency};

    #[test]
    fn a_clock_that_stands_or_jumps_is_found() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let reading = |at: u64, said: u64| Reading {
            asked: start + ms(at),
            said: ms(1_000_000 + said),
            answered: start + ms(at + 2),
        };
        let first = reading(0, 0);
        for (said, grade) in [
            (50, Grade::Good),
            (48, Grade::Good),
            (53, Grade::Good),
            (0, Grade::Error),
            (40, Grade::Error),
            (60, Grade::Error),
            (3_600_050, Grade::Error),
        ] {
            assert_eq!(clock(&first, &reading(50, said)).grade(), grade, "{said}");
        }
        assert_eq!(clock(&reading(0, 1), &reading(50, 0)).grade(), Grade::Error, "back");
    }

    #[test]
    fn leases_must_have_room_for_round_trips() {
        let near = latency(Duration::from_nanos(80_100));
        assert_eq!(near.grade(), Grade::Good);
        assert!(near.finding().contains("takes 81µs: leases of 50ms"), "{}", near.finding());
        let far = latency(Duration::from_millis(150));
        assert_eq!(far.grade(), Grade::Warning);
        assert!(far.finding().contains("leases of 7.5s"), "{}", far.finding());
    }
}
