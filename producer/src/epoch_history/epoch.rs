//! The epoch of a process: a number that no other run of this producer has, whatever the clock says.
//!
//! Consumers compare epochs only for equality. A repeated epoch would let a consumer resume in the middle of a run that
//! it never read. A clock that was set back, or that starts at the same time with every boot, does not repeat one,
//! because the lowest bits are random. The other bits are the start time, for people.

use std::hash::{BuildHasher as _, RandomState};

use runtime::unix_micros;

/// Two runs that start at the same time get the same epoch once in 65,536; the time is accurate to 66 ms.
const RANDOM_BITS: u32 = 16;

/// The epoch of a run that starts now.
pub(crate) fn generate() -> u64 {
    // The system seeds this anew for each process.
    epoch(unix_micros(), RandomState::new().hash_one(0))
}

fn epoch(now: u64, random: u64) -> u64 {
    let mask = (1 << RANDOM_BITS) - 1;
    // Never 0, which would read as no epoch.
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
