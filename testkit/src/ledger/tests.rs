//! Tests of the ledger checks on balanced and unbalanced scrapes.

use super::*;

const PRODUCER: &str = r#"
producer_cookies_appended_total 200
producer_subscriber_appended_cookies_total{call="subscribe",subscriber="a"} 100
producer_subscriber_delivered_cookies_total{call="subscribe",subscriber="a"} 80
producer_subscriber_redelivered_cookies_total{call="subscribe",subscriber="a"} 5
producer_subscriber_undelivered_cookies_total{call="subscribe",subscriber="a"} 10
producer_subscriber_lost_cookies_total{call="subscribe",reason="lag_limit",subscriber="a"} 15
producer_subscriber_lost_cookies_total{call="subscribe",reason="evicted",subscriber="a"} 10
producer_subscriber_recovered_cookies_total{call="subscribe",subscriber="a"} 2
producer_subscriber_queued_cookies{call="subscribe",subscriber="a"} 7
"#;

const CONSUMER: &str = r#"
consumer_received_total 75
consumer_written_total 30
consumer_superseded_total 10
consumer_suppressed_total 5
consumer_stale_total 4
consumer_failed_total{reason="malformed"} 3
consumer_failed_total{reason="rejected"} 2
consumer_drain_skipped_total 1
consumer_deletions_total 0
consumer_deleted_on_arrival_total 0
consumer_waiting_cookies 20
consumer_retry_queue_recovered_total 3
consumer_retry_queue_cookies 3
"#;

const LIMIT: &str = r#"
producer_limits_accepted_cookies_total{limit="dsp-1"} 100
producer_limits_released_cookies_total{limit="dsp-1",timing="scheduled"} 40
producer_limits_released_cookies_total{limit="dsp-1",timing="early"} 1
producer_limits_superseded_cookies_total{limit="dsp-1"} 2
producer_limits_dropped_cookies_total{limit="dsp-1",reason="bound"} 3
producer_limits_dropped_cookies_total{limit="dsp-1",reason="police"} 4
producer_limits_spooled_cookies_total{limit="dsp-1"} 5
producer_limits_queued_cookies{limit="dsp-1"} 25
producer_limits_overdue_cookies{limit="dsp-1"} 15
producer_limits_parked_cookies{limit="dsp-1"} 5
"#;

/// The scrape with the value of one sample replaced.
fn changed(text: &str, sample: &str, value: &str) -> Samples {
    let mut found = false;
    let lines = text.lines().map(|line| match line.rsplit_once(' ') {
        Some((start, _)) if start.starts_with(sample) => {
            found = true;
            format!("{start} {value}\n")
        }
        _ => format!("{line}\n"),
    });
    let text: String = lines.collect();
    assert!(found, "{sample}");
    Samples::parse(&text)
}

fn without(text: &str, sample: &str) -> Samples {
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with(sample))
        .collect();
    assert!(lines.len() < text.lines().count(), "{sample}");
    Samples::parse(&lines.join("\n"))
}

#[test]
fn balanced_ledger_passes() {
    check_producer(&Samples::parse(PRODUCER)).unwrap();
    check_consumer(&Samples::parse(CONSUMER)).unwrap();
    check(&Samples::parse(&format!("{PRODUCER}{CONSUMER}"))).unwrap();
    check(&Samples::parse("something_else 1\n")).unwrap();
    check_producer(&Samples::parse("producer_cookies_appended_total 0\n")).unwrap();
}

#[test]
fn imbalance_of_one_cookie_is_reported_with_all_terms() {
    for (sample, value) in [
        ("producer_subscriber_appended_cookies_total", "101"),
        ("producer_subscriber_delivered_cookies_total", "79"),
        ("producer_subscriber_undelivered_cookies_total", "9"),
        (
            "producer_subscriber_lost_cookies_total{call=\"subscribe\",reason=\"lag",
            "16",
        ),
        ("producer_subscriber_recovered_cookies_total", "3"),
        ("producer_subscriber_queued_cookies", "8"),
        ("producer_cookies_appended_total", "99"),
    ] {
        let error = check(&changed(PRODUCER, sample, value))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("do not balance") && error.contains("undelivered"),
            "{error}"
        );
    }
    for sample in CONSUMER.lines().filter_map(|line| line.split_once(' ')) {
        let error = check(&changed(CONSUMER, sample.0, "76"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("consumer_waiting_cookies"), "{error}");
    }
}

#[test]
fn limit_ledger_is_listed_by_outcome_and_checked_with_its_producer() {
    let text = format!("{PRODUCER}{LIMIT}");
    let (accepted, outcomes) = limit_outcomes(&Samples::parse(&text), "dsp-1").unwrap();
    assert_eq!(accepted, 100);
    let expected = [
        ("released", 41),
        ("superseded", 2),
        ("dropped", 7),
        ("spooled", 5),
        ("queued", 25),
        ("overdue", 15),
        ("parked", 5),
    ];
    assert_eq!(outcomes, expected);
    check(&Samples::parse(&text)).unwrap();
    for sample in LIMIT.lines().filter_map(|line| line.split_once(' ')) {
        let error = check(&changed(&text, sample.0, "7777")).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("producer_limits_queued_cookies"), "{error}");
    }
    assert!(limit_outcomes(&Samples::parse(&text), "dsp-2").is_err());
}

#[test]
fn balance_with_a_negative_term_fails() {
    let negative = CONSUMER
        .replace("waiting_cookies 20", "waiting_cookies -20")
        .replace("written_total 30", "written_total 70");
    assert!(check_consumer(&Samples::parse(&negative)).is_err());
    let negative = PRODUCER
        .replace(
            "} 10\nproducer_subscriber_lost",
            "} 90\nproducer_subscriber_lost",
        )
        .replace(
            "queued_cookies{call=\"subscribe\",subscriber=\"a\"} 7",
            "queued_cookies{call=\"subscribe\",subscriber=\"a\"} 87",
        );
    let error = check_producer(&Samples::parse(&negative))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("producer_subscriber_undelivered_cookies_total 90"),
        "{error}"
    );
}

#[test]
fn missing_term_is_an_error() {
    for sample in [
        "producer_cookies_appended_total",
        "producer_subscriber_appended_cookies_total",
        "producer_subscriber_queued_cookies",
    ] {
        assert!(
            check_producer(&without(PRODUCER, sample)).is_err(),
            "{sample}"
        );
    }
    for sample in [
        "consumer_received_total",
        "consumer_drain_skipped_total",
        "consumer_waiting_cookies",
    ] {
        assert!(
            check_consumer(&without(CONSUMER, sample)).is_err(),
            "{sample}"
        );
    }
}
