//! The producer of this project: the load is sent over HTTP, and subscribers read its streams.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use launcher::{
    producer::{Addresses, Launch},
    programs::Process,
};
use proto::{
    client,
    v1::{Cursor, GetCookiesRequest, StartPosition, SubscribeRequest, event::Event},
    wire::{StreamMessage, decode_cookie},
};
use serde_json::Value;
use tokio_stream::StreamExt;
use tonic::Streaming;

use crate::{
    count::Count,
    publisher::{Load, Published},
    server::Server,
    subscriber::Subscribe,
};

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time that `bench load` may exceed the duration of the load.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a producer with default settings, but without an epoch history, and with a lag limit of `keep` cookies per subscriber.
pub(crate) async fn start(program: &Path, dir: &Path, keep: u64) -> Result<Server> {
    let launch = Launch {
        program,
        name: "producer".to_owned(),
        addresses: Addresses::free()?,
        dir,
        flags: vec![format!("--queue-cookies={keep}"), "--state=none".to_owned()],
    };
    let mut producer = launch.start()?;
    producer.wait_ready(READY_TIMEOUT).await?;
    Ok(Server {
        process: producer.process,
        publish_at: format!("http://{}/", producer.http),
        subscribe_at: format!("http://{}", producer.grpc),
        admin: Some(producer.admin),
    })
}

/// The value of a count in the report of `bench load --json`.
fn count(report: &Value, name: &str) -> u64 {
    let list = |parent: &Value, key: &str| parent[key].as_array().cloned().unwrap_or_default();
    let rows = list(report, "tables")
        .into_iter()
        .flat_map(|table| list(&table, "rows"));
    let mut measurements = rows.flat_map(|row| list(&row, "measurements"));
    let found = measurements.find(|it| it["name"] == name);
    #[expect(clippy::cast_possible_truncation, reason = "the value is a count")]
    let count = found.and_then(|it| it["value"].as_f64()).unwrap_or(0.0) as u64;
    count
}

/// Sends the load with `bench load`, pipelined to reduce the cost per request.
pub(crate) async fn publish(
    bin_dir: &Path,
    url: &str,
    load: Load,
    dir: &Path,
) -> Result<Published> {
    let duration = humantime::format_duration(load.duration);
    let mut args = vec![
        "load".to_owned(),
        format!("--url={url}"),
        "--connections=32".to_owned(),
        "--pipeline=32".to_owned(),
        format!("--duration={duration}"),
        "--no-report".to_owned(),
        "--json".to_owned(),
    ];
    args.extend(load.rate.map(|rate| format!("--rate={rate}")));
    let log = dir.join("load.log");
    let mut process = Process::start("bench load", &bin_dir.join("bench"), &args, &log)?;
    let status = process.wait(load.duration + LOAD_TIMEOUT).await?;
    let report: Value = serde_json::from_str(&process.last_lines(1))
        .with_context(|| format!("bench load failed ({status}): {}", process.last_lines(20)))?;
    Ok(Published {
        cookies: count(&report, "requests accepted"),
        rejected: count(&report, "errors"),
        seconds: report["seconds"].as_f64().unwrap_or(0.0),
    })
}

/// A connection with one stream, which resumes from its cursor.
pub(crate) struct Reader {
    producer: String,
    name: String,
    one_by_one: bool,
    messages: Option<Streaming<Bytes>>,
    cursor: Option<Cursor>,
}

impl Reader {
    /// A reader of chunks, or of single cookies if `one_by_one`.
    pub(crate) fn new(producer: String, name: String, one_by_one: bool) -> Self {
        Self {
            producer,
            name,
            one_by_one,
            messages: None,
            cursor: None,
        }
    }

    fn count(&mut self, message: Bytes, count: &Count) {
        if self.one_by_one {
            return match decode_cookie(&message) {
                Ok(_) => count.cookie(),
                Err(_) => count.unreadable(),
            };
        }
        let sequence = match StreamMessage::decode(message) {
            Ok(StreamMessage::Chunk(chunk)) => {
                count.chunk(&chunk);
                chunk.header().last_sequence()
            }
            Ok(StreamMessage::Event(Event::Gap(gap))) => {
                count.reported_lost(gap.last_sequence.saturating_sub(gap.first_sequence) + 1);
                gap.last_sequence
            }
            Ok(_) => return,
            Err(_) => return count.unreadable(),
        };
        if let Some(cursor) = &mut self.cursor {
            cursor.sequence = sequence;
        }
    }
}

impl Subscribe for Reader {
    async fn open(&mut self) -> Result<()> {
        let channel = client::endpoint(self.producer.clone())?.connect().await?;
        if self.one_by_one {
            let host = self.name.clone();
            let request = GetCookiesRequest {
                host,
                supports_age: true,
            };
            let stream = client::get_cookies(channel, request).await?;
            self.messages = Some(stream.into_inner());
            return Ok(());
        }
        let request = SubscribeRequest {
            subscriber: self.name.clone(),
            cursors: self.cursor.iter().cloned().collect(),
            start: StartPosition::Newest.into(),
            window_bytes: 0,
            supports_age: true,
        };
        let mut stream = client::subscribe(channel, request).await?.into_inner();
        let first = stream.message().await?.context("no hello received")?;
        let Ok(StreamMessage::Event(Event::Hello(hello))) = StreamMessage::decode(first) else {
            bail!("the first message is not Hello");
        };
        if let Some(cursor) = &self.cursor {
            ensure!(cursor.epoch == hello.epoch, "the epoch changed");
        } else {
            self.cursor = Some(Cursor {
                producer_id: hello.producer_id,
                epoch: hello.epoch,
                sequence: hello.first_sequence.saturating_sub(1),
            });
        }
        self.messages = Some(stream);
        Ok(())
    }

    async fn read(&mut self, count: &Count) -> Result<()> {
        let mut messages = self.messages.take().context("the reader is not open")?;
        while let Some(message) = messages.next().await {
            self.count(message?, count);
        }
        Ok(())
    }
}
