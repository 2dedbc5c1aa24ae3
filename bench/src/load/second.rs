//! The series of a load: one entry for each second, put together from what the threads hand in.

use std::collections::BTreeMap;

use super::{
    plan::Plan,
    recorder::{Interval, RequestCounts},
};
use crate::report::Percentiles;

/// What happened in one second of a load.
#[derive(Debug, Clone)]
pub struct Second {
    /// Which one, from 0.
    pub second: u64,
    /// How much of it there was: less than 1 only of the last.
    pub length: f64,
    /// Requests that should have left in it, when there is a rate.
    pub intended: Option<u64>,
    /// What became of requests in it.
    pub counts: RequestCounts,
    /// Requests without an answer at its end.
    pub outstanding: u64,
    /// Of the answers with 200 that came in it, and of the requests that were given up in it: from sending, or from the
    /// intended time when there is a rate.
    pub latency_micros: Option<Percentiles>,
}

/// Puts the parts of all threads together.
pub(super) struct Collector<'a> {
    plan: &'a Plan,
    /// For each thread, the first second it has not handed in.
    next: Vec<u64>,
    open: BTreeMap<u64, Interval>,
    pub(super) seconds: Vec<Second>,
    /// The sum of all of them.
    pub(super) total: Interval,
}

impl Second {
    /// Whether nothing came in it.
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

    /// Takes what a thread hands in, second by second, and shows those that all threads have finished.
    pub(super) fn take(
        &mut self,
        thread: usize,
        part: &Interval,
        observe: &mut impl FnMut(&Second),
    ) {
        self.next[thread] = if part.is_last {
            u64::MAX
        } else {
            part.second + 1
        };
        let sum = self.open.entry(part.second);
        sum.or_insert_with(|| Interval::new(part.second)).add(part);
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
    fn second_is_shown_when_all_threads_have_finished_it() {
        let mut shown = Vec::new();
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
        for part in quick {
            collector.take(0, &part, &mut |_| {
                unreachable!("the other has not finished it")
            });
        }
        for part in slow {
            collector.take(1, &part, &mut |second| {
                shown.push((second.second, second.counts.sent))
            });
        }
        assert_eq!(shown, [(0, 7), (1, 0)]);
        assert_eq!(collector.seconds[1].outstanding, 7);
        assert!((collector.seconds[1].length - 0.5).abs() < 1e-9);
    }
}
