//! Daily maintenance windows. Does no I/O; the time is an argument.

use std::{fmt, str::FromStr};

use jiff::{
    ToSpan, Zoned,
    civil::{Date, Time},
    tz::TimeZone,
};

/// A daily window of wall-clock time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Never open. A window that ends at the time it opens is also `Never`.
    Never,
    /// Always open.
    Always,
    /// Open from `from` (inclusive) to `to` (exclusive), across midnight if `to` is earlier. Once a day: if a clock change skips
    /// the opening time, it opens later by the skip, and if a time is repeated, the first one counts.
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
    /// Whether the window is open at `now`.
    pub fn is_open(&self, now: &Zoned) -> bool {
        *self == Self::Always || self.opened(now).is_some()
    }

    /// When the window that is open at `now` opened; `None` if it is closed or always open.
    pub fn opened(&self, now: &Zoned) -> Option<Zoned> {
        let opened = self
            .intervals(now)
            .filter(|(from, to)| from <= now && now < to);
        opened.map(|(from, _)| from).max()
    }

    /// The next time after `now` at which the window opens or closes; `None` if it never does.
    pub fn next_change(&self, now: &Zoned) -> Option<Zoned> {
        let changes = self.intervals(now).flat_map(|(from, to)| [from, to]);
        changes.filter(|change| change > now).min()
    }

    /// When the window opens and closes on the days around `now`.
    fn intervals(&self, now: &Zoned) -> impl Iterator<Item = (Zoned, Zoned)> {
        let daily = match *self {
            Self::Daily { from, to } => Some((from, to)),
            Self::Never | Self::Always => None,
        };
        let (today, zone) = (now.date(), now.time_zone().clone());
        let days = daily
            .into_iter()
            .flat_map(|daily| (-1..=2).map(move |days| (days, daily)));
        days.filter_map(move |(days, (from, to))| {
            interval(today.checked_add(days.days()).ok()?, from, to, &zone)
        })
    }
}

/// When a daily window opens and closes that opens on this day.
fn interval(day: Date, from: Time, to: Time, zone: &TimeZone) -> Option<(Zoned, Zoned)> {
    let last_day = if from < to { day } else { day.tomorrow().ok()? };
    let (opening, closing) = (day.to_datetime(from), last_day.to_datetime(to));
    // A skipped time becomes later by the skip, and of a repeated time, the first one counts.
    let opens = opening.to_zoned(zone.clone()).ok()?;
    let closes = closing.to_zoned(zone.clone()).ok()?;
    let closes = if opens < closes {
        closes
    } else {
        opens.checked_add(closing.duration_since(opening)).ok()?
    };
    Some((opens, closes))
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
    fn skipped_window_opens_after_the_clock_change_for_its_usual_time() {
        let berlin = |time: &str| format!("2026-03-29T{time}:00[Europe/Berlin]");
        for (window, opens, closes) in [
            ("02:00-03:00", "03:00", "04:00"),
            ("02:15-02:45", "03:15", "03:45"),
            ("02:30-04:00", "03:30", "04:00"),
        ] {
            let [opens, closes] = [berlin(opens), berlin(closes)];
            check(window, &berlin("01:59"), false, Some(&opens));
            check(window, &opens, true, Some(&closes));
            let window: Window = window.parse().unwrap();
            let opened = window.opened(&opens.parse().unwrap());
            assert_eq!(opened, Some(opens.parse().unwrap()), "{window}");
        }
        // New York skips from 02:00 to 03:00 on 8 March 2026.
        check(
            "02:00-03:00",
            "2026-03-08T03:00:00[America/New_York]",
            true,
            Some("2026-03-08T04:00:00[America/New_York]"),
        );
    }

    #[test]
    fn repeated_time_opens_a_window_once() {
        // Berlin repeats 02:00 to 03:00 on 25 October 2026.
        let first = |time: &str| format!("2026-10-25T{time}:00+02:00[Europe/Berlin]");
        let second = |time: &str| format!("2026-10-25T{time}:00+01:00[Europe/Berlin]");
        let next_day = |time: &str| format!("2026-10-26T{time}:00[Europe/Berlin]");
        check("01:00-02:30", &first("02:29"), true, Some(&first("02:30")));
        check(
            "01:00-02:30",
            &second("02:15"),
            false,
            Some(&next_day("01:00")),
        );
        check(
            "02:00-02:30",
            &second("02:00"),
            false,
            Some(&next_day("02:00")),
        );
        check("02:15-03:00", &first("02:14"), false, Some(&first("02:15")));
        check(
            "02:15-03:00",
            &second("02:59"),
            true,
            Some(&second("03:00")),
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
