//! Which of two cookies of one (user, DSP) pair is newer.
//!
//! The one that was accepted later, as the time of the chunk that it came in and its own age say
//! ([`CookieRef::accepted_unix_micros`](crate::wire::CookieRef::accepted_unix_micros)); of two accepted at the same time the one that came later, which
//! from one producer is the one with the later sequence.
//!
//! A time counts as finely as the one that compares keeps it, so both must be of one unit: a consumer's batch and its embedded
//! store keep microseconds; MongoDB, and the table of what need not be written again, milliseconds.

/// Whether a cookie that comes now takes the place of one that came before, by when each was accepted.
#[inline]
#[must_use]
pub fn replaces<T: Ord>(coming: T, known: T) -> bool {
    coming >= known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_time_wins_and_of_equal_times_the_later_arrival() {
        for (coming, known, expected) in [(2, 1, true), (1, 1, true), (1, 2, false)] {
            assert_eq!(replaces(coming, known), expected, "{coming} over {known}");
        }
    }
}
