//! The `[sharing]` table: how several processes share the limits of one file.

use std::{fmt, time::Duration};

use serde::Deserialize;

use super::handling::time;

/// The settings of `[sharing]`. `Debug` and `Display` omit the server's URL, which may contain a password.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sharing {
    /// How decisions are made.
    pub mode: SharingMode,
    /// URL of the server, with user and password.
    pub redis: String,
    /// PEM file with the certificate authorities of the server; required for TLS.
    pub tls_ca: Option<String>,
    /// PEM file with a client certificate.
    pub tls_cert: Option<String>,
    /// PEM file with the key of the client certificate.
    pub tls_key: Option<String>,
    /// Name of the group. Processes with the same group and server share limits of the same name.
    pub group: String,
    /// Maximum number of processes; `None` if unknown.
    pub members_max: Option<u64>,
    /// Interval between requests for shares.
    #[serde(default, deserialize_with = "time")]
    pub refresh: Duration,
    /// Maximum response time of the server.
    #[serde(default, deserialize_with = "time")]
    pub timeout: Duration,
    /// How long a process keeps its fallback share without a reply from the server.
    #[serde(default, deserialize_with = "time")]
    pub forget_after: Duration,
}

/// How decisions under shared limits are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharingMode {
    /// By each process, within a share of each rate that the server leases to it.
    Lease,
    /// By the server, for every call.
    Exact,
}

impl Sharing {
    /// Replaces times that are not set, and thus zero, by their defaults.
    pub(super) fn set_defaults(&mut self) {
        let set = |time: &mut Duration, default| {
            if time.is_zero() {
                *time = default;
            }
        };
        set(&mut self.refresh, Duration::from_secs(1));
        set(
            &mut self.timeout,
            Duration::from_millis(50).min(self.refresh / 2),
        );
        set(&mut self.forget_after, Duration::from_secs(86_400));
    }
}

impl fmt::Debug for Sharing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decides = match self.mode {
            SharingMode::Lease => "each process, within its share",
            SharingMode::Exact => "the server",
        };
        write!(
            formatter,
            "shared by group {}; decided by {decides}",
            self.group
        )
    }
}
