//! Controls the number of parallel requests to an origin, based on the response times of each batch. Does no I/O.
//!
//! Each batch raises or lowers the number by one step, within the bounds. It lowers the number if its mean time to the first byte
//! exceeds a reference by at least the time `worse_by`, or if any request was throttled or failed. In `paper` mode, which follows the
//! original design, the reference is the mean of the previous batch. In `floor` mode, it is the floor (lowest mean so far). The
//! origin may become slower, so the floor is measured again once a minute, with a few requests at minimum concurrency.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

/// Reference with which the mean response time of a batch is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The minimum mean, measured again every [`PROBE_INTERVAL`].
    #[default]
    Floor,
    /// The mean of the previous batch.
    Paper,
}

/// Time between two measurements of the floor.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(60);

/// Bounds and steps of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Reference with which the mean response time of a batch is compared.
    pub mode: Mode,
    /// Minimum and first number of parallel requests.
    pub min: usize,
    /// Maximum number of parallel requests.
    pub max: usize,
    /// Change after each batch.
    pub step: usize,
    /// Mean response time of the first batch above which the number of parallel requests is lowered.
    #[serde(deserialize_with = "crate::values::duration")]
    pub first: Duration,
    /// Minimum difference between the mean and the reference at which the number of parallel requests is lowered.
    #[serde(deserialize_with = "crate::values::duration")]
    pub worse_by: Duration,
}

impl Default for Settings {
    /// The values of the original design.
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            min: 6,
            max: 20,
            step: 2,
            first: Duration::from_millis(350),
            worse_by: Duration::from_millis(100),
        }
    }
}

/// How many requests of a batch to send in parallel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Number of first requests of the batch, sent at minimum concurrency to measure the floor.
    pub probe_requests: usize,
    /// Parallel requests for the rest of the batch.
    pub concurrency: usize,
}

/// Measurements of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchTimes {
    /// Mean of the probe, if it had responses.
    pub probe: Option<Duration>,
    /// Mean of the other requests, if they had responses.
    pub mean: Option<Duration>,
    /// Whether a request was throttled or failed.
    pub has_failures: bool,
}

/// The controller of one job on one worker.
#[derive(Debug, Clone)]
pub struct Controller {
    settings: Settings,
    concurrency: usize,
    /// Mean of the previous batch, or the floor.
    reference: Option<Duration>,
    /// Time of the last measurement of the floor.
    probed_at: Option<Instant>,
}

impl Controller {
    /// A controller at the minimum.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            concurrency: settings.min,
            reference: None,
            probed_at: None,
        }
    }

    /// The plan of a batch that begins at `now`.
    pub fn plan(&mut self, now: Instant) -> Plan {
        let is_due = |at: Instant| now.saturating_duration_since(at) >= PROBE_INTERVAL;
        let probes = self.settings.mode == Mode::Floor
            && self.concurrency > self.settings.min
            && self.probed_at.is_none_or(is_due);
        if probes || self.concurrency == self.settings.min {
            self.probed_at = Some(now);
        }
        // The other requests, at least half of a full batch, are compared with the probe.
        let probe_requests = (2 * self.settings.min).min(50);
        Plan {
            probe_requests: if probes { probe_requests } else { 0 },
            concurrency: self.concurrency,
        }
    }

    /// Adapts to the measurements of a batch.
    pub fn finish(&mut self, times: BatchTimes) {
        let was_at_minimum = self.concurrency == self.settings.min;
        let mode = self.settings.mode;
        if mode == Mode::Floor && times.probe.is_some() && !times.has_failures {
            self.reference = times.probe;
        }
        let Some(mean) = times.mean else {
            if times.has_failures {
                self.lower();
            }
            return;
        };
        let is_worse = match self.reference {
            None => mean > self.settings.first,
            Some(_) if mode == Mode::Floor && was_at_minimum => false,
            Some(reference) => mean >= reference + self.settings.worse_by,
        };
        if is_worse || times.has_failures {
            self.lower();
        } else {
            self.concurrency = (self.concurrency + self.settings.step).min(self.settings.max);
        }
        self.reference = match (mode, self.reference) {
            // Failures may be fast, so they would make the floor too low.
            (Mode::Floor, floor) if times.has_failures => floor,
            (Mode::Floor, Some(floor)) if !was_at_minimum => Some(floor.min(mean)),
            _ => Some(mean),
        };
    }

    /// Adapts to a batch that failed.
    pub fn lower(&mut self) {
        let lower = self.concurrency.saturating_sub(self.settings.step);
        self.concurrency = lower.max(self.settings.min);
    }
}

#[cfg(test)]
mod tests;
