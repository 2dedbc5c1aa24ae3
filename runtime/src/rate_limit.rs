//! Rate-limit headers of HTTP responses: the state of the limit that determined the response.

use std::{fmt::Write as _, time::Duration};

use http::{HeaderMap, HeaderName};

/// Maximum integer of a structured field (RFC 9651).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// The state of a limit for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Name of the limit.
    pub policy: String,
    /// Maximum requests in one burst.
    pub limit: u64,
    /// Time until a full burst is available again.
    pub window: Duration,
    /// Requests available now.
    pub remaining: u64,
    /// Time until more requests are available.
    pub reset: Duration,
}

/// The format of the headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HeaderFormat {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, in seconds.
    #[default]
    #[value(name = "x-ratelimit")]
    XRateLimit,
    /// `RateLimit-Policy` and `RateLimit`, structured, of draft-ietf-httpapi-ratelimit-headers-10.
    #[value(name = "ratelimit")]
    Draft,
    /// No headers.
    #[value(name = "none")]
    Off,
}

impl Quota {
    /// Adds the headers to a response.
    pub fn write(&self, format: HeaderFormat, headers: &mut HeaderMap) {
        for (name, value) in self
            .lines(format)
            .lines()
            .filter_map(|it| it.split_once(": "))
        {
            let name = HeaderName::try_from(name).expect("a valid name");
            headers.insert(name, value.parse().expect("printable ASCII"));
        }
    }

    /// The headers as lines, each with its line break.
    pub fn lines(&self, format: HeaderFormat) -> String {
        let [limit, remaining] = [self.limit, self.remaining].map(|it| it.min(INTEGER_MAX));
        let (window, reset) = (seconds(self.window), seconds(self.reset));
        match format {
            HeaderFormat::Off => String::new(),
            HeaderFormat::XRateLimit => format!(
                "x-ratelimit-limit: {limit}\r\nx-ratelimit-remaining: {remaining}\r\nx-ratelimit-reset: {reset}\r\n"
            ),
            HeaderFormat::Draft => {
                let name = quoted(&self.policy);
                // The draft allows only windows of whole seconds, at least one.
                let window = match self.window.as_secs() {
                    0 => String::new(),
                    _ => format!(";w={window}"),
                };
                format!(
                    "ratelimit-policy: {name};q={limit}{window}\r\nratelimit: {name};r={remaining};t={reset}\r\n"
                )
            }
        }
    }
}

/// Whole seconds, rounded up.
fn seconds(time: Duration) -> u64 {
    let partial = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(partial).min(INTEGER_MAX)
}

/// A string of structured fields. It allows only printable ASCII, so other bytes are percent-encoded.
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
            _ => write!(quoted, "%{byte:02X}").expect("writing to a string never fails"),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: HeaderFormat, quota: &Quota) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        quota.write(format, &mut headers);
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
            limit: 50_000,
            window: Duration::from_secs(86_400),
            remaining: 12,
            reset: Duration::from_millis(1_001),
        }
    }

    #[track_caller]
    fn check(found: &[(String, String)], expected: &[(&str, &str)]) {
        let found: Vec<_> = found.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn quota_is_written_in_the_configured_format() {
        check(
            &written(HeaderFormat::XRateLimit, &quota()),
            &[
                ("x-ratelimit-limit", "50000"),
                ("x-ratelimit-remaining", "12"),
                ("x-ratelimit-reset", "2"),
            ],
        );
        check(
            &written(HeaderFormat::Draft, &quota()),
            &[
                ("ratelimit", "\"dsp-17/day\";r=12;t=2"),
                ("ratelimit-policy", "\"dsp-17/day\";q=50000;w=86400"),
            ],
        );
        check(&written(HeaderFormat::Off, &quota()), &[]);
    }

    #[test]
    fn unusual_names_and_numbers_are_encoded() {
        let unusual = Quota {
            policy: "ü \"\\\n".to_owned(),
            limit: u64::MAX,
            window: Duration::from_millis(999),
            remaining: 0,
            reset: Duration::MAX,
        };
        check(
            &written(HeaderFormat::Draft, &unusual),
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
