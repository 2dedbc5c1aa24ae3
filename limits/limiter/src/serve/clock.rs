//! The clock that limits go by: nanoseconds since the Unix epoch, as if nobody had set the system's clock since the start.

use std::time::Instant;

use runtime::unix_micros;

/// A clock that never goes back, nor before what an earlier run has told.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Instant,
    began_unix_nanos: u64,
}

impl Clock {
    /// The system's clock from now on, but for jumps.
    #[must_use]
    pub fn start() -> Self {
        Self {
            began: Instant::now(),
            began_unix_nanos: unix_micros().saturating_mul(1_000),
        }
    }

    /// A clock that tells this moment now, and goes on as all do.
    #[must_use]
    pub fn telling(nanos: u64) -> Self {
        Self {
            began: Instant::now(),
            began_unix_nanos: nanos,
        }
    }

    /// The same, not before that moment.
    #[must_use]
    pub fn not_before(self, nanos: u64) -> Self {
        let ahead = nanos.saturating_sub(self.now());
        Self {
            began_unix_nanos: self.began_unix_nanos.saturating_add(ahead),
            ..self
        }
    }

    /// Nanoseconds since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.began_unix_nanos.saturating_add(elapsed)
    }
}
