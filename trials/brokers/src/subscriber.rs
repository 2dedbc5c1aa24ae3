//! One subscriber: a connection that is reopened whenever it closes.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::Result;
use tokio::{sync::mpsc, time::sleep};

use crate::count::Count;

const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// A connection with one subscription.
pub(crate) trait Subscribe: Send + 'static {
    /// Opens the connection. Cookies published after this call are received.
    fn open(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Counts received messages until the connection closes.
    fn read(&mut self, count: &Count) -> impl Future<Output = Result<()>> + Send;
}

/// Receives the result of each subscriber's first attempt to open its connection.
pub(crate) type FirstOpen = mpsc::Sender<Result<()>>;

/// Reads, and reopens the connection after it closes.
pub(crate) async fn follow(mut reader: impl Subscribe, count: Arc<Count>, first_open: FirstOpen) {
    let first = reader.open().await;
    let mut is_open = first.is_ok();
    // A closed channel means that the process is exiting.
    first_open.send(first).await.ok();
    if !is_open {
        return;
    }
    drop(first_open);
    loop {
        if is_open {
            // The disconnect is counted; its cause does not matter.
            reader.read(&count).await.ok();
            count.disconnected();
        }
        sleep(RECONNECT_PAUSE).await;
        is_open = reader.open().await.is_ok();
    }
}
