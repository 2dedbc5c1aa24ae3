//! The test model of one subscriber, with its expected state.

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use prost::Message;
use proto::{
    units::Sequence,
    v1::{self, ResumeOutcome, event::Event},
    wire::StreamMessage,
};
use tonic::{Code, Status, body::Body};

use super::{Producer, now};
use crate::log::Span;

/// The call that a client makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    Events,
    Cookies,
}

#[derive(Debug)]
pub(super) struct Client {
    name: &'static str,
    kind: CallKind,
    stream: Option<Stream>,
    /// Epoch and newest sequence number that it has processed.
    cursor: Option<(u64, u64)>,
    /// The state that the producer retains for the client.
    retained: Option<Retained>,
}

#[derive(Debug, Clone, Copy)]
struct Retained {
    position: u64,
    /// The maximum position so far.
    high_water: u64,
    /// First sequence number of its latest stream.
    began: u64,
}

#[derive(Debug)]
struct Stream {
    body: Body,
    buffer: BytesMut,
    /// The next expected sequence number.
    next: u64,
    /// The `Hello` has not been received yet.
    expects_hello: bool,
    /// The maximum lag applies from this sequence number on, or once the stream is within it.
    until: u64,
}

/// Result of reading a stream.
enum Frame {
    Data,
    Nothing,
    End(Status),
}

impl Client {
    pub(super) fn new(name: &'static str, kind: CallKind) -> Self {
        Self {
            name,
            kind,
            stream: None,
            cursor: None,
            retained: None,
        }
    }

    pub(super) fn leave(&mut self) {
        self.stream = None;
    }

    /// The producer restarts without any state.
    pub(super) fn producer_restarted(&mut self) {
        self.stream = None;
        self.retained = None;
    }

    pub(super) fn join(&mut self, producer: &Producer, with_cursor: bool, oldest: bool) {
        let body = match self.kind {
            CallKind::Events => producer.call("Subscribe", &self.request(with_cursor, oldest)),
            CallKind::Cookies => {
                let host = self.name.to_owned();
                let request = v1::GetCookiesRequest {
                    host,
                    ..v1::GetCookiesRequest::default()
                };
                producer.call("GetCookies", &request)
            }
        };
        let body = body.expect("a valid request");
        let older = self.stream.take();
        let Span {
            oldest: Sequence(log_oldest),
            next: Sequence(log_next),
        } = producer.log.span();
        let cursor = self
            .cursor
            .filter(|_| with_cursor && self.kind == CallKind::Events);
        let (first, until) = match (cursor, self.retained) {
            (Some((epoch, sequence)), _) if epoch == producer.epoch => (sequence + 1, u64::MAX),
            (Some(_), _) => (1, u64::MAX),
            (None, Some(retained)) => {
                let bytes = producer.bounds.rewind_bytes;
                let first = producer
                    .log
                    .rewind(Sequence(retained.position), bytes, Sequence(retained.began))
                    .0;
                assert!((retained.began..=retained.position).contains(&first));
                assert!(bytes > 0 || first == retained.position);
                (first, retained.high_water)
            }
            (None, None) if oldest && self.kind == CallKind::Events => (log_oldest, u64::MAX),
            (None, None) => (log_next, 0),
        };
        let high_water = self
            .retained
            .map_or(first, |retained| retained.high_water.max(first));
        self.retained = Some(Retained {
            position: first,
            high_water,
            began: first,
        });
        self.stream = Some(Stream {
            body,
            buffer: BytesMut::new(),
            next: first,
            expects_hello: self.kind == CallKind::Events,
            until,
        });
        if let Some(older) = older {
            older.check_superseded();
        }
    }

    fn request(&self, with_cursor: bool, oldest: bool) -> v1::SubscribeRequest {
        let cursor = |(epoch, sequence)| v1::Cursor {
            producer_id: "producer".to_owned(),
            epoch,
            sequence,
        };
        v1::SubscribeRequest {
            subscriber: self.name.to_owned(),
            cursors: self
                .cursor
                .filter(|_| with_cursor)
                .map(cursor)
                .into_iter()
                .collect(),
            start: i32::from(oldest),
            ..v1::SubscribeRequest::default()
        }
    }

