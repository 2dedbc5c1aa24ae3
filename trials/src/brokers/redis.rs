//! Redis pub/sub.

use anyhow::Result;
use bytes::Bytes;
use futures_util::StreamExt as _;
use redis::{AsyncConnectionConfig, Client, Pipeline};
use tokio::sync::mpsc;

use super::messages::{Lane, Received};

const CHANNEL: &str = "cookies";

/// Bytes that a connection buffers for one write: a burst, instead of the default 8 KiB.
const WRITE_BYTES: usize = 1 << 20;

pub(super) async fn publish(url: &str, mut lane: Lane) -> Result<u64> {
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_write_backpressure_boundary(WRITE_BYTES);
    let client = Client::open(url)?;
    let connected = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connected.await?;
    while let Some(messages) = lane.burst().await {
        let mut pipeline = Pipeline::with_capacity(messages.len());
        for message in &messages {
            let command = pipeline.cmd("PUBLISH").arg(CHANNEL);
            command.arg(&message[..]).ignore();
        }
        pipeline.exec_async(&mut connection).await?;
    }
    Ok(lane.published())
}

/// Subscribes again whenever the server closes the connection because the subscriber lags.
pub(super) async fn subscribe(
    url: &str,
    mut received: Received,
    opened: mpsc::Sender<()>,
) -> Result<()> {
    loop {
        let mut connection = Client::open(url)?.get_async_pubsub().await?;
        connection.subscribe(CHANNEL).await?;
        // Nobody waits for it after the first time.
        opened.try_send(()).ok();
        let mut messages = connection.on_message();
        while let Some(message) = messages.next().await {
            received.message(Bytes::copy_from_slice(message.get_payload_bytes()))?;
        }
    }
}
