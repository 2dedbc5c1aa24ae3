//! One HTTP/1.1 connection: read what has arrived, answer all complete requests in it, write once, read again.
//!
//! # Why not hyper
//!
//! This edge needs very little of HTTP: two methods, two paths, no request bodies. With hyper a pipelined request cost
//! 1.0 µs of CPU in user space, whatever else was done; here it costs a third of that. `httparse`, the parser under
//! hyper, still parses the syntax. The rest is done here:
//!
//! - The cookies of all requests of one read are appended under one lock, *before* their responses are written. A
//!   finished response never waits for a request that has arrived only in part.
//! - A request's body is skipped if it arrived with its head. Otherwise the response closes the connection: a load
//!   balancer that does not know of the body would send another person's request in its place.
//! - While a client does not read its responses, no further requests are read from it.
//! - After 64 requests the task yields, whatever this connection still holds. tokio would let a task whose reads and
//!   writes are always ready continue for 128 of them, each of which may be hundreds of requests: sixteen clients that
//!   sent without pause raised the latency of a well-behaved client beside them from 1.5 ms to 3 s.
//! - Before the connection is closed, all requests that were sent together are answered; the last response announces
//!   the close.
//! - Before closing on a client that still sends, its bytes are read for a while: closing with unread bytes would
//!   destroy the response on its way.
//!
//! Timeouts come from the shared accept loop.
//!
//! # The cost of measuring time
//!
//! Latency is measured once for all requests of one read, with two readings of the monotonic clock: after the read, and
//! after the responses are made. The first also decides when to read the time of day for the date of the responses,
//! which happens ten times a second. A batch thus costs one reading of a clock and two atomic additions more than
//! without. Together with the counts of [`dsps`](super::dsps), a request of 16 in flight on each of 32 connections took
//! 1.27 µs of CPU time instead of 1.26 in the best of five alternating runs, and 1.34 instead of 1.31 in the median
//! (`bench load -c 32 -p 16 -d 4s`); for a single request the difference was below the noise.

use std::{
    io,
    time::{Duration, Instant, SystemTime},
};

use runtime::listen::{Activity, ByteStream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
};
use tokio_util::sync::CancellationToken;

use super::{
    Edge,
    dsps::{KnownDsps, Tally},
    head::{self, HEAD_BYTES_MAX, Refusal},
    response::{Outcome, ResponseOptions, Responses},
};
use crate::log::{AppendBatch, Closed};

/// Buffer space an idle connection keeps.
const RESTING_BYTES: usize = 4 * 1024;

/// How much is read at once, at most; room for the longest head.
const READ_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;

/// Responses of this size are written before further requests are handled.
const WRITE_BYTES_MAX: usize = 32 * 1024;

/// The memory of a busy connection: it fills neither of these buffers while the other is full.
pub(crate) const CONNECTION_BYTES: usize = READ_BYTES_MAX + WRITE_BYTES_MAX;

/// Requests after which the task yields to others.
const TURN_REQUESTS_MAX: u64 = 64;

/// How much and for how long a client may continue to send after its connection was shut down.
const LINGER_BYTES_MAX: u64 = 4 << 20;
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);

/// How old the time of day in a response may be, besides being truncated to seconds.
const DATE_AGE_MAX: Duration = Duration::from_millis(100);

/// What follows the responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// There is no other complete request.
    Read,
    /// There may be, but this turn is over.
    Respond,
    /// The connection is to be closed.
    Close,
}

/// The state of one connection between its reads.
#[derive(Default)]
pub(super) struct Connection {
    input: Vec<u8>,
    output: Vec<u8>,
    batch: AppendBatch,
    known: KnownDsps,
    responses: Responses,
    /// When the date of the responses was last set.
    dated: Option<Instant>,
}

/// Why a connection ends before its client closes it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Closed(#[from] Closed),
}

