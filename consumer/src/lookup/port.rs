//! The lookup port (`--lookup`): HTTP/1.1 and gRPC, with or without TLS.
//!
//! Everything that a client can make the port do is bounded. Up to 64 requests wait for the store or for the rest of their body; further
//! ones are rejected at once, because waiting would cost a bidder more. Up to 64 MiB of large answers wait for their clients. The buffers
//! of its connections need up to 32 MiB more, and MongoDB's replies are not counted while they are read.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode, Uri};
use proto::units::DspId;
use runtime::{
    caller, listen::Limits, problem::Problem, reload::Reloader, tls::server::Handshakes, token,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{
    Lookups, Selection, Tally,
    metrics::{Api, Metrics},
    request::{BatchRequest, Rejection},
};
use crate::store::{LookupResult, MATCH_BYTES_MAX};

/// Limits of the port's connections.
pub const LIMITS: Limits = Limits {
    connections_max: 256,
    connections_per_address_max: None,
    request_timeout: Some(Duration::from_secs(5)),
    idle_timeout: Duration::from_secs(75),
    write_timeout: Some(Duration::from_secs(10)),
};

/// Maximum number of requests that wait for the store or for the rest of their body.
const IN_PROGRESS_MAX: usize = 64;

/// Maximum bytes of large answers that wait for their clients.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Answers up to this size wait in the buffer of their connection.
pub(super) const SMALL_ANSWER_BYTES: usize = 16 << 10;

/// The unit in which large answers are counted.
const ANSWER_UNIT_BYTES: usize = 1 << 10;

runtime::problem_kinds! {
    INVALID BAD_REQUEST
    UNAUTHORIZED UNAUTHORIZED
    FORBIDDEN FORBIDDEN
    NOT_FOUND NOT_FOUND
    METHOD METHOD_NOT_ALLOWED
    LENGTH LENGTH_REQUIRED
    TOO_LARGE PAYLOAD_TOO_LARGE
    HOST MISDIRECTED_REQUEST
    BUSY TOO_MANY_REQUESTS
    HEADERS REQUEST_HEADER_FIELDS_TOO_LARGE
    UNAVAILABLE SERVICE_UNAVAILABLE
}

/// The state shared by all connections.
#[derive(Debug)]
pub struct LookupPort {
    pub(super) lookups: Lookups,
    pub(super) metrics: Metrics,
    tokens: Option<Arc<Reloader<token::File>>>,
    pub(super) tls: Option<Handshakes>,
    /// Whether only loopback host names are accepted.
    requires_loopback_host: bool,
    in_progress: Arc<Semaphore>,
    answers: Arc<Semaphore>,
}

/// What was read for a request.
pub(super) struct BatchResult<'a> {
    found: LookupResult,
    selection: Selection<'a>,
    /// For the maximum size of what was read.
    _charge: Option<OwnedSemaphorePermit>,
}

impl LookupPort {
    /// A port that answers clients with one of the `tokens`, if there are any.
    pub fn new(
        lookups: Lookups,
        metrics: Metrics,
        tokens: Option<Arc<Reloader<token::File>>>,
        tls: Option<Handshakes>,
        requires_loopback_host: bool,
    ) -> Self {
        Self {
            lookups,
            metrics,
            tokens,
            tls,
            requires_loopback_host,
            in_progress: Arc::new(Semaphore::new(IN_PROGRESS_MAX)),
            answers: Arc::new(Semaphore::new(ANSWER_BYTES_MAX / ANSWER_UNIT_BYTES)),
        }
    }

    /// Checks the host and the token of a request.
    ///
    /// # Errors
    /// A problem.
    pub(super) fn admit(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
        if self.requires_loopback_host && caller::is_foreign(headers, uri) {
            let detail = "this port accepts only localhost or a loopback address in the Host header, and no cross-site requests";
            return Err(Problem::new(HOST, detail));
        }
        let header = headers.get(http::header::AUTHORIZATION);
        self.authenticate(header.map(http::HeaderValue::as_bytes))
    }

    /// Checks the value of the header `Authorization`.
    ///
    /// # Errors
    /// A problem.
    pub(super) fn authenticate(&self, header: Option<&[u8]>) -> Result<(), Problem> {
        let Some(tokens) = &self.tokens else {
            return Ok(());
        };
        match tokens.current().authenticate_header(header) {
            Ok(_) => Ok(()),
            Err(error) => Err(Problem::new(UNAUTHORIZED, error.to_string())),
        }
    }

    /// Whether the check of [`admit`](Self::admit) depends on the host.
    pub(super) fn requires_loopback_host(&self) -> bool {
        self.requires_loopback_host
    }

