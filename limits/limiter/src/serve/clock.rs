//! The clock that limits go by: nanoseconds since the Unix epoch.
//!
//! It goes on evenly, and never back. Where the system's clock is ahead of it by more than a second, because that was set or
//! the machine slept, it steps forward to that, as a restart would: windows that are aligned to the clock stay those of partners.
//! Where the system's clock was set back, it goes on, and is ahead; after a restart no more than [`AHEAD_MAX`] of what the run before told.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use prometheus::IntCounter;
use runtime::unix_micros;

/// From so far on the system's clock is followed, and told to be behind.
const STEP_MIN: Duration = Duration::from_secs(1);

/// After a restart the clock is not before what the run before told, if that is ahead of the system's clock by no more than this: a system
/// clock that was once a day ahead would shift windows that are aligned to the clock for a day.
pub const AHEAD_MAX: Duration = Duration::from_secs(60);

/// A clock that never goes back, nor before what an earlier run has told. Clones share it.
#[derive(Debug, Clone)]
pub struct Clock {
    began: Instant,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    began_unix_nanos: AtomicU64,
    is_behind: AtomicBool,
}

/// What a look at the system's clock found that the one before did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// It is ahead by so much, and is followed.
    Ahead(Duration),
    /// It is behind by so much since this look, and is not followed.
    Behind(Duration),
    /// It is not behind any more.
    Caught,
}

impl Clock {
    /// The system's clock from now on.
    #[must_use]
    pub fn start() -> Self {
        Self {
            began: Instant::now(),
            shared: Arc::new(Shared {
                began_unix_nanos: AtomicU64::new(system_nanos()),
                is_behind: AtomicBool::new(false),
            }),
        }
    }

    /// Steps forward to this moment, if it is not yet then.
    pub fn not_before(&self, nanos: u64) {
        self.forward(nanos.saturating_sub(self.now()));
    }

    /// Nanoseconds since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let began = self.shared.began_unix_nanos.load(Ordering::Relaxed);
        began.saturating_add(elapsed)
    }

    /// How far the system's clock is behind this one.
    #[must_use]
    pub fn behind(&self) -> Duration {
        Duration::from_nanos(self.now().saturating_sub(system_nanos()))
    }

    /// The same in words.
    #[must_use]
    pub fn state(&self) -> String {
        match self.behind() {
            behind if behind > STEP_MIN => {
                let seconds = behind.as_secs();
                format!(
                    "the system's clock is {seconds} s behind the limiter's: aligned windows begin earlier by this time"
                )
            }
            _ => "as the system's".to_owned(),
        }
    }

    /// Looks at the system's clock, tells of what it finds, and counts steps; to be done again and again, by one task.
    pub fn follow(&self, steps: &IntCounter) {
        match self.compare(system_nanos()) {
            None => {}
            Some(News::Ahead(ahead)) => {
                steps.inc();
                tracing::warn!(?ahead, "system clock jumped forward; following it");
            }
            Some(News::Behind(behind)) => tracing::warn!(
                ?behind,
                "system clock is behind the limiter's clock; keeping the limiter's clock"
            ),
            Some(News::Caught) => {
                tracing::info!("system clock caught up with the limiter's clock");
            }
        }
    }

    /// Compares with the system's clock, which says `system`.
    fn compare(&self, system: u64) -> Option<News> {
        let now = self.now();
        let step = u64::try_from(STEP_MIN.as_nanos()).unwrap_or(u64::MAX);
        let ahead = system.saturating_sub(now);
        if ahead > step {
            self.shared.is_behind.store(false, Ordering::Relaxed);
            self.forward(ahead);
            return Some(News::Ahead(Duration::from_nanos(ahead)));
        }
        let behind = now.saturating_sub(system);
        let is_behind = behind > step;
        let was_behind = self.shared.is_behind.swap(is_behind, Ordering::Relaxed);
        match (was_behind, is_behind) {
            (false, true) => Some(News::Behind(Duration::from_nanos(behind))),
            (true, false) => Some(News::Caught),
            _ => None,
        }
    }

    fn forward(&self, nanos: u64) {
        let began = &self.shared.began_unix_nanos;
        // Nobody adds so much that this overflows: it is at most what the system's clock or the restored state says.
        began.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// Nanoseconds since 1970; what cannot be told so is at the nearest end.
pub(super) fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond().max(0)).unwrap_or(u64::MAX)
}

/// A moment as people and programs read it.
pub(super) fn moment(nanos: u64) -> String {
    match Timestamp::from_nanosecond(i128::from(nanos)) {
        Ok(moment) => format!("{moment:.9}"),
        Err(_) => "9999-12-31T23:59:59.999999999Z".to_owned(),
    }
}

fn system_nanos() -> u64 {
    unix_micros().saturating_mul(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn system_is_followed_forward_and_never_back() {
        let clock = Clock::start();
        let start = clock.now();
        assert_eq!(clock.compare(start), None);
        assert_eq!(clock.compare(start + 900_000_000), None);
        assert!(clock.now() < start + HOUR, "not by less than a second");
        let other = clock.clone();
        let found = clock.compare(start + HOUR);
        assert!(matches!(found, Some(News::Ahead(by)) if by > STEP_MIN));
        let after = other.now();
        assert!((start + HOUR..start + 2 * HOUR).contains(&after));
        // Set back, it is told once that it is behind, and once that it is not any more.
        let found = clock.compare(start);
        assert!(matches!(found, Some(News::Behind(by)) if by >= Duration::from_nanos(HOUR)));
        assert_eq!(clock.compare(start), None);
        assert!(clock.now() >= after);
        assert_eq!(clock.compare(clock.now()), Some(News::Caught));
        assert_eq!(clock.compare(clock.now()), None);
    }

    #[test]
    fn earlier_run_is_not_undercut() {
        let clock = Clock::start();
        let told = clock.now() + HOUR;
        clock.not_before(told);
        assert!(clock.now() >= told);
        clock.not_before(0);
        assert!(clock.now() >= told);
    }
}
