//! Newest wins: which of two cookies of one (user, DSP) pair replaces the other.
//!
//! The cookie accepted later wins. The acceptance time of a cookie is the time of its chunk minus the age of the cookie
//! ([`CookieRef::accepted`](crate::wire::CookieRef::accepted)). If both times are
//! equal, the later arrival wins. If both cookies come from one producer, this is the one with the higher sequence number.
//!
//! Both acceptance times must have the same unit. A consumer's batch and its embedded store use microseconds; MongoDB and the
//! suppression table use milliseconds.

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