    /// A permit for a request that must wait.
    ///
    /// # Errors
    /// When too many wait.
    pub(super) fn begin(&self) -> Result<OwnedSemaphorePermit, Rejection> {
        let permit = Arc::clone(&self.in_progress).try_acquire_owned();
        permit.map_err(|_| Rejection::Busy)
    }

    /// A permit for a large answer, to be held until the client has read it.
    ///
    /// # Errors
    /// When too many bytes wait.
    pub(super) fn charge(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Rejection> {
        let units = u32::try_from(bytes.div_ceil(ANSWER_UNIT_BYTES)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.answers).try_acquire_many_owned(units);
        permit.map_err(|_| Rejection::Busy)
    }

    /// Reads the matches for a request, which was `received` at this time. `permit` is one of [`begin`](Self::begin), if the caller has
    /// one. Counts the pairs if nothing was read.
    ///
    /// # Errors
    /// When nothing was read.
    pub(super) async fn read<'a>(
        &'a self,
        request: &BatchRequest<'_>,
        received: Instant,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<BatchResult<'a>, Rejection> {
        let mut charge = None;
        let begin = || {
            let permit = permit.map_or_else(|| self.begin(), Ok)?;
            let pairs = request.users.len() * request.dsps.len();
            charge = Some(self.charge(pairs * MATCH_BYTES_MAX)?);
            Ok(Some(permit))
        };
        let (dsps, deadline) = (Some(Arc::clone(&request.dsps)), received + request.deadline);
        let finding = self
            .lookups
            .find(&request.users, dsps.clone(), deadline, begin);
        let found = finding.await.and_then(|found| {
            if !is_anything_read(request, &found) {
                let late = || "no response by the deadline".to_owned();
                return Err(Rejection::Unavailable(found.why.unwrap_or_else(late)));
            }
            Ok(found)
        });
        let selection = self.lookups.selection(dsps);
        if let Err(Rejection::Unavailable(_)) = &found {
            let none = Tally {
                found: vec![(0, 0); request.dsps.len()],
                ..Tally::default()
            };
            self.metrics
                .count_pairs(request, &none, &request.dsps, selection.now);
        }
        Ok(BatchResult {
            found: found?,
            selection,
            _charge: charge,
        })
    }

    /// Writes the answer to a request, and counts its pairs.
    pub(super) async fn write(
        &self,
        request: &BatchRequest<'_>,
        result: &BatchResult<'_>,
        answer: &mut impl super::Answer,
    ) {
        let BatchResult {
            found, selection, ..
        } = result;
        let tally = self
            .lookups
            .write(&request.users, &found.users, selection, answer)
            .await;
        self.metrics
            .count_pairs(request, &tally, result.unavailable(), selection.now);
    }

    /// Counts a request.
    pub(super) fn count(&self, api: Api, outcome: &'static str, received: Instant) {
        self.metrics.count(api, outcome, received.elapsed());
    }
}

/// Whether the store answered for any valid user and any DSP.
fn is_anything_read(request: &BatchRequest<'_>, found: &LookupResult) -> bool {
    let mut users = request.users.iter().zip(&found.users);
    let has_valid = request.users.iter().any(|user| user.valid().is_some());
    found.unavailable.len() < request.dsps.len()
        && (!has_valid || users.any(|(user, found)| found.is_some() && user.valid().is_some()))
}

impl BatchResult<'_> {
    /// Whether everything was read.
    pub(super) fn is_complete(&self, request: &BatchRequest<'_>) -> bool {
        let mut users = request.users.iter().zip(&self.found.users);
        self.found.unavailable.is_empty()
            && users.all(|(user, found)| found.is_some() || user.valid().is_none())
    }

    /// The DSPs that could not be read.
    pub(super) fn unavailable(&self) -> &[DspId] {
        &self.found.unavailable
    }
}

impl Rejection {
    /// The problem, for HTTP.
    pub(super) fn problem(&self) -> Problem {
        match self {
            Self::Invalid(why) => Problem::new(INVALID, why.clone()),
            Self::TooLarge(why) => Problem::new(TOO_LARGE, why.clone()),
            Self::Busy => {
                let detail = "too many requests or answers in progress";
                Problem::new(BUSY, detail).retry_after(1)
            }
            Self::Unavailable(why) => {
                let detail = format!("cannot read the store: {why}");
                Problem::new(UNAVAILABLE, detail).retry_after(1)
            }
        }
    }

    /// The label of the outcome in metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::TooLarge(_) => "too_large",
            Self::Busy => "busy",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

/// The label of the outcome with this status.
pub(super) fn label_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "unauthenticated",
        404 => "not_found",
        413 | 431 => "too_large",
        429 => "busy",
        _ => "invalid",
    }
}
