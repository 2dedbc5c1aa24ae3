//! CPU time of processes in user and kernel mode, with a resolution of one clock tick (usually 10 ms).

use std::{process, time::Duration};

use procfs::process::{Process, Stat};

/// State of a process, including its name (`comm`) and parent (`ppid`); `None` if it has exited.
pub fn stat(process_id: u32) -> Option<Stat> {
    Process::new(process_id.cast_signed()).ok()?.stat().ok()
}

/// CPU time of a process; `None` if it has exited.
pub fn of(process_id: u32) -> Option<Duration> {
    stat(process_id).map(|stat| used(&stat))
}

/// CPU time of this process; zero if unknown.
pub fn of_this_process() -> Duration {
    of(process::id()).unwrap_or_default()
}

fn used(stat: &Stat) -> Duration {
    let nanos_per_tick = 1_000_000_000 / procfs::ticks_per_second();
    Duration::from_nanos((stat.utime + stat.stime) * nanos_per_tick)
}
