//! One HTTP/1.1 connection of small requests, served in a loop: read, handle all complete requests, write all responses.
//!
//! # Why not hyper
//!
//! A port of small requests and small responses needs little of HTTP. With hyper, a pipelined request cost 1.0 µs of CPU in
//! user space; here it costs a third of that. `httparse`, the parser of hyper, still parses the syntax. This module adds:
//!
//! - A finished response never waits for a partly received request.
//! - While a client does not read its responses, no further requests are read from it.
//! - After 64 requests the task yields. tokio lets a task continue for 128 reads and writes that are ready. Each may contain
//!   hundreds of requests: without the yield, sixteen clients that sent continuously raised the latency of a well-behaved
//!   client from 1.5 ms to 3 s.
//! - After closing its side, the connection discards further input for a limited time: closing with unread bytes could
//!   destroy a response in transit.
//!
//! The shared accept loop enforces timeouts.

pub mod head;

use std::{
    future::Future,
    io,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use futures_util::FutureExt as _;
use http::StatusCode;
use http_body_util::{BodyExt as _, Collected};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
};
use tokio_util::sync::CancellationToken;

use crate::{
    listen::{Activity, ByteStream},
    reply::Reply,
};

/// Buffer capacity of an idle connection.
pub const IDLE_BUFFER_BYTES: usize = 4 * 1024;

/// Buffers above this size are returned when they are no longer needed.
const BUFFER_BYTES_KEPT: usize = 32 << 10;

/// Maximum time to write responses above this size.
const LARGE_WRITE_TIME_MAX: Duration = Duration::from_secs(10);

/// Number of requests after which the task yields. [`Requests::handle`] should stop after as many.
pub const YIELD_REQUESTS_MAX: u64 = 64;

/// Maximum input to discard after the connection was shut down, in bytes and in time.
const LINGER_BYTES_MAX: u64 = 4 << 20;
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);

/// Maximum age of a date header, which has a resolution of one second.
const DATE_AGE_MAX: Duration = Duration::from_millis(100);

/// What to do after the responses are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Read; there is no other complete request.
    Read,
    /// Continue with the remaining input.
    Respond,
    /// Close the connection.
    Close,
}

/// The result of [`Requests::handle`].
#[derive(Debug, Clone, Copy)]
pub struct Handled {
    /// Bytes of the input that were handled.
    pub consumed: usize,
    /// Number of requests in them.
    pub requests: u64,
    /// What to do next.
    pub next: Next,
}

impl Handled {
    /// The first request is incomplete.
    pub const INCOMPLETE: Self = Self {
        consumed: 0,
        requests: 0,
        next: Next::Read,
    };
}

/// The circumstances of a read.
#[derive(Debug)]
pub struct ReadContext<'a> {
    /// When it ended.
    pub read_at: Instant,
    /// Whether the stage stops: the last response must announce the close of the connection.
    pub is_stopping: bool,
    /// Receives each request.
    pub activity: &'a Arc<Activity>,
}

/// Handles the requests of one connection.
pub trait Requests: Send {
    /// Maximum bytes of input that is not handled yet; the longest request fits.
    const INPUT_BYTES_MAX: usize;

    /// Whether a request that is being handled is abandoned when its client closes the connection.
    const END_WITH_CLIENT: bool = false;

    /// Handles complete requests at the start of `input`, and appends their responses to `output`.
    ///
    /// # Errors
    /// When the connection must be closed without responses.
    fn handle(
        &mut self,
        input: &[u8],
        context: &ReadContext<'_>,
        output: &mut Vec<u8>,
    ) -> impl Future<Output = anyhow::Result<Handled>> + Send;

    /// Called after the responses were written.
    fn written(&mut self) {}
}

/// Serves until the client closes the connection, `stopping` is cancelled, or an error occurs. `input` was read before.
///
/// # Errors
/// When the connection or a request failed.
pub async fn serve<R: Requests>(
    mut requests: R,
    mut stream: impl ByteStream,
    mut input: Vec<u8>,
    activity: &Arc<Activity>,
    stopping: &CancellationToken,
) -> anyhow::Result<()> {
    let mut output = Vec::new();
    let mut next = if input.is_empty() {
        Next::Read
    } else {
        Next::Respond
    };
    let mut read_at = Instant::now();
    let mut since_yield = 0;
    while next != Next::Close {
        if next == Next::Read {
            resize_input(&mut input, R::INPUT_BYTES_MAX);
            if output.capacity() > IDLE_BUFFER_BYTES {
                output = Vec::new();
            }
            let read = tokio::select! {
                biased;
                read = stream.read_buf(&mut input) => read?,
                // A client that has sent part of a request may finish it.
                () = stopping.cancelled(), if input.is_empty() => break,
            };
            if read == 0 {
                return Ok(());
            }
            read_at = Instant::now();
        }
        let context = ReadContext {
            read_at,
            is_stopping: stopping.is_cancelled(),
            activity,
        };
        let mut early = Vec::new();
        let handling = requests.handle(&input, &context, &mut output);
        let handled = if R::END_WITH_CLIENT {
            let more = R::INPUT_BYTES_MAX.saturating_sub(input.len());
            match while_connected(handling, &mut stream, &mut early, more).await? {
                Some(handled) => handled?,
                None => return Ok(()),
            }
        } else {
            handling.await?
        };
        input.drain(..handled.consumed);
        next = match handled.next {
            Next::Read if !early.is_empty() => Next::Respond,
            next => next,
        };
        input.append(&mut early);
        if input.capacity() > BUFFER_BYTES_KEPT && input.len() <= BUFFER_BYTES_KEPT {
            input.shrink_to(BUFFER_BYTES_KEPT);
        }
        write(&mut stream, &output).await?;
        output.clear();
        output.shrink_to(BUFFER_BYTES_KEPT);
        requests.written();
        // Not before the write: a client that does not read is a slow reader.
        if next == Next::Read && !input.is_empty() {
            activity.partial_request();
        }
        since_yield += handled.requests;
        if since_yield >= YIELD_REQUESTS_MAX {
            since_yield = 0;
            yield_now().await;
        }
    }
    linger(stream).await?;
    Ok(())
}

