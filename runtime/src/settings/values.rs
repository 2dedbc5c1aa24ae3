//! From the text of a setting to its value, within its range, or to what is wrong with it.

use std::{net::SocketAddr, str::FromStr, time::Duration};

use super::Mistakes;

/// Longest any single time setting may be: long enough to mean "never".
pub const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Reads an address to listen on; notes what is none.
pub fn address(mistakes: &mut Mistakes, flag: &str, text: &str) -> SocketAddr {
    let parsed = text
        .parse()
        .map_err(|_| format!("{text:?} is no IP address with a port, like 127.0.0.1:8080"));
    mistakes
        .good(flag, parsed)
        .unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
}

/// Reads a time like `200ms` or `10s`, from `least` to [`TIME_MAX`]; notes what is none.
pub fn time(mistakes: &mut Mistakes, flag: &str, text: &str, least: Duration) -> Duration {
    time_within(mistakes, flag, text, (least, TIME_MAX))
}

/// Reads a time like `200ms` within a range, both ends included; notes what is none.
pub fn time_within(
    mistakes: &mut Mistakes,
    flag: &str,
    text: &str,
    range: (Duration, Duration),
) -> Duration {
    mistakes.range(flag, range, TIME_MAX, in_time);
    let parsed = humantime::parse_duration(text)
        .map_err(|error| format!("{text:?} is no time, like 200ms or 10s ({error})"))
        .and_then(|time| within(time, range, in_time));
    mistakes.check(flag, parsed)
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

/// Reads `true` or `false`; notes what is neither.
pub fn boolean(mistakes: &mut Mistakes, flag: &str, text: &str) -> bool {
    let parsed = text
        .parse::<bool>()
        .map_err(|_| format!("{text:?} is neither true nor false"));
    mistakes.check(flag, parsed)
}

/// Reads a number of bytes as [`bytes()`] does, within a range, both ends included; notes what is none.
pub fn size(mistakes: &mut Mistakes, flag: &str, text: &str, range: (usize, usize)) -> usize {
    mistakes.range(flag, range, usize::MAX, in_bytes);
    let parsed = bytes(text).and_then(|size| within(size, range, in_bytes));
    mistakes.check(flag, parsed)
}

/// Reads a whole number within a range, both ends included; notes what is none.
pub fn number<N>(mistakes: &mut Mistakes, flag: &str, text: &str, range: (N, N)) -> N
where
    N: FromStr + PartialOrd + Copy + Default + ToString,
{
    mistakes.range_of_numbers(flag, range);
    let parsed = text
        .parse()
        .map_err(|_| format!("{text:?} is no whole number, or too large"))
        .and_then(|number| within(number, range, |number| number.to_string()));
    mistakes.check(flag, parsed)
}

/// Like [`number`]; `None` when the text is empty.
pub fn optional_number<N>(
    mistakes: &mut Mistakes,
    flag: &str,
    text: &str,
    range: (N, N),
) -> Option<N>
where
    N: FromStr + PartialOrd + Copy + Default + ToString,
{
    if text.is_empty() {
        mistakes.range_of_numbers(flag, range);
        return None;
    }
    Some(number(mistakes, flag, text, range))
}

/// Passes a value on that is within a range, both ends included.
///
/// # Errors
/// In words, when it is not; `show` writes values as a user would.
pub fn within<T: PartialOrd + Copy>(
    value: T,
    (least, most): (T, T),
    show: impl Fn(T) -> String,
) -> Result<T, String> {
    if value < least {
        Err(format!("{} is less than {}", show(value), show(least)))
    } else if value > most {
        Err(format!("{} is more than {}", show(value), show(most)))
    } else {
        Ok(value)
    }
}

/// Reads a number of bytes: `65536`, `64KiB`, `1GiB`, `1.5GiB`.
///
/// # Errors
/// In words, when it is none.
pub fn bytes(text: &str) -> Result<usize, String> {
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => {
            return Err(format!(
                "{text:?} is no number of bytes (try 64KiB, 512MiB, 1GiB)"
            ));
        }
    };
    let wrong = || format!("{text:?} is no number of bytes (try 64KiB, 512MiB, 1GiB)");
    let whole = number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor));
    let bytes = match whole {
        Some(bytes) => bytes,
        None if number.contains('.') => {
            let fraction = number.parse::<f64>().map_err(|_| wrong())?;
            #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
            #[expect(clippy::cast_precision_loss, reason = "1 GiB is exact")]
            let bytes = (fraction * factor as f64) as u64;
            bytes
        }
        None => return Err(wrong()),
    };
    usize::try_from(bytes).map_err(|_| wrong())
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
    use super::*;

    #[test]
    fn values_outside_their_range_are_noted_under_their_flag() {
        let mut mistakes = Mistakes::default();
        let m = &mut mistakes;
        assert_eq!(number(m, "--n", "5", (1, 5)), 5);
        assert_eq!(size(m, "--s", "1KiB", (1, 1024)), 1024);
        assert_eq!(time(m, "--t", "1m", Duration::ZERO).as_secs(), 60);
        assert!(m.is_empty());
        number(m, "--n", "6", (1, 5));
        size(m, "--s", "1025", (1, 1024));
        time(m, "--t", "400d", Duration::ZERO);
        address(m, "--a", "localhost:1");
        let text = mistakes.to_string();
        for part in [
            "--n: 6 is more than 5",
            "--s: 1025 bytes is more than 1KiB",
            "--t: 400d is more than 366d",
            "--a:",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }

    #[test]
    fn bytes_are_read_with_units() {
        assert_eq!(bytes("65536"), Ok(65536));
        assert_eq!(bytes("64KiB"), Ok(65536));
        assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
        for bad in [
            "",
            "x",
            "1TB",
            "-1",
            "1e9",
            "99999999999999999999",
            "1.2.3MiB",
        ] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
