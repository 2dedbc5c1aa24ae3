//! Counts streaming calls that were answered with an error.

use figures::producer;
use prometheus::{IntCounter, IntCounterVec};
use runtime::metrics::Registry;
use tonic::{Code, Status};

/// The codes of all errors that a streaming call can be answered with, and the values of the label.
const CODES: [(Code, &str); 5] = [
    (Code::InvalidArgument, "invalid_argument"),
    (Code::OutOfRange, "out_of_range"),
    (Code::ResourceExhausted, "resource_exhausted"),
    (Code::DeadlineExceeded, "deadline_exceeded"),
    (Code::Unimplemented, "unimplemented"),
];

/// Counts them by the code of the answer.
#[derive(Debug)]
pub struct Refusals {
    by_code: [IntCounter; CODES.len()],
    other: IntCounter,
}

impl Refusals {
    /// Registers `producer_streams_refused_total{code}`.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let refused: IntCounterVec = registry.add(producer::STREAMS_REFUSED)?;
        Ok(Self {
            by_code: CODES.map(|(_, label)| refused.with_label_values(&[label])),
            other: refused.with_label_values(&["other"]),
        })
    }

    /// Counts one.
    pub(super) fn count(&self, status: &Status) {
        let known = CODES.iter().position(|(code, _)| *code == status.code());
        known.map_or(&self.other, |at| &self.by_code[at]).inc();
        tracing::debug!(code = ?status.code(), why = status.message(), "a stream was refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_that_is_too_long_counts_under_its_code() {
        let refusals = Refusals::register(&Registry::new()).unwrap();
        refusals.count(&Status::out_of_range("the request is too long"));
        assert_eq!(refusals.other.get(), 0);
        let by_code = CODES.iter().zip(&refusals.by_code);
        let counted = by_code.filter(|(_, count)| count.get() > 0);
        let labels: Vec<_> = counted.map(|((_, label), _)| *label).collect();
        assert_eq!(labels, ["out_of_range"]);
    }
}
