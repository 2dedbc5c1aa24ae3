//! One stream: opens, checks, and opens again from its cursor when it breaks.

use std::{hint::black_box, time::Duration};

use bytes::Bytes;
use hdrhistogram::Histogram;
use proto::{
    client,
    v1::{Cursor, GetCookiesRequest, Hello, ResumeOutcome, SubscribeRequest, event::Event},
    wire::{ChunkRef, Received, WireError, decode_cookie},
};
use runtime::{
    connect::{Connector, credentials::Security},
    unix_micros,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::{
    Response, Status, Streaming,
    transport::{Channel, Endpoint},
};

use super::{Call, SubscribeArgs, security};
use crate::report::micros_histogram;

const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// The windows and frames of a client that sets none: what it does not read stays with the producer.
const SLOW_WINDOW_BYTES: u32 = 65_535;
const SLOW_FRAME_BYTES: u32 = 16_384;

/// How many single-cookie messages share one look at the clock.
const MESSAGES_PER_CLOCK: u64 = 16;

/// What a stream saw.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) received: u64,
    /// The same for each second since the run began.
    pub(super) by_second: Vec<u64>,
    pub(super) lost: u64,
    pub(super) gaps: u64,
    pub(super) violations: u64,
    pub(super) first_violation: Option<String>,
    pub(super) bytes: u64,
    /// How often it was ended by an error.
    pub(super) broken: u64,
    pub(super) first_broken: Option<String>,
    pub(super) reconnects: u64,
    pub(super) new_epochs: u64,
    pub(super) goodbyes: u64,
    pub(super) first_at: Option<Instant>,
    pub(super) last_at: Option<Instant>,
    pub(super) delivery_micros: Histogram<u64>,
}

/// The producer's epoch that a stream follows, and what must come next.
#[derive(Debug)]
struct Position {
    producer_id: String,
    epoch: u64,
    next_sequence: u64,
}

pub(super) struct Stream {
    args: SubscribeArgs,
    security: Security,
    name: String,
    began: Instant,
    position: Option<Position>,
    tally: Tally,
}

impl Stream {
    pub(super) fn new(
        args: &SubscribeArgs,
        security: Security,
        name: String,
        began: Instant,
    ) -> Self {
        Self {
            args: args.clone(),
            security,
            name,
            began,
            position: None,
            tally: Tally {
                received: 0,
                by_second: vec![0],
                lost: 0,
                gaps: 0,
                violations: 0,
                first_violation: None,
                bytes: 0,
                broken: 0,
                first_broken: None,
                reconnects: 0,
                new_epochs: 0,
                goodbyes: 0,
                first_at: None,
                last_at: None,
                delivery_micros: micros_histogram(),
            },
        }
    }

    /// Reads until it has its cookies or `stop`; tells `opened` how the first attempt went.
    pub(super) async fn run(
        mut self,
        opened: mpsc::Sender<Result<(), anyhow::Error>>,
        stop: CancellationToken,
    ) -> Tally {
        tokio::select! {
            biased;
            () = self.follow(opened) => {}
            () = stop.cancelled() => {}
        }
        self.tally
    }

    async fn follow(&mut self, opened: mpsc::Sender<Result<(), anyhow::Error>>) {
        match self.open().await {
            Ok(messages) => {
                // When nobody listens any more, `stop` follows at once.
                opened.send(Ok(())).await.ok();
                drop(opened);
                self.read(messages).await;
            }
            Err(error) => {
                opened.send(Err(error)).await.ok();
                return;
            }
        }
        while !self.is_done() && !self.args.once {
            sleep(RECONNECT_PAUSE).await;
            if let Ok(messages) = self.open().await {
                self.tally.reconnects += 1;
                self.read(messages).await;
            }
        }
    }

    fn is_done(&self) -> bool {
        self.args
            .requests
            .is_some_and(|requests| self.tally.received + self.tally.lost >= requests)
    }

