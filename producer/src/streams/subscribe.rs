//! The `Subscribe` call: opens a stream of chunks and gaps that begins with a `Hello`.

use std::net::IpAddr;

use proto::v1::{Hello, ResumeOutcome, SubscribeRequest, Tail};
use tonic::Status;

use super::{
    Inner,
    body::{Form, StreamBody},
    request::check_name,
    resume::{choose, own_cursor},
    subscribers::Call,
};

/// Opens a stream as `request` asks.
pub(super) fn open(
    streams: &Inner,
    request: &SubscribeRequest,
    network: IpAddr,
) -> Result<StreamBody, Status> {
    check_name(&request.subscriber, "subscriber")?;
    let name = &request.subscriber;
    let mut start = None;
    let lease = streams
        .subscribers
        .join(Call::Subscribe, name, network, |remembered| {
            // Read after the queue's position: the stream that has the queue still advances it, but never beyond the
            // log.
            let span = streams.log.span();
            let chosen = choose(streams, request, span, remembered)?;
            start = Some((chosen, span));
            Ok::<_, Status>(chosen.of_reader(request.window_bytes, request.supports_age))
        })?;
    let (start, span) = start.expect("join asks where to start before it grants a lease");
    let hello = Hello {
        producer_id: streams.config.producer_id.clone(),
        epoch: streams.log.epoch(),
        oldest_sequence: span.oldest,
        next_sequence: span.next,
        first_sequence: start.first,
        outcome: start.outcome.into(),
        tail: tail(streams, request, start.outcome),
    };
    if lease.may_log() {
        tracing::info!(
            subscriber = request.subscriber,
            outcome = start.outcome.as_str_name(),
            first_sequence = start.first,
            next_sequence = span.next,
            "subscribed"
        );
    }
    let form = Form::Events(hello);
    let session = streams.session(lease, start.first, start.catching_up_until, form);
    Ok(StreamBody::new(session))
}

/// What the subscriber will never get of earlier epochs.
fn tail(streams: &Inner, request: &SubscribeRequest, outcome: ResumeOutcome) -> Option<Tail> {
    let config = &streams.config;
    if outcome != ResumeOutcome::NewEpoch {
        return None;
    }
    config
        .epoch_history
        .tail(own_cursor(request, &config.producer_id)?)
}
