//! The edge: receives sync requests over HTTP/1.1, and appends their cookies (matches of a user id and a buyer uid) to the log.
//!
//! A connection waits only for its client, because the log is locked only briefly to append cookies. A response is written after its
//! cookie is in the log. [`runtime::http1`] parses HTTP; [`request`] and [`set_uid`] parse the cookie; [`contracts`](crate::contracts) decide
//! whether the match is recorded; [`response`] encodes the response. [`refusals`] shows rejected requests to operators. These
//! modules do no I/O; `http1` does. `low_priority` keeps connections with rejected requests from delaying others.

pub mod browser_cookies;
mod connection;
pub mod cookie_sync;
mod low_priority;
mod metrics;
pub mod mint;
pub mod opt_out;
pub mod origin;
pub mod query;
pub mod refusals;
pub mod request;
pub mod response;
pub mod set_uid;
mod sync_page;

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use httparse::Header;
use proto::units::DspId;
use runtime::{
    http1::head::{self, Head},
    listen::{self, Limits, Listener, Proxies, Stage, WatchedStream},
    tls::server::Handshakes,
};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use self::connection::CONNECTION_BYTES;
pub use self::metrics::Metrics;
use self::{
    browser_cookies::BrowserCookies,
    connection::EdgeConnection,
    low_priority::LowPriorityThreads,
    mint::UidMode,
    opt_out::OptOut,
    query::{Query, Scratch},
    refusals::Refusals,
    request::StatedMatch,
    response::Outcome,
};
use crate::{
    contracts::{
        answer::Answer,
        privacy::{self, Signals},
        rejection::Rejection,
        verdict::{Decision, Verdict},
    },
    dsps::{KnownDsps, Tally},
    inlet::Inlet,
    interval_limit::IntervalLimit,
    log::{AppendBatch, Closed},
};

/// Headers of the response to a preflight, valid for two hours, the longest time that Chromium accepts.
const PREFLIGHT: &[u8] =
    b"access-control-allow-methods: GET, HEAD\r\naccess-control-max-age: 7200\r\n";

/// Maximum bytes of the header names that a preflight requests.
const PREFLIGHT_BYTES_MAX: usize = 512;

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
    /// Of the response that was begun last, if it answers a request for a plan.
    rest: &'a mut cookie_sync::Rest,
}

/// The edge of one producer.
#[derive(Debug)]
pub struct Edge {
    /// The inlet, to which it appends.
    pub inlet: Inlet,
    /// Its metrics.
    pub metrics: Metrics,
    /// The opt-out page, if there is one.
    pub opt_out: Option<OptOut>,
    /// The response to a browser without a user id.
    pub uid: UidMode,
    /// Bounds the log messages about rejected requests.
    pub(crate) rejection_log: IntervalLimit,
    /// The streams of rejected requests.
    pub refusals: Arc<Refusals>,
    /// The HTTP cookies of browsers.
    pub cookies: BrowserCookies,
    /// A permit for each large answer that is not written yet.
    pub large_answers: Arc<Semaphore>,
    /// Cancelled when the producer drains: each connection closes with its next response.
    pub draining: CancellationToken,
}

/// Up to 10 messages a second.
pub(crate) fn rejection_log() -> IntervalLimit {
    IntervalLimit::new(10, Duration::from_secs(1))
}

