//! How fast a sweep goes: how many documents a step looks at, and how long it pauses then. Pure.
//!
//! It has half of what is left of the window, and pauses as long as that allows, but neither so long that it works less than a
//! tenth of the time, nor for more than half a second: few documents are done soon. Where a command or the writer's commits are slow, it pauses for longer, up to
//! [`BACKOFF_MAX`] a step, whatever the window: what is not done tonight is done tomorrow.

use std::time::Duration;

/// Documents of one step. Steps of 5,000 to 20,000 took 0.5–0.65 µs of mongod's CPU a document, of 2,000 1.0 µs.
const DOCUMENTS: (usize, usize) = (500, 20_000);

/// How long a command should take at most: on two busy cores a bidder's lookups wait for about as long.
const COMMAND: Duration = Duration::from_millis(10);

/// A command that takes longer is slow.
const SLOW_COMMAND: Duration = Duration::from_millis(250);

/// A commit that takes longer than twice what was usual is slow, within these bounds.
const SLOW_COMMIT: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(2));

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// The longest pause where nothing is slow: so many times as long as the step took, and so long.
const PAUSES: u32 = 9;
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The pace of one sweep.
#[derive(Debug)]
pub(super) struct Pace {
    documents: usize,
    backoff: Duration,
    slow_commit: Duration,
}

/// What a step took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepTiming {
    pub(super) documents: u64,
    pub(super) all: Duration,
    /// Its slowest command.
    pub(super) command: Duration,
    /// The newest commit of cookies beside it, if there was one.
    pub(super) commit: Option<Duration>,
}

impl Pace {
    /// A pace beside commits that usually took so long before.
    pub(super) fn new(commit: Option<Duration>) -> Self {
        let usual = commit.unwrap_or_default();
        Self {
            documents: DOCUMENTS.1 / 4,
            backoff: Duration::ZERO,
            slow_commit: (2 * usual).clamp(SLOW_COMMIT.0, SLOW_COMMIT.1),
        }
    }

    /// How many documents the next step looks at.
    pub(super) fn documents(&self) -> usize {
        self.documents
    }

    /// How long to pause after a step, with so many documents and so much time left.
    pub(super) fn pause(
        &mut self,
        step: &StepTiming,
        documents_left: u64,
        time_left: Duration,
    ) -> Duration {
        self.documents = match step.command {
            slow if slow > COMMAND => self.documents / 2,
            fast if fast < COMMAND / 4 => self.documents * 2,
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
            reason = "a share of the time needs no more"
        )]
        let share = step.documents as f64 / documents_left.max(step.documents).max(1) as f64;
        let spare = (time_left / 2).mul_f64(share).saturating_sub(step.all);
        spare
            .min(PAUSES * step.all)
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

    /// A sweep of so many documents at so many microseconds each; how long it takes.
    fn sweep(documents: u64, micros_each: u64, window: Duration) -> Duration {
        let mut pace = Pace::new(None);
        let (mut left, mut passed) = (documents, Duration::ZERO);
        while left > 0 {
            let documents = left.min(pace.documents() as u64);
            left -= documents;
            let all = Duration::from_micros(micros_each * documents);
            let step = StepTiming {
                documents,
                all,
                command: all,
                commit: Some(millis(20)),
            };
            passed += all + pace.pause(&step, left, window.saturating_sub(passed));
        }
        passed
    }

    #[test]
    fn fifty_million_documents_take_half_of_a_window_that_has_room_for_them() {
        for (micros_each, window) in [(2, 2), (10, 2), (50, 3)] {
            let took = sweep(50_000_000, micros_each, window * HOUR);
            assert!(took <= window * HOUR, "{took:?} at {micros_each} µs");
        }
        assert!(
            sweep(50_000_000, 2, 2 * HOUR) > HOUR / 4,
            "it is in no hurry"
        );
        let few = sweep(20_000, 2, 8 * HOUR);
        assert!(few < Duration::from_secs(1), "{few:?}");
    }

    #[test]
    fn slow_commands_and_commits_make_it_pause_until_they_are_fast() {
        for slow in [
            StepTiming {
                documents: 5_000,
                all: millis(300),
                command: millis(300),
                commit: None,
            },
            StepTiming {
                documents: 5_000,
                all: millis(10),
                command: millis(10),
                commit: Some(millis(400)),
            },
        ] {
            let mut pace = Pace::new(Some(millis(150)));
            let mut pauses = (0..8).map(|_| pace.pause(&slow, 1, Duration::ZERO));
            assert_eq!(pauses.next(), Some(BACKOFF_MIN));
            assert_eq!(pauses.last(), Some(BACKOFF_MAX));
            let fast = StepTiming {
                documents: 500,
                all: millis(5),
                command: millis(5),
                commit: Some(millis(20)),
            };
            let pauses = (0..8).map(|_| pace.pause(&fast, 1, Duration::ZERO));
            assert_eq!(pauses.last(), Some(Duration::ZERO));
        }
        let usual = StepTiming {
            commit: Some(millis(800)),
            ..StepTiming::default()
        };
        assert_eq!(
            Pace::new(Some(millis(600))).pause(&usual, 1, HOUR),
            Duration::ZERO
        );
        let outage = Duration::from_secs(30);
        let slow = StepTiming {
            commit: Some(millis(2_100)),
            ..StepTiming::default()
        };
        assert_eq!(Pace::new(Some(outage)).pause(&slow, 1, HOUR), BACKOFF_MIN);
    }

    proptest! {
        #[test]
        fn pace_stays_within_its_bounds(
            steps in prop::collection::vec((0..40_000_u64, 0..2_000_u64, 0..2_000_u64, any::<u64>(), 0..100_000_u64), 1..50),
        ) {
            let mut pace = Pace::new(None);
            for (documents, command, commit, left, time) in steps {
                let step = StepTiming {
                    documents,
                    all: millis(command),
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
