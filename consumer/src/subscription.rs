//! Subscription to one producer address: connects, resumes, checks sequence numbers, and pushes received items into the [`buffer`].
//!
//! Reading waits only while the buffer is full. A lost stream is reopened with backoff. Messages after `Hello` reset the
//! backoff if the stream has lasted for some seconds. The stream resumes after the last *pushed* item. After a restart of this
//! process, it resumes from the cursors in the store.
//!
//! This module logs only state changes (connected, disconnected, rejected), not connection attempts.

pub mod buffer;
mod confirm;
mod connect;
pub mod discovery;
pub mod restarts;
pub mod sequence;
mod stream_end;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use proto::{
    limits::HEARTBEAT_MAX,
    units::{Sequence, UnixMicros},
    v1::{self, ResumeOutcome, TimesToLive, event::Event},
    wire::StreamMessage,
};
use runtime::connect::{Network, credentials::Security};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Streaming};

use crate::{
    backoff::{Backoff, DELAY_MAX, jittered},
    batch::Cursor,
    clock,
    config::ProducerUrl,
    deletions::Deletions,
    metrics,
    producers::{AddressGuard, AdvanceResult, Producers, StreamGuard, StreamStart},
    recovery::{self, Hole},
    ttl::Ttls,
};
use buffer::{BufferWriter, Item};
pub(crate) use confirm::AppliedPosition;
use confirm::Confirmations;
use restarts::Restart;
use sequence::{ProtocolViolation, StreamPosition};
use stream_end::StreamEnd;

/// Maximum time from the connection attempt to `Hello`.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time without an event: three heartbeat intervals.
const EVENT_TIMEOUT: Duration = HEARTBEAT_MAX.saturating_mul(3);

/// Time to detect that a stream was closed in favor of a sibling: a stream of the same producer at another address.
const SIBLING_TIMEOUT: Duration = Duration::from_secs(1);

/// Minimum time between two gap warnings. Further gaps are logged at `debug`; all are counted.
const GAP_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Duration of a stream after which its messages reset the backoff.
const PROGRESS_TIME: Duration = Duration::from_secs(5);

/// Minimum wait for a heartbeat, in microseconds. After a shorter wait, it may come from a buffer of the connection.
const HEARTBEAT_WAIT_MICROS: u64 = 50_000;

/// Shared by all subscriptions of a process.
#[derive(Debug)]
pub struct Context {
    /// The subscriber name on every producer.
    pub name: String,
    /// Minimum number of producers that share the receive windows.
    pub producers_min: usize,
    /// The network to the producers.
    pub network: Arc<dyn Network>,
    /// TLS and authentication.
    pub security: Security,
    /// The table of producers.
    pub producers: Producers,
    /// Deletions, whose effect is confirmed to the producers.
    pub deletions: Deletions,
    /// TTLs, which reports of the producers may shorten.
    pub ttls: Ttls,
    /// Whether gaps are recovered from an archive.
    pub archive: recovery::Status,
    /// Metrics of subscriptions.
    pub metrics: metrics::Subscription,
}

/// Keeps a stream open to one address; see [`Subscription::run`].
#[derive(Debug)]
pub struct Subscription {
    context: Arc<Context>,
    producer: ProducerUrl,
    origin: String,
    address: AddressGuard,
    buffer: BufferWriter,
    /// Whether a host name still resolves to the address.
    is_resolved: watch::Receiver<bool>,
    stop: CancellationToken,
    backoff: Backoff,
    logged: LoggedState,
    /// The producer whose stream from this address was last lost.
    lost: Option<Arc<str>>,
    /// When a gap was last logged.
    gap_logged: Option<Instant>,
}

/// The state of this address that was last logged.
#[derive(Debug, PartialEq, Eq)]
enum LoggedState {
    Nothing,
    /// Connected to this producer.
    Connected(Arc<str>),
    /// Disconnected for this reason.
    Down(String),
}

impl Subscription {
    /// A subscription to `address`, which `producer` resolves to.
    pub fn new(
        context: Arc<Context>,
        producer: &ProducerUrl,
        address: SocketAddr,
        buffer: BufferWriter,
        is_resolved: watch::Receiver<bool>,
        stop: CancellationToken,
    ) -> Self {
        let origin = producer.to_string();
        let address = context.producers.register(address, &origin);
        Self {
            context,
            origin,
            producer: producer.clone(),
            address,
            buffer,
            is_resolved,
            stop,
            backoff: Backoff::default(),
            logged: LoggedState::Nothing,
            lost: None,
            gap_logged: None,
        }
    }

