//! Start of a stream: after its cursor, at the retained position of the subscriber, or at one end of the log.

use proto::{
    limits::in_flight_bytes_max,
    units::{Epoch, Sequence},
    v1::{Cursor, ResumeOutcome, StartPosition, SubscribeRequest},
};

use super::{
    Config,
    call::CallError,
    subscribers::{RetainedPosition, StreamStart},
};
use crate::log::Span;

/// The cursor for this producer in a request.
pub(super) fn own_cursor<'a>(request: &'a SubscribeRequest, id: &str) -> Option<&'a Cursor> {
    let mut cursors = request.cursors.iter();
    cursors.find(|cursor| cursor.producer_id == id)
}

pub(super) fn choose(
    config: &Config,
    request: &SubscribeRequest,
    span: Span,
    retained: Option<RetainedPosition>,
) -> Result<StreamStart, CallError> {
    if let Some(cursor) = own_cursor(request, &config.producer_id) {
        return at_cursor(cursor, config.log.epoch(), span);
    }
    let start = request.start();
    Ok(by_name(config, start, span, retained))
}

/// Start of a stream without a cursor: at the retained position, or at the requested end of the log if none is retained.
pub(super) fn by_name(
    config: &Config,
    start: StartPosition,
    span: Span,
    retained: Option<RetainedPosition>,
) -> StreamStart {
    if let Some(position) = retained {
        let first = rewound(config, position);
        let exceeds_lag = span.next.since(position.high_water) > config.queue_cookies_max;
        let outcome = resumed(first < span.oldest || exceeds_lag);
        return start_at(first, outcome, position.high_water);
    }
    match start {
        StartPosition::Newest => start_at(span.next, ResumeOutcome::Fresh, Sequence(0)),
        StartPosition::Oldest => start_at(span.oldest, ResumeOutcome::Fresh, Sequence::MAX),
    }
}

fn at_cursor(cursor: &Cursor, epoch: Epoch, span: Span) -> Result<StreamStart, CallError> {
    if cursor.epoch != epoch.0 {
        return Ok(start_at(
            Sequence::FIRST,
            ResumeOutcome::NewEpoch,
            Sequence::MAX,
        ));
    }
    let received = Sequence(cursor.sequence);
    if received >= span.next {
        return Err(CallError::CursorBeyondLog {
            cursor: received,
            newest: span.next - 1,
        });
    }
    let first = received + 1;
    Ok(start_at(first, resumed(first < span.oldest), Sequence::MAX))
}

fn start_at(first: Sequence, outcome: ResumeOutcome, catching_up_until: Sequence) -> StreamStart {
    StreamStart {
        first,
        outcome,
        catching_up_until,
        ..StreamStart::default()
    }
}

fn resumed(has_gap: bool) -> ResumeOutcome {
    match has_gap {
        true => ResumeOutcome::ResumedWithGap,
        false => ResumeOutcome::Resumed,
    }
}

/// Start of a subscriber without a cursor: its retained position minus the bytes that may not have arrived.
fn rewound(config: &Config, retained: RetainedPosition) -> Sequence {
    let bytes = rewind_bytes(config.rewind_bytes, retained.window_bytes);
    config
        .log
        .rewind(retained.position, bytes, retained.stream_began)
}

/// Bytes that may not have arrived at a client with this receive window, 0 if unknown; up to `max`.
fn rewind_bytes(max: usize, window_bytes: u32) -> usize {
    match window_bytes {
        0 => max,
        window_bytes => max.min(in_flight_bytes_max(window_bytes)),
    }
}

#[cfg(test)]
mod tests {
    use proto::limits::{RECEIVE_WINDOW_BYTES, REWIND_BYTES_DEFAULT};

    use super::*;

    const SPAN: Span = Span {
        oldest: Sequence(100),
        next: Sequence(200),
    };

    #[track_caller]
    fn check(epoch: u64, sequence: u64, expected: Option<(u64, ResumeOutcome)>) {
        let cursor = Cursor {
            producer_id: "p".to_owned(),
            epoch,
            sequence,
        };
        let start = at_cursor(&cursor, Epoch(7), SPAN).ok();
        let start = start.map(|start| (start.first.0, start.outcome));
        assert_eq!(start, expected, "{epoch} {sequence}");
    }

    #[test]
    fn rewind_follows_the_stated_window_up_to_the_maximum() {
        let max = REWIND_BYTES_DEFAULT;
        assert_eq!(rewind_bytes(max, 0), max);
        assert_eq!(rewind_bytes(max, RECEIVE_WINDOW_BYTES), max);
        assert_eq!(rewind_bytes(max, 1 << 20), 3 << 20);
        assert_eq!(rewind_bytes(max, u32::MAX), max);
        assert_eq!(rewind_bytes(0, 1 << 20), 0);
    }

    #[test]
    fn stream_resumes_exactly_after_its_cursor_or_is_rejected() {
        check(7, 150, Some((151, ResumeOutcome::Resumed)));
        check(7, 199, Some((200, ResumeOutcome::Resumed)));
        check(7, 99, Some((100, ResumeOutcome::Resumed)));
        check(7, 98, Some((99, ResumeOutcome::ResumedWithGap)));
        check(7, 0, Some((1, ResumeOutcome::ResumedWithGap)));
        check(7, 200, None);
        check(7, u64::MAX, None);
    }

    #[test]
    fn cursor_of_another_epoch_starts_the_current_epoch() {
        for sequence in [0, 150, u64::MAX] {
            check(6, sequence, Some((1, ResumeOutcome::NewEpoch)));
            check(8, sequence, Some((1, ResumeOutcome::NewEpoch)));
        }
    }
}
