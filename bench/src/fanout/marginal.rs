//! What one more subscriber costs.

use serde::Serialize;

use crate::subscribe::Call;

/// The producer's CPU time for a cookie, as `base + each · subscribers`: the straight line nearest to all steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Marginal {
    /// The subscribers' call.
    pub call: Call,
    /// Without any subscriber, µs.
    pub base_micros: f64,
    /// For each subscriber, µs.
    pub each_micros: f64,
}

impl Marginal {
    /// Of the CPU time by the number of subscribers; `None` for fewer than two numbers.
    pub(super) fn of(call: Call, points: &[(f64, f64)]) -> Option<Self> {
        let (base_micros, each_micros) = line_through(points)?;
        Some(Self {
            call,
            base_micros,
            each_micros,
        })
    }

    pub(super) fn sentence(&self) -> String {
        let Self {
            call,
            base_micros,
            each_micros,
        } = self;
        format!(
            "{}: each further subscriber costs the producer {each_micros:.3} µs of CPU per cookie, \
             accepting and encoding {base_micros:.2} µs (a line through all steps)",
            call.name()
        )
    }
}

/// Intercept and slope of the straight line with the least squared distances; `None` through fewer than two points.
fn line_through(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let joint: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    (spread > 0.0).then(|| (y - joint / spread * x, joint / spread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marginal_cost_is_a_slope() {
        assert_eq!(line_through(&[(1.0, 2.0), (3.0, 6.0)]), Some((0.0, 2.0)));
        assert_eq!(
            line_through(&[(1.0, 5.0), (2.0, 5.0), (9.0, 5.0)]),
            Some((5.0, 0.0))
        );
        assert_eq!(line_through(&[(1.0, 5.0), (1.0, 6.0)]), None);
        assert_eq!(line_through(&[]), None);
    }
}
