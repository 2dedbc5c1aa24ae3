//! Schedule of an application: a cron expression with a time zone.

use jiff::Timestamp;
use serde::Deserialize;

use crate::jobs::DAY_MS;

/// A schedule, like `0 2 * * * Europe/Berlin`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Schedule(cronexpr::Crontab);

impl TryFrom<String> for Schedule {
    type Error = String;

    /// Parses five fields and a time zone.
    fn try_from(text: String) -> Result<Self, String> {
        let crontab = cronexpr::parse_crontab(&text);
        crontab.map(Self).map_err(|error| error.to_string())
    }
}

impl Schedule {
    /// The newest firing after `last` and up to `now`, in Unix milliseconds. Earlier missed firings, and firings more than
    /// 24 hours ago, are skipped.
    pub fn due(&self, last: u64, now: u64) -> Option<u64> {
        let mut from = last.max(now.saturating_sub(DAY_MS));
        let mut due = None;
        while let Some(next) = self.next(from).filter(|next| *next <= now) {
            due = Some(next);
            from = next;
        }
        due
    }

    fn next(&self, after: u64) -> Option<u64> {
        let after = Timestamp::from_millisecond(i64::try_from(after).ok()?).ok()?;
        let next = self.0.find_next(after).ok()?;
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
        let schedule = Schedule::try_from(schedule.to_owned()).unwrap();
        assert_eq!(
            schedule.due(millis(last), millis(now)),
            expected.map(millis)
        );
    }

    #[test]
    fn firing_is_due_in_its_time_zone() {
        let daily = "0 2 * * * Europe/Berlin";
        check(daily, "2026-07-01T00:00:00Z", "2026-07-01T12:00:00Z", None);
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
            assert!(Schedule::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
