//! Test clients of both streaming calls, which check each message against the wire protocol and collect the received cookies.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use proto::{
    client,
    limits::SMALL_FRAME_BYTES,
    v1::{
        Cookie, Cursor, Gap, GetCookiesRequest, Hello, StartPosition, SubscribeRequest,
        TimesToLive, event::Event,
    },
    wire::{Record, StreamMessage, decode_record},
};
use tonic::{IntoRequest, Request, Status, Streaming, transport::Endpoint};

use crate::harness::within_timeout;

/// gRPC prefix of each message: compression flag and length.
const PREFIX_BYTES: usize = 5;

/// A `Subscribe` stream.
pub(crate) struct Subscription {
    messages: Streaming<Bytes>,
    pub(crate) hello: Hello,
    /// The next expected sequence number.
    pub(crate) next: u64,
    /// All cookies received so far, in order.
    pub(crate) cookies: Vec<Cookie>,
    /// All gaps received so far.
    pub(crate) gaps: Vec<Gap>,
    pub(crate) heartbeats: u64,
    /// First sequence number and cookie count of each chunk received so far.
    pub(crate) chunks: Vec<(u64, u64)>,
    /// Acceptance time of each chunk received so far, in microseconds since the Unix epoch.
    pub(crate) times: Vec<u64>,
    pub(crate) times_to_live: Vec<TimesToLive>,
}

/// Result of reading one message of a stream.
pub(crate) enum ReadResult {
    Event,
    Goodbye { final_sequence: u64 },
    End(Status),
}

/// A request of subscriber `name` that starts at the oldest cookie.
pub(crate) fn from_oldest(name: &str) -> SubscribeRequest {
    SubscribeRequest {
        subscriber: name.to_owned(),
        start: StartPosition::Oldest.into(),
        ..SubscribeRequest::default()
    }
}

/// A request of subscriber `name` that starts at the newest cookie.
pub(crate) fn from_newest(name: &str) -> SubscribeRequest {
    SubscribeRequest {
        start: StartPosition::Newest.into(),
        ..from_oldest(name)
    }
}

