//! `Subscribe`: where a stream begins, and what its `Hello` says of that.

use cookiesync::{
    limits::CURSORS_MAX,
    v1::{Hello, ResumeOutcome, StartPosition, SubscribeRequest},
};
use tonic::Status;

use super::{
    Inner, OpenError,
    body::{Form, StreamBody},
    check_name,
    subscribers::{Call, Remembered},
};
use crate::log::{Sequence, Span};

/// Opens a stream as `request` asks.
pub(super) fn open(streams: &Inner, request: &SubscribeRequest) -> Result<StreamBody, Status> {
    check_name(&request.subscriber, "subscriber")?;
    if request.cursors.len() > CURSORS_MAX {
        let message = format!("more than {CURSORS_MAX} cursors");
        return Err(Status::invalid_argument(message));
    }
    let span = streams.log.span();
    let mut start = None;
    let lease = streams
        .subscribers
        .join(Call::Subscribe, &request.subscriber, |remembered| {
            let chosen = choose(streams, request, span, remembered)?;
            start = Some(chosen);
            Ok::<_, OpenError>(chosen.first)
        })?;
    let start = start.expect("join asks where to start before it grants a lease");
    let hello = Hello {
        producer_id: streams.config.producer_id.clone(),
        epoch: streams.log.epoch(),
        oldest_sequence: span.oldest,
        next_sequence: span.next,
        first_sequence: start.first,
        outcome: start.outcome.into(),
    };
    tracing::info!(
        subscriber = request.subscriber,
        outcome = start.outcome.as_str_name(),
        first_sequence = start.first,
        next_sequence = span.next,
        "subscribed"
    );
    let form = Form::Events(hello);
    let session = streams.session(lease, start.first, start.catching_up, form);
    Ok(StreamBody::new(session))
}

#[derive(Debug, Clone, Copy)]
struct Start {
    first: Sequence,
    outcome: ResumeOutcome,
    /// A cursor is met for as far back as the log reaches, whatever the queue's bound.
    catching_up: bool,
}

fn choose(
    streams: &Inner,
    request: &SubscribeRequest,
    span: Span,
    remembered: Option<Remembered>,
) -> Result<Start, OpenError> {
    let resumed = |first: Sequence, catching_up| Start {
        first,
        outcome: if first < span.oldest {
            ResumeOutcome::ResumedWithGap
        } else {
            ResumeOutcome::Resumed
        },
        catching_up,
    };
    let id = &streams.config.producer_id;
    let own = |cursor: &&_| -> bool {
        let cursor: &cookiesync::v1::Cursor = cursor;
        cursor.producer_id == *id
    };
    if let Some(cursor) = request.cursors.iter().find(own) {
        if cursor.epoch != streams.log.epoch() {
            return Ok(Start {
                first: 1,
                outcome: ResumeOutcome::NewEpoch,
                catching_up: true,
            });
        }
        if cursor.sequence >= span.next {
            return Err(OpenError::CursorFromTheFuture {
                cursor: cursor.sequence,
                newest: span.next - 1,
            });
        }
        return Ok(resumed(cursor.sequence + 1, true));
    }
    if let Some(queue) = remembered {
        return Ok(resumed(rewound(streams, queue), false));
    }
    let (first, catching_up) = match request.start() {
        StartPosition::Newest => (span.next, false),
        StartPosition::Oldest => (span.oldest, true),
    };
    Ok(Start {
        first,
        outcome: ResumeOutcome::Fresh,
        catching_up,
    })
}

/// Where a queue that is known only by its name goes on: before its position, by what its client may not have
/// got of what it was sent.
pub(super) fn rewound(streams: &Inner, queue: Remembered) -> Sequence {
    let bytes = streams.config.rewind_bytes;
    streams
        .log
        .rewind(queue.position, bytes, queue.stream_began)
}
