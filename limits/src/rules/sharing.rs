//! How several who have the same file keep to its limits together; for who enforces them.

use std::{fmt, time::Duration};

use serde::Deserialize;

use crate::rate::Time;

/// That limits are shared, and how.
#[derive(Clone, PartialEq, Eq)]
pub struct Sharing {
    /// Who decides.
    pub mode: SharingMode,
    /// The server's address, with what it takes to log in. Never shown.
    pub redis: String,
    /// A file with the authorities that may sign its certificate; needed where the address is one with TLS.
    pub tls_ca: Option<String>,
    /// Files with a certificate and its key, for a server that wants one.
    pub tls_cert: Option<String>,
    /// See `tls_cert`.
    pub tls_key: Option<String>,
    /// All who name the same group, on the same server, share the limits of the same names.
    pub group: String,
    /// Most who share them at a time; none when nobody knows.
    pub members_max: Option<u64>,
    /// How often a share is asked for.
    pub refresh: Duration,
    /// How long it lasts without an answer.
    pub ttl: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// For how long one that nobody hears of keeps its safe share.
    pub forget_after: Duration,
}

/// Who decides under shared limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharingMode {
    /// Each by itself, by its share of the rate, which the server hands out each second.
    Lease,
    /// The server, each time.
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
        match self.mode {
            SharingMode::Lease => write!(
                formatter,
                "shared by the group {group}: each has a share of each rate, asked for each {}, which lasts {}",
                Time::from(self.refresh),
                Time::from(self.ttl)
            )?,
            SharingMode::Exact => write!(
                formatter,
                "shared by the group {group}: a server decides on each call, within {}",
                Time::from(self.timeout)
            )?,
        }
        match self.members_max {
            Some(most) => write!(formatter, "; at most {most} at a time"),
            None => Ok(()),
        }
    }
}
