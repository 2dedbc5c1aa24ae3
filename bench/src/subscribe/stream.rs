//! A stream whose messages are checked.

use std::hint::black_box;

use bytes::Bytes;
use proto::{
    client,
    units::{Epoch, Sequence, UnixMicros},
    v1::{GetCookiesRequest, StartPosition, SubscribeRequest, event::Event},
    wire::{ChunkRef, StreamMessage, decode_record},
};
use runtime::{
    connect::{Connector, credentials::Security},
    unix_micros,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status, Streaming, transport::Channel};

use super::{
    args::{Call, SubscribeArgs},
    security,
};
use crate::report::Micros;

/// Number of single-cookie messages per clock reading.
const MESSAGES_PER_CLOCK: u64 = 16;

/// Counts of one or more streams.
#[derive(Debug, Default)]
pub struct StreamCounts {
    /// Cookies received.
    pub received: u64,
    /// Cookies declared lost by gaps.
    pub lost: u64,
    /// Gaps received.
    pub gaps: u64,
    /// Protocol violations: sequence numbers out of order, wrong counts, invalid messages.
    pub violations: u64,
    /// Description of the first violation.
    pub first_violation: Option<String>,
    /// Size of all messages.
    pub bytes: u64,
    /// Streams that ended with an error.
    pub broken: u64,
    /// The first of these errors.
    pub first_broken: Option<String>,
    /// Times of the first and the last cookie.
    pub between: Option<(Instant, Instant)>,
    /// Latency from acceptance of the first cookie of a chunk to its arrival, weighted by cookies.
    pub delivery_micros: Micros,
}

impl StreamCounts {
    /// Time from the first cookie to the last.
    pub fn seconds(&self) -> f64 {
        let duration = self.between.map(|(first, last)| last - first);
        duration.unwrap_or_default().as_secs_f64()
    }

    /// Adds the counts of another stream.
    pub(super) fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.lost += other.lost;
        self.gaps += other.gaps;
        self.violations += other.violations;
        let violation = self.first_violation.take();
        self.first_violation = violation.or_else(|| other.first_violation.clone());
        self.bytes += other.bytes;
        self.broken += other.broken;
        let broken = self.first_broken.take();
        self.first_broken = broken.or_else(|| other.first_broken.clone());
        self.between = match (self.between, other.between) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        self.delivery_micros.add(&other.delivery_micros);
    }
}

pub(super) struct Stream {
    args: SubscribeArgs,
    security: Security,
    name: String,
    position: Option<(Epoch, Sequence)>,
    counts: StreamCounts,
}

impl Stream {
    pub(super) fn new(args: &SubscribeArgs, security: Security, name: String) -> Self {
        Self {
            args: args.clone(),
            security,
            name,
            position: None,
            counts: StreamCounts::default(),
        }
    }

