//! A `redis-server`, and pipelined commands to it.

use std::path::Path;

use anyhow::{Context, Result};
use bench::redis::Redis;
use bytes::Bytes;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisResult, aio::MultiplexedConnection};
use tokio::task::JoinSet;

use crate::peers::{broker::Broker, message::BURST_BYTES, publisher::Publish};

/// Starts a server that keeps nothing on disk.
pub(super) async fn start(program: &Path, folder: &Path) -> Result<Broker> {
    let redis = Redis::start(program, folder).await?;
    let address = redis.address();
    Ok(Broker::new(redis.process, format!("redis://{address}/")))
}

/// A connection whose commands may block and whose writes gather up to a burst (8 KiB by default).
pub(super) async fn connect(server: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_write_backpressure_boundary(BURST_BYTES);
    let client = Client::open(server)?;
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

/// Appends the command that carries a message.
type Command = Box<dyn Fn(&mut Pipeline, &Bytes) + Send>;

/// A connection that sends one pipeline while the next is made.
pub(super) struct Publisher {
    connection: MultiplexedConnection,
    command: Command,
    under_way: JoinSet<RedisResult<()>>,
}

impl Publisher {
    pub(super) async fn connect(
        server: &str,
        command: impl Fn(&mut Pipeline, &Bytes) + Send + 'static,
    ) -> Result<Self> {
        Ok(Self {
            connection: connect(server).await?,
            command: Box::new(command),
            under_way: JoinSet::new(),
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
        self.under_way
            .spawn(async move { pipeline.exec_async(&mut connection).await });
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        while let Some(sent) = self.under_way.join_next().await {
            sent?.context("redis refuses a command")?;
        }
        Ok(())
    }
}
