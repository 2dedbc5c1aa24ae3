//! The NATS broker without JetStream.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use async_nats::{Client, ConnectOptions, Event, Subscriber};
use bytes::Bytes;
use launcher::programs::{Process, free_address};
use tokio_stream::StreamExt;

use crate::{count::Count, publisher::Publish, server::Server, subscriber::Subscribe};

const START_TIMEOUT: Duration = Duration::from_secs(60);

const SUBJECT: &str = "cookies";

/// Queue between the client's connection and a subscriber task. It is larger than any backlog on a busy machine, so only
/// the server loses messages, never its client.
const CLIENT_MESSAGES: usize = 1 << 20;

/// Queue between a publisher and its connection, which writes queued messages together.
const PUBLISHER_MESSAGES: usize = 8192;

/// Starts a server with default settings, which store nothing on disk.
pub(crate) async fn start(program: &Path, dir: &Path) -> Result<Server> {
    let address = free_address()?;
    let args = [
        "--addr",
        &address.ip().to_string(),
        "--port",
        &address.port().to_string(),
    ];
    let args = args.map(str::to_owned);
    let mut process = Process::start("nats-server", program, &args, &dir.join("nats.log"))?;
    process.wait_accepting(address, START_TIMEOUT).await?;
    Ok(Server::new(process, format!("nats://{address}")))
}

/// A connection that publishes.
pub(crate) struct Publisher {
    client: Client,
}

impl Publisher {
    pub(crate) async fn connect(server: &str) -> Result<Self> {
        let options = ConnectOptions::new().client_capacity(PUBLISHER_MESSAGES);
        let client = options.connect(server).await?;
        Ok(Self { client })
    }
}

impl Publish for Publisher {
    async fn send(&mut self, messages: Vec<Bytes>) -> Result<()> {
        for message in messages {
            self.client.publish(SUBJECT, message).await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        Ok(self.client.flush().await?)
    }
}

/// A connection with one subscription. The client reconnects by itself.
pub(crate) struct Reader {
    server: String,
    count: Arc<Count>,
    /// Includes the client, whose connection closes when its last handle is dropped.
    subscribed: Option<(Client, Subscriber)>,
}

impl Reader {
    /// A reader that counts its disconnects in `count`.
    pub(crate) fn new(server: String, count: Arc<Count>) -> Self {
        Self {
            server,
            count,
            subscribed: None,
        }
    }
}

impl Subscribe for Reader {
    async fn open(&mut self) -> Result<()> {
        let count = Arc::clone(&self.count);
        let client = ConnectOptions::new()
            .subscription_capacity(CLIENT_MESSAGES)
            .event_callback(move |event| {
                if event == Event::Disconnected {
                    count.disconnected();
                }
                std::future::ready(())
            })
            .connect(&self.server)
            .await?;
        let subscriber = client.subscribe(SUBJECT).await?;
        // Until the response arrives, the subscription may not be registered.
        client.flush().await?;
        self.subscribed = Some((client, subscriber));
        Ok(())
    }

    async fn read(&mut self, count: &Count) -> Result<()> {
        let (_client, mut subscriber) = self.subscribed.take().context("the reader is not open")?;
        while let Some(message) = subscriber.next().await {
            count.message(message.payload);
        }
        Ok(())
    }
}
