//! HTTP requests: paths, queries and bodies, validated and bounded.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use http::{HeaderMap, HeaderValue, header};
use jiff::Timestamp;
use limits::rate::REQUESTS_MAX;
use percent_encoding::percent_decode_str;
use runtime::limit_headers::LimitHeaders;
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    clock::nanos,
    engine::{CallRule, Feedback, LIMIT_BYTES_MAX, Target},
    problem::{Problem, invalid},
};

/// Maximum bytes of a counter's name.
const COUNTER_BYTES_MAX: usize = 256;

/// Maximum number of limits of a call in addition to the limit in its path.
const ALSO_MAX: usize = 15;

/// Largest maximum wait of a reservation, and its default.
const MAX_WAIT_BOUND: Duration = Duration::from_secs(86_400);
const MAX_WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// Methods of read-only resources.
pub(super) const GET: &str = "GET, HEAD";

/// The last segment of a path below a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Returns the earliest time for a call.
    Delay,
    /// Reserves a slot.
    Reserve,
    /// Counts calls already made.
    Increment,
    /// Reports the response of a partner.
    Feedback,
}

/// An operation on counters.
#[derive(Debug)]
pub struct LimitedCall {
    /// At least one.
    pub counters: Vec<Target>,
    /// The rule for the first counter, if the call provides one.
    pub rule: Option<CallRule>,
    /// The operation.
    pub kind: CallKind,
}

/// An operation with its parameters.
#[derive(Debug, Clone)]
pub enum CallKind {
    /// Returns the earliest time for a call.
    Delay {
        /// Number of requests.
        requests: u64,
    },
    /// Reserves a slot.
    Reserve {
        /// Number of requests.
        requests: u64,
        /// Maximum wait for the slot.
        max_wait: Duration,
        /// Whether the response waits until the slot.
        is_held: bool,
    },
    /// Counts calls already made.
    Increment {
        /// Number of requests.
        requests: u64,
        /// Time of the calls in nanoseconds since 1970; `None` for now.
        at: Option<u64>,
    },
    /// Reports the response of a partner.
    Feedback {
        /// The response.
        feedback: Feedback,
        /// Its header fields that have no effect, each with the reason.
        ignored: BTreeMap<&'static str, &'static str>,
    },
}

impl Endpoint {
    /// Allowed methods, as in an Allow header.
    pub(super) fn methods(self) -> &'static str {
        match self {
            Self::Delay => GET,
            Self::Reserve | Self::Increment | Self::Feedback => "POST",
        }
    }
}

impl LimitedCall {
    /// Parses the query and body of an operation on the counter `first`, received at `now`.
    ///
    /// # Errors
    /// When the body or the query is invalid.
    pub fn read(
        endpoint: Endpoint,
        first: Target,
        query: Query,
        body: &[u8],
        now: u64,
    ) -> Result<Self, Problem> {
        if query.n.is_some() && endpoint != Endpoint::Delay {
            return Err(invalid(
                "`n` is not a query parameter here: set it in the body",
            ));
        }
        let kind = match endpoint {
            Endpoint::Delay => CallKind::Delay {
                requests: number_of_requests(query.n)?,
            },
            Endpoint::Reserve => {
                let body: Reserve = read(body)?;
                CallKind::Reserve {
                    requests: number_of_requests(body.n)?,
                    max_wait: body.max_wait()?,
                    is_held: body.wait == Some(true),
                }
            }
            Endpoint::Increment => {
                let body: Increment = read(body)?;
                CallKind::Increment {
                    requests: number_of_requests(body.n)?,
                    at: body.at()?,
                }
            }
            Endpoint::Feedback if !query.also.is_empty() => {
                let why = "`also` is not supported here: send separate feedback for each limit";
                return Err(invalid(why));
            }
            Endpoint::Feedback => {
                let body: FeedbackBody = read(body)?;
                let status = body.status.ok_or_else(|| invalid("missing `status`"))?;
                if !(100..=599).contains(&status) {
                    return Err(invalid(format!("`status` is {status}: use 100 to 599")));
                }
                let demand = body.headers.demand(status, Duration::from_nanos(now));
                CallKind::Feedback {
                    feedback: Feedback {
                        status,
                        windows: demand.windows,
                    },
                    ignored: demand.ignored.into_iter().collect(),
                }
            }
        };
        let rule = match (query.interval, query.requests) {
            (None, None) => None,
            (Some(interval), Some(requests)) => {
                Some(CallRule::new(interval, requests).map_err(invalid)?)
            }
            _ => {
                return Err(invalid(
                    "`interval` and `requests` must be provided together",
                ));
            }
        };
        Ok(Self {
            counters: [first].into_iter().chain(query.also).collect(),
            rule,
            kind,
        })
    }
}

/// Checks the names of a limit and of a counter under it.
///
/// # Errors
/// When a name is invalid.
pub fn target(limit: &str, counter: &str) -> Result<Target, Problem> {
    if limit.is_empty() || limit.len() > LIMIT_BYTES_MAX || limit.contains('/') {
        return Err(invalid(format!(
            "invalid limit name: use 1 to {LIMIT_BYTES_MAX} bytes and no slash"
        )));
    }
    if counter.trim().is_empty()
        || counter.len() > COUNTER_BYTES_MAX
        || counter.chars().any(char::is_control)
    {
        return Err(invalid(format!(
            "invalid counter name: use 1 to {COUNTER_BYTES_MAX} bytes and no control characters"
        )));
    }
    Ok(Target {
        limit: limit.to_owned(),
        counter: counter.to_owned(),
    })
}

