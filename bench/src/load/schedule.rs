//! When the requests of one connection should leave: its turns in what all connections share, or the times of a recording.

use std::sync::Arc;

use super::profile::Profile;

/// The intended times of one connection's requests.
#[derive(Debug, Clone)]
pub(super) enum Schedule {
    /// Every so many-th of a profile.
    Turns {
        profile: Profile,
        connections: u64,
        connection: u64,
    },
    /// A time for each request, in nanoseconds after the start.
    Times(Arc<[u64]>),
}

impl Schedule {
    /// How many of this connection's requests should have left until `nanos` after the start, that moment included.
    pub(super) fn due_by(&self, nanos: u64) -> u64 {
        match self {
            Self::Turns {
                profile,
                connections,
                connection,
            } => {
                let overall = profile.requests_before(nanos.saturating_add(1));
                overall.saturating_sub(*connection).div_ceil(*connections)
            }
            Self::Times(times) => times.partition_point(|&time| time <= nanos) as u64,
        }
    }

    /// When request `number` of this connection should leave, in nanoseconds after the start; `u64::MAX` for never.
    #[inline]
    pub(super) fn intended_nanos(&self, number: u64) -> u64 {
        match self {
            Self::Turns {
                profile,
                connections,
                connection,
            } => {
                let overall = number
                    .checked_mul(*connections)
                    .and_then(|turn| turn.checked_add(*connection));
                overall.map_or(u64::MAX, |overall| profile.intended_nanos(overall))
            }
            Self::Times(times) => usize::try_from(number)
                .ok()
                .and_then(|number| times.get(number).copied())
                .unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn connections_take_turns() {
        let profile = Profile::constant(NonZeroU64::new(1_000).unwrap());
        let mut times: Vec<_> = (0..3)
            .flat_map(|connection| {
                let schedule = Schedule::Turns {
                    profile: profile.clone(),
                    connections: 3,
                    connection,
                };
                (0..4).map(move |number| schedule.intended_nanos(number))
            })
            .collect();
        times.sort_unstable();
        let expected: Vec<_> = (0..12).map(|index| index * 1_000_000).collect();
        assert_eq!(times, expected);
    }

    #[test]
    fn as_many_are_due_as_have_their_time() {
        let profile = Profile::constant(NonZeroU64::new(1_000_000_000).unwrap());
        let turns = |connection| Schedule::Turns {
            profile: profile.clone(),
            connections: 3,
            connection,
        };
        for schedule in [turns(0), turns(2), Schedule::Times([3, 5, 5, 9].into())] {
            for nanos in 0..12 {
                let times = (0..20).map(|number| schedule.intended_nanos(number));
                let due = times.filter(|&time| time <= nanos).count() as u64;
                assert_eq!(schedule.due_by(nanos), due, "{schedule:?} by {nanos}");
            }
        }
        // It takes no longer for many.
        let hundred_years = 100 * 365 * 86_400 * 1_000_000_000;
        assert_eq!(turns(0).due_by(hundred_years), hundred_years / 3 + 1);
    }

    #[test]
    fn recorded_times_end() {
        let schedule = Schedule::Times([3, 5].into());
        let times: Vec<_> = (0..3)
            .map(|number| schedule.intended_nanos(number))
            .collect();
        assert_eq!(times, [3, 5, u64::MAX]);
    }
}
