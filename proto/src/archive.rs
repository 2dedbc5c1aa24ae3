//! Messages of an archive: the events of one run of a producer, on one subject of a NATS stream.
//!
//! The payload of a message is a sequence of [`Event`](crate::v1::Event)s, each framed as on a gRPC stream: five bytes of prefix, then the
//! event. Messages of a subject are in order: each begins where the previous one ended. A message that was published twice has the same id
//! (`Nats-Msg-Id`), so the server stores it once while it remembers the id.
//!
//! Nodes that read an archive report their positions in another stream, on the [subject](node_subject) of each node.
//!
//! All input is untrusted: anyone who may publish to the stream can send anything.
//!
//! ```
//! use bytes::Bytes;
//! use cookiesync_proto::{
//!     archive::{Events, Origin},
//!     units::Epoch,
//!     v1::{Heartbeat, event::Event},
//!     wire::{self, StreamMessage},
//! };
//!
//! let origin = Origin { producer_id: "edge-1.example:7676".to_owned(), epoch: Epoch(7) };
//! assert_eq!(origin.subject(), "cookies.edge-1%2Eexample%3A7676.7");
//! assert_eq!(Origin::parse(&origin.subject()), Some(origin));
//!
//! let heartbeat = wire::encode_event(Event::Heartbeat(Heartbeat { next_sequence: 1 }));
//! let message = Bytes::from([heartbeat.clone(), heartbeat].concat());
//! assert_eq!(Events::new(message).filter(|it| matches!(it, Ok(StreamMessage::Event(_)))).count(), 2);
//! ```

use std::str;

use bytes::{Buf as _, Bytes};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::{
    ids,
    units::Epoch,
    wire::{FRAME_PREFIX_BYTES, StreamMessage, WireError},
};

/// First token of every subject.
pub const SUBJECT_PREFIX: &str = "cookies";

/// First token of the subjects of node reports.
pub const NODES_PREFIX: &str = "cookies-nodes";

/// Header with the version of the format.
pub const VERSION_HEADER: &str = "Cookiesync-Version";

/// The version of the format.
pub const VERSION: &str = "1";

/// Maximum bytes of chunks that one message combines. A larger chunk has its own message.
///
/// At 200,000 cookies of 60 bytes per second, chunks reach this size in 44 ms; a round trip may take as long.
pub const GROUP_BYTES_MAX: usize = 512 << 10;

/// Characters of a producer id that are not escaped in a subject.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// The run of a producer whose events a subject has.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// The id of the producer.
    pub producer_id: String,
    /// The epoch of all sequence numbers.
    pub epoch: Epoch,
}

impl Origin {
    /// The subject: the percent-encoded id and the epoch.
    pub fn subject(&self) -> String {
        let id = utf8_percent_encode(&self.producer_id, ESCAPED);
        format!("{SUBJECT_PREFIX}.{id}.{}", self.epoch)
    }

    /// The origin of a subject; `None` if [`subject`](Self::subject) returns it for no origin with a valid id.
    pub fn parse(subject: &str) -> Option<Self> {
        let (id, epoch) = subject.strip_prefix(SUBJECT_PREFIX)?.rsplit_once('.')?;
        let id = percent_decode_str(id.strip_prefix('.')?).decode_utf8();
        let origin = Self {
            producer_id: id.ok()?.into_owned(),
            epoch: Epoch(epoch.parse().ok()?),
        };
        let is_valid = ids::check_name(&origin.producer_id).is_ok() && origin.epoch.0 > 0;
        (is_valid && origin.subject() == subject).then_some(origin)
    }
}

/// The subject of the reports of a node: its percent-encoded name.
pub fn node_subject(name: &str) -> String {
    let name = utf8_percent_encode(name, ESCAPED);
    format!("{NODES_PREFIX}.{name}")
}

/// The name of the node with this subject; `None` if [`node_subject`] returns it for no valid name.
pub fn node_name(subject: &str) -> Option<String> {
    let name = subject.strip_prefix(NODES_PREFIX)?.strip_prefix('.')?;
    let name = percent_decode_str(name).decode_utf8().ok()?.into_owned();
    let is_valid = ids::check_name(&name).is_ok() && node_subject(&name) == subject;
    is_valid.then_some(name)
}

