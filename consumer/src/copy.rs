//! Fills a new node from the stores of others (`--copy-from`), while it already reads from the producers.
//!
//! 1. The streams of the producers are open. The other node has stored everything up to their start, so no cookie is missing.
//! 2. The other node's deletions are copied. Until then, delayed cookies of streams are rejected.
//! 3. Its cookies are copied in pages, with their original times, through the buffer and the sink. A page does not contain
//!    cookies that the other node has deleted; cookies that were deleted since are rejected here.
//! 4. Its deletions are copied again, because this node may have missed some between the start of a stream and step 2. Then
//!    its floor becomes the floor of this node.
//!
//! The floor of a table of deletions covers all older cookies from streams. It does not cover stored ones, so it applies to
//! copied cookies only after step 4.
//!
//! The position of the last durable page is stored. A restarted consumer continues there, and repeats steps 1 and 2. If a node
//! fails, the next one continues, from the start if its kind of store differs. Writing a cookie twice changes nothing.
//!
//! Memory: two pages, and `IN_FLIGHT_RECORDS` that are not yet durable. This also limits the delay of cookies from producers,
//! which share the buffer.

mod begin;
mod client;
mod progress;
pub mod protocol;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use proto::{
    units::{DspId, UnixMicros},
    wire::{ChunkRef, cookie_dsp},
};
use runtime::{connect::Network, reload::Reloader, token};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{
    client::NodeClient,
    progress::Progress,
    protocol::{COOKIES_PATH, DELETIONS_PATH},
};
use crate::{
    backoff::Backoff,
    config::ProducerUrl,
    deletions::Deletions,
    health::Health,
    store::{Copies, Upkeep},
    subscription::buffer::{BufferWriter, Item},
};

/// Maximum number of records in the sink that are not yet durable.
const IN_FLIGHT_RECORDS: u64 = 65_536;

/// Maximum time to wait for the streams of all producers: an address may lead to no producer.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(30);

/// Time after which a follower of an archive has heard all producers: each archives a message every second.
const FOLLOW_TIME: Duration = Duration::from_secs(10);

/// Maximum time until another node has stored what the producers sent before this node's streams began.
const COMPLETE_TIMEOUT: Duration = Duration::from_secs(60);

/// Failed attempts in a row after which the next node is tried.
const ATTEMPTS_MAX: usize = 3;

/// Intervals of polls, of stored positions and status updates, and of log lines.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Fills the store of this node.
#[derive(Debug)]
pub struct Copier {
    /// The nodes to copy, in order of preference.
    pub nodes: Vec<ProducerUrl>,
    /// The token for them.
    pub token: Option<Arc<Reloader<token::File>>>,
    /// Maximum number of records per second.
    pub rows_per_second: usize,
    /// Random id of this process, by which it recognizes itself.
    pub process: u64,
    /// The network to the nodes.
    pub network: Arc<dyn Network>,
    /// The position in this store.
    pub copies: Arc<dyn Copies>,
    /// Stores the floor.
    pub upkeep: Arc<dyn Upkeep>,
    /// The table of deletions.
    pub deletions: Deletions,
    /// Shows the progress, and knows the producers.
    pub health: Arc<Health>,
    /// Input of the sink.
    pub buffer: BufferWriter,
    /// Number of records that are durable.
    pub durable: watch::Receiver<u64>,
}

/// A copy under way.
#[derive(Debug)]
pub struct Copying {
    copier: Copier,
    progress: Progress,
    /// Records passed to the sink.
    pushed: u64,
    /// Progress at a number of records, when these are durable.
    unsaved: VecDeque<(u64, Progress)>,
    saved: Instant,
    /// When the next record may be passed on.
    next_push: Instant,
    /// Approximate number of cookies of the other node.
    total: u64,
    /// Time, number of records, and rate at the last log line.
    logged: (Instant, u64, u64),
    /// The last error that was logged.
    error: String,
}

