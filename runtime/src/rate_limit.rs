//! RateLimit fields: what an answer over HTTP tells of the limit that decided it.
//!
//! Whatever answers [writes](Quota::write) a [`Quota`] into the head, in the form that the port's clients read.

use std::{
    fmt::{self, Write as _},
    str::FromStr,
    time::Duration,
};

use http::{HeaderMap, HeaderValue};

/// Largest integer of a structured field (RFC 9651).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// How a limit stands for the caller that asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// The name of the limit.
    pub policy: String,
    /// Most requests that may go at once.
    pub most: u64,
    /// How long it takes until so many may go again.
    pub window: Duration,
    /// Requests that may still go at once.
    pub remaining: u64,
    /// How long it takes until more may.
    pub reset: Duration,
}

/// In which form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fields {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, in seconds.
    #[default]
    XRateLimit,
    /// `RateLimit-Policy` and `RateLimit`, structured, as draft-ietf-httpapi-ratelimit-headers-10 has them.
    Draft,
    /// None.
    Off,
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::XRateLimit => "x-ratelimit",
            Self::Draft => "ratelimit",
            Self::Off => "none",
        })
    }
}

impl FromStr for Fields {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "x-ratelimit" => Ok(Self::XRateLimit),
            "ratelimit" => Ok(Self::Draft),
            "none" => Ok(Self::Off),
            _ => Err(format!("{text:?} is none of x-ratelimit, ratelimit, none")),
        }
    }
}

impl Quota {
    /// Writes it into the head of an answer.
    pub fn write(&self, fields: Fields, headers: &mut HeaderMap) {
        let [most, remaining] = [self.most, self.remaining].map(|it| it.min(INTEGER_MAX));
        let (window, reset) = (seconds(self.window), seconds(self.reset));
        match fields {
            Fields::Off => {}
            Fields::XRateLimit => {
                headers.insert("x-ratelimit-limit", most.into());
                headers.insert("x-ratelimit-remaining", remaining.into());
                headers.insert("x-ratelimit-reset", reset.into());
            }
            Fields::Draft => {
                let name = quoted(&self.policy);
                // A policy's window has whole seconds, and at least one.
                let window = match self.window.as_secs() {
                    0 => String::new(),
                    _ => format!(";w={window}"),
                };
                let policy = format!("{name};q={most}{window}");
                let limit = format!("{name};r={remaining};t={reset}");
                for (name, value) in [("ratelimit-policy", policy), ("ratelimit", limit)] {
                    let value = HeaderValue::try_from(value).expect("printable ASCII");
                    headers.insert(name, value);
                }
            }
        }
    }
}

/// Whole seconds, rounded up.
fn seconds(time: Duration) -> u64 {
    let part = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(part).min(INTEGER_MAX)
}

/// A string of structured fields, which has printable ASCII alone: the rest is percent-encoded.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => {
                quoted.push('\\');
                quoted.push(char::from(byte));
            }
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => write!(quoted, "%{byte:02X}").expect("a string takes it"),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(fields: Fields, quota: &Quota) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        quota.write(fields, &mut headers);
        let mut fields: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        fields.sort();
        fields
    }

    fn quota() -> Quota {
        Quota {
            policy: "dsp-17/day".to_owned(),
            most: 50_000,
            window: Duration::from_secs(86_400),
            remaining: 12,
            reset: Duration::from_millis(1_001),
        }
    }

    #[track_caller]
    fn same(found: &[(String, String)], expected: &[(&str, &str)]) {
        let found: Vec<_> = found.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn answers_tell_their_quota_in_the_form_that_was_chosen() {
        same(
            &written("x-ratelimit".parse().unwrap(), &quota()),
            &[
                ("x-ratelimit-limit", "50000"),
                ("x-ratelimit-remaining", "12"),
                ("x-ratelimit-reset", "2"),
            ],
        );
        same(
            &written("ratelimit".parse().unwrap(), &quota()),
            &[
                ("ratelimit", "\"dsp-17/day\";r=12;t=2"),
                ("ratelimit-policy", "\"dsp-17/day\";q=50000;w=86400"),
            ],
        );
        same(&written(Fields::Off, &quota()), &[]);
        assert!("draft".parse::<Fields>().is_err());
    }

    #[test]
    fn every_name_and_number_has_a_form() {
        let odd = Quota {
            policy: "ü \"\\\n".to_owned(),
            most: u64::MAX,
            window: Duration::from_millis(999),
            remaining: 0,
            reset: Duration::MAX,
        };
        same(
            &written(Fields::Draft, &odd),
            &[
                ("ratelimit", "\"%C3%BC \\\"\\\\%0A\";r=0;t=999999999999999"),
                (
                    "ratelimit-policy",
                    "\"%C3%BC \\\"\\\\%0A\";q=999999999999999",
                ),
            ],
        );
    }
}
