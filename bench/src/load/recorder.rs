//! What one thread's connections saw, second by second: counts and histograms that no other thread touches.
//!
//! A second is handed on as soon as it is over; so a histogram holds one second, and the whole is their sum.

use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use super::thread_time::ThreadTime;
use crate::report::micros_histogram;

const SECOND_NANOS: u64 = 1_000_000_000;

/// Counts and times of the connections of one thread.
pub(super) struct Recorder {
    started: Instant,
    current: Part,
    began_nanos: u64,
    outstanding: u64,
    thread_time: Option<ThreadTime>,
    finished: Vec<Part>,
}

/// One thread's part of one second, or the sum of several.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// Which second, from 0.
    pub(super) second: u64,
    /// How much of it there was.
    pub(super) length: Duration,
    pub(super) counts: Counts,
    /// Requests without an answer at its end.
    pub(super) outstanding: u64,
    /// What the thread used of a processor in it.
    pub(super) thread_time: ThreadTime,
    /// In how much of it: not after the end of the sending.
    pub(super) measured: Duration,
    pub(super) times: Times,
}

/// Counts of the requests of a second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Requests sent.
    pub sent: u64,
    /// Answers with 200.
    pub accepted: u64,
    /// Malformed requests that were refused.
    pub refused_as_expected: u64,
    /// Wrong answers, and requests that were given up.
    pub errors: u64,
}

/// Histograms of microseconds.
#[derive(Debug, Clone)]
pub(super) struct Times {
    /// Until the answer 200, or until a request was given up.
    pub(super) latency: Histogram<u64>,
    /// From the intended time to sending.
    pub(super) send_delay: Histogram<u64>,
    /// The part of it that is the generator's own: since the request had its time and its place.
    pub(super) generator_delay: Histogram<u64>,
}

impl Recorder {
    /// A recorder that begins at `started`, in the thread that will use it.
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            current: Part::new(0),
            began_nanos: 0,
            outstanding: 0,
            thread_time: ThreadTime::now(),
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
            self.end_part(self.began_nanos + SECOND_NANOS);
        }
    }

    /// Ends everything.
    pub(super) fn finish(mut self, now_nanos: u64) -> Vec<Part> {
        self.roll(now_nanos);
        if now_nanos > self.began_nanos {
            self.end_part(now_nanos);
        }
        self.finished
    }

    /// The seconds that ended since this was asked last.
    pub(super) fn take_finished(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.finished)
    }

    fn end_part(&mut self, at_nanos: u64) {
        let next = Part::new(self.current.second + 1);
        let mut part = std::mem::replace(&mut self.current, next);
        part.length = Duration::from_nanos(at_nanos - self.began_nanos);
        part.outstanding = self.outstanding;
        if let Some(before) = self.thread_time {
            self.thread_time = ThreadTime::now();
            if let Some(now) = self.thread_time {
                part.thread_time = now.since(&before);
                part.measured = part.length;
            }
        }
        self.began_nanos = at_nanos;
        self.finished.push(part);
    }

    /// Notes that from now on answers are waited for and nothing is sent: what the thread does no longer tells whether it
    /// could have sent more.
    pub(super) fn end_sending(&mut self, now_nanos: u64) {
        self.roll(now_nanos);
        if let Some((now, before)) = ThreadTime::now().zip(self.thread_time.take()) {
            self.current.thread_time = now.since(&before);
            self.current.measured = Duration::from_nanos(now_nanos - self.began_nanos);
        }
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
        record(&mut times.send_delay, micros(intended_nanos), 1);
        record(&mut times.generator_delay, micros(possible_nanos), 1);
    }

    /// Notes answers with 200 to requests whose latency counts from `at_nanos`.
    #[inline]
    pub(super) fn accepted(&mut self, now_nanos: u64, at_nanos: u64, requests: u64) {
        self.outstanding -= requests;
        self.current.counts.accepted += requests;
        let micros = now_nanos.saturating_sub(at_nanos) / 1_000;
        record(&mut self.current.times.latency, micros, requests);
    }

    /// Notes answers that refuse what is malformed.
    pub(super) fn refused_as_expected(&mut self, requests: u64) {
        self.outstanding -= requests;
        self.current.counts.refused_as_expected += requests;
    }

    /// Notes requests that are given up. How long they were waited for is the least that their answer would have taken:
    /// without it, a server that forgets the slow ones would seem quick.
    pub(super) fn lost(&mut self, now_nanos: u64, at_nanos: u64, requests: u64) {
        self.refused(requests);
        let micros = now_nanos.saturating_sub(at_nanos) / 1_000;
        record(&mut self.current.times.latency, micros, requests);
    }

    /// Notes requests that were answered wrongly.
    pub(super) fn refused(&mut self, requests: u64) {
        self.outstanding -= requests;
        self.current.counts.errors += requests;
    }

    /// Notes answers that nobody asked for.
    pub(super) fn unasked(&mut self, answers: u64) {
        self.current.counts.errors += answers;
    }
}

