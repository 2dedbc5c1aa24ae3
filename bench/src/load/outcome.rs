//! Outcome of a load.

use std::{collections::BTreeMap, time::Duration};

use super::{
    generator::GeneratorVerdict, history::History, plan::Plan, recorder::RequestCounts,
    second::Second,
};
use crate::report::Percentiles;

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
    /// With a rate: delay from the intended send time to the write call.
    pub send_delay_micros: Option<Percentiles>,
    /// Influence of the generator on the results.
    pub generator: GeneratorVerdict,
    /// CPU time of this process.
    pub cpu: Duration,
    /// Results of each second.
    pub by_second: Vec<Second>,
    /// Hostile requests sent, by the outcome that the producer counts. For refusals by the privacy check, `privacy` and the
    /// outcome of the check.
    pub hostile: BTreeMap<&'static str, u64>,
    /// History of each connection.
    pub histories: Vec<History>,
}
