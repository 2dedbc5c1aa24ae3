//! The `[sharing]` table: how several processes share the limits of one file.

use std::{fmt, time::Duration};

use serde::Deserialize;

use crate::rate::Time;

/// The settings of `[sharing]`. `Debug` and `Display` omit the server's URL, which may contain a password.
#[derive(Clone, PartialEq, Eq)]
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
    pub refresh: Duration,
    /// Duration of a lease.
    pub ttl: Duration,
    /// Maximum response time of the server.
    pub timeout: Duration,
    /// How long a silent process keeps its fallback share.
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

impl fmt::Debug for Sharing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = &self.group;
        let [refresh, ttl, timeout] = [self.refresh, self.ttl, self.timeout].map(Time::from);
        match self.mode {
            SharingMode::Lease => write!(
                formatter,
                "shared by group {group}: each process leases a share of each rate, renewed every {refresh}, valid for {ttl}"
            )?,
            SharingMode::Exact => write!(
                formatter,
                "shared by group {group}: the server decides on every call, within {timeout}"
            )?,
        }
        match self.members_max {
            Some(max) => write!(formatter, "; up to {max} processes"),
            None => Ok(()),
        }
    }
}
