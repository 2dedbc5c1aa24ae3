//! A producer without ports, and what its page says of it.

use std::{collections::BTreeSet, fmt::Write as _, fs, net::SocketAddr, time::Duration};

use proto::wire::CookieRef;
use runtime::{
    metrics::Registry,
    reload::{NamedFile, Reloaded},
};
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::*;
use crate::{
    edge, log, metrics,
    readiness::Accepting,
    shaping::contract::File,
    streams::subscribers::{Call, HERE, Start, TooManySubscribers},
};

const HOUR: Duration = Duration::from_secs(3600);

/// A producer's parts, and the hub's view of them.
struct Scene {
    log: Log,
    subscribers: Subscribers,
    edge: edge::Metrics,
    shaping: Option<Shaping>,
    draining: CancellationToken,
    status: ProducerStatus,
}

impl Scene {
    fn new() -> Self {
        Self::showing(1)
    }

    /// With series for so many DSPs.
    fn showing(dsps_max: usize) -> Self {
        Self::of(dsps_max, None)
    }

    /// With these limits, whose file is looked at once.
    fn limited(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.toml");
        fs::write(&path, text).unwrap();
        let flag = "--limits";
        Self::of(
            1,
            Some(Reloaded::load(File(NamedFile { flag, path })).unwrap()),
        )
    }

    fn of(dsps_max: usize, limits: Option<Reloaded<File>>) -> Self {
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
        let shaping = limits.map(|file| Shaping::start("", Arc::new(file), None, log.clone()));
        let status = ProducerStatus::new(Sources {
            name: "</script><b>p".to_owned(),
            log: log.clone(),
            log_bytes_max: 1 << 20,
            subscribers: subscribers.clone(),
            edge: edge.clone(),
            connections,
            in_flight: StreamBudget::register(&registry, 1 << 20).unwrap(),
            shaping: shaping.clone(),
            readiness: Arc::new(Readiness {
                draining: draining.clone(),
                http: accepting(),
                grpc: accepting(),
                shaping: None,
            }),
        });
        Self {
            log,
            subscribers,
            edge,
            shaping,
            draining,
            status,
        }
    }

    /// Offers a cookie of this DSP, and of a user of this number, to the limits.
    fn offer(&self, dsp_id: u32, user: usize) {
        let shaping = self.shaping.as_ref().unwrap();
        let mut burst = log::Burst::default();
        burst.push(&CookieRef {
            user_id: &user.to_string(),
            dsp_id,
            buyer_uid: "b",
            age_micros: 0,
        });
        let now = std::time::Instant::now();
        shaping.append(&mut burst, now).unwrap();
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
    let mut known = edge::dsps::KnownDsps::default();
    dsps.refresh(&mut known);
    for dsp_id in 1..=u32::try_from(dsps_max).unwrap() {
        for _ in 0..dsp_id {
            tally.accepted(dsp_id);
        }
        dsps.add(&mut tally, &mut known);
    }
    for _ in 0..30 {
        tally.rejected(Some(2), edge::request::Rejection::ALL[0]);
    }
    dsps.add(&mut tally, &mut known);
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

const LIMITS: &str = r#"
unknown = "<b>others"

[limits."<b>others"]
rules = [ { id = "hour", rate = "10/h", burst = 2 } ]
mode = "police"

[limits.dsp-17]
keys = [17]
rules = [ { id = "hour", rate = "60/h", burst = 10 } ]
mode = "shape"
shape = { horizon = "20m", max_age = "1h" }

[limits.whole]
every_call = true
rules = [ { id = "share", rate = "1000/s", burst = 1000 } ]
"#;

#[tokio::test(start_paused = true)]
async fn limits_are_shown_with_what_came_what_was_over_and_what_went() {
    let mut without = Scene::new();
    without.sample();
    assert_eq!(without.said(false).get("limits"), None);

    let mut scene = Scene::limited(LIMITS);
    scene.sample();
    (0..8).for_each(|user| scene.offer(99, user));
    // Ten go, twenty wait for their turn, and ten are sent back.
    (0..40).for_each(|user| scene.offer(17, user));
    scene.offer(17, 12);
    tokio::time::advance(Duration::from_secs(2)).await;
    scene.sample();
    let said = scene.said(false);
    let limits = &said["limits"];
    for (path, expected) in [
        ("/version", json!(1)),
        ("/refused", json!(null)),
        ("/total", json!(2)),
        ("/rows/0/name", json!("<b>others")),
        ("/rows/0/mode", json!("police")),
        ("/rows/0/accepted", json!(8)),
        ("/rows/0/limited", json!(6)),
        ("/rows/0/dropped", json!([{"what": "police", "count": 6}])),
        ("/rows/0/released", json!(2)),
        ("/rows/0/oldest_seconds", json!(0.0)),
        ("/rows/0/delay_seconds/count", json!(2)),
        ("/rows/1/name", json!("dsp-17")),
        ("/rows/1/mode", json!("shape")),
        ("/rows/1/accepted", json!(41)),
        ("/rows/1/accepted_per_second", json!(20.5)),
        ("/rows/1/limited", json!(30)),
        ("/rows/1/limited_per_second", json!(15.0)),
        ("/rows/1/limited_by", json!([{"what": "hour", "count": 30}])),
        ("/rows/1/coalesced", json!(1)),
        ("/rows/1/released", json!(10)),
        ("/rows/1/released_per_second", json!(5.0)),
        ("/rows/1/dropped", json!([])),
        ("/rows/1/spooled", json!(0)),
        ("/rows/1/waiting", json!(30)),
        ("/rows/1/dead", json!(0)),
        ("/rows/1/parked", json!(0)),
        ("/rows/1/delay_seconds/count", json!(10)),
        ("/rows/1/jitter_seconds", json!(0.0)),
    ] {
        assert_eq!(limits.pointer(path), Some(&expected), "{path} of {limits}");
    }
    let oldest = limits["rows"][1]["oldest_seconds"].as_f64();
    assert!(oldest > Some(0.0), "{oldest:?}");
}

#[tokio::test]
async fn limits_are_bounded_by_those_with_most_cookies() {
    let mut file = "unknown = \"unlimited\"\n".to_owned();
    let count = u32::try_from(LIMITS_MAX + 2).unwrap();
    for dsp in 1..=count {
        writeln!(
            file,
            "[limits.{dsp}]\nrules = [ {{ id = \"peak\", rate = \"10/s\" }} ]"
        )
        .unwrap();
    }
    let mut scene = Scene::limited(&file);
    for dsp in 3..=count {
        scene.offer(dsp, 1);
    }
    scene.sample();
    let said = scene.said(false);
    let rows = said["limits"]["rows"].as_array().unwrap();
    let mut expected: Vec<_> = (3..=count).map(|dsp| dsp.to_string()).collect();
    expected.sort();
    let names: Vec<_> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, expected);
    assert_eq!(said["limits"]["total"], count);
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
