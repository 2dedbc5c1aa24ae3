//! Redis pub/sub.

use anyhow::{Context, Result};
use bytes::Bytes;
use redis::{Client, aio::PubSub};
use tokio_stream::StreamExt;

use super::redis_server::Publisher;
use crate::peers::{reader::Subscribe, seen::Seen};

const CHANNEL: &str = "cookies";

pub(super) async fn publisher(server: &str) -> Result<Publisher> {
    Publisher::connect(server, |pipeline, message| {
        pipeline
            .cmd("PUBLISH")
            .arg(CHANNEL)
            .arg(&message[..])
            .ignore();
    })
    .await
}

/// A connection with one subscription.
pub(super) struct Reader {
    server: String,
    connection: Option<PubSub>,
}

impl Reader {
    pub(super) fn new(server: String) -> Self {
        Self {
            server,
            connection: None,
        }
    }
}

impl Subscribe for Reader {
    async fn open(&mut self) -> Result<()> {
        let client = Client::open(self.server.as_str())?;
        let mut connection = client.get_async_pubsub().await?;
        connection.subscribe(CHANNEL).await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn read(&mut self, seen: &Seen) -> Result<()> {
        let mut connection = self.connection.take().context("is open")?;
        let mut messages = connection.on_message();
        while let Some(message) = messages.next().await {
            seen.message(Bytes::copy_from_slice(message.get_payload_bytes()));
        }
        Ok(())
    }
}
