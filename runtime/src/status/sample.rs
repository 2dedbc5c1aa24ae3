//! What the status of every process begins with, and how a sample is written.

use std::time::Duration;

use serde::Serialize;

use super::series::short;
use crate::{
    ready::{Part, Readiness, Reason},
    unix_seconds,
};

/// The beginning of a sample.
#[derive(Debug, Clone, Serialize)]
pub struct Head {
    /// `producer`, `consumer` or `limiter`.
    pub process: &'static str,
    /// Its name, the same across restarts.
    pub name: String,
    /// What runs.
    pub version: &'static str,
    /// When this sample was taken, in seconds since the Unix epoch.
    pub sampled_unix_seconds: f64,
    /// How long it has run.
    pub uptime_seconds: f64,
    /// As `/readyz` says.
    pub ready: bool,
    /// Whether it was told to stop.
    pub draining: bool,
    /// Why it is not ready.
    pub reasons: Vec<Reason>,
}

impl Head {
    /// That of a sample which is taken now.
    #[must_use]
    pub fn now(
        process: &'static str,
        name: &str,
        uptime: Duration,
        parts: &[Part],
        draining: bool,
    ) -> Self {
        let readiness = Readiness::of(parts);
        Self {
            process,
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            sampled_unix_seconds: unix_seconds(),
            uptime_seconds: short(uptime.as_secs_f64()),
            ready: readiness.ready,
            draining,
            reasons: readiness.reasons,
        }
    }
}

/// The newest sample, if there is one yet, and the history beside it.
#[derive(Serialize)]
struct Whole<'a, S, H> {
    #[serde(flatten)]
    sample: Option<&'a S>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<H>,
}

/// The newest sample, if there is one yet, as JSON, with its history where that is asked for.
///
/// # Errors
/// When something in it is not JSON.
pub fn json(
    sample: Option<&impl Serialize>,
    history: Option<impl Serialize>,
) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Whole { sample, history })
}
