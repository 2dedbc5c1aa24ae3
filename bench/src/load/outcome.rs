//! What a load saw.

use std::time::Duration;

use super::{
    generator::GeneratorVerdict, history::History, plan::Plan, recorder::RequestCounts,
    second::Second,
};
use crate::report::Percentiles;

/// What a load saw.
#[derive(Debug, Clone)]
pub struct LoadOutcome {
    /// What it consisted of.
    pub plan: Plan,
    /// From the start to the last answer; when requests stayed without one, or did not leave, at least to when the last was
    /// due, or else to the end of the run.
    pub seconds: f64,
    /// It was stopped before its end.
    pub interrupted: bool,
    /// What became of its requests.
    pub counts: RequestCounts,
    /// From sending, or with a rate from the intended time, to the answer 200; of a request without an answer, until it
    /// was given up, which is the least it would have taken. Requests that were refused are not in it.
    pub latency_micros: Option<Percentiles>,
    /// With a rate: from the intended time to the time a request was given to the system.
    pub send_delay_micros: Option<Percentiles>,
    /// Whether the generator was the limit.
    pub generator: GeneratorVerdict,
    /// CPU time of this process.
    pub cpu: Duration,
    /// Second by second.
    pub by_second: Vec<Second>,
    /// What became of each request, by connection.
    pub histories: Vec<History>,
}
