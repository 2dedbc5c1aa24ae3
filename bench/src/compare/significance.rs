//! Whether a figure has changed, or varies by itself.
//!
//! A change counts when both hold:
//!
//! - it is larger than the noise, in relation to A: 20 % unless said otherwise. That is what wall-clock rates and
//!   latencies of equal runs differ by on a machine shared with others; for CPU time half of it;
//! - the samples of A and B lie apart in the same direction, where there are enough to tell. With eight or more on each
//!   side, by the test of Mann and Whitney at 1 %, which asks nothing of their distribution; with three or more, when their
//!   ranges do not meet. With fewer, the first condition decides alone.
//!
//! Of a tail (p99 and beyond, a maximum) the first condition decides alone too: one second in which everything stood
//! still makes such a figure what it is, and changes the rank of one sample.
//!
//! Samples of one run are not independent runs: seconds that follow each other resemble each other. So that
//! test alone would find a change in nearly every pair of runs, which is why the first condition must hold as well.

use std::fmt;

use serde::Serialize;

use crate::report::{Better, Figure};

/// Fewer samples than this on either side say nothing.
const SAMPLES_FOR_RANGE: usize = 3;
/// From this many on the normal approximation of the test's statistic is good.
const SAMPLES_FOR_TEST: usize = 8;
/// Beyond this the statistic of the test is by chance in 1 % of the cases, on both sides together.
const Z_AT_ONE_PERCENT: f64 = 2.576;

/// Noise of CPU time in relation to that of times and rates.
const CPU_NOISE: f64 = 0.5;

/// A figure in both reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The figure's name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// In A.
    pub a: Option<f64>,
    /// In B.
    pub b: Option<f64>,
    /// (B − A) / A; `null` where there is no such number.
    pub change: Option<f64>,
    /// What to think of it.
    pub verdict: Verdict,
}

/// What to think of a figure that is in two reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Improved beyond noise.
    Better,
    /// Worsened beyond noise.
    Worse,
    /// Differs beyond noise, and no way is an improvement.
    Differs,
    /// Differs no more than it varies by itself.
    Noise,
    /// Only in A.
    OnlyA,
    /// Only in B.
    OnlyB,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Differs => "different",
            Self::Noise => "within noise",
            Self::OnlyA => "only in A",
            Self::OnlyB => "only in B",
        })
    }
}

/// Every figure of A in its order, then those that only B has.
pub(super) fn changes(a: &[Figure], b: &[Figure], noise: f64) -> Vec<Change> {
    let of = |figures: &[Figure], name: &str| figures.iter().find(|f| f.name == name).cloned();
    let in_a = a
        .iter()
        .map(|figure| (Some(figure.clone()), of(b, &figure.name)));
    let only_b = b.iter().filter(|figure| of(a, &figure.name).is_none());
    let only_b = only_b.map(|figure| (None, Some(figure.clone())));
    in_a.chain(only_b)
        .filter_map(|(a, b)| change(a.as_ref(), b.as_ref(), noise))
        .collect()
}

fn change(a: Option<&Figure>, b: Option<&Figure>, noise: f64) -> Option<Change> {
    let figure = a.or(b)?;
    // A figure that could not be measured is as good as none.
    let value = |figure: Option<&Figure>| figure.map(|f| f.value).filter(|value| value.is_finite());
    let values = (value(a), value(b));
    let verdict = match (values, a, b) {
        ((Some(_), Some(_)), Some(a), Some(b)) => verdict(a, b, noise),
        ((Some(_), None), ..) => Verdict::OnlyA,
        ((None, Some(_)), ..) => Verdict::OnlyB,
        _ => return None,
    };
    let relative = values.0.zip(values.1).map(|(a, b)| (b - a) / a.abs());
    Some(Change {
        name: figure.name.clone(),
        unit: figure.unit.clone(),
        a: values.0,
        b: values.1,
        change: relative.filter(|change| change.is_finite()),
        verdict,
    })
}

