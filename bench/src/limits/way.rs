//! The ways to decide, and what each needs.

use clap::ValueEnum;
use serde::Serialize;

/// A way to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// The library, in process.
    Local,
    /// The crate `governor`, in process.
    Governor,
    /// The library, in process, with a share on lease from Redis.
    Lease,
    /// A script in Redis for each decision.
    Exact,
    /// A fixed window in Redis as people write it: INCR and EXPIRE.
    Window,
    /// `limiter serve` over HTTP/1.1.
    Http,
}

impl Way {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Self; 6] = [
        Self::Local,
        Self::Governor,
        Self::Lease,
        Self::Exact,
        Self::Window,
        Self::Http,
    ];

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Governor => "governor",
            Self::Lease => "lease",
            Self::Exact => "exact",
            Self::Window => "window",
            Self::Http => "http",
        }
    }

    pub(super) fn needs_redis(self) -> bool {
        matches!(self, Self::Lease | Self::Exact | Self::Window)
    }

    pub(super) fn needs_limiter(self) -> bool {
        matches!(self, Self::Http)
    }
}