/// Waits for `handling`, and reads up to `bytes_max` meanwhile; `None` if the client closes the connection first.
async fn while_connected<T>(
    handling: impl Future<Output = T>,
    stream: &mut impl ByteStream,
    input: &mut Vec<u8>,
    bytes_max: usize,
) -> io::Result<Option<T>> {
    let mut handling = pin!(handling);
    loop {
        let left = bytes_max.saturating_sub(input.len());
        let mut limited = (&mut *stream).take(left as u64);
        tokio::select! {
            biased;
            handled = &mut handling => return Ok(Some(handled)),
            read = limited.read_buf(input), if left > 0 => if read? == 0 {
                return Ok(None);
            },
        }
    }
}

/// Writes responses. A client that reads too slowly occupies the memory of a large one for a limited time.
async fn write(stream: &mut impl ByteStream, output: &[u8]) -> io::Result<()> {
    let writing = async {
        stream.write_all(output).await?;
        // Under TLS, a write that would block is buffered.
        stream.flush().await
    };
    if output.len() <= BUFFER_BYTES_KEPT {
        return writing.await;
    }
    match tokio::time::timeout(LARGE_WRITE_TIME_MAX, writing).await {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Provides capacity for the next read: little if the connection is idle, more if it is busy.
fn resize_input(input: &mut Vec<u8>, bytes_max: usize) {
    if input.is_empty() && input.capacity() > IDLE_BUFFER_BYTES {
        *input = Vec::new();
    }
    if input.capacity() == 0 {
        input.reserve_exact(IDLE_BUFFER_BYTES);
    } else if input.len() == input.capacity() {
        let more = (7 * input.len()).min(bytes_max.saturating_sub(input.len()));
        input.reserve_exact(more);
    }
}

/// The line that announces the close of the connection.
pub const CLOSE: &str = "connection: close\r\n";

/// The header `Date`, formatted at most ten times per second.
#[derive(Debug, Default)]
pub struct DateHeader {
    line: String,
    formatted: Option<Instant>,
}

impl DateHeader {
    /// The line with its line break.
    pub fn line(&mut self, now: Instant) -> &str {
        let is_old = |at| now.saturating_duration_since(at) >= DATE_AGE_MAX;
        if self.formatted.is_none_or(is_old) {
            let date = httpdate::fmt_http_date(SystemTime::now());
            self.line = format!("date: {date}\r\n");
            self.formatted = Some(now);
        }
        &self.line
    }
}

/// The header for the length of a body that follows.
const LENGTH: &[u8] = b"content-length:         0\r\n";

/// A response whose body is being appended.
#[derive(Debug)]
pub struct OpenResponse {
    digits_end: usize,
    body_at: usize,
}

impl OpenResponse {
    /// Begins a response with these further lines, each with its line break.
    pub fn begin(status: StatusCode, lines: &[&str], output: &mut Vec<u8>) -> Self {
        output.extend_from_slice(b"HTTP/1.1 ");
        output.extend_from_slice(status.as_str().as_bytes());
        output.push(b' ');
        let reason = status.canonical_reason().unwrap_or_default();
        output.extend_from_slice(reason.as_bytes());
        output.extend_from_slice(b"\r\n");
        output.extend_from_slice(LENGTH);
        let digits_end = output.len() - b"\r\n".len();
        for line in lines {
            output.extend_from_slice(line.as_bytes());
        }
        output.extend_from_slice(b"\r\n");
        Self {
            digits_end,
            body_at: output.len(),
        }
    }

    /// Writes the length of the body. The response to a HEAD request has no body.
    pub fn end(self, is_head: bool, output: &mut Vec<u8>) {
        let digits = (output.len() - self.body_at).to_string();
        let digits_at = self.digits_end - digits.len();
        output[digits_at..self.digits_end].copy_from_slice(digits.as_bytes());
        if is_head {
            output.truncate(self.body_at);
        }
    }
}

/// Appends a response with a line for the date. The response to a HEAD request has no body, only its length.
pub fn encode(reply: Reply, is_head: bool, close: bool, date: &str, output: &mut Vec<u8>) {
    let (head, body) = reply.into_parts();
    let body = body.collect().now_or_never().and_then(Result::ok);
    let body = body.map(Collected::to_bytes).unwrap_or_default();
    output.extend_from_slice(format!("HTTP/1.1 {}\r\n", head.status).as_bytes());
    for (name, value) in &head.headers {
        output.extend_from_slice(name.as_str().as_bytes());
        output.extend_from_slice(b": ");
        output.extend_from_slice(value.as_bytes());
        output.extend_from_slice(b"\r\n");
    }
    let close = if close { CLOSE } else { "" };
    let length = format!("content-length: {}\r\n{close}{date}\r\n", body.len());
    output.extend_from_slice(length.as_bytes());
    if !is_head {
        output.extend_from_slice(&body);
    }
}

/// Shuts down writing, and discards further input for a limited time.
async fn linger(mut stream: impl ByteStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = stream.take(LINGER_BYTES_MAX);
    let mut sink = tokio::io::sink();
    match tokio::time::timeout(LINGER_TIME_MAX, tokio::io::copy(&mut rest, &mut sink)).await {
        Ok(result) => result.map(drop),
        Err(_) => Ok(()),
    }
}
