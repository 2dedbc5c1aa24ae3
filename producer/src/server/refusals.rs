//! Counts streaming calls that were rejected with an error.

use metric_defs::producer;
use prometheus::IntCounterVec;
use runtime::metrics::Registry;
use tonic::{Code, Status};

use crate::metrics::counters;

/// Status codes of rejected streaming calls, with their label values.
const CODES: [(Code, &str); 5] = [
    (Code::InvalidArgument, "invalid_argument"),
    (Code::OutOfRange, "out_of_range"),
    (Code::ResourceExhausted, "resource_exhausted"),
    (Code::DeadlineExceeded, "deadline_exceeded"),
    (Code::Unimplemented, "unimplemented"),
];

/// Counter of rejected streaming calls by status code.
#[derive(Debug, Clone)]
pub(super) struct Refusals(IntCounterVec);

impl Refusals {
    /// Registers `producer_streams_refused_total{code}`.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let labels = CODES.map(|(_, label)| label).into_iter().chain(["other"]);
        counters(registry, producer::STREAMS_REFUSED, labels).map(Self)
    }

    /// Counts a rejected call.
    pub(super) fn count(&self, status: &Status) {
        let known = CODES.iter().find(|(code, _)| *code == status.code());
        let label = known.map_or("other", |(_, label)| *label);
        self.0.with_label_values(&[label]).inc();
        tracing::debug!(code = ?status.code(), reason = status.message(), "stream rejected");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_call_is_counted_by_its_code() {
        let refusals = Refusals::register(&Registry::new()).unwrap();
        refusals.count(&Status::out_of_range("the request is too long"));
        let count = |label: &&&'static str| refusals.0.with_label_values(&[label]).get() > 0;
        let labels = CODES.iter().map(|(_, label)| label).chain([&"other"]);
        let labels: Vec<_> = labels.filter(count).copied().collect();
        assert_eq!(labels, ["out_of_range"]);
    }
}