    /// The call is rejected; the current stream continues.
    pub(super) fn join_beyond_log(&mut self, producer: &Producer) {
        let own = self
            .cursor
            .replace((producer.epoch, producer.log.span().next.0));
        let rejected = producer.call("Subscribe", &self.request(true, false));
        let status = rejected.expect_err("rejected");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        self.cursor = own;
    }

    pub(super) fn read(&mut self, producer: &Producer, frames: usize) {
        for _ in 0..frames {
            let Some(stream) = &mut self.stream else {
                return;
            };
            let expected = stream.expect(producer);
            match stream.frame() {
                Frame::Nothing => {
                    return assert_eq!(expected, Expected::Nothing, "sealed cookies are delivered");
                }
                Frame::End(status) => panic!("{status}"),
                Frame::Data => self.take(producer, expected),
            }
        }
    }

    /// Reads the rest after the log was closed.
    pub(super) fn read_to_the_end(&mut self, producer: &Producer) {
        let appended = producer.appended.len() as u64;
        loop {
            let Some(stream) = &mut self.stream else {
                return;
            };
            let expected = stream.expect(producer);
            match stream.frame() {
                Frame::Nothing => panic!("a closed log ends its streams"),
                Frame::Data => self.take(producer, expected),
                Frame::End(status) => {
                    assert_eq!(status.code(), Code::Unavailable);
                    return assert_eq!(stream.next, appended + 1, "the newest chunk stays");
                }
            }
        }
    }

    fn take(&mut self, producer: &Producer, expected: Expected) {
        let stream = self
            .stream
            .as_mut()
            .expect("the stream has just returned data");
        if self.kind == CallKind::Cookies {
            stream.take_cookies(producer);
        }
        while let Some(message) = stream.message() {
            stream.take_event(producer, message, &expected);
        }
        if let Some(retained) = &mut self.retained {
            retained.position = stream.next;
            retained.high_water = retained.high_water.max(stream.next);
        }
        if !stream.expects_hello && stream.next > 1 {
            self.cursor = Some((producer.epoch, stream.next - 1));
        }
    }
}

/// The next expected event of a stream; `GetCookies` skips gaps silently.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Hello,
    Chunk,
    /// A gap that ends before this sequence number or later.
    LagLimit {
        min: u64,
    },
    /// A gap that ends before this sequence number.
    Evicted {
        next: u64,
    },
    Nothing,
}

impl Stream {
    fn expect(&mut self, producer: &Producer) -> Expected {
        let Span {
            oldest: Sequence(oldest),
            next: Sequence(next),
        } = producer.log.span();
        let lag = next - self.next;
        if self.expects_hello {
            return Expected::Hello;
        }
        if lag <= producer.bounds.queue_cookies_max {
            self.until = 0;
        }
        if lag == 0 {
            Expected::Nothing
        } else if lag > producer.bounds.queue_cookies_max && self.next >= self.until {
            let min = next - producer.bounds.queue_cookies_max;
            Expected::LagLimit { min }
        } else if self.next < oldest {
            Expected::Evicted { next: oldest }
        } else {
            Expected::Chunk
        }
    }

    fn frame(&mut self) -> Frame {
        let frame = match now(self.body.frame()) {
            None => return Frame::Nothing,
            Some(None) => panic!("a stream ends with trailers"),
            Some(Some(frame)) => frame.expect("a body that cannot fail"),
        };
        match frame.into_data() {
            Ok(data) => {
                self.buffer.extend_from_slice(&data);
                Frame::Data
            }
            Err(frame) => {
                let trailers = frame.into_trailers().expect("neither data nor trailers");
                Frame::End(Status::from_header_map(&trailers).expect("a status"))
            }
        }
    }

