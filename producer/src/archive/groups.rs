//! Combines the events of the log into messages.

use std::time::Duration;

use bytes::Bytes;
use proto::{
    archive::{GROUP_BYTES_MAX, Origin},
    units::Sequence,
    v1::{self, EpochEnd, event::Event},
    wire,
};
use tokio::time::Instant;

use super::Message;
use crate::{
    log::{Delivery, Log, Reader},
    streams::times_to_live::{TimesToLive, Unsent},
};

/// Time after which the times to live are repeated, for readers that begin in the middle.
const TIMES_TO_LIVE_INTERVAL: Duration = Duration::from_secs(60);

/// Combines all deliveries that are ready. Begins with the ends of earlier epochs.
#[derive(Debug)]
pub(super) struct Groups {
    reader: Reader,
    times_to_live: Unsent,
    times_to_live_due: Instant,
    /// Maximum bytes to which a further chunk is added.
    room_bytes: usize,
    subject: String,
    /// The id of the next message, without its number.
    id_prefix: String,
    /// Number of messages so far.
    count: u64,
    /// Events before the next delivery.
    first: Vec<u8>,
    has_ended: bool,
}

/// A message and its share of the log.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) message: Message,
    /// Cookies in its chunks.
    pub(super) cookies: u64,
    /// Cookies that the log has evicted.
    pub(super) lost: u64,
}

impl Groups {
    pub(super) fn new(
        log: &Log,
        origin: &Origin,
        chunk_bytes: usize,
        epoch_ends: Vec<EpochEnd>,
        times_to_live: &TimesToLive,
    ) -> Self {
        let subject = origin.subject();
        let first = if epoch_ends.is_empty() {
            Bytes::new()
        } else {
            wire::encode_event(Event::EpochEnds(v1::EpochEnds { ends: epoch_ends }))
        };
        Self {
            reader: log.reader(Sequence::FIRST, u64::MAX, Sequence::FIRST),
            times_to_live: times_to_live.unsent(),
            times_to_live_due: Instant::now(),
            room_bytes: GROUP_BYTES_MAX.saturating_sub(chunk_bytes),
            id_prefix: subject.replace('.', "/"),
            subject,
            count: 0,
            first: first.into(),
            has_ended: false,
        }
    }

    /// The first sequence number of the next message.
    pub(super) fn position(&self) -> Sequence {
        self.reader.position()
    }

    /// Waits for the next delivery, and adds those that are ready; `None` after the end of the log.
    pub(super) async fn next(&mut self) -> Option<Group> {
        if self.has_ended {
            return None;
        }
        let (mut cookies, mut lost) = (0, 0);
        let mut delivery = self.reader.next().await;
        let mut payload = std::mem::take(&mut self.first);
        payload.extend(self.times_to_live());
        loop {
            match &delivery {
                Delivery::Chunk { chunk, first } => cookies += chunk.last().next().since(*first),
                Delivery::Gap { first, last, .. } => lost += last.next().since(*first),
                Delivery::Idle { .. } => {}
                Delivery::End { .. } => self.has_ended = true,
            }
            payload.extend_from_slice(&delivery.event());
            if self.has_ended || payload.len() > self.room_bytes {
                break;
            }
            match self.reader.try_next() {
                Some(next) => delivery = next,
                None => break,
            }
        }
        self.count += 1;
        let message = Message {
            subject: self.subject.clone(),
            id: format!("{}/{}", self.id_prefix, self.count),
            payload: payload.into(),
        };
        Some(Group {
            message,
            cookies,
            lost,
        })
    }

    /// The times to live, if they have changed or were not sent for a minute.
    fn times_to_live(&mut self) -> Bytes {
        let now = Instant::now();
        if now >= self.times_to_live_due {
            self.times_to_live.resend();
        }
        let Some(message) = self.times_to_live.take() else {
            return Bytes::new();
        };
        self.times_to_live_due = now + TIMES_TO_LIVE_INTERVAL;
        message
    }
}
