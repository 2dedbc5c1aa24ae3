//! One HTTP/1.1 connection: read what there is, answer all whole requests in it, write once, read again.
//!
//! # Why not hyper
//!
//! This edge needs very little of HTTP: two methods, two paths, no body of a request. With hyper a
//! pipelined request cost 1.0 µs of CPU in user space, whatever the rest did; here it costs a third of that.
//! The syntax is still read by `httparse`, the parser under hyper. What is left is ours, and small:
//!
//! - Cookies of all requests that one read brought are appended with one lock, *before* their answers are
//!   written; a finished answer never waits for a request of which only a part has arrived.
//! - A request's body is passed over if it came with its head. Otherwise its answer closes the connection: a balancer that
//!   does not know of the body would send another person's request in its place.
//! - A client that does not read its answers is not asked for more requests.
//! - After 64 requests others have their turn, whatever this connection still holds: tokio would let a task whose reads and
//!   writes are always ready go on for 128 of them, each of which may be hundreds of requests. Sixteen clients that sent without
//!   pause thereby took an honest one beside them from 1.5 ms to 3 s.
//! - When it is to be closed, requests that were sent together are all answered; the last of these answers says so.
//! - Before closing on a client that still sends, what it sends is read for a while: closing with unread
//!   bytes would destroy the answer on its way.
//!
//! Timeouts come from the watched accept loop.
//!
//! # What time costs
//!
//! Latency is taken once for all requests that one read brought, with two readings of the monotonic clock: after
//! the read, and after the answers are written. The first stands in for a reading of the time of day for the date
//! of the answers, which is now looked at ten times a second. So, counted, a burst costs one reading of a clock and two
//! atomic additions more than without. With what [`dsps`](super::dsps) counts besides, a request of 16 in flight on each of 32
//! connections took 1.27 µs of processor time instead of 1.26 in the best of five runs by turns, and 1.34 instead of 1.31 in
//! the middle one (`bench load -c 32 -p 16 -d 4s`); of one alone nothing was to be seen beside the noise.

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
    dsps::Tally,
    head::{self, HEAD_BYTES_MAX, Refusal},
    response::{Answers, Manner, Outcome},
};
use crate::log::{Burst, Closed};

/// Buffer space an idle connection keeps.
const RESTING_BYTES: usize = 4 * 1024;

/// How much is read at once, at most; room for the longest head.
const READ_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;

/// Answers of this size are written before further requests are looked at.
const WRITE_BYTES_MAX: usize = 32 * 1024;

/// What a busy connection holds, all in all: it fills neither of these buffers while the other is full.
pub(crate) const CONNECTION_BYTES: usize = READ_BYTES_MAX + WRITE_BYTES_MAX;

/// Requests after which others have their turn.
const TURN_REQUESTS_MAX: u64 = 64;

/// How much, and for how long, a client may go on sending after its connection was given up.
const LINGER_BYTES_MAX: u64 = 4 << 20;
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);

/// How old the time of day in an answer may be, beside its being cut to seconds.
const DATE_AGE_MAX: Duration = Duration::from_millis(100);

/// What follows the answers to what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// There is no other whole request.
    Read,
    /// There may be, but the answers are many already.
    Answer,
    /// The connection is to be closed.
    Close,
}

/// The state of one connection between its reads.
#[derive(Default)]
pub(super) struct Connection {
    input: Vec<u8>,
    output: Vec<u8>,
    burst: Burst,
    answers: Answers,
    /// When the answers were last told the time of day.
    dated: Option<Instant>,
}

/// Why a connection ends before its client ends it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Closed(#[from] Closed),
}

impl Connection {
    /// Serves until the client leaves, `stopping`, or an error.
    pub(super) async fn serve(
        mut self,
        edge: &Edge,
        mut stream: impl ByteStream,
        activity: &Activity,
        stopping: &CancellationToken,
    ) -> Result<(), Broken> {
        let mut next = Next::Read;
        let mut read_at = Instant::now();
        let mut turn = 0;
        while next != Next::Close {
            if next == Next::Read {
                self.make_room();
                let read = tokio::select! {
                    biased;
                    read = stream.read_buf(&mut self.input) => read?,
                    // A client that holds half a request has until its port is cut off.
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
            (next, requests) = self.answer(edge, activity, is_leaving)?;
            // Before a client that reads slowly makes the figure its own.
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

    /// Makes room to read into; an idle connection keeps little, a busy one reads much at once.
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

    /// Looks at the time of day when it was looked at too long before `now`.
    fn set_date(&mut self, now: Instant) {
        let is_old = |dated: Instant| now.saturating_duration_since(dated) >= DATE_AGE_MAX;
        if self.dated.is_none_or(is_old) {
            self.answers.set_time(SystemTime::now());
            self.dated = Some(now);
        }
    }

    /// Answers the whole requests in the input, as many as one turn has, and keeps the rest; what was accepted is then in the
    /// log. Returns how many it answered.
    fn answer(
        &mut self,
        edge: &Edge,
        activity: &Activity,
        leaving: bool,
    ) -> Result<(Next, u64), Closed> {
        let mut tally = Tally::default();
        let (mut consumed, mut requests) = (0, 0);
        let mut next = Next::Read;
        while next == Next::Read && consumed < self.input.len() {
            let mut room = head::headers();
            let (outcome, manner) = match head::parse(&self.input[consumed..], &mut room) {
                Ok(None) => break,
                Ok(Some((head, lines))) => {
                    activity.request();
                    consumed += head.length;
                    let body_here = head.body.min(self.input.len() - consumed);
                    consumed += body_here;
                    let body_is_late = body_here < head.body;
                    let manner = Manner {
                        head: head.method == "HEAD",
                        close: head.close
                            || body_is_late
                            || (leaving && consumed == self.input.len()),
                    };
                    let outcome = edge.handle(&head, lines, &mut self.burst, &mut tally)?;
                    (outcome, manner)
                }
                Err(refusal) => {
                    let manner = Manner {
                        head: false,
                        close: true,
                    };
                    (refused(refusal), manner)
                }
            };
            requests += 1;
            edge.metrics.count(outcome);
            self.answers.write(outcome, manner, &mut self.output);
            if manner.close {
                next = Next::Close;
            } else if self.output.len() >= WRITE_BYTES_MAX || requests >= TURN_REQUESTS_MAX {
                next = Next::Answer;
            }
        }
        self.input.drain(..consumed);
        // The promise first, then the word.
        edge.append(&mut self.burst, &mut tally)?;
        Ok((next, requests))
    }
}

fn refused(refusal: Refusal) -> Outcome {
    match refusal {
        Refusal::Malformed => Outcome::Malformed,
        Refusal::TooLarge => Outcome::HeadTooLarge,
    }
}

/// Says that nothing more will be written, and reads for a while what the client still sends.
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
