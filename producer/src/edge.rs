//! The edge: HTTP/1.1 in, cookies into the log.
//!
//! It waits only for the client: appending is a short critical section, and a response is written after its cookie is in
//! the log. [`head`] parses HTTP, [`request`] parses the cookie, [`contracts`] and [`privacy`] decide whether a match is
//! recorded, and [`response`] encodes the response; these are pure. `connection` does the I/O.

mod connection;
pub mod contracts;
pub mod dsps;
pub mod head;
pub mod hygiene;
mod metrics;
pub mod opt_out;
pub mod privacy;
pub mod redirect;
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
    contracts::Contract,
    dsps::{KnownDsps, Tally},
    head::Head,
    opt_out::OptOut,
    privacy::Signals,
    request::{Rejection, Scratch},
    response::Outcome,
};
use crate::{
    log::{AppendBatch, Closed, Log},
    shaping::Shaping,
};

/// The requests of one read.
struct ReadRequests<'a> {
    read_at: Instant,
    known: &'a mut KnownDsps,
    batch: &'a mut AppendBatch,
    tally: Tally,
    /// The encoded responses.
    output: &'a mut Vec<u8>,
}

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

    /// Handles one request. An accepted cookie is then in the batch or already appended. An answer other than `Empty` is begun.
    fn handle(
        &self,
        head: &Head<'_>,
        headers: &[Header<'_>],
        read: &mut ReadRequests<'_>,
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
        if read.batch.is_full() || read.tally.is_full() {
            self.append(read)?;
        }
        let mut scratch = Scratch::default();
        let cookies = head::cookies(headers);
        let cookie = match request::parse(head.query, cookies, &mut scratch) {
            Ok(cookie) => cookie,
            Err(rejection) => {
                let dsp_id = request::dsp_id(head.query);
                let contract = dsp_id.and_then(|dsp_id| read.known.contract(dsp_id));
                let invalid = contract.map(|it| it.refusal_of_invalid(rejection, head.query));
                let rejection = invalid.unwrap_or(rejection);
                read.tally.rejected(dsp_id, rejection);
                let refused = contract.filter(|_| rejection == Rejection::BuyerMacro);
                let answer = refused.and_then(|it| it.begin_refusal(headers, read.output));
                return Ok(Outcome::Rejected(rejection, answer));
            }
        };
        let contract = read.known.contract(cookie.dsp_id);
        let refusal = contract.and_then(|it| it.refusal(cookie.buyer_uid));
        if let (Some(contract), Some(rejection)) = (contract, refusal)
            && !contract.observes()
        {
            read.tally.rejected(Some(cookie.dsp_id), rejection);
            let answer = contract.begin_refusal(headers, read.output);
            return Ok(Outcome::Rejected(rejection, answer));
        }
        let reads_opt_out = self.opt_out.is_some() || read.known.privacy().is_some();
        let opted_out = reads_opt_out && opt_out::has_cookie(headers);
        if let (Some(contract), Some(privacy)) = (contract, read.known.privacy()) {
            let signals = Signals {
                opted_out,
                ..Signals::new(head.query, headers, privacy)
            };
            let outcome = privacy.decide(&signals, contract.vendor());
            self.metrics.privacy[outcome as usize].inc();
            if privacy.refuses(outcome) {
                let rejection = Rejection::Privacy;
                read.tally.rejected(Some(cookie.dsp_id), rejection);
                let answer = contract.begin_refusal(headers, read.output);
                return Ok(Outcome::Rejected(rejection, answer));
            }
        }
        if opted_out {
            let begin = |it: &Contract| it.begin_answer_without_ids(headers, read.output);
            return Ok(Outcome::OptedOut(contract.map(begin).unwrap_or_default()));
        }
        if let Some(rejection) = refusal {
            read.tally.would_refuse(cookie.dsp_id, rejection);
        }
        read.tally.accepted(cookie.dsp_id);
        read.batch.push(&cookie);
        let begin = |it: &Contract| it.begin_answer(&cookie, head.query, headers, read.output);
        Ok(Outcome::Accepted(contract.map(begin).unwrap_or_default()))
    }

    /// Appends the accepted cookies of a read to the log, subject to their limits, and counts the requests. Must precede the
    /// responses.
    fn append(&self, read: &mut ReadRequests<'_>) -> Result<(), Closed> {
        let count = u64::from(read.batch.count());
        if count > 0 {
            match &self.shaping {
                Some(shaping) => drop(shaping.append(read.batch, read.read_at)?),
                None => self.log.append(read.batch)?,
            }
            self.metrics.accepted.inc_by(count);
        }
        self.metrics.dsps.add(&mut read.tally, read.known);
        Ok(())
    }
}
