//! Tests of the outcomes of a batch, and of their effects on stored objects.

use std::{
    cell::Cell,
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use runtime::{limit_headers::LimitHeaders, metrics::Registry};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{apps::Apps, digest::digest, jobs::DAY_MS, outcome::Response, test_server::serve};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(DAY_MS) };
}

/// Status, body and response time in milliseconds of an asset, by its number.
type Behavior = dyn Fn(u64) -> (u16, &'static str, u64) + Send + Sync;

/// An origin with a known behavior; clones share it.
#[derive(Clone)]
struct TestOrigin {
    behavior: Arc<Behavior>,
    requests: Arc<Mutex<Vec<u64>>>,
    unconditional: Arc<Mutex<Vec<u64>>>,
}

impl Origin for TestOrigin {
    async fn request(&self, _: &App, asset: &Asset, is_conditional: bool) -> Answer {
        let number = asset.key.parse().unwrap();
        self.requests.lock().unwrap().push(number);
        if !is_conditional {
            self.unconditional.lock().unwrap().push(number);
        }
        let (status, body, millis) = (self.behavior)(number);
        let time = Duration::from_millis(millis);
        tokio::time::sleep(time).await;
        Answer::Response(Response {
            status,
            time,
            limits: LimitHeaders {
                retry_after: (status == 429).then(|| "30".to_owned()),
                ..LimitHeaders::default()
            }
            .into(),
            body: match status {
                200 => Body::Complete(body.into()),
                _ => Body::Unread,
            },
            ..Response::default()
        })
    }
}

struct Setup {
    dir: TempDir,
    app: Arc<App>,
    checker: Checker<TestOrigin>,
    progress: Progress,
    /// Whether the job replaces all objects.
    force_update: bool,
    /// Assets below this number are unused.
    unused: u64,
    /// Matches below this number were missing a day ago.
    gone_before: u64,
}

const PLAN: Plan = Plan {
    probe_requests: 12,
    concurrency: 8,
};

/// An application with contents in this directory, and with these settings.
fn app(dir: &TempDir, more: &str) -> Arc<App> {
    let text = format!(
        "[apps.a]\nkind = \"list\"\nhosts = [\"a.example\"]\nallow_delete = \"all\"\nprune_after = \"1d\"\n\
         contents = \"file:{}\"\n{more}",
        dir.path().join("contents").display()
    );
    Apps::parse(&text).unwrap().get("a").unwrap()
}

impl Setup {
    fn new(behavior: impl Fn(u64) -> (u16, &'static str, u64) + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let origin = TestOrigin {
            behavior: Arc::new(behavior),
            requests: Arc::default(),
            unconditional: Arc::default(),
        };
        Self {
            app: app(&dir, ""),
            checker: Checker {
                origin,
                limiter: Limiter::new("http://127.0.0.1:1".parse().unwrap(), None).unwrap(),
                metrics: Metrics::register(&Registry::new()).unwrap(),
            },
            dir,
            progress: Progress::default(),
            force_update: false,
            unused: 0,
            gone_before: 0,
        }
    }

    async fn store_all(&self) {
        for number in 0..100_u64 {
            let contents = self.app.settings.contents.as_ref().unwrap();
            contents
                .write(&number.to_string(), "old".into())
                .await
                .unwrap();
        }
    }

    async fn check(&mut self, allow_delete: AllowDelete) -> Result<Vec<AssetResult>, Suspension> {
        let job = JobStatus {
            allow_delete,
            app_name: "a".to_owned(),
            confirm: Some("a".to_owned()),
            force_update: self.force_update,
            ..JobStatus::default()
        };
        let asset = |number: u64| Asset {
            key: number.to_string(),
            e_tag: "\"1\"".to_owned(),
            hash: digest(b"old"),
            as_of: Some(DAY_MS),
            gone_since: (number < self.gone_before).then_some(0),
            unused: number < self.unused,
            ..Asset::default()
        };
        let batch = JobBatch {
            assets: (0..100).map(asset).collect(),
            job_id: "j".to_owned(),
            batch: 0,
            attempt: 1,
            restarts: 0,
        };
        let checked = self
            .checker
            .check(&self.app, &job, &batch, PLAN, &mut self.progress, || {
                NOW.get()
            });
        Ok(checked.await?.0)
    }

    /// Numbers of the objects that are stored.
    fn stored(&self) -> Vec<u64> {
        let contents = self.app.settings.contents.as_ref().unwrap();
        (0..100)
            .filter(|it| contents.path(&it.to_string()).exists())
            .collect()
    }

    fn requests(&self) -> usize {
        self.checker.origin.requests.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_batch_removes_the_same_objects_within_max_removals() {
    // 30 of 100 are gone; the order of the responses differs in each batch.
    let mut removed = Vec::new();
    for reverse in [false, true] {
        let mut setup = Setup::new(move |number| {
            let time = if reverse { 100 - number } else { number + 1 };
            (if number % 10 < 3 { 404 } else { 304 }, "", time)
        });
        setup.store_all().await;
        let results = setup.check(AllowDelete::Partial).await.unwrap();
        assert_eq!(results.iter().filter(|it| it.held_back).count(), 10);
        let numbers: Vec<u64> = results
            .iter()
            .map(|it| it.asset.key.parse().unwrap())
            .collect();
        assert!(numbers.is_sorted());
        let deleted = results.iter().filter(|it| it.is_deleted);
        let deleted: Vec<u64> = deleted.map(|it| it.asset.key.parse().unwrap()).collect();
        let stored = setup.stored();
        assert!(stored.len() == 80 && deleted.iter().all(|it| !stored.contains(it)));
        removed.push(deleted);
    }
    assert_eq!(removed[0], removed[1]);
}

#[tokio::test(start_paused = true)]
async fn changed_objects_are_stored_and_reported_with_their_digest() {
    let mut setup = Setup::new(|number| (if number < 40 { 200 } else { 304 }, "new", 10));
    setup.store_all().await;
    let results = setup.check(AllowDelete::None).await.unwrap();
    let contents = setup.app.settings.contents.clone().unwrap();
    for (number, result) in results.iter().enumerate() {
        let expected = if number < 40 { "new" } else { "old" };
        let stored = fs::read_to_string(contents.path(&result.asset.key)).unwrap();
        assert_eq!(stored, expected);
        assert_eq!(result.outcome == Outcome::Changed, number < 40, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_objects_are_removed_without_requests_within_max_removals() {
    for max_removals in [20, 99] {
        let mut setup = Setup::new(|_| (304, "", 10));
        setup.app = app(&setup.dir, &format!("max_removals = 0.{max_removals}\n"));
        setup.store_all().await;
        let results = setup.check(AllowDelete::All).await.unwrap();
        assert!(results.iter().all(|it| it.outcome == Outcome::Removed));
        let held_back = results.iter().filter(|it| it.held_back).count();
        assert_eq!(
            (setup.stored().len(), held_back),
            (100 - max_removals, 100 - max_removals)
        );
        assert_eq!(setup.requests(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn unused_objects_are_removed_without_requests_within_max_removals() {
    for (allow, stored, requests) in [
        (AllowDelete::Partial, 80, 30),
        (AllowDelete::None, 100, 100),
    ] {
        let mut setup = Setup::new(|_| (304, "", 10));
        setup.unused = 70;
        setup.store_all().await;
        let results = setup.check(allow).await.unwrap();
        assert_eq!((setup.stored().len(), setup.requests()), (stored, requests));
        assert_eq!(
            results.iter().filter(|it| it.is_deleted).count(),
            100 - stored
        );
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_cannot_be_stored_or_removed_suspends_the_job() {
    for status in [200, 404] {
        let gone = move |number| number < 10 && status == 404;
        let mut setup = Setup::new(move |number| match number {
            0..10 => (status, "new", 10),
            _ => (200, "old", 10),
        });
        // A directory exists where a file is expected, or the reverse.
        let path = setup.app.settings.contents.as_ref().unwrap().path("3");
        if gone(3) {
            fs::create_dir_all(path.join("x")).unwrap();
        } else {
            fs::write(setup.dir.path().join("contents"), "").unwrap();
        }
        let (reason, time) = setup.check(AllowDelete::Partial).await.unwrap_err();
        assert!(
            reason.contains("cannot be stored") && time.is_none(),
            "{reason}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn throttled_batch_stops_and_resumes_where_it_stopped() {
    let requests = Arc::new(Mutex::new(0));
    let mut setup = Setup::new(move |number| {
        let mut requests = requests.lock().unwrap();
        *requests += 1;
        // After every 20 requests, one is throttled. It is faster than the others.
        match *requests % 21 {
            0 => (429, "", 10),
            _ => (304, "", 10 + number),
        }
    });
    setup.store_all().await;
    let (mut pauses, began) = (0, tokio::time::Instant::now());
    let results = loop {
        let before = tokio::time::Instant::now();
        match setup.check(AllowDelete::None).await {
            Ok(results) => break results,
            Err((reason, time)) => {
                let expected = format!("{THROTTLED} (429)");
                assert_eq!((reason, time), (expected, Some(30_000)));
                pauses += 1;
                assert!(before.elapsed() < Duration::from_secs(1));
            }
        }
    };
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(results.iter().all(|it| it.outcome == Outcome::Fresh));
    // Requests in progress are sent again.
    let requests = setup.requests();
    assert!(results.len() == 100 && pauses >= 4, "{pauses}");
    assert!((100 + pauses..=100 + pauses * PLAN.concurrency).contains(&requests));
}

#[tokio::test(start_paused = true)]
async fn asset_that_is_always_throttled_fails_after_four_requests() {
    let mut setup = Setup::new(|number| (if number == 50 { 429 } else { 304 }, "", 10));
    setup.store_all().await;
    for _ in 0..4 {
        assert!(setup.check(AllowDelete::None).await.is_err());
    }
    let results = setup.check(AllowDelete::None).await.unwrap();
    let failed: Vec<_> = results.iter().filter(|it| it.server_error).collect();
    assert_eq!((failed.len(), &*failed[0].asset.key), (1, "50"));
    let requests = setup.checker.origin.requests.lock().unwrap();
    assert_eq!(requests.iter().filter(|it| **it == 50).count(), 4);
}

#[tokio::test(start_paused = true)]
async fn missing_object_is_requested_without_conditions_and_stored() {
    let mut setup = Setup::new(|_| (200, "old", 10));
    setup.store_all().await;
    let contents = setup.app.settings.contents.clone().unwrap();
    contents.remove("7").await.unwrap();
    setup.check(AllowDelete::None).await.unwrap();
    assert_eq!(setup.stored().len(), 100);
    let unconditional = setup.checker.origin.unconditional.lock().unwrap();
    assert_eq!(*unconditional, [7]);
}

#[tokio::test(start_paused = true)]
async fn forced_requests_have_no_conditions_and_keep_equal_objects() {
    let mut setup = Setup::new(|number| (200, if number < 40 { "new" } else { "old" }, 10));
    setup.force_update = true;
    setup.store_all().await;
    let contents = setup.app.settings.contents.clone().unwrap();
    let written = |number| {
        let file = fs::metadata(contents.path(number)).unwrap();
        file.modified().unwrap()
    };
    let before = (written("39"), written("40"));
    let results = setup.check(AllowDelete::None).await.unwrap();
    let changed = results.iter().filter(|it| it.outcome == Outcome::Changed);
    let fresh = results.iter().filter(|it| it.outcome == Outcome::Fresh);
    assert_eq!((changed.count(), fresh.count()), (40, 60));
    assert!(written("39") > before.0 && written("40") == before.1);
    let unconditional = setup.checker.origin.unconditional.lock().unwrap();
    assert_eq!(unconditional.len(), 100);
}

/// Checks matches: those below `missing` are gone, those below `were_missing` for the second time. The last response is `late` ms later.
async fn check_missing(missing: u64, were_missing: u64, late: u64) -> Vec<AssetResult> {
    let mut setup = Setup::new(move |number| {
        NOW.set(DAY_MS + if number == 99 { late } else { 0 });
        let body = "{\"uid\":\"old\"}";
        (if number < missing { 404 } else { 200 }, body, 10)
    });
    setup.gone_before = were_missing;
    check_matches(setup, 0, "").await.unwrap()
}

/// Checks matches with a producer that rejects the first `rejected` rows for `reason`.
async fn check_matches(
    mut setup: Setup,
    rejected: usize,
    reason: &'static str,
) -> Result<Vec<AssetResult>, Suspension> {
    let (address, _tasks) = serve(None, move |request| {
        let accepted = request.matches("\"u\"").count() - rejected;
        let errors: Vec<_> = (1..=rejected)
            .map(|row| json!({"row": row, "reason": reason}))
            .collect();
        let body = json!({"accepted": accepted, "errors": errors}).to_string();
        let length = body.len();
        format!("HTTP/1.1 202 X\r\nContent-Length: {length}\r\n\r\n{body}")
    })
    .await;
    let text = format!(
        "[apps.b]\nkind = \"cookies\"\nhosts = [\"a.example\"]\nallow_delete = \"partial\"\n[apps.b.cookies]\ndsp = 7\nafter = \"1d\"\n\
         url = \"https://a.example/{{user}}\"\nnodes = {{ urls = [\"http://a\"] }}\nproducers = {{ urls = [\"http://{address}\"] }}\n"
    );
    setup.app = Apps::parse(&text).unwrap().get("b").unwrap();
    setup.check(AllowDelete::Partial).await
}

#[tokio::test(start_paused = true)]
async fn match_whose_uid_the_producer_rejects_is_kept() {
    let new = |_| (200, "{\"uid\":\"new\"}", 10);
    for reason in ["uid_pattern", "uid_macro", "buyer_invalid"] {
        let results = check_matches(Setup::new(new), 2, reason).await.unwrap();
        let is_kept = |it: &&AssetResult| {
            it.outcome == Outcome::Malformed && it.asset.uid.is_empty() && !it.was_stale
        };
        assert_eq!(results[..2].iter().filter(is_kept).count(), 2, "{reason}");
        let mut others = results[2..].iter();
        assert!(others.all(|it| it.outcome == Outcome::Changed && it.asset.uid == "new"));
    }
    let forbidden = check_matches(Setup::new(new), 1, "forbidden_dsp").await;
    assert!(forbidden.unwrap_err().0.contains("accepted 99 of 100 rows"));
}

#[tokio::test(start_paused = true)]
async fn max_removals_limits_the_first_sightings_of_missing_matches() {
    let count = |results: &[AssetResult], is: fn(&AssetResult) -> bool| {
        results.iter().filter(|it| is(it)).count()
    };
    let first = check_missing(30, 0, 0).await;
    assert_eq!(
        (
            count(&first, |it| it.held_back),
            count(&first, |it| it.is_deleted)
        ),
        (10, 0)
    );
    let second = check_missing(90, 90, 0).await;
    assert_eq!(
        (
            count(&second, |it| it.held_back),
            count(&second, |it| it.is_deleted)
        ),
        (0, 90)
    );
    // Producers reject rows of pages that are older than 25 hours.
    let late = check_missing(90, 90, 25 * 3_600_000 - 1).await;
    assert!(late.iter().all(|it| it.outcome == Outcome::Unexpected));
    assert_eq!(count(&late, |it| it.is_deleted || it.was_stale), 0);
}

#[tokio::test(start_paused = true)]
async fn responses_without_a_valid_uid_are_counted_as_malformed() {
    let mut setup = Setup::new(|number| {
        let body = if number < 70 {
            "{}"
        } else {
            "{\"uid\":\"old\"}"
        };
        (200, body, 10)
    });
    let text = "[apps.b]\nkind = \"cookies\"\nhosts = [\"a.example\"]\n[apps.b.cookies]\ndsp = 7\nafter = \"1d\"\n\
                url = \"https://a.example/{user}\"\nnodes = { urls = [\"http://a\"] }\nproducers = { urls = [\"http://a\"] }\n";
    setup.app = Apps::parse(text).unwrap().get("b").unwrap();
    let results = setup.check(AllowDelete::Partial).await.unwrap();
    let requests = &setup.checker.metrics.requests;
    let count = |outcome| requests.with_label_values(&["b", outcome]).get();
    assert_eq!((count("malformed"), count("fresh")), (70, 30));
    assert!(results.iter().all(|it| !it.server_error && !it.is_deleted));
}

#[tokio::test]
async fn batch_ends_when_its_replaced_and_removed_objects_are_purged() {
    let posted = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&posted);
    let respond = move |request: &str| {
        let mut requests = requests.lock().unwrap();
        requests.push(request.to_owned());
        let status = if requests.len() == 1 {
            "500 Error"
        } else {
            "200 OK"
        };
        format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")
    };
    let (address, _tasks) = serve(None, respond).await;
    let mut setup = Setup::new(|number| match number {
        7 => (200, "new", 0),
        8 => (404, "", 0),
        _ => (304, "", 0),
    });
    setup.store_all().await;
    let purge = format!("purge = {{ urls = [\"http://{address}/cdn?zone=1\"] }}\n");
    setup.app = app(&setup.dir, &purge);
    let (reason, _) = setup.check(AllowDelete::Partial).await.unwrap_err();
    assert!(
        reason.contains("purged") && reason.contains("500"),
        "{reason}"
    );
    // The objects of the suspended batch are checked again, as in a process that knows nothing of it.
    setup.progress = Progress::default();
    let results = setup.check(AllowDelete::Partial).await.unwrap();
    assert!(results[8].is_deleted && !results[7].is_deleted);
    let posted = posted.lock().unwrap();
    for request in &*posted {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /cdn?zone=1 "), "{head}");
        let rows: Vec<serde_json::Value> = body
            .lines()
            .map(|it| serde_json::from_str(it).unwrap())
            .collect();
        let keys: Vec<_> = rows.iter().map(|it| (&it["key"], &it["removed"])).collect();
        assert_eq!(
            keys,
            [(&json!("7"), &json!(false)), (&json!("8"), &json!(true))]
        );
    }
    assert_eq!(posted.len(), 2);
}
