//! One HTTP/1.1 connection, served in a loop: read, handle all complete requests, write all responses.
//!
//! # Why not hyper
//!
//! This edge needs little of HTTP: two methods, few paths, no request bodies. With hyper, a pipelined request cost 1.0 µs
//! of CPU in user space; here it costs a third of that. `httparse`, the parser of hyper, still parses the syntax. This
//! module adds:
//!
//! - The cookies of all requests of one read are appended under one lock, *before* their responses are written. A
//!   finished response never waits for a partly received request.
//! - A request body is skipped if it arrived with its headers. Otherwise the connection is closed after the response: a
//!   load balancer might reuse it without sending the body, and its next request would be taken for the body.
//! - While a client does not read its responses, no further requests are read from it.
//! - After 64 requests the task yields. tokio lets a task continue for 128 reads and writes that are ready. Each may contain
//!   hundreds of requests: without the yield, sixteen clients that sent continuously raised the latency of a well-behaved
//!   client from 1.5 ms to 3 s.
//! - Before the connection is closed, all requests that were sent together are handled; the last response announces the
//!   close.
//! - After closing its side, the connection discards further input for a limited time: closing with unread bytes could
//!   destroy a response in transit.
//!
//! The shared accept loop enforces timeouts.
//!
//! # The cost of measuring time
//!
//! Latency is measured once for all requests of one read, by reading the monotonic clock after the read and after
//! encoding the responses. The first reading also decides when to update the date header, ten times per second.
//! Measuring thus costs one clock reading and two atomic additions per batch. With the counters of [`dsps`](crate::dsps),
//! it raised the CPU time per request from 1.26 to 1.27 µs in the best of five alternating runs, and from 1.31 to 1.34 µs
//! in the median. The load was 32 connections with 16 requests in flight (`bench load -c 32 -p 16 -d 4s`). For single
//! requests the difference was below the noise.

use std::{
    io,
    net::IpAddr,
    time::{Duration, Instant, SystemTime},
};

use runtime::listen::{Activity, ByteStream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
};
use tokio_util::sync::CancellationToken;

use super::{
    Edge, ReadRequests,
    head::{self, HEAD_BYTES_MAX, HeadError},
    response::{Outcome, ResponseOptions, Responses},
};
use crate::{
    dsps::{KnownDsps, Tally},
    log::{AppendBatch, Closed},
};

/// Buffer capacity of an idle connection.
const IDLE_BUFFER_BYTES: usize = 4 * 1024;

/// Maximum size of a read; the longest request head fits.
const READ_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;

/// Maximum size of the responses that are written together.
const WRITE_BYTES_MAX: usize = 32 * 1024;

/// Responses are written when they reach this size, before further requests are handled. Another response still fits: the
/// longest one, a redirect to its own request, has the length of the request head and some headers.
const WRITE_BYTES: usize = WRITE_BYTES_MAX - HEAD_BYTES_MAX - 1024;

/// Maximum memory of a connection. Neither buffer grows while the other is full.
pub(crate) const CONNECTION_BYTES: usize = READ_BYTES_MAX + WRITE_BYTES_MAX;

/// Number of requests after which the task yields.
const YIELD_REQUESTS_MAX: u64 = 64;

/// Maximum input to discard after the connection was shut down, in bytes and in time.
const LINGER_BYTES_MAX: u64 = 4 << 20;
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);

/// Maximum age of the clock reading for the date header, which has a resolution of one second.
const DATE_AGE_MAX: Duration = Duration::from_millis(100);

/// What to do after the responses are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Read; there is no other complete request.
    Read,
    /// Continue with the remaining input.
    Respond,
    /// Close the connection.
    Close,
}

/// The state of one connection between reads.
#[derive(Default)]
pub(super) struct EdgeConnection {
    /// As in [`ReadRequests`].
    client: Option<IpAddr>,
    input: Vec<u8>,
    output: Vec<u8>,
    batch: AppendBatch,
    known: KnownDsps,
    responses: Responses,
    /// When the date of the responses was last set.
    dated: Option<Instant>,
}

impl EdgeConnection {
    pub(super) fn new(client: Option<IpAddr>) -> Self {
        Self {
            client,
            ..Self::default()
        }
    }

