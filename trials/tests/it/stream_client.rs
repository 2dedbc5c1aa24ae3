//! Readers of both calls that check what the contract promises of every message, and keep what they read.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use proto::{
    client,
    limits::SMALL_FRAME_BYTES,
    v1::{
        Cookie, Cursor, Gap, GetCookiesRequest, Hello, StartPosition, SubscribeRequest,
        event::Event,
    },
    wire::{CookieRef, StreamMessage, decode_cookie},
};
use tonic::{Status, Streaming, transport::Endpoint};

use crate::harness::in_time;

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A `Subscribe` stream.
pub(crate) struct Subscription {
    messages: Streaming<Bytes>,
    pub(crate) hello: Hello,
    /// The sequence that must come next.
    pub(crate) next: u64,
    /// All cookies so far, in order.
    pub(crate) cookies: Vec<Cookie>,
    /// All gaps so far.
    pub(crate) gaps: Vec<Gap>,
    pub(crate) heartbeats: u64,
    /// First sequence and count of each chunk so far.
    pub(crate) chunks: Vec<(u64, u64)>,
    /// When the first cookie of each chunk so far was accepted, in microseconds since the Unix epoch.
    pub(crate) times: Vec<u64>,
}

/// What may be next on a stream.
pub(crate) enum Next {
    Event,
    Goodbye { final_sequence: u64 },
    End(Status),
}

/// A request by `name` that starts at the oldest.
pub(crate) fn from_oldest(name: &str) -> SubscribeRequest {
    SubscribeRequest {
        subscriber: name.to_owned(),
        start: StartPosition::Oldest.into(),
        ..SubscribeRequest::default()
    }
}

/// A request by `name` that starts at the newest.
pub(crate) fn from_newest(name: &str) -> SubscribeRequest {
    SubscribeRequest {
        start: StartPosition::Newest.into(),
        ..from_oldest(name)
    }
}

/// A request by `name` that goes on after `sequence` in the epoch of `hello`.
pub(crate) fn from_cursor(name: &str, hello: &Hello, sequence: u64) -> SubscribeRequest {
    SubscribeRequest {
        cursors: vec![Cursor {
            producer_id: hello.producer_id.clone(),
            epoch: hello.epoch,
            sequence,
        }],
        ..from_newest(name)
    }
}

impl Subscription {
    /// Opens a stream at `producer` and reads its `Hello`.
    pub(crate) async fn open(producer: &str, request: SubscribeRequest) -> Result<Self> {
        Self::try_open(client::endpoint(producer.to_owned())?, request)
            .await?
            .context("refused")
    }

    /// Like [`open`](Self::open), with hardly any room for what is not read yet.
    pub(crate) async fn open_narrow(producer: &str, request: SubscribeRequest) -> Result<Self> {
        Self::try_open(narrow(producer)?, request)
            .await?
            .context("refused")
    }

    /// How a request is refused.
    pub(crate) async fn refusal(producer: &str, request: SubscribeRequest) -> Result<Status> {
        match Self::try_open(client::endpoint(producer.to_owned())?, request).await? {
            Ok(stream) => bail!("not refused: {:?}", stream.hello),
            Err(status) => Ok(status),
        }
    }

    async fn try_open(
        endpoint: Endpoint,
        request: SubscribeRequest,
    ) -> Result<Result<Self, Status>> {
        let channel = in_time("connected", endpoint.connect()).await??;
        let opened = in_time("subscribed", client::subscribe(channel, request)).await?;
        let mut messages = match opened {
            Ok(response) => response.into_inner(),
            Err(status) => return Ok(Err(status)),
        };
        let message = match in_time("hello", messages.message()).await? {
            Ok(message) => message.context("the stream ended before its hello")?,
            Err(status) => return Ok(Err(status)),
        };
        check_size(&message)?;
        let StreamMessage::Event(Event::Hello(hello)) = StreamMessage::decode(message)? else {
            bail!("the first event is not a hello");
        };
        Ok(Ok(Self {
            messages,
            next: hello.first_sequence,
            hello,
            cookies: Vec::new(),
            gaps: Vec::new(),
            heartbeats: 0,
            chunks: Vec::new(),
            times: Vec::new(),
        }))
    }

