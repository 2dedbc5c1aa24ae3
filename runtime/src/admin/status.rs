//! `/v1/status` of the admin port: what an operator compares between the processes of a cluster, as JSON.
//!
//! It has no secrets: a setting names the file of a token, and URLs have no credentials.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use prometheus::proto::{Metric, MetricFamily};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Port;
use crate::{COMMIT, ready, unix_micros};

/// How often the counters are recorded; a rate covers the last interval.
const INTERVAL: Duration = Duration::from_secs(10);

/// Number of records: those of an hour.
const RECORDS_MAX: usize = 361;

/// What the graphs of the status page show, if the program has it: a metric, and the `outcome` that counts; empty for all.
const GRAPHS: [(&str, &str); 7] = [
    ("producer_edge_requests_total", "accepted"),
    ("producer_subscriber_delivered_cookies_total", ""),
    ("consumer_received_total", ""),
    ("consumer_written_total", ""),
    ("limiter_requests_total", ""),
    ("revalidator_requests_total", ""),
    ("revalidator_concurrency", ""),
];

/// Number of records of graphs: those of ten minutes.
const GRAPH_RECORDS_MAX: usize = 61;

/// The sums of [`GRAPHS`]; NaN for those that the program has not.
type Sums = [f64; GRAPHS.len()];

/// The sums of these metrics.
fn sums(families: &[MetricFamily]) -> Sums {
    GRAPHS.map(|(name, outcome)| {
        let family = families.iter().find(|it| it.name() == name);
        let metrics = family.map(MetricFamily::get_metric);
        metrics.map_or(f64::NAN, |metrics| {
            let is_counted = |metric: &&Metric| {
                let mut labels = metric.get_label().iter();
                outcome.is_empty() || labels.any(|it| it.value() == outcome)
            };
            let value =
                |metric: &Metric| metric.get_counter().get_value() + metric.get_gauge().get_value();
            metrics.iter().filter(is_counted).map(value).sum()
        })
    })
}

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
    graphs: VecDeque<Sums>,
}

impl History {
    fn record(&mut self, progress: Progress, sums: Sums) {
        let before = self.records.back().map_or(0, |it| it.lost);
        let lost = before + progress.lost.saturating_sub(self.last_lost);
        self.last_lost = progress.lost;
        self.records.push_back(Progress { lost, ..progress });
        if self.records.len() > RECORDS_MAX {
            self.records.pop_front();
        }
        self.graphs.push_back(sums);
        if self.graphs.len() > GRAPH_RECORDS_MAX {
            self.graphs.pop_front();
        }
    }

    /// The sums of each metric of the program, oldest first.
    fn graphs(&self) -> Value {
        let series = GRAPHS.iter().enumerate().filter_map(|(at, (name, _))| {
            let values = self.graphs.iter().map(|sums| sums[at]);
            let values: Vec<_> = values.filter(|it| !it.is_nan()).collect();
            (!values.is_empty()).then(|| ((*name).to_owned(), json!(values)))
        });
        json!({ "seconds": INTERVAL.as_secs(), "series": Value::Object(series.collect()) })
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
            let sums = sums(&self.services.registry.gather());
            self.history.lock().record(self.pages.progress(), sums);
            sleep(INTERVAL).await;
        }
    }

    /// What the graphs of the status page show from before it was opened.
    pub(super) fn history(&self) -> Value {
        self.history.lock().graphs()
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
        if status["name"].is_null() {
            let host = gethostname::gethostname();
            status["name"] = host.to_string_lossy().into();
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use metric_defs::{consumer, producer};
    use prometheus::{IntCounter, IntCounterVec};

    use super::*;
    use crate::metrics::Registry;

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
            history.record(Progress { cookies, lost }, [0.0; GRAPHS.len()]);
            assert_eq!(history.summary(), expected);
        }
        for _ in 0..RECORDS_MAX {
            let progress = Progress {
                cookies: 400,
                lost: 2,
            };
            history.record(progress, [0.0; GRAPHS.len()]);
        }
        assert_eq!(history.summary(), [0, 0]);
        assert_eq!(history.records.len(), RECORDS_MAX);
    }

    #[test]
    fn graphs_have_ten_minutes_in_a_few_kilobytes() {
        let registry = Registry::new();
        let received: IntCounter = registry.add(consumer::RECEIVED).unwrap();
        let accepted: IntCounterVec = registry.add(producer::EDGE_REQUESTS).unwrap();
        accepted.with_label_values(&["b_missing"]).inc_by(7);
        let mut history = History::default();
        for number in 1..=1_000 {
            received.inc_by(10);
            accepted.with_label_values(&["accepted"]).inc();
            history.record(Progress::default(), sums(&registry.gather()));
            let graphs = history.graphs();
            let values = &graphs["series"]["consumer_received_total"];
            assert_eq!(values.as_array().unwrap().len(), number.min(61));
        }
        let series = &history.graphs()["series"];
        assert_eq!(series["consumer_received_total"][60], 10_000.0);
        assert_eq!(series["producer_edge_requests_total"][0], 940.0);
        assert_eq!(series.as_object().unwrap().len(), 2);
        let bytes =
            size_of_val(history.graphs.as_slices().0) + size_of_val(history.graphs.as_slices().1);
        assert!(bytes <= 64 << 10, "{bytes}");
    }
}
