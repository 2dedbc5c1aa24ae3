//! Compact history of a connection: outcome and times of each request.
//!
//! Responses arrive in the order of the requests. It is therefore enough to count the requests, in total and with a known outcome, and to
//! list the ranges that were not accepted (24 bytes each). Times are kept for groups of events within 10 ms (32 bytes each).

use std::time::Duration;

use tokio::time::Instant;

use crate::verify::{RequestHistory, RequestOutcome};

/// Duration of a group.
const GROUP_NANOS: u64 = 10_000_000;

/// History of one connection.
#[derive(Debug, Clone)]
pub struct History {
    connection: u64,
    /// If false, only `sent` is kept.
    keeps_all: bool,
    started: Instant,
    sent: u64,
    settled: u64,
    ended_nanos: u64,
    groups: Vec<Group>,
    /// By number, without overlap, and without [`RequestOutcome::Accepted`].
    exceptions: Vec<Exception>,
}

/// Events within 10 ms.
#[derive(Debug, Clone, Copy)]
struct Group {
    began_nanos: u64,
    /// Time from the first event to the last; less than [`GROUP_NANOS`].
    lasted_nanos: u32,
    sent_before: u64,
    settled_after: u64,
}

#[derive(Debug, Clone, Copy)]
struct Exception {
    from: u64,
    count: u64,
    outcome: RequestOutcome,
}

impl History {
    /// An empty history. Unless `keeps_all` is set, it only counts sent requests.
    pub(super) fn new(connection: u64, started: Instant, keeps_all: bool) -> Self {
        Self {
            connection,
            keeps_all,
            started,
            sent: 0,
            settled: 0,
            ended_nanos: 0,
            groups: Vec::new(),
            exceptions: Vec::new(),
        }
    }

    /// Records that `count` requests were sent at `now_nanos` or later.
    #[inline]
    pub(super) fn send(&mut self, count: u64, now_nanos: u64) {
        if self.keeps_all {
            self.group(now_nanos);
        }
        self.sent += count;
    }

    /// Records the outcome of the `count` oldest outstanding requests at `now_nanos`.
    #[inline]
    pub(super) fn settle(&mut self, count: u64, outcome: RequestOutcome, now_nanos: u64) {
        if !self.keeps_all || count == 0 {
            return;
        }
        let group = self.group(now_nanos);
        group.settled_after += count;
        if outcome != RequestOutcome::Accepted {
            self.except(count, outcome);
        }
        self.settled += count;
    }

    /// Records the end of the load.
    pub(super) fn end(&mut self, now_nanos: u64) {
        self.ended_nanos = now_nanos;
        self.groups.shrink_to_fit();
    }

    fn group(&mut self, now_nanos: u64) -> &mut Group {
        let is_new = self
            .groups
            .last()
            .is_none_or(|group| now_nanos - group.began_nanos >= GROUP_NANOS);
        if is_new {
            self.groups.push(Group {
                began_nanos: now_nanos,
                lasted_nanos: 0,
                sent_before: self.sent,
                settled_after: self.settled,
            });
        }
        let group = self.groups.last_mut().expect("a group was just pushed");
        group.lasted_nanos = u32::try_from(now_nanos - group.began_nanos).unwrap_or(u32::MAX);
        group
    }

    fn except(&mut self, count: u64, outcome: RequestOutcome) {
        let from = self.settled;
        match self.exceptions.last_mut() {
            Some(last) if last.outcome == outcome && last.from + last.count == from => {
                last.count += count;
            }
            _ => self.exceptions.push(Exception {
                from,
                count,
                outcome,
            }),
        }
    }

    /// Number of the connection in [`Traffic::cookie`](crate::traffic::Traffic::cookie).
    pub fn connection(&self) -> u64 {
        self.connection
    }

    fn at(&self, nanos: u64) -> Instant {
        self.started + Duration::from_nanos(nanos)
    }
}

impl RequestHistory for History {
    fn sent(&self) -> u64 {
        self.sent
    }

    fn outcome(&self, number: u64) -> RequestOutcome {
        if number >= self.sent {
            return RequestOutcome::Unsent;
        }
        if number >= self.settled {
            return RequestOutcome::Unknown;
        }
        let next = self
            .exceptions
            .partition_point(|exception| exception.from <= number);
        match next.checked_sub(1).map(|index| self.exceptions[index]) {
            Some(exception) if number - exception.from < exception.count => exception.outcome,
            _ => RequestOutcome::Accepted,
        }
    }

    fn sent_after(&self, number: u64) -> Instant {
        if number >= self.sent {
            return self.at(self.ended_nanos);
        }
        let next = self
            .groups
            .partition_point(|group| group.sent_before <= number);
        let group = next.checked_sub(1).map(|index| self.groups[index]);
        self.at(group.map_or(0, |group| group.began_nanos))
    }

