//! Parsers of setting values within ranges, for the `value_parser` of a flag.

use std::{error::Error, ffi::OsStr, net::SocketAddr, ops::RangeInclusive, time::Duration};

use clap::{Arg, Command, builder::PossibleValue};

/// Maximum of any time setting, long enough to mean "never".
pub const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Why a text is not a valid value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct InvalidValue {
    reason: String,
    /// The valid range, if there is one.
    pub range: Option<String>,
}

impl From<String> for InvalidValue {
    fn from(reason: String) -> Self {
        Self {
            reason,
            range: None,
        }
    }
}

/// The error of `value` under the parser of this flag; `None` if the value is valid.
pub(super) fn error_of(argument: &Arg, value: &OsStr) -> Option<InvalidValue> {
    let parser = argument.get_value_parser().clone();
    let command = Command::new("setting")
        .no_binary_name(true)
        .arg(Arg::new("value").value_parser(parser));
    let error = command
        .try_get_matches_from([OsStr::new("--"), value])
        .err()?;
    let reason = match error.source() {
        Some(source) => match source.downcast_ref::<InvalidValue>() {
            Some(invalid) => return Some(invalid.clone()),
            None => source.to_string(),
        },
        None if value.is_empty() => "needs a value".to_owned(),
        None => {
            let values = argument.get_possible_values();
            let names: Vec<_> = values.iter().map(PossibleValue::get_name).collect();
            match names.is_empty() {
                true => error.kind().to_string(),
                false => format!("expected one of {}", names.join(", ")),
            }
        }
    };
    Some(reason.into())
}

/// Parses an address to listen on.
///
/// # Errors
/// A message for the operator.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not an IP address with a port, such as 127.0.0.1:8080"))
}

/// Parses `true` or `false`.
///
/// # Errors
/// A message for the operator.
pub fn boolean(text: &str) -> Result<bool, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is neither true nor false"))
}

/// Parses times like `200ms` or `10s`, up to [`TIME_MAX`].
pub fn time(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, InvalidValue> + Clone + Send + Sync + 'static {
    within(range, TIME_MAX, format_time, |text| {
        humantime::parse_duration(text)
            .map_err(|error| format!("{text:?} is not a duration, such as 200ms or 10s ({error})"))
    })
}

/// Parses sizes, as [`bytes()`] does.
pub fn size(
    range: RangeInclusive<usize>,
) -> impl Fn(&str) -> Result<usize, InvalidValue> + Clone + Send + Sync + 'static {
    within(range, usize::MAX, format_bytes, bytes)
}

/// Parses whole numbers.
pub fn count(
    range: RangeInclusive<usize>,
) -> impl Fn(&str) -> Result<usize, InvalidValue> + Clone + Send + Sync + 'static {
    within(
        range,
        usize::MAX,
        |count| count.to_string(),
        |text| {
            text.parse()
                .map_err(|_| format!("{text:?} is not a whole number, or is too large"))
        },
    )
}

/// Like `parse`, with `None` for an empty text. Write the field's type as `std::option::Option`, because clap treats a plain
/// `Option` as a flag without a default.
pub fn optional<T>(
    parse: impl Fn(&str) -> Result<T, InvalidValue> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<Option<T>, InvalidValue> + Clone + Send + Sync + 'static {
    move |text| {
        if text.is_empty() {
            Ok(None)
        } else {
            parse(text).map(Some)
        }
    }
}

