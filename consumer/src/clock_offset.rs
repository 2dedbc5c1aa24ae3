//! Difference of two clocks, bounded by exchanges of messages. Does no I/O.
//!
//! A producer reads its clock after this host sent a request, and before this host received the response. So the bounds
//! hold whatever the delays were. A newer measurement replaces the bounds, because clocks drift and can be set.

pub use proto::limits::CLOCK_AHEAD_MICROS_MAX;
use proto::units::UnixMicros;

/// Maximum usual delay of a record, if there is no measurement.
const DELAY_MICROS: i64 = 1_000_000;

/// Bounds of how far this host's clock is ahead of a producer's, in microseconds; negative if it is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset {
    /// The minimum.
    pub min: i64,
    /// The maximum.
    pub max: i64,
}

impl ClockOffset {
    /// The bounds from an exchange: the producer's clock showed `producer` between `sent` and `received` by this host's
    /// clock.
    pub fn measured(sent: UnixMicros, producer: UnixMicros, received: UnixMicros) -> Self {
        Self {
            min: sent.ahead_of(producer),
            max: received.ahead_of(producer),
        }
    }

    /// The bounds if only records arrive: this host's clock was ahead of the time of each record by at least `max`. Unless a record
    /// shows more, a clock is ahead by less than the usual delay; by the maximum while all records were delayed.
    pub fn arrived(max: i64) -> Self {
        let min = if max <= DELAY_MICROS {
            max.min(0) - DELAY_MICROS
        } else {
            -CLOCK_AHEAD_MICROS_MAX.cast_signed()
        };
        Self { min, max }
    }

    /// The bounds after the arrival of a record: this host's clock was ahead of the record's time by `max`. If that contradicts
    /// the minimum, the producer's clock was set ahead.
    #[must_use]
    pub fn after_arrival(self, max: i64) -> Self {
        Self {
            min: if max < self.min {
                max.saturating_sub(DELAY_MICROS)
            } else {
                self.min
            },
            max: max.min(self.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_until_a_record_contradicts_them() {
        let offset = |min, max| ClockOffset { min, max };
        let measured = |sent, producer, received| {
            ClockOffset::measured(UnixMicros(sent), UnixMicros(producer), UnixMicros(received))
        };
        let ahead = measured(30_000, 90_000, 30_100);
        assert_eq!(ahead, offset(-60_000, -59_900));
        let measured = measured(20_000, 19_500, 20_600);
        assert_eq!(measured, offset(500, 1_100));
        assert_eq!(measured.after_arrival(2_000), measured);
        assert_eq!(measured.after_arrival(700), offset(500, 700));
        assert_eq!(measured.after_arrival(-60_000), offset(-1_060_000, -60_000));
    }

    #[test]
    fn clock_that_was_not_measured_is_ahead_by_the_usual_delay_at_most() {
        let bounds = |max| ClockOffset::arrived(max).min;
        assert_eq!(bounds(100_000), -1_000_000);
        assert_eq!(bounds(-3_900_000), -4_900_000);
        assert_eq!(bounds(1_000_001), -300_000_000);
    }
}
