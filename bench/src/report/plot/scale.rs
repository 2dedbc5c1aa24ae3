//! One axis: from values to places on it, round ticks, and their labels.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// Values beyond this are not measurements, and their differences not finite.
const VALUE_MAX: f64 = 1e300;
/// Values below this are as good as zero.
const VALUE_MIN: f64 = 1e-300;

/// Decimals that a label may have, zeros at the end left out. More than the least are shown where neighbours would read
/// alike without them.
const DECIMALS_MIN: usize = 3;
const DECIMALS_MAX: usize = 6;

/// From values to places: the values themselves, or their logarithms.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    logarithmic: bool,
    /// Place of the lower end.
    pub(super) low: f64,
    /// Place of the upper end, above `low`.
    pub(super) high: f64,
    /// Places of the ticks.
    pub(super) ticks: Vec<f64>,
}

/// What an axis should do with the range of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// End with the values, for the horizontal axis.
    AtValues,
    /// End with ticks, and begin with zero unless it is logarithmic, so that heights can be compared.
    AtTicks,
}

impl Scale {
    /// A scale for all of `values` that have a place on it, with about `ticks` ticks.
    pub(super) fn new(
        values: impl Iterator<Item = f64>,
        logarithmic: bool,
        ends: Ends,
        ticks: usize,
    ) -> Self {
        let places = values.filter_map(|value| place(value, logarithmic));
        let range = places.fold(None, |range: Option<(f64, f64)>, at| {
            let (low, high) = range.unwrap_or((at, at));
            Some((low.min(at), high.max(at)))
        });
        let (low, high) = range.unwrap_or((0.0, 1.0));
        if logarithmic {
            Self::logarithmic(low, high, ends, ticks)
        } else {
            Self::linear(low, high, ends, ticks)
        }
    }

    fn linear(low: f64, high: f64, ends: Ends, ticks: usize) -> Self {
        let (mut low, mut high) = match ends {
            Ends::AtTicks => (low.min(0.0), high.max(0.0)),
            Ends::AtValues => (low, high),
        };
        if low == high {
            let margin = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
            (low, high) = match ends {
                Ends::AtTicks => (low, low + margin),
                Ends::AtValues => (low - margin, high + margin),
            };
        }
        let step = round_step((high - low) / ticks.max(1) as f64);
        if ends == Ends::AtTicks {
            low = (low / step).floor() * step;
            high = (high / step).ceil() * step;
        }
        let first = (low / step).ceil();
        let count = ((high / step) * (1.0 + f64::EPSILON) - first)
            .floor()
            .max(0.0);
        #[expect(clippy::cast_possible_truncation, reason = "about as many as `ticks`")]
        let ticks = (0..=count as u32).map(|tick| (first + f64::from(tick)) * step);
        Self {
            logarithmic: false,
            low,
            high,
            ticks: ticks.collect(),
        }
    }

    fn logarithmic(low: f64, high: f64, ends: Ends, ticks: usize) -> Self {
        // A place that a rounding error away from a tick would get another decade.
        let (low, high) = (low + 1e-9, high - 1e-9);
        let few = (high - low) * 3.0 <= ticks as f64;
        let every = ((high - low) / ticks.max(1) as f64).ceil().max(1.0);
        let factors: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "exponents of an f64 are small"
        )]
        let decades = (low.floor() as i32)..=(high.ceil() as i32);
        let all: Vec<f64> = decades
            .step_by(to_step(every))
            .flat_map(|decade| factors.iter().map(move |f| f64::from(decade) + f.log10()))
            .collect();
        let below = all.iter().copied().rfind(|tick| *tick <= low);
        let above = all.iter().copied().find(|tick| *tick >= high);
        let (low, high) = match ends {
            Ends::AtTicks => (below.unwrap_or(low), above.unwrap_or(high)),
            Ends::AtValues => (low - 1e-9, high + 1e-9),
        };
        let (low, high) = if high - low < 1e-6 {
            (low - 0.5, high + 0.5)
        } else {
            (low, high)
        };
        let within = (low - 1e-9)..=(high + 1e-9);
        Self {
            logarithmic: true,
            low,
            high,
            ticks: all.into_iter().filter(|at| within.contains(at)).collect(),
        }
    }

    /// Where a value stands; `None` when it has no place.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        place(value, self.logarithmic)
    }

    /// The labels of all ticks.
    pub(super) fn labels(&self) -> Vec<String> {
        let value = |place: &f64| {
            if self.logarithmic {
                10_f64.powf(*place)
            } else {
                *place
            }
        };
        let values: Vec<f64> = self.ticks.iter().map(value).collect();
        let with =
            |decimals| -> Vec<String> { values.iter().map(|value| si(*value, decimals)).collect() };
        let is_clear = |labels: &Vec<String>| labels.windows(2).all(|pair| pair[0] != pair[1]);
        let mut all = (DECIMALS_MIN..DECIMALS_MAX).map(with);
        all.find(is_clear).unwrap_or_else(|| with(DECIMALS_MAX))
    }
}

