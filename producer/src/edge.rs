//! The edge: HTTP/1.1 in, cookies into the log.
//!
//! It waits only for the client: appending is a short critical section, and a response is written after its cookie is in
//! the log. [`head`] parses HTTP, [`request`] and `set_uid` parse the cookie, [`contracts`] and [`privacy`] decide whether a match is
//! recorded, and [`response`] encodes the response; these are pure. `connection` does the I/O.

mod connection;
pub mod contracts;
pub mod deletions;
pub mod dsps;
pub mod head;
pub mod hygiene;
mod metrics;
pub mod mint;
pub mod opt_out;
pub mod privacy;
pub mod redirect;
pub mod request;
pub mod response;
mod set_uid;

use std::{net::IpAddr, sync::Arc, time::Instant};

use httparse::Header;
use proto::{ids, limits::USER_ID_BYTES_MAX, wire::CookieRef};
use runtime::{
    listen::{self, Limits, Listener, Proxies, Stage, WatchedStream},
    tls::server::Handshakes,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use self::connection::CONNECTION_BYTES;
pub use self::metrics::Metrics;
use self::{
    connection::EdgeConnection,
    contracts::{Contract, Contracts},
    deletions::{BrowserDeletions, Busy},
    dsps::{KnownDsps, Tally},
    head::Head,
    mint::UidMode,
    opt_out::Page,
    privacy::Signals,
    request::{Rejection, Scratch, StatedMatch},
    response::{Answer, Outcome},
};
use crate::{
    log::{AppendBatch, Closed, Log},
    shaping::Shaping,
};

/// The requests of one read.
struct ReadRequests<'a> {
    read_at: Instant,
    /// The address of the client; `None` if its proxy states it in `X-Forwarded-For`.
    client: Option<IpAddr>,
    known: &'a mut KnownDsps,
    batch: &'a mut AppendBatch,
    tally: Tally,
    /// The encoded responses.
    output: &'a mut Vec<u8>,
}

/// What the edge does for browsers, besides recording their matches.
#[derive(Debug)]
pub struct Browsers {
    /// Serves the opt-out page.
    pub opt_out: bool,
    /// What browsers without a user id get.
    pub uid: UidMode,
    /// The deletions that they request.
    pub deletions: BrowserDeletions,
}

/// How connections begin, before their first request.
#[derive(Debug, Clone, Default)]
pub struct Opening {
    /// Load balancers that begin their connections with a PROXY header.
    pub proxies: Proxies,
    /// Handshakes; `None` if connections are unencrypted.
    pub tls: Option<Arc<Handshakes>>,
}

