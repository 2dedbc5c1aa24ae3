//! Resource usage of a process, under the standard names of the Prometheus client libraries.

metrics! {
    CPU_SECONDS counter "process_cpu_seconds_total"
        "User and system CPU time used, in seconds."
    OPEN_FILES gauge "process_open_fds"
        "Number of open file descriptors."
    OPEN_FILES_MAX gauge "process_max_fds"
        "Maximum number of open file descriptors."
    VIRTUAL_BYTES gauge "process_virtual_memory_bytes"
        "Virtual memory size in bytes."
    RESIDENT_BYTES gauge "process_resident_memory_bytes"
        "Resident memory size in bytes."
    STARTED gauge "process_start_time_seconds"
        "Unix time at which the process started."
    THREADS gauge "process_threads"
        "Number of OS threads in the process."
}
