//! Memory of a process, and of the machine, as the system accounts it.

use std::fs;

use serde::Serialize;

/// Memory that a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Memory {
    /// In RAM now.
    pub resident_bytes: u64,
    /// Most that was in RAM at once since the process began.
    pub peak_bytes: u64,
}

impl Memory {
    /// What a process holds; `None` when it has ended or `/proc` does not tell.
    #[must_use]
    pub fn of(process_id: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process_id}/status")).ok()?)
    }

    fn parse(status: &str) -> Option<Self> {
        Some(Self {
            resident_bytes: bytes(status, "VmRSS:")?,
            peak_bytes: bytes(status, "VmHWM:")?,
        })
    }
}

/// The machine's memory in bytes; `None` where `/proc` does not tell.
#[must_use]
pub fn of_machine() -> Option<u64> {
    bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Of lines like `VmRSS:   1024 kB`.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let expected = Memory {
            resident_bytes: 1 << 20,
            peak_bytes: 2 << 20,
        };
        assert_eq!(Memory::parse(status), Some(expected));
        assert_eq!(Memory::parse("Name:\tkthreadd\n"), None);
        assert!(Memory::of(std::process::id()).is_some_and(|memory| memory.resident_bytes > 0));
    }

    #[test]
    fn memory_of_the_machine_is_read() {
        let text = "MemTotal:       24622116 kB\nMemFree:          538424 kB\n";
        assert_eq!(bytes(text, "MemTotal:"), Some(24_622_116 * 1024));
        assert_eq!(bytes("MemFree: 1 kB\n", "MemTotal:"), None);
        assert!(of_machine().is_some_and(|bytes| bytes > 1 << 20));
    }
}
