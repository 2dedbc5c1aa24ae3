//! What is asked over HTTP: paths, queries and bodies, checked and within bounds.

use std::{borrow::Cow, fmt, time::Duration};

use http::{HeaderMap, HeaderValue, Method, header};
use jiff::Timestamp;
use limits::rate::REQUESTS_MAX;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    clock::nanos,
    engine::{CallRule, LIMIT_BYTES_MAX, Target},
    feedback::Feedback,
    problem::{Problem, invalid},
};

/// Most bytes of a counter's name.
const COUNTER_BYTES_MAX: usize = 256;

/// Most limits of a call beside that of its path.
const ALSO_MAX: usize = 15;

/// The largest maximum wait, and that of a call that says none.
const MAX_WAIT_BOUND: Duration = Duration::from_secs(86_400);
const MAX_WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The calls that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Delay,
    Reserve,
    Increment,
    Feedback,
}

/// A limit and a counter. Prints as both with a slash between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counter {
    pub(super) limit: String,
    pub(super) counter: String,
}

/// A call, with the limits that it is under.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) of: Vec<Counter>,
    /// The rule of the first of them, if the call says it.
    pub(super) rule: Option<CallRule>,
    pub(super) what: What,
}

/// What is asked of counters.
#[derive(Debug)]
pub(super) enum What {
    Delay {
        requests: u64,
    },
    Reserve {
        requests: u64,
        max_wait: Duration,
        /// Whether the answer is held until the slot.
        is_held: bool,
    },
    Increment {
        requests: u64,
        /// In nanoseconds since 1970; `None` for now.
        at: Option<u64>,
    },
    Feedback(Feedback),
}

impl Counter {
    /// Names that may be.
    pub(super) fn named(limit: &str, counter: &str) -> Result<Self, Problem> {
        let limit = limit_name(limit)?;
        if counter.is_empty()
            || counter.len() > COUNTER_BYTES_MAX
            || counter.chars().any(char::is_control)
        {
            return Err(invalid(format!(
                "a counter's name has 1 to {COUNTER_BYTES_MAX} bytes and no control characters"
            )));
        }
        Ok(Self {
            limit,
            counter: counter.to_owned(),
        })
    }

    fn target(&self) -> Target<'_> {
        Target {
            limit: &self.limit,
            counter: &self.counter,
        }
    }
}

impl Asked {
    /// What a call with this path, query and body asks.
    pub(super) fn read(
        call: Call,
        first: Counter,
        query: Query,
        body: &[u8],
    ) -> Result<Self, Problem> {
        if query.n.is_some() && call != Call::Delay {
            return Err(invalid("n: belongs into the body"));
        }
        let (mut interval, mut requests) = (query.interval, query.requests);
        let what = match call {
            Call::Delay => What::Delay {
                requests: at_least_one(query.n)?,
            },
            Call::Reserve => {
                let body: Reserve = read(body)?;
                interval = interval.or(body.interval);
                requests = requests.or(body.requests);
                What::Reserve {
                    requests: at_least_one(body.n)?,
                    max_wait: body.max_wait()?,
                    is_held: body.wait == Some(true),
                }
            }
            Call::Increment => {
                let body: Increment = read(body)?;
                interval = interval.or(body.interval);
                requests = requests.or(body.requests);
                What::Increment {
                    requests: at_least_one(body.n)?,
                    at: body.at()?,
                }
            }
            Call::Feedback => What::Feedback(read::<Feedback>(body)?),
        };
        let rule = match (interval, requests) {
            (None, None) => None,
            (Some(interval), Some(requests)) => {
                Some(CallRule::new(interval, requests).map_err(invalid)?)
            }
            _ => return Err(invalid("interval and requests belong together")),
        };
        Ok(Self {
            of: [first].into_iter().chain(query.also).collect(),
            rule,
            what,
        })
    }

    pub(super) fn targets(&self) -> Vec<Target<'_>> {
        self.of.iter().map(Counter::target).collect()
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.limit, self.counter)
    }
}

/// A limit's name that may be.
fn limit_name(name: &str) -> Result<String, Problem> {
    if name.is_empty() || name.len() > LIMIT_BYTES_MAX || name.contains('/') {
        return Err(invalid(format!(
            "a limit's name has 1 to {LIMIT_BYTES_MAX} bytes and no slash"
        )));
    }
    Ok(name.to_owned())
}

/// How many requests: one, unless it is said.
fn at_least_one(n: Option<u64>) -> Result<u64, Problem> {
    let n = n.unwrap_or(1);
    if !(1..=REQUESTS_MAX).contains(&n) {
        return Err(invalid(format!("n: 1 to {REQUESTS_MAX}")));
    }
    Ok(n)
}

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Path<'a> {
    /// A call: what is asked, of which limit and counter.
    Call(Call, Counter),
    /// A limit itself.
    Limit(String),
    /// The description of all others.
    OpenApi,
    Problem(&'a str),
    Other,
}

