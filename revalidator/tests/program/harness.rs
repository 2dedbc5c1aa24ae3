//! Starts a NATS server and revalidators as real processes, and an origin in the test process.

use std::{
    collections::HashMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::Value;
use tempfile::TempDir;
use testkit::{
    http::HttpClient,
    http_server::HttpServer,
    nats,
    programs::{Process, ServerProcess, free_address},
};
use tokio::time::{Instant, sleep};

/// Timeout of operations that are immediate on an idle machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// What an origin returns for a path.
pub(crate) type Answer = (u16, HeaderMap, Bytes);
type Behavior = Box<dyn Fn(&str, &HeaderMap) -> Answer + Send + Sync>;

/// An HTTP server in this process.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _server: HttpServer,
}

struct Shared {
    behavior: Mutex<Behavior>,
    requests: Mutex<HashMap<String, u32>>,
    /// Requests in progress, and their maximum.
    parallel: Mutex<(usize, usize)>,
    delay: Duration,
}

/// A request in progress. It is dropped early if its client disconnects.
struct InProgress<'a>(&'a Shared);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.parallel.lock().unwrap().0 -= 1;
    }
}

impl Origin {
    pub(crate) async fn start(
        delay: Duration,
        behavior: impl Fn(&str, &HeaderMap) -> Answer + Send + Sync + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            behavior: Mutex::new(Box::new(behavior)),
            requests: Mutex::default(),
            parallel: Mutex::default(),
            delay,
        });
        let state = Arc::clone(&shared);
        let respond = move |request| Arc::clone(&state).respond(request);
        let server = HttpServer::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), respond);
        let server = server.await?;
        Ok(Self {
            address: server.address,
            shared,
            _server: server,
        })
    }

    pub(crate) fn set(
        &self,
        behavior: impl Fn(&str, &HeaderMap) -> Answer + Send + Sync + 'static,
    ) {
        *self.shared.behavior.lock().unwrap() = Box::new(behavior);
    }

    /// Requests for each path.
    pub(crate) fn requests(&self) -> HashMap<String, u32> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Maximum of parallel requests.
    pub(crate) fn parallel_max(&self) -> usize {
        self.shared.parallel.lock().unwrap().1
    }

    /// All requests.
    pub(crate) fn total(&self) -> u32 {
        self.shared.requests.lock().unwrap().values().sum()
    }
}

impl Shared {
    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        let _in_progress = {
            let (now, max) = &mut *self.parallel.lock().unwrap();
            *now += 1;
            *max = (*max).max(*now);
            InProgress(&self)
        };
        *self
            .requests
            .lock()
            .unwrap()
            .entry(path.clone())
            .or_default() += 1;
        let (status, headers, body) = (self.behavior.lock().unwrap())(&path, request.headers());
        sleep(self.delay).await;
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        *response.headers_mut() = headers;
        response
    }
}

/// An answer with a status and a body.
pub(crate) fn answer(status: u16, body: impl Into<Bytes>) -> Answer {
    (status, HeaderMap::new(), body.into())
}

/// A NATS server with a directory for files.
pub(crate) struct Cluster {
    pub(crate) nats: ServerProcess,
    pub(crate) dir: TempDir,
    started: usize,
}

impl Cluster {
    pub(crate) async fn start() -> Result<Self> {
        Self::start_with(TempDir::new()?, "").await
    }

