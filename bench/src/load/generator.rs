//! Whether the figures of a load tell of the server, or of the machine that sent the load.
//!
//! Two things show it. With a schedule, how late requests left that had both their time and a place on their
//! connection: nobody but the generator kept those. And for each sending thread, how much of the time it ran, and how much
//! it was ready to run and had no processor, as Linux counts it in `/proc/thread-self/schedstat`.

use std::{fs, time::Duration};

use serde::Serialize;

use super::second::Second;
use crate::report::{Percentiles, duration};

/// Late is what leaves so long after it could have: more than a timer's millisecond and a turn of the processor
/// (3 to 4 ms on Linux).
const LATE_MICROS: u64 = 10_000;

/// A thread that ran, or waited to, for this share of the time had always something to do.
const BUSY_SHARE: f64 = 0.95;

/// A thread that waited for a processor for this share of the time was held up by what else ran.
const CROWDED_SHARE: f64 = 0.2;

/// What the generator itself did to the figures.
#[derive(Debug, Clone, Serialize)]
pub struct Generator {
    /// It was the limit: with a schedule, when more than 1 % of the requests left more than 10 ms after they could
    /// have; without one, when a thread had something to do for 95 % of the time.
    pub limit: bool,
    /// Why it was, or what else there is to know about it; one sentence.
    pub why: String,
    /// Share of the time for which its busiest thread ran.
    pub running: Option<f64>,
    /// Share of the time for which that thread was ready, and had no processor.
    pub waiting: Option<f64>,
    /// With a schedule: from the time when a request was due and had a place on its connection until it was sent.
    pub delay_micros: Option<Percentiles>,
}

impl Generator {
    /// The verdict on a load: on its delays, and on each thread's use of a processor in so much time.
    pub(super) fn judge(delay: Option<Percentiles>, threads: &[(ThreadTime, Duration)]) -> Self {
        let shares = threads.iter().map(|(time, of)| time.shares(*of));
        let busiest = shares.max_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
        let (running, waiting) = busiest.unwrap_or_default();
        let is_busy = running + waiting >= BUSY_SHARE;
        let limit = match &delay {
            Some(delay) => delay.p99 > LATE_MICROS,
            None => is_busy,
        };
        let threads = format!(
            "its busiest thread ran for {:.0} % of the time and waited for a processor for {:.0} %",
            running * 100.0,
            waiting * 100.0
        );
        let advice = if waiting >= CROWDED_SHARE {
            "send from another machine, or from fewer threads than there are processors left"
        } else if is_busy {
            "add --threads, or send from another machine"
        } else {
            "something held the whole process up"
        };
        let why = match &delay {
            Some(delay) if limit => format!(
                "the generator was late by itself: 1 % of the requests left {} or more after they could have; {threads}; {advice}",
                duration(delay.p99)
            ),
            Some(delay) => format!(
                "the generator kept up: 99 % of the requests left within {} of when they could; {threads}",
                duration(delay.p99)
            ),
            None if limit => format!("the generator was the limit: {threads}; {advice}"),
            None => format!("the generator had time left: {threads}"),
        };
        Self {
            limit,
            why,
            running: busiest.map(|(running, _)| running),
            waiting: busiest.map(|(_, waiting)| waiting),
            delay_micros: delay,
        }
    }

    /// Seconds in which it was late, of those that tell.
    pub(super) fn late_seconds(seconds: &[Second]) -> usize {
        let delays = seconds
            .iter()
            .filter_map(|second| second.generator_delay_micros.as_ref());
        delays.filter(|delay| delay.p99 > LATE_MICROS).count()
    }
}

/// How long a thread has run, and has waited for a processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ThreadTime {
    running: Duration,
    waiting: Duration,
}

impl ThreadTime {
    /// That of the calling thread; `None` where `/proc` does not tell.
    pub(super) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    /// The line holds nanoseconds running, nanoseconds waiting, and a count of turns.
    fn parse(schedstat: &str) -> Option<Self> {
        let mut fields = schedstat.split_ascii_whitespace();
        let mut next = || Some(Duration::from_nanos(fields.next()?.parse().ok()?));
        Some(Self {
            running: next()?,
            waiting: next()?,
        })
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self {
            running: self.running.saturating_sub(earlier.running),
            waiting: self.waiting.saturating_sub(earlier.waiting),
        }
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        Self {
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
        }
    }

    /// The shares of `of` that were spent running and waiting.
    pub(super) fn shares(&self, of: Duration) -> (f64, f64) {
        let share = |part: Duration| part.as_secs_f64() / of.as_secs_f64().max(f64::MIN_POSITIVE);
        (share(self.running), share(self.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(running: u64, waiting: u64) -> (ThreadTime, Duration) {
        let [running, waiting] = [running, waiting].map(Duration::from_millis);
        (ThreadTime { running, waiting }, Duration::from_secs(1))
    }

    fn delay(p99: u64) -> Option<Percentiles> {
        Some(Percentiles {
            mean: 0.0,
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
        threads: &[(ThreadTime, Duration)],
        limit: bool,
        words: &str,
    ) {
        let verdict = Generator::judge(delay, threads);
        assert_eq!(verdict.limit, limit, "{}", verdict.why);
        assert!(verdict.why.contains(words), "{}", verdict.why);
    }

    #[test]
    fn generator_that_keeps_its_schedule_is_no_limit_however_busy() {
        check(delay(2_000), &[thread(990, 0)], false, "kept up");
        check(delay(2_000), &[thread(100, 500)], false, "50 %");
    }

    #[test]
    fn generator_that_is_late_says_why() {
        let busy = [thread(10, 0), thread(970, 20)];
        check(delay(20_000), &busy, true, "97 %");
        check(delay(20_000), &busy, true, "add --threads");
        check(delay(20_000), &[thread(300, 600)], true, "another machine");
        check(delay(20_000), &[thread(300, 10)], true, "held the whole");
    }

    #[test]
    fn without_a_schedule_a_thread_without_pause_is_the_limit() {
        check(None, &[thread(500, 100)], false, "had time left");
        check(
            None,
            &[thread(100, 0), thread(960, 0)],
            true,
            "was the limit",
        );
        check(None, &[], false, "had time left");
    }

    #[test]
    fn busy_thread_is_seen_running() {
        let before = ThreadTime::now().unwrap();
        while ThreadTime::now().unwrap().since(&before).running < Duration::from_millis(20) {
            std::hint::black_box(());
        }
        assert_eq!(
            ThreadTime::parse("5 7 1\n"),
            Some(ThreadTime {
                running: Duration::from_nanos(5),
                waiting: Duration::from_nanos(7)
            })
        );
    }
}
