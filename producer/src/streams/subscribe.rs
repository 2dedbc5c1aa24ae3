//! The `Subscribe` call: opens a stream of chunks and gaps that begins with a `Hello`.

use std::net::IpAddr;

use proto::{
    v1::{Hello, ResumeOutcome, SubscribeRequest, Tail, event::Event},
    wire,
};

use super::{
    Config, Streams,
    call::{Call, CallError, check_name},
    resume::{choose, own_cursor},
    session::{MessageFormat, Session},
    subscribers::StreamStart,
};

impl Streams {
    /// Opens the requested stream.
    pub(crate) fn subscribe(
        &self,
        request: &SubscribeRequest,
        network: IpAddr,
    ) -> Result<Session, CallError> {
        check_name(&request.subscriber, "subscriber")?;
        let config = &self.config;
        let mut span = config.log.span();
        let lease =
            config
                .subscribers
                .join(Call::Subscribe, &request.subscriber, network, |retained| {
                    // The span is read after the position: an older stream may still advance the position, but never beyond the
                    // log.
                    span = config.log.span();
                    Ok(StreamStart {
                        window_bytes: request.window_bytes,
                        supports_age: request.supports_age,
                        ..choose(config, request, span, retained)?
                    })
                })?;
        let start = lease.start;
        let hello = Hello {
            producer_id: config.producer_id.clone(),
            epoch: config.log.epoch().0,
            oldest_sequence: span.oldest.0,
            next_sequence: span.next.0,
            first_sequence: start.first.0,
            outcome: start.outcome.into(),
            tail: tail(config, request, start.outcome),
            unix_micros: config.log.now().0,
        };
        if lease.may_log() {
            tracing::info!(
                subscriber = request.subscriber,
                outcome = start.outcome.as_str_name(),
                first_sequence = start.first.0,
                next_sequence = span.next.0,
                "subscribed"
            );
        }
        let hello = wire::encode_event(Event::Hello(hello));
        let format = MessageFormat::Events(Some(hello), config.times_to_live.unsent());
        Ok(self.session(lease, format))
    }
}

/// Cookies of earlier epochs that the subscriber lost.
fn tail(config: &Config, request: &SubscribeRequest, outcome: ResumeOutcome) -> Option<Tail> {
    if outcome != ResumeOutcome::NewEpoch {
        return None;
    }
    let cursor = own_cursor(request, &config.producer_id)?;
    config.epoch_history.tail(cursor)
}
