//! From the text of a setting to its value, within its range, or to what is wrong with it: parsers for a flag's `value_parser`.

use std::{error::Error, ffi::OsStr, fmt, net::SocketAddr, ops::RangeInclusive, time::Duration};

use clap::{Arg, Command};

/// Longest any single time setting may be: long enough to mean "never".
pub const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Why a text is not a value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    why: String,
    /// What would be a value, where that is a range.
    pub range: Option<String>,
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self { why, range: None }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.why)
    }
}

impl Error for Refused {}

/// Why the parser of this flag does not take `value`; `None` when it does.
pub(super) fn refusal(argument: &Arg, value: &OsStr) -> Option<Refused> {
    let parser = argument.get_value_parser().clone();
    let alone = Command::new("setting")
        .no_binary_name(true)
        .arg(Arg::new("value").value_parser(parser));
    let error = alone
        .try_get_matches_from([OsStr::new("--"), value])
        .err()?;
    let why = match error.source() {
        Some(source) => match source.downcast_ref::<Refused>() {
            Some(refused) => return Some(refused.clone()),
            None => source.to_string(),
        },
        None if value.is_empty() => "needs a value".to_owned(),
        None => error.kind().to_string(),
    };
    Some(why.into())
}

/// Takes an address to listen on.
///
/// # Errors
/// In words, when it is none; as those below.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not an IP address with a port, like 127.0.0.1:8080"))
}

/// Takes `true` and `false`.
///
/// # Errors
/// In words.
pub fn boolean(text: &str) -> Result<bool, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is neither true nor false"))
}

/// Takes times like `200ms` or `10s`; none is longer than [`TIME_MAX`].
pub fn time(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, Refused> + Clone + Send + Sync + 'static {
    within(range, TIME_MAX, in_time, |text| {
        humantime::parse_duration(text)
            .map_err(|error| format!("{text:?} is not a time, like 200ms or 10s ({error})"))
    })
}

/// Takes numbers of bytes, as [`bytes()`] reads them.
pub fn size(
    range: RangeInclusive<usize>,
) -> impl Fn(&str) -> Result<usize, Refused> + Clone + Send + Sync + 'static {
    within(range, usize::MAX, in_bytes, bytes)
}

/// Takes whole numbers.
pub fn count(
    range: RangeInclusive<usize>,
) -> impl Fn(&str) -> Result<usize, Refused> + Clone + Send + Sync + 'static {
    within(
        range,
        usize::MAX,
        |count| count.to_string(),
        |text| {
            text.parse()
                .map_err(|_| format!("{text:?} is not a whole number, or too large"))
        },
    )
}

/// Takes what `parse` does, and an empty text for none. The field's type is written `std::option::Option`: clap takes a
/// plain `Option` for a flag without a default.
pub fn optional<T>(
    parse: impl Fn(&str) -> Result<T, Refused> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<Option<T>, Refused> + Clone + Send + Sync + 'static {
    move |text| {
        if text.is_empty() {
            Ok(None)
        } else {
            parse(text).map(Some)
        }
    }
}

/// Takes what `parse` does, within a range, both ends included; an upper end of `unbounded` is none that a user would meet.
fn within<T: PartialOrd + Copy + Send + Sync + 'static>(
    range: RangeInclusive<T>,
    unbounded: T,
    show: fn(T) -> String,
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<T, Refused> + Clone + Send + Sync + 'static {
    let (least, most) = range.into_inner();
    let refuse = move |why| Refused {
        why,
        range: Some(if most >= unbounded {
            format!("at least {}", show(least))
        } else {
            format!("{} to {}", show(least), show(most))
        }),
    };
    move |text| match parse(text) {
        Ok(value) if value < least => Err(refuse(format!(
            "{} is less than {}",
            show(value),
            show(least)
        ))),
        Ok(value) if value > most => Err(refuse(format!(
            "{} is more than {}",
            show(value),
            show(most)
        ))),
        parsed => parsed.map_err(refuse),
    }
}

/// A time as a user would write it: days stay days, of which a library makes months.
fn in_time(time: Duration) -> String {
    const DAY: u64 = 24 * 3600;
    let days = time.as_secs() / DAY;
    if days > 0 && time == Duration::from_secs(days * DAY) {
        return format!("{days}d");
    }
    humantime::format_duration(time).to_string()
}

/// Reads a number of bytes: `65536`, `64KiB`, `1GiB`.
///
/// # Errors
/// In words, when it is none.
pub fn bytes(text: &str) -> Result<usize, String> {
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let wrong = || format!("{text:?} is not a number of bytes (try 64KiB, 512MiB, 1GiB)");
    let factor: usize = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let bytes = number.parse().ok();
    let bytes = bytes.and_then(|number: usize| number.checked_mul(factor));
    bytes.ok_or_else(wrong)
}

/// Writes a number of bytes as a user would.
fn in_bytes(bytes: usize) -> String {
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
    fn check(parser: impl Into<ValueParser>, text: &str, wrong: Option<(&str, Option<&str>)>) {
        let argument = Arg::new("any").value_parser(parser);
        let refused = refusal(&argument, OsStr::new(text));
        let said = refused
            .as_ref()
            .map(|said| (&*said.why, said.range.as_deref()));
        assert_eq!(said, wrong, "{text}");
    }

    #[test]
    fn values_outside_their_range_are_refused_with_it() {
        check(count(1..=5), "5", None);
        check(size(1..=1024), "1KiB", None);
        check(time(Duration::ZERO..=TIME_MAX), "1m", None);
        check(
            count(1..=5),
            "6",
            Some(("6 is more than 5", Some("1 to 5"))),
        );
        check(
            count(1..=usize::MAX),
            "0",
            Some(("0 is less than 1", Some("at least 1"))),
        );
        let wrong = "1025 bytes is more than 1KiB";
        check(
            size(1..=1024),
            "1025",
            Some((wrong, Some("1 bytes to 1KiB"))),
        );
        let wrong = "400d is more than 366d";
        check(
            time(Duration::ZERO..=TIME_MAX),
            "400d",
            Some((wrong, Some("at least 0s"))),
        );
        let wrong = "\"localhost:1\" is not an IP address with a port, like 127.0.0.1:8080";
        check(address, "localhost:1", Some((wrong, None)));
        check(optional(count(1..=5)), "", None);
        check(
            optional(count(1..=5)),
            "-1",
            Some(("\"-1\" is not a whole number, or too large", Some("1 to 5"))),
        );
    }

    #[test]
    fn bytes_are_read_with_units() {
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
