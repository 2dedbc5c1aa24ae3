//! Results of a load per second, merged from all threads.

use std::collections::BTreeMap;

use super::{
    plan::Plan,
    recorder::{Interval, RequestCounts},
};
use crate::report::Percentiles;

/// Results of one second of a load.
#[derive(Debug, Clone)]
pub struct Second {
    /// Number of the second, from 0.
    pub second: u64,
    /// Length in seconds; below 1 only for the last one.
    pub length: f64,
    /// Requests due in this second, with a rate.
    pub intended: Option<u64>,
    /// Outcomes of requests in this second.
    pub counts: RequestCounts,
    /// Outstanding requests at its end.
    pub outstanding: u64,
    /// Latency of the correct responses that arrived in this second, and of the requests that were abandoned in it.
    pub latency_micros: Option<Percentiles>,
}

/// Merges the intervals of all threads.
pub(super) struct Collector<'a> {
    plan: &'a Plan,
    /// Next second of each thread.
    next: Vec<u64>,
    open: BTreeMap<u64, Interval>,
    pub(super) seconds: Vec<Second>,
    /// Sum of all seconds.
    pub(super) total: Interval,
}

impl Second {
    /// Whether no response arrived in this second.
    pub(super) fn is_silent(&self) -> bool {
        self.counts.accepted + self.counts.errors() == 0
    }
}

impl<'a> Collector<'a> {
    pub(super) fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            next: vec![0; plan.threads_used()],
            open: BTreeMap::new(),
            seconds: Vec::new(),
            total: Interval::new(0),
        }
    }

    /// Adds an interval of a thread; calls `observe` for seconds that all threads have completed.
    pub(super) fn add(
        &mut self,
        thread: usize,
        interval: &Interval,
        observe: &mut impl FnMut(&Second),
    ) {
        self.next[thread] = if interval.is_last {
            u64::MAX
        } else {
            interval.second + 1
        };
        let sum = self.open.entry(interval.second);
        sum.or_insert_with(|| Interval::new(interval.second))
            .add(interval);
        let complete = self.next.iter().copied().min().unwrap_or(u64::MAX);
        while let Some(entry) = self.open.first_entry()
            && *entry.key() < complete
        {
            let sum = entry.remove();
            self.total.add(&sum);
            let second = Second {
                second: sum.second,
                length: sum.length.as_secs_f64(),
                intended: self.plan.intended_within(sum.second),
                counts: sum.counts,
                outstanding: sum.outstanding,
                latency_micros: sum.times.latency.percentiles(),
            };
            observe(&second);
            self.seconds.push(second);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::{super::recorder::Recorder, *};
    use crate::traffic::Traffic;

    #[test]
    fn second_is_observed_after_all_threads_have_completed_it() {
        let mut observed = Vec::new();
        let two = 2.try_into().unwrap();
        let plan = Plan {
            threads: two,
            connections: two,
            ..Plan::new(http::Uri::default(), Traffic::new(1, None))
        };
        let mut collector = Collector::new(&plan);
        let recorder = |sent| {
            let mut recorder = Recorder::new(Instant::now());
            recorder.sent(sent);
            recorder
        };
        let quick = recorder(3).finish(1_500_000_000);
        let slow = recorder(4).finish(1_250_000_000);
        for interval in quick {
            collector.add(0, &interval, &mut |_| {
                unreachable!("the other thread has not completed it")
            });
        }
        for interval in slow {
            collector.add(1, &interval, &mut |second| {
                observed.push((second.second, second.counts.sent))
            });
        }
        assert_eq!(observed, [(0, 7), (1, 0)]);
        assert_eq!(collector.seconds[1].outstanding, 7);
        assert!((collector.seconds[1].length - 0.5).abs() < 1e-9);
    }
}
