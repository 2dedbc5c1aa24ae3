//! The streaming calls: `Subscribe`, a stream of chunks and gaps that begins with a `Hello`, and `GetCookies`, with one cookie per
//! message, for any gRPC client.

use std::{net::IpAddr, sync::Arc};

use proto::{
    v1::{
        GetCookiesRequest, Hello, ResumeOutcome, StartPosition, SubscribeRequest, Tail,
        event::Event,
    },
    wire::{self, IdleMessage},
};

use super::{
    Config, Streams,
    call::{Call, CallError, check_name},
    resume::{by_name, choose, own_cursor},
    session::{MessageFormat, Session},
    subscribers::{Lease, RetainedPosition, StreamStart},
};
use crate::log::Span;

impl Streams {
    /// Opens the requested stream.
    pub(crate) fn subscribe(
        &self,
        request: &SubscribeRequest,
        network: IpAddr,
    ) -> Result<Session, CallError> {
        check_name(&request.subscriber, "subscriber")?;
        let config = &self.config;
        let start = |span, retained| {
            Ok(StreamStart {
                window_bytes: request.window_bytes,
                supports_age: request.supports_age,
                ..choose(config, request, span, retained)?
            })
        };
        let (lease, span) = self.join(Call::Subscribe, &request.subscriber, network, start)?;
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

    /// Opens a stream at the retained position of the host, or at the newest cookie if none is retained.
    pub(crate) fn get_cookies(
        &self,
        request: &GetCookiesRequest,
        network: IpAddr,
    ) -> Result<Session, CallError> {
        check_name(&request.host, "host")?;
        let start = |span, retained| {
            Ok(StreamStart {
                supports_age: request.supports_age,
                ..by_name(&self.config, StartPosition::Newest, span, retained)
            })
        };
        let (lease, span) = self.join(Call::GetCookies, &request.host, network, start)?;
        if lease.may_log() {
            tracing::info!(
                subscriber = request.host,
                first_sequence = lease.start.first.0,
                next_sequence = span.next.0,
                "GetCookies stream started"
            );
        }
        let messages = &self.cookie_messages[usize::from(request.deletions)];
        let format = MessageFormat::Cookies(Arc::clone(messages), IdleMessage::default());
        Ok(self.session(lease, format))
    }

    /// Leases the subscriber `name`. `start` returns the start of its stream, given the sequence numbers in the log and the retained
    /// position. Returns these sequence numbers too.
    fn join(
        &self,
        call: Call,
        name: &str,
        network: IpAddr,
        start: impl FnOnce(Span, Option<RetainedPosition>) -> Result<StreamStart, CallError>,
    ) -> Result<(Lease, Span), CallError> {
        let Config {
            log, subscribers, ..
        } = &*self.config;
        let mut span = log.span();
        let lease = subscribers.join(call, name, network, |retained| {
            // The span is read after the position: an older stream may still advance the position, but never beyond the log.
            span = log.span();
            start(span, retained)
        })?;
        Ok((lease, span))
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
