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

#[test]
fn delays_are_those_of_the_step() {
    let origin = origin("--delay 30ms,0s,50ms");
    let delays = (0..4 * STEP_REQUESTS).map(|_| origin.arrive("/", false).1);
    let delays: Vec<_> = delays.collect();
    let of_step = |step: u64| delays[usize::try_from(step * STEP_REQUESTS).unwrap()].as_millis();
    assert_eq!([0, 1, 2, 3].map(of_step), [30, 0, 50, 50]);
    let report = origin.report();
    assert_eq!(report.value("1: 200"), Some(100.0));
    assert_eq!(report.value("3: 200"), Some(200.0));
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
async fn errors_have_their_fractions() {
    let flags = "--errors 429=0.2,500=0.3,404=0.2";
    let origin = Running::start(flags).await;
    let found = origin.statuses(500).await;
    let report = origin.finish().await;
    for (status, expected) in [(429, 100), (500, 150), (404, 50), (200, 200)] {
        let count = found.iter().filter(|it| **it == status).count();
        assert!(count.abs_diff(expected) < 40, "{status}: {count}");
        assert_eq!(report.value(&format!("1: {status}")), Some(count as f64));
    }
}

#[tokio::test]
async fn throttled_response_names_the_time_to_wait() {
    let origin = Running::start("--errors 429=1").await;
    let response = origin.get("/", &[]).await;
    assert_eq!(response.status, 429);
    assert!(
        response.head.contains("retry-after: 1\r\n"),
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

#[test]
fn delays_are_normal_up_to_three_deviations() {
    let origin = origin("--delay 350ms --deviation 83ms");
    let delays = (0..1000).map(|_| origin.arrive("/", false).1.as_secs_f64());
    let delays: Vec<_> = delays.collect();
    let mean = delays.iter().sum::<f64>() / 1000.0;
    let variance = delays.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / 1000.0;
    assert!((0.34..0.36).contains(&mean), "{mean}");
    assert!((0.075..0.09).contains(&variance.sqrt()), "{variance}");
    assert!(delays.iter().all(|it| (0.1..=0.6).contains(it)));
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
async fn report_counts_parallel_requests() {
    let origin = Running::start("--delay 1s --errors 503=1").await;
    let requests = (0..3).map(|_| origin.get("/", &[]));
    for response in futures_util::future::join_all(requests).await {
        assert_eq!(response.status, 503);
    }
    let report = origin.finish().await;
    assert_eq!(report.value("1: 503"), Some(3.0));
    let parallel = report.value("1: parallel, max");
    assert!(
        parallel > Some(0.0) && parallel <= Some(3.0),
        "{parallel:?}"
    );
}