impl Copying {
    /// Copies until the store is filled, and then waits for `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.copy() => {}
        }
        // The buffer ends when it has no writer.
        drop(self);
        stop.cancelled().await;
    }

    async fn copy(&mut self) {
        self.show("waiting for the streams of the producers".to_owned());
        self.wait_streams().await;
        let nodes = self.copier.nodes.clone();
        for node in nodes.iter().cycle() {
            let mut backoff = Backoff::new(POLL_INTERVAL * 5, LOG_INTERVAL);
            let mut failures = 0;
            while failures < ATTEMPTS_MAX {
                let before = self.progress.next.clone();
                let Err(error) = self.copy_node(node).await else {
                    return;
                };
                // A retry begins behind the last page whose records are durable.
                drop(self.save().await);
                self.unsaved.clear();
                if self.progress.next != before {
                    (failures, backoff) = (0, Backoff::new(POLL_INTERVAL * 5, LOG_INTERVAL));
                }
                failures += 1;
                let why = format!("{node}: {error:#}");
                self.show(format!("waiting: {why}"));
                if self.error != why {
                    tracing::warn!(%node, error = format!("{error:#}"), "failed to copy from a node, retrying");
                }
                self.error = why;
                sleep(backoff.delay()).await;
            }
        }
    }

    /// Copies one node, from the position reached.
    async fn copy_node(&mut self, node: &ProducerUrl) -> Result<()> {
        let token = self.copier.token.clone();
        let mut client = NodeClient::connect(&*self.copier.network, node, token).await?;
        self.wait_complete(&mut client).await?;
        if !std::mem::take(&mut self.error).is_empty() || self.pushed == 0 {
            let (cookies, copied) = (self.total, self.progress.copied());
            tracing::info!(%node, cookies, copied, "filling this node from another");
        }
        self.copy_deletions(&mut client).await?;
        self.copy_cookies(&mut client, node).await?;
        let floor = self.copy_deletions(&mut client).await?;
        // Queued cookies are older than the floor.
        self.wait_queue().await;
        let floor = self.copier.deletions.floor().max(floor);
        if floor > UnixMicros::NONE {
            self.copier.upkeep.remove_deletions_until(floor).await?;
        }
        let copied = self.progress.copied();
        self.progress.finished = Some(format!("{copied} cookies from {node}"));
        self.save().await?;
        self.copier.deletions.end_copy();
        tracing::info!(%node, cookies = copied, "filled this node from another; comparing counts");
        if let Err(error) = self.finish().await {
            tracing::warn!(%error, "failed to compare counts");
            self.show("finished; counts were not compared".to_owned());
        }
        Ok(())
    }

    /// Waits until the producers of all known addresses have open streams, whose start is known.
    async fn wait_streams(&self) {
        let producers = self.copier.health.producers();
        let began = Instant::now();
        loop {
            let snapshot = producers.snapshot();
            let addresses = snapshot.addresses;
            let mut known = snapshot.producers.values();
            let is_following = addresses.is_empty() && known.any(|it| it.streams > 0);
            if is_following && began.elapsed() >= FOLLOW_TIME {
                return;
            }
            let is_open =
                |id: &Arc<str>| producers.streams(id) > 0 && producers.cursor(id).is_some();
            let mut ids = addresses.values().map(|it| it.producer.as_ref());
            if !addresses.is_empty() && ids.all(|id| id.is_some_and(is_open)) {
                return;
            }
            if began.elapsed() > STREAMS_TIMEOUT {
                tracing::warn!(
                    "not connected to all producers; what a producer accepts before this node connects to it may be missing here"
                );
                return;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the node has stored everything that the producers sent before this node's streams began.
    async fn wait_complete(&mut self, client: &mut NodeClient) -> Result<()> {
        let received = self.copier.health.producers().cursors();
        let end = Instant::now() + COMPLETE_TIMEOUT;
        loop {
            let state = client.state().await?;
            ensure!(
                state.process != self.copier.process,
                "this address is that of this node itself; name another node in --copy-from"
            );
            let (_, deletions_max) = self.copier.deletions.size();
            ensure!(
                state.deletions <= deletions_max,
                "the node has {} deletions, but this one only memory for {deletions_max}; increase --deletion-bytes",
                state.deletions
            );
            self.total = state.cookies;
            self.progress.begin_order(&state.order);
            let Some(missing) = received.iter().find(|cursor| !state.has(cursor)) else {
                return Ok(());
            };
            ensure!(
                Instant::now() < end,
                "the node lacks cookies of producer {}; check that it reads from the same producers",
                missing.producer
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Copies the deletions, and returns the node's floor.
    async fn copy_deletions(&mut self, client: &mut NodeClient) -> Result<UnixMicros> {
        let mut next = Some(String::new());
        let mut floor = UnixMicros::NONE;
        while let Some(position) = next {
            let page = client.page(DELETIONS_PATH, &position).await?;
            for chunk in page.chunks {
                check(&chunk)?;
                self.push(chunk).await?;
                // One at a time, because each deletion takes several writes.
                self.wait_durable(self.pushed).await?;
            }
            floor = page.floor;
            next = page.next;
        }
        self.copier.deletions.raise_copied_floor(floor);
        Ok(floor)
    }

    /// Copies the cookies from the position reached. Reads a page while the last one is passed to the sink.
    async fn copy_cookies(&mut self, client: &mut NodeClient, node: &ProducerUrl) -> Result<()> {
        let mut reached = self.progress.clone();
        let mut page = match &reached.next {
            Some(position) => Some(client.page(COOKIES_PATH, position).await?),
            None => None,
        };
        while let Some(now) = page {
            let following = async {
                match &now.next {
                    Some(position) => client.page(COOKIES_PATH, position).await.map(Some),
                    None => Ok(None),
                }
            };
            let (pushed, following) =
                tokio::join!(self.push_page(now.chunks, &mut reached), following);
            pushed?;
            reached.next = now.next;
            self.unsaved.push_back((self.pushed, reached.clone()));
            self.report(node, reached.copied());
            page = following?;
        }
        self.wait_durable(self.pushed).await?;
        self.save().await
    }

    async fn push_page(&mut self, chunks: Vec<ChunkRef>, reached: &mut Progress) -> Result<()> {
        for chunk in chunks {
            for dsp_id in check(&chunk)? {
                *reached.cookies.entry(dsp_id.0).or_default() += 1;
            }
            self.push(chunk).await?;
        }
        Ok(())
    }

    /// Passes a chunk to the sink when the rate, the sink and the retry queue permit it.
    async fn push(&mut self, chunk: ChunkRef) -> Result<()> {
        let records = u64::from(chunk.header().count);
        self.wait_queue().await;
        self.wait_durable(self.pushed.saturating_sub(IN_FLIGHT_RECORDS))
            .await?;
        sleep_until(self.next_push).await;
        let nanos = records * 1_000_000_000 / self.copier.rows_per_second as u64;
        self.next_push = self.next_push.max(Instant::now()) + Duration::from_nanos(nanos);
        self.pushed += records;
        let item = Item::Copied(chunk, self.pushed);
        self.copier.buffer.push(item).await?;
        if self.saved.elapsed() >= SAVE_INTERVAL {
            self.save().await?;
        }
        Ok(())
    }

    /// Waits until this number of records is durable.
    async fn wait_durable(&mut self, records: u64) -> Result<()> {
        let durable = self.copier.durable.wait_for(|durable| *durable >= records);
        durable.await.context("the sink has ended")?;
        Ok(())
    }

    /// Waits until the retry queue is empty. Its size is limited, and more cookies would become dead letters.
    async fn wait_queue(&self) {
        while let Some(dsp_id) = self.copier.deletions.queued_dsps().first() {
            self.show(format!("waiting for the retry queue of DSP {dsp_id}"));
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// The DSPs of the records of a chunk.
///
/// # Errors
/// If its header does not state their number.
fn check(chunk: &ChunkRef) -> Result<Vec<DspId>> {
    let dsps = chunk.encoded_cookies().map(|encoded| cookie_dsp(encoded?));
    let dsps: Vec<DspId> = dsps.collect::<Result<_, _>>().context("invalid page")?;
    if dsps.len() != chunk.header().count as usize {
        bail!("invalid page: the number of records differs from the header");
    }
    Ok(dsps)
}
