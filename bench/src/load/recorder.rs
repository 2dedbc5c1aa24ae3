//! Counts and histograms of one thread, one set per second. A set is passed on when its second is complete; until then,
//! no other thread accesses it. The collector adds the sets of all threads.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::report::Micros;

pub(super) const SECOND_NANOS: u64 = 1_000_000_000;

/// Recorder of the connections of one thread.
pub(super) struct Recorder {
    started: Instant,
    current: Interval,
    began_nanos: u64,
    outstanding: u64,
    finished: Vec<Interval>,
}

/// Results of one thread in one second, or the sum of several.
#[derive(Debug, Clone, Default)]
pub(super) struct Interval {
    /// Number of the second, from 0.
    pub(super) second: u64,
    /// Duration of the interval.
    pub(super) length: Duration,
    /// Whether it is the last interval of the thread.
    pub(super) is_last: bool,
    pub(super) counts: RequestCounts,
    /// Outstanding requests at its end.
    pub(super) outstanding: u64,
    /// Time of the last response in nanoseconds since the start of the load.
    pub(super) last_response_nanos: u64,
    pub(super) times: Times,
}

/// Outcomes of the requests of a load or a second.
#[derive(Debug, Clone, Default)]
pub struct RequestCounts {
    /// Requests sent.
    pub sent: u64,
    /// Requests with the correct response: status 200, or that of a refused hostile request.
    pub accepted: u64,
    /// Requests with another status.
    pub rejected: BTreeMap<u16, u64>,
    /// Requests without a response before the timeout or the end of the connection.
    pub unanswered: u64,
    /// Invalid or unexpected responses.
    pub malformed: u64,
    /// Due requests that were not sent.
    pub unsent: u64,
    /// Reconnects.
    pub reconnects: u64,
}

/// Histograms.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    /// Latency until the correct response, or until a request was abandoned.
    pub(super) latency: Micros,
    /// Delay from the intended to the actual send time.
    pub(super) send_delay: Micros,
    /// Portion of `send_delay` caused by the generator: from the time when the request was due and had capacity.
    pub(super) generator_delay: Micros,
}

impl Recorder {
    /// A recorder that starts at `started`.
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            current: Interval::new(0),
            began_nanos: 0,
            outstanding: 0,
            finished: Vec::new(),
        }
    }

    /// Nanoseconds since the start.
    #[inline]
    pub(super) fn now_nanos(&self) -> u64 {
        nanos(Instant::now().saturating_duration_since(self.started))
    }

    /// Completes the seconds that have passed.
    #[inline]
    pub(super) fn roll(&mut self, now_nanos: u64) {
        while now_nanos >= self.began_nanos + SECOND_NANOS {
            self.end_interval(self.began_nanos + SECOND_NANOS);
        }
    }

    /// Completes the last interval; returns at least one interval.
    pub(super) fn finish(mut self, now_nanos: u64) -> Vec<Interval> {
        self.roll(now_nanos);
        self.current.is_last = true;
        self.end_interval(now_nanos);
        self.finished
    }

    /// Seconds completed since the last call.
    pub(super) fn take_finished(&mut self) -> Vec<Interval> {
        std::mem::take(&mut self.finished)
    }

    fn end_interval(&mut self, at_nanos: u64) {
        let next = Interval::new(self.current.second + 1);
        let mut interval = std::mem::replace(&mut self.current, next);
        interval.length = Duration::from_nanos(at_nanos - self.began_nanos);
        interval.outstanding = self.outstanding;
        self.began_nanos = at_nanos;
        self.finished.push(interval);
    }

    /// Counts of the current second, for events other than requests and responses.
    pub(super) fn counts(&mut self) -> &mut RequestCounts {
        &mut self.current.counts
    }

    /// Records that requests were sent together.
    #[inline]
    pub(super) fn sent(&mut self, requests: u64) {
        self.current.counts.sent += requests;
        self.outstanding += requests;
    }

    /// Records the delay of a request from its intended send time, and from the time at which it could be sent.
    #[inline]
    pub(super) fn late(&mut self, now_nanos: u64, intended_nanos: u64, possible_nanos: u64) {
        let times = &mut self.current.times;
        let micros = |since: u64| now_nanos.saturating_sub(since) / 1_000;
        times.send_delay.record(micros(intended_nanos), 1);
        times.generator_delay.record(micros(possible_nanos), 1);
    }

    /// Records responses to requests whose latency counts from `at_nanos`. Responses with a wrong status, `rejected`, have no
    /// latency.
    #[inline]
    pub(super) fn responded(
        &mut self,
        rejected: Option<u16>,
        now_nanos: u64,
        at_nanos: u64,
        requests: u64,
    ) {
        self.outstanding -= requests;
        self.current.last_response_nanos = now_nanos;
        if let Some(status) = rejected {
            *self.current.counts.rejected.entry(status).or_default() += requests;
        } else {
            self.current.counts.accepted += requests;
            self.record_latency(now_nanos, at_nanos, requests);
        }
    }

    /// Records abandoned requests. The time until then is a lower bound of their latency; without it, a server that drops slow
    /// requests would seem fast.
    pub(super) fn abandoned(&mut self, now_nanos: u64, at_nanos: u64, requests: u64) {
        self.outstanding -= requests;
        self.current.counts.unanswered += requests;
        self.record_latency(now_nanos, at_nanos, requests);
    }

    fn record_latency(&mut self, now_nanos: u64, at_nanos: u64, requests: u64) {
        let micros = now_nanos.saturating_sub(at_nanos) / 1_000;
        self.current.times.latency.record(micros, requests);
    }
}

