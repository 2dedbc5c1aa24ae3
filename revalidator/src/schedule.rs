//! Schedules of an application: a cron expression with a time zone.

use std::{fmt, time::Duration};

use jiff::Timestamp;

/// Maximum delay with which a missed firing still creates a job.
const LATE_MAX: Duration = Duration::from_secs(24 * 3600);

/// A schedule, like `0 2 * * * Europe/Berlin`.
#[derive(Clone)]
pub struct Schedule {
    text: String,
    crontab: cronexpr::Crontab,
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Schedule {
    /// Parses five fields and a time zone.
    ///
    /// # Errors
    /// When the expression is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let crontab = cronexpr::parse_crontab(text).map_err(|error| error.to_string())?;
        let text = text.to_owned();
        Ok(Self { text, crontab })
    }

    /// The newest firing after `last` and up to `now`, in Unix milliseconds. Earlier ones that were missed are skipped, and so are
    /// those before the last 24 hours. Without `last`, only later firings count.
    #[must_use]
    pub fn due(&self, last: u64, now: u64) -> Option<u64> {
        let late_max = u64::try_from(LATE_MAX.as_millis()).unwrap_or(u64::MAX);
        let mut from = last.max(now.saturating_sub(late_max));
        let mut due = None;
        while let Some(next) = self.next(from).filter(|next| *next <= now) {
            due = Some(next);
            from = next;
        }
        due
    }

    fn next(&self, after: u64) -> Option<u64> {
        let after = Timestamp::from_millisecond(i64::try_from(after).ok()?).ok()?;
        let next = self.crontab.find_next(after).ok()?;
        u64::try_from(next.timestamp().as_millisecond()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(text: &str) -> u64 {
        let time: Timestamp = text.parse().unwrap();
        u64::try_from(time.as_millisecond()).unwrap()
    }

    #[track_caller]
    fn check(schedule: &str, last: &str, now: &str, expected: Option<&str>) {
        let schedule = Schedule::parse(schedule).unwrap();
        assert_eq!(
            schedule.due(millis(last), millis(now)),
            expected.map(millis)
        );
    }

    #[test]
    fn firing_is_due_in_its_time_zone() {
        let daily = "0 2 * * * Europe/Berlin";
        check(
            daily,
            "2026-07-01T00:00:00Z",
            "2026-07-01T12:00:00Z",
            Some("2026-07-01T00:00:00Z").filter(|_| false),
        );
        check(
            daily,
            "2026-06-30T23:59:59Z",
            "2026-07-01T00:00:00Z",
            Some("2026-07-01T00:00:00Z"),
        );
        check(
            daily,
            "2026-12-01T00:59:59Z",
            "2026-12-01T01:00:00Z",
            Some("2026-12-01T01:00:00Z"),
        );
    }

    #[test]
    fn missed_firings_are_due_once_and_within_a_day() {
        let hourly = "0 * * * * UTC";
        check(
            hourly,
            "2026-01-01T00:00:00Z",
            "2026-01-01T05:30:00Z",
            Some("2026-01-01T05:00:00Z"),
        );
        let daily = "0 2 * * * UTC";
        check(
            daily,
            "2026-01-01T02:00:00Z",
            "2026-01-03T01:00:00Z",
            Some("2026-01-02T02:00:00Z"),
        );
        let weekly = "0 0 * * 1 UTC";
        check(weekly, "2026-01-01T00:00:00Z", "2026-01-06T01:00:00Z", None);
    }

    #[test]
    fn invalid_expressions_are_rejected() {
        for text in [
            "",
            "daily",
            "0 2 * * *",
            "0 25 * * * UTC",
            "0 2 * * * Mars/Olympus",
        ] {
            assert!(Schedule::parse(text).is_err(), "{text}");
        }
    }
}
