//! Checks the order of a stream: first `Hello`, then chunks with consecutive sequence numbers, except those covered by a gap. Does no I/O.

use std::sync::Arc;

use proto::{
    ids,
    units::{Epoch, Sequence},
    v1::{Gap, Goodbye, Heartbeat, Hello, ResumeOutcome, Tail},
    wire::ChunkHeader,
};

use crate::batch::Cursor;

/// A producer violated the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProtocolViolation(String);

impl ProtocolViolation {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// A stream in a new epoch of its producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEpoch {
    /// The cursor of the previous epoch. `complete` if that epoch was received up to its `Goodbye`.
    pub previous: Cursor,
    /// The number of lost cookies of previous epochs, as reported by the producer.
    pub tail: Option<Tail>,
}

/// The position in a stream.
#[derive(Debug)]
pub struct StreamPosition {
    producer: Arc<str>,
    epoch: Epoch,
    next: Sequence,
}

impl StreamPosition {
    /// Checks `hello` against the sent cursors: without a cursor of this producer, the stream may start anywhere; otherwise right
    /// after it, or at the start of a new epoch. A gap may follow.
    ///
    /// # Errors
    /// When `hello` does not match the cursors.
    pub fn begin(
        hello: &Hello,
        sent: &[Cursor],
    ) -> Result<(Self, Option<NewEpoch>), ProtocolViolation> {
        if ids::check_name(&hello.producer_id).is_err() {
            return Err(ProtocolViolation::new("invalid producer id"));
        }
        let (epoch, first) = (Epoch(hello.epoch), Sequence(hello.first_sequence));
        let known = sent.iter().find(|it| *it.producer == *hello.producer_id);
        let previous = known.filter(|it| it.epoch != epoch);
        let expected = match known {
            None => first.max(Sequence::FIRST),
            Some(known) if known.epoch == epoch => known.sequence.next(),
            Some(_) => Sequence::FIRST,
        };
        let claims_new_epoch = hello.outcome() == ResumeOutcome::NewEpoch;
        if first != expected || claims_new_epoch != previous.is_some() {
            let what = format!("the stream starts at sequence number {first}, expected {expected}");
            return Err(ProtocolViolation::new(what));
        }
        let new_epoch = previous.map(|previous| NewEpoch {
            previous: previous.clone(),
            tail: hello.tail,
        });
        let position = Self {
            producer: hello.producer_id.as_str().into(),
            epoch,
            next: expected,
        };
        Ok((position, new_epoch))
    }

    /// The producer of the stream.
    pub fn producer(&self) -> &Arc<str> {
        &self.producer
    }

    /// The received position.
    pub fn cursor(&self) -> Cursor {
        Cursor {
            producer: Arc::clone(&self.producer),
            epoch: self.epoch,
            sequence: Sequence(self.next.0 - 1),
            complete: false,
        }
    }

    /// Advances past a chunk.
    ///
    /// # Errors
    /// When the chunk is not the next one.
    pub fn chunk(&mut self, header: &ChunkHeader) -> Result<(), ProtocolViolation> {
        self.expect(header.epoch, header.first_sequence)?;
        self.next = header.first_sequence + u64::from(header.count);
        Ok(())
    }

    /// Advances past a gap; returns the number of lost cookies.
    ///
    /// # Errors
    /// When the gap does not start at the next sequence number.
    pub fn gap(&mut self, gap: &Gap) -> Result<u64, ProtocolViolation> {
        self.expect(self.epoch, Sequence(gap.first_sequence))?;
        if gap.last_sequence < gap.first_sequence || gap.last_sequence == u64::MAX {
            let (first, last) = (gap.first_sequence, gap.last_sequence);
            return Err(ProtocolViolation::new(format!(
                "invalid gap from {first} to {last}"
            )));
        }
        self.next = Sequence(gap.last_sequence + 1);
        Ok(gap.last_sequence - gap.first_sequence + 1)
    }

    /// Checks that no cookie is missing before a heartbeat.
    ///
    /// # Errors
    /// When cookies are missing.
    pub fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<(), ProtocolViolation> {
        self.expect(self.epoch, Sequence(heartbeat.next_sequence))
    }

    /// Checks that no cookie is missing at the end of the epoch.
    ///
    /// # Errors
    /// When cookies are missing.
    pub fn goodbye(&self, goodbye: &Goodbye) -> Result<(), ProtocolViolation> {
        let missing = Sequence(goodbye.final_sequence).next().since(self.next);
        if missing == 0 {
            Ok(())
        } else {
            let what = format!("received Goodbye, although {missing} cookies are missing");
            Err(ProtocolViolation::new(what))
        }
    }