/// The edge of one producer.
#[derive(Debug)]
pub struct Edge {
    log: Log,
    metrics: Metrics,
    shaping: Option<Shaping>,
    browsers: Browsers,
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
        browsers: Browsers,
        metrics: Metrics,
        draining: CancellationToken,
    ) -> Self {
        Self {
            log,
            metrics,
            shaping,
            browsers,
            draining,
        }
    }

    /// Accepts connections until the stage stops. Each connection then finishes the requests that it has read.
    pub async fn serve(
        self,
        listener: impl Listener,
        Opening { proxies, tls }: Opening,
        limits: watch::Receiver<Limits>,
        metrics: listen::Metrics,
        stage: Stage,
    ) {
        let edge = Arc::new(self);
        let stopping = stage.stop.clone();
        // A client could state any address in `X-Forwarded-For`, unless a proxy receives its requests and appends the header.
        let is_client_known = tls.is_some() || !proxies.is_empty();
        let serve = move |stream: WatchedStream<_>, activity: Arc<listen::Activity>| {
            let client = is_client_known.then(|| stream.peer());
            let (edge, tls, stopping) = (Arc::clone(&edge), tls.clone(), stopping.clone());
            async move {
                let connection = EdgeConnection::new(client);
                let served = match tls {
                    None => connection.serve(&edge, stream, &activity, &stopping).await,
                    // Boxed, so that unencrypted connections need no memory for it.
                    Some(tls) => {
                        let serving = async {
                            let Some(stream) = tls.accept(stream, &stopping).await else {
                                return Ok(());
                            };
                            connection.serve(&edge, stream, &activity, &stopping).await
                        };
                        Box::pin(serving).await
                    }
                };
                if let Err(error) = served {
                    tracing::debug!(%error, "edge connection failed");
                }
            }
        };
        listen::accept(listener, proxies, limits, metrics, stage, serve).await;
    }

    /// Handles one request. An accepted cookie is then in the batch or already appended. An answer other than `Empty` is begun.
    fn handle(
        &self,
        head: &Head<'_>,
        headers: &[Header<'_>],
        read: &mut ReadRequests<'_>,
    ) -> Result<Outcome, Closed> {
        let names_dsps = || read.known.contracts().is_some_and(Contracts::has_names);
        let is_set_uid = match head.path {
            "/" | "/sync" => false,
            set_uid::PATH if names_dsps() => true,
            opt_out::PATH if self.browsers.opt_out => return Ok(self.opt_out(head, headers, read)),
            _ => return Ok(Outcome::NotFound),
        };
        if !matches!(head.method, "GET" | "HEAD") {
            return Ok(Outcome::MethodNotAllowed);
        }
        if read.batch.is_full() || read.tally.is_full() {
            self.append(read)?;
        }
        let stated = match read.known.contracts().filter(|_| is_set_uid) {
            None => StatedMatch::parse(head.query)
                .map(|stated| (stated, None))
                .map_err(|rejection| (request::dsp_id(head.query), rejection)),
            Some(contracts) => set_uid::parse(head.query, opt_out::has_cookie(headers), contracts)
                .map(|(stated, answer)| (stated, Some(answer))),
        };
        match stated {
            Ok((stated, format)) => self.handle_match(stated, format, head, headers, read),
            Err((dsp_id, rejection)) => {
                read.tally.rejected(dsp_id, rejection);
                Ok(match (dsp_id, rejection) {
                    (None, Rejection::DspUnknown) => Outcome::BidderUnknown,
                    _ => Outcome::Rejected(rejection, None),
                })
            }
        }
    }

    /// `format` replaces the answer of the contract.
    #[inline]
    fn handle_match(
        &self,
        stated: StatedMatch<'_>,
        format: Option<Answer>,
        head: &Head<'_>,
        headers: &[Header<'_>],
        read: &mut ReadRequests<'_>,
    ) -> Result<Outcome, Closed> {
        let dsp_id = stated.dsp_id;
        let contract = read.known.contract(dsp_id);
        let mut scratch = Scratch::default();
        let mints = self.browsers.uid.mints();
        let cookie = match stated.cookie(head::cookies(headers), mints, &mut scratch) {
            Ok(cookie) => cookie,
            Err(rejection) => {
                let invalid = contract.map(|it| it.refusal_of_invalid(rejection, stated.buyer_uid));
                let rejection = invalid.unwrap_or(rejection);
                read.tally.rejected(Some(dsp_id), rejection);
                let refused = contract.filter(|_| rejection == Rejection::BuyerMacro);
                let answer = refused.and_then(|it| it.begin_refusal(format, headers, read.output));
                return Ok(Outcome::Rejected(rejection, answer));
            }
        };
        let judged = contract.filter(|_| stated.buyer_uid.is_some());
        let refusal = judged.and_then(|it| it.refusal(cookie.buyer_uid));
        if let (Some(contract), Some(rejection)) = (contract, refusal)
            && !contract.observes()
        {
            read.tally.rejected(Some(dsp_id), rejection);
            let answer = contract.begin_refusal(format, headers, read.output);
            return Ok(Outcome::Rejected(rejection, answer));
        }
        let has_user = !cookie.user_id.is_empty();
        let reads_opt_out = self.browsers.opt_out || !has_user || read.known.privacy().is_some();
        let opted_out = reads_opt_out && opt_out::has_cookie(headers);
        let mut observed = None;
        if let (Some(contract), Some(privacy)) = (contract, read.known.privacy()) {
            let signals = Signals {
                opted_out,
                ..Signals::new(head.query, headers, privacy)
            };
            let outcome = privacy.decide(&signals, contract.vendor());
            self.metrics.privacy[outcome as usize].inc();
            if privacy.refuses(outcome) {
                read.tally.rejected(Some(dsp_id), Rejection::Privacy);
                let by_contract = Some(contract).filter(|_| format.is_none());
                let answer =
                    by_contract.and_then(|it| it.begin_refusal(None, headers, read.output));
                return Ok(Outcome::Rejected(Rejection::Privacy, answer));
            }
            observed = (outcome != privacy::Outcome::Allowed).then_some(Rejection::Privacy);
        }
        if opted_out {
            read.tally.rejected(Some(dsp_id), Rejection::OptedOut);
            let begin = |it: &Contract| it.begin_answer_without_ids(None, headers, read.output);
            let answer = contract.map(begin).unwrap_or_default();
            return Ok(Outcome::Rejected(Rejection::OptedOut, Some(answer)));
        }
        if stated.buyer_uid.is_none() {
            return self.remove(&cookie, format.unwrap_or_default(), headers, read);
        }
        if !has_user {
            return Ok(self.mint(dsp_id, format, head, headers, read));
        }
        for rejection in refusal.into_iter().chain(observed) {
            read.tally.would_refuse(dsp_id, rejection);
        }
        read.tally.accepted(dsp_id);
        read.batch.push(&cookie);
        let begin =
            |it: &Contract| it.begin_answer(format, &cookie, head.query, headers, read.output);
        let answer = contract.map(begin).or(format);
        Ok(Outcome::Accepted(answer.unwrap_or_default()))
    }

    /// Gives a browser a user id, or rejects its match.
    #[cold]
    fn mint(
        &self,
        dsp_id: u32,
        format: Option<Answer>,
        head: &Head<'_>,
        headers: &[Header<'_>],
        read: &mut ReadRequests<'_>,
    ) -> Outcome {
        let contract = read.known.contract(dsp_id);
        let (rejection, answer) = match self.browsers.uid.begin_redirect(head, read.output) {
            Ok(()) => {
                if let Some(contract) = contract {
                    contract.allow_origin(headers, read.output);
                }
                (Rejection::UserMinted, Some(Answer::Redirect))
            }
            Err(rejection) => {
                let refused = contract.filter(|_| rejection == Rejection::UserNotKept);
                let begin = |it: &Contract| it.begin_refusal(format, headers, read.output);
                (rejection, refused.and_then(begin))
            }
        };
        read.tally.rejected(Some(dsp_id), rejection);
        Outcome::Rejected(rejection, answer)
    }

    /// Deletes the match of a user at a DSP.
    #[cold]
    fn remove(
        &self,
        cookie: &CookieRef<'_>,
        answer: Answer,
        headers: &[Header<'_>],
        read: &mut ReadRequests<'_>,
    ) -> Result<Outcome, Closed> {
        // The deletion must follow matches that were sent before.
        self.append(read)?;
        if !cookie.user_id.is_empty() {
            let deleted = self.delete(cookie.user_id, cookie.dsp_id, headers, read);
            if deleted.is_err() {
                return Ok(Outcome::OptOut(Page::Busy));
            }
        }
        answer.begin(read.output);
        Ok(Outcome::Removed(answer))
    }

    fn opt_out(&self, head: &Head<'_>, headers: &[Header<'_>], read: &ReadRequests<'_>) -> Outcome {
        let Some(page) = opt_out::page(head, headers) else {
            return Outcome::MethodNotAllowed;
        };
        let user_id = request::user_id(head::cookies(headers))
            .and_then(|value| ids::check_user_cookie(value, USER_ID_BYTES_MAX).ok());
        // A browser without a user id has nothing to delete.
        match user_id.filter(|_| page == Page::OptedOut) {
            Some(user_id) if self.delete(user_id, 0, headers, read).is_err() => {
                Outcome::OptOut(Page::Busy)
            }
            _ => Outcome::OptOut(page),
        }
    }

    fn delete(
        &self,
        user_id: &str,
        dsp_id: u32,
        headers: &[Header<'_>],
        read: &ReadRequests<'_>,
    ) -> Result<(), Busy> {
        let client = read.client.or_else(|| deletions::forwarded_for(headers));
        let deletions = &self.browsers.deletions;
        deletions.delete(user_id, dsp_id, client, &self.log, self.shaping.as_ref())
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