fn verdict(a: &Figure, b: &Figure, noise: f64) -> Verdict {
    let noise = if is_cpu_time(a) {
        noise * CPU_NOISE
    } else {
        noise
    };
    // From zero, every difference is larger than any share of it: one lost cookie is a change.
    let is_large = (b.value - a.value).abs() > noise * a.value.abs();
    let rises = b.value > a.value;
    let (lower, higher) = if rises { (a, b) } else { (b, a) };
    if !is_large || !(is_tail(a) || lie_apart(&lower.samples, &higher.samples)) {
        return Verdict::Noise;
    }
    match (a.better, rises) {
        (Better::Neither, _) => Verdict::Differs,
        (Better::Higher, true) | (Better::Lower, false) => Verdict::Better,
        (Better::Higher, false) | (Better::Lower, true) => Verdict::Worse,
    }
}

fn is_cpu_time(figure: &Figure) -> bool {
    figure.unit == "µs" && figure.name.contains("CPU")
}

fn is_tail(figure: &Figure) -> bool {
    let mut words = figure.name.split_whitespace();
    words.any(|word| word.starts_with("p99") || word == "max")
}

/// Whether the samples of one are larger than those of the other beyond chance; also true when they are too few to tell.
fn lie_apart(lower: &[f64], higher: &[f64]) -> bool {
    let [lower, higher] = [lower, higher].map(|samples| {
        let finite = samples.iter().copied().filter(|sample| sample.is_finite());
        let mut sorted: Vec<f64> = finite.collect();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted
    });
    match lower.len().min(higher.len()) {
        ..SAMPLES_FOR_RANGE => true,
        SAMPLES_FOR_RANGE..SAMPLES_FOR_TEST => lower[lower.len() - 1] < higher[0],
        _ => mann_whitney_z(&lower, &higher) > Z_AT_ONE_PERCENT,
    }
}

/// How many standard deviations the rank sum of `a` is below what chance would give; negative when it is above.
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

impl Change {
    /// One of its values, with the unit.
    pub(super) fn written(&self, value: Option<f64>) -> String {
        let Some(value) = value else {
            return "–".to_owned();
        };
        let decimals = match value.abs() {
            _ if value.fract() == 0.0 => 0,
            100.0.. => 0,
            10.0.. => 1,
            1.0.. => 2,
            0.01.. => 3,
            _ => 5,
        };
        let space = if self.unit.is_empty() || self.unit.starts_with('/') {
            ""
        } else {
            " "
        };
        format!("{value:.decimals$}{space}{}", self.unit)
    }