/// A request of subscriber `name` that resumes after `sequence` in the epoch of `hello`.
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
            .context("the producer rejected the stream")
    }

    /// Like [`open`](Self::open), with a token.
    pub(crate) async fn open_with(
        producer: &str,
        request: SubscribeRequest,
        token: &str,
    ) -> Result<Self> {
        let mut request = Request::new(request);
        let token = format!("Bearer {token}").parse()?;
        request.metadata_mut().insert("authorization", token);
        Self::try_open(client::endpoint(producer.to_owned())?, request)
            .await?
            .context("the producer rejected the stream")
    }

    /// Like [`open`](Self::open), with the smallest common flow-control windows.
    pub(crate) async fn open_with_small_windows(
        producer: &str,
        request: SubscribeRequest,
    ) -> Result<Self> {
        Self::try_open(small_window_endpoint(producer)?, request)
            .await?
            .context("the producer rejected the stream")
    }

    /// Opens a stream that must be rejected and returns the status.
    pub(crate) async fn expect_rejection(
        producer: &str,
        request: SubscribeRequest,
    ) -> Result<Status> {
        match Self::try_open(client::endpoint(producer.to_owned())?, request).await? {
            Ok(stream) => bail!("not rejected: {:?}", stream.hello),
            Err(status) => Ok(status),
        }
    }

    async fn try_open(
        endpoint: Endpoint,
        request: impl IntoRequest<SubscribeRequest>,
    ) -> Result<Result<Self, Status>> {
        let channel = within_timeout("connected", endpoint.connect()).await??;
        let opened = within_timeout("subscribed", client::subscribe(channel, request)).await?;
        let mut messages = match opened {
            Ok(response) => response.into_inner(),
            Err(status) => return Ok(Err(status)),
        };
        let message = match within_timeout("hello", messages.message()).await? {
            Ok(message) => message.context("the stream ended before its Hello message")?,
            Err(status) => return Ok(Err(status)),
        };
        check_size(&message)?;
        let StreamMessage::Event(Event::Hello(hello)) = StreamMessage::decode(message)? else {
            bail!("the first message is not Hello");
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
            times_to_live: Vec::new(),
        }))
    }

    /// Reads one message or the end of the stream.
    pub(crate) async fn read(&mut self) -> Result<ReadResult> {
        let message = match within_timeout("a message", self.messages.message()).await? {
            Ok(Some(message)) => message,
            Ok(None) => bail!("the stream ended with OK"),
            Err(status) => return Ok(ReadResult::End(status)),
        };
        check_size(&message)?;
        match StreamMessage::decode(message)? {
            StreamMessage::Chunk(chunk) => {
                let header = *chunk.header();
                ensure!(
                    header.epoch.0 == self.hello.epoch,
                    "wrong epoch: {header:?}"
                );
                let before = self.cookies.len();
                for record in chunk.records() {
                    self.cookies.push(owned(&record?));
                }
                let count = (self.cookies.len() - before) as u64;
                ensure!(
                    count == u64::from(header.count),
                    "{count} cookies do not match {header:?}"
                );
                self.advance(header.first_sequence.0, header.last_sequence().0)?;
                self.chunks.push((header.first_sequence.0, count));
                self.times.push(header.accepted.0);
            }
            StreamMessage::Event(Event::Gap(gap)) => {
                self.advance(gap.first_sequence, gap.last_sequence)?;
                self.gaps.push(gap);
            }
            StreamMessage::Event(Event::Heartbeat(heartbeat)) => {
                ensure!(heartbeat.next_sequence == self.next, "{heartbeat:?}");
                self.heartbeats += 1;
            }
            StreamMessage::Event(Event::TimesToLive(times)) => self.times_to_live.push(times),
            StreamMessage::Event(Event::Goodbye(goodbye)) => {
                let final_sequence = goodbye.final_sequence;
                ensure!(final_sequence + 1 == self.next, "{goodbye:?}");
                return Ok(ReadResult::Goodbye { final_sequence });
            }
            other => bail!("unexpected: {other:?}"),
        }
        Ok(ReadResult::Event)
    }

    /// Reads until every sequence number up to `sequence` was received or reported in a gap.
    pub(crate) async fn read_to(&mut self, sequence: u64) -> Result<()> {
        while self.next <= sequence {
            match self.read().await? {
                ReadResult::Event => {}
                ReadResult::Goodbye { .. } => bail!("goodbye before sequence {sequence}"),
                ReadResult::End(status) => bail!("ended before sequence {sequence}: {status}"),
            }
        }
        Ok(())
    }

    /// Reads to the end of the stream. Returns the final sequence number of the goodbye, if any, and the status.
    pub(crate) async fn read_to_end(&mut self) -> Result<(Option<u64>, Status)> {
        let mut goodbye = None;
        loop {
            let next = self.read().await?;
            if let ReadResult::End(status) = next {
                return Ok((goodbye, status));
            }
            ensure!(goodbye.is_none(), "received an event after the goodbye");
            if let ReadResult::Goodbye { final_sequence } = next {
                goodbye = Some(final_sequence);
            }
        }
    }

    /// Number of cookies reported in gaps.
    pub(crate) fn lost(&self) -> u64 {
        self.gaps
            .iter()
            .map(|gap| gap.last_sequence - gap.first_sequence + 1)
            .sum()
    }

    fn advance(&mut self, first: u64, last: u64) -> Result<()> {
        let expected = self.next;
        ensure!(
            first == expected,
            "received sequence {first} instead of {expected}"
        );
        ensure!(last >= first, "empty range {first}..={last}");
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
    /// Opens a stream at `producer` for `host`, with the small windows of a default client.
    pub(crate) async fn open(producer: &str, host: &str) -> Result<Self> {
        let channel =
            within_timeout("connected", small_window_endpoint(producer)?.connect()).await??;
        let request = GetCookiesRequest {
            host: host.to_owned(),
            ..GetCookiesRequest::default()
        };
        let opened = within_timeout("opened", client::get_cookies(channel, request)).await??;
        Ok(Self {
            messages: opened.into_inner(),
            cookies: Vec::new(),
        })
    }

    /// Reads one cookie.
    pub(crate) async fn read(&mut self) -> Result<()> {
        let message = within_timeout("a cookie", self.messages.message()).await??;
        let message = message.context("the stream ended with OK")?;
        self.cookies.push(owned(&decode_record(&message)?));
        Ok(())
    }

    /// Reads a message with a single cookie, which must be padded, and returns its size in bytes.
    pub(crate) async fn read_single(&mut self) -> Result<usize> {
        let message = within_timeout("a cookie", self.messages.message()).await??;
        let message = message.context("the stream ended")?;
        self.cookies.push(owned(&decode_record(&message)?));
        check_size(&message)?;
        Ok(message.len())
    }

    /// Reads to the end of the stream and returns its status.
    pub(crate) async fn read_to_end(&mut self) -> Result<Status> {
        loop {
            match within_timeout("a cookie", self.messages.message()).await? {
                Ok(Some(message)) => self.cookies.push(owned(&decode_record(&message)?)),
                Ok(None) => bail!("the stream ended with OK"),
                Err(status) => return Ok(status),
            }
        }
    }
}

/// An endpoint with the default HTTP/2 windows, the smallest in common use.
fn small_window_endpoint(producer: &str) -> Result<Endpoint> {
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

fn owned(record: &Record<'_>) -> Cookie {
    let (user_id, dsp_id, buyer_uid) = match *record {
        Record::Set(cookie) => (cookie.user_id, cookie.dsp_id, cookie.buyer_uid),
        Record::Delete { scope, .. } => {
            let (user_id, dsp_id) = scope.ids();
            (user_id, dsp_id, "")
        }
    };
    Cookie {
        user_id: user_id.to_owned(),
        dsp_id: dsp_id.0,
        buyer_uid: buyer_uid.to_owned(),
        age_micros: record.age_micros(),
        deleted: buyer_uid.is_empty(),
        padding: Bytes::new(),
    }
}
