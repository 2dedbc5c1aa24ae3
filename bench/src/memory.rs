//! Memory of a process, as the system accounts it.

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
        let bytes = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kibibytes * 1024)
        };
        Some(Self {
            resident_bytes: bytes("VmRSS:")?,
            peak_bytes: bytes("VmHWM:")?,
        })
    }
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
}
