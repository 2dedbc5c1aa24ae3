//! CPU time of a process, as the system accounts it: used in its own code, and in the kernel on its behalf.
//!
//! The system's figures have a resolution of one clock tick, usually 10 ms.

use std::{process, time::Duration};

use procfs::process::{Process, Stat};

/// What Linux tells of a process: its name (`comm`) and its parent (`ppid`) among others; `None` when it has ended.
#[must_use]
pub fn stat(process_id: u32) -> Option<Stat> {
    Process::new(process_id.cast_signed()).ok()?.stat().ok()
}

/// What a process has used; `None` when it has ended or `/proc` does not tell.
#[must_use]
pub fn of(process_id: u32) -> Option<Duration> {
    stat(process_id).map(|stat| used(&stat))
}

/// What this process has used; zero where `/proc` does not tell.
#[must_use]
pub fn of_this_process() -> Duration {
    of(process::id()).unwrap_or_default()
}

/// What those threads of this process have used whose name is one of `names`. A thread that has ended counts no more.
#[must_use]
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
    fn threads_are_told_apart_by_their_names() {
        let (busy, idle) = ("busy-thread", "idle-thread");
        let worked = |name: &'static str, rounds: u32| {
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
        assert!(worked(idle, 0) < 20 * TICK);
        assert!(worked(busy, 1) >= 20 * TICK);
    }

    const TICK: Duration = Duration::from_millis(10);
}
