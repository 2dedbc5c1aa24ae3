//! Send times of the requests of a load with a rate. They are whole nanoseconds, so that the number of requests before a
//! send time is exactly the number of the request sent at that time.

use std::num::NonZeroU64;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Number of requests due before `nanos` after the start.
pub(super) fn requests_before(rate: NonZeroU64, nanos: u64) -> u64 {
    let Some(last) = nanos.checked_sub(1) else {
        return 0;
    };
    let requests = u128::from(last) * u128::from(rate.get()) / NANOS_PER_SECOND + 1;
    u64::try_from(requests).unwrap_or(u64::MAX)
}

/// Send time of request `number` (from 0) in nanoseconds after the start; `u64::MAX` if never.
#[inline]
pub(super) fn intended_nanos(rate: NonZeroU64, number: u64) -> u64 {
    let nanos = (u128::from(number) * NANOS_PER_SECOND).div_ceil(u128::from(rate.get()));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// Send times of one connection. Requests are assigned to the connections round-robin.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    /// Requests per second over all connections.
    pub(super) rate: NonZeroU64,
    pub(super) connections: u64,
    /// Number of the connection, from 0.
    pub(super) connection: u64,
}

impl Schedule {
    /// Number of requests of this connection due up to and including `nanos` after the start.
    pub(super) fn due_by(&self, nanos: u64) -> u64 {
        let overall = requests_before(self.rate, nanos.saturating_add(1));
        overall
            .saturating_sub(self.connection)
            .div_ceil(self.connections)
    }

    /// Send time of request `number` of this connection in nanoseconds after the start; `u64::MAX` if never.
    #[inline]
    pub(super) fn intended_nanos(&self, number: u64) -> u64 {
        let overall = number
            .checked_mul(self.connections)
            .and_then(|first| first.checked_add(self.connection));
        overall.map_or(u64::MAX, |overall| intended_nanos(self.rate, overall))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::values::RATE_MAX;

    fn schedule(rate: u64, connection: u64) -> Schedule {
        Schedule {
            rate: NonZeroU64::new(rate).unwrap(),
            connections: 3,
            connection,
        }
    }

    #[test]
    fn connections_alternate() {
        let times = (0..3).flat_map(|connection| {
            (0..4).map(move |number| schedule(1_000, connection).intended_nanos(number))
        });
        let mut times: Vec<_> = times.collect();
        times.sort_unstable();
        let expected: Vec<_> = (0..12).map(|index| index * 1_000_000).collect();
        assert_eq!(times, expected);
        assert_eq!(
            requests_before(schedule(1_000, 0).rate, 2_500_000_000),
            2_500
        );
    }

    #[test]
    fn due_requests_match_their_send_times() {
        for schedule in [schedule(RATE_MAX, 0), schedule(RATE_MAX, 2)] {
            for nanos in 0..12 {
                let times = (0..20).map(|number| schedule.intended_nanos(number));
                let due = times.filter(|&time| time <= nanos).count() as u64;
                assert_eq!(schedule.due_by(nanos), due, "{schedule:?} by {nanos}");
            }
        }
        // Constant time for large numbers.
        let hundred_years = 100 * 365 * 86_400 * 1_000_000_000;
        let due = schedule(RATE_MAX, 0).due_by(hundred_years);
        assert_eq!(due, hundred_years / 3 + 1);
    }

    proptest! {
        #[test]
        fn time_and_number_are_inverse(
            rate in 1..RATE_MAX,
            number in 0..1_000_000_000_u64,
            nanos in 0..10_000_000_000_000_u64,
        ) {
            let rate = NonZeroU64::new(rate).unwrap();
            let intended = intended_nanos(rate, number);
            prop_assert!(intended_nanos(rate, number + 1) >= intended);
            prop_assert!(requests_before(rate, intended) <= number);
            prop_assert!(requests_before(rate, intended + 1) > number);
            let before = requests_before(rate, nanos);
            prop_assert!(intended_nanos(rate, before) >= nanos);
            if let Some(last) = before.checked_sub(1) {
                prop_assert!(intended_nanos(rate, last) < nanos);
            }
        }
    }
}
