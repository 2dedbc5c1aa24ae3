//! Revalidation of many assets of a slow origin, and the adaptation to response times that change after each batch.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bench::report::{
    Plot, Report, ReportArgs, Row, Series,
    unit::{COUNT, DECIMAL, MEBIBYTES, SECONDS},
};
use bytes::Bytes;
use clap::Args;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::Value;
use tempfile::TempDir;
use testkit::{
    cpu,
    http::HttpClient,
    http_server::HttpServer,
    memory::Memory,
    nats,
    programs::{Process, ServerProcess, find, free_address},
};
use tokio::time::{Instant, sleep};

/// Assets per batch.
const BATCH: usize = 100;
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Response times in milliseconds after each batch, and the expected parallel requests after it: rows 1 to 20 of annex 1.
const ANNEX: [(u64, usize); 20] = [
    (100, 6),
    (300, 6),
    (500, 6),
    (500, 8),
    (650, 6),
    (800, 6),
    (300, 8),
    (300, 10),
    (300, 12),
    (400, 10),
    (400, 12),
    (400, 14),
    (400, 16),
    (400, 18),
    (400, 20),
    (400, 20),
    (600, 18),
    (750, 16),
    (900, 14),
    (1050, 12),
];

/// Send 21 batches to an origin with the response times of annex 1, in mode `paper`.
#[derive(Debug, Args)]
pub(crate) struct StaircaseArgs {
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Revalidate assets of an origin that responds after 300 ms, with two workers of up to 50 parallel requests each.
#[derive(Debug, Args)]
pub(crate) struct AssetsArgs {
    /// Number of assets.
    #[arg(long, default_value = "100000")]
    pub(crate) assets: usize,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Requests in progress, and their maximum.
#[derive(Default, Clone, Copy)]
struct Parallel {
    now: usize,
    max: usize,
}

impl Parallel {
    fn begin(&mut self) {
        self.now += 1;
        self.max = self.max.max(self.now);
    }
}

/// Requests to the origin, in total and for each batch of asset numbers.
struct Origin {
    parallel: Mutex<(Parallel, Vec<Parallel>)>,
    delay: fn(usize) -> Duration,
}

impl Origin {
    async fn start(assets: usize, delay: fn(usize) -> Duration) -> Result<(Arc<Self>, HttpServer)> {
        let batches = vec![Parallel::default(); assets.div_ceil(BATCH)];
        let origin = Arc::new(Self {
            parallel: Mutex::new((Parallel::default(), batches)),
            delay,
        });
        let shared = Arc::clone(&origin);
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = HttpServer::start(any_port, move |request| {
            Arc::clone(&shared).respond(request)
        });
        Ok((origin, server.await?))
    }

    /// Responds that the asset `/NUMBER` has not changed, after the delay of its batch.
    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let number = request.uri().path().trim_start_matches('/').parse();
        let batch = number.unwrap_or(0_usize) / BATCH;
        self.change(batch, Parallel::begin);
        sleep((self.delay)(batch)).await;
        self.change(batch, |parallel| parallel.now -= 1);
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    }

    fn change(&self, batch: usize, change: fn(&mut Parallel)) {
        let mut parallel = self.parallel.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut parallel.0);
        parallel.1.get_mut(batch).map(change);
    }