impl Connection {
    /// Serves until the client leaves, `stopping` is cancelled, or an error occurs.
    pub(super) async fn serve(
        mut self,
        edge: &Edge,
        mut stream: impl ByteStream,
        activity: &Activity,
        stopping: &CancellationToken,
    ) -> Result<(), ConnectionError> {
        let mut next = Next::Read;
        let mut read_at = Instant::now();
        let mut turn = 0;
        while next != Next::Close {
            if next == Next::Read {
                self.make_room();
                let read = tokio::select! {
                    biased;
                    read = stream.read_buf(&mut self.input) => read?,
                    // A client that has sent half a request has time until the port is closed.
                    () = stopping.cancelled(), if self.input.is_empty() => break,
                };
                if read == 0 {
                    return Ok(());
                }
                read_at = Instant::now();
            }
            let is_leaving = edge.leaving.is_cancelled() || stopping.is_cancelled();
            self.set_date(read_at);
            let requests;
            (next, requests) = self.answer(edge, activity, read_at, is_leaving)?;
            // Before the write, so that a slow client does not distort the figure.
            if requests > 0 {
                edge.metrics.seconds.observe(read_at.elapsed(), requests);
            }
            stream.write_all(&self.output).await?;
            self.output.clear();
            turn += requests;
            if turn >= TURN_REQUESTS_MAX {
                turn = 0;
                yield_now().await;
            }
        }
        linger(stream).await?;
        Ok(())
    }

    /// Makes room to read into: little for an idle connection, much for a busy one.
    fn make_room(&mut self) {
        if self.input.is_empty() && self.input.capacity() > RESTING_BYTES {
            self.input = Vec::new();
        }
        if self.output.capacity() > RESTING_BYTES {
            self.output = Vec::new();
        }
        if self.input.capacity() == 0 {
            self.input.reserve_exact(RESTING_BYTES);
        } else if self.input.len() == self.input.capacity() {
            self.input.reserve_exact(READ_BYTES_MAX - self.input.len());
        }
    }

    /// Sets the date of the responses if it was last set too long before `now`.
    fn set_date(&mut self, now: Instant) {
        let is_old = |dated: Instant| now.saturating_duration_since(dated) >= DATE_AGE_MAX;
        if self.dated.is_none_or(is_old) {
            self.responses.set_time(SystemTime::now());
            self.dated = Some(now);
        }
    }

    /// Answers the complete requests in the input, as many as fit one turn, and keeps the rest. Accepted cookies are
    /// then in the log. Returns how many requests it answered.
    fn answer(
        &mut self,
        edge: &Edge,
        activity: &Activity,
        read_at: Instant,
        leaving: bool,
    ) -> Result<(Next, u64), Closed> {
        edge.metrics.dsps.refresh(&mut self.known);
        let mut tally = Tally::default();
        let (mut consumed, mut requests) = (0, 0);
        let mut next = Next::Read;
        while next == Next::Read && consumed < self.input.len() {
            let mut room = head::headers();
            let (outcome, options) = match head::parse(&self.input[consumed..], &mut room) {
                Ok(None) => break,
                Ok(Some((head, lines))) => {
                    activity.request();
                    consumed += head.length;
                    let body_here = head.body.min(self.input.len() - consumed);
                    consumed += body_here;
                    let body_is_late = body_here < head.body;
                    let options = ResponseOptions {
                        head: head.method == "HEAD",
                        close: head.close
                            || body_is_late
                            || (leaving && consumed == self.input.len()),
                    };
                    let outcome = edge.handle(
                        &head,
                        lines,
                        read_at,
                        &mut self.known,
                        &mut self.batch,
                        &mut tally,
                    )?;
                    (outcome, options)
                }
                Err(refusal) => {
                    let options = ResponseOptions {
                        head: false,
                        close: true,
                    };
                    (refused(refusal), options)
                }
            };
            requests += 1;
            edge.metrics.count(outcome);
            self.responses.write(outcome, options, &mut self.output);
            if options.close {
                next = Next::Close;
            } else if self.output.len() >= WRITE_BYTES_MAX || requests >= TURN_REQUESTS_MAX {
                next = Next::Respond;
            }
        }
        self.input.drain(..consumed);
        // The cookies must be in the log before the responses promise it.
        edge.append(&mut self.batch, &mut tally, &mut self.known, read_at)?;
        Ok((next, requests))
    }
}

fn refused(refusal: Refusal) -> Outcome {
    match refusal {
        Refusal::Malformed => Outcome::Malformed,
        Refusal::TooLarge => Outcome::HeadTooLarge,
    }
}

/// Shuts down writing, and reads for a while what the client still sends.
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
mod tests;
