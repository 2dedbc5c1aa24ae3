//! When requests should leave when there is a rate: one schedule over all connections, in turn.

use std::{num::NonZeroU64, time::Duration};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The intended times of one connection's requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    rate: NonZeroU64,
    connections: u64,
    connection: u64,
}

impl Schedule {
    /// The share of `connection` in `rate` requests a second over `connections`.
    pub(super) fn new(rate: NonZeroU64, connections: u64, connection: u64) -> Self {
        Self {
            rate,
            connections,
            connection,
        }
    }

    /// When request `number` of this connection should leave, in nanoseconds since the start.
    #[inline]
    pub(super) fn intended_nanos(&self, number: u64) -> u64 {
        let overall =
            u128::from(number) * u128::from(self.connections) + u128::from(self.connection);
        let nanos = overall * NANOS_PER_SECOND / u128::from(self.rate.get());
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// How many requests over all connections should leave within `duration`.
    pub(super) fn requests_within(rate: NonZeroU64, duration: Duration) -> u64 {
        let requests = duration.as_nanos() * u128::from(rate.get()) / NANOS_PER_SECOND;
        u64::try_from(requests).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_turns_at_the_rate() {
        let rate = NonZeroU64::new(1_000).unwrap();
        let mut times: Vec<_> = (0..3)
            .flat_map(|connection| {
                let schedule = Schedule::new(rate, 3, connection);
                (0..4).map(move |number| schedule.intended_nanos(number))
            })
            .collect();
        times.sort_unstable();
        let expected: Vec<_> = (0..12).map(|index| index * 1_000_000).collect();
        assert_eq!(times, expected);
        let within = Schedule::requests_within(rate, Duration::from_millis(2_500));
        assert_eq!(within, 2_500);
    }
}
