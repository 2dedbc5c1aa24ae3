//! What a process uses of the machine, under the names that Prometheus' client libraries agree on.

#![expect(missing_docs, reason = "the help of a figure is what it means")]

use crate::Figure;

pub const CPU_SECONDS: Figure = Figure::counter(
    "process_cpu_seconds_total",
    "Total user and system CPU time spent in seconds.",
);
pub const OPEN_FILES: Figure =
    Figure::gauge("process_open_fds", "Number of open file descriptors.");
pub const OPEN_FILES_MAX: Figure = Figure::gauge(
    "process_max_fds",
    "Maximum number of open file descriptors.",
);
pub const VIRTUAL_BYTES: Figure = Figure::gauge(
    "process_virtual_memory_bytes",
    "Virtual memory size in bytes.",
);
pub const RESIDENT_BYTES: Figure = Figure::gauge(
    "process_resident_memory_bytes",
    "Resident memory size in bytes.",
);
pub const STARTED: Figure = Figure::gauge(
    "process_start_time_seconds",
    "Start time of the process since unix epoch in seconds.",
);
pub const THREADS: Figure =
    Figure::gauge("process_threads", "Number of OS threads in the process.");