/// Decodes the events of a message; ends after an error.
#[derive(Debug, Clone)]
pub struct Events {
    rest: Bytes,
}

impl Events {
    /// The events of this payload.
    pub fn new(payload: Bytes) -> Self {
        Self { rest: payload }
    }

    fn event(&mut self) -> Result<StreamMessage, WireError> {
        let (prefix, _) = self
            .rest
            .split_first_chunk::<FRAME_PREFIX_BYTES>()
            .ok_or(WireError::Truncated)?;
        let [compressed, length @ ..] = *prefix;
        let length = usize::try_from(u32::from_be_bytes(length)).map_err(|_| WireError::Range)?;
        if compressed != 0 {
            return Err(WireError::WireType);
        }
        self.rest.advance(FRAME_PREFIX_BYTES);
        if length > self.rest.len() {
            return Err(WireError::Truncated);
        }
        StreamMessage::decode(self.rest.split_to(length))
    }
}

impl Iterator for Events {
    type Item = Result<StreamMessage, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let event = self.event();
        if event.is_err() {
            self.rest.clear();
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        v1::{Heartbeat, event::Event},
        wire,
    };

    #[track_caller]
    fn check(producer_id: &str, subject: &str) {
        let origin = Origin {
            producer_id: producer_id.to_owned(),
            epoch: Epoch(7),
        };
        assert_eq!(origin.subject(), subject);
        assert_eq!(Origin::parse(subject), Some(origin));
    }

    #[test]
    fn subjects_have_one_token_for_each_id() {
        check("edge_1-A", "cookies.edge_1-A.7");
        check("a.b", "cookies.a%2Eb.7");
        check("a b*>", "cookies.a%20b%2A%3E.7");
        check("é%", "cookies.%C3%A9%25.7");
    }

    #[test]
    fn subject_of_a_node_has_its_name() {
        for name in ["node-1", "node 1.example>", "é%"] {
            assert_eq!(node_name(&node_subject(name)).as_deref(), Some(name));
        }
        assert_eq!(node_subject("a.b"), "cookies-nodes.a%2Eb");
        for subject in [
            "cookies-nodes",
            "cookies-nodes.",
            "cookies-nodes.a.b",
            "cookies-nodes.%61",
            "cookies.a",
        ] {
            assert_eq!(node_name(subject), None, "{subject}");
        }
    }

    #[test]
    fn other_subjects_have_no_origin() {
        for subject in [
            "",
            "cookies",
            "cookies.7",
            "cookies..7",
            "cookies.a",
            "cookies.a.b.7",
            "cookies.a.0",
            "cookies.a.07",
            "cookies.a.+7",
            "cookies.a.18446744073709551616",
            "cookies.%61.7",
            "cookies.%2e.7",
            "cookies.%FF.7",
            "cookies.%20a.7",
            "cookiesx.a.7",
            "other.a.7",
        ] {
            assert_eq!(Origin::parse(subject), None, "{subject}");
        }
    }

    #[test]
    fn truncated_and_foreign_payloads_end_with_an_error() {
        let event = |next_sequence| Event::Heartbeat(Heartbeat { next_sequence });
        let message = [1, 2].map(|next| wire::encode_event(event(next))).concat();
        assert_eq!(Events::new(Bytes::new()).count(), 0);
        for length in 1..message.len() {
            let events = Events::new(Bytes::copy_from_slice(&message[..length]));
            let events: Vec<_> = events.map(|it| it.is_ok()).collect();
            let has_first = length >= message.len() / 2;
            let is_whole = length == message.len() / 2;
            assert_eq!(events.first() == Some(&true), has_first, "{length} bytes");
            assert_eq!(events.last() == Some(&true), is_whole, "{length} bytes");
        }
        // Empty events: unknown, skipped by the reader.
        let zeros = Events::new(Bytes::from(vec![0; 1 << 20]));
        assert!(
            zeros
                .take(3)
                .all(|it| matches!(it, Ok(StreamMessage::Unknown)))
        );
        let compressed = Events::new(Bytes::from_static(&[1, 0, 0, 0, 0]));
        assert_eq!(compressed.map(|it| it.is_ok()).collect::<Vec<_>>(), [false]);
        let long = Events::new(Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff, 0]));
        assert_eq!(long.map(|it| it.is_ok()).collect::<Vec<_>>(), [false]);
    }
}
