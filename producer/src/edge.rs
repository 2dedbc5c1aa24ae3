//! The edge: HTTP/1.1 in, cookies into the log.
//!
//! It waits only for the client: appending is a short critical section, and a response is written after its cookie is in
//! the log. [`head`] parses HTTP, [`request`] parses the cookie, and [`response`] encodes the response; these three are
//! pure. `connection` does the I/O.

mod connection;
pub mod dsps;
pub mod head;
mod metrics;
pub mod opt_out;
pub mod privacy;
pub mod request;
pub mod response;

use std::{sync::Arc, time::Instant};

use httparse::Header;
use runtime::listen::{self, Limits, Listener, Stage};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use self::connection::CONNECTION_BYTES;
pub use self::metrics::Metrics;
use self::{
    connection::EdgeConnection,
    dsps::{KnownDsps, Tally},
    head::Head,
    opt_out::OptOut,
    request::{Rejection, Scratch},
    response::Outcome,
};
use crate::{
    log::{AppendBatch, Closed, Log},
    shaping::Shaping,
};

/// The edge of one producer.
#[derive(Debug)]
pub struct Edge {
    log: Log,
    metrics: Metrics,
    shaping: Option<Shaping>,
    /// The opt-out page, if it is served.
    opt_out: Option<OptOut>,
    /// Cancelled when the producer drains: each connection closes with its next response.
    draining: CancellationToken,
}

impl Edge {
    /// An edge that appends to `log`, subject to `shaping`. When `draining` is cancelled, each connection closes with its next
    /// response.
    #[must_use]
    pub fn new(
        log: Log,
        shaping: Option<Shaping>,
        opt_out: Option<OptOut>,
        metrics: Metrics,
        draining: CancellationToken,
    ) -> Self {
        Self {
            log,
            metrics,
            shaping,
            opt_out,
            draining,
        }
    }

    /// Accepts connections until the stage stops. Each connection then finishes the requests that it has read.
    pub async fn serve(
        self,
        listener: impl Listener,
        limits: watch::Receiver<Limits>,
        metrics: listen::Metrics,
        stage: Stage,
    ) {
        let edge = Arc::new(self);
        let stopping = stage.stop.clone();
        let serve = move |stream, activity: Arc<listen::Activity>| {
            let (edge, stopping) = (Arc::clone(&edge), stopping.clone());
            async move {
                let connection = EdgeConnection::default();
                let served = connection.serve(&edge, stream, &activity, &stopping).await;
                if let Err(error) = served {
                    tracing::debug!(%error, "edge connection failed");
                }
            }
        };
        listen::accept(listener, limits, metrics, stage, serve).await;
    }

    /// Handles one request. An accepted cookie is then in `batch` or already appended.
    fn handle(
        &self,
        head: &Head<'_>,
        headers: &[Header<'_>],
        read_at: Instant,
        known: &mut KnownDsps,
        batch: &mut AppendBatch,
        tally: &mut Tally,
    ) -> Result<Outcome, Closed> {
        if !matches!(head.path, "/" | "/sync") {
            return Ok(match &self.opt_out {
                Some(opt_out) if head.path == opt_out::PATH => opt_out
                    .handle(head, headers, &self.log, self.shaping.as_ref())
                    .map_or(Outcome::MethodNotAllowed, Outcome::OptOut),
                _ => Outcome::NotFound,
            });
        }
        if !matches!(head.method, "GET" | "HEAD") {
            return Ok(Outcome::MethodNotAllowed);
        }
        if batch.is_full() || tally.is_full() {
            self.append(batch, tally, known, read_at)?;
        }
        let mut scratch = Scratch::default();
        let cookies = head::cookies(headers);
        let cookie = match request::parse(head.query, cookies, &mut scratch) {
            Ok(cookie) => cookie,
            Err(rejection) => {
                tally.rejected(request::dsp_id(head.query), rejection);
                return Ok(Outcome::Rejected(rejection));
            }
        };
        if known.rejects(cookie.dsp_id) {
            tally.rejected(Some(cookie.dsp_id), Rejection::DspUnknown);
            return Ok(Outcome::Rejected(Rejection::DspUnknown));
        }
        if self.opt_out.is_some() && opt_out::has_cookie(headers) {
            return Ok(Outcome::OptedOut);
        }
        tally.accepted(cookie.dsp_id);
        batch.push(&cookie);
        Ok(Outcome::Accepted)
    }

    /// Appends the accepted cookies of a read to the log, subject to their limits, and counts the requests. Must precede the
    /// responses.
    fn append(
        &self,
        batch: &mut AppendBatch,
        tally: &mut Tally,
        known: &mut KnownDsps,
        read_at: Instant,
    ) -> Result<(), Closed> {
        let count = u64::from(batch.count());
        if count > 0 {
            match &self.shaping {
                Some(shaping) => drop(shaping.append(batch, read_at)?),
                None => self.log.append(batch)?,
            }
            self.metrics.accepted.inc_by(count);
        }
        self.metrics.dsps.add(tally, known);
        Ok(())
    }
}
