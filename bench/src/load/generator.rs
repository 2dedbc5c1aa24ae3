//! Judges whether the results of a load reflect the server, or the machine that sends the load.
//!
//! There are two indicators. The first is the delay of requests whose connection is free to send them: in a load with a
//! rate, only the generator can cause this delay. The second is the time for which each sending thread ran or waited
//! for a CPU, as counted by Linux (`/proc/thread-self/schedstat`). It shows why connections have too many unanswered
//! requests to send more: a generator without idle time reads responses late.

use super::thread_time::CpuShares;
use crate::report::{Percentiles, duration};

/// Delay from which a request counts as late: more than the interval of grouped requests (1 ms) and a scheduler time slice (3 to 4 ms).
const LATE_MICROS: u64 = 10_000;

/// Minimum fraction of time running or waiting for a CPU of a thread without idle time.
const BUSY_SHARE: f64 = 0.95;

/// Fraction of time waiting for a CPU above which other processes slowed a thread down.
const CONTENDED_SHARE: f64 = 0.2;

/// Like [`BUSY_SHARE`], for a thread that waited for a CPU.
const CONTENDED_BUSY_SHARE: f64 = 0.8;

/// Influence of the generator on the results.
#[derive(Debug, Clone)]
pub struct GeneratorVerdict {
    /// Bottleneck on the sending machine.
    pub limited_by: Bottleneck,
    /// Explanation in one sentence.
    pub reason: String,
    /// With a rate: delay from when a request was due and had capacity on its connection until it was sent.
    pub delay_micros: Option<Percentiles>,
}

/// What limited a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bottleneck {
    /// No known bottleneck on the sending machine: the schedule was kept, or the generator waited for responses.
    None,
    /// The generator. With a rate: more than 1 % of the requests were delayed by more than 10 ms, or requests were late and a
    /// thread had no idle time. Without a rate: a thread had no idle time.
    Generator,
    /// The CPU, which other processes share: a thread waited for it for more than 20 % of the time and had little idle time.
    /// With a rate, requests were also late.
    Cpu,
}

impl GeneratorVerdict {
    /// Judges a load by its delays, by whether requests were late or not sent (`is_behind`), and by the CPU usage of its
    /// threads, if known.
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
                "its busiest thread ran for {:.0} % of the time and waited for a CPU for {:.0} %",
                busiest.running * 100.0,
                busiest.waiting * 100.0
            ),
            None => "the CPU usage of its threads is unknown on this system".to_owned(),
        };
        let advice = match by_threads {
            Bottleneck::Generator => "increase --threads, or use another machine",
            Bottleneck::Cpu => "use another machine, or reduce --threads below the free cores",
            Bottleneck::None => "the whole process was stalled",
        };
        let reason = match (limited_by, &delay) {
            (_, Some(delay)) if is_late => format!(
                "the generator was late: it delayed 1 % of the requests by {} or more; {threads}; {advice}",
                duration(delay.p99)
            ),
            (Bottleneck::Generator, _) => {
                format!("the generator was the bottleneck: {threads}; {advice}")
            }
            (Bottleneck::Cpu, _) => format!(
                "the CPU, which other processes share, was the bottleneck: {threads}; {advice}"
            ),
            (Bottleneck::None, None) if busiest.is_none() => threads,
            (Bottleneck::None, Some(delay)) => format!(
                "the generator kept up: it delayed 99 % of the requests by {} or less; {threads}",
                duration(delay.p99)
            ),
            (Bottleneck::None, None) => format!("the generator had idle time: {threads}"),
        };
        Self {
            limited_by,
            reason,
            delay_micros: delay,
        }
    }

    /// Whether more than 1 % of the requests were sent late.
    pub(super) fn is_late(send_delay: &Percentiles) -> bool {
        send_delay.p99 > LATE_MICROS
    }
}

impl Bottleneck {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Generator => "generator",
            Self::Cpu => "CPU",
        }
    }

    /// Bottleneck of a thread.
    fn of(thread: &CpuShares) -> Self {
        if thread.waiting > CONTENDED_SHARE && thread.busy() >= CONTENDED_BUSY_SHARE {
            Self::Cpu
        } else if thread.waiting <= CONTENDED_SHARE && thread.busy() >= BUSY_SHARE {
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
        assert_eq!(verdict.limited_by, limited_by, "{}", verdict.reason);
        assert!(verdict.reason.contains(words), "{}", verdict.reason);
    }

    #[test]
    fn busy_generator_on_schedule_is_not_the_bottleneck() {
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
    fn late_generator_has_a_reason() {
        let busy = [thread(10, 0), thread(970, 20)];
        let late = |threads: &[_], words| {
            check(delay(20_000), true, threads, Bottleneck::Generator, words)
        };
        late(&busy, "97 %");
        late(&busy, "increase --threads");
        late(&[thread(300, 600)], "another machine");
        late(&[thread(300, 10)], "process was stalled");
        late(&[], "generator was late");
    }

    #[test]
    fn cause_of_full_pipelines_depends_on_the_threads() {
        let behind = |threads: &[_], limit, words| check(delay(2_000), true, threads, limit, words);
        behind(
            &[thread(960, 20)],
            Bottleneck::Generator,
            "was the bottleneck",
        );
        behind(&[thread(380, 590)], Bottleneck::Cpu, "share");
        behind(&[thread(300, 10)], Bottleneck::None, "kept up");
        behind(&[], Bottleneck::None, "unknown");
    }

    #[test]
    fn without_a_rate_a_thread_without_idle_time_is_the_bottleneck() {
        let check = |threads: &[_], limit, words| check(None, false, threads, limit, words);
        check(&[thread(500, 100)], Bottleneck::None, "had idle time");
        check(
            &[thread(100, 0), thread(960, 0)],
            Bottleneck::Generator,
            "--threads",
        );
        check(&[thread(380, 590)], Bottleneck::Cpu, "CPU");
        check(&[thread(150, 800)], Bottleneck::Cpu, "80 %");
        check(&[thread(150, 300)], Bottleneck::None, "had idle time");
        check(&[], Bottleneck::None, "unknown");
    }
}
