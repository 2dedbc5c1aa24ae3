//! `peers reader`: a process of subscribers, each with a connection that it opens again whenever it ends.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{interval, sleep},
};

use crate::{
    count::{Count, Counts},
    nats, ours,
    peer::Peer,
    redis,
};

const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// How often the counts are written.
pub(crate) const LINE_INTERVAL: Duration = Duration::from_millis(50);

/// What a process of subscribers is started with.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReaderArgs {
    #[arg(long, value_enum)]
    peer: Peer,
    /// Where the server is.
    #[arg(long)]
    at: String,
    #[arg(long)]
    subscribers: usize,
    /// Cookies a message.
    #[arg(long)]
    batch: u32,
}

/// A connection with one subscription.
pub(crate) trait Subscribe: Send + 'static {
    /// Opens it; what is published after that arrives.
    fn open(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Counts what arrives, until the connection ends.
    fn read(&mut self, count: &Count) -> impl Future<Output = Result<()>> + Send;
}

/// Receives one message for each subscriber: its connection is open, or why not.
type Opened = mpsc::Sender<Result<()>>;

/// Subscribes, and once all connections are open writes [`Counts`] as a JSON object a line, until it is killed.
///
/// # Errors
/// When a subscriber cannot be opened at the start.
pub(crate) async fn read(args: &ReaderArgs) -> Result<()> {
    let all: Vec<Arc<Count>> = (0..args.subscribers).map(|_| Arc::default()).collect();
    let (opened_tx, mut opened) = mpsc::channel(args.subscribers.max(1));
    let mut running = JoinSet::new();
    for (number, count) in all.iter().enumerate() {
        let (at, count, opened) = (args.at.clone(), Arc::clone(count), opened_tx.clone());
        match args.peer {
            Peer::Ours => {
                let name = format!("peers-{}-{number}", std::process::id());
                let reader = ours::Reader::new(at, name, args.batch == 1);
                running.spawn(follow(reader, count, opened))
            }
            Peer::Nats => {
                let reader = nats::Reader::new(at, Arc::clone(&count));
                running.spawn(follow(reader, count, opened))
            }
            Peer::RedisPubsub => {
                running.spawn(follow(redis::ChannelReader::new(at), count, opened))
            }
            Peer::RedisStreams => {
                let reader = redis::StreamReader::new(at, args.batch);
                running.spawn(follow(reader, count, opened))
            }
        };
    }
    drop(opened_tx);
    for _ in &all {
        let first = opened
            .recv()
            .await
            .context("a subscriber ended before it was open")?;
        first.context("cannot subscribe")?;
    }
    let mut ticks = interval(LINE_INTERVAL);
    loop {
        ticks.tick().await;
        let counts = Counts::sum(all.iter().map(AsRef::as_ref));
        println!("{}", serde_json::to_string(&counts)?);
    }
}

/// Reads, and opens again what ended.
async fn follow(mut reader: impl Subscribe, count: Arc<Count>, opened: Opened) {
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
            // Why it ended does not matter: that it did is counted.
            reader.read(&count).await.ok();
            count.disconnected();
        }
        sleep(RECONNECT_PAUSE).await;
        is_open = reader.open().await.is_ok();
    }
}
