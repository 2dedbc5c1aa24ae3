//! Resource usage of this process, read from `/proc` at each scrape.
//!
//! The collector of the `prometheus` crate is not used: it counts CPU time in whole seconds, and its `procfs` adds a second version
//! of `rustix` and four seconds to a clean build.

use std::fs;

use metric_defs::{MetricDef, process};
use prometheus::Result;
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

use super::{Family, Registry, value};
use crate::logging::dropped_lines;

/// Dropped log lines; each process adds its prefix.
const DROPPED_LINES: MetricDef = MetricDef::counter(
    "log_lines_dropped_total",
    "Log lines dropped because standard error was not read.",
);

/// Registers the resource usage of `process`. Metrics that the system does not provide have no value.
pub(super) fn register(registry: &Registry, process: &str) -> Result<()> {
    let dropped_lines = DROPPED_LINES.of(process);
    registry.read(move || usage(dropped_lines))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus has only 64-bit floats"
)]
fn usage(dropped: MetricDef) -> Vec<Family> {
    let stat = fs::read_to_string("/proc/self/stat").ok();
    let stat = |number| field(stat.as_deref()?, number);
    let tick = 1.0 / clock_ticks_per_second() as f64;
    let cpu_ticks = stat(14).zip(stat(15)).map(|(own, kernel)| own + kernel);
    let started = boot_time()
        .zip(stat(22))
        .map(|(boot, ticks)| boot + (ticks * tick).floor());
    // Excludes the descriptor that lists the directory.
    let open_files = fs::read_dir("/proc/self/fd").map(|files| files.count() as f64 - 1.0);
    let open_files_max = getrlimit(Resource::Nofile).current;
    vec![
        value(process::CPU_SECONDS, cpu_ticks.map(|ticks| ticks * tick)),
        value(process::OPEN_FILES, open_files.ok()),
        value(
            process::OPEN_FILES_MAX,
            open_files_max.map(|max| max as f64),
        ),
        value(process::VIRTUAL_BYTES, stat(23)),
        value(
            process::RESIDENT_BYTES,
            stat(24).map(|pages| pages * page_size() as f64),
        ),
        value(process::STARTED, started),
        value(process::THREADS, stat(20)),
        value(dropped, dropped_lines() as f64),
    ]
}

/// A field of `/proc/self/stat` by its number in proc(5). Fields are counted from the third, because the second one (the
/// program name in parentheses) may contain spaces.
fn field(stat: &str, number: usize) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let field = after_name.split_ascii_whitespace().nth(number - 3)?;
    field.parse().ok()
}

/// Boot time in seconds since the Unix epoch.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, time::Instant};

    use super::*;

    #[test]
    fn fields_are_counted_after_a_name_with_spaces() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 99 0 0 0 31 11 0 0 20 0 6 0 4711 9000000 250 18446744073709551615";
        let fields = [14, 15, 20, 22, 23, 24].map(|number| field(stat, number));
        assert_eq!(fields, [31.0, 11.0, 6.0, 4711.0, 9e6, 250.0].map(Some));
        assert_eq!(field("7 (a) S 1", 14), None);
    }

    #[test]
    fn usage_of_this_process_grows_with_its_work() {
        let read = |def: MetricDef| {
            let families = usage(DROPPED_LINES.of("some"));
            let found = families.iter().find(|family| family.name() == def.name);
            let metric = &found.unwrap().get_metric()[0];
            match def.kind {
                metric_defs::Kind::Counter => metric.get_counter().get_value(),
                _ => metric.get_gauge().get_value(),
            }
        };
        let (cpu, open) = (read(process::CPU_SECONDS), read(process::OPEN_FILES));
        let files: Vec<_> = (0..10).map(|_| fs::File::open("/proc/self/stat")).collect();
        let began = Instant::now();
        while read(process::CPU_SECONDS) < cpu + 0.05 && began.elapsed().as_secs() < 30 {
            black_box((0..1_000_000).sum::<u64>());
        }
        assert!(read(process::CPU_SECONDS) >= cpu + 0.05);
        assert!(read(process::OPEN_FILES) >= open + 5.0, "{open} before");
        assert!(read(process::OPEN_FILES_MAX) >= read(process::OPEN_FILES));
        assert!(read(process::RESIDENT_BYTES) > 1e6);
        assert!(read(process::VIRTUAL_BYTES) >= read(process::RESIDENT_BYTES));
        assert!(read(process::THREADS) >= 1.0);
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let now = (crate::unix_micros() / 1_000_000) as f64;
        assert!((now - 86_400.0..=now + 1.0).contains(&read(process::STARTED)));
        drop(files);
    }
}