impl Edge {
    /// Accepts connections until the stage stops; open ones then finish the requests that they have read. `proxies` send a
    /// PROXY header on each connection. Without `tls`, connections are unencrypted.
    pub async fn serve(
        self,
        listener: impl Listener,
        proxies: Proxies,
        tls: Option<Arc<Handshakes>>,
        limits: watch::Receiver<Limits>,
        metrics: listen::Metrics,
        stage: Stage,
    ) {
        let edge = Arc::new(self);
        let low_priority = Arc::new(LowPriorityThreads::new(stage.tasks.clone()));
        let stopping = stage.stop.clone();
        // A client could state any address in `X-Forwarded-For`, unless a proxy receives its requests and appends the header.
        let is_client_known = tls.is_some() || !proxies.is_empty();
        let serve = move |stream: WatchedStream<_>, activity: Arc<listen::Activity>| {
            let client = is_client_known.then(|| stream.peer());
            let (edge, tls, stopping) = (Arc::clone(&edge), tls.clone(), stopping.clone());
            let connection = EdgeConnection::new(client);
            let (low_priority, is_low) = (Arc::clone(&low_priority), connection.is_low());
            let serving = async move {
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
                    tracing::debug!(%error, "connection to the sync port failed");
                }
            };
            async move { low_priority.run(serving, is_low).await }
        };
        listen::accept(listener, proxies, limits, metrics, stage, serve).await;
    }

    /// Handles one request with a body: puts an accepted cookie into the batch, and begins the answer unless it is `Empty`. Also
    /// returns the origin whose scripts may read the response.
    fn handle<'a>(
        &self,
        head: &Head<'a>,
        headers: &[Header<'a>],
        body: &[u8],
        read: &mut ReadRequests<'_>,
    ) -> Result<(Outcome, Option<&'a [u8]>), Closed> {
        let mut scratch = Scratch::default();
        let query = Query::parse(head.query, &mut scratch);
        let origin = head
            .origin
            .filter(|it| is_readable_by(it, head, &query, read));
        let outcome = match origin {
            _ if is_for_plan(head, read) => self.plan(head, headers, body, origin.is_some(), read),
            Some(_) if begin_preflight(head, headers, read.output) => Outcome::Preflight,
            _ => self.outcome(head, &query, headers, read)?,
        };
        if let Outcome::Rejected(rejection, _) = outcome
            && self.refusals.are_read()
            && let Some(dsp_id) = read.tally.last_dsp()
        {
            let signals = self.signals(&query, headers, Some(&read.known.contracts().privacy));
            let buyer_uid = query.buyer_uid.value((), ()).ok();
            let value = match (rejection.parameter(), head.path) {
                ("cookie uid", _) => self.cookies.user_id(head::cookies(headers)),
                ("b", set_uid::PATH) => query.uid.map(|it| it.text.as_bytes()),
                ("b", _) => buyer_uid.map(|it| it.text.as_bytes()),
                _ => None,
            };
            let describe = || refusals::describe(rejection, value, &signals);
            self.refusals.add(dsp_id, read.read_at, describe);
        }
        Ok((outcome, origin))
    }

    fn outcome(
        &self,
        head: &Head<'_>,
        query: &Query<'_>,
        headers: &[Header<'_>],
        read: &mut ReadRequests<'_>,
    ) -> Result<Outcome, Closed> {
        let names_dsps = || !read.known.contracts().by_name.is_empty();
        let is_set_uid = match (head.path, &self.opt_out) {
            ("/" | "/sync", _) => false,
            (set_uid::PATH, _) if names_dsps() => true,
            (sync_page::PATH, _) if read.known.contracts().plan.is_some() => {
                return Ok(match head.method {
                    "GET" | "HEAD" => {
                        sync_page::begin(read.output);
                        Outcome::SyncPage
                    }
                    _ => Outcome::MethodNotAllowed,
                });
            }
            (opt_out::PATH, Some(opt_out)) => {
                // The deletion of an opt-out must follow the matches that were sent before it.
                self.append(read)?;
                let page = {
                    let has_plan = read.known.contracts().plan.is_some();
                    opt_out.handle(head, headers, read.client, self, has_plan, read.output)
                };
                return Ok(page.map_or(Outcome::MethodNotAllowed, Outcome::OptOut));
            }
            _ => return Ok(Outcome::NotFound),
        };
        if !matches!(head.method, "GET" | "HEAD") {
            return Ok(Outcome::MethodNotAllowed);
        }
        if read.batch.is_full() || read.tally.is_full() {
            self.append(read)?;
        }
        let stated = match is_set_uid {
            false => {
                StatedMatch::parse(query).map_err(|rejection| (request::dsp_id(query), rejection))
            }
            true => set_uid::parse(query, self.has_opted_out(headers), read.known.contracts()),
        };
        let outcome = match stated {
            Ok(stated) => self.handle_match(stated, query, head, headers, read),
            Err((dsp_id, rejection)) => refused(dsp_id, rejection, None, read),
        };
        if is_set_uid && query.is_return {
            let (dsp_id, contracts) = (read.tally.last_dsp(), read.known.contracts());
            let plans = &self.metrics.plans;
            plans.count_return(dsp_id, outcome.label(), contracts);
        }
        Ok(outcome)
    }

    #[inline]
    fn handle_match(
        &self,
        stated: StatedMatch<'_>,
        query: &Query<'_>,
        head: &Head<'_>,
        headers: &[Header<'_>],
        read: &mut ReadRequests<'_>,
    ) -> Outcome {
        let StatedMatch { dsp_id, format, .. } = stated;
        let contracts = read.known.contracts();
        let contract = contracts.of(dsp_id);
        let user_id = self.cookies.user_id(head::cookies(headers));
        let (buyer_uid, cookie) = match stated.cookie(user_id, self.uid.mints()) {
            Ok(found) => found,
            Err(rejection) => {
                let rejection = contract.refusal_of_invalid(rejection, stated.buyer_uid.text);
                let answer = response::answer_to_refused(rejection, contract, format);
                return refused(Some(dsp_id), rejection, answer, read);
            }
        };
        let gate = contracts.gate(contract);
        let reads_opt_out = self.opt_out.is_some() || self.cookies.has_other_opt_outs();
        let has_signals = reads_opt_out || cookie.is_none() || gate.is_some();
        let signals = has_signals.then(|| self.signals(query, headers, gate));
        let decision = contracts.decide(contract, buyer_uid, signals.as_ref());
        let Decision { verdict, outcome } = decision;
        if let Some(outcome) = outcome {
            self.metrics.privacy[outcome as usize].inc();
        }
        match (verdict, cookie) {
            (Verdict::Refuse(rejection), _) => {
                let rejection = match (format, outcome) {
                    (Some(_), Some(outcome)) => {
                        set_uid::refusal(rejection, outcome, &query.signals)
                    }
                    _ => rejection,
                };
                let answer = response::answer_to_refused(rejection, contract, format);
                refused(Some(dsp_id), rejection, answer, read)
            }
            (Verdict::Record([_, privacy]), None) => self.mint(stated, privacy, query, head, read),
            (Verdict::Record([_, privacy]), Some(cookie)) => {
                read.tally.note(dsp_id, verdict);
                read.batch.push(&cookie);
                let signals = &query.signals;
                let output = &mut *read.output;
                let answer = response::begin_answer(contract, format, &cookie, signals, output);
                if contract.sync.is_some()
                    && privacy.is_none()
                    && let Some(hint) =
                        self.hint((dsp_id, contract), cookie.user_id, headers, contracts)
                {
                    response::add_header(answer, &hint, output);
                    return Outcome::AcceptedWithHint(answer);
                }
                Outcome::Accepted(answer)
            }
        }
    }

    /// The signals in a request, for the privacy settings that decide about it.
    fn signals<'a>(
        &self,
        query: &Query<'a>,
        headers: &[Header<'_>],
        gate: Option<&privacy::Config>,
    ) -> Signals<'a> {
        let opted_out = self.has_opted_out(headers);
        let signals = Signals {
            opted_out,
            ..query.signals
        };
        gate.map_or(signals, |gate| {
            request::with_signals(signals, headers, gate.country_header.as_deref())
        })
    }

    /// Counts an outcome, and logs a sample of the rejected requests, without user ids, buyer uids and signals.
    fn count(&self, outcome: Outcome, read: &ReadRequests<'_>) {
        self.metrics.count(outcome);
        if outcome.is_rejection()
            && tracing::enabled!(tracing::Level::DEBUG)
            && let Some(suppressed) = self.rejection_log.admit(read.read_at)
        {
            let dsp = matches!(outcome, Outcome::Rejected(..)).then(|| read.tally.last_dsp());
            let (reason, dsp) = (outcome.label(), dsp.flatten().map(|dsp_id| dsp_id.0));
            tracing::debug!(reason, dsp, suppressed, "request rejected");
        }
    }

    /// Gives a browser a user id. Privacy signals can prevent it, even in mode `observe` (then `observed` is set).
    #[cold]
    fn mint(
        &self,
        stated: StatedMatch<'_>,
        observed: Option<Rejection>,
        query: &Query<'_>,
        head: &Head<'_>,
        read: &mut ReadRequests<'_>,
    ) -> Outcome {
        let StatedMatch { dsp_id, format, .. } = stated;
        let redirected = match observed {
            None => self
                .uid
                .begin_redirect(head, query, &self.cookies, read.output),
            Some(_) => Err(Rejection::UserMissing),
        };
        match redirected {
            Ok(()) => {
                let rejection = Rejection::UserMinted;
                read.tally.note_rejected(Some(dsp_id), rejection);
                Outcome::Rejected(rejection, Some(Answer::Redirect))
            }
            Err(rejection) => {
                let contract = read.known.contracts().of(dsp_id);
                let answer = response::answer_to_refused(rejection, contract, format);
                refused(Some(dsp_id), rejection, answer, read)
            }
        }
    }

    fn has_opted_out(&self, headers: &[Header<'_>]) -> bool {
        self.cookies.opted_out(head::cookies(headers))
    }

    /// Appends the accepted cookies of a read, subject to their limits, and counts the requests. Must precede the responses.
    fn append(&self, read: &mut ReadRequests<'_>) -> Result<(), Closed> {
        let count = u64::from(read.batch.count());
        if count > 0 {
            self.inlet.append(read.batch, read.read_at)?;
            self.metrics.accepted.inc_by(count);
        }
        self.metrics.dsps.add(&mut read.tally, read.known);
        Ok(())
    }
}

/// Whether scripts of pages from this origin may read the response, whatever it is.
#[cold]
fn is_readable_by(
    origin: &[u8],
    head: &Head<'_>,
    query: &Query<'_>,
    read: &ReadRequests<'_>,
) -> bool {
    let contracts = read.known.contracts();
    match (head.path, &contracts.plan) {
        ("/" | "/sync", _) => contracts.are_readable_by(origin, request::dsp_id(query)),
        (cookie_sync::PATH, Some(plan)) => plan.permits(origin),
        _ => false,
    }
}

/// Whether a request is for a plan. Without settings of plans, its path is unknown.
fn is_for_plan(head: &Head<'_>, read: &ReadRequests<'_>) -> bool {
    head.path == cookie_sync::PATH && read.known.contracts().plan.is_some()
}

/// Counts a rejected request, and begins its answer, if it has one.
fn refused(
    dsp_id: Option<DspId>,
    rejection: Rejection,
    answer: Option<Answer>,
    read: &mut ReadRequests<'_>,
) -> Outcome {
    read.tally.note_rejected(dsp_id, rejection);
    if let Some(answer) = answer {
        answer.begin(read.output);
    }
    Outcome::Rejected(rejection, answer)
}

/// Begins the response to a preflight, which a browser sends if a script adds headers to a request; returns false for others.
#[cold]
fn begin_preflight(head: &Head<'_>, headers: &[Header<'_>], output: &mut Vec<u8>) -> bool {
    let value = |name| head::values(headers, name).next();
    if head.method != "OPTIONS" || value("access-control-request-method").is_none() {
        return false;
    }
    Answer::None.begin(output);
    output.extend_from_slice(PREFLIGHT);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_, ".contains(byte);
    let names = value("access-control-request-headers");
    let names = names.filter(|it| it.len() <= PREFLIGHT_BYTES_MAX && it.iter().all(is_name));
    if let Some(names) = names {
        // The edge ignores headers that it does not know.
        output.extend_from_slice(b"access-control-allow-headers: ");
        output.extend_from_slice(names);
        output.extend_from_slice(b"\r\n");
    }
    true
}

#[cfg(test)]
mod tests;
