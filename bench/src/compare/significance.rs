//! Decides whether a measurement changed by more than noise. Both conditions must hold:
//!
//! - The relative difference exceeds the noise, 20 % by default: rates and latencies of identical runs differ by this much on a
//!   shared machine. For CPU time, half of this threshold applies.
//! - The samples differ in the same direction according to a Mann-Whitney test at the 1 % level, which assumes no distribution.
//!   With fewer than eight samples on either side, only the first condition applies. Tail values (p99 and above, maximum) are
//!   compared without samples: one stalled second determines a tail value, but changes the rank of only one sample.
//!
//! The test alone would find a change in nearly every pair of runs, because successive seconds of a run are correlated.

use crate::report::{Better, Measurement, Report, Row, unit::CPU_MICROS};

/// Minimum number of samples for the normal approximation of the test statistic.
const SAMPLES_MIN: usize = 8;
/// Two-sided 1 % bound of the test statistic.
const Z_AT_ONE_PERCENT: f64 = 2.576;

/// Noise of CPU time relative to that of times and rates.
const CPU_NOISE: f64 = 0.5;

/// A measurement that is in one report or in both.
pub(super) struct Change<'a> {
    name: String,
    a: Option<&'a Measurement>,
    b: Option<&'a Measurement>,
    pub(super) verdict: Verdict,
}

/// Result of comparing a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Improved beyond noise.
    Better,
    /// Worsened beyond noise.
    Worse,
    /// Within noise.
    Noise,
    /// In one report only.
    Unmatched,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Noise => "within noise",
            Self::Unmatched => "in one report only",
        }
    }
}

/// All compared measurements of A in order, then those that only B contains.
pub(super) fn changes<'a>(a: &'a Report, b: &'a Report, noise: f64) -> Vec<Change<'a>> {
    let [of_a, of_b] = [a, b].map(|report| {
        let compared = report.measurements();
        let compared = compared.filter(|(_, it)| it.better.is_some() && it.value.is_some());
        compared.collect::<Vec<_>>()
    });
    let find = |of: &[(String, &'a Measurement)], name: &str| {
        let found = of.iter().find(|(other, _)| other == name);
        found.map(|(_, it)| *it)
    };
    let names = of_a.iter().chain(&of_b).map(|(name, _)| name);
    let names = names
        .enumerate()
        .filter(|(at, name)| *at < of_a.len() || find(&of_a, name).is_none());
    let changes = names.map(|(_, name)| {
        let (a, b) = (find(&of_a, name), find(&of_b, name));
        let verdict = a.zip(b).map(|(a, b)| verdict(a, b, noise));
        Change {
            name: name.clone(),
            a,
            b,
            verdict: verdict.unwrap_or(Verdict::Unmatched),
        }
    });
    changes.collect()
}

fn verdict(a: &Measurement, b: &Measurement, noise: f64) -> Verdict {
    let noise = if a.unit == CPU_MICROS {
        noise * CPU_NOISE
    } else {
        noise
    };
    let (from, to) = (a.value.unwrap_or(0.0), b.value.unwrap_or(0.0));
    // Any difference from zero exceeds the noise: one lost cookie is a change.
    let is_large = (to - from).abs() > noise * from.abs();
    let rises = to > from;
    let (lower, higher) = if rises { (a, b) } else { (b, a) };
    if !is_large || !samples_differ(&lower.samples, &higher.samples) {
        Verdict::Noise
    } else if rises == (a.better == Some(Better::Higher)) {
        Verdict::Better
    } else {
        Verdict::Worse
    }
}

/// Whether `higher` has significantly larger samples; also true with too few samples.
fn samples_differ(lower: &[f64], higher: &[f64]) -> bool {
    lower.len().min(higher.len()) < SAMPLES_MIN || mann_whitney_z(lower, higher) > Z_AT_ONE_PERCENT
}

/// Standard deviations by which the rank sum of `a` is below its expected value; negative if it is above.
fn mann_whitney_z(a: &[f64], b: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> = a.iter().map(|value| (*value, true)).collect();
    all.extend(b.iter().map(|value| (*value, false)));
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut ranks_of_a, mut ties, mut before) = (0.0, 0.0, 0.0);
    for equal in all.chunk_by(|a, b| a.0 == b.0) {
        let count = equal.len() as f64;
        let rank = before + (count + 1.0) / 2.0;
        ranks_of_a += rank * equal.iter().filter(|(_, is_a)| *is_a).count() as f64;
        ties += count.powi(3) - count;
        before += count;
    }
    let (n_a, n_b, n) = (a.len() as f64, b.len() as f64, all.len() as f64);
    let expected = n_a * (n + 1.0) / 2.0;
    let variance = n_a * n_b / 12.0 * (n + 1.0 - ties / (n * (n - 1.0)));
    if variance > 0.0 {
        (expected - ranks_of_a) / variance.sqrt()
    } else {
        0.0
    }
}

