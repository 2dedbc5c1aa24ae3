//! What reads from a system: a connection with one subscription, opened again whenever it ends.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::Result;
use clap::Args;
use tokio::{sync::mpsc, time::sleep};

use super::{peer::Peer, seen::Seen};

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

/// Told once the first connection is open, or why it is not.
pub(super) type Opened = mpsc::Sender<Result<()>>;

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
            // Why it ended does not matter: that it did is counted.
            reader.read(&seen).await.ok();
            seen.disconnected();
        }
        sleep(RECONNECT_PAUSE).await;
        is_open = reader.open().await.is_ok();
    }
}