    /// Opens the stream; for `Subscribe`, up to and including its `Hello`.
    async fn open(&mut self) -> Result<Streaming<Bytes>, anyhow::Error> {
        let is_slow = self.args.read_rate.is_some();
        let announce = |endpoint: Endpoint| {
            if !is_slow {
                return endpoint;
            }
            endpoint
                .initial_stream_window_size(SLOW_WINDOW_BYTES)
                .initial_connection_window_size(SLOW_WINDOW_BYTES)
                .max_frame_size(SLOW_FRAME_BYTES)
        };
        let (connector, channel) =
            security::connect(&self.args.producer, &self.security, announce).await?;
        let opened = match self.args.call {
            Call::Subscribe => self.subscribe(&connector, channel).await,
            Call::GetCookies => {
                let host = self.name.clone();
                let request = connector.request(GetCookiesRequest {
                    host,
                    understands_age: true,
                });
                let opened = client::get_cookies(channel, request).await;
                opened.map(Response::into_inner)
            }
        };
        match connector.trouble() {
            Some(trouble) if opened.is_err() => Err(anyhow::anyhow!("{trouble}")),
            _ => Ok(opened?),
        }
    }

    async fn subscribe(
        &mut self,
        connector: &Connector,
        channel: Channel,
    ) -> Result<Streaming<Bytes>, Status> {
        let cursors = self.position.iter().map(|position| Cursor {
            producer_id: position.producer_id.clone(),
            epoch: position.epoch,
            sequence: position.next_sequence.saturating_sub(1),
        });
        let request = connector.request(SubscribeRequest {
            subscriber: self.name.clone(),
            cursors: cursors.collect(),
            start: proto::v1::StartPosition::from(self.args.start).into(),
            window_bytes: 0,
            understands_age: true,
        });
        let mut messages = client::subscribe(channel, request).await?.into_inner();
        let message = messages
            .message()
            .await?
            .ok_or_else(|| Status::unavailable("the stream ended before its hello"))?;
        match Received::decode(message) {
            Ok(Received::Event(Event::Hello(hello))) => {
                self.greet(hello);
                Ok(messages)
            }
            other => {
                self.violation(|| format!("the first event is not a hello: {other:?}"));
                Err(Status::data_loss("the first event is not a hello"))
            }
        }
    }

    fn greet(&mut self, hello: Hello) {
        if let Some(position) = &self.position {
            let same = position.producer_id == hello.producer_id && position.epoch == hello.epoch;
            let expected = position.next_sequence;
            if !same {
                self.tally.new_epochs += 1;
            } else if hello.first_sequence != expected {
                let first = hello.first_sequence;
                self.violation(|| format!("resumed at sequence {first} instead of {expected}"));
            }
            if same != (hello.outcome() != ResumeOutcome::NewEpoch) {
                let outcome = hello.outcome().as_str_name();
                self.violation(|| format!("{outcome} when the epoch is the same: {same}"));
            }
        }
        self.position = Some(Position {
            producer_id: hello.producer_id,
            epoch: hello.epoch,
            next_sequence: hello.first_sequence,
        });
    }

    /// Reads until the stream ends, breaks or has its cookies.
    async fn read(&mut self, mut messages: Streaming<Bytes>) {
        while let Some(message) = messages.next().await {
            let message = match message {
                Ok(message) => message,
                Err(status) => return self.broken(&status),
            };
            let bytes = message.len() as u64;
            self.tally.bytes += bytes;
            match self.args.call {
                Call::Subscribe => self.event(message),
                Call::GetCookies => self.cookie(&message),
            }
            if self.is_done() {
                return;
            }
            if let Some(per_second) = self.args.read_rate {
                sleep(Duration::from_secs_f64(
                    bytes as f64 / per_second.get() as f64,
                ))
                .await;
            }
        }
    }

    fn cookie(&mut self, message: &[u8]) {
        if self.tally.received.is_multiple_of(MESSAGES_PER_CLOCK) {
            self.arrived();
        }
        self.received(1);
        if self.args.decode {
            match decode_cookie(message) {
                Ok(cookie) => {
                    black_box(cookie);
                }
                Err(error) => self.violation(|| format!("a cookie cannot be read: {error}")),
            }
        }
    }

