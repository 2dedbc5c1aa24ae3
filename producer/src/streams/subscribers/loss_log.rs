//! Logs when a subscriber begins to lose cookies and when it has stopped losing them, not every gap.

use std::time::{Duration, Instant};

use crate::log::Delivery;

/// A subscriber that has lost nothing for this long has stopped losing; gaps closer together are logged once.
const QUIET: Duration = Duration::from_secs(10);

/// Whether a subscriber is loss_log cookies.
#[derive(Debug, Default)]
pub(super) struct LossLog {
    /// While it is: when the newest gap was.
    newest_gap: Option<Instant>,
}

/// What is to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It begins to lose cookies.
    Begins,
    /// It has stopped losing cookies.
    Ends,
}

impl LossLog {
    /// Notes a delivery. Reads the clock only where it matters, because this is called for each chunk.
    pub(super) fn note(
        &mut self,
        delivery: &Delivery,
        now: impl FnOnce() -> Instant,
    ) -> Option<Change> {
        if matches!(delivery, Delivery::Gap { .. }) {
            let begins = self.newest_gap.replace(now()).is_none();
            return begins.then_some(Change::Begins);
        }
        let newest_gap = self.newest_gap?;
        let ends = now() - newest_gap >= QUIET;
        if ends {
            self.newest_gap = None;
        }
        ends.then_some(Change::Ends)
    }
}

impl Change {
    /// Logs the change of a subscriber; `delivery` is what was noted.
    pub(super) fn log(self, (subscriber, call): (&str, &str), delivery: &Delivery) {
        match delivery {
            Delivery::Gap {
                first,
                last,
                reason,
            } => tracing::warn!(
                subscriber,
                call,
                first,
                last,
                ?reason,
                "subscriber is too far behind: cookies are lost"
            ),
            _ => tracing::info!(subscriber, call, "subscriber loses no more cookies"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::GapReason;

    #[test]
    fn series_of_gaps_is_logged_when_it_begins_and_when_it_is_over() {
        let gap = Delivery::Gap {
            first: 1,
            last: 2,
            reason: GapReason::QueueBound,
        };
        let idle = Delivery::Idle { next: 3 };
        let start = Instant::now();
        let mut loss_log = LossLog::default();
        for (delivery, seconds, change) in [
            (&idle, 0, None),
            (&gap, 1, Some(Change::Begins)),
            (&gap, 2, None),
            (&idle, 9, None),
            (&gap, 11, None),
            (&idle, 20, None),
            (&idle, 21, Some(Change::Ends)),
            (&idle, 60, None),
            (&gap, 61, Some(Change::Begins)),
        ] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(loss_log.note(delivery, || now), change, "at {seconds} s");
        }
    }
}
