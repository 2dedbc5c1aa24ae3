//! One stream from one address of one producer: connect, resume, check, push; forever.
//!
//! The read loop does nothing but check sequences and push into the [`buffer`]; it waits only when that is full.
//! A lost stream is opened again after a growing delay, which starts small again once something was received
//! (not once something was connected). It resumes after what was *pushed*, which this process holds in memory;
//! after a restart of the process, where the store stands.
//!
//! Said in the log is what changes: connected, lost, why it is refused; never an attempt.

pub mod buffer;
mod connect;
pub mod discovery;
pub mod restarts;
pub mod sequence;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use proto::{
    limits::HEARTBEAT_MAX,
    v1::{self, ResumeOutcome, event::Event},
    wire::{StreamMessage, WireError},
};
use runtime::{
    connect::{Network, credentials::Security},
    unix_micros,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use crate::{
    backoff::{Backoff, DELAY_MAX, jittered},
    batch::Cursor,
    config::ProducerUrl,
    metrics,
    producers::{AddressGuard, AdvanceResult, Arrival, Producers, Stream, StreamStart},
};
use buffer::{BufferWriter, Item};
use sequence::{Position, ProtocolViolation, Resumption};

/// How long it may take from the attempt to connect until `Hello`.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a stream may be silent: three times as long as a producer may let it be.
const EVENT_TIMEOUT: Duration = HEARTBEAT_MAX.saturating_mul(3);

/// How long after a stream was ended by a newer one that may turn out to be a sibling's.
const SIBLING_TIMEOUT: Duration = Duration::from_secs(1);

/// Shortest time from one warning about a gap to the next; all gaps are counted, and logged at least as `debug`.
const GAP_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What all subscriptions of a process share.
#[derive(Debug)]
pub struct Context {
    /// The name of our queue on every producer.
    pub name: String,
    /// At least so many producers share what is kept for receiving.
    pub producers_expected: usize,
    /// The way to the producers.
    pub network: Arc<dyn Network>,
    /// What they want to see of us, and we of them.
    pub security: Security,
    /// What is known of the producers; connections and what they bring are reported there.
    pub producers: Producers,
    /// What is counted.
    pub metrics: metrics::Subscription,
}

/// Keeps a stream from one address; see [`Subscription::run`].
#[derive(Debug)]
pub struct Subscription {
    context: Arc<Context>,
    producer: ProducerUrl,
    origin: String,
    /// The address, in the table of producers.
    listed: AddressGuard,
    buffer: BufferWriter,
    is_listed: watch::Receiver<bool>,
    stop: CancellationToken,
    backoff: Backoff,
    said: LoggedState,
    /// The producer whose stream from here ended without a goodbye last.
    lost: Option<Arc<str>>,
    /// When a gap was logged last.
    gap_logged: Option<Instant>,
}

/// What the log says last of this address.
#[derive(Debug, PartialEq, Eq)]
enum LoggedState {
    Nothing,
    /// To this producer.
    Connected(Arc<str>),
    Down(String),
}

/// Why a stream ended, or never began.
#[derive(Debug, thiserror::Error)]
enum StreamEnd {
    #[error("{0}")]
    Unreachable(String),
    #[error("{}: {}", .0.code(), .0.message())]
    Status(Box<Status>),
    #[error("a newer stream has this consumer's name")]
    Superseded(Option<Arc<str>>),
    #[error("the producer drained")]
    Drained,
    #[error("the stream ended")]
    EndOfStream,
    #[error("nothing came for {EVENT_TIMEOUT:?}")]
    Silent,
    #[error("the stream breaks the contract: {0}")]
    ProtocolViolation(#[from] ProtocolViolation),
    #[error("a message is malformed: {0}")]
    Wire(#[from] WireError),
    #[error("this consumer stops")]
    Stopped,
}

impl From<Status> for StreamEnd {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl From<buffer::Closed> for StreamEnd {
    fn from(_: buffer::Closed) -> Self {
        Self::Stopped
    }
}

impl Subscription {
    /// A subscription to `address`, which `producer` stands for.
    #[must_use]
    pub fn new(
        context: Arc<Context>,
        producer: &ProducerUrl,
        address: SocketAddr,
        buffer: BufferWriter,
        is_listed: watch::Receiver<bool>,
        stop: CancellationToken,
    ) -> Self {
        let origin = producer.to_string();
        let listed = context.producers.listed(address, &origin);
        Self {
            context,
            origin,
            producer: producer.clone(),
            listed,
            buffer,
            is_listed,
            stop,
            backoff: Backoff::default(),
            said: LoggedState::Nothing,
            lost: None,
            gap_logged: None,
        }
    }

    /// Reads until `stop`, or until the address fails when it is no longer listed.
    pub async fn run(mut self) {
        let stop = self.stop.clone();
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.stream() => ended,
            };
            let Err(ended) = ended;
            if matches!(ended, StreamEnd::Stopped) {
                return;
            }
            let mut is_listed = self.is_listed.clone();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = is_listed.wait_for(|is_listed| !is_listed) => {
                    tracing::info!(address = %self.address(), "address is no longer listed");
                    return;
                }
                () = self.rest(&ended) => {}
            }
        }
    }

    /// Waits until the next attempt is due.
    async fn rest(&mut self, ended: &StreamEnd) {
        self.log_disconnected(ended);
        match ended {
            StreamEnd::Superseded(Some(producer)) => loop {
                self.context.producers.wait_released(producer).await;
                sleep(jittered(DELAY_MAX)).await;
                if self.context.producers.streams(producer) == 0 {
                    return;
                }
            },
            StreamEnd::Superseded(None) => sleep(jittered(DELAY_MAX)).await,
            _ => sleep(self.backoff.delay()).await,
        }
    }

    fn log_disconnected(&mut self, ended: &StreamEnd) {
        let (address, origin) = (self.address(), &self.origin);
        let why = ended.to_string();
        self.listed.down(&why);
        let was = std::mem::replace(&mut self.said, LoggedState::Down(why.clone()));
        match (was, ended) {
            (LoggedState::Down(before), _) if before == why => {}
            (_, StreamEnd::Superseded(Some(producer))) => {
                tracing::info!(%address, %producer, "standing by: another address has this producer's stream");
            }
            (_, StreamEnd::Superseded(None)) => {
                tracing::warn!(%address, name = self.context.name, "another process reads under this consumer's name");
            }
            (_, StreamEnd::ProtocolViolation(_) | StreamEnd::Wire(_)) => {
                tracing::warn!(%address, why, "stream broken off");
            }
            (_, StreamEnd::Drained) => tracing::info!(%address, "producer drained"),
            (LoggedState::Connected(producer), _) => {
                let cursor = self.context.producers.cursor(&producer);
                let (epoch, sequence) = cursor.map_or((0, 0), |c| (c.epoch, c.sequence));
                tracing::warn!(
                    %address, %producer, epoch, sequence, why,
                    "connection to producer lost, retrying; cookies after this sequence are unaccounted for until it reconnects"
                );
                self.lost = Some(producer);
            }
            (_, _) => {
                tracing::info!(%address, origin, why, "no producer at this address, retrying")
            }
        }
    }

    /// Opens one stream and reads it to its end.
    async fn stream(&mut self) -> Result<std::convert::Infallible, StreamEnd> {
        let cursors = self.context.producers.cursors();
        let greeted = timeout(HELLO_TIMEOUT, self.handshake(&cursors)).await;
        let late = |_| StreamEnd::Unreachable(format!("no answer for {HELLO_TIMEOUT:?}"));
        let (hello, mut stream) = greeted.map_err(late)??;
        let (mut position, resumption) =
            Position::begin(&hello, &cursors).map_err(|violation| self.violation(violation))?;
        let began_at = position.cursor();
        let (mut open, seen) = self.listed.opened(StreamStart {
            at: &began_at,
            newest: hello.next_sequence.saturating_sub(1),
            before: resumption.before(),
        });
        self.log_connected(&hello, position.producer());
        if let (Resumption::NewEpoch { before, tail }, Some(seen)) = (&resumption, seen) {
            restarts::report(&self.context.metrics, before, *tail, seen, hello.epoch);
        }
        let item = Item::Cursor(began_at.clone());
        self.push(item, &mut open, &began_at, None).await?;
        loop {
            let received = timeout(EVENT_TIMEOUT, self.receive(&mut stream)).await;
            let received = match received.unwrap_or(Err(StreamEnd::Silent)) {
                Ok(received) => received,
                Err(StreamEnd::Status(status)) if status.code() == Code::Aborted => {
                    // A sibling's hello may come a moment later than the news of it.
                    let sibling = timeout(SIBLING_TIMEOUT, open.wait_sibling()).await;
                    let producer = Arc::clone(position.producer());
                    return Err(StreamEnd::Superseded(sibling.ok().map(|()| producer)));
                }
                Err(ended) => return Err(ended),
            };
            self.take(received, &mut position, &mut open).await?;
            // Only what passed its checks is progress.
            self.backoff.reset();
        }
    }

    async fn receive(
        &self,
        stream: &mut Streaming<bytes::Bytes>,
    ) -> Result<StreamMessage, StreamEnd> {
        let message = stream.message().await?.ok_or(StreamEnd::EndOfStream)?;
        self.context.metrics.bytes.inc_by(message.len() as u64);
        StreamMessage::decode(message).map_err(|error| {
            self.context.metrics.violations.inc();
            StreamEnd::Wire(error)
        })
    }

    /// Acts on one event after `Hello`.
    async fn take(
        &mut self,
        received: StreamMessage,
        position: &mut Position,
        open: &mut Stream,
    ) -> Result<(), StreamEnd> {
        let violation = |violation| self.violation(violation);
        let mut arrival = None;
        let item = match received {
            StreamMessage::Chunk(chunk) => {
                let header = chunk.header();
                position.chunk(header).map_err(violation)?;
                let came = Arrival {
                    accepted_unix_micros: header.accepted_unix_micros,
                    received_unix_micros: unix_micros(),
                };
                arrival = Some(came);
                let received = &self.context.metrics.received_seconds;
                received.observe(came.age(), header.count.into());
                Item::Chunk(Arc::clone(position.producer()), chunk)
            }
            StreamMessage::Event(Event::Gap(gap)) => {
                let lost = position.gap(&gap).map_err(violation)?;
                self.context.metrics.lost(gap.reason(), lost);
                open.lost(lost);
                let cursor = position.cursor();
                let (producer, epoch, reason) = (&*cursor.producer, cursor.epoch, gap.reason());
                let (first, last) = (gap.first_sequence, gap.last_sequence);
                let logged = self.gap_logged.map(|at| at.elapsed());
                if logged.is_none_or(|ago| ago >= GAP_LOG_INTERVAL) {
                    self.gap_logged = Some(Instant::now());
                    tracing::warn!(
                        producer,
                        epoch,
                        first,
                        last,
                        lost,
                        ?reason,
                        "gap: cookies lost"
                    );
                } else {
                    tracing::debug!(
                        producer,
                        epoch,
                        first,
                        last,
                        lost,
                        ?reason,
                        "gap: cookies lost"
                    );
                }
                Item::Cursor(cursor)
            }
            StreamMessage::Event(Event::Heartbeat(heartbeat)) => {
                position.heartbeat(&heartbeat).map_err(violation)?;
                return Ok(());
            }
            StreamMessage::Event(Event::Goodbye(goodbye)) => {
                return self.part(&goodbye, position, open).await;
            }
            StreamMessage::Event(Event::Hello(_)) => {
                return Err(violation(ProtocolViolation::new("hello came twice")));
            }
            StreamMessage::Event(Event::Chunk(_)) | StreamMessage::Unknown => {
                self.context.metrics.unknown_events.inc();
                return Ok(());
            }
        };
        let cursor = position.cursor();
        self.push(item, open, &cursor, arrival).await
    }

    /// Takes leave of a producer that drains. The sink says when everything of it is stored.
    async fn part(
        &self,
        goodbye: &v1::Goodbye,
        position: &Position,
        open: &mut Stream,
    ) -> Result<(), StreamEnd> {
        position
            .goodbye(goodbye)
            .map_err(|violation| self.violation(violation))?;
        let cursor = Cursor {
            complete: true,
            ..position.cursor()
        };
        let lost_in_gaps = open.lost(0);
        if lost_in_gaps > 0 {
            let (producer, sequence) = (&*cursor.producer, cursor.sequence);
            tracing::warn!(
                producer,
                sequence,
                lost_in_gaps,
                "producer drained, but some of its cookies were lost in gaps"
            );
        }
        let item = Item::Cursor(cursor.clone());
        self.push(item, open, &cursor, None).await?;
        Err(StreamEnd::Drained)
    }

    async fn push(
        &self,
        item: Item,
        open: &mut Stream,
        cursor: &Cursor,
        arrival: Option<Arrival>,
    ) -> Result<(), StreamEnd> {
        self.buffer.push(item).await?;
        if let AdvanceResult::Duplicate { is_first } = open.advance(cursor, arrival) {
            self.context.metrics.duplicate_producers.inc();
            if is_first {
                tracing::error!(
                    producer = &*cursor.producer,
                    address = %self.address(),
                    "two producers have the same id: neither can be resumed; give each its own --id"
                );
            }
        }
        Ok(())
    }

    fn address(&self) -> SocketAddr {
        self.listed.address()
    }

    fn violation(&self, violation: ProtocolViolation) -> StreamEnd {
        self.context.metrics.violations.inc();
        StreamEnd::ProtocolViolation(violation)
    }

    fn log_connected(&mut self, hello: &v1::Hello, producer: &Arc<str>) {
        let address = self.address();
        self.said = LoggedState::Connected(Arc::clone(producer));
        let (epoch, from, outcome) = (hello.epoch, hello.first_sequence, hello.outcome());
        tracing::info!(%address, %producer, epoch, from, ?outcome, "connected");
        match self.lost.take() {
            Some(lost) if lost != *producer => tracing::warn!(
                %address, %producer, before = %lost,
                "a different producer now serves this address; cookies of the previous one are unaccounted for until it reappears"
            ),
            Some(_) if outcome == ResumeOutcome::Resumed => {
                tracing::info!(%address, %producer, epoch, from, "producer reconnected; nothing lost");
            }
            Some(_) | None => {}
        }
    }
}

#[cfg(test)]
mod tests;
