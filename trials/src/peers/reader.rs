//! `trials peers-reader`: the subscribers of one step, in a process of their own, each with its connection and task.
//!
//! Once all are open it writes a [`ReaderLine`] ten times a second, and a last one when it is told to end.

use std::{future::Future, io::Write as _, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use bench::cpu::CpuTime;
use clap::Args;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    others, ours,
    peer::Peer,
    seen::{ReaderLine, Seen},
};

const LINE_INTERVAL: Duration = Duration::from_millis(100);
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// What a process of subscribers is told.
#[derive(Debug, Clone, Args)]
pub struct ReaderArgs {
    /// The peer.
    #[arg(long, value_enum)]
    pub peer: Peer,
    /// Where it is.
    #[arg(long)]
    pub at: String,
    /// Number of subscribers.
    #[arg(long)]
    pub subscribers: usize,
    /// Cookies a message.
    #[arg(long)]
    pub batch: u32,
    /// Most cookies kept for a subscriber.
    #[arg(long)]
    pub keep: u64,
}

/// A connection with one subscription.
pub(super) trait Subscribe {
    /// Opens it; what is published after that arrives.
    fn open(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Hands what arrives to `seen`, until the connection ends.
    fn read(&mut self, seen: &Seen) -> impl Future<Output = Result<()>> + Send;
}

/// Reads until `stop` or until nobody listens to what it writes.
///
/// # Errors
/// When a subscriber cannot be opened at the start.
pub async fn run(args: &ReaderArgs, stop: &CancellationToken) -> Result<()> {
    let all: Vec<Arc<Seen>> = (0..args.subscribers).map(|_| Arc::default()).collect();
    let (opened_tx, mut opened) = mpsc::channel(args.subscribers.max(1));
    let mut running = JoinSet::new();
    for (number, seen) in all.iter().enumerate() {
        let (seen, opened) = (Arc::clone(seen), opened_tx.clone());
        start(args, number, seen, opened, &mut running);
    }
    drop(opened_tx);
    for _ in &all {
        let first = tokio::select! {
            first = opened.recv() => first.context("a subscriber ended before it was open")?,
            () = stop.cancelled() => return Ok(()),
        };
        first.context("cannot subscribe")?;
    }
    let cpu_before = CpuTime::of_this_process();
    let write = || {
        let line = ReaderLine::of(all.iter().map(AsRef::as_ref), &cpu_before);
        let line = serde_json::to_string(&line).map_err(std::io::Error::from)?;
        writeln!(std::io::stdout(), "{line}")
    };
    let mut ticks = interval(LINE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => write()?,
            () = stop.cancelled() => break,
        }
    }
    running.shutdown().await;
    Ok(write()?)
}

/// Told once the first connection is open, or why it is not.
pub(super) type Opened = mpsc::Sender<Result<()>>;

/// Spawns subscriber `number` of the peer.
fn start(
    args: &ReaderArgs,
    number: usize,
    seen: Arc<Seen>,
    opened: Opened,
    running: &mut JoinSet<()>,
) {
    if args.peer != Peer::Ours {
        others::read(args, seen, opened, running);
        return;
    }
    let name = format!("trials-{}-{number}", std::process::id());
    let reader = ours::Reader::new(args.at.clone(), name, args.batch == 1);
    running.spawn(follow(reader, seen, opened));
}

/// Reads, and opens again what ended.
pub(super) async fn follow(mut reader: impl Subscribe + Send, seen: Arc<Seen>, opened: Opened) {
    let first = reader.open().await;
    let mut is_open = first.is_ok();
    // When nobody listens any more, the process ends.
    opened.send(first).await.ok();
    if !is_open {
        return;
    }
    drop(opened);
    loop {
        if is_open {
            // Why it ended is no matter: that it did is counted.
            reader.read(&seen).await.ok();
            seen.disconnected();
        }
        sleep(RECONNECT_PAUSE).await;
        is_open = reader.open().await.is_ok();
    }
}
