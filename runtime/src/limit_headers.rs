//! Header fields in which a server demands fewer requests: Retry-After, X-RateLimit, and the drafts of RateLimit.
//!
//! The fields are untrusted. Their sizes bound the cost of parsing; callers bound the times.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use serde::Deserialize;

/// Resets from here on are Unix times in seconds; smaller ones are durations.
const UNIX_SECONDS_MIN: u64 = 100_000_000;

/// Resets from here on are Unix times in milliseconds.
const UNIX_MILLIS_MIN: u64 = 100_000_000_000;

/// Maximum bytes of a field that is taken from a response.
const FIELD_BYTES_MAX: usize = 1024;

const INVALID_TIME: &str = "use seconds, a duration such as 6m0s, or a date";
const INVALID_ITEM: &str = "each item needs the numbers `r` and `t`";
const INVALID_PAIR: &str = "only a number of remaining requests with a reset time has an effect; or, in a 429 without Retry-After, a reset time";

/// Header fields of a response, unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "each field has the name of its header")]
pub struct LimitHeaders {
    pub retry_after: Option<String>,
    pub ratelimit: Option<String>,
    pub ratelimit_remaining: Option<String>,
    pub ratelimit_reset: Option<String>,
    pub x_ratelimit_remaining: Option<String>,
    pub x_ratelimit_reset: Option<String>,
}

/// What a response demands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demand {
    /// Maximum numbers of requests, each with the time for which it applies. All apply together.
    pub windows: Vec<(u64, Duration)>,
    /// Ignored fields, each with the reason.
    pub ignored: Vec<(&'static str, &'static str)>,
}

/// Remaining requests and time until the reset, if valid.
type Window = (Option<u64>, Option<Duration>);

impl LimitHeaders {
    /// Takes the fields from a response. Lines of the same field are joined; longer fields are ignored.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let field = |name: &str| {
            let lines = headers.get_all(name).iter().map(|it| it.to_str().ok());
            let lines: Option<Vec<_>> = lines.collect();
            let joined = lines.filter(|it| !it.is_empty())?.join(", ");
            (joined.len() <= FIELD_BYTES_MAX).then_some(joined)
        };
        Self {
            retry_after: field("retry-after"),
            ratelimit: field("ratelimit"),
            ratelimit_remaining: field("ratelimit-remaining"),
            ratelimit_reset: field("ratelimit-reset"),
            x_ratelimit_remaining: field("x-ratelimit-remaining"),
            x_ratelimit_reset: field("x-ratelimit-reset"),
        }
    }

    /// Parses the fields of a response with this status, received `now` after 1970. Invalid values are ignored.
    #[must_use]
    pub fn demand(&self, status: u16, now: Duration) -> Demand {
        let mut demand = Demand::default();
        if let Some(text) = &self.retry_after {
            let pauses = values(text).into_iter().map(|it| time(it, now, false));
            let pauses: Vec<Window> = pauses.map(|it| (Some(0), it)).collect();
            demand.add(&pauses, false, &[("retry_after", true)], INVALID_TIME);
        }
        let is_reset_enough = status == 429 && demand.pause().is_none_or(|it| it.is_zero());
        if let Some(text) = &self.ratelimit {
            let windows = ratelimit(text, now);
            demand.add(
                &windows,
                is_reset_enough,
                &[("ratelimit", true)],
                INVALID_ITEM,
            );
        }
        for (names, remaining, reset) in [
            (
                ["ratelimit_remaining", "ratelimit_reset"],
                &self.ratelimit_remaining,
                &self.ratelimit_reset,
            ),
            (
                ["x_ratelimit_remaining", "x_ratelimit_reset"],
                &self.x_ratelimit_remaining,
                &self.x_ratelimit_reset,
            ),
        ] {
            let windows = pairs(remaining.as_deref(), reset.as_deref(), now);
            let is_number = windows.iter().all(|it| it.0.is_some());
            if remaining.is_some() && !is_number {
                demand.ignored.push((names[0], INVALID_PAIR));
            }
            let fields = [
                (names[0], remaining.is_some() && is_number),
                (names[1], reset.is_some()),
            ];
            demand.add(&windows, is_reset_enough, &fields, INVALID_PAIR);
        }
        demand
    }
}

impl Demand {
    /// The time during which no request is permitted, if there is one.
    #[must_use]
    pub fn pause(&self) -> Option<Duration> {
        let pauses = self.windows.iter().filter(|(requests, _)| *requests == 0);
        pauses.map(|(_, time)| *time).max()
    }

