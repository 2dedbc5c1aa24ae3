//! Forgetting a node that will not return, so that receipts no longer wait for it.
//!
//! A producer knows a node only since its own start, by its confirmations. So the removal is durable, unless the node has reported its
//! position to the archive: then its last report is removed there too.

use axum::extract::{Path, State, rejection::PathRejection};
use http::{HeaderMap, StatusCode};
use runtime::reply::{Reply, json};
use serde_json::json;

use super::{
    Api,
    problem::{CONFLICT, Problem, UNAVAILABLE, invalid_path},
    tokens::NODES,
};
use crate::streams::subscribers::Forgotten;

/// `DELETE /v1/nodes/{node}`
pub(super) async fn forget(
    State(api): State<Api>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Reply, Problem> {
    api.authorize(&headers, NODES)?;
    let Path(node) = path.map_err(invalid_path)?;
    let parts = &api.inner.parts;
    let forgotten = parts.subscribers.forget(&node);
    if forgotten == Forgotten::Alive {
        let detail = "the node has a stream, or has reported its position lately: stop it first";
        return Err(Problem::new(CONFLICT, detail).with("producer", parts.producer_id.clone()));
    }
    if let Some(reports) = &parts.node_reports
        && let Err(error) = reports.remove(&node).await
    {
        let detail = format!("the last report of the node is not removed, repeat this: {error}");
        return Err(Problem::new(UNAVAILABLE, detail));
    }
    let was_known = forgotten == Forgotten::Known;
    if was_known {
        tracing::info!(node, "node forgotten; receipts no longer wait for it");
    }
    let forgotten = json!({ "producer": parts.producer_id, "node": node, "was_known": was_known });
    Ok(json(StatusCode::OK, &forgotten))
}