    /// The next buffered message, without its prefix.
    fn message(&mut self) -> Option<Bytes> {
        if self.buffer.is_empty() {
            return None;
        }
        assert_eq!(self.buffer.get_u8(), 0, "not compressed");
        let length = self.buffer.get_u32() as usize;
        Some(self.buffer.split_to(length).freeze())
    }

    fn take_event(&mut self, producer: &Producer, message: Bytes, expected: &Expected) {
        let last = producer.appended.len() as u64;
        match StreamMessage::decode(message).expect("an event") {
            StreamMessage::Chunk(chunk) => {
                assert_eq!(*expected, Expected::Chunk);
                let header = *chunk.header();
                assert_eq!(
                    (header.epoch.0, header.first_sequence.0),
                    (producer.epoch, self.next)
                );
                let mut count = 0;
                for record in chunk.records() {
                    let cookie = record.expect("a valid record").cookie();
                    let cookie = cookie.expect("no deletion");
                    let (user_id, buyer_uid) = &producer.appended[at(self.next)];
                    assert_eq!(
                        (cookie.user_id, cookie.buyer_uid),
                        (&**user_id, &**buyer_uid)
                    );
                    self.next += 1;
                    count += 1;
                }
                assert_eq!(header.count, count);
            }
            StreamMessage::Event(Event::Gap(gap)) => {
                assert_eq!(gap.first_sequence, self.next);
                let next = gap.last_sequence + 1;
                match *expected {
                    Expected::LagLimit { min } => {
                        assert_eq!(gap.reason(), v1::GapReason::LagLimit);
                        assert!((min..=last).contains(&next), "{next} {min}");
                    }
                    Expected::Evicted { next: oldest } => {
                        assert_eq!(gap.reason(), v1::GapReason::Evicted);
                        assert_eq!(next, oldest);
                    }
                    _ => panic!("a gap instead of {expected:?}"),
                }
                self.next = next;
            }
            StreamMessage::Event(Event::Hello(hello)) => {
                assert!(self.expects_hello, "only as the first event");
                self.expects_hello = false;
                assert_eq!(hello.epoch, producer.epoch);
                assert_eq!(hello.first_sequence, self.next);
                assert!(hello.oldest_sequence <= hello.next_sequence);
                let outcome = hello.outcome();
                let with_gap = self.next < hello.oldest_sequence;
                assert!(!with_gap || outcome != ResumeOutcome::Resumed);
            }
            StreamMessage::Event(Event::Goodbye(goodbye)) => {
                assert_eq!(*expected, Expected::Nothing);
                assert_eq!((goodbye.final_sequence, self.next), (last, last + 1));
            }
            other => panic!("{other:?}"),
        }
    }

    /// Single cookies are consecutive except for lost ones, which are skipped silently.
    fn take_cookies(&mut self, producer: &Producer) {
        while let Some(message) = self.message() {
            let cookie = v1::Cookie::decode(message).expect("a cookie");
            let (epoch, sequence) = cookie.user_id.split_once('-').expect("as appended");
            let sequence: u64 = sequence.parse().expect("as appended");
            assert_eq!(epoch, producer.epoch.to_string());
            let is_next = match self.expect(producer) {
                // The chunk was in the log and within the maximum lag when it was taken, but may no longer be.
                Expected::Chunk => sequence == self.next,
                _ => sequence >= self.next,
            };
            assert!(is_next, "{sequence} instead of {}", self.next);
            assert_eq!(cookie.buyer_uid, producer.appended[at(sequence)].1);
            self.next = sequence + 1;
        }
    }

    /// A superseded stream ends, perhaps after its `Hello`.
    fn check_superseded(mut self) {
        loop {
            match self.frame() {
                Frame::Data => assert!(std::mem::take(&mut self.expects_hello), "only a hello"),
                Frame::Nothing => panic!("a superseded stream ends"),
                Frame::End(status) => return assert_eq!(status.code(), Code::Aborted),
            }
        }
    }
}

fn at(sequence: u64) -> usize {
    usize::try_from(sequence - 1).expect("a small number")
}
