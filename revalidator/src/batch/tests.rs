//! Outcomes of a batch, and their effects on stored objects.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use runtime::metrics::Registry;
use tempfile::TempDir;

use super::*;
use crate::{apps::Apps, outcome::Response};

/// Status, body and response time of an asset, by its number.
type Behavior = dyn Fn(u64) -> (u16, &'static str, u64) + Send + Sync;

/// An origin with a known behavior; clones share it.
#[derive(Clone)]
struct TestOrigin {
    behavior: Arc<Behavior>,
    requests: Arc<Mutex<Vec<u64>>>,
}

impl Origin for TestOrigin {
    async fn request(&self, _: &App, asset: &Asset, _: bool) -> Answer {
        let number = asset.key.parse().unwrap();
        self.requests.lock().unwrap().push(number);
        let (status, body, millis) = (self.behavior)(number);
        let time = Duration::from_millis(millis);
        tokio::time::sleep(time).await;
        Answer::Response(Response {
            status,
            time,
            retry_after: (status == 429).then(|| "30".to_owned()),
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
    /// Assets below this number are unused.
    unused: u64,
}

const PLAN: Plan = Plan {
    probe_requests: 12,
    concurrency: 8,
};

impl Setup {
    fn new(behavior: impl Fn(u64) -> (u16, &'static str, u64) + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "[apps.a]\nkind = \"list\"\nhosts = [\"a.example\"]\nallow_delete = \"all\"\ncontents = \"file:{}\"\n",
            dir.path().join("contents").display()
        );
        let origin = TestOrigin {
            behavior: Arc::new(behavior),
            requests: Arc::default(),
        };
        Self {
            app: Apps::parse(&text).unwrap().get("a").unwrap(),
            checker: Checker {
                origin,
                limiter: None,
                metrics: Metrics::register(&Registry::new()).unwrap(),
            },
            dir,
            progress: Progress::default(),
            unused: 0,
        }
    }

    async fn store_all(&self) {
        for number in 0..100_u64 {
            let contents = self.app.contents.as_ref().unwrap();
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
            ..JobStatus::default()
        };
        let asset = |number: u64| Asset {
            key: number.to_string(),
            e_tag: "\"1\"".to_owned(),
            unused: number < self.unused,
            ..Asset::default()
        };
        let batch = JobBatch {
            assets: (0..100).map(asset).collect(),
            job_id: "j".to_owned(),
            batch: 0,
            attempt: 1,
        };
        let checked = self
            .checker
            .check(&self.app, &job, &batch, PLAN, &mut self.progress);
        Ok(checked.await?.0)
    }

    /// Numbers of the objects that are stored.
    fn stored(&self) -> Vec<u64> {
        let contents = self.app.contents.as_ref().unwrap();
        (0..100)
            .filter(|it| contents.path(&it.to_string()).exists())
            .collect()
    }

    fn requests(&self) -> usize {
        self.checker.origin.requests.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_batch_removes_the_same_objects_within_the_brake() {
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
    let contents = setup.app.contents.clone().unwrap();
    for (number, result) in results.iter().enumerate() {
        let expected = if number < 40 { "new" } else { "old" };
        let stored = fs::read_to_string(contents.path(&result.asset.key)).unwrap();
        assert_eq!(stored, expected);
        assert_eq!(result.outcome == Outcome::Changed, number < 40, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_objects_are_removed_without_requests() {
    let mut setup = Setup::new(|_| (304, "", 10));
    setup.store_all().await;
    let results = setup.check(AllowDelete::All).await.unwrap();
    assert!(
        results
            .iter()
            .all(|it| it.is_deleted && it.outcome == Outcome::Removed)
    );
    assert_eq!((setup.stored().len(), setup.requests()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn unused_objects_are_removed_without_requests_within_the_brake() {
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
            _ => (304, "", 10),
        });
        // A file is in the place of the directory, or a directory in the place of a file.
        let path = setup.app.contents.as_ref().unwrap().path("3");
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
async fn throttled_batch_resumes_where_it_stopped() {
    let requests = Arc::new(Mutex::new(0));
    let mut setup = Setup::new(move |_| {
        let mut requests = requests.lock().unwrap();
        *requests += 1;
        // Quotas of 20 requests; the next one demands a pause.
        (if *requests % 21 == 0 { 429 } else { 304 }, "", 10)
    });
    let mut pauses = 0;
    let results = loop {
        match setup.check(AllowDelete::None).await {
            Ok(results) => break results,
            Err((reason, time)) => {
                assert_eq!((&*reason, time), (THROTTLED, Some(30_000)));
                pauses += 1;
            }
        }
    };
    assert!(results.iter().all(|it| it.outcome == Outcome::Fresh));
    assert_eq!((results.len(), pauses, setup.requests()), (100, 4, 104));
}

#[tokio::test(start_paused = true)]
async fn asset_that_is_always_throttled_fails_after_four_requests() {
    let mut setup = Setup::new(|number| (if number == 50 { 429 } else { 304 }, "", 10));
    for _ in 0..4 {
        assert!(setup.check(AllowDelete::None).await.is_err());
    }
    let results = setup.check(AllowDelete::None).await.unwrap();
    let failed: Vec<_> = results.iter().filter(|it| it.server_error).collect();
    assert_eq!((failed.len(), &*failed[0].asset.key), (1, "50"));
    assert_eq!(setup.requests(), 103);
}

#[test]
fn retry_after_has_seconds_or_a_date() {
    assert_eq!(retry_after(" 120 "), Some(Duration::from_secs(120)));
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
    let time = retry_after(&date).unwrap().as_secs();
    assert!((3500..=3600).contains(&time), "{time}");
    let past = retry_after("Sun, 06 Nov 1994 08:49:37 GMT");
    assert_eq!((past, retry_after("soon")), (Some(Duration::ZERO), None));
}