/// How a call is made.
pub(super) fn method(call: Call) -> Method {
    match call {
        Call::Delay => Method::GET,
        Call::Reserve | Call::Increment | Call::Feedback => Method::POST,
    }
}

impl<'a> Path<'a> {
    pub(super) fn of(path: &'a str) -> Result<Self, Problem> {
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
            ["", limit] => Self::Limit(limit_name(&decoded(limit)?)?),
            ["", limit, counter, call] => {
                let call = match call {
                    "delay" => Call::Delay,
                    "reserve" => Call::Reserve,
                    "increment" => Call::Increment,
                    "feedback" => Call::Feedback,
                    _ => return Ok(Self::Other),
                };
                Self::Call(call, Counter::named(&decoded(limit)?, &decoded(counter)?)?)
            }
            _ => Self::Other,
        })
    }
}

fn decoded(text: &str) -> Result<Cow<'_, str>, Problem> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map_err(|_| invalid("a name is not UTF-8"))
}

/// What the query says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Limits that the call is under beside that of the path.
    also: Vec<Counter>,
    /// How many requests; of a delay only.
    n: Option<u64>,
    /// The rule of the limit of the path.
    interval: Option<u64>,
    requests: Option<u64>,
}

impl Query {
    pub(super) fn of(query: &str) -> Result<Self, Problem> {
        let mut read = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = decoded(&value)?;
            match name {
                "also" if read.also.len() == ALSO_MAX => {
                    return Err(invalid(format!("also: {ALSO_MAX} at most")));
                }
                "also" => {
                    let pair = value.split_once('/');
                    let (limit, counter) =
                        pair.ok_or_else(|| invalid("also: write a limit, a slash and a counter"))?;
                    read.also.push(Counter::named(limit, counter)?);
                }
                "n" | "interval" | "requests" => {
                    let number = match name {
                        "n" => &mut read.n,
                        "interval" => &mut read.interval,
                        _ => &mut read.requests,
                    };
                    let wrong = |why| invalid(format!("{name}: {why}"));
                    let value = value.parse().map_err(|_| wrong("is not a whole number"))?;
                    if number.replace(value).is_some() {
                        return Err(wrong("is given twice"));
                    }
                }
                _ => return Err(invalid(format!("{name:?} is not a parameter of this path"))),
            }
        }
        Ok(read)
    }
}

/// The body of `increment`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Increment {
    n: Option<u64>,
    interval: Option<u64>,
    requests: Option<u64>,
    at: Option<String>,
}

impl Increment {
    /// When the calls were made, in nanoseconds since 1970; what was before that was too long ago in any case.
    fn at(&self) -> Result<Option<u64>, Problem> {
        let Some(at) = &self.at else { return Ok(None) };
        let at: Timestamp = at
            .parse()
            .map_err(|_| invalid("at: is not a time as in 2026-11-22T10:00:59.5Z"))?;
        Ok(Some(nanos(at)))
    }
}

/// The body of `reserve`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reserve {
    n: Option<u64>,
    interval: Option<u64>,
    requests: Option<u64>,
    max_wait: Option<f64>,
    wait: Option<bool>,
}

impl Reserve {
    fn max_wait(&self) -> Result<Duration, Problem> {
        let max_wait = self.max_wait.map(Duration::try_from_secs_f64).transpose();
        let max_wait = max_wait.map_err(|_| invalid("max_wait: is not a time"))?;
        let max_wait = max_wait.unwrap_or(MAX_WAIT_DEFAULT);
        if max_wait > MAX_WAIT_BOUND {
            let most = MAX_WAIT_BOUND.as_secs();
            return Err(invalid(format!("max_wait: 0 to {most} seconds")));
        }
        Ok(max_wait)
    }
}

/// Whether a body is said to be JSON. None need not be; but an empty one is what a page of another site may send.
pub(super) fn is_json(headers: &HeaderMap, has_body: bool) -> bool {
    if !has_body && !headers.contains_key(header::CONTENT_TYPE) {
        return !headers.contains_key(header::ORIGIN);
    }
    let media_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let essence = media_type.and_then(|it| it.split(|byte| *byte == b';').next());
    essence.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(b"application/json"))
}

