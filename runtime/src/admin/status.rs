//! `/v1/status` of the admin port: what an operator compares between the processes of a cluster, as JSON.
//!
//! It has no secrets: a setting names the file of a token, and URLs have no credentials.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::Port;
use crate::{COMMIT, ready, unix_micros};

/// How often the counters are recorded; a rate covers the last interval.
const INTERVAL: Duration = Duration::from_secs(10);

/// Number of records: those of an hour.
const RECORDS_MAX: usize = 361;

/// Counters of a process since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Cookies accepted or received.
    pub cookies: u64,
    /// Cookies that did not reach a node, with the upper bound of uncertain losses.
    pub lost: u64,
}

/// The counters of the last hour. Losses that a counter forgets, such as those of a removed subscriber, stay counted.
#[derive(Debug, Default)]
pub(super) struct History {
    records: VecDeque<Progress>,
    /// The last value of the counter of losses.
    last_lost: u64,
}

impl History {
    fn record(&mut self, progress: Progress) {
        let before = self.records.back().map_or(0, |it| it.lost);
        let lost = before + progress.lost.saturating_sub(self.last_lost);
        self.last_lost = progress.lost;
        self.records.push_back(Progress { lost, ..progress });
        if self.records.len() > RECORDS_MAX {
            self.records.pop_front();
        }
    }

    /// Cookies per second, and cookies lost in the last hour.
    fn summary(&self) -> [u64; 2] {
        let (Some(first), Some(last)) = (self.records.front(), self.records.back()) else {
            return [0, 0];
        };
        let before = self.records.iter().rev().nth(1).unwrap_or(last);
        let cookies = last.cookies.saturating_sub(before.cookies);
        [cookies / INTERVAL.as_secs(), last.lost - first.lost]
    }
}

impl Port {
    /// Records the counters until the future is dropped.
    pub(super) async fn record(self: Arc<Self>) {
        loop {
            self.history.lock().record(self.pages.progress());
            sleep(INTERVAL).await;
        }
    }

    /// The present status.
    pub(super) fn status(&self) -> Value {
        let mut status = self.pages.details();
        let [cookies_per_second, lost_last_hour] = self.history.lock().summary();
        let common = json!({
            "process": self.services.process,
            "version": env!("CARGO_PKG_VERSION"),
            "commit": COMMIT,
            "uptime_seconds": self.services.started.elapsed().as_secs(),
            "unix_micros": unix_micros(),
            "cookies_per_second": cookies_per_second,
            "lost_last_hour": lost_last_hour,
            "settings": self.services.config_reloads.running(),
            "readiness": ready::readiness(self.components()),
        });
        for (key, value) in common.as_object().into_iter().flatten() {
            status[key] = value.clone();
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_covers_ten_seconds_and_losses_an_hour() {
        let mut history = History::default();
        assert_eq!(history.summary(), [0, 0]);
        // The last one is after the removal of a subscriber.
        for ((cookies, lost), expected) in [
            ((0, 3), [0, 0]),
            ((100, 10), [10, 7]),
            ((400, 10), [30, 7]),
            ((400, 0), [0, 7]),
            ((400, 2), [0, 9]),
        ] {
            history.record(Progress { cookies, lost });
            assert_eq!(history.summary(), expected);
        }
        for _ in 0..RECORDS_MAX {
            history.record(Progress {
                cookies: 400,
                lost: 2,
            });
        }
        assert_eq!(history.summary(), [0, 0]);
        assert_eq!(history.records.len(), RECORDS_MAX);
    }
}