impl Interval {
    pub(super) fn new(second: u64) -> Self {
        Self {
            second,
            ..Self::default()
        }
    }

    /// Adds the same second of another thread, or another second.
    pub(super) fn add(&mut self, other: &Self) {
        self.length = self.length.max(other.length);
        self.counts.add(&other.counts);
        self.outstanding += other.outstanding;
        self.last_response_nanos = self.last_response_nanos.max(other.last_response_nanos);
        let (times, more) = (&mut self.times, &other.times);
        times.latency.add(&more.latency);
        times.send_delay.add(&more.send_delay);
        times.generator_delay.add(&more.generator_delay);
    }
}

impl RequestCounts {
    /// Wrong and missing responses.
    pub fn errors(&self) -> u64 {
        self.rejected.values().sum::<u64>() + self.unanswered + self.malformed
    }

    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.accepted += other.accepted;
        for (status, count) in &other.rejected {
            *self.rejected.entry(*status).or_default() += count;
        }
        self.unanswered += other.unanswered;
        self.malformed += other.malformed;
        self.unsent += other.unsent;
        self.reconnects += other.reconnects;
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_in_their_second() {
        let mut recorder = Recorder::new(Instant::now());
        recorder.sent(3);
        recorder.responded(None, 400_000_000, 100_000_000, 1);
        recorder.roll(999_999_999);
        assert!(recorder.take_finished().is_empty());
        // A stall of more than a second.
        recorder.roll(2_300_000_000);
        recorder.responded(None, 2_300_000_000, 100_000_000, 2);
        let first = recorder.take_finished();
        let rest = recorder.finish(2_500_000_000);
        let intervals: Vec<_> = first
            .iter()
            .chain(&rest)
            .map(|interval| {
                let counts = (
                    interval.counts.sent,
                    interval.counts.accepted,
                    interval.outstanding,
                );
                (interval.second, interval.length.as_millis(), counts)
            })
            .collect();
        let expected = [
            (0, 1_000, (3, 1, 2)),
            (1, 1_000, (0, 0, 2)),
            (2, 500, (0, 2, 0)),
        ];
        assert_eq!(intervals, expected);
        let latency = rest[0].times.latency.percentiles().unwrap().max;
        assert!(latency.abs_diff(2_200_000) < 3_000, "{latency}");
    }

    #[test]
    fn abandoned_requests_have_a_minimum_latency() {
        let mut recorder = Recorder::new(Instant::now());
        recorder.sent(3);
        recorder.responded(None, 300_000_000, 200_000_000, 1);
        recorder.abandoned(900_000_000, 100_000_000, 2);
        let intervals = recorder.finish(950_000_000);
        let latency = &intervals[0].times.latency;
        let latency = latency.percentiles().unwrap();
        assert!(latency.p50.abs_diff(800_000) < 1_000);
        assert!(latency.max.abs_diff(800_000) < 1_000);
        assert_eq!(
            (intervals[0].counts.errors(), intervals[0].outstanding),
            (2, 0)
        );
    }
}
