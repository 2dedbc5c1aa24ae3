//! What one thread's connections saw, second by second: counts and histograms that no other thread touches.
//!
//! A second is handed on as soon as it is over; so a histogram holds one second, and the whole is their sum.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::report::Micros;

const SECOND_NANOS: u64 = 1_000_000_000;

/// Counts and times of the connections of one thread.
pub(super) struct Recorder {
    started: Instant,
    current: Interval,
    began_nanos: u64,
    outstanding: u64,
    finished: Vec<Interval>,
}

/// One thread's part of one second, or the sum of several.
#[derive(Debug, Clone, Default)]
pub(super) struct Interval {
    /// Which second, from 0.
    pub(super) second: u64,
    /// How much of it there was.
    pub(super) length: Duration,
    /// The thread hands in no more.
    pub(super) is_last: bool,
    pub(super) counts: RequestCounts,
    /// Requests without an answer at its end.
    pub(super) outstanding: u64,
    /// When the last answer came, in nanoseconds since the start of the load.
    pub(super) last_answer_nanos: u64,
    pub(super) times: Times,
}

/// Counts of the requests of a load, or of a second of it.
#[derive(Debug, Clone, Default)]
pub struct RequestCounts {
    /// Requests sent.
    pub sent: u64,
    /// Requests answered with 200.
    pub accepted: u64,
    /// Requests answered with another status.
    pub rejected: BTreeMap<u16, u64>,
    /// Requests whose connection ended, or whose answer did not come in time.
    pub unanswered: u64,
    /// Answers that are not HTTP, or that nobody asked for.
    pub malformed: u64,
    /// Requests that should have left, and did not.
    pub unsent: u64,
    /// Connections opened again.
    pub reconnects: u64,
}

/// Histograms.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    /// Until the answer 200, or until a request was given up.
    pub(super) latency: Micros,
    /// From the intended time to sending.
    pub(super) send_delay: Micros,
    /// The part of it that is the generator's own: since the request had its time and its place.
    pub(super) generator_delay: Micros,
}

impl Recorder {
    /// A recorder that begins at `started`.
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

    /// Ends the seconds that are over.
    #[inline]
    pub(super) fn roll(&mut self, now_nanos: u64) {
        while now_nanos >= self.began_nanos + SECOND_NANOS {
            self.end_interval(self.began_nanos + SECOND_NANOS);
        }
    }

    /// Ends everything; there is at least one part.
    pub(super) fn finish(mut self, now_nanos: u64) -> Vec<Interval> {
        self.roll(now_nanos);
        self.current.is_last = true;
        self.end_interval(now_nanos);
        self.finished
    }

    /// The seconds that ended since this was asked last.
    pub(super) fn take_finished(&mut self) -> Vec<Interval> {
        std::mem::take(&mut self.finished)
    }

    fn end_interval(&mut self, at_nanos: u64) {
        let next = Interval::new(self.current.second + 1);
        let mut part = std::mem::replace(&mut self.current, next);
        part.length = Duration::from_nanos(at_nanos - self.began_nanos);
        part.outstanding = self.outstanding;
        self.began_nanos = at_nanos;
        self.finished.push(part);
    }

    /// What is counted in the present second but for requests and their answers.
    pub(super) fn counts(&mut self) -> &mut RequestCounts {
        &mut self.current.counts
    }

    /// Notes that requests were sent, all at once.
    #[inline]
    pub(super) fn sent(&mut self, requests: u64) {
        self.current.counts.sent += requests;
        self.outstanding += requests;
    }

    /// Notes how late one of them was: behind the time it should have left, and behind the time it could have.
    #[inline]
    pub(super) fn late(&mut self, now_nanos: u64, intended_nanos: u64, possible_nanos: u64) {
        let times = &mut self.current.times;
        let micros = |since: u64| now_nanos.saturating_sub(since) / 1_000;
        times.send_delay.record(micros(intended_nanos), 1);
        times.generator_delay.record(micros(possible_nanos), 1);
    }

    /// Notes answers with this status to requests whose latency counts from `at_nanos`. How long it took to refuse one does not
    /// count.
    #[inline]
    pub(super) fn answered(&mut self, status: u16, now_nanos: u64, at_nanos: u64, requests: u64) {
        self.outstanding -= requests;
        self.current.last_answer_nanos = now_nanos;
        if status == 200 {
            self.current.counts.accepted += requests;
            self.took(now_nanos, at_nanos, requests);
        } else {
            *self.current.counts.rejected.entry(status).or_default() += requests;
        }
    }

    /// Notes requests that are given up. How long they were waited for is the least that their answer would have taken:
    /// without it, a server that forgets the slow ones would seem quick.
    pub(super) fn lost(&mut self, now_nanos: u64, at_nanos: u64, requests: u64) {
        self.outstanding -= requests;
        self.current.counts.unanswered += requests;
        self.took(now_nanos, at_nanos, requests);
    }

    fn took(&mut self, now_nanos: u64, at_nanos: u64, requests: u64) {
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

    /// Adds the same second of another thread, or a later one.
    pub(super) fn add(&mut self, other: &Self) {
        self.length = self.length.max(other.length);
        self.counts.add(&other.counts);
        self.outstanding += other.outstanding;
        self.last_answer_nanos = self.last_answer_nanos.max(other.last_answer_nanos);
        let (times, more) = (&mut self.times, &other.times);
        times.latency.add(&more.latency);
        times.send_delay.add(&more.send_delay);
        times.generator_delay.add(&more.generator_delay);
    }
}

impl RequestCounts {
    /// Wrong answers, and requests without one.
    #[must_use]
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
    fn each_event_is_in_its_second() {
        let mut recorder = Recorder::new(Instant::now());
        recorder.sent(3);
        recorder.answered(200, 400_000_000, 100_000_000, 1);
        recorder.roll(999_999_999);
        assert!(recorder.take_finished().is_empty());
        // A stall over more than a second.
        recorder.roll(2_300_000_000);
        recorder.answered(200, 2_300_000_000, 100_000_000, 2);
        let first = recorder.take_finished();
        let rest = recorder.finish(2_500_000_000);
        let intervals: Vec<_> = first
            .iter()
            .chain(&rest)
            .map(|part| {
                let counts = (part.counts.sent, part.counts.accepted, part.outstanding);
                (part.second, part.length.as_millis(), counts)
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
    fn what_is_lost_took_at_least_as_long_as_it_was_waited_for() {
        let mut recorder = Recorder::new(Instant::now());
        recorder.sent(3);
        recorder.answered(200, 300_000_000, 200_000_000, 1);
        recorder.lost(900_000_000, 100_000_000, 2);
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
