//! CPU time of processes and threads in user and kernel mode, with a resolution of one clock tick (usually 10 ms).

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

/// CPU time of the running threads of this process with these names.
pub fn of_threads(names: &[&str]) -> Duration {
    let threads = Process::myself().and_then(|process| process.tasks());
    let stats = threads.into_iter().flatten();
    stats
        .filter_map(|thread| thread.ok()?.stat().ok())
        .filter(|stat| names.contains(&stat.comm.as_str()))
        .map(|stat| used(&stat))
        .sum()
}

fn used(stat: &Stat) -> Duration {
    let nanos_per_tick = 1_000_000_000 / procfs::ticks_per_second();
    Duration::from_nanos((stat.utime + stat.stime) * nanos_per_tick)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_counted_by_thread_name() {
        let (busy, idle) = ("busy-thread", "idle-thread");
        let used_by = |name: &'static str, rounds: u32| {
            let work = move || {
                let began = of_threads(&[name]);
                while of_threads(&[name]) - began < 20 * rounds * TICK {
                    std::hint::black_box(());
                }
                of_threads(&[busy, idle])
            };
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn(work).unwrap().join().unwrap()
        };
        assert!(used_by(idle, 0) < 20 * TICK);
        assert!(used_by(busy, 1) >= 20 * TICK);
    }

    const TICK: Duration = Duration::from_millis(10);
}
