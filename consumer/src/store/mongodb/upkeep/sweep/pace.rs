//! Pace of a sweep: the number of documents per step, and the pause after it. Does no I/O.
//!
//! A sweep is paced to use half of the remaining window. It is active for at least a tenth of the time and pauses for
//! at most half a second, so that a small sweep ends soon. After a slow command, or a slow commit of the writer, it
//! pauses longer, up to [`BACKOFF_MAX`] per step, regardless of the window.

use std::time::Duration;

/// Minimum and maximum documents per step. A document takes 0.5–0.65 µs of mongod's CPU in steps of 5,000 to 20,000, and 1.0
/// µs in steps of 2,000.
const DOCUMENTS: (usize, usize) = (500, 20_000);

/// Target duration of a command. On two busy cores, lookups of bidders may wait for about this time.
const COMMAND_TARGET: Duration = Duration::from_millis(10);

/// Duration of a slow command.
const SLOW_COMMAND: Duration = Duration::from_millis(250);

/// A commit is slow if it takes twice the median, limited to this minimum and maximum.
const SLOW_COMMIT: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(2));

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Maximum pause after a step without slow commands or commits, as a multiple of the duration of the step.
const PAUSE_FACTOR: u32 = 9;
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The pace of one sweep.
#[derive(Debug)]
pub(super) struct SweepPace {
    documents: usize,
    backoff: Duration,
    slow_commit: Duration,
}

/// Timing of a step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepTiming {
    pub(super) documents: u64,
    pub(super) total: Duration,
    /// Duration of the slowest command.
    pub(super) command: Duration,
    /// Duration of the newest concurrent commit, if any.
    pub(super) commit: Option<Duration>,
}

impl SweepPace {
    /// A pace, given the median duration of commits.
    pub(super) fn new(median_commit: Option<Duration>) -> Self {
        let median = median_commit.unwrap_or_default();
        Self {
            documents: DOCUMENTS.1 / 4,
            backoff: Duration::ZERO,
            slow_commit: (2 * median).clamp(SLOW_COMMIT.0, SLOW_COMMIT.1),
        }
    }

    /// Number of documents of the next step.
    pub(super) fn documents(&self) -> usize {
        self.documents
    }

    /// Pause after a step, for the remaining documents and time.
    pub(super) fn pause(
        &mut self,
        step: &StepTiming,
        remaining: u64,
        time_left: Duration,
    ) -> Duration {
        self.documents = match step.command {
            slow if slow > COMMAND_TARGET => self.documents / 2,
            fast if fast < COMMAND_TARGET / 4 => self.documents * 2,
            _ => self.documents,
        }
        .clamp(DOCUMENTS.0, DOCUMENTS.1);
        let is_slow = step.command > SLOW_COMMAND
            || step.commit.is_some_and(|commit| commit > self.slow_commit);
        self.backoff = match self.backoff {
            backoff if is_slow => (2 * backoff).clamp(BACKOFF_MIN, BACKOFF_MAX),
            backoff if backoff > BACKOFF_MIN => backoff / 2,
            _ => Duration::ZERO,
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "precise enough for a fraction of time"
        )]
        let share = step.documents as f64 / remaining.max(step.documents).max(1) as f64;
        let spare = (time_left / 2).mul_f64(share).saturating_sub(step.total);
        spare
            .min(PAUSE_FACTOR * step.total)
            .min(PAUSE_MAX)
            .max(self.backoff)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Duration of a sweep of `documents`, each of which takes `micros_each`.
    fn sweep(documents: u64, micros_each: u64, window: Duration) -> Duration {
        let mut pace = SweepPace::new(None);
        let (mut remaining, mut elapsed) = (documents, Duration::ZERO);
        while remaining > 0 {
            let documents = remaining.min(pace.documents() as u64);
            remaining -= documents;
            let total = Duration::from_micros(micros_each * documents);
            let step = StepTiming {
                documents,
                total,
                command: total,
                commit: Some(millis(20)),
            };
            elapsed += total + pace.pause(&step, remaining, window.saturating_sub(elapsed));
        }
        elapsed
    }

    #[test]
    fn sweep_of_fifty_million_documents_fits_into_the_window_with_pauses() {
        for (micros_each, window) in [(2, 2), (10, 2), (50, 3)] {
            let took = sweep(50_000_000, micros_each, window * HOUR);
            assert!(took <= window * HOUR, "{took:?} at {micros_each} µs");
        }
        assert!(
            sweep(50_000_000, 2, 2 * HOUR) > HOUR / 4,
            "the sweep is paced"
        );
        let few = sweep(20_000, 2, 8 * HOUR);
        assert!(few < Duration::from_secs(1), "{few:?}");
    }

    #[test]
    fn slow_commands_and_commits_increase_the_pause_until_they_are_fast() {
        for slow in [
            StepTiming {
                documents: 5_000,
                total: millis(300),
                command: millis(300),
                commit: None,
            },
            StepTiming {
                documents: 5_000,
                total: millis(10),
                command: millis(10),
                commit: Some(millis(400)),
            },
        ] {
            let mut pace = SweepPace::new(Some(millis(150)));
            let mut pauses = (0..8).map(|_| pace.pause(&slow, 1, Duration::ZERO));
            assert_eq!(pauses.next(), Some(BACKOFF_MIN));
            assert_eq!(pauses.last(), Some(BACKOFF_MAX));
            let fast = StepTiming {
                documents: 500,
                total: millis(5),
                command: millis(5),
                commit: Some(millis(20)),
            };
            let pauses = (0..8).map(|_| pace.pause(&fast, 1, Duration::ZERO));
            assert_eq!(pauses.last(), Some(Duration::ZERO));
        }
        let normal = StepTiming {
            commit: Some(millis(800)),
            ..StepTiming::default()
        };
        assert_eq!(
            SweepPace::new(Some(millis(600))).pause(&normal, 1, HOUR),
            Duration::ZERO
        );
        let outage = Duration::from_secs(30);
        let slow = StepTiming {
            commit: Some(millis(2_100)),
            ..StepTiming::default()
        };
        assert_eq!(
            SweepPace::new(Some(outage)).pause(&slow, 1, HOUR),
            BACKOFF_MIN
        );
    }

    proptest! {
        #[test]
        fn pace_stays_within_its_limits(
            steps in prop::collection::vec((0..40_000_u64, 0..2_000_u64, 0..2_000_u64, any::<u64>(), 0..100_000_u64), 1..50),
        ) {
            let mut pace = SweepPace::new(None);
            for (documents, command, commit, left, time) in steps {
                let step = StepTiming {
                    documents,
                    total: millis(command),
                    command: millis(command),
                    commit: Some(millis(commit)),
                };
                let pause = pace.pause(&step, left, Duration::from_secs(time));
                prop_assert!((DOCUMENTS.0..=DOCUMENTS.1).contains(&pace.documents()));
                prop_assert!(pause <= BACKOFF_MAX);
            }
        }
    }
}