    fn expect(&self, epoch: Epoch, sequence: Sequence) -> Result<(), ProtocolViolation> {
        if (epoch, sequence) == (self.epoch, self.next) {
            Ok(())
        } else {
            let what = format!(
                "sequence number {sequence} of epoch {epoch}, expected {}",
                self.next
            );
            Err(ProtocolViolation::new(what))
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::{units::UnixMicros, v1::GapReason};

    use super::*;

    fn hello(epoch: u64, first_sequence: u64, outcome: ResumeOutcome) -> Hello {
        Hello {
            producer_id: "p".to_owned(),
            epoch,
            oldest_sequence: 1,
            next_sequence: 100,
            first_sequence,
            outcome: outcome.into(),
            tail: None,
            unix_micros: 0,
        }
    }

    fn cursor(epoch: u64, sequence: u64) -> Cursor {
        Cursor {
            producer: "p".into(),
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            complete: false,
        }
    }

    #[track_caller]
    fn check_begin(hello: &Hello, sent: &[Cursor], expected: Option<Option<NewEpoch>>) {
        let begun = StreamPosition::begin(hello, sent);
        assert_eq!(begun.ok().map(|(_, new_epoch)| new_epoch), expected);
    }

    #[test]
    fn hello_must_match_the_sent_cursor() {
        use ResumeOutcome::{Fresh, NewEpoch, Resumed, ResumedWithGap};
        let other = Cursor {
            producer: "q".into(),
            ..cursor(9, 9)
        };
        check_begin(&hello(1, 1, Fresh), &[], Some(None));
        check_begin(&hello(1, 50, Resumed), &[other], Some(None));
        check_begin(&hello(1, 0, Fresh), &[], None);
        let known = [cursor(1, 49)];
        check_begin(&hello(1, 50, Resumed), &known, Some(None));
        let with_gap = hello(1, 50, ResumedWithGap);
        check_begin(&with_gap, &known, Some(None));
        check_begin(&hello(1, 51, Resumed), &known, None);
        check_begin(&hello(1, 50, NewEpoch), &known, None);
        let [previous] = known.clone();
        let tail = Some(Tail {
            cookies_max: 3,
            exact: true,
        });
        for tail in [None, tail] {
            let hello = Hello {
                tail,
                ..hello(2, 1, NewEpoch)
            };
            let previous = previous.clone();
            let new_epoch = super::NewEpoch { previous, tail };
            check_begin(&hello, &known, Some(Some(new_epoch)));
        }
        check_begin(&hello(2, 50, NewEpoch), &known, None);
        check_begin(&hello(2, 50, Resumed), &known, None);
    }

    #[test]
    fn invalid_producer_id_is_rejected() {
        for (id, is_valid) in [
            ("p-1.example:7676", true),
            ("ü", true),
            ("", false),
            ("a\nb", false),
            (" ", false),
            (&"x".repeat(256), true),
            (&"x".repeat(257), false),
        ] {
            let hello = Hello {
                producer_id: id.to_owned(),
                ..hello(1, 1, ResumeOutcome::Fresh)
            };
            let begun = StreamPosition::begin(&hello, &[]);
            assert_eq!(begun.is_ok(), is_valid, "{id:?}");
        }
    }

    #[test]
    fn chunks_are_contiguous_or_a_gap_covers_the_hole() {
        let (mut position, _) =
            StreamPosition::begin(&hello(1, 50, ResumeOutcome::Resumed), &[cursor(1, 49)]).unwrap();
        let chunk = |epoch, first_sequence, count| ChunkHeader {
            epoch: Epoch(epoch),
            first_sequence: Sequence(first_sequence),
            count,
            accepted: UnixMicros::NONE,
        };
        let gap = |first_sequence, last_sequence| Gap {
            first_sequence,
            last_sequence,
            reason: GapReason::LagLimit.into(),
        };
        assert!(position.chunk(&chunk(1, 50, 10)).is_ok());
        assert!(position.chunk(&chunk(1, 50, 10)).is_err());
        assert!(position.chunk(&chunk(1, 61, 1)).is_err());
        assert!(position.chunk(&chunk(2, 60, 1)).is_err());
        assert!(position.gap(&gap(61, 70)).is_err());
        assert!(position.gap(&gap(60, 59)).is_err());
        assert!(position.gap(&gap(60, u64::MAX)).is_err());
        assert_eq!(position.gap(&gap(60, 69)), Ok(10));
        assert!(position.chunk(&chunk(1, 70, 1)).is_ok());
        assert_eq!(position.cursor(), cursor(1, 70));
        let heartbeat = |next_sequence| Heartbeat { next_sequence };
        assert!(position.heartbeat(&heartbeat(71)).is_ok());
        assert!(position.heartbeat(&heartbeat(75)).is_err());
        let goodbye = |final_sequence| Goodbye { final_sequence };
        assert_eq!(position.goodbye(&goodbye(70)), Ok(()));
        assert!(position.goodbye(&goodbye(73)).is_err());
    }
}
