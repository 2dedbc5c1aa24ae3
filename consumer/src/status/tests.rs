//! A consumer that never ran, and what its page says of it.

use std::time::Duration;

use jiff::tz::TimeZone;
use runtime::metrics::Registry;
use serde_json::{Value, json};

use super::*;
use crate::{
    batch::{Counts, Cursor},
    ledger::Settled,
    producers::{Arrival, Opening},
    store::Swept,
};

fn config() -> Config {
    let arguments = [
        "consumer",
        "--name=<b>node",
        "--producer=http://127.0.0.1:1",
        "--store=mongodb://user:secret@db:27017/?authSource=x",
        "--time-zone=UTC",
    ];
    Config::load(arguments.map(Into::into)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn figures_come_from_health_ledger_and_metrics_and_no_secret_is_among_them() {
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let (health, draining) = (Arc::new(Health::default()), CancellationToken::new());
    let night = watch::Sender::new(Schedule {
        expiry: "01:00-03:00".parse().unwrap(),
        compaction: "03:00-06:00".parse().unwrap(),
        time_zone: TimeZone::UTC,
        cursors_kept: Duration::ZERO,
    });
    let hours = night.subscribe();
    let sources = Sources::of(&config(), hours, &metrics, &health, &draining);
    let mut status = ConsumerStatus::new(sources);
    let whole = |status: &ConsumerStatus, with_history| -> Value {
        serde_json::from_slice(&status.json(with_history).unwrap()).unwrap()
    };
    assert_eq!(whole(&status, false), json!({}), "before the first sample");
    status.sample(Instant::now());

    let address = SocketAddr::from(([127, 0, 0, 1], 7676));
    let cursor = |epoch, sequence| Cursor {
        producer: "p".into(),
        epoch,
        sequence,
        complete: false,
    };
    let listed = health.producers().listed(address, "http://p:7676");
    let opened = |epoch, newest| {
        let opening = Opening {
            at: &cursor(epoch, 0),
            newest,
            before: None,
        };
        listed.opened(opening).0
    };
    let arrival = Arrival {
        accepted_unix_micros: 1_000_000,
        received_unix_micros: 1_012_000,
    };
    opened(5, 10).advance(&cursor(5, 10), Some(arrival));
    let _connected = opened(5, 10);
    health.store_works();
    let sink = &metrics.sink;
    sink.ledger.received(10);
    sink.ledger.settled(&Settled {
        counts: Counts {
            received: 7,
            superseded: 1,
            ..Counts::default()
        },
        written: 4,
        stale: 0,
        rejected: 2,
        set_aside: 0,
    });
    health.producers().committed(&[cursor(5, 7)], &[]);
    sink.stored_seconds.observe(Duration::from_millis(120), 7);
    metrics.maintenance.swept(&Swept {
        looked: 1_000,
        deleted: 10,
        ahead: Some((1_000_000, 2_000_000)),
    });
    metrics.subscription.restarts_proved.inc();
    metrics.subscription.lost_producer_ended.inc_by(3);
    tokio::time::advance(Duration::from_secs(2)).await;
    status.sample(Instant::now());

    let said = whole(&status, true);
    let text = said.to_string();
    assert!(!text.contains("secret"), "{text}");
    let producer = json!({
        "address": "127.0.0.1:7676", "origin": "http://p:7676", "producer": "p", "connected": true, "why": null,
        "epoch": 5, "received_sequence": 10, "stored_sequence": 7, "lag_cookies": 3, "newest_age_seconds": 0.012,
        "silent_seconds": 2.0,
    });
    let ledger = json!({
        "received": 10, "written": 4, "suppressed": 0, "superseded": 1, "stale": 0, "malformed": 0,
        "dead_lettered": 2, "found": 0, "set_aside": 0, "unreadable": 0, "no_place": 0, "expired": 0, "left_out": 0, "waiting": 3, "unexplained": 0,
    });
    for (path, expected) in [
        ("/process", json!("consumer")),
        ("/name", json!("<b>node")),
        ("/ready", json!(false)),
        (
            "/reasons",
            json!([{"part": "cursors", "why": "not loaded yet"}]),
        ),
        ("/uptime_seconds", json!(2.0)),
        ("/producers", json!([producer])),
        ("/ledger", ledger),
        ("/received_per_second", json!(5.0)),
        ("/written_per_second", json!(2.0)),
        ("/stored_seconds/count", json!(7)),
        ("/received_seconds", json!(null)),
        ("/store/kind", json!("mongodb")),
        ("/store/up", json!(true)),
        ("/lost", json!([{"what": "producer_ended", "count": 3}])),
        ("/lives/proved", json!(1)),
        ("/night/expiry/hours", json!("01:00-03:00")),
        ("/night/time_zone", json!("UTC")),
        ("/night/sweep/seconds_left", json!(1_800)),
        ("/history/received_per_second", json!([0.0, 5.0])),
    ] {
        assert_eq!(said.pointer(path), Some(&expected), "{path}");
    }
    assert_eq!(whole(&status, false).get("history"), None);
    night.send_modify(|night| night.expiry = "02:00-04:00".parse().unwrap());
    draining.cancel();
    status.sample(Instant::now());
    let after = whole(&status, false);
    assert_eq!(after["draining"], true);
    assert_eq!(after["night"]["expiry"]["hours"], "02:00-04:00");

    // Another epoch: what of the one before is durable says nothing of it.
    opened(6, 2).advance(&cursor(6, 2), None);
    status.sample(Instant::now());
    let said = whole(&status, false);
    let said = &said["producers"][0];
    assert_eq!(
        (&said["stored_sequence"], &said["lag_cookies"]),
        (&json!(null), &json!(2))
    );
}
