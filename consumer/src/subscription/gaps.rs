//! What the log says of gaps: the first at once, then a sum now and then, and when they have ended. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two sums; a lossy stretch ends when there is no gap for that long.
const SUM_INTERVAL: Duration = Duration::from_secs(10);

/// The gaps of one stream.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    stretch: Option<Stretch>,
}

#[derive(Debug)]
struct Stretch {
    newest_at: Instant,
    said_at: Instant,
    unsaid_cookies: u64,
    unsaid_gaps: u64,
}

/// Something to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Say {
    /// A lossy stretch begins.
    Begin,
    /// What was lost since something was said last.
    Sum { cookies: u64, gaps: u64 },
}

impl Gaps {
    /// Notes a gap.
    pub(super) fn gap(&mut self, cookies: u64, now: Instant) -> Option<Say> {
        let Some(stretch) = &mut self.stretch else {
            self.stretch = Some(Stretch {
                newest_at: now,
                said_at: now,
                unsaid_cookies: 0,
                unsaid_gaps: 0,
            });
            return Some(Say::Begin);
        };
        stretch.newest_at = now;
        stretch.unsaid_cookies += cookies;
        stretch.unsaid_gaps += 1;
        if now - stretch.said_at < SUM_INTERVAL {
            return None;
        }
        stretch.said_at = now;
        stretch.take()
    }

    /// Notes that something else came. Costs nothing while there are no gaps.
    pub(super) fn other(&mut self, now: impl FnOnce() -> Instant) -> Option<Say> {
        let stretch = self.stretch.as_ref()?;
        if now() - stretch.newest_at < SUM_INTERVAL {
            return None;
        }
        self.end()
    }

    /// Ends the stretch.
    pub(super) fn end(&mut self) -> Option<Say> {
        self.stretch.take()?.take()
    }
}

impl Stretch {
    fn take(&mut self) -> Option<Say> {
        let cookies = std::mem::take(&mut self.unsaid_cookies);
        let gaps = std::mem::take(&mut self.unsaid_gaps);
        (gaps > 0).then_some(Say::Sum { cookies, gaps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretch_is_said_once_and_then_in_sums() {
        let (mut gaps, began) = (Gaps::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(gaps.other(|| at(0)), None);
        assert_eq!(gaps.gap(5, at(0)), Some(Say::Begin));
        assert_eq!(gaps.gap(6, at(1)), None);
        assert_eq!(gaps.other(|| at(2)), None);
        assert_eq!(gaps.gap(7, at(9)), None);
        let sum = |cookies, gaps| Some(Say::Sum { cookies, gaps });
        assert_eq!(gaps.gap(8, at(10)), sum(21, 3));
        assert_eq!(gaps.gap(9, at(11)), None);
        assert_eq!(gaps.other(|| at(20)), None);
        assert_eq!(gaps.other(|| at(21)), sum(9, 1));
        assert_eq!(gaps.other(|| at(50)), None);
        assert_eq!(gaps.gap(1, at(60)), Some(Say::Begin));
        assert_eq!(gaps.end(), None, "all was said");
    }
}