    /// Adds the complete windows of `fields`, of which some are present. Unless all windows are complete, names the present fields as
    /// ignored. If a reset time is enough, no request remains until then.
    fn add(
        &mut self,
        windows: &[Window],
        is_reset_enough: bool,
        fields: &[(&'static str, bool)],
        reason: &'static str,
    ) {
        let complete = windows.iter().filter_map(|(remaining, reset)| {
            let remaining = remaining.or(is_reset_enough.then_some(0));
            remaining.zip(*reset)
        });
        let before = self.windows.len();
        self.windows.extend(complete);
        if windows.is_empty() || self.windows.len() - before < windows.len() {
            let present = fields.iter().filter(|(_, is_present)| *is_present);
            self.ignored
                .extend(present.map(|(name, _)| (*name, reason)));
        }
    }
}

/// Parses a list of items such as `"default";r=50;t=30`, and the form of older drafts, `limit=100, remaining=50, reset=30`.
fn ratelimit(text: &str, now: Duration) -> Vec<Window> {
    let items = split(text, ',').map(|item| window(split(item, ';'), ["r", "t"], now));
    let old = window(text.split([',', ';']), ["remaining", "reset"], now);
    let windows = items.chain([old]);
    windows.filter(|it| *it != (None, None)).collect()
}

/// The parameters of these names.
fn window<'a>(
    parts: impl Iterator<Item = &'a str>,
    [remaining, reset]: [&str; 2],
    now: Duration,
) -> Window {
    let mut window = (None, None);
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        let (name, value) = (name.trim(), value.trim());
        if name == remaining {
            window.0 = requests(value);
        } else if name == reset {
            window.1 = time(value, now, false);
        }
    }
    window
}

/// Splits at separators outside of quoted strings.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |it| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match it {
            '\\' if is_quoted => is_escaped = !was_escaped,
            '"' if !was_escaped => is_quoted = !is_quoted,
            _ => {}
        }
        it == separator && !is_quoted
    })
}

/// Windows of two fields. Lists of the same length belong together; otherwise, the strictest values do.
fn pairs(remaining: Option<&str>, reset: Option<&str>, now: Duration) -> Vec<Window> {
    let remaining = remaining.into_iter().flat_map(values).map(requests);
    let resets = reset.into_iter().flat_map(values);
    let resets = resets.map(|it| time(it, now, true));
    let (remaining, resets): (Vec<_>, Vec<_>) = (remaining.collect(), resets.collect());
    if remaining.len() == resets.len() {
        return remaining.into_iter().zip(resets).collect();
    }
    let fewest = remaining.into_iter().flatten().min();
    vec![(fewest, resets.into_iter().flatten().max())]
}

/// The values of a list. A date contains a comma.
fn values(text: &str) -> Vec<&str> {
    if httpdate::parse_http_date(text.trim()).is_ok() {
        return vec![text.trim()];
    }
    text.split(',').map(str::trim).collect()
}

/// Parses a number, rounded down.
fn requests(text: &str) -> Option<u64> {
    number(text).map(|(whole, _)| whole)
}

/// Parses a number; returns its integer part and whether a fraction follows.
fn number(text: &str) -> Option<(u64, bool)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |it: &str| it.bytes().all(|it| it.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let has_fraction = fraction.bytes().any(|it| it != b'0');
    Some((whole.parse().unwrap_or(u64::MAX), has_fraction))
}

/// Parses seconds or a duration, both rounded up to whole seconds, or a date. A large number of a reset is a Unix time.
fn time(text: &str, now: Duration, is_reset: bool) -> Option<Duration> {
    let round_up = |whole: u64, has_fraction: bool| whole.saturating_add(has_fraction.into());
    if let Some((whole, has_fraction)) = number(text) {
        let number = round_up(whole, has_fraction);
        return Some(match number {
            UNIX_MILLIS_MIN.. if is_reset => Duration::from_millis(number).saturating_sub(now),
            UNIX_SECONDS_MIN.. if is_reset => Duration::from_secs(number).saturating_sub(now),
            _ => Duration::from_secs(number),
        });
    }
    if let Ok(time) = humantime::parse_duration(text) {
        let seconds = round_up(time.as_secs(), time.subsec_nanos() > 0);
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok();
    let date = date.or_else(|| humantime::parse_rfc3339_weak(text).ok())?;
    let at = date.duration_since(SystemTime::UNIX_EPOCH);
    Some(at.unwrap_or_default().saturating_sub(now))
}

#[cfg(test)]
mod tests;