    /// Reads the requested number of cookies, until the stream ends, or until `stop`. Reports to `opened` whether the stream
    /// could be opened.
    pub(super) async fn run(
        mut self,
        opened: mpsc::Sender<Result<(), anyhow::Error>>,
        stop: CancellationToken,
    ) -> StreamCounts {
        let reading = async {
            let messages = self.open().await;
            let (messages, result) = match messages {
                Ok(messages) => (Some(messages), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // A closed channel means that `stop` is about to be cancelled.
            opened.send(result).await.ok();
            if let Some(messages) = messages {
                self.read(messages).await;
            }
        };
        tokio::select! {
            biased;
            () = reading => {}
            () = stop.cancelled() => {}
        }
        self.counts
    }

    fn is_done(&self) -> bool {
        self.args
            .requests
            .is_some_and(|requests| self.counts.received + self.counts.lost >= requests)
    }

    /// Opens the stream; for `Subscribe`, reads its `Hello`.
    async fn open(&mut self) -> Result<Streaming<Bytes>, anyhow::Error> {
        let (connector, channel) = security::connect(&self.args.producer, &self.security).await?;
        let opened = match self.args.call {
            Call::Subscribe => self.subscribe(&connector, channel).await,
            Call::GetCookies => {
                let request = connector.request(GetCookiesRequest {
                    host: self.name.clone(),
                    supports_age: true,
                    deletions: false,
                });
                let opened = client::get_cookies(channel, request).await;
                opened.map(Response::into_inner)
            }
        };
        match connector.failure() {
            Some(trouble) if opened.is_err() => Err(anyhow::anyhow!("{trouble}")),
            _ => Ok(opened?),
        }
    }

    async fn subscribe(
        &mut self,
        connector: &Connector,
        channel: Channel,
    ) -> Result<Streaming<Bytes>, Status> {
        let request = connector.request(SubscribeRequest {
            subscriber: self.name.clone(),
            cursors: Vec::new(),
            start: StartPosition::Newest.into(),
            window_bytes: 0,
            supports_age: true,
        });
        let mut messages = client::subscribe(channel, request).await?.into_inner();
        let message = messages
            .message()
            .await?
            .ok_or_else(|| Status::unavailable("the stream ended before its Hello message"))?;
        match StreamMessage::decode(message) {
            Ok(StreamMessage::Event(Event::Hello(hello))) => {
                self.position = Some((Epoch(hello.epoch), Sequence(hello.first_sequence)));
                Ok(messages)
            }
            other => {
                self.violation(|| format!("the first message is not Hello: {other:?}"));
                Err(Status::data_loss("the first message is not Hello"))
            }
        }
    }

    /// Reads until the stream ends, fails or has the requested number of cookies.
    async fn read(&mut self, mut messages: Streaming<Bytes>) {
        while let Some(message) = messages.next().await {
            let message = match message {
                Ok(message) => message,
                Err(status) => return self.broken(&status),
            };
            self.counts.bytes += message.len() as u64;
            match self.args.call {
                Call::Subscribe => self.event(message),
                Call::GetCookies => self.cookie(&message),
            }
            if self.is_done() {
                return;
            }
        }
    }

    fn cookie(&mut self, message: &[u8]) {
        if self.counts.received.is_multiple_of(MESSAGES_PER_CLOCK) {
            self.arrived();
        }
        self.counts.received += 1;
        if let Err(error) = decode_record(message).map(black_box) {
            self.violation(|| format!("invalid cookie: {error}"));
        }
    }

    fn event(&mut self, message: Bytes) {
        match StreamMessage::decode(message) {
            Ok(StreamMessage::Chunk(chunk)) => self.chunk(&chunk),
            Ok(StreamMessage::Event(event)) => self.control_event(event),
            Ok(StreamMessage::Unknown) => {}
            Err(error) => self.violation(|| format!("invalid event: {error}")),
        }
    }

    fn chunk(&mut self, chunk: &ChunkRef) {
        let header = *chunk.header();
        let micros = UnixMicros(unix_micros()).since(header.accepted);
        self.arrived();
        let decoded = chunk
            .encoded_cookies()
            .try_fold(0, |count, cookie| cookie.map(|_| count + 1));
        if decoded != Ok(u64::from(header.count)) {
            self.violation(|| {
                format!("a chunk of {} cookies decodes as {decoded:?}", header.count)
            });
        }
        self.follows(header.epoch, header.first_sequence, header.last_sequence());
        self.counts.received += u64::from(header.count);
        let delivery = &mut self.counts.delivery_micros;
        delivery.record(micros, u64::from(header.count));
    }

    fn control_event(&mut self, event: Event) {
        let (epoch, next) = self.position.unwrap_or_default();
        match event {
            Event::Gap(gap) if gap.last_sequence < gap.first_sequence => {
                self.violation(|| format!("an empty gap: {gap:?}"));
            }
            Event::Gap(gap) => {
                self.counts.gaps += 1;
                self.counts.lost += gap.last_sequence - gap.first_sequence + 1;
                self.follows(
                    epoch,
                    Sequence(gap.first_sequence),
                    Sequence(gap.last_sequence),
                );
            }
            Event::Heartbeat(heartbeat) if heartbeat.next_sequence != next.0 => {
                let sequence = heartbeat.next_sequence;
                self.violation(|| {
                    format!("Heartbeat: the next sequence number is {sequence} instead of {next}")
                });
            }
            Event::Goodbye(goodbye) => {
                if goodbye.final_sequence + 1 != next.0 {
                    let last = goodbye.final_sequence;
                    self.violation(|| {
                        format!("Goodbye after {last}, but the next sequence number is {next}")
                    });
                }
            }
            Event::Heartbeat(_) | Event::TimesToLive(_) | Event::EpochEnds(_) => {}
            Event::Hello(_) => self.violation(|| "a second Hello message".to_owned()),
            Event::Chunk(_) => self.violation(|| "an invalid chunk".to_owned()),
        }
    }

    /// Checks that `first` is the next sequence number, and continues after `last`.
    fn follows(&mut self, epoch: Epoch, first: Sequence, last: Sequence) {
        let Some((expected_epoch, next)) = &mut self.position else {
            return;
        };
        let (expected_epoch, expected) = (*expected_epoch, std::mem::replace(next, last + 1));
        if epoch != expected_epoch {
            self.violation(|| format!("epoch {epoch} in a stream of epoch {expected_epoch}"));
        } else if first != expected {
            self.violation(|| format!("sequence number {first} instead of {expected}"));
        }
    }

    fn arrived(&mut self) {
        let now = Instant::now();
        self.counts.between.get_or_insert((now, now)).1 = now;
    }

    fn broken(&mut self, status: &Status) {
        self.counts.broken += 1;
        let error = || format!("{}: {:?}: {}", self.name, status.code(), status.message());
        self.counts.first_broken.get_or_insert_with(error);
    }

    fn violation(&mut self, describe: impl FnOnce() -> String) {
        self.counts.violations += 1;
        if self.counts.first_violation.is_none() {
            self.counts.first_violation = Some(format!("{}: {}", self.name, describe()));
        }
    }
}