    fn event(&mut self, message: Bytes) {
        match Received::decode(message) {
            Ok(Received::Chunk(chunk)) => self.chunk(&chunk),
            Ok(Received::Event(event)) => self.rare_event(event),
            Ok(Received::Unknown) => {}
            Err(error) => self.violation(|| format!("an event cannot be read: {error}")),
        }
    }

    fn chunk(&mut self, chunk: &ChunkRef) {
        let header = *chunk.header();
        let micros = unix_micros().saturating_sub(header.accepted_unix_micros);
        self.arrived();
        let walked = if self.args.decode {
            count(chunk.cookies())
        } else {
            count(chunk.encoded_cookies())
        };
        if walked != Ok(u64::from(header.count)) {
            self.violation(|| format!("a chunk of {} cookies walks as {walked:?}", header.count));
        }
        self.follows(header.epoch, header.first_sequence, header.last_sequence());
        self.received(u64::from(header.count));
        self.tally
            .delivery_micros
            .record_n(micros, u64::from(header.count))
            .expect("the histogram grows to any value");
    }

    fn rare_event(&mut self, event: Event) {
        let epoch = self.position.as_ref().map_or(0, |position| position.epoch);
        let next = self
            .position
            .as_ref()
            .map_or(0, |position| position.next_sequence);
        match event {
            Event::Gap(gap) if gap.last_sequence < gap.first_sequence => {
                self.violation(|| format!("an empty gap: {gap:?}"));
            }
            Event::Gap(gap) => {
                self.tally.gaps += 1;
                self.tally.lost += gap.last_sequence - gap.first_sequence + 1;
                self.follows(epoch, gap.first_sequence, gap.last_sequence);
            }
            Event::Heartbeat(heartbeat) if heartbeat.next_sequence != next => {
                let said = heartbeat.next_sequence;
                self.violation(|| format!("a heartbeat says {said} is next instead of {next}"));
            }
            Event::Goodbye(goodbye) => {
                self.tally.goodbyes += 1;
                if goodbye.final_sequence + 1 != next {
                    let last = goodbye.final_sequence;
                    self.violation(|| format!("goodbye at {last} when {next} is next"));
                }
            }
            Event::Heartbeat(_) => {}
            Event::Hello(_) => self.violation(|| "a second hello".to_owned()),
            Event::Chunk(_) => self.violation(|| "a chunk that is none".to_owned()),
        }
    }

    /// Checks that `first` follows what came before, and goes on after `last`.
    fn follows(&mut self, epoch: u64, first: u64, last: u64) {
        let Some(position) = &mut self.position else {
            return;
        };
        let (expected_epoch, expected) = (position.epoch, position.next_sequence);
        position.next_sequence = last + 1;
        if epoch != expected_epoch {
            self.violation(|| format!("epoch {epoch} in a stream of epoch {expected_epoch}"));
        } else if first != expected {
            self.violation(|| format!("sequence {first} follows instead of {expected}"));
        }
    }

    fn arrived(&mut self) {
        let now = Instant::now();
        self.tally.first_at.get_or_insert(now);
        self.tally.last_at = Some(now);
        let second = usize::try_from((now - self.began).as_secs()).unwrap_or(usize::MAX);
        while self.tally.by_second.len() <= second {
            self.tally.by_second.push(0);
        }
    }

    /// Counts cookies into the second of the last look at the clock.
    fn received(&mut self, count: u64) {
        self.tally.received += count;
        if let Some(this_second) = self.tally.by_second.last_mut() {
            *this_second += count;
        }
    }

    fn broken(&mut self, status: &Status) {
        self.tally.broken += 1;
        let error = || format!("{}: {:?}: {}", self.name, status.code(), status.message());
        self.tally.first_broken.get_or_insert_with(error);
    }

    fn violation(&mut self, what: impl FnOnce() -> String) {
        self.tally.violations += 1;
        if self.tally.first_violation.is_none() {
            self.tally.first_violation = Some(format!("{}: {}", self.name, what()));
        }
    }
}

fn count<T>(cookies: impl Iterator<Item = Result<T, WireError>>) -> Result<u64, WireError> {
    let mut count = 0;
    for cookie in cookies {
        black_box(cookie?);
        count += 1;
    }
    Ok(count)
}
