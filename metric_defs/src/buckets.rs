//! Bucket bounds of histograms.

/// Seconds per sync request. The bounds are finest in the usual range: 10 µs for a single request. Requests that arrive
/// together take longer, because each is timed until the last one is done.
pub const REQUEST_SECONDS: &[f64] = &[
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.1, 1.0, 10.0,
];

/// Seconds from acceptance to the node or the store. The bounds are finest at one to three times the chunk age of 10 ms.
pub const DELIVERY_SECONDS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.05, 0.075, 0.1, 0.15,
    0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
];

/// Cookies per batch.
pub const BATCH_COOKIES: &[f64] = &[
    1.0, 10.0, 100.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 1e6,
];

/// Seconds to compact a collection.
pub const COMPACTION_SECONDS: &[f64] = &[
    0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0,
];

/// Seconds that a cookie waits for its limit: up to the maximum wait, or longer if it is overdue.
pub const DSP_LIMITS_DELAY_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0, 300.0, 3600.0,
];

/// Seconds per limiter request: 25 µs to 10 s.
pub const LIMITER_SECONDS: &[f64] = &[
    0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 1.0, 10.0,
];

/// Seconds per lookup: from 5 µs, if the user is in memory, to the longest deadline.
pub const LOOKUP_SECONDS: &[f64] = &[
    5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 1.0,
];

/// Seconds since a match was accepted: from one second to 30 days.
pub const LOOKUP_HIT_AGE_SECONDS: &[f64] = &[
    1.0,
    10.0,
    60.0,
    600.0,
    3600.0,
    21_600.0,
    86_400.0,
    259_200.0,
    604_800.0,
    1_209_600.0,
    2_592_000.0,
];

/// Seconds to the first byte of an origin's response, up to the timeout. The bounds are finest where the concurrency adapts.
pub const ORIGIN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_ascending() {
        for bounds in [
            REQUEST_SECONDS,
            DELIVERY_SECONDS,
            BATCH_COOKIES,
            COMPACTION_SECONDS,
            DSP_LIMITS_DELAY_SECONDS,
            LIMITER_SECONDS,
            LOOKUP_SECONDS,
            LOOKUP_HIT_AGE_SECONDS,
            ORIGIN_SECONDS,
        ] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }
}
