//! The `Subscribe` call: opens a stream of chunks and gaps that begins with a `Hello`.

use std::net::IpAddr;

use proto::v1::{Hello, ResumeOutcome, SubscribeRequest, Tail};
use tonic::Status;

use super::{
    Inner,
    body::{MessageFormat, StreamBody},
    request::check_name,
    resume::{choose, own_cursor},
    subscribers::Call,
};

/// Opens the requested stream.
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
        .join(Call::Subscribe, name, network, |retained| {
            // The span is read after the position: an older stream may still advance the position, but never beyond the
            // log.
            let span = streams.log.span();
            let chosen = choose(streams, request, span, retained)?;
            start = Some((chosen, span));
            Ok::<_, Status>(chosen.for_client(request.window_bytes, request.supports_age))
        })?;
    let (start, span) = start.expect("join calls the closure before it grants a lease");
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
    let format = MessageFormat::Events(hello, streams.config.times_to_live.unsent());
    let session = streams.session(lease, start.first, start.catching_up_until, format);
    Ok(StreamBody::new(session))
}

/// Cookies of earlier epochs that the subscriber lost.
fn tail(streams: &Inner, request: &SubscribeRequest, outcome: ResumeOutcome) -> Option<Tail> {
    let config = &streams.config;
    if outcome != ResumeOutcome::NewEpoch {
        return None;
    }
    config
        .epoch_history
        .tail(own_cursor(request, &config.producer_id)?)
}
