//! A producer of this project: loaded over HTTP, read through its streams.

use std::{num::NonZeroUsize, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use bench::{
    load,
    producer::{Addresses, Launch},
    traffic::Traffic,
};
use bytes::Bytes;
use proto::{
    client,
    v1::{Cursor, GetCookiesRequest, StartPosition, SubscribeRequest, event::Event},
    wire::{Received, decode_cookie},
};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use super::{
    broker::Broker,
    publisher::{PublisherArgs, PublisherLine},
    reader::Subscribe,
    seen::Seen,
};

const READY_PATIENCE: Duration = Duration::from_secs(30);

/// Connections of the load, and requests without an answer on each: what makes an edge cheap per request.
pub(super) const CONNECTIONS: NonZeroUsize = NonZeroUsize::new(32).expect("is not zero");
pub(super) const PIPELINE: NonZeroUsize = NonZeroUsize::new(32).expect("is not zero");

/// Starts a producer with its defaults and a queue of `keep` cookies for each subscriber.
pub(super) async fn start(program: &Path, folder: &Path, keep: u64) -> Result<Broker> {
    let launch = Launch {
        program,
        name: "producer".to_owned(),
        addresses: Addresses::free()?,
        folder,
        flags: vec![
            format!("--queue-cookies={keep}"),
            "--id=trials-peers".to_owned(),
            format!("--state={}", folder.display()),
        ],
    };
    let mut producer = launch.start()?;
    producer.wait_ready(READY_PATIENCE).await?;
    let broker = Broker::new(producer.process, format!("http://{}/", producer.http));
    Ok(broker
        .with_subscribers_at(format!("http://{}", producer.grpc))
        .with_admin_at(producer.admin))
}

/// Sends the load, as `bench load` does.
pub(super) async fn publish(
    args: &PublisherArgs,
    stop: &CancellationToken,
) -> Result<PublisherLine> {
    let url = args.to.parse().context("is not a URL")?;
    let mut plan = load::Plan::new(url, Traffic::new(args.seed, None));
    plan.connections = CONNECTIONS;
    plan.pipeline = Some(PIPELINE);
    plan.duration = Some(args.duration);
    plan.schedule = args.rate.map(load::Profile::constant);
    let outcome = load::run(&plan, stop).await?;
    Ok(PublisherLine {
        published: outcome.accepted,
        refused: outcome.errors.total,
        seconds: outcome.seconds,
        cpu_seconds: outcome.cpu_seconds.user + outcome.cpu_seconds.system,
    })
}

/// What arrives on a stream.
enum Messages {
    Chunks(Streaming<Bytes>),
    Cookies(Streaming<Bytes>),
}

/// A connection with one stream, which resumes where it ended.
pub(super) struct Reader {
    producer: String,
    name: String,
    one_by_one: bool,
    messages: Option<Messages>,
    cursor: Option<Cursor>,
}

impl Reader {
    /// A reader of chunks, or of one cookie a message.
    pub(super) fn new(producer: String, name: String, one_by_one: bool) -> Self {
        Self {
            producer,
            name,
            one_by_one,
            messages: None,
            cursor: None,
        }
    }

    fn event(&mut self, message: Bytes, seen: &Seen) {
        let sequence = match Received::decode(message) {
            Ok(Received::Chunk(chunk)) => {
                seen.chunk(&chunk);
                chunk.header().last_sequence()
            }
            Ok(Received::Event(Event::Gap(gap))) => {
                let count = gap.last_sequence.saturating_sub(gap.first_sequence) + 1;
                seen.told_lost(gap.first_sequence, count);
                gap.last_sequence
            }
            Ok(_) => return,
            Err(_) => return seen.unreadable(),
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
                understands_age: true,
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
            understands_age: true,
        };
        let mut stream = client::subscribe(channel, request).await?.into_inner();
        let first = stream.message().await?.context("no hello")?;
        let Ok(Received::Event(Event::Hello(hello))) = Received::decode(first) else {
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

    async fn read(&mut self, seen: &Seen) -> Result<()> {
        match self.messages.take().context("is open")? {
            Messages::Chunks(mut stream) => {
                while let Some(message) = stream.next().await {
                    self.event(message?, seen);
                }
            }
            Messages::Cookies(mut stream) => {
                while let Some(message) = stream.next().await {
                    match decode_cookie(&message?) {
                        Ok(_) => seen.cookie(),
                        Err(_) => seen.unreadable(),
                    }
                }
            }
        }
        Ok(())
    }
}
