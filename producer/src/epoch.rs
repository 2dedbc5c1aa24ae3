//! The number of this life of the process, which no other life has, whatever the clock says.
//!
//! A consumer compares epochs only for equality: one that came again would let it resume in the middle of a life that it never
//! read. A clock that was set back, or that begins at the same time with every start of its machine, does not
//! make one: the lowest bits are drawn by chance. The others are the time of the start, for people.

use std::hash::{BuildHasher as _, RandomState};

use runtime::unix_micros;

/// Two lives that begin at the same time have the same epoch once in 65,536; the time is right to 66 ms.
const DRAWN_BITS: u32 = 16;

/// The epoch of a life that begins now.
pub(crate) fn begin() -> u64 {
    // Keyed anew by the system for each process.
    epoch(unix_micros(), RandomState::new().hash_one(0))
}

fn epoch(now: u64, drawn: u64) -> u64 {
    let mask = (1 << DRAWN_BITS) - 1;
    // None is nought, which would read as no epoch at all.
    ((now & !mask) | (drawn & mask)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_that_begin_at_the_same_time_have_epochs_of_their_own() {
        let now = 1_767_225_600_000_000;
        assert_ne!(epoch(now, 1), epoch(now, 2));
        for drawn in [0, 1, u64::MAX] {
            assert!(epoch(now, drawn).abs_diff(now) < 1 << DRAWN_BITS);
        }
        assert_eq!(epoch(0, 0), 1);
    }
}
