//! Redis Streams: one stream, each subscriber with its own position.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use redis::{Value, aio::MultiplexedConnection, cmd};

use super::redis_server::{self, Publisher};
use crate::peers::{message::xread_entries, reader::Subscribe, seen::Seen};

const STREAM: &str = "cookies";
const FIELD: &str = "c";

/// How long an XREAD waits for something to come.
const BLOCK_MILLIS: u32 = 1_000;

/// Before the first entry.
const BEGINNING: &str = "0-0";

/// Publishes messages of `batch` cookies to a stream that keeps about `keep` cookies.
pub(super) async fn publisher(server: &str, keep: u64, batch: u32) -> Result<Publisher> {
    let entries = (keep / u64::from(batch)).max(1);
    Publisher::connect(server, move |pipeline, message| {
        pipeline
            .cmd("XADD")
            .arg(STREAM)
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

/// A connection that reads the stream from a position of its own, which outlives the connection.
pub(super) struct Reader {
    server: String,
    connection: Option<MultiplexedConnection>,
    position: Vec<u8>,
    entries: usize,
}

impl Reader {
    /// Begins with the first entry: the stream is empty when subscribers open it.
    pub(super) fn new(server: String, batch: u32) -> Self {
        Self {
            server,
            connection: None,
            position: BEGINNING.into(),
            entries: xread_entries(batch),
        }
    }

    /// Counts the entries of an answer and moves the position past them.
    fn entries(&mut self, answer: Value, seen: &Seen) -> Result<()> {
        let Value::Array(streams) = answer else {
            // Nothing came in time.
            return Ok(());
        };
        for stream in streams {
            let [_name, Value::Array(entries)] = pair(stream)? else {
                bail!("a stream without entries");
            };
            for entry in entries {
                let [Value::BulkString(id), Value::Array(fields)] = pair(entry)? else {
                    bail!("an entry without an id");
                };
                self.position = id;
                if let [_field, Value::BulkString(message)] = pair(Value::Array(fields))? {
                    seen.message(Bytes::from(message));
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
            .map_err(|_| anyhow::anyhow!("an answer of another form")),
        other => bail!("{other:?} is not an array"),
    }
}

impl Subscribe for Reader {
    async fn open(&mut self) -> Result<()> {
        self.connection = Some(redis_server::connect(&self.server).await?);
        Ok(())
    }

    async fn read(&mut self, seen: &Seen) -> Result<()> {
        let mut connection = self.connection.take().context("is open")?;
        loop {
            let mut read = cmd("XREAD");
            read.arg("COUNT").arg(self.entries);
            read.arg("BLOCK").arg(BLOCK_MILLIS);
            read.arg("STREAMS").arg(STREAM).arg(&self.position);
            let answer = read.query_async(&mut connection).await?;
            self.entries(answer, seen)?;
        }
    }
}