/// A body; an empty one says nothing.
fn read<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Problem> {
    let body = body.trim_ascii();
    if body.is_empty() {
        return Ok(T::default());
    }
    // An array would be taken for the values of all fields in order.
    if !body.starts_with(b"{") {
        return Err(invalid("the body is not a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(limit: &str, counter: &str) -> Counter {
        Counter::named(limit, counter).unwrap()
    }

    fn asked(call: Call, query: &str, body: &[u8]) -> Result<Asked, Problem> {
        Asked::read(call, counter("a", "k"), Query::of(query)?, body)
    }

    #[test]
    fn paths_and_queries_name_limits_and_counters() {
        let call = Path::Call(Call::Delay, counter("a b", "c/d"));
        assert_eq!(Path::of("/v1/limits/a%20b/c%2Fd/delay").unwrap(), call);
        let limit = Path::Limit("a b".to_owned());
        assert_eq!(Path::of("/v1/limits/a%20b").unwrap(), limit);
        for other in [
            "/",
            "/v1",
            "/v1/limits",
            "/v1/limits/a/b",
            "/v1/limits/a/b/c",
            "/v1/limitsx",
        ] {
            let path = Path::of(other).unwrap();
            assert!(!matches!(path, Path::Call(..)), "{other}");
        }
        for wrong in [
            "/v1/limits//c/delay",
            "/v1/limits/a/%00/delay",
            "/v1/limits/%ff/c/delay",
        ] {
            assert!(Path::of(wrong).is_err(), "{wrong}");
        }
        let query = Query::of("also=x/y%2Fz&n=3&also=whole/1").unwrap();
        assert_eq!(query.also, [counter("x", "y/z"), counter("whole", "1")]);
        assert_eq!(query.n, Some(3));
        for wrong in ["also=x", "n=-1", "m=1", "also=/c", "n=1&n=1"] {
            assert!(Query::of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bodies_are_strict_about_names_and_ranges() {
        let reserve: Reserve = read(b"{\"max_wait\": 0.25, \"wait\": true}").unwrap();
        assert_eq!(reserve.max_wait().unwrap(), Duration::from_millis(250));
        assert_eq!(
            read::<Reserve>(b" ").unwrap().max_wait().unwrap(),
            Duration::from_secs(30)
        );
        assert!(read::<Reserve>(b"{\"horizn\": 1}").is_err());
        for wrong in ["{\"max_wait\": -1}", "{\"max_wait\": 1e9}"] {
            assert!(asked(Call::Reserve, "", wrong.as_bytes()).is_err());
        }
        let increment: Increment = read(b"{\"at\": \"2023-11-14T22:13:20Z\"}").unwrap();
        assert_eq!(increment.at().unwrap(), Some(1_700_000_000_000_000_000));
        for (at, expected) in [("2600-01-01", u64::MAX), ("1960-01-01", 0)] {
            let body = format!("{{\"at\": \"{at}T00:00:00Z\"}}");
            let increment: Increment = read(body.as_bytes()).unwrap();
            assert_eq!(increment.at().unwrap(), Some(expected));
        }
        for call in [Call::Reserve, Call::Increment, Call::Feedback] {
            for wrong in ["[]", "[200]", "[null, null, null]", "1", "null", " [1]"] {
                assert!(asked(call, "", wrong.as_bytes()).is_err(), "{wrong}");
            }
        }
        assert!(asked(Call::Increment, "", b"{\"at\": \"now\"}").is_err());
        assert!(asked(Call::Increment, "n=1", b"").is_err());
        for wrong in [
            "interval=1",
            "requests=1",
            "interval=0&requests=1",
            "interval=1&requests=0",
            "interval=2678401&requests=1",
            "interval=1&requests=1000000000001",
        ] {
            assert!(asked(Call::Delay, wrong, b"").is_err(), "{wrong}");
        }
        let body = b"{\"interval\": 60, \"requests\": 100}";
        let query = "interval=60&requests=100";
        let rule = asked(Call::Increment, "", body).unwrap().rule;
        assert_eq!(rule, asked(Call::Delay, query, b"").unwrap().rule);
        assert!(rule.is_some());
    }

    #[test]
    fn what_is_asked_has_bounds() {
        assert_eq!(at_least_one(None).unwrap(), 1);
        assert!(at_least_one(Some(0)).is_err() && at_least_one(Some(u64::MAX)).is_err());
        let longer = b"{\"max_wait\": 86400.001}";
        assert!(asked(Call::Reserve, "", longer).is_err());
        assert!(Feedback::default().said(0).is_err());
        for (limit, counter) in [("", "c"), ("a/b", "c"), ("a", ""), ("a", "\n")] {
            assert!(Counter::named(limit, counter).is_err(), "{limit}/{counter}");
        }
        assert!(Counter::named("a", &"c".repeat(COUNTER_BYTES_MAX + 1)).is_err());
    }
}
