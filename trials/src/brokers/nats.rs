//! NATS: core, and JetStream with one stream in files.

use anyhow::Result;
use async_nats::{
    ConnectOptions,
    jetstream::{self, consumer::pull::OrderedConfig},
};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use super::messages::{Lane, Received};

const SUBJECT: &str = "cookies";

/// Queue between the client's connection and a subscriber. It is larger than any backlog on a busy machine, so only the
/// server loses messages, never its client.
const CLIENT_MESSAGES: usize = 1 << 20;

/// Queue between a publisher and its connection, which writes queued messages together.
const PUBLISHER_MESSAGES: usize = 8192;

/// Size of the stream, which then drops its oldest messages.
const STREAM_BYTES: i64 = 1 << 30;

pub(super) async fn publish(url: &str, mut lane: Lane) -> Result<u64> {
    let options = ConnectOptions::new().client_capacity(PUBLISHER_MESSAGES);
    let client = options.connect(url).await?;
    while let Some(messages) = lane.burst().await {
        for message in messages {
            client.publish(SUBJECT, message).await?;
        }
    }
    client.flush().await?;
    Ok(lane.published())
}

pub(super) async fn subscribe(
    url: &str,
    mut received: Received,
    opened: mpsc::Sender<()>,
) -> Result<()> {
    let options = ConnectOptions::new().subscription_capacity(CLIENT_MESSAGES);
    let client = options.connect(url).await?;
    let mut messages = client.subscribe(SUBJECT).await?;
    // Until the response arrives, the subscription may not be registered.
    client.flush().await?;
    opened.send(()).await?;
    while let Some(message) = messages.next().await {
        received.message(message.payload)?;
    }
    Ok(())
}

/// Creates the stream.
pub(super) async fn create_stream(url: &str) -> Result<()> {
    let context = jetstream::new(async_nats::connect(url).await?);
    let config = jetstream::stream::Config {
        name: SUBJECT.to_owned(),
        max_bytes: STREAM_BYTES,
        ..Default::default()
    };
    context.create_stream(config).await?;
    Ok(())
}

/// Publishes, and waits for the acknowledgments of each burst.
pub(super) async fn publish_acknowledged(url: &str, mut lane: Lane) -> Result<u64> {
    let context = jetstream::new(async_nats::connect(url).await?);
    while let Some(messages) = lane.burst().await {
        let mut sent = Vec::with_capacity(messages.len());
        for message in messages {
            sent.push(context.publish(SUBJECT, message).await?);
        }
        for acknowledgment in sent {
            acknowledgment.await?;
        }
    }
    Ok(lane.published())
}

pub(super) async fn subscribe_stream(
    url: &str,
    mut received: Received,
    opened: mpsc::Sender<()>,
) -> Result<()> {
    let context = jetstream::new(async_nats::connect(url).await?);
    let stream = context.get_stream(SUBJECT).await?;
    let consumer = stream.create_consumer(OrderedConfig::default()).await?;
    let mut messages = consumer.messages().await?;
    opened.send(()).await?;
    while let Some(message) = messages.next().await {
        received.message(message?.message.payload)?;
    }
    Ok(())
}