impl Part {
    pub(super) fn new(second: u64) -> Self {
        Self {
            second,
            length: Duration::ZERO,
            counts: Counts::default(),
            outstanding: 0,
            thread_time: ThreadTime::default(),
            measured: Duration::ZERO,
            times: Times::default(),
        }
    }

    /// Adds the same second of another thread.
    pub(super) fn add(&mut self, other: &Self) {
        self.length = self.length.max(other.length);
        self.counts.add(&other.counts);
        self.outstanding += other.outstanding;
        self.thread_time = self.thread_time.plus(&other.thread_time);
        self.measured += other.measured;
        self.times.add(&other.times);
    }
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.accepted += other.accepted;
        self.refused_as_expected += other.refused_as_expected;
        self.errors += other.errors;
    }
}

impl Default for Times {
    fn default() -> Self {
        let [latency, send_delay, generator_delay] = std::array::from_fn(|_| micros_histogram());
        Self {
            latency,
            send_delay,
            generator_delay,
        }
    }
}

impl Times {
    pub(super) fn add(&mut self, other: &Self) {
        merge(&mut self.latency, &other.latency);
        merge(&mut self.send_delay, &other.send_delay);
        merge(&mut self.generator_delay, &other.generator_delay);
    }
}

pub(super) fn merge(into: &mut Histogram<u64>, from: &Histogram<u64>) {
    into.add(from).expect("the histogram grows to any value");
}

fn record(histogram: &mut Histogram<u64>, micros: u64, count: u64) {
    histogram
        .record_n(micros, count)
        .expect("the histogram grows to any value");
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
        recorder.accepted(400_000_000, 100_000_000, 1);
        recorder.roll(999_999_999);
        assert!(recorder.take_finished().is_empty());
        // A stall over more than a second.
        recorder.roll(2_300_000_000);
        recorder.accepted(2_300_000_000, 100_000_000, 2);
        let first = recorder.take_finished();
        let rest = recorder.finish(2_500_000_000);
        let parts: Vec<_> = first
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
        assert_eq!(parts, expected);
        let latency = rest[0].times.latency.max();
        assert!(latency.abs_diff(2_200_000) < 3_000, "{latency}");
    }

    #[test]
    fn what_is_lost_took_at_least_as_long_as_it_was_waited_for() {
        let mut recorder = Recorder::new(Instant::now());
        recorder.sent(3);
        recorder.accepted(300_000_000, 200_000_000, 1);
        recorder.lost(900_000_000, 100_000_000, 2);
        let parts = recorder.finish(950_000_000);
        let latency = &parts[0].times.latency;
        assert_eq!(latency.len(), 3);
        assert!(latency.max().abs_diff(800_000) < 1_000);
        assert_eq!((parts[0].counts.errors, parts[0].outstanding), (2, 0));
    }

    #[test]
    fn waiting_for_the_last_answers_is_not_time_to_send_in() {
        let mut recorder = Recorder::new(Instant::now());
        if recorder.thread_time.is_none() {
            return;
        }
        recorder.end_sending(1_250_000_000);
        let parts = recorder.finish(3_500_000_000);
        let lengths = parts.iter().map(|part| part.measured.as_millis());
        let lengths: Vec<_> = lengths.collect();
        assert_eq!(lengths, [1_000, 250, 0, 0]);
    }
}
