//! Whether the figures of a load tell of the server, or of the machine that sent the load.
//!
//! Two things show it. With a schedule, how late requests left that had both their time and a place on their
//! connection: nobody but the generator kept those. And for each sending thread, how much of the time it ran, and how much
//! it was ready to run and had no processor, as Linux counts it in `/proc/thread-self/schedstat`. The second tells who was at
//! fault when requests found no place: a generator without a pause takes answers late, so that its own slowness
//! fills the pipelines.

use super::thread_time::CpuShares;
use crate::report::{Percentiles, duration};

/// Late is what leaves so long after it could have: more than a timer's millisecond and a turn of the processor
/// (3 to 4 ms on Linux).
const LATE_MICROS: u64 = 10_000;

/// A thread that ran, or waited to, for this share of the time had always something to do.
const BUSY_SHARE: f64 = 0.95;

/// A thread that waited for a processor for more than this share of the time was held up by what else ran.
const CROWDED_SHARE: f64 = 0.2;

/// Of a thread that was held up: it had little time left when it ran, or waited to, for this share of the time.
const HELD_UP_SHARE: f64 = 0.8;

/// What the generator itself did to the figures.
#[derive(Debug, Clone)]
pub struct GeneratorVerdict {
    /// What kept the load from being higher, as far as this side can tell.
    pub limited_by: Bottleneck,
    /// Why it was, or what else there is to know about it; one sentence.
    pub why: String,
    /// With a schedule: from the time when a request was due and had a place on its connection until it was sent.
    pub delay_micros: Option<Percentiles>,
}

/// What kept a load from being higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bottleneck {
    /// Nothing on this side that is known: the schedule was kept, or the generator waited for answers.
    None,
    /// The generator: with a schedule, more than 1 % of the requests left more than 10 ms after they could have; or a thread
    /// had no pause, and requests left late, or there is no schedule.
    Generator,
    /// The processors: a thread waited for one for more than 20 % of the time and had little time left, and requests left
    /// late, or there is no schedule. The generator shares them with what it measures.
    Processors,
}

impl GeneratorVerdict {
    /// The verdict on a load: on its delays, on whether requests were late or did not leave at all (`is_behind`), and on the
    /// threads' use of a processor, as far as that is known.
    pub(super) fn assess(
        delay: Option<Percentiles>,
        is_behind: bool,
        threads: &[CpuShares],
    ) -> Self {
        let busiest = threads.iter().max_by(|a, b| a.busy().total_cmp(&b.busy()));
        let by_threads = busiest.map_or(Bottleneck::None, Bottleneck::of);
        let is_late = delay.as_ref().is_some_and(Self::is_late);
        let limited_by = match &delay {
            Some(_) if is_late => Bottleneck::Generator,
            Some(_) if !is_behind => Bottleneck::None,
            _ => by_threads,
        };
        let threads = match busiest {
            Some(busiest) => format!(
                "its busiest thread ran for {:.0} % of the time and waited for a processor for {:.0} %",
                busiest.running * 100.0,
                busiest.waiting * 100.0
            ),
            None => {
                "how long its threads ran is unknown, since this system does not tell".to_owned()
            }
        };
        let advice = match by_threads {
            Bottleneck::Generator => "add --threads, or send from another machine",
            Bottleneck::Processors => {
                "send from another machine, or from fewer threads than there are processors left"
            }
            Bottleneck::None => "something held the whole process up",
        };
        let why = match (limited_by, &delay) {
            (_, Some(delay)) if is_late => format!(
                "the generator was late by itself: 1 % of the requests left {} or more after they could have; {threads}; {advice}",
                duration(delay.p99)
            ),
            (Bottleneck::Generator, _) => {
                format!("the generator was the limit: {threads}; {advice}")
            }
            (Bottleneck::Processors, _) => format!(
                "the processors were the limit, which the generator shares with what it measures: {threads}; {advice}"
            ),
            (Bottleneck::None, None) if busiest.is_none() => threads,
            (Bottleneck::None, Some(delay)) => format!(
                "the generator kept up: 99 % of the requests left within {} of when they could; {threads}",
                duration(delay.p99)
            ),
            (Bottleneck::None, None) => format!("the generator had time left: {threads}"),
        };
        Self {
            limited_by,
            why,
            delay_micros: delay,
        }
    }

