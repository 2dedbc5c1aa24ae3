//! Peaks between two scrapes, for queues that fill and empty in between. A gauge would miss them.

use std::{mem, sync::Arc};

use metric_defs::MetricDef;
use parking_lot::Mutex;
use prometheus::{IntGauge, Result};

use super::{Registry, as_f64, value};

/// The maximum since the second-to-last scrape.
///
/// Each scrape by any client begins a new interval. With a single interval, two alternating scrapers would each cover only half
/// of the time. With two intervals, each covers the time since its own last scrape, and a single scraper sees every peak twice.
/// Three scrapers, or two with very different intervals, can miss peaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peak {
    /// Maximum of the current interval.
    current: u64,
    /// Maximum of the previous interval.
    previous: u64,
}

impl Peak {
    /// Records a value.
    pub fn record(&mut self, value: u64) {
        self.current = self.current.max(value);
    }

    /// The maximum of the current and the previous interval.
    pub fn get(&self) -> u64 {
        self.current.max(self.previous)
    }

    /// Begins a new interval at a scrape; `now` is the current value.
    pub fn end_interval(&mut self, now: u64) {
        // The current value also belongs to the next interval.
        self.previous = mem::replace(&mut self.current, now).max(now);
    }
}

/// The [`Peak`] of a gauge, as a second gauge; clones share it.
#[derive(Debug, Clone)]
pub struct PeakGauge {
    source: IntGauge,
    peak: Arc<Mutex<Peak>>,
}

impl PeakGauge {
    /// Registers the peak of `source`, which must not be negative.
    ///
    /// # Errors
    /// If the name is already registered.
    #[track_caller]
    pub fn register(registry: &Registry, def: MetricDef, source: IntGauge) -> Result<Self> {
        let peak = Self {
            source,
            peak: Arc::default(),
        };
        let shown = peak.clone();
        let max = move || as_f64(shown.peak.lock().get().max(shown.now()));
        registry.read(move || vec![value(def, max())])?;
        let hook = peak.clone();
        registry.on_scrape(move || hook.peak.lock().end_interval(hook.now()));
        Ok(peak)
    }

    /// Records the value of the source; call it whenever the source has grown.
    pub fn record(&self) {
        self.peak.lock().record(self.now());
    }

    fn now(&self) -> u64 {
        u64::try_from(self.source.get()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the peak and begins a new interval, as a scrape does.
    fn scrape(peak: &mut Peak, now: u64) -> u64 {
        let max = peak.get().max(now);
        peak.end_interval(now);
        max
    }

    #[test]
    fn past_peak_is_seen_by_the_next_two_scrapes() {
        let mut peak = Peak::default();
        peak.record(7);
        peak.record(3);
        assert_eq!(scrape(&mut peak, 0), 7);
        assert_eq!(scrape(&mut peak, 0), 7, "by a second scraper");
        assert_eq!(scrape(&mut peak, 0), 0);
    }

    #[test]
    fn peak_is_at_least_the_current_value() {
        let mut peak = Peak::default();
        assert_eq!(scrape(&mut peak, 5), 5);
        peak.record(2);
        assert_eq!(scrape(&mut peak, 2), 5);
        assert_eq!(
            scrape(&mut peak, 2),
            5,
            "the value was 5 when that interval began"
        );
        assert_eq!(scrape(&mut peak, 2), 2);
    }

    #[test]
    fn two_alternating_scrapers_see_every_peak_of_their_interval() {
        for at in 0..2 {
            let mut peak = Peak::default();
            let seen: Vec<_> = (0..4)
                .map(|scrape_index| {
                    if scrape_index == at {
                        peak.record(9);
                    }
                    scrape(&mut peak, 0)
                })
                .collect();
            // One scraper makes the even scrapes, the other the odd ones.
            assert!(seen[at] == 9 && seen[at + 1] == 9, "{seen:?}");
        }
    }

    #[test]
    fn peak_gauge_shows_the_peak_of_its_source() {
        let registry = Registry::new();
        let source = IntGauge::new("source", "Source.").unwrap();
        let peak = PeakGauge::register(
            &registry,
            MetricDef::gauge("source_max", "Maximum."),
            source.clone(),
        )
        .unwrap();
        source.set(8);
        peak.record();
        source.set(1);
        let shows = |expected: f64| {
            let shown = registry.gather()[0].get_metric()[0].get_gauge().get_value();
            assert!((shown - expected).abs() < f64::EPSILON, "{shown}");
        };
        shows(8.0);
        for expected in [8.0, 8.0, 1.0] {
            shows(expected);
            assert_eq!(registry.scrape().len(), 1);
        }
    }
}