/// Like `parse`, limited to an inclusive range. Messages omit an upper end of `unbounded` or more.
fn within<T: PartialOrd + Copy + Send + Sync + 'static>(
    range: RangeInclusive<T>,
    unbounded: T,
    show: fn(T) -> String,
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<T, InvalidValue> + Clone + Send + Sync + 'static {
    let (min, max) = range.into_inner();
    let invalid = move |reason| InvalidValue {
        reason,
        range: Some(if max >= unbounded {
            format!("at least {}", show(min))
        } else {
            format!("{} to {}", show(min), show(max))
        }),
    };
    move |text| match parse(text) {
        Ok(value) if value < min => Err(invalid(format!(
            "{} is below the minimum of {}",
            show(value),
            show(min)
        ))),
        Ok(value) if value > max => Err(invalid(format!(
            "{} exceeds the maximum of {}",
            show(value),
            show(max)
        ))),
        parsed => parsed.map_err(invalid),
    }
}

/// Formats a time. Whole days stay days; `humantime` would convert them to months.
pub fn format_time(time: Duration) -> String {
    const DAY: u64 = 24 * 3600;
    let days = time.as_secs() / DAY;
    if days > 0 && time == Duration::from_secs(days * DAY) {
        return format!("{days}d");
    }
    humantime::format_duration(time).to_string()
}

/// Parses a size: `65536`, `64KiB`, `1GiB`.
///
/// # Errors
/// A message for the operator.
pub fn bytes(text: &str) -> Result<usize, String> {
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let invalid = || format!("{text:?} is not a size (try 64KiB, 512MiB, 1GiB)");
    let factor: usize = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(invalid()),
    };
    let bytes = number.parse().ok();
    let bytes = bytes.and_then(|number: usize| number.checked_mul(factor));
    bytes.ok_or_else(invalid)
}

/// Formats a size with the largest unit that divides it.
fn format_bytes(bytes: usize) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units
        .into_iter()
        .find(|(factor, _)| bytes > 0 && bytes.is_multiple_of(*factor));
    match unit {
        Some((factor, unit)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use clap::builder::ValueParser;

    use super::*;

    #[track_caller]
    fn check(parser: impl Into<ValueParser>, text: &str, expected: Option<(&str, Option<&str>)>) {
        let argument = Arg::new("any").value_parser(parser);
        let invalid = error_of(&argument, OsStr::new(text));
        let found = invalid
            .as_ref()
            .map(|it| (&*it.reason, it.range.as_deref()));
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn other_names_are_rejected_with_the_names() {
        check(["mint", "require"], "mint", None);
        check(
            ["mint", "require"],
            "x",
            Some(("expected one of mint, require", None)),
        );
    }

    #[test]
    fn value_outside_its_range_is_rejected_with_the_range() {
        check(count(1..=5), "5", None);
        check(size(1..=1024), "1KiB", None);
        check(time(Duration::ZERO..=TIME_MAX), "1m", None);
        check(
            count(1..=5),
            "6",
            Some(("6 exceeds the maximum of 5", Some("1 to 5"))),
        );
        check(
            count(1..=usize::MAX),
            "0",
            Some(("0 is below the minimum of 1", Some("at least 1"))),
        );
        let reason = "1025 bytes exceeds the maximum of 1KiB";
        check(
            size(1..=1024),
            "1025",
            Some((reason, Some("1 bytes to 1KiB"))),
        );
        let reason = "400d exceeds the maximum of 366d";
        check(
            time(Duration::ZERO..=TIME_MAX),
            "400d",
            Some((reason, Some("at least 0s"))),
        );
        let reason = "\"localhost:1\" is not an IP address with a port, such as 127.0.0.1:8080";
        check(address, "localhost:1", Some((reason, None)));
        check(optional(count(1..=5)), "", None);
        check(
            optional(count(1..=5)),
            "-1",
            Some((
                "\"-1\" is not a whole number, or is too large",
                Some("1 to 5"),
            )),
        );
    }

    #[test]
    fn sizes_are_parsed_with_units() {
        assert_eq!(bytes("65536"), Ok(65536));
        assert_eq!(bytes("64KiB"), Ok(65536));
        for bad in [
            "",
            "x",
            "1TB",
            "1.5GiB",
            "-1",
            "1e9",
            "99999999999999999999",
            "1.2.3MiB",
        ] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