    /// Reads one message, or the end.
    pub(crate) async fn read(&mut self) -> Result<Next> {
        let message = match in_time("a message", self.messages.message()).await? {
            Ok(Some(message)) => message,
            Ok(None) => bail!("the stream ended with OK, which no stream does"),
            Err(status) => return Ok(Next::End(status)),
        };
        check_size(&message)?;
        match StreamMessage::decode(message)? {
            StreamMessage::Chunk(chunk) => {
                let header = *chunk.header();
                ensure!(
                    header.epoch == self.hello.epoch,
                    "another epoch: {header:?}"
                );
                let before = self.cookies.len();
                for cookie in chunk.cookies() {
                    self.cookies.push(owned(&cookie?));
                }
                let count = (self.cookies.len() - before) as u64;
                ensure!(
                    count == u64::from(header.count),
                    "{count} cookies: {header:?}"
                );
                self.follow(header.first_sequence, header.last_sequence())?;
                self.chunks.push((header.first_sequence, count));
                self.times.push(header.accepted_unix_micros);
            }
            StreamMessage::Event(Event::Gap(gap)) => {
                self.follow(gap.first_sequence, gap.last_sequence)?;
                self.gaps.push(gap);
            }
            StreamMessage::Event(Event::Heartbeat(heartbeat)) => {
                ensure!(heartbeat.next_sequence == self.next, "{heartbeat:?}");
                self.heartbeats += 1;
            }
            StreamMessage::Event(Event::Goodbye(goodbye)) => {
                let final_sequence = goodbye.final_sequence;
                ensure!(final_sequence + 1 == self.next, "{goodbye:?}");
                return Ok(Next::Goodbye { final_sequence });
            }
            other => bail!("unexpected: {other:?}"),
        }
        Ok(Next::Event)
    }

    /// Reads until everything up to `sequence` was received or declared missing.
    pub(crate) async fn read_to(&mut self, sequence: u64) -> Result<()> {
        while self.next <= sequence {
            match self.read().await? {
                Next::Event => {}
                Next::Goodbye { .. } => bail!("goodbye before {sequence}"),
                Next::End(status) => bail!("ended before {sequence}: {status}"),
            }
        }
        Ok(())
    }

    /// Reads to the end; returns the final sequence of the goodbye, if there was one, and the status.
    pub(crate) async fn read_to_end(&mut self) -> Result<(Option<u64>, Status)> {
        let mut goodbye = None;
        loop {
            let next = self.read().await?;
            if let Next::End(status) = next {
                return Ok((goodbye, status));
            }
            ensure!(goodbye.is_none(), "an event after the goodbye");
            if let Next::Goodbye { final_sequence } = next {
                goodbye = Some(final_sequence);
            }
        }
    }

    /// How many cookies were declared missing.
    pub(crate) fn lost(&self) -> u64 {
        self.gaps
            .iter()
            .map(|gap| gap.last_sequence - gap.first_sequence + 1)
            .sum()
    }

    fn follow(&mut self, first: u64, last: u64) -> Result<()> {
        let expected = self.next;
        ensure!(first == expected, "{first} follows instead of {expected}");
        ensure!(last >= first, "an empty range {first}..={last}");
        self.next = last + 1;
        Ok(())
    }
}

/// A `GetCookies` stream.
pub(crate) struct CookieStream {
    messages: Streaming<Bytes>,
    pub(crate) cookies: Vec<Cookie>,
}

impl CookieStream {
    /// Opens a stream at `producer` for `host`, with an ordinary client's small windows.
    pub(crate) async fn open(producer: &str, host: &str) -> Result<Self> {
        let channel = in_time("connected", narrow(producer)?.connect()).await??;
        let request = GetCookiesRequest {
            host: host.to_owned(),
            ..GetCookiesRequest::default()
        };
        let opened = in_time("opened", client::get_cookies(channel, request)).await??;
        Ok(Self {
            messages: opened.into_inner(),
            cookies: Vec::new(),
        })
    }

    /// Reads one cookie.
    pub(crate) async fn read(&mut self) -> Result<()> {
        let message = in_time("a cookie", self.messages.message()).await??;
        let message = message.context("the stream ended with OK, which no stream does")?;
        self.cookies.push(owned(&decode_cookie(&message)?));
        Ok(())
    }

    /// Bytes of the next message, which is one of a lone cookie.
    pub(crate) async fn read_lone(&mut self) -> Result<usize> {
        let message = in_time("a cookie", self.messages.message()).await??;
        let message = message.context("the stream ended")?;
        self.cookies.push(owned(&decode_cookie(&message)?));
        check_size(&message)?;
        Ok(message.len())
    }

    /// Reads to the end, which has this status.
    pub(crate) async fn read_to_end(&mut self) -> Result<Status> {
        loop {
            match in_time("a cookie", self.messages.message()).await? {
                Ok(Some(message)) => self.cookies.push(owned(&decode_cookie(&message)?)),
                Ok(None) => bail!("the stream ended with OK, which no stream does"),
                Err(status) => return Ok(status),
            }
        }
    }
}

/// What every HTTP/2 client may announce, and the least many do.
fn narrow(producer: &str) -> Result<Endpoint> {
    Ok(client::endpoint(producer.to_owned())?
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535)
        .max_frame_size(16_384))
}

fn check_size(message: &Bytes) -> Result<()> {
    let bytes = message.len() + PREFIX_BYTES;
    ensure!(bytes >= SMALL_FRAME_BYTES, "a frame of {bytes} bytes");
    Ok(())
}

fn owned(cookie: &CookieRef<'_>) -> Cookie {
    Cookie {
        user_id: cookie.user_id.to_owned(),
        dsp_id: cookie.dsp_id,
        buyer_uid: cookie.buyer_uid.to_owned(),
        age_micros: cookie.age_micros,
        padding: Bytes::new(),
    }
}
