//! The lookup port (`--lookup`): HTTP/1.1 and gRPC, with or without TLS.
//!
//! Everything that a client can make the port do is bounded. Up to 64 requests wait for the store or for the rest of their body; further
//! ones are rejected at once, because waiting would cost a bidder more. Up to 64 MiB of large answers wait for their clients. Together
//! with the buffers of its connections, this adds up to 96 MiB, besides the replies of MongoDB that are being read.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode, Uri};
use proto::{limits::BUYER_UID_BYTES_MAX, units::DspId};
use runtime::{
    caller, listen::Limits, problem::Problem, reload::Reloader, tls::server::Handshakes, token,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{
    Lookups, Selection,
    metrics::{Api, Metrics},
    request::{BatchRequest, Rejection},
};
use crate::store::LookupResult;

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

/// Maximum bytes of a stored match in memory.
const MATCH_BYTES_MAX: usize = BUYER_UID_BYTES_MAX + 32;

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
    /// one.
    ///
    /// # Errors
    /// When nothing was read.
    pub(super) async fn read<'a>(
        &'a self,
        request: &BatchRequest<'_>,
        received: Instant,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<BatchResult<'a>, Rejection> {
        self.lookups.check_loaded()?;
        let mut charge = None;
        let found = match self.lookups.in_memory(&request.users) {
            Some(users) => LookupResult {
                users,
                ..LookupResult::default()
            },
            None => {
                let permit = match permit {
                    Some(permit) => permit,
                    None => self.begin()?,
                };
                let pairs = request.users.len() * request.dsps.len();
                charge = Some(self.charge(pairs * MATCH_BYTES_MAX)?);
                let (dsps, deadline) = (Arc::clone(&request.dsps), received + request.deadline);
                let lookups = &self.lookups;
                let found = lookups
                    .read(&request.users, Some(dsps), deadline, Some(permit))
                    .await?;
                let mut valid = request.users.iter().zip(&found.users);
                let is_none_read =
                    valid.all(|(user, found)| found.is_none() || user.valid().is_none());
                let has_valid = request.users.iter().any(|user| user.valid().is_some());
                if (has_valid && is_none_read) || found.unavailable.len() == request.dsps.len() {
                    let why = found
                        .why
                        .unwrap_or_else(|| "no response by the deadline".to_owned());
                    return Err(Rejection::Unavailable(why));
                }
                found
            }
        };
        let selection = self.lookups.selection(Some(Arc::clone(&request.dsps)));
        Ok(BatchResult {
            found,
            selection,
            _charge: charge,
        })
    }

    /// Writes the answer to a request, and counts its pairs.
    pub(super) fn write(
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
            .write(&request.users, &found.users, selection, answer);
        self.metrics
            .count_pairs(request, &tally, result.unavailable(), selection.now);
    }

    /// Counts a request.
    pub(super) fn count(&self, api: Api, outcome: &'static str, received: Instant) {
        self.metrics.count(api, outcome, received.elapsed());
    }
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
