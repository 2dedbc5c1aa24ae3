//! Limits how many streams the log names when they open and end, so that a client that opens them again and again, or
//! under ever new names, cannot fill a disk. The metrics count all of them.

use std::time::{Duration, Instant};

/// At most one stream of a name is logged in this time.
const NAME_PAUSE: Duration = Duration::from_secs(1);

/// At most this many streams of all names together are logged in one [`PERIOD`]: several times as many as there are
/// consumers, so that all that come back after a restart are logged.
const STREAMS_MAX: u32 = 500;
const PERIOD: Duration = Duration::from_secs(10);

/// When a stream of a subscriber was last logged.
#[derive(Debug, Default)]
pub(super) struct LastLogged(Option<Instant>);

/// How many streams of all names were logged in the current period.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    period: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl LogLimit {
    /// Whether a stream that opens now is logged. If so, returns how many were left out since the last one.
    pub(super) fn admit(&mut self, name: &mut LastLogged, now: Instant) -> Option<u64> {
        if self.period.is_none_or(|began| now - began >= PERIOD) {
            self.period = Some(now);
            self.logged = 0;
        }
        let is_early = name.0.is_some_and(|logged| now - logged < NAME_PAUSE);
        if is_early || self.logged >= STREAMS_MAX {
            self.left_out += 1;
            return None;
        }
        name.0 = Some(now);
        self.logged += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_logged_once_in_its_time_and_what_was_left_out_is_counted() {
        let (mut all, mut name) = (LogLimit::default(), LastLogged::default());
        let start = Instant::now();
        let half = NAME_PAUSE / 2;
        assert_eq!(all.admit(&mut name, start), Some(0));
        assert_eq!(all.admit(&mut name, start), None);
        assert_eq!(all.admit(&mut name, start + half), None);
        assert_eq!(all.admit(&mut LastLogged::default(), start + half), Some(2));
        assert_eq!(all.admit(&mut name, start + 2 * half), Some(0));
    }

    #[test]
    fn ever_new_names_are_bounded_together() {
        let mut all = LogLimit::default();
        let start = Instant::now();
        let mut logged = |at| {
            let admitted =
                (0..2 * STREAMS_MAX).filter_map(|_| all.admit(&mut LastLogged::default(), at));
            admitted.count()
        };
        assert_eq!(logged(start), STREAMS_MAX as usize);
        assert_eq!(logged(start + PERIOD / 2), 0);
        assert_eq!(logged(start + PERIOD), STREAMS_MAX as usize);
    }
}