    fn parallel(&self) -> (Parallel, Vec<Parallel>) {
        let parallel = self.parallel.lock();
        parallel.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Revalidators with the application `shop`, and a NATS server.
struct Cluster {
    revalidators: Vec<Process>,
    address: String,
    _nats: ServerProcess,
    _dir: TempDir,
}

impl Cluster {
    async fn start(
        count: usize,
        concurrency: &str,
        origin: SocketAddr,
        assets: usize,
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = |name: &str| dir.path().join(name).display().to_string();
        let line =
            |number| format!("{{\"url\":\"http://{origin}/{number}\",\"eTag\":\"\\\"0\\\"\"}}\n");
        fs::write(
            path("assets.ndjson"),
            (0..assets).map(line).collect::<String>(),
        )?;
        let apps = format!(
            "[apps.shop]\nkind = \"list\"\nhosts = [\"127.0.0.1\"]\nhttp_hosts = [\"127.0.0.1\"]\n\
             allow_networks = [\"127.0.0.0/8\"]\nassets = \"{}\"\nconcurrency = {{ {concurrency} }}\n",
            path("assets.ndjson")
        );
        fs::write(path("apps.toml"), apps)?;
        let nats = nats::start(dir.path()).await?;
        let [program] = find(["revalidator"])?;
        let (mut revalidators, mut address) = (Vec::new(), String::new());
        for number in 0..count {
            let admin = free_address()?.to_string();
            address = free_address()?.to_string();
            let flags = [
                format!("--apps={}", path("apps.toml")),
                format!("--listen={address}"),
                format!("--admin={admin}"),
                format!("--nats={}", nats.uri()),
            ];
            let name = format!("revalidator-{number}");
            let log = path(&format!("{name}.log"));
            let mut process = Process::start(&name, &program, &flags, Path::new(&log))?;
            process.wait_ready(&admin, READY_TIMEOUT).await?;
            revalidators.push(process);
        }
        Ok(Self {
            revalidators,
            address,
            _nats: nats,
            _dir: dir,
        })
    }

    /// Runs one job on all revalidators. Calls `observe` twice a second with the elapsed seconds and the checked assets; returns
    /// the duration.
    async fn run_job(&self, mut observe: impl FnMut(f64, u64)) -> Result<f64> {
        let mut client = HttpClient::connect(&self.address).await?;
        let needed = self.revalidators.len();
        let job = format!("{{\"app\":\"shop\",\"revalidatorsNeeded\":{needed}}}");
        let began = Instant::now();
        let created = client.post("/v1/jobs", &[], &job).await?;
        ensure!(created.status == 201, "{created:?}");
        let created: Value = serde_json::from_str(&created.body)?;
        let id = created["jobId"].as_str().context("no job id")?;
        loop {
            sleep(POLL_INTERVAL).await;
            let response = client.get(&format!("/v1/jobs/{id}"), &[]).await?;
            let job: Value = serde_json::from_str(&response.body)?;
            let seconds = began.elapsed().as_secs_f64();
            observe(seconds, job["counts"]["checked"].as_u64().unwrap_or(0));
            if job["serverState"] == "Finished" {
                return Ok(seconds);
            }
            ensure!(
                job["endedAt"].is_null() && job["suspendedAt"].is_null(),
                "{job}"
            );
        }
    }
}

pub(crate) async fn staircase() -> Result<Report> {
    let assets = (ANNEX.len() + 1) * BATCH;
    let delay = |batch: usize| Duration::from_millis(ANNEX.get(batch).map_or(100, |row| row.0));
    let (origin, server) = Origin::start(assets, delay).await?;
    let cluster = Cluster::start(1, "mode = \"paper\"", server.address, assets).await?;
    let seconds = cluster.run_job(|_, _| {}).await?;
    let (_, batches) = origin.parallel();
    let mut report = Report::new("staircase", "Parallel requests after each batch of annex 1");
    report.seconds = seconds;
    let rows = ANNEX.iter().zip(&batches[1..]).enumerate();
    let (mut expected, mut measured, mut table) = (Vec::new(), Vec::new(), Vec::new());
    for (index, ((millis, parallel), batch)) in rows {
        expected.push(((index + 1) as f64, *parallel as f64));
        measured.push(((index + 1) as f64, batch.max as f64));
        table.push(Row::new(
            format!("batch {}", index + 1),
            [
                COUNT.of("response time, ms", *millis),
                COUNT.of("annex 1", *parallel as u64),
                COUNT.of("measured", batch.max as u64),
            ],
        ));
    }
    report.add("Parallel requests after a batch", "", table);
    let line = |name: &str, points| Series {
        name: name.to_owned(),
        points,
    };
    let series = vec![line("annex 1", expected), line("measured", measured)];
    report.plots = vec![Plot {
        x: "batch",
        ..Plot::new("Parallel requests after each batch", "requests", series)
    }];
    Ok(report)
}

pub(crate) async fn assets(assets: usize) -> Result<Report> {
    let (origin, server) = Origin::start(assets, |_| Duration::from_millis(300)).await?;
    let cluster = Cluster::start(2, "max = 50", server.address, assets).await?;
    let (mut parallel, mut done) = (Vec::new(), Vec::new());
    let seconds = cluster
        .run_job(|seconds, checked| {
            parallel.push((seconds, origin.parallel().0.now as f64));
            done.push((seconds, checked as f64));
        })
        .await?;
    let mut report = Report::new("assets", "Assets of an origin that responds after 300 ms");
    report.seconds = seconds;
    let rows = cluster.revalidators.iter().map(|process| {
        let id = process.id();
        let cpu = cpu::of(id).map(|cpu| 100.0 * cpu.as_secs_f64() / seconds);
        let memory = Memory::of(id).map(|memory| memory.peak_bytes);
        let measured = [
            DECIMAL.of("% of a core", cpu),
            MEBIBYTES.of("memory", memory),
        ];
        Row::new(process.name(), measured)
    });
    let rows: Vec<_> = rows.collect();
    let facts = [
        COUNT.of("assets", assets as u64),
        SECONDS.of("duration", seconds),
        COUNT.of("parallel requests", origin.parallel().0.max as u64),
    ];
    report.add("Job", "", [Row::new("", facts)]);
    report.add("Workers", "", rows);
    let plot = |title, y, points| {
        let name = "two workers".to_owned();
        Plot::new(title, y, vec![Series { name, points }])
    };
    report.plots = vec![
        plot("Parallel requests", "requests", parallel),
        plot("Checked assets", "assets", done),
    ];
    Ok(report)
}
