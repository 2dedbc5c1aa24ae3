//! Which streams are named in the log when they open and end: a client that opens them again and again, or under ever new
//! names, fills no disk. The counts of all are in the metrics.

use std::time::{Duration, Instant};

/// A name's streams are told this far apart.
const NAME_PAUSE: Duration = Duration::from_secs(1);

/// Of all names together, so many are told in [`PERIOD`]: several times as many as there are consumers, so that all that come back
/// after a restart are named.
const STREAMS_MAX: u32 = 500;
const PERIOD: Duration = Duration::from_secs(10);

/// When a subscriber's stream was last told.
#[derive(Debug, Default)]
pub(super) struct OfName(Option<Instant>);

/// What was told lately, of all names.
#[derive(Debug, Default)]
pub(super) struct OfAll {
    period: Option<Instant>,
    told: u32,
    left_out: u64,
}

impl OfAll {
    /// Whether a stream that opens now is told; if so, how many before it were not.
    pub(super) fn admit(&mut self, name: &mut OfName, now: Instant) -> Option<u64> {
        if self.period.is_none_or(|began| now - began >= PERIOD) {
            self.period = Some(now);
            self.told = 0;
        }
        let is_early = name.0.is_some_and(|told| now - told < NAME_PAUSE);
        if is_early || self.told >= STREAMS_MAX {
            self.left_out += 1;
            return None;
        }
        name.0 = Some(now);
        self.told += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_once_in_its_time_and_what_was_left_out_is_counted() {
        let (mut all, mut name) = (OfAll::default(), OfName::default());
        let start = Instant::now();
        let half = NAME_PAUSE / 2;
        assert_eq!(all.admit(&mut name, start), Some(0));
        assert_eq!(all.admit(&mut name, start), None);
        assert_eq!(all.admit(&mut name, start + half), None);
        assert_eq!(all.admit(&mut OfName::default(), start + half), Some(2));
        assert_eq!(all.admit(&mut name, start + 2 * half), Some(0));
    }

    #[test]
    fn ever_new_names_are_bounded_together() {
        let mut all = OfAll::default();
        let start = Instant::now();
        let mut told = |at| {
            let admitted =
                (0..2 * STREAMS_MAX).filter_map(|_| all.admit(&mut OfName::default(), at));
            admitted.count()
        };
        assert_eq!(told(start), STREAMS_MAX as usize);
        assert_eq!(told(start + PERIOD / 2), 0);
        assert_eq!(told(start + PERIOD), STREAMS_MAX as usize);
    }
}
