//! Schedule of an application: a cron expression with a time zone.
//!
//! A local time that a clock change skips is due right after the change, and a repeated one is due once.

use cronexpr::Crontab;
use jiff::{
    Timestamp, ToSpan as _,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};
use serde::Deserialize;

use crate::jobs::DAY_MS;

/// A schedule, like `0 2 * * * Europe/Berlin`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Schedule {
    /// The expression with UTC instead of its time zone, to search local times.
    crontab: Crontab,
    zone: TimeZone,
}

impl TryFrom<String> for Schedule {
    type Error = String;

    /// Parses five fields and a time zone.
    fn try_from(text: String) -> Result<Self, String> {
        cronexpr::parse_crontab(&text).map_err(|error| error.to_string())?;
        let (fields, zone) = text
            .trim()
            .rsplit_once(char::is_whitespace)
            .unwrap_or_default();
        let crontab = cronexpr::parse_crontab(&format!("{fields} UTC"));
        let schedule = Self {
            crontab: crontab.map_err(|error| error.to_string())?,
            zone: TimeZone::get(zone).map_err(|error| error.to_string())?,
        };
        match schedule.local_after(DateTime::constant(2000, 1, 1, 0, 0, 0, 0)) {
            Some(_) => Ok(schedule),
            None => Err(format!("{fields:?} is never due: no month has such a day")),
        }
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

    /// The first firing after this time, in Unix milliseconds: when the local clock passes a matching time, if it does so for the
    /// first time.
    pub fn next(&self, after: u64) -> Option<u64> {
        let after = Timestamp::from_millisecond(i64::try_from(after).ok()?).ok()?;
        let mut local = self.zone.to_datetime(after);
        loop {
            local = self.local_after(local)?;
            let times = self.zone.to_ambiguous_timestamp(local);
            let is_skipped = matches!(times.offset(), AmbiguousOffset::Gap { .. });
            let mut time = times.earlier().ok()?;
            if is_skipped {
                time = self.zone.following(time).next()?.timestamp();
            }
            if time > after {
                return u64::try_from(time.as_millisecond()).ok();
            }
        }
    }

    /// The next local time that matches the expression. The library searches four years; all combinations of dates and weekdays
    /// occur within 40.
    fn local_after(&self, after: DateTime) -> Option<DateTime> {
        (0..10).find_map(|step| {
            let from = after.checked_add((4 * step).years()).ok()?;
            let from = TimeZone::UTC.to_timestamp(from).ok()?;
            Some(self.crontab.find_next(from).ok()?.datetime())
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::{civil::date, tz};
    use proptest::prelude::*;

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

    #[test]
    fn schedule_that_is_never_due_is_rejected() {
        for fields in ["0 0 30 2 *", "*/5 * 31 4,6,9,11 *", "0 0 31W 2 *"] {
            let error = Schedule::try_from(format!("{fields} Europe/Berlin")).unwrap_err();
            assert!(error.contains("never due"), "{error}");
        }
        // 29 February, on a Sunday in every 28th year.
        let rare = "0 0 29 2 */7 UTC";
        check(
            rare,
            "2032-02-28T23:59:00Z",
            "2032-02-29T00:00:00Z",
            Some("2032-02-29T00:00:00Z"),
        );
        let rare = Schedule::try_from(rare.to_owned()).unwrap();
        let next = rare.next(millis("2026-01-01T00:00:00Z"));
        assert_eq!(next, Some(millis("2032-02-29T00:00:00Z")));
    }

    /// All firings after the first time and up to the second one.
    fn firings(schedule: &Schedule, from: u64, to: u64) -> Vec<u64> {
        let next = |it: &u64| schedule.next(*it).filter(|it| *it <= to);
        std::iter::successors(next(&from), next).collect()
    }

    #[test]
    fn daily_schedule_is_due_once_on_each_day() {
        for (minute, zone, year) in [
            ("0 2", "Europe/Berlin", 2026),
            ("30 2", "America/New_York", 2027),
            ("15 2", "Australia/Lord_Howe", 2026),
            ("0 0", "Africa/Cairo", 2025),
            ("30 0", "America/Sao_Paulo", 2017),
            ("59 23", "America/Havana", 2026),
        ] {
            let schedule = Schedule::try_from(format!("{minute} * * * {zone}")).unwrap();
            let zone = TimeZone::get(zone).unwrap();
            let start = |year| {
                let time = zone.to_timestamp(date(year, 1, 1).at(0, 0, 0, 0)).unwrap();
                u64::try_from(time.as_millisecond()).unwrap() - 1
            };
            let found = firings(&schedule, start(year), start(year + 1));
            let days = found.iter().map(|it| {
                let time = Timestamp::from_millisecond((*it).try_into().unwrap());
                zone.to_datetime(time.unwrap()).date()
            });
            let expected = date(year, 1, 1).series(1.day());
            let expected = expected.take_while(|it| it.year() == year);
            assert!(days.eq(expected), "{minute} {zone:?} {year}");
        }
    }

    /// A field of an expression, and the numbers that match.
    fn field(max: i8) -> impl Strategy<Value = (String, Vec<i8>)> {
        let single = (0..=max).prop_map(|it| (it.to_string(), vec![it]));
        let list = prop::collection::vec(0..=max, 1..4).prop_map(|it| {
            let text: Vec<_> = it.iter().map(i8::to_string).collect();
            (text.join(","), it)
        });
        let step = (1..=max).prop_map(move |step| {
            let matching = (0..=max).step_by(step.try_into().unwrap());
            (format!("*/{step}"), matching.collect())
        });
        prop_oneof![single, list, step]
    }

    /// Minute by minute: a clock that jumps forward makes the skipped times due, and one that jumps back makes no time due that it
    /// has shown before.
    fn model(
        [minutes, hours]: [&(String, Vec<i8>); 2],
        zone: &TimeZone,
        (from, to): (i64, i64),
    ) -> Vec<u64> {
        let local = |second| zone.to_datetime(Timestamp::from_second(second).unwrap());
        let matches =
            |it: DateTime| minutes.1.contains(&it.minute()) && hours.1.contains(&it.hour());
        let (mut due, mut shown) = (Vec::new(), local(from));
        for second in (from + 60..=to).step_by(60) {
            let now = local(second);
            let skipped = shown.series(1.minute()).skip(1);
            let is_due = skipped.take_while(|it| *it <= now).any(matches);
            shown = shown.max(now);
            due.extend(is_due.then(|| u64::try_from(second).unwrap() * 1000));
        }
        due
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn each_local_time_is_due_once_in_spite_of_clock_changes(
            (minutes, hours) in (field(59), field(23)),
            name in prop::sample::select(vec![
                "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut",
                "Pacific/Apia", "Africa/Casablanca", "Pacific/Chatham", "Asia/Kolkata", "UTC",
            ]),
            year in 2008_i16..2030,
            before in 0_i64..2 * 24 * 60,
            change in 0_usize..3,
        ) {
            let zone = TimeZone::get(name).unwrap();
            let start = tz::Offset::UTC.to_timestamp(date(year, 1, 1).at(0, 0, 0, 0)).unwrap();
            let changes = zone.following(start).take(change + 1);
            let around = changes.last().map_or(start, |it| it.timestamp());
            let around = around.as_second() / 60 * 60;
            let (from, to) = (around - before * 60, around + 3 * 24 * 3600);
            let expected = model([&minutes, &hours], &zone, (from, to));
            let schedule = format!("{} {} * * * {name}", minutes.0, hours.0);
            let schedule = Schedule::try_from(schedule).unwrap();
            let millis = |it: i64| u64::try_from(it).unwrap() * 1000;
            prop_assert_eq!(firings(&schedule, millis(from), millis(to)), expected);
        }
    }
}
