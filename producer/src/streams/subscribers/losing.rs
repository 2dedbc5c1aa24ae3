//! When a subscriber begins to lose cookies, and when it loses no more: each is said once, not each gap.

use std::time::{Duration, Instant};

use crate::log::Delivery;

/// A subscriber that has lost nothing for so long loses no more: gaps nearer to each other are said once.
const STRETCH: Duration = Duration::from_secs(10);

/// Whether a subscriber is losing cookies.
#[derive(Debug, Default)]
pub(super) struct Losing {
    /// While it does: when it lost the newest.
    newest_gap: Option<Instant>,
}

/// What is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It begins to lose.
    Begins,
    /// It loses no more.
    Ends,
}

impl Losing {
    /// Notes what was delivered. Looks at the clock only where that matters: one comes for each chunk.
    pub(super) fn note(
        &mut self,
        delivery: &Delivery,
        now: impl FnOnce() -> Instant,
    ) -> Option<News> {
        if matches!(delivery, Delivery::Gap { .. }) {
            let begins = self.newest_gap.replace(now()).is_none();
            return begins.then_some(News::Begins);
        }
        let newest_gap = self.newest_gap?;
        let ends = now() - newest_gap >= STRETCH;
        if ends {
            self.newest_gap = None;
        }
        ends.then_some(News::Ends)
    }
}

impl News {
    /// Says it of a subscriber; `delivery` is what was noted.
    pub(super) fn say(self, (subscriber, call): (&str, &str), delivery: &Delivery) {
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
    fn stretch_of_gaps_is_said_when_it_begins_and_when_it_is_over() {
        let gap = Delivery::Gap {
            first: 1,
            last: 2,
            reason: GapReason::QueueBound,
        };
        let idle = Delivery::Idle { next: 3 };
        let start = Instant::now();
        let mut losing = Losing::default();
        for (delivery, seconds, news) in [
            (&idle, 0, None),
            (&gap, 1, Some(News::Begins)),
            (&gap, 2, None),
            (&idle, 9, None),
            (&gap, 11, None),
            (&idle, 20, None),
            (&idle, 21, Some(News::Ends)),
            (&idle, 60, None),
            (&gap, 61, Some(News::Begins)),
        ] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(losing.note(delivery, || now), news, "at {seconds} s");
        }
    }
}
