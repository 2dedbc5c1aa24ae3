//! Runs the long example of the original design (docs/revalidator.md) in real time. Measures the memory and CPU time of
//! three processes, each with a maker, which sends the batches of jobs, and a worker, which checks them.

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use fastrand::Rng;
use http::{Request, Response, header::ETAG};
use http_body_util::Full;
use hyper::body::Incoming;
use testkit::{admin, http_server::HttpServer};
use tokio::time::{Instant, sleep};

use super::harness::Cluster;

const APPS: [&str; 3] = ["one", "two", "three"];

/// Numbers of assets, used by the jobs in rotation: 100 to 10,000, evenly distributed on a logarithmic scale.
const ASSETS: [usize; 8] = [1_334, 133, 4_217, 422, 7_499, 237, 2_371, 750];

/// Maximum time until the jobs have finished.
const END_TIMEOUT: Duration = Duration::from_secs(900);

/// Maximum memory of a process.
const BYTES_MAX: u64 = 100_000_000;

/// A tenth of a core at 12 requests per second, a third of the rate in the paper.
const CPU_SECONDS_PER_REQUEST_MAX: f64 = 0.1 / 12.0;

/// Jobs are created for `LONG_RUN_SECONDS`.
#[tokio::test]
#[ignore = "takes ten minutes; .ci/nightly runs it"]
async fn a5_processes_of_a_real_run_are_small() -> Result<()> {
    let seconds = env::var("LONG_RUN_SECONDS").map_or(Ok(600), |it| it.parse())?;
    let end = Duration::from_secs(seconds);
    let mut cluster = Cluster::start().await?;
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let origin = HttpServer::start(any_port, respond).await?;
    let address = origin.address;
    let app = |name| {
        format!(
            "[apps.{name}]\nkind = \"list\"\nhosts = [\"127.0.0.1\"]\nhttp_hosts = [\"127.0.0.1\"]\n\
             allow_networks = [\"127.0.0.0/8\"]\nconcurrency = {{ max = 50 }}\n"
        )
    };
    fs::write(cluster.path("apps.toml"), APPS.map(app).concat())?;
    let mut processes = Vec::new();
    for _ in APPS {
        processes.push(cluster.revalidator(&[]).await?);
    }
    let mut random = Rng::with_seed(seconds);
    let mut next = APPS.map(|_| Duration::from_secs(random.u64(0..60)));
    let (mut jobs, mut assets, began) = (0, 0, Instant::now());
    // Per process, in the first and the second half of the run.
    let mut bytes_max = [[0, 0]; 3];
    loop {
        let elapsed = began.elapsed();
        for (index, app) in APPS.iter().enumerate() {
            if elapsed < next[index] || elapsed >= end {
                continue;
            }
            next[index] += Duration::from_secs(random.u64(60..300));
            let count = ASSETS[jobs % ASSETS.len()];
            let needed = random.u32(1..=3);
            let head = format!("{{\"app\":\"{app}\",\"revalidatorsNeeded\":{needed}}}\n");
            let line = |number| {
                format!("{{\"url\":\"http://{address}/{jobs}/{number}\",\"eTag\":\"\\\"0\\\"\"}}\n")
            };
            let body = head + &(0..count).map(line).collect::<String>();
            let maker = &processes[index];
            let (status, body) = maker
                .post("/v1/jobs", "application/x-ndjson", &body)
                .await?;
            assert_eq!(status, 201, "{body}");
            (jobs, assets) = (jobs + 1, assets + count);
        }
        for (process, max) in processes.iter().zip(&mut bytes_max) {
            let bytes = process.metric("process_resident_memory_bytes", &[]).await?;
            let max = &mut max[usize::from(2 * elapsed > end)];
            *max = bytes.max(*max);
        }
        let finished = [("state", "finished")];
        let finished = processes[0].metric("revalidator_jobs", &finished).await?;
        if elapsed >= end && finished == jobs as u64 {
            break;
        }
        assert!(elapsed < end + END_TIMEOUT, "{finished} of {jobs} jobs");
        sleep(Duration::from_secs(1)).await;
    }
    let elapsed = began.elapsed().as_secs_f64();
    let (mut cpu_seconds, mut requests) = (0.0, 0);
    for (process, bytes_max) in processes.iter().zip(bytes_max) {
        let samples = admin::metrics(&process.admin).await?;
        let cpu = samples.sum("process_cpu_seconds_total", &[]);
        let cpu = cpu.context("no CPU time")?;
        let count = samples.count("revalidator_requests_total", &[]);
        let [first, second] = bytes_max.map(|bytes| bytes / 1_000_000);
        println!(
            "{count} requests, {first} MB in the first half and {second} MB since, {:.1} % of a core",
            100.0 * cpu / elapsed
        );
        (cpu_seconds, requests) = (cpu_seconds + cpu, requests + count);
        assert!(bytes_max.iter().all(|bytes| *bytes < BYTES_MAX));
    }
    println!(
        "{jobs} jobs, {:.1} requests/s, {:.2} ms of CPU time per request",
        requests as f64 / elapsed,
        1e3 * cpu_seconds / requests as f64
    );
    assert!(requests >= assets as u64, "{requests} of {assets}");
    assert!(cpu_seconds < CPU_SECONDS_PER_REQUEST_MAX * requests as f64);
    Ok(())
}

/// Responds after 350 ms on average, with a standard deviation of 83 ms. A tenth of the assets have changed.
async fn respond(_: Request<Incoming>) -> Response<Full<Bytes>> {
    // The sum of twelve is almost normal with a variance of 1.
    let normal = (0..12).map(|_| fastrand::f64()).sum::<f64>() - 6.0;
    sleep(Duration::from_secs_f64(
        0.35 + 0.083 * normal.clamp(-3.0, 3.0),
    ))
    .await;
    let (status, body) = match fastrand::u8(0..10) {
        0 => (200, Bytes::from(vec![b'x'; 1000])),
        _ => (304, Bytes::new()),
    };
    let tag = if status == 200 { "\"1\"" } else { "\"0\"" };
    let response = Response::builder().status(status).header(ETAG, tag);
    response
        .body(Full::new(body))
        .expect("all headers are valid")
}