    /// Reads until `stop` is cancelled, or until the stream ends after the address is no longer resolved.
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
            let mut is_resolved = self.is_resolved.clone();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = is_resolved.wait_for(|is_resolved| !is_resolved) => {
                    tracing::info!(address = %self.address(), "unsubscribed; the host name no longer resolves to this address");
                    return;
                }
                () = self.wait_to_retry(&ended) => {}
            }
        }
    }

    /// Logs the end of a stream and waits until the next attempt.
    async fn wait_to_retry(&mut self, ended: &StreamEnd) {
        self.log_disconnected(ended);
        match ended {
            StreamEnd::Superseded(Some(producer)) => {
                // The other address reports the TTLs of this producer.
                self.report_ttls(&TimesToLive::default());
                loop {
                    self.context.producers.wait_released(producer).await;
                    sleep(jittered(DELAY_MAX)).await;
                    if self.context.producers.streams(producer) == 0 {
                        return;
                    }
                }
            }
            StreamEnd::Superseded(None) => sleep(jittered(DELAY_MAX)).await,
            _ => sleep(self.backoff.delay()).await,
        }
    }

    fn log_disconnected(&mut self, ended: &StreamEnd) {
        let (address, origin) = (self.address(), &self.origin);
        let why = ended.to_string();
        self.address.set_error(&why);
        let previous = std::mem::replace(&mut self.logged, LoggedState::Down(why.clone()));
        match (previous, ended) {
            (LoggedState::Down(previous), _) if previous == why => {}
            (_, StreamEnd::Superseded(Some(producer))) => {
                tracing::info!(%address, %producer, "standing by; a stream from this producer is already open through another address");
            }
            (_, StreamEnd::Superseded(None)) => {
                tracing::warn!(%address, name = self.context.name, "another process uses the name of this consumer; give each consumer its own --name");
            }
            (_, StreamEnd::ProtocolViolation(_) | StreamEnd::Wire(_)) => {
                tracing::warn!(%address, why, "closed the stream because of an invalid message, retrying");
            }
            (_, StreamEnd::Drained) => tracing::info!(%address, "producer drained"),
            (LoggedState::Connected(producer), _) => {
                let cursor = self.context.producers.cursor(&producer);
                let (epoch, sequence) = cursor.map_or((0, 0), |it| (it.epoch.0, it.sequence.0));
                tracing::warn!(
                    %address, %producer, epoch, sequence, why,
                    "connection to producer lost, retrying; until it is restored, cookies after this sequence number are unaccounted for"
                );
                self.lost = Some(producer);
            }
            (LoggedState::Nothing, _) => {
                tracing::warn!(%address, origin, why, "no stream from this address, retrying")
            }
            (LoggedState::Down(_), _) => {
                tracing::info!(%address, origin, why, "no stream from this address, retrying")
            }
        }
    }

    /// Opens a stream and reads it to its end.
    async fn stream(&mut self) -> Result<std::convert::Infallible, StreamEnd> {
        let cursors = self.context.producers.cursors();
        let handshake = timeout(HELLO_TIMEOUT, self.handshake(&cursors)).await;
        let timed_out = |_| StreamEnd::Unreachable(format!("no response for {HELLO_TIMEOUT:?}"));
        let (hello, mut stream, (channel, connector), sent) = handshake.map_err(timed_out)??;
        let (mut position, new_epoch) = StreamPosition::begin(&hello, &cursors)
            .map_err(|violation| self.violation(violation))?;
        let start = position.cursor();
        let (mut guard, observed) = self.address.open_stream(StreamStart {
            at: &start,
            newest: Sequence(hello.next_sequence.saturating_sub(1)),
            previous: new_epoch.as_ref().map(|it| &it.previous),
        });
        let producers = &self.context.producers;
        producers.measure_clock(position.producer(), sent, UnixMicros(hello.unix_micros));
        producers.wait_measured().await;
        self.log_connected(&hello, position.producer());
        let restart = new_epoch.zip(observed).map(|(new, observed)| Restart {
            previous: new.previous,
            tail: new.tail,
            observed,
            new_epoch: start.epoch,
        });
        let has_archive = self.context.archive.has_archive();
        let item = Item::begin(restart, &start, &self.context.metrics, has_archive);
        self.push(item, &mut guard, &start, None).await?;
        let confirmations = Confirmations {
            context: Arc::clone(&self.context),
            channel,
            connector,
            address: self.address(),
            producer: Arc::clone(position.producer()),
            epoch: start.epoch,
        };
        // Ends with the stream.
        let mut tasks = JoinSet::new();
        tasks.spawn(confirmations.run());
        let (mut has_event, opened) = (false, Instant::now());
        loop {
            let began = clock::now();
            let received = timeout(EVENT_TIMEOUT, self.receive(&mut stream)).await;
            let received = match received.unwrap_or(Err(StreamEnd::Silent(EVENT_TIMEOUT))) {
                Ok(received) => received,
                Err(StreamEnd::Status(status)) if status.code() == Code::Aborted => {
                    // The sibling's `Hello` may arrive a moment after this status.
                    let sibling = timeout(SIBLING_TIMEOUT, guard.wait_sibling()).await;
                    let producer = Arc::clone(position.producer());
                    return Err(StreamEnd::Superseded(sibling.ok().map(|()| producer)));
                }
                Err(ended) => return Err(ended),
            };
            let is_ttls = matches!(&received, StreamMessage::Event(Event::TimesToLive(_)));
            if !std::mem::replace(&mut has_event, true) && !is_ttls {
                // This producer reports no TTLs. The previous one at this address may have reported some.
                self.report_ttls(&TimesToLive::default());
            }
            let handled = self.handle(received, began, &mut position, &mut guard);
            handled.await?;
            // Otherwise, a faulty producer that ends each stream would be called without pauses.
            if opened.elapsed() >= PROGRESS_TIME {
                self.backoff.reset();
            }
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

    /// Handles one message after `Hello`. The wait for it began at `began`.
    async fn handle(
        &mut self,
        received: StreamMessage,
        began: UnixMicros,
        position: &mut StreamPosition,
        guard: &mut StreamGuard,
    ) -> Result<(), StreamEnd> {
        let violation = |violation| self.violation(violation);
        let mut accepted = None;
        let item = match received {
            StreamMessage::Chunk(chunk) => {
                let header = chunk.header();
                position.chunk(header).map_err(violation)?;
                let producers = &self.context.producers;
                producers.limit_clock(position.producer(), header.accepted);
                accepted = Some(header.accepted);
                let age = clock::now().since(header.accepted);
                let received = &self.context.metrics.received_seconds;
                received.observe(Duration::from_micros(age), header.count.into());
                Item::Chunk(Arc::clone(position.producer()), chunk)
            }
            StreamMessage::Event(Event::Gap(gap)) => {
                let lost = position.gap(&gap).map_err(violation)?;
                let is_recovered = self.context.archive.has_archive();
                if !is_recovered {
                    self.context.metrics.add_lost(gap.reason(), lost);
                }
                guard.add_lost(lost, Sequence(gap.last_sequence));
                let cursor = position.cursor();
                let (producer, epoch, reason) = (&*cursor.producer, cursor.epoch.0, gap.reason());
                let (first, last) = (gap.first_sequence, gap.last_sequence);
                macro_rules! log {
                    ($level:ident, $message:literal) => {
                        tracing::$level!(producer, epoch, first, last, lost, ?reason, $message)
                    };
                }
                let logged = self.gap_logged.map(|at| at.elapsed());
                let is_due = logged.is_none_or(|ago| ago >= GAP_LOG_INTERVAL);
                if is_due {
                    self.gap_logged = Some(Instant::now());
                }
                match (is_due, is_recovered) {
                    (true, false) => log!(warn, "gap: cookies lost"),
                    (true, true) => log!(info, "gap: reading its cookies from the archive"),
                    (false, false) => log!(debug, "gap: cookies lost"),
                    (false, true) => log!(debug, "gap: reading its cookies from the archive"),
                }
                if is_recovered {
                    Item::Hole(Hole::gap(&cursor, first..=last), cursor)
                } else {
                    Item::Cursor(cursor)
                }
            }
            StreamMessage::Event(Event::Heartbeat(heartbeat)) => {
                position.heartbeat(&heartbeat).map_err(violation)?;
                // A heartbeat from a buffer may be older than the cookies that follow it.
                if clock::now().since(began) >= HEARTBEAT_WAIT_MICROS {
                    self.report_duplicate(guard.caught_up(began), position.producer());
                }
                return Ok(());
            }
            StreamMessage::Event(Event::Goodbye(goodbye)) => {
                return self.handle_goodbye(&goodbye, position, guard).await;
            }
            StreamMessage::Event(Event::TimesToLive(ttls)) => {
                self.report_ttls(&ttls);
                return Ok(());
            }
            StreamMessage::Event(Event::Hello(_)) => {
                return Err(violation(ProtocolViolation::new("a second Hello message")));
            }
            StreamMessage::Event(Event::Chunk(_) | Event::EpochEnds(_))
            | StreamMessage::Unknown => {
                self.context.metrics.unknown_events.inc();
                return Ok(());
            }
        };
        let cursor = position.cursor();
        self.push(item, guard, &cursor, accepted).await
    }

    /// Handles the end of a draining producer. The sink logs when all its cookies are stored.
    async fn handle_goodbye(
        &self,
        goodbye: &v1::Goodbye,
        position: &StreamPosition,
        guard: &mut StreamGuard,
    ) -> Result<(), StreamEnd> {
        position
            .goodbye(goodbye)
            .map_err(|violation| self.violation(violation))?;
        let cursor = Cursor {
            complete: true,
            ..position.cursor()
        };
        let lost_in_gaps = guard.add_lost(0, Sequence(0));
        if lost_in_gaps > 0 {
            let (producer, sequence) = (&*cursor.producer, cursor.sequence.0);
            tracing::warn!(
                producer,
                sequence,
                lost_in_gaps,
                "producer drained, but some of its cookies were lost in gaps"
            );
        }
        let item = Item::Cursor(cursor.clone());
        self.push(item, guard, &cursor, None).await?;
        Err(StreamEnd::Drained)
    }

    async fn push(
        &self,
        item: Item,
        guard: &mut StreamGuard,
        cursor: &Cursor,
        accepted: Option<UnixMicros>,
    ) -> Result<(), StreamEnd> {
        self.buffer.push(item).await?;
        self.report_duplicate(guard.advance(cursor, accepted), &cursor.producer);
        Ok(())
    }

    fn report_duplicate(&self, result: AdvanceResult, producer: &str) {
        let AdvanceResult::DuplicateId { is_first } = result else {
            return;
        };
        self.context.metrics.duplicate_producers.inc();
        if is_first {
            tracing::error!(
                producer,
                address = %self.address(),
                "two producers have the same id, so their streams cannot be resumed; give each producer its own --id"
            );
        }
    }

    fn report_ttls(&self, ttls: &TimesToLive) {
        if self.context.ttls.report(self.address(), ttls) {
            let (address, dsps) = (self.address(), ttls.dsps.len());
            tracing::info!(%address, dsps, "times to live changed by a producer's contracts");
        }
    }

    fn address(&self) -> SocketAddr {
        self.address.address()
    }

    fn violation(&self, violation: ProtocolViolation) -> StreamEnd {
        self.context.metrics.violations.inc();
        StreamEnd::ProtocolViolation(violation)
    }

    fn log_connected(&mut self, hello: &v1::Hello, producer: &Arc<str>) {
        let address = self.address();
        self.logged = LoggedState::Connected(Arc::clone(producer));
        let (epoch, from, outcome) = (hello.epoch, hello.first_sequence, hello.outcome());
        tracing::info!(%address, %producer, epoch, from, ?outcome, "connected");
        match self.lost.take() {
            Some(lost) if lost != *producer => tracing::warn!(
                %address, %producer, previous = %lost,
                "a different producer now serves this address; cookies of the previous producer are unaccounted for until it reappears"
            ),
            Some(_) if outcome == ResumeOutcome::Resumed => {
                tracing::info!(%address, %producer, epoch, from, "producer reconnected; nothing lost");
            }
            Some(_) | None => {}
        }
    }
}

impl Drop for Subscription {
    /// Withdraws the TTL report of an address that is no longer resolved.
    fn drop(&mut self) {
        let address = self.address();
        self.context.ttls.report(address, &TimesToLive::default());
    }
}

#[cfg(test)]
mod tests;