impl Change<'_> {
    /// The row in the table.
    pub(super) fn row(&self) -> Row {
        let [a, b, percent] = self.texts();
        let measurements = [("A", a), ("B", b), ("change", percent)];
        let measurements = measurements.map(|(name, text)| Measurement::text(name, text));
        Row::new(&self.name, measurements).with([Measurement::text("verdict", self.verdict.name())])
    }

    /// The failure message for a measurement that got worse.
    pub(super) fn sentence(&self) -> String {
        let [a, b, percent] = self.texts();
        format!("{} got worse: {a} → {b} ({percent})", self.name)
    }

    /// The values in A and B, and the change in percent.
    fn texts(&self) -> [String; 3] {
        let text =
            |measurement: Option<&Measurement>| measurement.map_or("–", |it| &it.text).to_owned();
        let values = self.a.zip(self.b).and_then(|(a, b)| a.value.zip(b.value));
        let relative = values.map(|(a, b)| (b - a) / a.abs());
        let relative = relative.filter(|change| change.is_finite());
        let percent = relative.map(|change| format!("{:+.1} %", 100.0 * change));
        [
            text(self.a),
            text(self.b),
            percent.unwrap_or_else(|| "–".to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::unit::{CPU, RATE, Unit};

    fn report(name: &str, unit: Unit, value: f64, better: Better, samples: &[f64]) -> Report {
        let measurement = Measurement {
            better: Some(better),
            ..unit.of(name, value)
        };
        let mut report = Report::new("load", "example");
        let measurement = measurement.with_samples(samples.iter().copied());
        report.add("Measurements", "", [Row::new("", [measurement])]);
        report
    }

    fn verdicts(a: &Report, b: &Report) -> Vec<(String, Verdict)> {
        let changes = changes(a, b, 0.2).into_iter();
        changes.map(|it| (it.name, it.verdict)).collect()
    }

    #[track_caller]
    fn check(a: (f64, &[f64]), b: (f64, &[f64]), better: Better, expected: Verdict) {
        let [a, b] = [a, b].map(|(value, samples)| report("rate", RATE, value, better, samples));
        assert_eq!(verdicts(&a, &b), [("rate".to_owned(), expected)]);
    }

    #[test]
    fn only_changes_beyond_noise_count() {
        use Better::{Higher, Lower};
        for (a, b, better, expected) in [
            (100.0, 119.0, Higher, Verdict::Noise),
            (100.0, 121.0, Higher, Verdict::Better),
            (100.0, 79.0, Higher, Verdict::Worse),
            (100.0, 121.0, Lower, Verdict::Worse),
            (100.0, 79.0, Lower, Verdict::Better),
            (0.0, 0.0, Lower, Verdict::Noise),
            (0.0, 1.0, Lower, Verdict::Worse),
            (-10.0, -5.0, Higher, Verdict::Better),
        ] {
            check((a, &[]), (b, &[]), better, expected);
        }
    }

    #[test]
    fn samples_are_compared_by_rank() {
        let around = |center: f64, spread: f64| -> Vec<f64> {
            (0..20)
                .map(|n| center + spread * (f64::from(n * 7 % 20) / 10.0 - 1.0))
                .collect()
        };
        let higher = Better::Higher;
        let (narrow, wide) = (around(100.0, 30.0), around(130.0, 30.0));
        check((100.0, &narrow), (130.0, &wide), higher, Verdict::Better);
        let (wild_a, wild_b) = (around(100.0, 400.0), around(130.0, 400.0));
        check((100.0, &wild_a), (130.0, &wild_b), higher, Verdict::Noise);
        check(
            (100.0, &wild_a[..7]),
            (130.0, &wild_b),
            higher,
            Verdict::Better,
        );
        let equal = [7.0; 10];
        check((100.0, &equal), (130.0, &equal), higher, Verdict::Noise);
    }

    #[test]
    fn statistic_matches_the_textbook_example() {
        // U of 1..=8 against 9..=16 is 0: (32 − 0) / √(8 · 8 · 17 / 12).
        let [a, b] = [1, 9].map(|first| (first..first + 8).map(f64::from).collect::<Vec<_>>());
        assert!((mann_whitney_z(&a, &b) - 3.3607).abs() < 1e-4);
        assert!((mann_whitney_z(&b, &a) + 3.3607).abs() < 1e-4);
        assert_eq!(mann_whitney_z(&a, &a), 0.0);
    }

    #[test]
    fn samples_must_change_in_the_direction_of_the_value() {
        let [low, high] =
            [100, 200].map(|first| (first..first + 20).map(f64::from).collect::<Vec<_>>());
        let higher = Better::Higher;
        check((100.0, &low), (200.0, &high), higher, Verdict::Better);
        check((200.0, &high), (100.0, &low), higher, Verdict::Worse);
        check((100.0, &high), (200.0, &low), higher, Verdict::Noise);
        check((200.0, &low), (100.0, &high), higher, Verdict::Noise);
    }

    #[test]
    fn cpu_time_has_half_the_noise() {
        let cpu = |value| report("cost", CPU, value, Better::Lower, &[]);
        assert_eq!(verdicts(&cpu(1.0), &cpu(1.15))[0].1, Verdict::Worse);
        assert_eq!(verdicts(&cpu(1.0), &cpu(1.09))[0].1, Verdict::Noise);
    }

    #[test]
    fn unmatched_measurements_are_listed() {
        let one = |name, value| report(name, RATE, value, Better::Lower, &[]);
        let expected = ["a", "b"].map(|name| (name.to_owned(), Verdict::Unmatched));
        assert_eq!(verdicts(&one("a", 1.0), &one("b", 3.0)), expected);
        assert_eq!(verdicts(&one("a", f64::NAN), &one("b", 3.0)), expected[1..]);
    }
}
