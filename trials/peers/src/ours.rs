//! A producer of this project: loaded over HTTP, read through its streams.

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
use serde::Deserialize;
use tokio_stream::StreamExt;
use tonic::Streaming;

use crate::{
    count::Count,
    peer::Server,
    publisher::{Load, Published},
    reader::Subscribe,
};

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the load may take beyond its duration.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a producer with its defaults, no record of its epochs and a queue of `keep` cookies for each subscriber.
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

/// What `bench load --json` says, as far as it is needed here.
#[derive(Debug, Deserialize)]
struct LoadReport {
    seconds: f64,
    tables: Vec<Table>,
}

#[derive(Debug, Deserialize)]
struct Table {
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    figures: Vec<Figure>,
}

#[derive(Debug, Deserialize)]
struct Figure {
    name: String,
    value: Option<f64>,
}

impl LoadReport {
    fn count(&self, name: &str) -> u64 {
        let rows = self.tables.iter().flat_map(|table| &table.rows);
        let mut figures = rows.flat_map(|row| &row.figures);
        let value = figures.find(|figure| figure.name == name);
        #[expect(clippy::cast_possible_truncation, reason = "it is a count")]
        let count = value.and_then(|figure| figure.value).unwrap_or(0.0) as u64;
        count
    }
}

/// Sends the load with `bench load`, pipelined, which makes an edge cheap per request.
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
    let report: LoadReport = serde_json::from_str(&process.last_lines(1))
        .with_context(|| format!("bench load ended ({status}): {}", process.last_lines(20)))?;
    Ok(Published {
        cookies: report.count("requests accepted"),
        refused: report.count("errors"),
        seconds: report.seconds,
    })
}

/// What arrives on a stream.
enum Messages {
    Chunks(Streaming<Bytes>),
    Cookies(Streaming<Bytes>),
}

/// A connection with one stream, which resumes where it ended.
pub(crate) struct Reader {
    producer: String,
    name: String,
    one_by_one: bool,
    messages: Option<Messages>,
    cursor: Option<Cursor>,
}

impl Reader {
    /// A reader of chunks, or of one cookie a message.
    pub(crate) fn new(producer: String, name: String, one_by_one: bool) -> Self {
        Self {
            producer,
            name,
            one_by_one,
            messages: None,
            cursor: None,
        }
    }

    fn event(&mut self, message: Bytes, count: &Count) {
        let sequence = match StreamMessage::decode(message) {
            Ok(StreamMessage::Chunk(chunk)) => {
                count.chunk(&chunk);
                chunk.header().last_sequence()
            }
            Ok(StreamMessage::Event(Event::Gap(gap))) => {
                count.told_lost(gap.last_sequence.saturating_sub(gap.first_sequence) + 1);
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
            self.messages = Some(Messages::Cookies(stream.into_inner()));
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
        let first = stream.message().await?.context("no hello")?;
        let Ok(StreamMessage::Event(Event::Hello(hello))) = StreamMessage::decode(first) else {
            bail!("the first event is not a hello");
        };
        if let Some(cursor) = &self.cursor {
            ensure!(cursor.epoch == hello.epoch, "another producer answers");
        } else {
            self.cursor = Some(Cursor {
                producer_id: hello.producer_id,
                epoch: hello.epoch,
                sequence: hello.first_sequence.saturating_sub(1),
            });
        }
        self.messages = Some(Messages::Chunks(stream));
        Ok(())
    }

    async fn read(&mut self, count: &Count) -> Result<()> {
        match self.messages.take().context("is open")? {
            Messages::Chunks(mut stream) => {
                while let Some(message) = stream.next().await {
                    self.event(message?, count);
                }
            }
            Messages::Cookies(mut stream) => {
                while let Some(message) = stream.next().await {
                    match decode_cookie(&message?) {
                        Ok(_) => count.cookie(),
                        Err(_) => count.unreadable(),
                    }
                }
            }
        }
        Ok(())
    }
}
