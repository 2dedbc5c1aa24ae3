//! What this process uses of the machine.
//!
//! Read from `/proc` at each scrape. The collector of the `prometheus` crate does the same through `procfs`, which brings a second
//! `rustix` and four seconds of a first build, and counts CPU time in whole seconds.

use std::fs;

use figures::process;
use prometheus::{
    Counter, IntCounter, IntGauge, Result,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

use super::handle::Handle;
use crate::logging::dropped_lines;

/// Collects what this process uses; where `/proc` does not tell, what it told last.
#[derive(Debug)]
pub(super) struct ProcessUsage {
    cpu: Counter,
    open_files: IntGauge,
    open_files_max: IntGauge,
    virtual_memory: IntGauge,
    resident_memory: IntGauge,
    started: IntGauge,
    threads: IntGauge,
    dropped_log_lines: IntCounter,
}

/// What `/proc/self/stat` tells.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// Of its own code and of the kernel on its behalf.
    cpu_ticks: u64,
    threads: i64,
    /// After the machine's start.
    started_ticks: u64,
    virtual_bytes: i64,
    resident_pages: i64,
}

impl ProcessUsage {
    /// That of the process of `<program>`.
    pub(super) fn new(program: &str) -> Result<Self> {
        let usage = Self {
            cpu: Handle::of(process::CPU_SECONDS)?,
            open_files: Handle::of(process::OPEN_FILES)?,
            open_files_max: Handle::of(process::OPEN_FILES_MAX)?,
            virtual_memory: Handle::of(process::VIRTUAL_BYTES)?,
            resident_memory: Handle::of(process::RESIDENT_BYTES)?,
            started: Handle::of(process::STARTED)?,
            threads: Handle::of(process::THREADS)?,
            dropped_log_lines: IntCounter::new(
                format!("{program}_log_lines_dropped_total"),
                "Log lines that were dropped because standard error was not read.",
            )?,
        };
        if let Some((stat, booted)) = Stat::read().zip(booted()) {
            usage
                .started
                .set(booted + whole(stat.started_ticks / clock_ticks_per_second()));
        }
        Ok(usage)
    }

    fn all(&self) -> [&dyn Collector; 8] {
        [
            &self.cpu,
            &self.open_files,
            &self.open_files_max,
            &self.virtual_memory,
            &self.resident_memory,
            &self.started,
            &self.threads,
            &self.dropped_log_lines,
        ]
    }

    fn look(&self) {
        if let Some(stat) = Stat::read() {
            let cpu = stat.cpu_ticks as f64 / clock_ticks_per_second() as f64;
            // Of two scrapes at once the other may have counted it.
            self.cpu.inc_by((cpu - self.cpu.get()).max(0.0));
            self.threads.set(stat.threads);
            self.virtual_memory.set(stat.virtual_bytes);
            let page = i64::try_from(page_size()).unwrap_or(i64::MAX);
            self.resident_memory
                .set(stat.resident_pages.saturating_mul(page));
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            // Without the one that lists them.
            let open = files.count().saturating_sub(1);
            self.open_files.set(i64::try_from(open).unwrap_or(i64::MAX));
        }
        let dropped = dropped_lines();
        self.dropped_log_lines
            .inc_by(dropped.saturating_sub(self.dropped_log_lines.get()));
        if let Some(most) = getrlimit(Resource::Nofile).current {
            self.open_files_max.set(whole(most));
        }
    }
}

impl Collector for ProcessUsage {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.look();
        self.all()
            .into_iter()
            .flat_map(Collector::collect)
            .collect()
    }
}

impl Stat {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// The program's name, in parentheses, may hold anything; so fields are counted after it, from the third, as proc(5) does.
    fn parse(stat: &str) -> Option<Self> {
        let (_, after_name) = stat.rsplit_once(')')?;
        let fields: Vec<_> = after_name.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3);
        let count = |number| field(number)?.parse::<u64>().ok();
        let size = |number| field(number)?.parse::<i64>().ok();
        Some(Self {
            cpu_ticks: count(14)? + count(15)?,
            threads: size(20)?,
            started_ticks: count(22)?,
            virtual_bytes: size(23)?,
            resident_pages: size(24)?,
        })
    }
}

/// When the machine was started, in seconds since the Unix epoch.
fn booted() -> Option<i64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, time::Instant};

    use super::*;

    #[test]
    fn fields_are_counted_after_a_name_that_may_hold_anything() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 99 0 0 0 31 11 0 0 20 0 6 0 4711 9000000 250 18446744073709551615";
        let expected = Stat {
            cpu_ticks: 42,
            threads: 6,
            started_ticks: 4_711,
            virtual_bytes: 9_000_000,
            resident_pages: 250,
        };
        assert_eq!(Stat::parse(stat), Some(expected));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
    }

    #[test]
    fn this_process_is_seen_to_work() {
        let usage = ProcessUsage::new("some").unwrap();
        usage.look();
        let (cpu, open) = (usage.cpu.get(), usage.open_files.get());
        let files: Vec<_> = (0..10).map(|_| fs::File::open("/proc/self/stat")).collect();
        let began = Instant::now();
        while usage.cpu.get() < cpu + 0.05 && began.elapsed().as_secs() < 30 {
            black_box((0..1_000_000).sum::<u64>());
            usage.look();
        }
        assert!(usage.cpu.get() >= cpu + 0.05);
        assert!(usage.open_files.get() >= open + 5, "{open} before");
        assert!(usage.open_files_max.get() >= usage.open_files.get());
        assert!(usage.resident_memory.get() > 1 << 20);
        assert!(usage.virtual_memory.get() >= usage.resident_memory.get());
        assert!(usage.threads.get() >= 1);
        let now = i64::try_from(crate::unix_micros() / 1_000_000).unwrap();
        assert!((now - 86_400..=now + 1).contains(&usage.started.get()));
        drop(files);
    }
}
