//! Receipts: which nodes have carried out a deletion.
//!
//! A receipt names the producer, its epoch and the sequences of its deletions: `PRODUCER:EPOCH:FIRST-LAST`. The
//! producer stores no receipts: a lookup compares the sequences with those that each node has confirmed. After a
//! restart, the producer has no confirmations of earlier epochs, so the deletion must be repeated.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use axum::extract::{Path, State, rejection::PathRejection};
use http::{HeaderMap, StatusCode};
use metric_defs::producer;
use runtime::{
    metrics::{Family, as_f64, value},
    reply::{self, Reply},
};
use serde_json::json;

use super::{
    Api,
    problem::{Early, NOT_FOUND, Problem, WRONG_PRODUCER},
    tokens::Right,
};
use crate::{log::Sequence, streams::subscribers::Confirmed};

/// Identifies deletions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Receipt {
    pub(super) producer: String,
    pub(super) epoch: u64,
    pub(super) first: Sequence,
    pub(super) last: Sequence,
}

impl fmt::Display for Receipt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            producer,
            epoch,
            first,
            last,
        } = self;
        write!(formatter, "{producer}:{epoch}:{first}-{last}")
    }
}

impl Receipt {
    fn parse(text: &str) -> Option<Self> {
        // The name of a producer may contain colons.
        let mut parts = text.rsplitn(3, ':');
        let (first, last) = parts.next()?.split_once('-')?;
        let receipt = Self {
            epoch: parts.next()?.parse().ok()?,
            producer: parts.next()?.to_owned(),
            first: first.parse().ok()?,
            last: last.parse().ok()?,
        };
        (1..=receipt.last)
            .contains(&receipt.first)
            .then_some(receipt)
    }
}

/// Deletions that at least one node has not confirmed, oldest first. Bounded: while there are [`UNCONFIRMED_MAX`],
/// further deletions are not added.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed(Mutex<VecDeque<(Instant, Sequence, Sequence)>>);

/// Maximum number of receipts whose age is observed.
const UNCONFIRMED_MAX: usize = 10_000;

impl Unconfirmed {
    pub(super) fn add(&self, first: Sequence, last: Sequence) {
        let mut receipts = self.receipts();
        if receipts.len() < UNCONFIRMED_MAX {
            receipts.push_back((Instant::now(), first, last));
        }
    }

    fn receipts(&self) -> MutexGuard<'_, VecDeque<(Instant, Sequence, Sequence)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Api {
    /// Metrics of the number of open receipts and the age of the oldest one.
    pub(super) fn open_families(&self) -> Vec<Family> {
        let subscribers = &self.inner.parts.subscribers;
        let mut receipts = self.inner.unconfirmed.receipts();
        let is_pending = |&(_, first, last): &(Instant, Sequence, Sequence)| {
            let nodes = subscribers.confirmed(first, last);
            nodes.iter().any(|(_, state)| *state == Confirmed::NotYet)
        };
        while receipts.front().is_some_and(|oldest| !is_pending(oldest)) {
            receipts.pop_front();
        }
        let age = receipts
            .front()
            .map_or(0.0, |(at, ..)| at.elapsed().as_secs_f64());
        let open = as_f64(receipts.len() as u64);
        vec![
            value(producer::DELETION_PENDING_SECONDS, age),
            value(producer::DELETION_OPEN_RECEIPTS, open),
        ]
    }
}

const REPEAT_AFTER_RESTART: &str =
    "the producer has restarted since this deletion: repeat it, and check the new receipt";
const REPEAT_IF_UNKNOWN: &str =
    "unknown nodes may have missed this deletion: repeat it when they are connected";

/// `GET /v1/receipts/{receipt}`: how many nodes have carried the deletions out, the names of those that will, and the names
/// of those of which it is not known.
pub(super) async fn show(
    State(api): State<Api>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Reply, Early> {
    let client = api.authorize(&headers, Right::Delete)?;
    api.inner.quotas.request(&client.name)?;
    let Path(text) = path?;
    let receipt = Receipt::parse(&text)
        .ok_or_else(|| Problem::new(NOT_FOUND, "expected PRODUCER:EPOCH:FIRST-LAST"))?;
    let parts = &api.inner.parts;
    if receipt.producer != parts.producer_id {
        let detail = format!("request it from the API of {}", receipt.producer);
        let problem = Problem::new(WRONG_PRODUCER, detail);
        return Err(problem.with("producer", receipt.producer).into());
    }
    let is_current = receipt.epoch == parts.log.epoch();
    if is_current && receipt.last > parts.log.stats().appended {
        return Err(Problem::new(NOT_FOUND, "unknown receipt").into());
    }
    let (mut confirmed, mut pending, mut unknown) = (0, Vec::new(), Vec::new());
    for (name, state) in parts.subscribers.confirmed(receipt.first, receipt.last) {
        match state {
            Confirmed::Yes if is_current => confirmed += 1,
            Confirmed::NotYet if is_current => pending.push(name),
            Confirmed::NotConcerned if is_current => {}
            _ => unknown.push(name),
        }
    }
    let mut status = json!({
        "receipt": text,
        "done": confirmed > 0 && pending.is_empty() && unknown.is_empty(),
    });
    if !is_current {
        status["action"] = REPEAT_AFTER_RESTART.into();
    } else if !unknown.is_empty() {
        status["action"] = REPEAT_IF_UNKNOWN.into();
    }
    status["nodes"] = json!({ "confirmed": confirmed, "pending": pending, "unknown": unknown });
    Ok(reply::json(StatusCode::OK, &status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipt_is_read_as_it_was_written() {
        for producer in ["p", "host:7676", "a:b:c"] {
            let receipt = Receipt {
                producer: producer.to_owned(),
                epoch: u64::MAX,
                first: 3,
                last: 5,
            };
            assert_eq!(Receipt::parse(&receipt.to_string()), Some(receipt));
        }
        for wrong in [
            "",
            "p:1:0-1",
            "p:1:3-2",
            "p:1:1",
            "p:x:1-1",
            "1:1-1",
            "p:1:1-2-3",
        ] {
            assert_eq!(Receipt::parse(wrong), None, "{wrong}");
        }
    }
}
