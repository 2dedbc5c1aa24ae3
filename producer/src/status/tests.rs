//! A producer without ports, and what its page says of it.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use proto::wire::CookieRef;
use runtime::metrics::Registry;
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::*;
use crate::{
    edge, log, metrics,
    readiness::Accepting,
    streams::subscribers::{Call, HERE, Start, TooManySubscribers},
};

const HOUR: Duration = Duration::from_secs(3600);

/// A producer's parts, and the board's view of them.
struct Scene {
    log: Log,
    subscribers: Subscribers,
    edge: edge::Metrics,
    draining: CancellationToken,
    status: ProducerStatus,
}

impl Scene {
    fn new() -> Self {
        Self::showing(1)
    }

    /// With series for so many DSPs.
    fn showing(dsps_max: usize) -> Self {
        let log = Log::new(log::Config {
            epoch: 7,
            bytes_max: 1 << 20,
            chunk_bytes: 4096,
            chunk_age: HOUR,
            idle_after: HOUR,
        });
        let subscribers = Subscribers::new(HOUR, 1000);
        let registry = Registry::new();
        metrics::register(&registry, &log, &subscribers, 1_000).unwrap();
        let shown = edge::dsps::Shown {
            named: BTreeSet::new(),
            max: dsps_max,
            refuses_others: false,
        };
        let edge = edge::Metrics::register(&registry, &shown).unwrap();
        let connections = ["http", "grpc", "admin"].map(|port| {
            let metrics = listen::Metrics::register(&registry, "producer", port);
            (port, metrics.unwrap())
        });
        let draining = CancellationToken::new();
        let tasks = TaskTracker::new();
        let accepting = || Accepting {
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            task: tasks.spawn(std::future::pending::<()>()).abort_handle(),
        };
        let status = ProducerStatus::new(Sources {
            name: "</script><b>p".to_owned(),
            log: log.clone(),
            log_bytes_max: 1 << 20,
            subscribers: subscribers.clone(),
            edge: edge.clone(),
            connections,
            in_flight: StreamBudget::register(&registry, 1 << 20).unwrap(),
            readiness: Arc::new(Readiness {
                draining: draining.clone(),
                http: accepting(),
                grpc: accepting(),
            }),
        });
        Self {
            log,
            subscribers,
            edge,
            draining,
            status,
        }
    }

    fn append(&self, cookies: usize) {
        let mut burst = log::Burst::default();
        for _ in 0..cookies {
            burst.push(&CookieRef {
                user_id: "u",
                dsp_id: 17,
                buyer_uid: "b",
                age_micros: 0,
            });
        }
        self.log.append(&mut burst).unwrap();
    }

    fn sample(&mut self) {
        self.status.sample(Instant::now());
    }

