//! The greatest value between two scrapes: of a queue that fills and empties in between, a gauge says nothing.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use metric_defs::MetricDef;
use prometheus::{
    IntGauge, Result,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{Registry, handle::Handle as _};

/// The greatest value since the scrape before the last.
///
/// Not since the last: each scrape begins a new interval, no matter who makes it, so of two that scrape by turns each would see
/// half. Over two intervals each sees all since its own last scrape, and a single one sees every peak twice. With three, or
/// with one that scrapes several times as often as the other, a peak can be missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peak {
    /// Of the interval that has not ended.
    current: u64,
    /// Of the one before.
    previous: u64,
}

impl Peak {
    /// Notes a value.
    pub fn note(&mut self, value: u64) {
        self.current = self.current.max(value);
    }

    /// The greatest of this interval and the one before, so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.current.max(self.previous)
    }

    /// Ends an interval, at a scrape, when the value is `now`.
    pub fn end(&mut self, now: u64) {
        // What is there now is also the first of what follows.
        self.previous = mem::replace(&mut self.current, now).max(now);
    }
}

/// The [`Peak`] of another gauge, as a gauge of its own; clones share it.
#[derive(Debug, Clone)]
pub struct PeakGauge {
    of: IntGauge,
    shown: IntGauge,
    peak: Arc<Mutex<Peak>>,
}

impl PeakGauge {
    /// Registers the peak of `of`, which never is negative.
    ///
    /// # Errors
    /// When the name is taken.
    #[track_caller]
    pub fn register(registry: &Registry, figure: MetricDef, of: IntGauge) -> Result<Self> {
        let peak = Self {
            of,
            shown: IntGauge::of(figure)?,
            peak: Arc::default(),
        };
        registry.register(Box::new(peak.clone()))?;
        let on_scrape = peak.clone();
        registry.on_scrape(move || on_scrape.peak().end(on_scrape.now()));
        Ok(peak)
    }

    /// Looks at the other gauge; to be called whenever that has grown.
    pub fn note(&self) {
        self.peak().note(self.now());
    }

    fn peak(&self) -> MutexGuard<'_, Peak> {
        self.peak.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.of.get()).unwrap_or(0)
    }
}

impl Collector for PeakGauge {
    fn desc(&self) -> Vec<&Desc> {
        self.shown.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let greatest = self.peak().get().max(self.now());
        self.shown.set(i64::try_from(greatest).unwrap_or(i64::MAX));
        self.shown.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a scrape tells, which then ends the interval.
    fn scrape(peak: &mut Peak, now: u64) -> u64 {
        let greatest = peak.get().max(now);
        peak.end(now);
        greatest
    }

    #[test]
    fn peak_is_seen_by_the_next_two_scrapes_though_it_is_gone() {
        let mut peak = Peak::default();
        peak.note(7);
        peak.note(3);
        assert_eq!(scrape(&mut peak, 0), 7);
        assert_eq!(scrape(&mut peak, 0), 7, "by a second scraper");
        assert_eq!(scrape(&mut peak, 0), 0);
    }

    #[test]
    fn peak_is_never_less_than_what_is_there_now() {
        let mut peak = Peak::default();
        assert_eq!(scrape(&mut peak, 5), 5);
        peak.note(2);
        assert_eq!(scrape(&mut peak, 2), 5);
        assert_eq!(
            scrape(&mut peak, 2),
            5,
            "5 was there when that interval began"
        );
        assert_eq!(scrape(&mut peak, 2), 2);
    }

    #[test]
    fn two_scrapers_by_turns_see_every_peak_of_their_own_interval() {
        for at in 0..2 {
            let mut peak = Peak::default();
            let seen: Vec<_> = (0..4)
                .map(|turn| {
                    if turn == at {
                        peak.note(9);
                    }
                    scrape(&mut peak, 0)
                })
                .collect();
            // One scrapes at even turns, the other at odd ones.
            assert!(seen[at] == 9 && seen[at + 1] == 9, "{seen:?}");
        }
    }

    #[test]
    fn gauge_shows_the_peak_of_the_other() {
        let registry = Registry::new();
        let of = IntGauge::new("of", "Of.").unwrap();
        let peak = PeakGauge::register(
            &registry,
            MetricDef::gauge("of_max", "Greatest."),
            of.clone(),
        )
        .unwrap();
        of.set(8);
        peak.note();
        of.set(1);
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
