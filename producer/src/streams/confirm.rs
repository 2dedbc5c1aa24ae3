//! The `Confirm` call: a node reports the position up to which it has stored records.

use std::net::IpAddr;

use http::Response;
use http_body_util::{BodyExt as _, Full};
use proto::{
    v1::{ConfirmRequest, ConfirmResponse},
    wire,
};
use tonic::{Status, body::Body};

use super::{Inner, request::check_name, status::trailers};

/// Records the stored position of the node.
pub(super) fn handle(
    streams: &Inner,
    request: &ConfirmRequest,
    network: IpAddr,
) -> Result<Response<Body>, Status> {
    check_name(&request.subscriber, "subscriber")?;
    let durable = request.durable.as_ref();
    let durable = durable.ok_or_else(|| Status::invalid_argument("missing field `durable`"))?;
    if durable.producer_id != streams.config.producer_id
        || durable.epoch != streams.config.log.epoch()
    {
        return Err(Status::failed_precondition(
            "the cursor belongs to another producer or epoch",
        ));
    }
    if durable.sequence >= streams.config.log.span().next
        || request.applied_sequence > durable.sequence
    {
        return Err(Status::invalid_argument(
            "a sequence number is beyond the end of the log",
        ));
    }
    let (durable, applied) = (durable.sequence, request.applied_sequence);
    let subscribers = &streams.config.subscribers;
    subscribers.confirm(&request.subscriber, network, durable, applied)?;
    let end = trailers(&Status::ok(""));
    let response = ConfirmResponse {
        unix_micros: streams.config.log.unix_micros(),
    };
    let body = Full::new(wire::encode_message(&response));
    let body = body.with_trailers(async { Some(Ok(end)) });
    Ok(Response::new(Body::new(body)))
}
