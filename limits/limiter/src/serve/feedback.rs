//! Parsing of partner responses reported through `feedback`.

use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::{
    engine::Feedback,
    problem::{Problem, invalid},
};

/// Values of `x_ratelimit_reset` from here on are Unix times in seconds; smaller ones are durations.
const UNIX_SECONDS_MIN: u64 = 100_000_000;

/// Values from here on are Unix times in milliseconds.
const UNIX_MILLIS_MIN: u64 = 100_000_000_000;

/// Body of `feedback`: header fields as the partner sent them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FeedbackBody {
    pub(super) status: Option<u16>,
    pub(super) retry_after: Option<String>,
    pub(super) ratelimit: Option<String>,
    pub(super) x_ratelimit_remaining: Option<String>,
    pub(super) x_ratelimit_reset: Option<String>,
}

impl FeedbackBody {
    /// Parses the fields at `now`. Malformed fields are ignored, so that a 429 has an effect in any case.
    pub(super) fn feedback(&self, now: u64) -> Result<Feedback, Problem> {
        let status = self.status.ok_or_else(|| invalid("missing `status`"))?;
        if !(100..=599).contains(&status) {
            return Err(invalid(format!("`status` is {status}: use 100 to 599")));
        }
        let text = self.retry_after.as_deref();
        let retry_after = text.and_then(|text| retry_after(text.trim(), now));
        let field = self.ratelimit.as_deref().map(ratelimit);
        let remaining = match (field, &self.x_ratelimit_remaining, &self.x_ratelimit_reset) {
            (Some(remaining), ..) => remaining,
            (None, Some(remaining), Some(reset)) => x_ratelimit(remaining, reset, now),
            _ => None,
        };
        Ok(Feedback {
            status,
            retry_after,
            remaining,
        })
    }
}

/// Parses seconds, or a date in one of the three forms of RFC 9110.
fn retry_after(text: &str, now: u64) -> Option<Duration> {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        let is_number = text.bytes().all(|it| it.is_ascii_digit());
        // A number above 2^64 is longer than any restriction lasts.
        return is_number.then(|| text.parse().map_or(Duration::MAX, Duration::from_secs));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let at = date.duration_since(SystemTime::UNIX_EPOCH);
    let now = Duration::from_nanos(now);
    Some(at.unwrap_or_default().saturating_sub(now))
}

/// Parses a list of items such as `"default";r=50;t=30`, and returns the strictest one; or parses the form of older
/// drafts, `limit=100, remaining=50, reset=30`.
fn ratelimit(text: &str) -> Option<(u64, Duration)> {
    let number = |part: &str, names: [&str; 2]| {
        let (name, value) = part.trim().split_once('=')?;
        let is_match = names.contains(&name.trim());
        is_match.then(|| value.trim().parse::<u64>().ok()).flatten()
    };
    let find = |parts: &[&str], names| parts.iter().find_map(|part| number(part, names));
    let read = |parts: Vec<&str>| {
        let remaining = find(&parts, ["r", "remaining"])?;
        Some((
            remaining,
            Duration::from_secs(find(&parts, ["t", "reset"])?),
        ))
    };
    let items = text.split(',').map(|item| item.split(';').collect());
    let strictest = items.filter_map(read).min();
    strictest.or_else(|| read(text.split([',', ';']).collect()))
}

fn x_ratelimit(remaining: &str, reset: &str, now: u64) -> Option<(u64, Duration)> {
    let [remaining, reset] = [remaining, reset].map(|it| it.trim().parse::<u64>().ok());
    let reset = reset?;
    let nanos = match reset {
        UNIX_MILLIS_MIN.. => reset.saturating_mul(1_000_000).saturating_sub(now),
        UNIX_SECONDS_MIN.. => reset.saturating_mul(1_000_000_000).saturating_sub(now),
        _ => reset * 1_000_000_000,
    };
    Some((remaining?, Duration::from_nanos(nanos)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_of_partners_are_parsed() {
        let now = 1_700_000_000_000_000_000;
        let seconds = Duration::from_secs;
        assert_eq!(retry_after("120", now), Some(seconds(120)));
        let date = "Tue, 14 Nov 2023 22:13:50 GMT";
        assert_eq!(retry_after(date, now), Some(seconds(30)));
        for date in [
            "Tuesday, 14-Nov-23 22:13:50 GMT",
            "Tue Nov 14 22:13:50 2023",
        ] {
            assert_eq!(retry_after(date, now), Some(seconds(30)), "{date}");
        }
        let day = seconds(86_400);
        for far in [
            "Fri, 31 Dec 9999 23:59:59 GMT",
            "18446744073709551616",
            "99999999999999999999999999",
        ] {
            assert!(retry_after(far, now) > Some(day), "{far}");
        }
        for malformed in ["soon", "", "-1", "+1"] {
            assert_eq!(retry_after(malformed, now), None, "{malformed}");
        }
        let refused = FeedbackBody {
            status: Some(429),
            retry_after: Some("1.5".to_owned()),
            ..FeedbackBody::default()
        };
        assert_eq!(refused.feedback(now).unwrap().retry_after, None);
        assert_eq!(ratelimit("\"default\";r=50;t=30"), Some((50, seconds(30))));
        let two = "\"hour\";r=100;t=1800, \"peak\";r=0;t=7";
        assert_eq!(ratelimit(two), Some((0, seconds(7))));
        assert_eq!(
            ratelimit("limit=100, remaining=50, reset=30"),
            Some((50, seconds(30)))
        );
        assert_eq!(ratelimit("nothing"), None);
        assert_eq!(x_ratelimit("5", "60", now), Some((5, seconds(60))));
        assert_eq!(x_ratelimit("5", "1700000030", now), Some((5, seconds(30))));
        let millis = x_ratelimit("5", "1700000030000", now);
        assert_eq!(millis, Some((5, seconds(30))));
        assert_eq!(x_ratelimit("many", "60", now), None);
    }
}
