//! Outcome of a load.

use std::{collections::BTreeMap, time::Duration};

use testkit::numbers::duration;

use super::{history::History, plan::Plan, recorder::RequestCounts};
use crate::report::Percentiles;

/// Delay from which a request counts as late: more than the interval of grouped requests (1 ms) and a scheduler time slice (3 to 4 ms).
const LATE_MICROS: u64 = 10_000;

/// Outcome of a load.
#[derive(Debug, Clone)]
pub struct LoadOutcome {
    /// The plan of the load.
    pub plan: Plan,
    /// Time from the start to the last response. If requests were unanswered or unsent, it extends at least to the due time of
    /// the last request, or to the end of the run.
    pub seconds: f64,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// Outcomes of the requests.
    pub counts: RequestCounts,
    /// Latency of correct responses from the send time, or with a rate from the intended send time. A request without a
    /// response counts with the time until it was abandoned, a lower bound. Wrong responses are excluded.
    pub latency_micros: Option<Percentiles>,
    /// With a rate: delay from when a request was due and had capacity on its connection until it was sent. Only the
    /// generator can cause it.
    pub generator_delay_micros: Option<Percentiles>,
    /// CPU time of this process.
    pub cpu: Duration,
    /// Hostile requests sent, by the outcome that the producer counts. For refusals by the privacy check, `privacy` and the
    /// outcome of the check.
    pub hostile: BTreeMap<&'static str, u64>,
    /// History of each connection.
    pub histories: Vec<History>,
}

impl LoadOutcome {
    /// Why the results reflect this machine instead of the server, if they do: more than 1 % of the requests were late.
    pub fn generator_limit(&self) -> Option<String> {
        let delay = self.generator_delay_micros?.get("p99");
        (delay > LATE_MICROS).then(|| {
            format!(
                "the generator was late: it delayed 1 % of the requests by {} or more",
                duration(delay)
            )
        })
    }
}
