//! Times on the command line.

use std::time::Duration;

/// Shorter loads say nothing of a rate: the first second fills what is empty, and two halves are compared.
const STEP_MIN: Duration = Duration::from_secs(3);

/// Shorter loads measure nothing, and faults closer together would all be left out.
const TIME_MIN: Duration = Duration::from_secs(1);

/// A longer one is a mistake, and sums of it might not fit.
const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

pub(super) fn parse_step(text: &str) -> Result<Duration, String> {
    bounded(text, STEP_MIN)
}

/// A time on the command line for what lasts, from a second to a month: `90s`, `2h 30m`.
///
/// # Errors
/// When it is not a time, or out of these bounds.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    bounded(text, TIME_MIN)
}

fn bounded(text: &str, least: Duration) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (least..=TIME_MAX).contains(&time) {
        return Ok(time);
    }
    let [least, most] = [least, TIME_MAX].map(humantime::format_duration);
    Err(format!("it is not from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded() {
        assert_eq!(parse_step("3s"), Ok(STEP_MIN));
        assert_eq!(parse_time("1s"), Ok(TIME_MIN));
        for text in ["0s", "2900ms", "31d", "100000000y", "soon"] {
            assert!(parse_step(text).is_err(), "{text}");
        }
        assert!(parse_time("0s").is_err());
    }
}
