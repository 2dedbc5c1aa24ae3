//! The sync requests of one HTTP/1.1 connection, which [`http1`] serves.
//!
//! - The cookies of all requests of one read are appended under one lock, *before* their responses are written.
//! - A request body is skipped if it arrived with its headers. Otherwise the connection is closed after the response: a
//!   load balancer might reuse it without sending the body, and its next request would be taken for the body. Only the body
//!   of a request for a plan is waited for.
//! - Before the connection is closed, all requests that were sent together are handled; the last response announces the
//!   close.
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
    net::IpAddr,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant, SystemTime},
};

use runtime::{
    http1::{
        self, Handled, IDLE_BUFFER_BYTES, Next, ReadContext, Requests, YIELD_REQUESTS_MAX,
        head::{self, HEAD_BYTES_MAX, HeadError},
    },
    listen::{Activity, ByteStream},
};
use tokio_util::sync::CancellationToken;

use super::{
    Edge, ReadRequests,
    cookie_sync::{self, Rest},
    low_priority::RejectedShare,
    response::{Outcome, ResponseOptions, Responses, WRITE_BYTES_MAX},
};
use crate::{
    dsps::{KnownDsps, Tally},
    log::{AppendBatch, Closed},
};

/// Maximum size of a read; the longest request head fits.
const READ_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;

/// Responses are written when they reach this size, before further requests are handled. Another response still fits: the
/// longest one, a redirect to its own request, has the length of the request head and some headers. Larger answers to requests
/// for plans need a permit.
const WRITE_BYTES: usize = WRITE_BYTES_MAX - HEAD_BYTES_MAX - 1024;

/// A plan counts as this number of further requests before the task yields, because it takes as long.
const PLAN_WEIGHT: u64 = 15;

/// Maximum memory of a connection. Neither buffer grows while the other is full.
pub(crate) const CONNECTION_BYTES: usize = READ_BYTES_MAX + WRITE_BYTES_MAX;

/// Maximum size of a body that is skipped.
const BODY_BYTES_MAX: usize = HEAD_BYTES_MAX;

/// Maximum age of the clock reading for the date header, which has a resolution of one second.
const DATE_AGE_MAX: Duration = Duration::from_millis(100);

/// The state of one connection between reads.
#[derive(Default)]
pub(super) struct EdgeConnection {
    /// As in [`ReadRequests`].
    client: Option<IpAddr>,
    batch: AppendBatch,
    known: KnownDsps,
    responses: Responses,
    /// When the date of the responses was last set.
    dated: Option<Instant>,
    /// As in [`ReadRequests`].
    rest: Rest,
    /// Decides about its priority.
    rejected: RejectedShare,
}

impl EdgeConnection {
    pub(super) fn new(client: Option<IpAddr>) -> Self {
        Self {
            client,
            ..Self::default()
        }
    }

    /// Set while the connection has a low priority.
    pub(super) fn is_low(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.rejected.is_low)
    }

    /// Serves until the client closes the connection, `stopping` is cancelled, or an error occurs.
    pub(super) async fn serve(
        self,
        edge: &Edge,
        stream: impl ByteStream,
        activity: &Arc<Activity>,
        stopping: &CancellationToken,
    ) -> anyhow::Result<()> {
        let requests = EdgeRequests {
            edge,
            connection: self,
        };
        http1::serve(requests, stream, Vec::new(), activity, stopping).await
    }

    /// Updates the date header if it is older than [`DATE_AGE_MAX`].
    fn set_date(&mut self, now: Instant) {
        let is_old = |dated: Instant| now.saturating_duration_since(dated) >= DATE_AGE_MAX;
        if self.dated.is_none_or(is_old) {
            self.responses.set_time(SystemTime::now());
            self.dated = Some(now);
        }
    }

    /// Handles complete requests in the input, up to the size of a write, and appends their cookies to the log.
    fn handle(
        &mut self,
        edge: &Edge,
        input: &[u8],
        context: &ReadContext<'_>,
        output: &mut Vec<u8>,
    ) -> Result<Handled, Closed> {
        let read_at = context.read_at;
        let is_draining = context.is_stopping || edge.draining.is_cancelled();
        self.set_date(read_at);
        edge.metrics.dsps.refresh(&mut self.known);
        let mut read = ReadRequests {
            read_at,
            client: self.client,
            known: &mut self.known,
            batch: &mut self.batch,
            tally: Tally::default(),
            output,
            rest: &mut self.rest,
        };
        let (mut consumed, mut requests, mut plans, mut rejected) = (0, 0, 0, 0);
        let mut next = Next::Read;
        while next == Next::Read && consumed < input.len() {
            let mut headers = head::headers();
            let (outcome, options) = match head::parse(&input[consumed..], &mut headers) {
                Ok(None) => break,
                Ok(Some((head, headers))) => {
                    let sent = &input[consumed + head.length..];
                    if head.path == cookie_sync::PATH
                        && edge.awaits_body(&head, sent.len(), read.known.contracts())
                    {
                        break;
                    }
                    context.activity.request();
                    let body = head.body.filter(|bytes| *bytes <= BODY_BYTES_MAX);
                    let body_received = body.unwrap_or(0).min(sent.len());
                    consumed += head.length + body_received;
                    let body_is_incomplete = body != Some(body_received);
                    let sent = &sent[..body_received];
                    let (outcome, origin) = edge.handle(&head, headers, sent, &mut read)?;
                    let options = ResponseOptions {
                        head: head.method == "HEAD",
                        close: head.close
                            || body_is_incomplete
                            || read.rest.close
                            || (is_draining && consumed == input.len()),
                        origin,
                        body: &read.rest.body,
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
            plans += u64::from(outcome == Outcome::Plan);
            rejected += u64::from(outcome.lowers_priority());
            edge.count(outcome, &read);
            let close = options.close;
            self.responses.write(outcome, options, read.output);
            read.rest.body = Vec::new();
            if read.output.len() > IDLE_BUFFER_BYTES {
                // A buffer that grew by doubling would exceed the maximum.
                read.output
                    .reserve_exact(WRITE_BYTES_MAX.saturating_sub(read.output.len()));
            }
            if close {
                next = Next::Close;
            } else if read.output.len() >= WRITE_BYTES
                || requests + PLAN_WEIGHT * plans >= YIELD_REQUESTS_MAX
            {
                next = Next::Respond;
            }
        }
        // The responses confirm that the cookies are in the log.
        edge.append(&mut read)?;
        self.rejected.add(requests, rejected);
        // Before the write, so that a slow client does not distort the latency.
        if requests > 0 {
            edge.metrics.seconds.observe(read_at.elapsed(), requests);
        }
        Ok(Handled {
            consumed,
            requests: requests + PLAN_WEIGHT * plans,
            next,
        })
    }
}

/// The requests of a connection to an edge.
struct EdgeRequests<'a> {
    edge: &'a Edge,
    connection: EdgeConnection,
}

impl Requests for EdgeRequests<'_> {
    const INPUT_BYTES_MAX: usize = READ_BYTES_MAX;

    async fn handle(
        &mut self,
        input: &[u8],
        context: &ReadContext<'_>,
        output: &mut Vec<u8>,
    ) -> anyhow::Result<Handled> {
        Ok(self.connection.handle(self.edge, input, context, output)?)
    }

    fn written(&mut self) {
        self.connection.rest.permit = None;
    }
}

#[cfg(test)]
pub(super) mod tests;
