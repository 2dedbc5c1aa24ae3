//! Where a stream resumes: after its cursor, where its queue stands, or at one end of the log.

use proto::{
    limits::in_flight_bytes_max,
    v1::{Cursor, ResumeOutcome, StartPosition, SubscribeRequest},
};

use tonic::Status;

use super::{
    Inner,
    subscribers::{self, Remembered},
};
use crate::log::{Sequence, Span};

/// The subscriber's cursor for this producer.
pub(super) fn own_cursor<'a>(request: &'a SubscribeRequest, id: &str) -> Option<&'a Cursor> {
    let mut cursors = request.cursors.iter();
    cursors.find(|cursor| cursor.producer_id == id)
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    pub(super) first: Sequence,
    pub(super) outcome: ResumeOutcome,
    /// The queue's bound applies from here on, or once the stream is within it: a cursor is honoured as far back as the
    /// log reaches, and cookies are sent again regardless of the bound.
    pub(super) catching_up_until: Sequence,
}

impl Start {
    /// The start of a stream whose client stated this receive window, 0 for none, and whether it acts on ages.
    pub(super) fn of_reader(self, window_bytes: u32, supports_age: bool) -> subscribers::Start {
        subscribers::Start {
            first: self.first,
            outcome: self.outcome,
            window_bytes,
            supports_age,
        }
    }
}

pub(super) fn choose(
    streams: &Inner,
    request: &SubscribeRequest,
    span: Span,
    remembered: Option<Remembered>,
) -> Result<Start, Status> {
    if let Some(cursor) = own_cursor(request, &streams.config.producer_id) {
        return at_cursor(cursor, streams.log.epoch(), span);
    }
    let start = request.start();
    Ok(by_name(streams, start, span, remembered))
}

/// Where a stream without a cursor begins: at its queue's position, or where the request asks if there is no queue.
pub(super) fn by_name(
    streams: &Inner,
    start: StartPosition,
    span: Span,
    remembered: Option<Remembered>,
) -> Start {
    if let Some(queue) = remembered {
        let first = rewound(streams, queue);
        let behind_bound = span.next - queue.high_water > streams.config.queue_cookies_max;
        return Start {
            first,
            outcome: if first < span.oldest || behind_bound {
                ResumeOutcome::ResumedWithGap
            } else {
                ResumeOutcome::Resumed
            },
            catching_up_until: queue.high_water,
        };
    }
    let (first, catching_up_until) = match start {
        StartPosition::Newest => (span.next, 0),
        StartPosition::Oldest => (span.oldest, Sequence::MAX),
    };
    Start {
        first,
        outcome: ResumeOutcome::Fresh,
        catching_up_until,
    }
}

fn at_cursor(cursor: &Cursor, epoch: u64, span: Span) -> Result<Start, Status> {
    if cursor.epoch != epoch {
        return Ok(Start {
            first: 1,
            outcome: ResumeOutcome::NewEpoch,
            catching_up_until: Sequence::MAX,
        });
    }
    if cursor.sequence >= span.next {
        return Err(Status::invalid_argument(format!(
            "cursor {} is from the future: the newest sequence of this epoch is {}",
            cursor.sequence,
            span.next - 1
        )));
    }
    let first = cursor.sequence + 1;
    Ok(Start {
        first,
        outcome: if first < span.oldest {
            ResumeOutcome::ResumedWithGap
        } else {
            ResumeOutcome::Resumed
        },
        catching_up_until: Sequence::MAX,
    })
}

/// Where a queue that is known only by its name resumes: before its position, by what was sent to its client but may
/// not have arrived.
fn rewound(streams: &Inner, queue: Remembered) -> Sequence {
    let bytes = rewind_bytes(streams.config.rewind_bytes, queue.window_bytes);
    streams
        .log
        .rewind(queue.position, bytes, queue.stream_began)
}

/// How many bytes may not have arrived at a client with this receive window, 0 for unknown; never more than `most`.
fn rewind_bytes(most: usize, window_bytes: u32) -> usize {
    match window_bytes {
        0 => most,
        window_bytes => most.min(in_flight_bytes_max(window_bytes)),
    }
}

#[cfg(test)]
mod tests {
    use proto::limits::{RECEIVE_WINDOW_BYTES, REWIND_BYTES_DEFAULT};

    use super::*;

    const SPAN: Span = Span {
        oldest: 100,
        next: 200,
    };

    #[track_caller]
    fn check(epoch: u64, sequence: u64, expected: Option<(Sequence, ResumeOutcome)>) {
        let cursor = Cursor {
            producer_id: "p".to_owned(),
            epoch,
            sequence,
        };
        let start = at_cursor(&cursor, 7, SPAN).ok();
        let start = start.map(|start| (start.first, start.outcome));
        assert_eq!(start, expected, "{epoch} {sequence}");
    }

    #[test]
    fn rewind_follows_the_stated_window_and_never_exceeds_the_bound() {
        let most = REWIND_BYTES_DEFAULT;
        assert_eq!(rewind_bytes(most, 0), most);
        assert_eq!(rewind_bytes(most, RECEIVE_WINDOW_BYTES), most);
        assert_eq!(rewind_bytes(most, 1 << 20), 3 << 20);
        assert_eq!(rewind_bytes(most, u32::MAX), most);
        assert_eq!(rewind_bytes(0, 1 << 20), 0);
    }

    #[test]
    fn cursor_is_resumed_exactly_or_refused() {
        check(7, 150, Some((151, ResumeOutcome::Resumed)));
        check(7, 199, Some((200, ResumeOutcome::Resumed)));
        check(7, 99, Some((100, ResumeOutcome::Resumed)));
        check(7, 98, Some((99, ResumeOutcome::ResumedWithGap)));
        check(7, 0, Some((1, ResumeOutcome::ResumedWithGap)));
        check(7, 200, None);
        check(7, u64::MAX, None);
    }

    #[test]
    fn cursor_of_another_epoch_is_not_out_of_range() {
        for sequence in [0, 150, u64::MAX] {
            check(6, sequence, Some((1, ResumeOutcome::NewEpoch)));
            check(8, sequence, Some((1, ResumeOutcome::NewEpoch)));
        }
    }
}
