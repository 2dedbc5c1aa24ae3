//! The clock of the limits: monotonic, so that a change of the system time neither delays nor advances a release.

use std::time::{Duration, Instant};

use proto::units::UnixMicros;

/// A time of the clock of the limits, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MonotonicNanos(pub(super) u64);

impl MonotonicNanos {
    /// A time before all others: what is due then is due now.
    pub(super) const PAST: Self = Self(0);

    /// A time after all others.
    pub(super) const NEVER: Self = Self(u64::MAX);

    /// Nanoseconds since `earlier`; 0 if that is later.
    #[inline]
    pub(super) fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time this many nanoseconds later.
    #[inline]
    pub(super) fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// The time this many nanoseconds earlier.
    #[inline]
    pub(super) fn before(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }
}

/// Tells the time.
#[derive(Debug)]
pub(super) struct MonotonicClock {
    started: Instant,
    started_at: MonotonicNanos,
}

impl MonotonicClock {
    /// A clock that begins far from 0, so that a restored cookie can be older than the process: at this system time.
    pub(super) fn start(now: UnixMicros) -> Self {
        Self {
            started: Instant::now(),
            started_at: MonotonicNanos(now.0.saturating_mul(1000)),
        }
    }

    pub(super) fn at(&self, instant: Instant) -> MonotonicNanos {
        let elapsed = instant.saturating_duration_since(self.started);
        self.started_at.after(nanos(elapsed))
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
