//! The series of a load: one entry for each second, put together from what the threads hand in.

use std::{collections::BTreeMap, time::Duration};

use super::{
    plan::Plan,
    recorder::{Counts, Part, Times},
    thread_time::ThreadTime,
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
    pub counts: Counts,
    /// Requests without an answer at its end.
    pub outstanding: u64,
    /// Of the answers with 200 that came in it, and of the requests that were given up in it: from sending, or from the
    /// intended time when there is a rate.
    pub latency_micros: Option<Percentiles>,
    /// From intended times to sending.
    pub send_delay_micros: Option<Percentiles>,
    /// The generator's own part of that.
    pub generator_delay_micros: Option<Percentiles>,
    /// Share of it for which the threads ran, on average.
    pub generator_running: Option<f64>,
    /// Share of it for which they were ready and had no processor, on average.
    pub generator_waiting: Option<f64>,
}

/// What the threads hand in.
#[derive(Debug)]
pub(super) enum FromThread {
    /// Seconds come in turn, without one left out.
    Part { thread: usize, part: Box<Part> },
    /// There will be no more.
    Ended { thread: usize },
}

/// Puts the parts of all threads together.
pub(super) struct Collector<'a> {
    plan: &'a Plan,
    /// For each thread, the first second it has not handed in.
    next: Vec<u64>,
    open: BTreeMap<u64, Part>,
    pub(super) seconds: Vec<Second>,
    pub(super) times: Times,
    /// What each thread used, and in how much time; none where the system does not tell.
    pub(super) threads: Vec<(ThreadTime, Duration)>,
}

impl Second {
    fn of(sum: &Part, intended: Option<u64>) -> Self {
        let shares = (!sum.measured.is_zero()).then(|| sum.thread_time.shares(sum.measured));
        Self {
            second: sum.second,
            length: sum.length.as_secs_f64(),
            intended,
            counts: sum.counts,
            outstanding: sum.outstanding,
            latency_micros: Percentiles::of(&sum.times.latency),
            send_delay_micros: Percentiles::of(&sum.times.send_delay),
            generator_delay_micros: Percentiles::of(&sum.times.generator_delay),
            generator_running: shares.map(|(running, _)| running),
            generator_waiting: shares.map(|(_, waiting)| waiting),
        }
    }

    /// Answers were awaited, and none came.
    pub(super) fn is_silent(&self) -> bool {
        let Counts {
            accepted,
            refused_as_expected,
            errors,
            ..
        } = self.counts;
        self.outstanding > 0 && accepted + refused_as_expected + errors == 0
    }
}

impl<'a> Collector<'a> {
    pub(super) fn new(threads: usize, plan: &'a Plan) -> Self {
        Self {
            plan,
            next: vec![0; threads],
            open: BTreeMap::new(),
            seconds: Vec::new(),
            times: Times::default(),
            threads: vec![Default::default(); threads],
        }
    }

    /// Takes what a thread hands in, and shows the seconds that all threads have finished.
    pub(super) fn take(&mut self, from: FromThread, observe: &mut impl FnMut(&Second)) {
        match from {
            FromThread::Part { thread, part } => {
                self.next[thread] = part.second + 1;
                let (sum, length) = &mut self.threads[thread];
                *sum = sum.plus(&part.thread_time);
                *length += part.measured;
                let sum = self.open.entry(part.second);
                sum.or_insert_with(|| Part::new(part.second)).add(&part);
            }
            FromThread::Ended { thread } => self.next[thread] = u64::MAX,
        }
        let complete = self.next.iter().copied().min().unwrap_or(u64::MAX);
        while let Some(entry) = self.open.first_entry()
            && *entry.key() < complete
        {
            let sum = entry.remove();
            self.times.add(&sum.times);
            let second = Second::of(&sum, self.plan.intended_within(sum.second));
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
        let plan = Plan::new(http::Uri::default(), Traffic::new(1, None));
        let mut collector = Collector::new(2, &plan);
        let recorder = |sent| {
            let mut recorder = Recorder::new(Instant::now());
            recorder.sent(sent);
            recorder
        };
        let quick = recorder(3).finish(1_500_000_000);
        let slow = recorder(4).finish(1_250_000_000);
        let parts = |thread, parts: Vec<Part>| {
            parts
                .into_iter()
                .map(move |part| FromThread::Part {
                    thread,
                    part: Box::new(part),
                })
                .chain([FromThread::Ended { thread }])
        };
        for part in parts(0, quick) {
            collector.take(part, &mut |_| unreachable!("the other has not finished it"));
        }
        for part in parts(1, slow) {
            collector.take(part, &mut |second| {
                shown.push((second.second, second.counts.sent))
            });
        }
        assert_eq!(shown, [(0, 7), (1, 0)]);
        assert_eq!(collector.seconds[1].outstanding, 7);
        assert!((collector.seconds[1].length - 0.5).abs() < 1e-9);
    }
}