    /// The change as a percentage.
    pub(super) fn percent(&self) -> String {
        let written = |change| format!("{:+.1} %", 100.0 * change);
        self.change.map_or_else(|| "–".to_owned(), written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &str, unit: &str, value: f64, better: Better, samples: &[f64]) -> Figure {
        Figure {
            name: name.to_owned(),
            unit: unit.to_owned(),
            value,
            better,
            samples: samples.to_vec(),
        }
    }

    #[track_caller]
    fn check(a: (f64, &[f64]), b: (f64, &[f64]), better: Better, expected: Verdict) {
        let [a, b] = [a, b].map(|(value, samples)| figure("rate", "/s", value, better, samples));
        let changes = changes(&[a], &[b], 0.2);
        assert_eq!(
            changes.iter().map(|c| c.verdict).collect::<Vec<_>>(),
            [expected]
        );
    }

    #[test]
    fn change_counts_beyond_the_noise_only() {
        use Better::{Higher, Lower, Neither};
        for (a, b, better, expected) in [
            (100.0, 119.0, Higher, Verdict::Noise),
            (100.0, 121.0, Higher, Verdict::Better),
            (100.0, 79.0, Higher, Verdict::Worse),
            (100.0, 121.0, Lower, Verdict::Worse),
            (100.0, 79.0, Lower, Verdict::Better),
            (100.0, 79.0, Neither, Verdict::Differs),
            (0.0, 0.0, Lower, Verdict::Noise),
            (0.0, 1.0, Lower, Verdict::Worse),
            (-10.0, -5.0, Higher, Verdict::Better),
        ] {
            check((a, &[]), (b, &[]), better, expected);
        }
    }

    #[test]
    fn few_samples_must_not_meet() {
        let higher = Better::Higher;
        check(
            (10.0, &[9.0, 10.0, 11.0]),
            (15.0, &[12.0, 15.0, 18.0]),
            higher,
            Verdict::Better,
        );
        check(
            (10.0, &[9.0, 10.0, 14.0]),
            (15.0, &[12.0, 15.0, 18.0]),
            higher,
            Verdict::Noise,
        );
        check(
            (10.0, &[9.0, 14.0]),
            (15.0, &[12.0, 15.0, 18.0]),
            higher,
            Verdict::Better,
        );
        let with_gap = [9.0, f64::NAN, 10.0, 11.0];
        check(
            (10.0, &with_gap),
            (5.0, &[4.0, 5.0, 6.0]),
            higher,
            Verdict::Worse,
        );
    }

    #[test]
    fn many_samples_are_tested_by_their_ranks() {
        let around = |center: f64, spread: f64| -> Vec<f64> {
            (0..20)
                .map(|n| center + spread * (f64::from(n * 7 % 20) / 10.0 - 1.0))
                .collect()
        };
        let (narrow, wide) = (around(100.0, 30.0), around(130.0, 30.0));
        check(
            (100.0, &narrow),
            (130.0, &wide),
            Better::Higher,
            Verdict::Better,
        );
        let (wild_a, wild_b) = (around(100.0, 400.0), around(130.0, 400.0));
        check(
            (100.0, &wild_a),
            (130.0, &wild_b),
            Better::Higher,
            Verdict::Noise,
        );
        let equal = [7.0; 10];
        check(
            (100.0, &equal),
            (130.0, &equal),
            Better::Higher,
            Verdict::Noise,
        );
    }

    #[test]
    fn statistic_is_that_of_the_books() {
        // U of 1..=8 against 9..=16 is 0: (32 − 0) / √(8 · 8 · 17 / 12).
        let [a, b] = [1, 9].map(|first| (first..first + 8).map(f64::from).collect::<Vec<_>>());
        assert!((mann_whitney_z(&a, &b) - 3.3607).abs() < 1e-4);
        assert!((mann_whitney_z(&b, &a) + 3.3607).abs() < 1e-4);
        assert_eq!(mann_whitney_z(&a, &a), 0.0);
    }

    #[test]
    fn samples_must_move_as_the_value_does() {
        for count in [5, 20] {
            let [low, high] =
                [100, 200].map(|first| (first..first + count).map(f64::from).collect::<Vec<_>>());
            let higher = Better::Higher;
            check((100.0, &low), (200.0, &high), higher, Verdict::Better);
            check((200.0, &high), (100.0, &low), higher, Verdict::Worse);
            check((100.0, &high), (200.0, &low), higher, Verdict::Noise);
            check((200.0, &low), (100.0, &high), higher, Verdict::Noise);
        }
    }

    #[test]
    fn one_stalled_second_is_seen_in_the_tail() {
        let calm: Vec<f64> = (0..30).map(|n| 2.0 + f64::from(n % 5) / 10.0).collect();
        let mut stalled = calm.clone();
        stalled[17] = 900.0;
        let verdict = |name: &str| {
            let of = |value, samples| [figure(name, "ms", value, Better::Lower, samples)];
            changes(&of(2.4, &calm), &of(900.0, &stalled), 0.2)[0].verdict
        };
        for tail in ["latency p99", "latency p99.9", "10000/s: max latency"] {
            assert_eq!(verdict(tail), Verdict::Worse, "{tail}");
        }
        assert_eq!(verdict("latency mean"), Verdict::Noise);
    }

    #[test]
    fn cpu_time_has_less_noise() {
        let cpu = |value| [figure("CPU per cookie", "µs", value, Better::Lower, &[])];
        assert_eq!(
            changes(&cpu(1.0), &cpu(1.15), 0.2)[0].verdict,
            Verdict::Worse
        );
        assert_eq!(
            changes(&cpu(1.0), &cpu(1.09), 0.2)[0].verdict,
            Verdict::Noise
        );
    }

    #[test]
    fn figures_of_one_report_only_are_named() {
        let one = |name, value| figure(name, "", value, Better::Lower, &[]);
        let a = [one("a", 1.0), one("both", 2.0), one("unmeasured", f64::NAN)];
        let b = [one("b", 3.0), one("both", 2.0), one("unmeasured", 4.0)];
        let changes = changes(&a, &b, 0.2);
        let found: Vec<_> = changes
            .iter()
            .map(|c| (c.name.as_str(), c.verdict))
            .collect();
        let expected = [
            ("a", Verdict::OnlyA),
            ("both", Verdict::Noise),
            ("unmeasured", Verdict::OnlyB),
            ("b", Verdict::OnlyB),
        ];
        assert_eq!(found, expected);
    }
}
