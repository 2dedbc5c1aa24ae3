//! The epoch of a process: a number that is unique among the runs of a producer, even if the clock is set back.
//!
//! Consumers compare epochs only for equality. With a repeated epoch, a consumer would resume in the middle of a run that
//! it never read. The lowest bits are random, so a clock that is set back, or starts at the same time with every boot, does
//! not repeat an epoch. The other bits are the start time, for operators.

use std::hash::{BuildHasher as _, RandomState};

use runtime::unix_micros;

/// Two runs that start at the same time get the same epoch once in 65,536; the time is accurate to 66 ms.
const RANDOM_BITS: u32 = 16;

/// The epoch of a run that starts now.
pub(crate) fn generate() -> u64 {
    // Seeded by the system for each process.
    epoch(unix_micros(), RandomState::new().hash_one(0))
}

fn epoch(now: u64, random: u64) -> u64 {
    let mask = (1 << RANDOM_BITS) - 1;
    // Never 0, which means no epoch.
    ((now & !mask) | (random & mask)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_start_at_the_same_time_have_different_epochs() {
        let now = 1_767_225_600_000_000;
        assert_ne!(epoch(now, 1), epoch(now, 2));
        for random in [0, 1, u64::MAX] {
            assert!(epoch(now, random).abs_diff(now) < 1 << RANDOM_BITS);
        }
        assert_eq!(epoch(0, 0), 1);
    }
}
