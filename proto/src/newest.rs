//! Newest wins: which of two cookies of one (user, DSP) pair replaces the other.
//!
//! The cookie accepted later wins. Its acceptance time is the chunk time minus its age
//! ([`CookieRef::accepted_unix_micros`](crate::wire::CookieRef::accepted_unix_micros)). For equal times the later arrival wins; from one
//! producer, that is the cookie with the higher sequence number.
//!
//! Both times must have the same unit. A consumer's batch and its embedded store use microseconds; MongoDB and the suppression
//! table use milliseconds.

/// Whether an arriving cookie replaces a known one, by their acceptance times.
#[inline]
pub fn replaces<T: Ord>(arriving: T, known: T) -> bool {
    arriving >= known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_time_wins_and_later_arrival_breaks_ties() {
        for (arriving, known, expected) in [(2, 1, true), (1, 1, true), (1, 2, false)] {
            assert_eq!(
                replaces(arriving, known),
                expected,
                "{arriving} over {known}"
            );
        }
    }
}
