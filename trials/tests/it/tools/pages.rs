//! Test of the status pages in a real browser.

use std::{fs, net::Ipv4Addr, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use bench::load;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{
    admin,
    http_server::HttpServer,
    limiter::Limiter,
    mongod, nats,
    programs::{Process, ServerProcess, find, free_address, target_dir},
};
use tokio_util::sync::CancellationToken;

use crate::{
    browser,
    deletions::call,
    harness::{Consumer, Producer, TIMEOUT, embedded, numbered_cookie, wait_until},
    stream_client::{Subscription, from_newest},
};

/// A name that would execute scripts if a page inserted it as HTML.
const HOSTILE: &str = "<img src=x onerror=alert(1)><script>alert(2)</script>";

/// A call falls under both limits.
const LIMITS: &str = "[limits.partner]\nkeys = ['client-*']\nrules = [{ id = 'r', rate = '1000/s', burst = 1000 }]\n\
    [limits.all]\nglobal = true\nrules = [{ id = 'a', rate = '1000/s', burst = 1000 }]\n";

/// One DSP may be in plans.
const CONTRACTS: &str = "[privacy]\ngdpr_when_absent = \"no\"\n[plan]\nbase = \"https://match.exchange.example\"\n\
    [dsp.17]\nname = \"partner\"\n[dsp.17.sync]\nimage = \"https://partner.example/?r={RETURN}\"\n";

/// One job more than the last ten, which have series.
const JOBS: usize = 11;

/// A revalidator whose jobs have ended.
struct Revalidator {
    admin: String,
    /// Ids of the jobs, oldest first.
    jobs: Vec<String>,
    _process: Process,
    _nats: ServerProcess,
}

impl Revalidator {
    /// Starts it, and runs jobs with three assets, which have not changed.
    async fn start(program: &Path, dir: &Path) -> Result<Self> {
        let unchanged = |_| async {
            let mut response = Response::default();
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        };
        let origin = HttpServer::start((Ipv4Addr::LOCALHOST, 0).into(), unchanged).await?;
        let (apps, assets) = (dir.join("apps.toml"), dir.join("assets.ndjson"));
        let line = |number| {
            let address = origin.address;
            format!("{{\"url\":\"http://{address}/{number}\",\"eTag\":\"\\\"1\\\"\"}}\n")
        };
        fs::write(&assets, (0..3).map(line).collect::<String>())?;
        let settings = format!(
            "[apps.shop]\nkind = \"list\"\nhosts = [\"127.0.0.1\"]\nhttp_hosts = [\"127.0.0.1\"]\n\
             allow_networks = [\"127.0.0.0/8\"]\nassets = \"{}\"\n",
            assets.display()
        );
        fs::write(&apps, settings)?;
        let nats = nats::start(dir).await?;
        let (api, admin) = (free_address()?.to_string(), free_address()?.to_string());
        let flags = [
            format!("--apps={}", apps.display()),
            format!("--nats={}", nats.uri()),
            format!("--listen={api}"),
            format!("--admin={admin}"),
        ];
        let log = dir.join("revalidator.log");
        let mut process = Process::start("the revalidator", program, &flags, &log)?;
        process.wait_ready(&admin, TIMEOUT).await?;
        let mut jobs = Vec::new();
        for _ in 0..JOBS {
            let head = "POST /v1/jobs HTTP/1.1\r\ncontent-type: application/json";
            let (status, body) = call(&api, head, "{\"app\":\"shop\"}").await?;
            ensure!(status == 201, "{status} {body}");
            let job: Value = serde_json::from_str(&body)?;
            let id = job["jobId"].as_str().context("no id")?.to_owned();
            wait_until(TIMEOUT, "the job ends", async || {
                let body = admin::get(&api, &format!("/v1/jobs/{id}")).await?.body;
                let job: Value = serde_json::from_str(&body)?;
                Ok(job["serverState"] == "Finished")
            })
            .await?;
            jobs.push(id);
        }
        Ok(Self {
            admin,
            jobs,
            _process: process,
            _nats: nats,
        })
    }
}

/// Writes screenshots to `target/pages`.
#[tokio::test]
#[ignore = "takes two minutes, and needs Chromium"]
async fn status_pages_show_live_data_and_request_only_their_own_port() -> Result<()> {
    let Some(chromium) = browser::browser_or_skip() else {
        return Ok(());
    };
    let dir = TempDir::new()?;
    // What a stopped subscriber does not read is lost after some seconds.
    let flags = ["--queue-cookies=1000", "--rewind-bytes=0"];
    let producer = Producer::start(&dir, &flags).await?;
    let contracts = dir.path().join("contracts.toml");
    fs::write(&contracts, CONTRACTS)?;
    let contracts = contracts.display().to_string();
    let other = Producer::start(&dir, &["--contracts", &contracts]).await?;
    let store = embedded(&dir.path().join("store"));
    let name = "node-1.exchange.example";
    let consumer = Consumer::start(&dir, name, &[&producer, &other], &store, &[]).await?;
    let mongod = mongod::start(&dir.path().join("mongod")).await?;
    let (slow, uri) = ("node-3.exchange.example", mongod.uri());
    let on_mongod = Consumer::start(&dir, slow, &[&producer], &uri, &[]).await?;
    let programs = tokio::task::spawn_blocking(|| find(["limiter", "revalidator"])).await??;
    let limiter = Limiter::start(&programs[0], dir.path(), LIMITS, &[]).await?;
    let revalidator = Revalidator::start(&programs[1], dir.path()).await?;
    let hostile = Subscription::open(&producer.grpc, from_newest(HOSTILE)).await?;
    drop(Subscription::open(&producer.grpc, from_newest("node-2.exchange.example")).await?);
    producer.accept_numbers(1..=10).await?;
    let (user, _, buyer) = numbered_cookie(7);

    let screenshots = target_dir().join("pages");
    std::fs::create_dir_all(&screenshots)?;
    let screenshots = screenshots.display().to_string();
    let about = json!({
        "producer": { "admin": producer.admin, "http": producer.http },
        "consumer": { "admin": consumer.admin, "name": name, "pid": consumer.process.id() },
        "on_mongod": { "admin": on_mongod.admin, "name": slow, "mongod": mongod.process.id() },
        "other_producer": { "admin": other.admin, "http": other.http, "pid": other.process.id() },
        "limiter": { "admin": limiter.admin, "http": limiter.address },
        "revalidator": { "admin": revalidator.admin, "jobs": revalidator.jobs },
        "hostile": HOSTILE,
        "match": [user, buyer],
        "directory": screenshots,
    });
    let (about, script) = (about.to_string(), "pages.py");
    let arguments = [&*about];
    let plan = producer.ordered_load(1, 5_000, 1_500_000)?;
    let stop = CancellationToken::new();
    // The threads of the load outlive its future.
    let _stop = stop.clone().drop_guard();
    let text = tokio::select! {
        text = browser::run(script, &chromium, &arguments) => text?,
        accepted = load::run(&plan, &stop) => bail!("the load ended first: {}", accepted?.report().summary()),
    };
    drop(hostile);
    println!("{text}Screenshots are in {screenshots}.");
    Ok(())
}
