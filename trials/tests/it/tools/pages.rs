//! Test of the status pages in a real browser.

use anyhow::{Result, bail};
use bench::load;
use serde_json::json;
use tempfile::TempDir;
use testkit::{
    limiter::Limiter,
    mongod,
    programs::{find, target_dir},
};
use tokio_util::sync::CancellationToken;

use crate::{
    browser,
    harness::{Consumer, Producer, embedded, numbered_cookie},
    stream_client::{Subscription, from_newest},
};

/// A name that would execute scripts if a page inserted it as HTML.
const HOSTILE: &str = "<img src=x onerror=alert(1)><script>alert(2)</script>";

/// A call falls under both limits.
const LIMITS: &str = "[limits.partner]\nkeys = ['client-*']\nrules = [{ id = 'r', rate = '1000/s', burst = 1000 }]\n\
    [limits.all]\nglobal = true\nrules = [{ id = 'a', rate = '1000/s', burst = 1000 }]\n";

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
    let other = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let name = "node-1.exchange.example";
    let consumer = Consumer::start(&dir, name, &[&producer, &other], &store, &[]).await?;
    let mongod = mongod::start(&dir.path().join("mongod")).await?;
    let (slow, uri) = ("node-3.exchange.example", mongod.uri());
    let on_mongod = Consumer::start(&dir, slow, &[&producer], &uri, &[]).await?;
    let [limiter] = tokio::task::spawn_blocking(|| find(["limiter"])).await??;
    let limiter = Limiter::start(&limiter, dir.path(), LIMITS, &[]).await?;
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
        "other_producer": other.process.id(),
        "limiter": { "admin": limiter.admin, "http": limiter.address },
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
