//! How many requests should have left by when: constant, in steps, over a day, in bursts.
//!
//! Every profile is a row of stretches of constant rate, gone through once or again and again. So all arithmetic is in whole
//! numbers, and "when does request n leave" is the exact inverse of "how many leave before t". Even the curve of a day
//! is such a row: of its 1,440 minutes.

use std::{fmt, num::NonZeroU64, sync::Arc, time::Duration};

use crate::report::{grouped, rate};

const NANOS_PER_SECOND: u128 = 1_000_000_000;
const MINUTES_PER_DAY: u64 = 24 * 60;

/// Highest rate of a profile: one request for each nanosecond, the unit of its times.
pub const RATE_MAX: u64 = 1_000_000_000;

/// A rate over time.
#[derive(Debug, Clone)]
pub struct Profile {
    stretches: Arc<[Stretch]>,
    /// Of all stretches together; never 0.
    nanos: u64,
    /// Of all stretches together, in nano-requests.
    units: u128,
    repeats: bool,
    steps: Option<Steps>,
    description: Arc<str>,
}

/// A time of constant rate.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    rate: NonZeroU64,
    from_nanos: u64,
    /// What should have left before it, in nano-requests.
    from_units: u128,
}

/// The steps of a ramp.
#[derive(Debug, Clone)]
pub struct Steps {
    /// Requests a second in each.
    pub rates: Vec<NonZeroU64>,
    /// How long each takes.
    pub each: Duration,
}

impl Profile {
    /// Always the same rate.
    #[must_use]
    pub fn constant(rate: NonZeroU64) -> Self {
        let second = (rate, Duration::from_secs(1));
        Self::new([second], true, report_rate(rate))
    }

    /// One rate after the other, each for `each`; ends after the last.
    ///
    /// # Panics
    /// Without rates, or when `each` is zero.
    #[must_use]
    pub fn steps(rates: Vec<NonZeroU64>, each: Duration) -> Self {
        let names: Vec<_> = rates.iter().map(|rate| grouped(rate.get())).collect();
        let length = humantime::format_duration(each);
        let description = format!("{}/s for {length} each", names.join(", "));
        Self {
            steps: Some(Steps {
                rates: rates.clone(),
                each,
            }),
            ..Self::new(rates.iter().map(|&rate| (rate, each)), false, description)
        }
    }

    /// A day within `day`, again and again: it begins at its quietest, with `low`, and is at its busiest, with `peak`,
    /// half a day later; between them a sine.
    ///
    /// # Panics
    /// When `day` is shorter than 1,440 ns.
    #[must_use]
    pub fn daily(low: NonZeroU64, peak: NonZeroU64, day: Duration) -> Self {
        let rate_at = |minute: u64| {
            let turn = (minute as f64 + 0.5) / MINUTES_PER_DAY as f64 * std::f64::consts::TAU;
            let share = (1.0 - turn.cos()) / 2.0;
            let (low, peak) = (low.get() as f64, peak.get() as f64);
            rounded(low + (peak - low) * share)
        };
        let nanos = nanos(day);
        let start_of = |minute: u64| {
            let start = u128::from(nanos) * u128::from(minute) / u128::from(MINUTES_PER_DAY);
            u64::try_from(start).expect("it is within the day")
        };
        let minutes = (0..MINUTES_PER_DAY).map(|minute| {
            let length = start_of(minute + 1) - start_of(minute);
            (rate_at(minute), Duration::from_nanos(length))
        });
        let [from, to] = [low, peak].map(|rate| grouped(rate.get()));
        let length = humantime::format_duration(day);
        Self::new(
            minutes,
            true,
            format!("{from} to {to}/s and back within {length}"),
        )
    }

    /// `rate`, and at the end of each `every` for `lasting` that times `factor`.
    ///
    /// # Panics
    /// When `lasting` is zero or not shorter than `every`.
    #[must_use]
    pub fn bursts(rate: NonZeroU64, factor: f64, every: Duration, lasting: Duration) -> Self {
        let burst = rounded(rate.get() as f64 * factor);
        let [between, length] = [every, lasting].map(humantime::format_duration);
        let description = format!(
            "{}, every {between} {} for {length}",
            report_rate(rate),
            report_rate(burst)
        );
        let quiet = every.checked_sub(lasting).expect("bursts are shorter");
        Self::new([(rate, quiet), (burst, lasting)], true, description)
    }

