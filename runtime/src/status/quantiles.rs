//! Quantiles of the last seconds, out of a histogram that counts since the start.

use std::collections::VecDeque;

use serde::Serialize;

use super::counted::Buckets;

/// Over how many samples: long enough for a figure that holds still, short enough to show what is.
const WINDOW_SAMPLES: usize = 10;

/// Seconds that some share of the observations did not exceed, estimated within the histogram's buckets; above the last
/// bound, that bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half of them.
    pub p50: f64,
    /// Nine in ten.
    pub p90: f64,
    /// All but one in a hundred.
    pub p99: f64,
    /// How many observations there were.
    pub count: u64,
}

/// The newest looks at a histogram.
#[derive(Debug, Clone, Default)]
pub struct Window(VecDeque<Buckets>);

impl Window {
    /// Adds a look; returns the quantiles of what was observed within the last ten, or `None` when that is nothing.
    pub fn look(&mut self, newest: Buckets) -> Option<Quantiles> {
        let quantiles = match self.0.front() {
            Some(oldest) => Quantiles::between(oldest, &newest),
            None => Quantiles::between(&Buckets::default(), &newest),
        };
        if self.0.is_empty() {
            // What was before the first look is old, but better than nothing.
            self.0.push_back(Buckets::default());
        }
        if self.0.len() > WINDOW_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(newest);
        quantiles
    }
}

impl Quantiles {
    fn between(oldest: &Buckets, newest: &Buckets) -> Option<Self> {
        let count = newest.count.saturating_sub(oldest.count);
        if count == 0 {
            return None;
        }
        let buckets = newest.buckets.iter().enumerate();
        let grown: Vec<_> = buckets
            .map(|(at, &(bound, count))| {
                let before = oldest.buckets.get(at).map_or(0, |&(_, before)| before);
                (bound, count.saturating_sub(before))
            })
            .collect();
        Some(Self {
            p50: quantile(&grown, count, 0.5),
            p90: quantile(&grown, count, 0.9),
            p99: quantile(&grown, count, 0.99),
            count,
        })
    }
}

/// Supposes that the observations of a bucket are spread evenly.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn quantile(buckets: &[(f64, u64)], count: u64, share: f64) -> f64 {
    let rank = share * count as f64;
    let (mut lower, mut below) = (0.0, 0);
    for &(upper, up_to) in buckets {
        if up_to as f64 >= rank && up_to > below {
            let part = (rank - below as f64) / (up_to - below) as f64;
            return super::series::short(lower + (upper - lower) * part);
        }
        (lower, below) = (upper, up_to);
    }
    lower
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(counts: [u64; 3], count: u64) -> Buckets {
        let bounds = [0.1, 0.2, 0.4];
        Buckets {
            buckets: bounds.into_iter().zip(counts).collect(),
            count,
        }
    }

    #[test]
    fn quantiles_are_of_the_window_and_not_of_all_time() {
        let mut window = Window::default();
        assert_eq!(window.clone().look(Buckets::default()), None);
        let first = window.look(buckets([100, 100, 100], 100)).unwrap();
        assert!((first.p50 - 0.05).abs() < 1e-9, "{first:?}");
        for _ in 0..WINDOW_SAMPLES {
            window.look(buckets([100, 100, 100], 100));
        }
        assert_eq!(window.look(buckets([100, 100, 100], 100)), None);
        let now = window.look(buckets([100, 200, 200], 200)).unwrap();
        assert!((now.p50 - 0.15).abs() < 1e-9, "{now:?}");
        assert_eq!(now.count, 100);
    }

    #[test]
    fn what_is_above_all_bounds_counts_as_the_last() {
        let mut window = Window::default();
        let all_above = window.look(buckets([0, 0, 0], 7)).unwrap();
        assert!((all_above.p50 - 0.4).abs() < 1e-9, "{all_above:?}");
    }
}
