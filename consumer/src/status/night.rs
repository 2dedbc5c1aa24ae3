//! When the store may expire and compact next, where the node is.

use jiff::{Timestamp, Zoned};
use runtime::status::counted::whole;
use serde::Serialize;

use crate::{maintenance::Schedule, maintenance_window::Window, metrics};

/// The night as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Night {
    /// The time zone of all local times here.
    pub time_zone: String,
    /// What time it is there, to the minute.
    pub local_time: String,
    /// When expired cookies are deleted.
    pub expiry: NightWindow,
    /// When the store is compacted.
    pub compaction: NightWindow,
    /// The sweep for expired cookies, as it is or was last; none before the first.
    pub sweep: Option<Sweep>,
}

/// A look at all cookies for those that have expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sweep {
    /// Cookies that it has looked at since the process began.
    pub looked_at: u64,
    /// Cookies that it has yet to look at, by estimate.
    pub left: u64,
    /// Cookies that it looks at an hour.
    pub per_hour: u64,
    /// How long that takes at this pace, while it is at work.
    pub seconds_left: u64,
}

impl Sweep {
    pub(super) fn of(metrics: &metrics::Maintenance) -> Option<Self> {
        let (left, per_hour) = (whole(&metrics.sweep_left), whole(&metrics.sweep_per_hour));
        (metrics.swept.get() > 0).then(|| Self {
            looked_at: metrics.swept.get(),
            left,
            per_hour,
            seconds_left: left.saturating_mul(3600) / per_hour.max(1),
        })
    }
}

/// One window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NightWindow {
    /// Its hours, `never` or `always`.
    pub hours: String,
    /// Whether it is open.
    pub open: bool,
    /// When it opens or closes next, in seconds since the Unix epoch; none when it never does.
    pub next_change_unix_seconds: Option<i64>,
    /// The same as local time, to the minute.
    pub next_change_local_time: Option<String>,
}

impl Night {
    pub(super) fn now(schedule: &Schedule, metrics: &metrics::Maintenance) -> Self {
        let now = Timestamp::now().to_zoned(schedule.time_zone.clone());
        Self {
            sweep: Sweep::of(metrics),
            ..Self::at(schedule, &now)
        }
    }

    fn at(schedule: &Schedule, now: &Zoned) -> Self {
        let zone = schedule.time_zone.iana_name().unwrap_or("system");
        Self {
            time_zone: zone.to_owned(),
            local_time: local(now),
            expiry: NightWindow::at(schedule.expiry, now),
            compaction: NightWindow::at(schedule.compaction, now),
            sweep: None,
        }
    }
}

impl NightWindow {
    fn at(window: Window, now: &Zoned) -> Self {
        let next = window.next_change(now);
        Self {
            hours: window.to_string(),
            open: window.is_open(now),
            next_change_unix_seconds: next.as_ref().map(|next| next.timestamp().as_second()),
            next_change_local_time: next.as_ref().map(local),
        }
    }
}

fn local(time: &Zoned) -> String {
    time.strftime("%Y-%m-%d %H:%M").to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::tz::TimeZone;

    use super::*;

    #[test]
    fn next_change_is_told_in_the_nodes_own_time() {
        let schedule = Schedule {
            expiry: "01:00-03:00".parse().unwrap(),
            compaction: Window::Never,
            time_zone: TimeZone::get("Europe/Berlin").unwrap(),
            cursors_kept: Duration::ZERO,
        };
        let now: Zoned = "2026-03-10T02:30:00[Europe/Berlin]".parse().unwrap();
        let night = Night::at(&schedule, &now);
        assert_eq!(night.time_zone, "Europe/Berlin");
        assert_eq!(night.local_time, "2026-03-10 02:30");
        let expiry = NightWindow {
            hours: "01:00-03:00".to_owned(),
            open: true,
            next_change_unix_seconds: Some(1_773_108_000),
            next_change_local_time: Some("2026-03-10 03:00".to_owned()),
        };
        assert_eq!(night.expiry, expiry);
        assert_eq!(night.compaction.next_change_local_time, None);
        assert!(!night.compaction.open);
    }
}