    fn responded_by(&self, number: u64) -> Instant {
        if matches!(
            self.outcome(number),
            RequestOutcome::Unknown | RequestOutcome::Unsent
        ) {
            return self.at(self.ended_nanos);
        }
        let first = self
            .groups
            .partition_point(|group| group.settled_after <= number);
        let ended = self
            .groups
            .get(first)
            .map(|group| group.began_nanos + u64::from(group.lasted_nanos));
        self.at(ended.unwrap_or(self.ended_nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    #[test]
    fn each_request_has_its_outcome_and_times() {
        let start = Instant::now();
        let mut history = History::new(7, start, true);
        history.send(5, 2 * MILLISECOND);
        history.settle(2, RequestOutcome::Accepted, 4 * MILLISECOND);
        history.settle(1, RequestOutcome::Rejected, 40 * MILLISECOND);
        history.settle(1, RequestOutcome::Accepted, 41 * MILLISECOND);
        history.send(3, 90 * MILLISECOND);
        // The connection breaks.
        history.settle(2, RequestOutcome::Unknown, 95 * MILLISECOND);
        history.settle(1, RequestOutcome::Unknown, 96 * MILLISECOND);
        history.settle(1, RequestOutcome::Accepted, 99 * MILLISECOND);
        history.end(200 * MILLISECOND);

        use RequestOutcome::{Accepted, Rejected, Unknown, Unsent};
        let outcomes: Vec<_> = (0..9).map(|number| history.outcome(number)).collect();
        let expected = [
            Accepted, Accepted, Rejected, Accepted, Unknown, Unknown, Unknown, Accepted, Unsent,
        ];
        assert_eq!(outcomes, expected);
        assert_eq!((history.connection(), history.sent()), (7, 8));
        assert_eq!(history.exceptions.len(), 2);

        let times = |time: &dyn Fn(u64) -> Instant| -> Vec<u128> {
            let since = |number| time(number).duration_since(start).as_millis();
            (0..9).map(since).collect()
        };
        let sent = times(&|number| history.sent_after(number));
        assert_eq!(sent, [2, 2, 2, 2, 2, 90, 90, 90, 200]);
        let responded = times(&|number| history.responded_by(number));
        assert_eq!(responded, [4, 4, 41, 41, 200, 200, 200, 99, 200]);
    }

    #[test]
    fn unsettled_request_is_unknown_until_the_end() {
        let start = Instant::now();
        let mut history = History::new(0, start, true);
        history.send(2, 0);
        history.end(5 * MILLISECOND);
        assert_eq!(history.outcome(1), RequestOutcome::Unknown);
        assert_eq!(history.sent_after(1), start);
        let end = start + Duration::from_millis(5);
        assert_eq!(history.responded_by(1), end);
    }

    #[test]
    fn history_of_counts_allocates_nothing() {
        let mut history = History::new(0, Instant::now(), false);
        for second in 0..9 {
            history.send(2, second * 1_000 * MILLISECOND);
            history.settle(1, RequestOutcome::Rejected, second * 1_000 * MILLISECOND);
        }
        assert_eq!(history.sent(), 18);
        assert!(history.groups.is_empty() && history.exceptions.is_empty());
    }

    proptest::proptest! {
        /// Compares with a model that stores every event.
        #[test]
        fn times_are_within_the_width_of_a_group(
            events in proptest::collection::vec((0..30_u64, 0..4_u64, 0..4_u64), 1..60),
        ) {
            let start = Instant::now();
            let mut history = History::new(0, start, true);
            let (mut now, mut sent, mut responded) = (0, Vec::new(), Vec::new());
            for (pause, more, responses) in events {
                now += pause * MILLISECOND;
                history.send(more, now);
                sent.extend((0..more).map(|_| now));
                let responses = responses.min((sent.len() - responded.len()) as u64);
                history.settle(responses, RequestOutcome::Accepted, now);
                responded.extend((0..responses).map(|_| now));
            }
            history.end(now);
            let at = |nanos: u64| start + Duration::from_nanos(nanos);
            let width = Duration::from_nanos(GROUP_NANOS);
            for (number, &nanos) in (0..).zip(&sent) {
                let after = history.sent_after(number);
                proptest::prop_assert!(after <= at(nanos) && after + width > at(nanos));
            }
            for (number, &nanos) in (0..).zip(&responded) {
                let before = history.responded_by(number);
                proptest::prop_assert!(before >= at(nanos) && before < at(nanos) + width);
            }
        }
    }
}