    fn new(
        parts: impl IntoIterator<Item = (NonZeroU64, Duration)>,
        repeats: bool,
        description: String,
    ) -> Self {
        let (mut from_nanos, mut from_units) = (0, 0);
        let mut stretches = Vec::new();
        for (rate, length) in parts {
            assert!(!length.is_zero(), "a stretch takes time");
            stretches.push(Stretch {
                rate,
                from_nanos,
                from_units,
            });
            from_nanos += nanos(length);
            from_units += u128::from(rate.get()) * length.as_nanos();
        }
        assert!(!stretches.is_empty(), "a profile has a rate");
        Self {
            stretches: stretches.into(),
            nanos: from_nanos,
            units: from_units,
            repeats,
            steps: None,
            description: description.into(),
        }
    }

    /// Its steps, when it consists of such.
    #[must_use]
    pub fn as_steps(&self) -> Option<&Steps> {
        self.steps.as_ref()
    }

    /// How long it goes on; `None` when it repeats.
    #[must_use]
    pub fn ends_after(&self) -> Option<Duration> {
        (!self.repeats).then(|| Duration::from_nanos(self.nanos))
    }

    /// How many requests should leave before `nanos` after the start: the number of the first that leaves then or later.
    #[must_use]
    pub fn requests_before(&self, nanos: u64) -> u64 {
        let nanos = if self.repeats {
            nanos
        } else {
            nanos.min(self.nanos)
        };
        let Some(last) = nanos.checked_sub(1) else {
            return 0;
        };
        let requests = self.units_at(last) / NANOS_PER_SECOND + 1;
        u64::try_from(requests).unwrap_or(u64::MAX)
    }

    /// When request `number`, from 0, should leave, in nanoseconds after the start; `u64::MAX` for never.
    #[must_use]
    #[inline]
    pub fn intended_nanos(&self, number: u64) -> u64 {
        let units = u128::from(number) * NANOS_PER_SECOND;
        let (passes, rest) = if units < self.units {
            (0, units)
        } else if self.repeats {
            (units / self.units, units % self.units)
        } else {
            return u64::MAX;
        };
        let next = match &*self.stretches {
            [_] => 1,
            several => several.partition_point(|stretch| stretch.from_units <= rest),
        };
        let stretch = self.stretches[next - 1];
        let within = (rest - stretch.from_units).div_ceil(u128::from(stretch.rate.get()));
        let nanos = u128::from(self.nanos) * passes + u128::from(stretch.from_nanos) + within;
        match u64::try_from(nanos) {
            Ok(nanos) if self.repeats || nanos < self.nanos => nanos,
            _ => u64::MAX,
        }
    }