    /// Starts a NATS server with further settings.
    pub(crate) async fn start_with(dir: TempDir, settings: &str) -> Result<Self> {
        let nats = nats::start_with(dir.path(), settings).await?;
        Ok(Self {
            nats,
            dir,
            started: 0,
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the applications file with one application at an origin.
    pub(crate) fn write_apps(&self, origin: &Origin, more: &str) -> Result<()> {
        let text = format!(
            "[apps.shop]\nkind = \"list\"\nhosts = [\"127.0.0.1\"]\nhttp_hosts = [\"127.0.0.1\"]\nallow_networks = [\"127.0.0.0/8\"]\n\
             assets = \"{}\"\n{more}\n[apps.bare]\nkind = \"list\"\nhosts = [\"{}\"]\n",
            self.path("assets.ndjson").display(),
            origin.address.ip(),
        );
        Ok(fs::write(self.path("apps.toml"), text)?)
    }

    /// Writes assets with the paths `/0`, `/1` and so on.
    pub(crate) fn write_assets(
        &self,
        origin: &Origin,
        count: usize,
        hash: impl Fn(usize) -> String,
    ) -> Result<()> {
        let line = |number| {
            let hash = hash(number);
            format!(
                "{{\"key\":\"key-{number}\",\"url\":\"http://{}/{number}\",\"hash\":\"{hash}\",\"eTag\":\"\\\"{number}\\\"\"}}\n",
                origin.address
            )
        };
        let text: String = (0..count).map(line).collect();
        Ok(fs::write(self.path("assets.ndjson"), text)?)
    }

    /// Starts a revalidator, and waits until it is ready.
    pub(crate) async fn revalidator(&mut self, flags: &[&str]) -> Result<Revalidator> {
        let mut started = self.spawn(flags)?;
        started.process.wait_ready(&started.admin, TIMEOUT).await?;
        Ok(started)
    }

    /// Starts a revalidator without waiting.
    pub(crate) fn spawn(&mut self, flags: &[&str]) -> Result<Revalidator> {
        let (address, admin) = (free_address()?.to_string(), free_address()?.to_string());
        self.started += 1;
        let mut args = vec![
            format!("--apps={}", self.path("apps.toml").display()),
            format!("--listen={address}"),
            format!("--admin={admin}"),
        ];
        if !flags.iter().any(|flag| flag.starts_with("--nats=")) {
            args.push(format!("--nats={}", self.nats.uri()));
        }
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let log = self.path(&format!("revalidator-{}.log", self.started));
        let program = Path::new(env!("CARGO_BIN_EXE_revalidator"));
        let process = Process::start("the revalidator", program, &args, &log)?;
        Ok(Revalidator {
            process,
            address,
            admin,
        })
    }
}

/// A running revalidator.
pub(crate) struct Revalidator {
    pub(crate) process: Process,
    pub(crate) address: String,
    pub(crate) admin: String,
}

impl Revalidator {
    /// Calls the API; returns the status and the body.
    pub(crate) async fn post(
        &self,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> Result<(u16, String)> {
        let mut client = HttpClient::connect(&self.address).await?;
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        client.send(request.as_bytes()).await?;
        let response = client.response().await?;
        Ok((response.status, response.body))
    }

    pub(crate) async fn get(&self, path: &str) -> Result<(u16, String)> {
        let response = HttpClient::connect(&self.address)
            .await?
            .get(path, &[])
            .await?;
        Ok((response.status, response.body))
    }

    /// Creates a job; returns its id.
    pub(crate) async fn create(&self, body: &str) -> Result<String> {
        let (status, body) = self.post("/v1/jobs", "application/json", body).await?;
        ensure!(status == 201, "{status} {body}");
        let job: Value = serde_json::from_str(&body)?;
        Ok(job["jobId"].as_str().context("no id")?.to_owned())
    }

    pub(crate) async fn job(&self, id: &str) -> Result<Value> {
        let (status, body) = self.get(&format!("/v1/jobs/{id}")).await?;
        ensure!(status == 200, "{status} {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// Waits until a job meets a condition, while its status keeps changing.
    pub(crate) async fn wait_job(
        &self,
        id: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let (mut last, mut deadline) = (Value::Null, Instant::now() + TIMEOUT);
        loop {
            // The broker may be unavailable for a moment.
            if let Ok(job) = self.job(id).await {
                if condition(&job) {
                    return Ok(job);
                }
                if job != last {
                    (last, deadline) = (job, Instant::now() + TIMEOUT);
                }
            }
            let lines = || self.process.last_lines(30);
            ensure!(Instant::now() < deadline, "{last}\n{}", lines());
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn wait_finished(&self, id: &str) -> Result<Value> {
        self.wait_job(id, |job| job["serverState"] == "Finished")
            .await
    }

    pub(crate) async fn readiness(&self) -> Result<String> {
        Ok(testkit::admin::get(&self.admin, "/readyz").await?.body)
    }

    /// Waits until `/readyz` contains a text.
    pub(crate) async fn wait_readiness(&self, text: &str) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let found = self.readiness().await.unwrap_or_default();
            if found.contains(text) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{found}\n{}",
                self.process.last_lines(30)
            );
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<u64> {
        let samples = testkit::admin::metrics(&self.admin).await?;
        Ok(samples.count(name, labels))
    }
}
