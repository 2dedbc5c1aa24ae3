//! What is asked over HTTP: paths, queries and bodies.

use std::{borrow::Cow, time::Duration};

use http::{HeaderMap, HeaderValue, Method, header};
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, de::DeserializeOwned};

use super::super::{
    asked::{self, Call, Counter, Feedback, LIMITS_OF_A_CALL_MAX, What, invalid, limit_name},
    clock::nanos,
    engine::CallRule,
    problem::Problem,
};

/// Most limits of a call beside that of its path.
const ALSO_MAX: usize = LIMITS_OF_A_CALL_MAX - 1;

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
    pub(super) also: Vec<Counter>,
    /// How many requests; of a delay only.
    pub(super) n: Option<u64>,
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

/// What a call asks, and its rule, by its query and its body.
pub(super) fn what(
    call: Call,
    query: &Query,
    body: &[u8],
) -> Result<(What, Option<CallRule>), Problem> {
    if query.n.is_some() && call != Call::Delay {
        return Err(invalid("n: belongs into the body"));
    }
    let (mut interval, mut requests) = (query.interval, query.requests);
    let what = match call {
        Call::Delay => What::Delay {
            requests: asked::requests(query.n)?,
        },
        Call::Reserve => {
            let body: Reserve = read(body)?;
            interval = interval.or(body.interval);
            requests = requests.or(body.requests);
            What::Reserve {
                requests: asked::requests(body.n)?,
                horizon: body.horizon()?,
                is_held: body.wait == Some(true),
            }
        }
        Call::Increment => {
            let body: Increment = read(body)?;
            interval = interval.or(body.interval);
            requests = requests.or(body.requests);
            What::Increment {
                requests: asked::requests(body.n)?,
                at: body.at()?,
            }
        }
        Call::Feedback => What::Feedback(read::<Feedback>(body)?),
    };
    Ok((what, asked::rule(interval, requests)?))
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
    horizon: Option<f64>,
    wait: Option<bool>,
}

impl Reserve {
    fn horizon(&self) -> Result<Duration, Problem> {
        let horizon = self.horizon.map(Duration::try_from_secs_f64).transpose();
        asked::horizon(horizon.map_err(|_| invalid("horizon: is not a time"))?)
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
        let reserve: Reserve = read(b"{\"horizon\": 0.25, \"wait\": true}").unwrap();
        assert_eq!(reserve.horizon().unwrap(), Duration::from_millis(250));
        assert_eq!(
            read::<Reserve>(b" ").unwrap().horizon().unwrap(),
            Duration::from_secs(30)
        );
        assert!(read::<Reserve>(b"{\"horizn\": 1}").is_err());
        for wrong in ["{\"horizon\": -1}", "{\"horizon\": 1e9}"] {
            assert!(what(Call::Reserve, &Query::default(), wrong.as_bytes()).is_err());
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
                assert!(
                    what(call, &Query::default(), wrong.as_bytes()).is_err(),
                    "{wrong}"
                );
            }
        }
        assert!(what(Call::Increment, &Query::default(), b"{\"at\": \"now\"}").is_err());
        let query = Query::of("n=1").unwrap();
        assert!(what(Call::Increment, &query, b"").is_err());
        for wrong in [
            "interval=1",
            "requests=1",
            "interval=0&requests=1",
            "interval=1&requests=0",
            "interval=2678401&requests=1",
            "interval=1&requests=1000000000001",
        ] {
            let query = Query::of(wrong).unwrap();
            assert!(what(Call::Delay, &query, b"").is_err(), "{wrong}");
        }
        let body = b"{\"interval\": 60, \"requests\": 100}";
        let query = Query::of("interval=60&requests=100").unwrap();
        let (_, rule) = what(Call::Increment, &Query::default(), body).unwrap();
        assert_eq!(rule, what(Call::Delay, &query, b"").unwrap().1);
        assert!(rule.is_some());
    }
}