/// For plotters, values are our places.
impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (place - self.low) / (self.high - self.low);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a pixel within the drawing"
        )]
        let pixels = (share * f64::from(to - from)).round() as i32;
        from + pixels
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, place: &f64) -> String {
        let tick = self.ticks.iter().position(|tick| tick == place);
        tick.map_or_else(String::new, |tick| self.labels().swap_remove(tick))
    }
}

fn to_step(every: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at least 1, at most some hundreds"
    )]
    let step = every as usize;
    step.max(1)
}

fn place(value: f64, logarithmic: bool) -> Option<f64> {
    let value = if value.abs() < VALUE_MIN { 0.0 } else { value };
    let is_shown = value.abs() <= VALUE_MAX && (!logarithmic || value > 0.0);
    is_shown.then(|| if logarithmic { value.log10() } else { value })
}

/// The next of 1, 2 and 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.max(f64::MIN_POSITIVE).log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * power >= step * 0.999);
    factor.unwrap_or(10.0) * power
}

/// A number as short as it can be: `1.2 M`, with at most so many decimals.
fn si(value: f64, decimals: usize) -> String {
    let size = value.abs();
    let (divisor, suffix) = match size {
        0.0 => return "0".to_owned(),
        1e15.. | ..1e-4 => return format!("{value:.1e}"),
        1e12.. => (1e12, " T"),
        1e9.. => (1e9, " G"),
        1e6.. => (1e6, " M"),
        1e3.. => (1e3, " k"),
        _ => (1.0, ""),
    };
    let digits = format!("{:.decimals$}", value / divisor);
    let digits = if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        &digits
    };
    format!("{digits}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(values: &[f64], logarithmic: bool, ends: Ends, expected: &[&str]) {
        let scale = Scale::new(values.iter().copied(), logarithmic, ends, 5);
        assert_eq!(scale.labels(), expected);
        assert!(scale.low < scale.high, "{scale:?}");
        for value in values.iter().filter_map(|value| scale.place(*value)) {
            let inside = (scale.low - 1e-6)..=(scale.high + 1e-6);
            assert!(inside.contains(&value), "{value} in {scale:?}");
        }
    }

    #[test]
    fn ticks_are_round() {
        use Ends::{AtTicks, AtValues};
        check(&[], false, AtTicks, &["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        check(
            &[0.0],
            false,
            AtTicks,
            &["0", "0.2", "0.4", "0.6", "0.8", "1"],
        );
        let thousands = ["0", "50 k", "100 k", "150 k", "200 k"];
        check(&[20e3, 170e3], false, AtTicks, &thousands);
        let millions = ["0", "500 k", "1 M", "1.5 M"];
        check(&[f64::NAN, 1.21e6], false, AtTicks, &millions);
        check(&[3.0, 17.0], false, AtValues, &["5", "10", "15"]);
        check(&[-3.0, 3.0], false, AtTicks, &["-4", "-2", "0", "2", "4"]);
        let small = ["0", "0.002", "0.004", "0.006", "0.008", "0.01"];
        check(&[0.009], false, AtTicks, &small);
        check(&[7.0], false, AtValues, &["4", "6", "8", "10"]);
    }

    #[test]
    fn ticks_of_logarithms_are_powers_of_ten() {
        use Ends::{AtTicks, AtValues};
        let decades = ["1", "10", "100"];
        check(&[1.0, 7.0, 100.0], true, AtValues, &decades);
        check(&[0.0, -1.0, 12.0, 40.0], true, AtTicks, &["10", "20", "50"]);
        check(
            &[1e-3, 1e6],
            true,
            AtTicks,
            &["0.001", "0.1", "10", "1 k", "100 k"],
        );
    }

    #[test]
    fn values_of_any_size_have_a_scale() {
        let strange = [
            f64::INFINITY,
            f64::MAX,
            f64::MIN,
            1e300,
            -1e300,
            5e-324,
            f64::NAN,
        ];
        for values in strange
            .iter()
            .map(|value| vec![*value])
            .chain([strange.to_vec()])
        {
            for logarithmic in [false, true] {
                for ends in [Ends::AtTicks, Ends::AtValues] {
                    let scale = Scale::new(values.iter().copied(), logarithmic, ends, 5);
                    assert!(scale.low < scale.high, "{values:?}: {scale:?}");
                    assert!(scale.ticks.len() < 20, "{values:?}: {scale:?}");
                }
            }
        }
    }
}