    /// Nano-requests that are due until `nanos` after the start.
    fn units_at(&self, nanos: u64) -> u128 {
        let (passes, rest) = (nanos / self.nanos, nanos % self.nanos);
        let next = self
            .stretches
            .partition_point(|stretch| stretch.from_nanos <= rest);
        let stretch = self.stretches[next - 1];
        let within = u128::from(rest - stretch.from_nanos) * u128::from(stretch.rate.get());
        u128::from(passes) * self.units + stretch.from_units + within
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

fn report_rate(requests: NonZeroU64) -> String {
    rate(requests.get() as f64)
}

fn rounded(rate: f64) -> NonZeroU64 {
    #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
    let rounded = rate.round() as u64;
    NonZeroU64::new(rounded.min(RATE_MAX)).unwrap_or(NonZeroU64::MIN)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate_of(rate: u64) -> NonZeroU64 {
        NonZeroU64::new(rate).unwrap()
    }

    /// Requests in the second that begins at `second`.
    #[track_caller]
    fn check_second(profile: &Profile, second: u64, expected: u64) {
        let at = |second: u64| profile.requests_before(second * 1_000_000_000);
        assert_eq!(at(second + 1) - at(second), expected, "second {second}");
    }

    #[test]
    fn constant_rate_is_one_request_after_the_other() {
        let profile = Profile::constant(rate_of(1_000));
        let times: Vec<_> = (0..4)
            .map(|number| profile.intended_nanos(number))
            .collect();
        assert_eq!(times, [0, 1_000_000, 2_000_000, 3_000_000]);
        assert_eq!(profile.intended_nanos(1_000_000), 1_000_000_000_000);
        assert_eq!(profile.requests_before(2_500_000_000), 2_500);
    }

    #[test]
    fn steps_follow_each_other_and_end() {
        let rates = [10, 20, 5].map(rate_of).to_vec();
        let profile = Profile::steps(rates, Duration::from_secs(2));
        for (second, expected) in (0..).zip([10, 10, 20, 20, 5, 5, 0]) {
            check_second(&profile, second, expected);
        }
        assert_eq!(profile.intended_nanos(20), 2_000_000_000);
        assert_eq!(profile.intended_nanos(70), u64::MAX);
        assert_eq!(profile.ends_after(), Some(Duration::from_secs(6)));
    }

    #[test]
    fn bursts_come_at_the_end_of_each_period() {
        let seconds = Duration::from_secs;
        let profile = Profile::bursts(rate_of(100), 5.0, seconds(3), seconds(1));
        for (second, expected) in (0..).zip([100, 100, 500, 100, 100, 500]) {
            check_second(&profile, second, expected);
        }
    }

    #[test]
    fn day_begins_quietly_and_is_busiest_in_its_middle() {
        let day = Duration::from_secs(120);
        let profile = Profile::daily(rate_of(100), rate_of(1_100), day);
        let counts: Vec<_> = (0..120)
            .map(|second| {
                let at = |second: u64| profile.requests_before(second * 1_000_000_000);
                at(second + 1) - at(second)
            })
            .collect();
        for (second, expected) in [(0, 100), (59, 1_100), (60, 1_100), (119, 100)] {
            let count: u64 = counts[second];
            assert!(count.abs_diff(expected) <= 2, "{count} in second {second}");
        }
        assert!(counts[..60].is_sorted() && counts[60..].iter().rev().is_sorted());
        // The mean of a sine is the middle.
        let total: u64 = counts.iter().sum();
        assert!(total.abs_diff(120 * 600) < 120, "{total}");
        let per_day = profile.requests_before(120_000_000_000);
        assert_eq!(profile.requests_before(240_000_000_000), 2 * per_day);
    }

    fn profiles() -> impl Strategy<Value = Profile> {
        let rates = prop::collection::vec(1..RATE_MAX, 1..5);
        let nanos = 2_000..u64::from(u32::MAX) * 100;
        (rates, nanos, 0..4_u8).prop_map(|(rates, nanos, kind)| {
            let rates: Vec<_> = rates.into_iter().map(rate_of).collect();
            let (low, peak) = (rates[0], rates[rates.len() - 1]);
            let length = Duration::from_nanos(nanos);
            match kind {
                0 => Profile::constant(low),
                1 => Profile::steps(rates, length),
                2 => Profile::daily(low, peak, length),
                _ => Profile::bursts(low, 1.5, length, length / 3),
            }
        })
    }

    proptest! {
        #[test]
        fn time_and_number_are_each_others_inverse(
            profile in profiles(),
            number in 0..1_000_000_000_u64,
            nanos in 0..10_000_000_000_000_u64,
        ) {
            let intended = profile.intended_nanos(number);
            prop_assert!(profile.intended_nanos(number + 1) >= intended);
            if intended < u64::MAX {
                prop_assert!(profile.requests_before(intended) <= number);
                prop_assert!(profile.requests_before(intended + 1) > number);
            }
            let before = profile.requests_before(nanos);
            prop_assert!(profile.intended_nanos(before) >= nanos);
            if let Some(last) = before.checked_sub(1) {
                prop_assert!(profile.intended_nanos(last) < nanos);
            }
        }
    }
}
