//! Tests of the registry, its handles and the process metrics.

use std::time::Duration;

use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, TextEncoder};

use super::*;

fn names(registry: &Registry) -> Vec<String> {
    let descriptions = registry.descriptions();
    descriptions
        .iter()
        .map(|it| it.def.name.to_owned())
        .collect()
}

#[test]
fn metric_without_a_value_is_described_but_not_scraped() {
    let registry = Registry::new();
    let def = MetricDef::counter("a_total", "Counts.").by(&["reason"]);
    let counters: IntCounterVec = registry.add(def).unwrap();
    assert!(registry.gather().is_empty());
    let description = &registry.descriptions()[0];
    assert_eq!(description.def, def);
    assert!(description.labels["reason"].is_empty());
    assert!(description.file.ends_with("metrics/tests.rs"));

    counters.with_label_values(&["full"]).inc();
    assert_eq!(registry.gather().len(), 1);
    let description = &registry.descriptions()[0];
    assert!(description.labels["reason"].contains("full"));
}

#[test]
fn duplicate_name_is_rejected_and_described_once() {
    let registry = Registry::new();
    let counter = MetricDef::counter("a_total", "Counts.");
    assert!(registry.add::<IntCounter>(counter).is_ok());
    assert!(registry.add::<IntCounter>(counter).is_err());
    assert_eq!(names(&registry), ["a_total"]);
}

#[test]
fn handle_must_fit_the_type_and_labels_of_its_metric() {
    let registry = Registry::new();
    let counter = MetricDef::counter("a_total", "Counts.");
    assert!(registry.add::<IntGauge>(counter).is_err());
    assert!(registry.add::<IntCounterVec>(counter).is_err());
    assert!(registry.add::<IntCounter>(counter.by(&["reason"])).is_err());
    assert!(registry.add::<Latency>(counter).is_err());
    assert!(registry.add::<IntCounter>(counter).is_ok());
    assert_eq!(names(&registry), ["a_total"]);
}

#[test]
fn process_metrics_include_usage_and_build_info() {
    let registry = Registry::new();
    register_process(&registry, "some").unwrap();
    let names = names(&registry);
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
        "some_build_info",
    ] {
        assert!(names.iter().any(|it| it == name), "{name}: {names:?}");
    }
    let descriptions = registry.descriptions();
    let build = &descriptions.last().unwrap().labels;
    assert!(build["version"].contains(env!("CARGO_PKG_VERSION")));
    assert!(build["commit"].iter().all(|commit| !commit.is_empty()));
}

#[test]
fn latency_counts_each_observation_with_its_multiplicity() {
    let registry = Registry::new();
    let def = MetricDef::histogram("a_seconds", "Time.", &[0.001, 0.1]);
    let latency: Latency = registry.add(def).unwrap();
    latency.observe(Duration::from_millis(1), 3);
    latency.observe(Duration::from_millis(50), 40);
    latency.observe(Duration::from_secs(100), 2);
    let mut text = Vec::new();
    let encoder = TextEncoder::new();
    encoder.encode(&registry.gather(), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    for line in [
        "a_seconds_bucket{le=\"0.001\"} 3",
        "a_seconds_bucket{le=\"0.1\"} 43",
        "a_seconds_bucket{le=\"+Inf\"} 45",
        "a_seconds_sum 202.003",
        "a_seconds_count 45",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
}
