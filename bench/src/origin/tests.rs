//! Tests of each behavior of an origin, with a real HTTP client.

use clap::Parser;
use launcher::{
    http::{HttpClient, Response},
    programs::free_address,
};
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    origin: OriginArgs,
}

fn args(flags: &str) -> Result<OriginArgs> {
    let words = ["origin"].into_iter().chain(flags.split_whitespace());
    Ok(Cli::try_parse_from(words)?.origin)
}

/// A running origin.
struct Running {
    address: String,
    stop: CancellationToken,
    report: JoinSet<Result<Report>>,
}

impl Running {
    async fn start(flags: &str) -> Self {
        let address = free_address().unwrap();
        let args = args(&format!("--listen {address} {flags}")).unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let mut report = JoinSet::new();
        report.spawn(async move { run(&args, &token).await });
        while TcpStream::connect(address).await.is_err() {
            sleep(Duration::from_millis(5)).await;
        }
        Self {
            address: address.to_string(),
            stop,
            report,
        }
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut client = HttpClient::connect(&self.address).await.unwrap();
        client.get(path, headers).await.unwrap()
    }

    /// The statuses of requests for `count` paths.
    async fn statuses(&self, count: usize) -> Vec<u16> {
        let mut client = HttpClient::connect(&self.address).await.unwrap();
        let mut statuses = Vec::new();
        for path in 0..count {
            statuses.push(client.get(&format!("/{path}"), &[]).await.unwrap().status);
        }
        statuses
    }

    async fn finish(mut self) -> Report {
        self.stop.cancel();
        self.report.join_next().await.unwrap().unwrap().unwrap()
    }
}

/// An origin that does not listen.
fn origin(flags: &str) -> Origin {
    Origin {
        args: args(flags).unwrap(),
        started: Instant::now(),
        counts: Mutex::default(),
    }
}

/// The delay of a request for `/`.
fn delay(origin: &Origin) -> Duration {
    origin.arrive("/", false).1
}

#[tokio::test]
async fn responses_wait_for_the_delay_of_their_step() {
    let flags = "--delay 30ms,0s,50ms --step-requests 1 --no-report";
    let origin = Running::start(flags).await;
    for min in [30, 0, 50, 50] {
        let began = Instant::now();
        assert_eq!(origin.get("/", &[]).await.status, 200);
        assert!(began.elapsed() >= Duration::from_millis(min));
    }
    let report = origin.finish().await;
    assert_eq!(report.value("1: 200"), Some(1.0));
    assert_eq!(report.value("3: 200"), Some(2.0));
}

#[tokio::test]
async fn conditional_requests_get_304_until_the_content_changes() {
    let origin = Running::start("").await;
    let first = origin.get("/a", &[]).await;
    assert_eq!((first.status, first.body.len()), (200, 1000));
    assert!(first.body.starts_with("/a version 0\n/a"));
    let epoch = "Thu, 01 Jan 1970 00:00:00 GMT";
    let modified = format!("last-modified: {}\r\n", epoch.to_ascii_lowercase());
    assert!(first.head.contains(&modified), "{}", first.head);
    let tag = ("If-None-Match", "\"9\", \"0\"");
    for (headers, status) in [
        (&[tag][..], 304),
        (&[("If-Modified-Since", epoch)], 304),
        (
            &[("If-Modified-Since", epoch), ("If-None-Match", "\"1\"")],
            200,
        ),
        (&[("If-Modified-Since", "yesterday")], 200),
    ] {
        assert_eq!(
            origin.get("/a", headers).await.status,
            status,
            "{headers:?}"
        );
    }
    assert_eq!(origin.finish().await.value("1: 304"), Some(2.0));
    let changed = Running::start("--changed 1 --change-every 30d").await;
    let second = changed.get("/a", &[tag]).await;
    assert_eq!(second.status, 200);
    assert!(second.body.starts_with("/a version 1\n"));
    let modified = "last-modified: thu, 01 jan 1970 00:00:01 gmt\r\n";
    assert!(second.head.contains(modified), "{}", second.head);
}

#[tokio::test]
async fn errors_have_their_fractions_and_depend_on_the_seed() {
    let flags = "--errors 429=0.2,500=0.3,404=0.2";
    let mut found = Vec::new();
    for seed in [1, 1, 2] {
        let origin = Running::start(&format!("{flags} --seed {seed}")).await;
        found.push(origin.statuses(500).await);
        let report = origin.finish().await;
        let count = |status| {
            found
                .last()
                .unwrap()
                .iter()
                .filter(|it| **it == status)
                .count()
        };
        for (status, expected) in [(429, 100), (500, 150), (404, 50), (200, 200)] {
            let count = count(status);
            assert!(count.abs_diff(expected) < 40, "{status}: {count}");
            assert_eq!(report.value(&format!("1: {status}")), Some(count as f64));
        }
    }
    assert!(found[0] == found[1] && found[0] != found[2]);
}

#[tokio::test]
async fn throttled_response_names_the_time_to_wait() {
    let origin = Running::start("--errors 429=1 --retry-after 7s").await;
    let response = origin.get("/", &[]).await;
    assert_eq!(response.status, 429);
    assert!(
        response.head.contains("retry-after: 7\r\n"),
        "{}",
        response.head
    );
}