    /// Serves until the client closes the connection, `stopping` is cancelled, or an error occurs.
    pub(super) async fn serve(
        mut self,
        edge: &Edge,
        mut stream: impl ByteStream,
        activity: &Activity,
        stopping: &CancellationToken,
    ) -> anyhow::Result<()> {
        let mut next = Next::Read;
        let mut read_at = Instant::now();
        let mut since_yield = 0;
        while next != Next::Close {
            if next == Next::Read {
                self.resize_buffers();
                let read = tokio::select! {
                    biased;
                    read = stream.read_buf(&mut self.input) => read?,
                    // A client that has sent part of a request may finish it.
                    () = stopping.cancelled(), if self.input.is_empty() => break,
                };
                if read == 0 {
                    return Ok(());
                }
                read_at = Instant::now();
            }
            let is_draining = edge.draining.is_cancelled() || stopping.is_cancelled();
            self.set_date(read_at);
            let requests;
            (next, requests) = self.handle(edge, activity, read_at, is_draining)?;
            // Before the write, so that a slow client does not distort the latency.
            if requests > 0 {
                edge.metrics.seconds.observe(read_at.elapsed(), requests);
            }
            stream.write_all(&self.output).await?;
            // Under TLS, a write that would block is buffered.
            stream.flush().await?;
            self.output.clear();
            since_yield += requests;
            if since_yield >= YIELD_REQUESTS_MAX {
                since_yield = 0;
                yield_now().await;
            }
        }
        linger(stream).await?;
        Ok(())
    }

    /// Provides capacity for the next read: little if the connection is idle, more if it is busy.
    fn resize_buffers(&mut self) {
        if self.input.is_empty() && self.input.capacity() > IDLE_BUFFER_BYTES {
            self.input = Vec::new();
        }
        if self.output.capacity() > IDLE_BUFFER_BYTES {
            self.output = Vec::new();
        }
        if self.input.capacity() == 0 {
            self.input.reserve_exact(IDLE_BUFFER_BYTES);
        } else if self.input.len() == self.input.capacity() {
            self.input.reserve_exact(READ_BYTES_MAX - self.input.len());
        }
    }

    /// Updates the date header if it is older than [`DATE_AGE_MAX`].
    fn set_date(&mut self, now: Instant) {
        let is_old = |dated: Instant| now.saturating_duration_since(dated) >= DATE_AGE_MAX;
        if self.dated.is_none_or(is_old) {
            self.responses.set_time(SystemTime::now());
            self.dated = Some(now);
        }
    }

    /// Handles complete requests in the input, up to the size of a write, and appends their cookies to the log. Returns their
    /// number.
    fn handle(
        &mut self,
        edge: &Edge,
        activity: &Activity,
        read_at: Instant,
        is_draining: bool,
    ) -> Result<(Next, u64), Closed> {
        edge.metrics.dsps.refresh(&mut self.known);
        let mut read = ReadRequests {
            read_at,
            client: self.client,
            known: &mut self.known,
            batch: &mut self.batch,
            tally: Tally::default(),
            output: &mut self.output,
        };
        let (mut consumed, mut requests) = (0, 0);
        let mut next = Next::Read;
        while next == Next::Read && consumed < self.input.len() {
            let mut headers = head::headers();
            let (outcome, options) = match head::parse(&self.input[consumed..], &mut headers) {
                Ok(None) => break,
                Ok(Some((head, headers))) => {
                    activity.request();
                    consumed += head.length;
                    let body_received = head.body.min(self.input.len() - consumed);
                    consumed += body_received;
                    let body_is_incomplete = body_received < head.body;
                    let (outcome, origin) = edge.handle(&head, headers, &mut read)?;
                    let options = ResponseOptions {
                        head: head.method == "HEAD",
                        close: head.close
                            || body_is_incomplete
                            || (is_draining && consumed == self.input.len()),
                        origin,
                    };
                    (outcome, options)
                }
                Err(error) => {
                    let options = ResponseOptions {
                        close: true,
                        ..ResponseOptions::default()
                    };
                    let outcome = match error {
                        HeadError::Malformed => Outcome::Malformed,
                        HeadError::TooLarge => Outcome::HeadTooLarge,
                    };
                    (outcome, options)
                }
            };
            requests += 1;
            edge.count(outcome, &read);
            self.responses.write(outcome, options, read.output);
            if read.output.len() > IDLE_BUFFER_BYTES {
                // A buffer that grew by doubling would exceed the maximum.
                read.output
                    .reserve_exact(WRITE_BYTES_MAX.saturating_sub(read.output.len()));
            }
            if options.close {
                next = Next::Close;
            } else if read.output.len() >= WRITE_BYTES || requests >= YIELD_REQUESTS_MAX {
                next = Next::Respond;
            }
        }
        self.input.drain(..consumed);
        // The responses confirm that the cookies are in the log.
        edge.append(&mut read)?;
        Ok((next, requests))
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

#[cfg(test)]
pub(super) mod tests;
