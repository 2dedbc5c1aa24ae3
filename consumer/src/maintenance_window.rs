//! Daily maintenance windows. Does no I/O; the time is an argument.

use std::{fmt, str::FromStr};

use jiff::{ToSpan, Zoned, civil::Time};

/// A daily window of wall-clock time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Never open. A window that ends at the time it opens is also `Never`.
    Never,
    /// Always open.
    Always,
    /// Open from `from` (inclusive) to `to` (exclusive), across midnight if `to` is earlier.
    Daily {
        /// When it opens.
        from: Time,
        /// When it closes.
        to: Time,
    },
}

/// The text is not a window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected `never`, `always` or hours such as `01:00-03:00`")]
pub struct WindowError;

impl FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        match text {
            "never" => return Ok(Self::Never),
            "always" => return Ok(Self::Always),
            _ => {}
        }
        let (from, to) = text.split_once('-').ok_or(WindowError)?;
        let (from, to) = (parse_time(from.trim())?, parse_time(to.trim())?);
        Ok(if from == to {
            Self::Never
        } else {
            Self::Daily { from, to }
        })
    }
}

fn parse_time(text: &str) -> Result<Time, WindowError> {
    Time::strptime("%H:%M", text).map_err(|_| WindowError)
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Always => f.write_str("always"),
            Self::Daily { from, to } => {
                write!(f, "{}-{}", from.strftime("%H:%M"), to.strftime("%H:%M"))
            }
        }
    }
}

impl Window {
    /// Whether the window is open at the wall-clock time `now`.
    pub fn is_open(&self, now: &Zoned) -> bool {
        match *self {
            Self::Never => false,
            Self::Always => true,
            Self::Daily { from, to } => {
                let time = now.time();
                if from < to {
                    from <= time && time < to
                } else {
                    time >= from || time < to
                }
            }
        }
    }

    /// When the window that is open at `now` opened; `None` if it is closed or always open.
    ///
    /// If a clock change skips that wall-clock time, it opens right after the skip.
    pub fn opened(&self, now: &Zoned) -> Option<Zoned> {
        let Self::Daily { from, .. } = *self else {
            return None;
        };
        if !self.is_open(now) {
            return None;
        }
        (0..=1)
            .filter_map(|days| now.date().checked_sub(days.days()).ok())
            .filter_map(|date| {
                let opening = date.to_datetime(from);
                opening.to_zoned(now.time_zone().clone()).ok()
            })
            .filter(|opening| opening <= now)
            .max()
    }

    /// The next time after `now` at which the window opens or closes; `None` if it never does.
    ///
    /// If a clock change skips that wall-clock time, the change is right after the skip.
    pub fn next_change(&self, now: &Zoned) -> Option<Zoned> {
        let Self::Daily { from, to } = *self else {
            return None;
        };
        (0..=2)
            .filter_map(|days| now.date().checked_add(days.days()).ok())
            .flat_map(|date| [date.to_datetime(from), date.to_datetime(to)])
            .filter_map(|change| change.to_zoned(now.time_zone().clone()).ok())
            .filter(|change| change > now)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(window: &str, now: &str, open: bool, next: Option<&str>) {
        let window: Window = window.parse().unwrap();
        let now: Zoned = now.parse().unwrap();
        assert_eq!(window.is_open(&now), open);
        let next: Option<Zoned> = next.map(|next| next.parse().unwrap());
        assert_eq!(window.next_change(&now), next);
    }

    #[test]
    fn opening_time_is_known_while_the_window_is_open() {
        let check = |window: &str, now: &str, opened: Option<&str>| {
            let window: Window = window.parse().unwrap();
            let opened: Option<Zoned> = opened.map(|opened| opened.parse().unwrap());
            assert_eq!(window.opened(&now.parse().unwrap()), opened, "{window}");
        };
        let [late, early] = ["2026-03-09T23:30:00[UTC]", "2026-03-10T03:00:00[UTC]"];
        check("03:00-06:00", "2026-03-10T04:00:00[UTC]", Some(early));
        check("03:00-06:00", early, Some(early));
        check("03:00-06:00", "2026-03-10T06:00:00[UTC]", None);
        check("23:30-00:30", "2026-03-10T00:15:00[UTC]", Some(late));
        check("23:30-00:30", "2026-03-09T23:45:00[UTC]", Some(late));
        check("always", late, None);
        check("never", late, None);
    }

    #[test]
    fn window_within_a_day() {
        let utc = |time: &str| format!("2026-03-10T{time}:00[UTC]");
        check("01:00-03:00", &utc("00:59"), false, Some(&utc("01:00")));
        check("01:00-03:00", &utc("01:00"), true, Some(&utc("03:00")));
        check("01:00-03:00", &utc("02:59"), true, Some(&utc("03:00")));
        check(
            "01:00-03:00",
            &utc("03:00"),
            false,
            Some("2026-03-11T01:00:00[UTC]"),
        );
    }

    #[test]
    fn window_across_midnight() {
        check(
            "23:30-00:30",
            "2026-12-31T23:45:00[UTC]",
            true,
            Some("2027-01-01T00:30:00[UTC]"),
        );
        check(
            "23:30-00:30",
            "2026-12-31T00:15:00[UTC]",
            true,
            Some("2026-12-31T00:30:00[UTC]"),
        );
        check(
            "23:30-00:30",
            "2026-12-31T12:00:00[UTC]",
            false,
            Some("2026-12-31T23:30:00[UTC]"),
        );
    }

    #[test]
    fn never_and_always_have_no_next_change() {
        let noon = "2026-03-10T12:00:00[UTC]";
        check("never", noon, false, None);
        check("always", noon, true, None);
        check("04:00-04:00", noon, false, None);
    }

    #[test]
    fn window_follows_the_wall_clock_across_a_clock_change() {
        // Berlin skips from 02:00 to 03:00 on 29 March 2026.
        check(
            "01:00-03:00",
            "2026-03-29T01:30:00[Europe/Berlin]",
            true,
            Some("2026-03-29T03:00:00[Europe/Berlin]"),
        );
    }

    #[test]
    fn invalid_window_is_rejected() {
        for text in [
            "",
            "1",
            "25:00-03:00",
            "01:00",
            "01:00-",
            "sometimes",
            "01:00-03:00-05:00",
        ] {
            assert_eq!(text.parse::<Window>(), Err(WindowError), "{text}");
        }
        assert_eq!(
            "1:00-03:30".parse::<Window>().unwrap().to_string(),
            "01:00-03:30"
        );
    }
}
