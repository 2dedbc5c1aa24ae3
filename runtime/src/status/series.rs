//! The recent past of one figure, and how fast a counter grows.

use std::collections::VecDeque;

use serde::{Serialize, Serializer};
use tokio::time::Instant;

use super::HISTORY_SAMPLES;

/// The newest [`HISTORY_SAMPLES`] values of a figure, the oldest first; 1.2 KiB when full.
///
/// Is written as an array of numbers with four digits that count, which is finer than any picture of them.
#[derive(Debug, Clone, Default)]
pub struct Series(VecDeque<f32>);

impl Series {
    /// Adds the newest value.
    pub fn push(&mut self, value: f64) {
        if self.0.len() == HISTORY_SAMPLES {
            self.0.pop_front();
        }
        #[expect(clippy::cast_possible_truncation, reason = "a picture needs no more")]
        self.0.push_back(value as f32);
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Series {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|&value| short(f64::from(value))))
    }
}

/// The value with four digits that count, or without a fraction where it has more before the point.
#[must_use]
pub fn short(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let digits = 3.0 - value.abs().log10().floor();
    let scale = 10_f64.powf(digits.clamp(0.0, 9.0));
    (value * scale).round() / scale
}

/// How fast a counter grows, from one look at it to the next.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rate {
    last: Option<(u64, Instant)>,
    per_second: f64,
}

impl Rate {
    /// Looks at the counter; returns its growth a second since the last look, 0 at the first or when it went back.
    pub fn look(&mut self, count: u64, now: Instant) -> f64 {
        if let Some((before, then)) = self.last.replace((count, now)) {
            let seconds = (now - then).as_secs_f64();
            let grown = count.saturating_sub(before);
            #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
            let grown = grown as f64;
            if seconds > 0.0 {
                self.per_second = short(grown / seconds);
            }
        }
        self.per_second
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn series_keeps_the_newest_and_is_written_short() {
        let mut series = Series::default();
        for value in 0..HISTORY_SAMPLES + 3 {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            series.push(value as f64);
        }
        assert_eq!(series.len(), HISTORY_SAMPLES);
        let written = serde_json::to_string(&series).unwrap();
        assert!(written.starts_with("[3.0,4.0,5.0,"), "{written}");
        assert!(written.ends_with(",302.0]"), "{written}");
    }

    #[test]
    fn values_are_cut_down_to_what_a_person_reads() {
        for (value, shown) in [
            (0.0, 0.0),
            (123_456.7, 123_457.0),
            (12.345_67, 12.35),
            (0.001_234_56, 0.001_235),
            (f64::NAN, 0.0),
            (f64::INFINITY, 0.0),
        ] {
            assert!((short(value) - shown).abs() < 1e-12, "{value}");
        }
    }

    #[test]
    fn rate_is_what_was_added_since_the_last_look() {
        let (start, mut rate) = (Instant::now(), Rate::default());
        let after = |seconds| start + Duration::from_secs(seconds);
        let looks = [
            (100, 0, 0.0),
            (150, 1, 50.0),
            (150, 3, 0.0),
            (10, 4, 0.0),
            (30, 6, 10.0),
        ];
        for (count, at, per_second) in looks {
            assert!(
                (rate.look(count, after(at)) - per_second).abs() < 1e-9,
                "{at}"
            );
        }
    }
}