#[tokio::test]
async fn missing_paths_stay_missing() {
    let origin = Running::start("--errors 404=0.5").await;
    let first = origin.statuses(50).await;
    assert!(first.contains(&404) && first.contains(&200));
    assert_eq!(origin.statuses(50).await, first);
}

#[tokio::test]
async fn unanswered_requests_stay_open_until_the_end() {
    let origin = Running::start("--errors 0=1").await;
    let mut client = HttpClient::connect(&origin.address).await.unwrap();
    let silence = timeout(Duration::from_millis(50), client.get("/", &[])).await;
    assert!(silence.is_err(), "{silence:?}");
    let report = origin.finish().await;
    assert_eq!(report.value("1: 0"), Some(1.0));
}

#[tokio::test]
async fn bytes_of_a_slow_body_arrive_one_after_the_other() {
    let origin = Running::start("--body-bytes 5 --byte-interval 10ms").await;
    let began = Instant::now();
    assert_eq!(origin.get("/abc", &[]).await.body, "/abc ");
    assert!(began.elapsed() >= Duration::from_millis(40));
}

#[tokio::test]
async fn uid_of_a_path_has_its_version() {
    let origin = Running::start("--uids").await;
    let response = origin.get("/user-7", &[]).await;
    assert_eq!(response.body, "{\"uid\":\"user-7-0\"}");
}

#[test]
fn delays_are_normal_up_to_three_deviations() {
    let origin = origin("--delay 350ms --deviation 83ms");
    let delays: Vec<_> = (0..1000).map(|_| delay(&origin).as_secs_f64()).collect();
    let mean = delays.iter().sum::<f64>() / 1000.0;
    let variance = delays.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / 1000.0;
    assert!((0.34..0.36).contains(&mean), "{mean}");
    assert!((0.075..0.09).contains(&variance.sqrt()), "{variance}");
    assert!(delays.iter().all(|it| (0.1..=0.6).contains(it)));
}

#[test]
fn delay_grows_with_requests_above_the_capacity() {
    let origin = origin("--delay 200ms --capacity 2");
    let delays: Vec<_> = (0..4).map(|_| delay(&origin).as_millis()).collect();
    assert_eq!(delays, [200, 200, 300, 400]);
    drop(InProgress(&origin));
    assert_eq!(delay(&origin).as_millis(), 400);
}

#[test]
fn capacity_can_fall_in_steps() {
    let origin = origin("--delay 100ms --capacity 4,2 --step-requests 2");
    let delays: Vec<_> = (0..5).map(|_| delay(&origin).as_millis()).collect();
    assert_eq!(delays, [100, 100, 150, 200, 250]);
}

#[test]
fn fraction_of_the_contents_changes_in_each_period() {
    let origin = origin("--changed 0.1 --change-every 10s");
    let mut before = vec![0.0; 2000];
    for (seconds, expected) in [(0, 200), (9, 0), (10, 200), (20, 200), (120, 2000)] {
        let elapsed = Duration::from_secs(seconds);
        let versions = (0..2000).map(|path| origin.version(&format!("/{path}"), elapsed));
        let versions: Vec<_> = versions.collect();
        let pairs = versions.iter().zip(&before);
        let changed = pairs.filter(|(new, old)| new > old).count();
        assert!(changed.abs_diff(expected) < 40, "{seconds}: {changed}");
        before = versions;
    }
}

#[test]
fn contradictory_or_invalid_flags_are_rejected() {
    for flags in [
        "--listen nowhere",
        "--delay 10",
        "--delay 31d",
        "--step-requests 0",
        "--capacity 0",
        "--capacity 5,",
        "--errors 500",
        "--errors 500=1.5",
        "--errors 200=0.5",
        "--errors five=0.5",
        "--change-every 10ms",
        "--report x --no-report",
    ] {
        assert!(args(flags).is_err(), "{flags}");
    }
}

#[tokio::test]
async fn address_in_use_is_reported_with_its_flag() {
    let origin = Running::start("").await;
    let args = args(&format!("--listen {}", origin.address)).unwrap();
    let error = run(&args, &CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("--listen"), "{error}");
}

#[tokio::test]
async fn report_by_second_counts_parallel_requests() {
    let origin = Running::start("--by-second --delay 1s --errors 503=1").await;
    let requests = (0..3).map(|_| origin.get("/", &[]));
    for response in futures_util::future::join_all(requests).await {
        assert!(
            response.head.contains("retry-after: 1\r\n"),
            "{}",
            response.head
        );
    }
    let report = origin.finish().await;
    let rows = &report.tables[0].rows;
    let values = |name: &'static str| {
        let measurements = rows.iter().flat_map(|row| &row.measurements);
        let named = measurements.filter(move |it| it.name == name);
        named.filter_map(|it| it.value)
    };
    assert_eq!(values("503").sum::<f64>(), 3.0);
    let parallel = values("parallel, max").fold(0.0, f64::max);
    assert!((1.0..=3.0).contains(&parallel), "{parallel}");
}
