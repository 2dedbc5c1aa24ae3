//! Which arriving cookies a deletion covers if the clocks of producers differ. Does no I/O.

use std::sync::Arc;

use proto::units::UnixMicros;

use crate::clock_offset::ClockOffset;

/// A cookie that arrives from a producer.
#[derive(Debug, Clone, Copy)]
pub struct Arriving<'a> {
    /// The producer.
    pub producer: &'a Arc<str>,
    /// How far this host's clock is ahead of the producer's, if known.
    pub offset: Option<ClockOffset>,
    /// Acceptance time by the producer's clock.
    pub accepted: UnixMicros,
    /// Whether it was appended to the log after its acceptance: an API client may have set its time.
    pub is_delayed: bool,
}

/// When a deletion was requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The producer; `None` for requests at several producers of which none was certainly the last.
    producer: Option<Arc<str>>,
    /// By the clock of the producer.
    requested: UnixMicros,
    /// By the clock of this host: minimum and maximum.
    here: (UnixMicros, UnixMicros),
    /// Time up to which earlier deletions cover cookies of all producers.
    covered: UnixMicros,
}

impl Arriving<'_> {
    /// The earliest acceptance time by the clock of this host.
    pub(super) fn here(&self) -> UnixMicros {
        let ahead = self.offset.map_or(0, |offset| offset.min);
        self.accepted.offset_by(ahead)
    }

    /// Whether a deletion up to a time covers it, if nothing else is known about the deletion.
    pub(super) fn is_covered_until(&self, until: UnixMicros) -> bool {
        until > UnixMicros::NONE && self.accepted.min(self.here()) <= until
    }
}

impl Request {
    /// A request at `requested` by the clock of a producer, which this host's clock is ahead of by `offset`.
    pub fn new(producer: &Arc<str>, offset: ClockOffset, requested: UnixMicros) -> Self {
        let here = |micros| requested.offset_by(micros);
        Self {
            producer: Some(Arc::clone(producer)),
            requested,
            here: (here(offset.min), here(offset.max)),
            covered: UnixMicros::NONE,
        }
    }

    /// The latest time of the request by the clock of this host.
    pub fn latest_here(&self) -> UnixMicros {
        self.here.1
    }

    /// This request, after deletions that cover all cookies up to `covered`.
    pub(super) fn after(self, covered: UnixMicros) -> Self {
        Self { covered, ..self }
    }

    /// A request that covers the cookies of both.
    pub(super) fn merged_with(self, new: Self) -> Self {
        if new.here.0 >= self.here.1 {
            return new.after(self.covered);
        }
        let is_same = self.producer == new.producer;
        Self {
            producer: new.producer.filter(|_| is_same),
            requested: self.requested.max(new.requested),
            here: (self.here.0.max(new.here.0), self.here.1.max(new.here.1)),
            covered: self.covered,
        }
    }

    /// Whether an arriving cookie may have been accepted before the request. Bounds of the clock differences are used such that
    /// no earlier cookie is admitted.
    pub(super) fn covers(&self, arriving: &Arriving<'_>) -> bool {
        let is_before = arriving.accepted <= self.requested;
        arriving.is_covered_until(self.covered)
            || if self.producer.as_ref() == Some(arriving.producer) {
                is_before
            } else {
                arriving.here() <= self.here.1 || is_before && arriving.is_delayed
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock of B is this host's; the clock of A is known to be ahead by 4.9 to 5 s.
    const OFFSETS: [(&str, ClockOffset); 2] = [
        (
            "a",
            ClockOffset {
                min: -5_000,
                max: -4_900,
            },
        ),
        ("b", ClockOffset { min: 0, max: 100 }),
    ];

    fn request(at: usize, requested: u64) -> Request {
        let (producer, offset) = OFFSETS[at];
        Request::new(&producer.into(), offset, UnixMicros(requested))
    }

    #[track_caller]
    fn check(request: &Request, at: usize, accepted: u64, is_delayed: bool, expected: bool) {
        let (producer, offset) = OFFSETS[at];
        let arriving = Arriving {
            producer: &producer.into(),
            offset: Some(offset),
            accepted: UnixMicros(accepted),
            is_delayed,
        };
        assert_eq!(request.covers(&arriving), expected, "{arriving:?}");
    }

    const A: usize = 0;
    const B: usize = 1;

    #[test]
    fn request_covers_cookies_that_may_have_been_accepted_before_it() {
        let at_b = request(B, 10_000);
        check(&at_b, B, 10_000, false, true);
        check(&at_b, B, 10_001, false, false);
        check(&at_b, A, 15_100, false, true);
        check(&at_b, A, 15_101, false, false);
        let at_a = request(A, 15_000);
        check(&at_a, A, 15_000, false, true);
        check(&at_a, A, 15_001, false, false);
        check(&at_a, B, 10_100, false, true);
        check(&at_a, B, 10_101, false, false);
    }

    #[test]
    fn time_that_a_client_set_is_also_compared_with_the_time_of_the_request() {
        check(&request(A, 15_000), B, 15_000, true, true);
        check(&request(A, 15_000), B, 15_001, true, false);
        check(&request(B, 10_000), A, 15_100, true, true);
    }

    #[test]
    fn merged_requests_cover_the_cookies_of_both() {
        let later = request(B, 10_000)
            .after(UnixMicros(7))
            .merged_with(request(A, 15_100));
        assert_eq!(later, request(A, 15_100).after(UnixMicros(7)));
        for merged in [
            request(B, 10_000).merged_with(request(A, 15_000)),
            request(A, 15_000).merged_with(request(B, 10_000)),
        ] {
            check(&merged, A, 15_100, false, true);
            check(&merged, B, 10_100, false, true);
            check(&merged, B, 10_101, false, false);
            check(&merged, A, 15_101, false, false);
        }
        let same = request(B, 10_000).merged_with(request(B, 9_000));
        assert_eq!(same.producer.as_deref(), Some("b"));
        check(&same, B, 10_000, false, true);
        check(&same, B, 10_001, false, false);
    }

    #[test]
    fn only_the_time_of_a_loaded_deletion_is_known() {
        let producer: Arc<str> = "a".into();
        let arriving = |min| Arriving {
            producer: &producer,
            offset: Some(ClockOffset { min, max: min }),
            accepted: UnixMicros(10_000),
            is_delayed: false,
        };
        // The producer's clock is behind, then ahead.
        for (min, until) in [(500, 10_000), (-500, 9_500)] {
            assert!(arriving(min).is_covered_until(UnixMicros(until)));
            assert!(!arriving(min).is_covered_until(UnixMicros(until - 1)));
        }
    }
}
