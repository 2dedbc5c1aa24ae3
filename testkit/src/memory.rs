//! Memory of a process and of the machine.

use procfs::{Current as _, Meminfo, process::Process};

/// Memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Resident memory.
    pub resident_bytes: u64,
    /// Peak resident memory since the process started.
    pub peak_bytes: u64,
}

impl Memory {
    /// Memory of a process; `None` if it has exited.
    pub fn of(process_id: u32) -> Option<Self> {
        let status = Process::new(process_id.cast_signed()).ok()?.status().ok()?;
        Some(Self {
            resident_bytes: status.vmrss? * 1024,
            peak_bytes: status.vmhwm? * 1024,
        })
    }
}

/// Memory of the machine in bytes; zero if unknown.
pub fn of_machine() -> u64 {
    Meminfo::current().map_or(0, |memory| memory.mem_total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_bytes() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.resident_bytes > 1 << 20 && memory.peak_bytes >= memory.resident_bytes);
        assert!(of_machine() > memory.resident_bytes);
        assert_eq!(Memory::of(u32::MAX >> 1), None);
    }
}