fn number_of_requests(n: Option<u64>) -> Result<u64, Problem> {
    let n = n.unwrap_or(1);
    if !(1..=REQUESTS_MAX).contains(&n) {
        return Err(invalid(format!("`n` is {n}: use 1 to {REQUESTS_MAX}")));
    }
    Ok(n)
}

/// Resource named by a path.
#[derive(Debug, PartialEq, Eq)]
pub enum Path<'a> {
    /// An operation on a counter.
    Call(Endpoint, Target),
    /// The API description.
    OpenApi,
    /// The page of a problem type.
    Problem(&'a str),
    /// None of these.
    Other,
}

impl<'a> Path<'a> {
    /// Parses a path.
    ///
    /// # Errors
    /// When a name in it is invalid.
    pub fn of(path: &'a str) -> Result<Self, Problem> {
        if let Some(name) = path.strip_prefix("/v1/problems/") {
            return Ok(Self::Problem(name));
        }
        if path == "/v1/openapi.json" {
            return Ok(Self::OpenApi);
        }
        let Some(rest) = path.strip_prefix("/v1/limits") else {
            return Ok(Self::Other);
        };
        let segments: Vec<&str> = rest.split('/').collect();
        Ok(match segments[..] {
            ["", limit, counter, endpoint] => {
                let endpoint = match endpoint {
                    "delay" => Endpoint::Delay,
                    "reserve" => Endpoint::Reserve,
                    "increment" => Endpoint::Increment,
                    "feedback" => Endpoint::Feedback,
                    _ => return Ok(Self::Other),
                };
                let counter = target(&decoded(limit)?, &decoded(counter)?)?;
                Self::Call(endpoint, counter)
            }
            _ => Self::Other,
        })
    }
}

fn decoded(text: &str) -> Result<Cow<'_, str>, Problem> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map_err(|_| invalid("a percent-encoded name is not UTF-8"))
}

/// Query parameters.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Further counters of the call.
    also: Vec<Target>,
    /// Number of requests; only for `delay`.
    n: Option<u64>,
    /// Rule for the counter of the path.
    interval: Option<u64>,
    requests: Option<u64>,
}

impl Query {
    /// Parses a query.
    ///
    /// # Errors
    /// When a parameter is unknown, invalid or duplicate.
    pub fn of(query: &str) -> Result<Self, Problem> {
        let mut read = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = decoded(&value)?;
            let number = match name {
                "also" if read.also.len() == ALSO_MAX => {
                    return Err(invalid(format!("more than {ALSO_MAX} values of `also`")));
                }
                "also" => {
                    let pair = value.split_once('/');
                    let (limit, counter) = pair.ok_or_else(|| {
                        invalid(format!("invalid `also` {value:?}: use LIMIT/COUNTER"))
                    })?;
                    read.also.push(target(limit, counter)?);
                    continue;
                }
                "n" => &mut read.n,
                "interval" => &mut read.interval,
                "requests" => &mut read.requests,
                _ => return Err(invalid(format!("unknown query parameter {name:?}"))),
            };
            let value = value.parse();
            let value =
                value.map_err(|_| invalid(format!("invalid `{name}`: use a whole number")))?;
            if number.replace(value).is_some() {
                return Err(invalid(format!("duplicate query parameter `{name}`")));
            }
        }
        Ok(read)
    }
}

/// Body of `increment`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Increment {
    n: Option<u64>,
    at: Option<String>,
}

impl Increment {
    /// Time of the calls in nanoseconds since 1970; 0 for earlier times, which have no effect anyway.
    fn at(&self) -> Result<Option<u64>, Problem> {
        let at = self.at.as_deref().map(str::parse::<Timestamp>).transpose();
        let example = "2026-11-22T10:00:59.5Z";
        let at = at.map_err(|_| invalid(format!("invalid `at`: use a time such as {example}")))?;
        Ok(at.map(nanos))
    }
}

/// Body of `reserve`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reserve {
    n: Option<u64>,
    max_wait: Option<f64>,
    wait: Option<bool>,
}

impl Reserve {
    fn max_wait(&self) -> Result<Duration, Problem> {
        let max_wait = self.max_wait.map(Duration::try_from_secs_f64).transpose();
        let max_wait = max_wait.ok().map(|it| it.unwrap_or(MAX_WAIT_DEFAULT));
        max_wait.filter(|it| *it <= MAX_WAIT_BOUND).ok_or_else(|| {
            let bound = MAX_WAIT_BOUND.as_secs();
            invalid(format!("invalid `max_wait`: use 0 to {bound} seconds"))
        })
    }
}

/// Body of `feedback`: status and header fields as the partner sent them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FeedbackBody {
    status: Option<u16>,
    #[serde(flatten)]
    headers: LimitHeaders,
}

/// Whether the Content-Type of a request is JSON. A request without a body needs no Content-Type, except from a browser:
/// a page of another site could send it.
pub(super) fn is_json(headers: &HeaderMap, has_body: bool) -> bool {
    if !has_body && !headers.contains_key(header::CONTENT_TYPE) {
        return !headers.contains_key(header::ORIGIN);
    }
    let media_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let essence = media_type.and_then(|it| it.split(|byte| *byte == b';').next());
    essence.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(b"application/json"))
}

/// Parses a body; an empty body is parsed as `{}`.
fn read<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Problem> {
    let body = body.trim_ascii();
    if body.is_empty() {
        return Ok(T::default());
    }
    // serde would read an array as the values of all fields.
    if !body.starts_with(b"{") {
        return Err(invalid("the body is not a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests;