    fn said(&self, with_history: bool) -> Value {
        serde_json::from_slice(&self.status.json(with_history).unwrap()).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn figures_come_from_the_log_the_subscribers_and_the_metrics() {
    let mut scene = Scene::new();
    assert_eq!(scene.said(false), json!({}), "before the first sample");
    let requests = scene.edge.requests.clone();
    scene.sample();
    scene.append(10);
    scene.log.close();
    requests.with_label_values(&["accepted"]).inc_by(10);
    requests.with_label_values(&["b_missing"]).inc_by(2);
    requests.with_label_values(&["d_missing"]).inc_by(0);
    let joined = scene.subscribers.join(Call::Subscribe, "node", HERE, |_| {
        Start::fresh::<TooManySubscribers>(1)
    });
    let _lease = joined.unwrap();
    tokio::time::advance(Duration::from_secs(2)).await;
    scene.sample();
    let said = scene.said(true);
    for (path, expected) in [
        ("/process", json!("producer")),
        ("/name", json!("</script><b>p")),
        ("/ready", json!(true)),
        ("/edge/accepted", json!(10)),
        ("/edge/accepted_per_second", json!(5.0)),
        ("/edge/refused", json!(2)),
        (
            "/edge/outcomes",
            json!([{"what": "accepted", "count": 10}, {"what": "b_missing", "count": 2}]),
        ),
        ("/edge/latency_seconds", json!(null)),
        (
            "/connections/1",
            json!({"port": "grpc", "open": 0, "accepted": 0, "cut": []}),
        ),
        ("/pinned_bytes", json!(0)),
        ("/pinned_bytes_max", json!(1 << 20)),
        ("/log/bytes_max", json!(1 << 20)),
        ("/log/newest_sequence", json!(10)),
        ("/log/epoch", json!(7)),
        ("/subscribers_connected", json!(1)),
        ("/subscribers/0/name", json!("node")),
        ("/subscribers/0/lag_cookies", json!(10)),
        ("/subscribers/0/resumes", json!(0)),
        (
            "/dsps",
            json!([{"dsp": "other", "accepted": 0, "refused": 0}]),
        ),
        ("/history/accepted_per_second", json!([0.0, 5.0])),
        ("/history/subscribers/0/name", json!("node")),
    ] {
        assert_eq!(said.pointer(path), Some(&expected), "{path}");
    }
    assert_eq!(scene.said(false).get("history"), None);
    scene.draining.cancel();
    scene.sample();
    let said = scene.said(false);
    assert_eq!(
        (&said["ready"], &said["draining"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        said["reasons"],
        json!([{"part": "drain", "why": "draining"}])
    );
}

#[tokio::test]
async fn dsps_are_shown_where_they_are_counted_those_with_most_first() {
    let dsps_max = DSPS_MAX + 5;
    let mut scene = Scene::showing(dsps_max);
    let dsps = scene.edge.dsps();
    let mut tally = edge::dsps::Tally::default();
    for dsp_id in 1..=u32::try_from(dsps_max).unwrap() {
        let slot = dsps.slot(Some(dsp_id));
        for _ in 0..dsp_id {
            tally.accepted(slot);
        }
        dsps.add(&mut tally);
    }
    for _ in 0..30 {
        tally.rejected(dsps.slot(Some(2)), edge::request::Rejection::ALL[0]);
    }
    dsps.add(&mut tally);
    scene.sample();
    let said = scene.said(false);
    assert_eq!(said["dsps"].as_array().unwrap().len(), DSPS_MAX);
    assert_eq!(
        said["dsps"][0],
        json!({"dsp": "2", "accepted": 2, "refused": 30})
    );
    assert_eq!(
        said["dsps"][1],
        json!({"dsp": "25", "accepted": 25, "refused": 0})
    );
}

/// What the module's doc says; run it in the dist profile with `--nocapture`.
#[tokio::test]
#[ignore = "measures"]
async fn cost_of_a_sample_with_a_hundred_subscribers() {
    let mut scene = Scene::showing(100);
    let leases: Vec<_> = (0..100)
        .map(|number| {
            let name = format!("node-{number}.exchange.example");
            let joined = scene.subscribers.join(Call::Subscribe, &name, HERE, |_| {
                Start::fresh::<TooManySubscribers>(1)
            });
            joined.unwrap()
        })
        .collect();
    for _ in 0..10_000 {
        scene.append(50);
    }
    let rounds = 2000;
    let time = |scene: &mut Scene, what: &str, work: &mut dyn FnMut(&mut Scene)| {
        let began = std::time::Instant::now();
        for _ in 0..rounds {
            work(scene);
        }
        println!("{what}: {:?}", began.elapsed() / rounds);
    };
    time(&mut scene, "sample", &mut Scene::sample);
    time(&mut scene, "event", &mut |scene| {
        drop(scene.status.json(false))
    });
    time(&mut scene, "with history", &mut |scene| {
        drop(scene.status.json(true))
    });
    let bytes = [false, true].map(|history| scene.status.json(history).unwrap().len());
    println!("bytes of an event and of all: {bytes:?}");
    drop(leases);
}
