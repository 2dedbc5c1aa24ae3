//! Redis pub/sub and Redis Streams. All subscribers read one stream, and each has its own position.

use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use launcher::redis::Redis;
use redis::{
    AsyncConnectionConfig, Client, Pipeline, RedisResult, Value,
    aio::{MultiplexedConnection, PubSub},
    cmd,
};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;

use crate::{
    count::Count,
    message::{BURST_BYTES, xread_entries},
    publisher::Publish,
    server::Server,
    subscriber::Subscribe,
};

/// Name of the channel and of the stream.
const NAME: &str = "cookies";
const FIELD: &str = "c";

/// Maximum wait of an XREAD for entries, in milliseconds.
const BLOCK_MILLIS: u32 = 1_000;

/// Position before the first entry.
const BEGINNING: &str = "0-0";

/// Starts a server that stores nothing on disk.
pub(crate) async fn start(program: &Path, dir: &Path) -> Result<Server> {
    let redis = Redis::start(program, dir).await?;
    let address = redis.address();
    Ok(Server::new(redis.process, format!("redis://{address}/")))
}

/// A connection without a response timeout. It buffers writes up to a burst, instead of the default 8 KiB.
pub(crate) async fn connect(server: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_write_backpressure_boundary(BURST_BYTES);
    let client = Client::open(server)?;
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

/// Appends the command that publishes a message.
type Command = Box<dyn Fn(&mut Pipeline, &Bytes) + Send>;

/// A connection that sends one pipeline while the next is built.
pub(crate) struct Publisher {
    connection: MultiplexedConnection,
    command: Command,
    in_flight: JoinSet<RedisResult<()>>,
}

impl Publisher {
    pub(crate) async fn connect(
        server: &str,
        command: impl Fn(&mut Pipeline, &Bytes) + Send + 'static,
    ) -> Result<Self> {
        Ok(Self {
            connection: connect(server).await?,
            command: Box::new(command),
            in_flight: JoinSet::new(),
        })
    }
}

impl Publish for Publisher {
    async fn send(&mut self, messages: Vec<Bytes>) -> Result<()> {
        let mut pipeline = Pipeline::with_capacity(messages.len());
        for message in &messages {
            (self.command)(&mut pipeline, message);
        }
        self.finish().await?;
        let mut connection = self.connection.clone();
        self.in_flight
            .spawn(async move { pipeline.exec_async(&mut connection).await });
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        while let Some(sent) = self.in_flight.join_next().await {
            sent?.context("Redis rejected a command")?;
        }
        Ok(())
    }
}

/// Publishes messages to a channel.
pub(crate) async fn channel_publisher(server: &str) -> Result<Publisher> {
    Publisher::connect(server, |pipeline, message| {
        pipeline.cmd("PUBLISH").arg(NAME).arg(&message[..]).ignore();
    })
    .await
}

/// A connection with one subscription.
pub(crate) struct ChannelReader {
    server: String,
    connection: Option<PubSub>,
}

impl ChannelReader {
    pub(crate) fn new(server: String) -> Self {
        Self {
            server,
            connection: None,
        }
    }
}

impl Subscribe for ChannelReader {
    async fn open(&mut self) -> Result<()> {
        let client = Client::open(self.server.as_str())?;
        let mut connection = client.get_async_pubsub().await?;
        connection.subscribe(NAME).await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn read(&mut self, count: &Count) -> Result<()> {
        let mut connection = self.connection.take().context("the reader is not open")?;
        let mut messages = connection.on_message();
        while let Some(message) = messages.next().await {
            count.message(Bytes::copy_from_slice(message.get_payload_bytes()));
        }
        Ok(())
    }
}

/// Publishes messages of `batch` cookies to a stream that keeps about `keep` cookies.
pub(crate) async fn stream_publisher(server: &str, keep: u64, batch: u32) -> Result<Publisher> {
    let entries = (keep / u64::from(batch)).max(1);
    Publisher::connect(server, move |pipeline, message| {
        pipeline
            .cmd("XADD")
            .arg(NAME)
            .arg("MAXLEN")
            .arg("~")
            .arg(entries)
            .arg("*")
            .arg(FIELD)
            .arg(&message[..])
            .ignore();
    })
    .await
}

/// A connection that reads the stream from its own position. The position survives reconnects.
pub(crate) struct StreamReader {
    server: String,
    connection: Option<MultiplexedConnection>,
    position: Vec<u8>,
    entries: usize,
}

impl StreamReader {
    /// Starts at the first entry: the stream is empty when subscribers open it.
    pub(crate) fn new(server: String, batch: u32) -> Self {
        Self {
            server,
            connection: None,
            position: BEGINNING.into(),
            entries: xread_entries(batch),
        }
    }

    /// Counts the entries of a response and moves the position past them.
    fn entries(&mut self, response: Value, count: &Count) -> Result<()> {
        let Value::Array(streams) = response else {
            // The XREAD timed out.
            return Ok(());
        };
        for stream in streams {
            let [_name, Value::Array(entries)] = pair(stream)? else {
                bail!("XREAD returned a stream without entries");
            };
            for entry in entries {
                let [Value::BulkString(id), Value::Array(fields)] = pair(entry)? else {
                    bail!("XREAD returned an entry without an id");
                };
                self.position = id;
                if let [_field, Value::BulkString(message)] = pair(Value::Array(fields))? {
                    count.message(Bytes::from(message));
                }
            }
        }
        Ok(())
    }
}

fn pair(value: Value) -> Result<[Value; 2]> {
    match value {
        Value::Array(values) => values
            .try_into()
            .map_err(|_| anyhow::anyhow!("Redis returned an array of unexpected length")),
        other => bail!("Redis returned {other:?} instead of an array"),
    }
}

impl Subscribe for StreamReader {
    async fn open(&mut self) -> Result<()> {
        self.connection = Some(connect(&self.server).await?);
        Ok(())
    }

    async fn read(&mut self, count: &Count) -> Result<()> {
        let mut connection = self.connection.take().context("the reader is not open")?;
        loop {
            let mut read = cmd("XREAD");
            read.arg("COUNT").arg(self.entries);
            read.arg("BLOCK").arg(BLOCK_MILLIS);
            read.arg("STREAMS").arg(NAME).arg(&self.position);
            let response = read.query_async(&mut connection).await?;
            self.entries(response, count)?;
        }
    }
}
