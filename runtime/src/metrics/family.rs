//! Metrics that are read when somebody asks, instead of being kept: name, help and labels, apart from the values.

use std::collections::HashMap;

use prometheus::{
    Result,
    core::Desc,
    proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType},
};

/// What is always the same of a metric.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    is_counter: bool,
}

impl Family {
    /// A value that only grows.
    #[must_use]
    pub const fn counter(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            help,
            labels,
            is_counter: true,
        }
    }

    /// A value that goes up and down.
    #[must_use]
    pub const fn gauge(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            help,
            labels,
            is_counter: false,
        }
    }

    /// How a collector announces it.
    ///
    /// # Errors
    /// When the name, or that of a label, is none.
    pub fn desc(&self) -> Result<Desc> {
        let labels = self.labels.iter().map(ToString::to_string).collect();
        Desc::new(
            self.name.to_owned(),
            self.help.to_owned(),
            labels,
            HashMap::new(),
        )
    }

    /// It with these samples, each the values of the labels in their order, and its own value.
    #[must_use]
    pub fn with<'a, L: AsRef<[&'a str]>>(
        &self,
        samples: impl IntoIterator<Item = (L, f64)>,
    ) -> MetricFamily {
        let samples = samples.into_iter().map(|(labels, value)| {
            let pairs = self.labels.iter().zip(labels.as_ref());
            self.metric(
                pairs.map(|(name, value)| pair(name, value)).collect(),
                value,
            )
        });
        let mut family = MetricFamily::default();
        family.set_name(self.name.to_owned());
        family.set_help(self.help.to_owned());
        family.set_field_type(if self.is_counter {
            MetricType::COUNTER
        } else {
            MetricType::GAUGE
        });
        family.set_metric(samples.collect());
        family
    }

    fn metric(&self, labels: Vec<LabelPair>, value: f64) -> Metric {
        let mut metric = Metric::default();
        metric.set_label(labels);
        if self.is_counter {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    }
}

fn pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}