    /// Whether a time from intended to sent, of 99 % of the requests, is late.
    pub(super) fn is_late(send_delay: &Percentiles) -> bool {
        send_delay.p99 > LATE_MICROS
    }
}

impl Bottleneck {
    /// In a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "nothing here",
            Self::Generator => "generator",
            Self::Processors => "processors",
        }
    }

    /// What a thread was held up by.
    fn of(thread: &CpuShares) -> Self {
        if thread.waiting > CROWDED_SHARE && thread.busy() >= HELD_UP_SHARE {
            Self::Processors
        } else if thread.waiting <= CROWDED_SHARE && thread.busy() >= BUSY_SHARE {
            Self::Generator
        } else {
            Self::None
        }
    }
}

impl CpuShares {
    fn busy(&self) -> f64 {
        self.running + self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(running: u16, waiting: u16) -> CpuShares {
        let [running, waiting] = [running, waiting].map(|millis| f64::from(millis) / 1e3);
        CpuShares { running, waiting }
    }

    fn delay(p99: u64) -> Option<Percentiles> {
        Some(Percentiles {
            p50: 0,
            p90: 0,
            p99,
            p999: p99,
            max: p99,
        })
    }

    #[track_caller]
    fn check(
        delay: Option<Percentiles>,
        is_behind: bool,
        threads: &[CpuShares],
        limited_by: Bottleneck,
        words: &str,
    ) {
        let verdict = GeneratorVerdict::assess(delay, is_behind, threads);
        assert_eq!(verdict.limited_by, limited_by, "{}", verdict.why);
        assert!(verdict.why.contains(words), "{}", verdict.why);
    }

    #[test]
    fn generator_that_keeps_its_schedule_is_no_limit_however_busy() {
        check(
            delay(2_000),
            false,
            &[thread(990, 0)],
            Bottleneck::None,
            "kept up",
        );
        check(
            delay(2_000),
            false,
            &[thread(100, 500)],
            Bottleneck::None,
            "50 %",
        );
        check(delay(2_000), false, &[], Bottleneck::None, "unknown");
    }

    #[test]
    fn generator_that_is_late_says_why() {
        let busy = [thread(10, 0), thread(970, 20)];
        let late = |threads: &[_], words| {
            check(delay(20_000), true, threads, Bottleneck::Generator, words)
        };
        late(&busy, "97 %");
        late(&busy, "add --threads");
        late(&[thread(300, 600)], "another machine");
        late(&[thread(300, 10)], "held the whole");
        late(&[], "late by itself");
    }

    #[test]
    fn who_fills_the_pipelines_is_told_by_the_threads() {
        let behind = |threads: &[_], limit, words| check(delay(2_000), true, threads, limit, words);
        behind(&[thread(960, 20)], Bottleneck::Generator, "was the limit");
        behind(&[thread(380, 590)], Bottleneck::Processors, "shares");
        behind(&[thread(300, 10)], Bottleneck::None, "kept up");
        behind(&[], Bottleneck::None, "unknown");
    }

    #[test]
    fn without_a_schedule_a_thread_without_pause_is_the_limit() {
        let check = |threads: &[_], limit, words| check(None, false, threads, limit, words);
        check(&[thread(500, 100)], Bottleneck::None, "had time left");
        check(
            &[thread(100, 0), thread(960, 0)],
            Bottleneck::Generator,
            "--threads",
        );
        check(&[thread(380, 590)], Bottleneck::Processors, "processors");
        check(&[thread(150, 800)], Bottleneck::Processors, "80 %");
        check(&[thread(150, 300)], Bottleneck::None, "had time left");
        check(&[], Bottleneck::None, "unknown");
    }
}
