//! Receipts: which nodes have carried out a deletion.
//!
//! A receipt names the producer, its epoch and the sequence numbers of the deletions in this epoch:
//! `PRODUCER:EPOCH:FIRST-LAST`. The producer stores no receipts: a lookup compares these numbers with those that each node has
//! confirmed. After a restart, the producer has no confirmations of earlier epochs, so the deletion must be repeated.
//!
//! A receipt names no client, and any client with the permission `delete` may look it up. The response contains the
//! number of nodes in each state. It also names nodes, but only if the token grants all DSPs. Nodes in reports that anyone can forge are
//! stated separately.

use axum::extract::{Path, State, rejection::PathRejection};
use http::{HeaderMap, StatusCode};
use proto::units::{DspId, Epoch, Sequence};
use runtime::reply::{Reply, json};
use serde_json::json;

use super::{
    Api, Parts,
    problem::{NOT_FOUND, Problem, WRONG_PRODUCER, invalid_path},
    tokens::DELETE,
};
use crate::streams::subscribers::Confirmed;

/// The receipt of deletions with these sequence numbers in the log of this producer.
pub(super) fn receipt(parts: &Parts, first: Sequence, last: Sequence) -> String {
    let epoch = parts.inlet.log().epoch();
    format!("{}:{epoch}:{first}-{last}", parts.producer_id)
}

/// The producer, the epoch, and the sequence numbers of a receipt.
fn parse(text: &str) -> Option<(&str, Epoch, Sequence, Sequence)> {
    // The name of a producer may contain colons.
    let mut parts = text.rsplitn(3, ':');
    let (first, last) = parts.next()?.split_once('-')?;
    let (first, last) = (Sequence(first.parse().ok()?), Sequence(last.parse().ok()?));
    let epoch = Epoch(parts.next()?.parse().ok()?);
    let producer = parts.next()?;
    (Sequence::FIRST..=last)
        .contains(&first)
        .then_some((producer, epoch, first, last))
}

const REPEAT_AFTER_RESTART: &str = "the producer has restarted since this deletion: repeat the deletion, and check the new receipt";
const REPEAT_IF_UNKNOWN: &str =
    "nodes counted as unknown may have missed this deletion: repeat it when they are connected";

/// Maximum number of names in a response.
const NAMES_MAX: usize = 100;

/// `GET /v1/receipts/{receipt}`: how many nodes have carried out the deletions, how many will do so, and how many may have missed them.
pub(super) async fn show(
    State(api): State<Api>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Reply, Problem> {
    let client = api.authorize(&headers, DELETE)?;
    let Path(text) = path.map_err(invalid_path)?;
    let (producer, epoch, first, last) = parse(&text)
        .ok_or_else(|| Problem::new(NOT_FOUND, "expected PRODUCER:EPOCH:FIRST-LAST"))?;
    let parts = &api.inner.parts;
    if producer != parts.producer_id {
        let detail = format!("request this receipt from the API of {producer}");
        let problem = Problem::new(WRONG_PRODUCER, detail);
        return Err(problem.with("producer", producer));
    }
    let is_current = epoch == parts.inlet.log().epoch();
    if is_current && last.0 > parts.inlet.log().stats().appended {
        return Err(Problem::new(NOT_FOUND, "unknown receipt"));
    }
    let (mut confirmed, mut pending, mut unknown) = (0, Vec::new(), Vec::new());
    let (nodes, evicted) = parts.subscribers.confirmed(first, last);
    for (name, state) in nodes {
        match state {
            Confirmed::Yes if is_current => confirmed += 1,
            Confirmed::NotYet if is_current => pending.push(name),
            Confirmed::NotConcerned if is_current => {}
            _ => unknown.push(name),
        }
    }
    let unknown_count = unknown.len() as u64 + evicted;
    let mut status = json!({
        "receipt": text,
        "done": confirmed > 0 && pending.is_empty() && unknown_count == 0,
        "nodes": { "confirmed": confirmed, "pending": pending.len(), "unknown": unknown_count },
    });
    let reported = parts.subscribers.reporting().unverified;
    if !reported.is_empty() {
        status["nodes"]["reported"] = reported.len().into();
    }
    if client.permissions.may_use(DspId::NONE) {
        pending.truncate(NAMES_MAX);
        unknown.truncate(NAMES_MAX);
        status["names"] = json!({ "pending": pending, "unknown": unknown });
        if !reported.is_empty() {
            status["names"]["reported"] = reported.into();
        }
    }
    if !is_current {
        status["action"] = REPEAT_AFTER_RESTART.into();
    } else if unknown_count > 0 {
        status["action"] = REPEAT_IF_UNKNOWN.into();
    }
    Ok(json(StatusCode::OK, &status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipt_with_an_invalid_part_is_rejected() {
        let valid = Some(("a:b:c", Epoch(u64::MAX), Sequence(3), Sequence(5)));
        assert_eq!(parse("a:b:c:18446744073709551615:3-5"), valid);
        for invalid in [
            "",
            "p:1:0-1",
            "p:1:3-2",
            "p:1:1",
            "p:x:1-1",
            "1:1-1",
            "p:1:1-2-3",
        ] {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
    }
}
