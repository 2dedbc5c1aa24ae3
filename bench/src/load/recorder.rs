//! Counts and histograms of one thread. No other thread accesses them before the end of the load.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::report::Micros;

/// Recorder of the connections of one thread, or the sum of several.
#[derive(Debug)]
pub(super) struct Recorder {
    started: Instant,
    pub(super) counts: RequestCounts,
    /// Latency until the correct response, or until a request was abandoned.
    pub(super) latency: Micros,
    /// With a rate: delay of each request, from the time when it was due and its connection could send it.
    pub(super) generator_delay: Micros,
    /// Time of the last response in nanoseconds since the start of the load.
    pub(super) last_response_nanos: u64,
}

/// Outcomes of the requests of a load.
#[derive(Debug, Clone, Default)]
pub struct RequestCounts {
    /// Requests sent.
    pub sent: u64,
    /// Requests with the correct response: status 200, or that of a refused hostile request.
    pub accepted: u64,
    /// Users found by lookups.
    pub hits: u64,
    /// Requests with another status, or a wrong response to a lookup.
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

impl Recorder {
    /// A recorder of a load that starts at `started`.
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            counts: RequestCounts::default(),
            latency: Micros::default(),
            generator_delay: Micros::default(),
            last_response_nanos: 0,
        }
    }

    /// Nanoseconds since the start.
    #[inline]
    pub(super) fn now_nanos(&self) -> u64 {
        nanos(Instant::now().saturating_duration_since(self.started))
    }

    /// Records the delay of a request from the time at which it could be sent.
    #[inline]
    pub(super) fn late(&mut self, now_nanos: u64, possible_nanos: u64) {
        let micros = now_nanos.saturating_sub(possible_nanos) / 1_000;
        self.generator_delay.record(micros, 1);
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
        self.last_response_nanos = now_nanos;
        if let Some(status) = rejected {
            *self.counts.rejected.entry(status).or_default() += requests;
        } else {
            self.counts.accepted += requests;
            self.record_latency(now_nanos, at_nanos, requests);
        }
    }

    /// Records abandoned requests. The time until then is a lower bound of their latency; without it, a server that drops slow
    /// requests would seem fast.
    pub(super) fn abandoned(&mut self, now_nanos: u64, at_nanos: u64, requests: u64) {
        self.counts.unanswered += requests;
        self.record_latency(now_nanos, at_nanos, requests);
    }

    fn record_latency(&mut self, now_nanos: u64, at_nanos: u64, requests: u64) {
        let micros = now_nanos.saturating_sub(at_nanos) / 1_000;
        self.latency.record(micros, requests);
    }

    /// Adds the results of another thread.
    pub(super) fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.latency.add(&other.latency);
        self.generator_delay.add(&other.generator_delay);
        self.last_response_nanos = self.last_response_nanos.max(other.last_response_nanos);
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
        self.hits += other.hits;
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
    fn abandoned_requests_have_a_minimum_latency() {
        let mut recorder = Recorder::new(Instant::now());
        recorder.responded(None, 300_000_000, 200_000_000, 1);
        recorder.abandoned(900_000_000, 100_000_000, 2);
        let latency = recorder.latency.percentiles().unwrap();
        assert!(latency.get("p50").abs_diff(800_000) < 1_000);
        assert!(latency.get("max").abs_diff(800_000) < 1_000);
        assert_eq!(recorder.counts.errors(), 2);
    }
}
