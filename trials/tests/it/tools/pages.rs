//! Test of the status pages in a real browser.

use anyhow::{Result, bail};
use bench::load;
use tempfile::TempDir;
use testkit::programs::target_dir;
use tokio_util::sync::CancellationToken;

use crate::{
    browser,
    harness::{Consumer, Producer, embedded, numbered_cookie},
    stream_client::{Subscription, from_newest},
};

/// A name that would execute scripts if a page inserted it as HTML.
const HOSTILE: &str = "<img src=x onerror=alert(1)><script>alert(2)</script>";

/// Writes screenshots of both pages to `target/pages`.
#[tokio::test]
#[ignore = "takes a minute, and needs Chromium"]
async fn status_pages_show_live_data_and_request_only_their_own_port() -> Result<()> {
    let Some(chromium) = browser::browser_or_skip() else {
        return Ok(());
    };
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let name = "node-1.exchange.example";
    let consumer = Consumer::start(&dir, name, &[&producer], &store, &[]).await?;
    let hostile = Subscription::open(&producer.grpc, from_newest(HOSTILE)).await?;
    drop(Subscription::open(&producer.grpc, from_newest("node-2.exchange.example")).await?);
    producer.accept_numbers(1..=10).await?;
    let (user, _, buyer) = numbered_cookie(7);

    let screenshots = target_dir().join("pages");
    std::fs::create_dir_all(&screenshots)?;
    let screenshots = screenshots.display().to_string();
    let arguments = [
        &*producer.admin,
        &consumer.admin,
        name,
        &consumer.process.id().to_string(),
        HOSTILE,
        &user,
        &buyer,
        &screenshots,
    ];
    let plan = producer.ordered_load(1, 1_000, 300_000)?;
    let stop = CancellationToken::new();
    // The threads of the load outlive its future.
    let _stop = stop.clone().drop_guard();
    let text = tokio::select! {
        text = browser::run("pages.py", &chromium, &arguments) => text?,
        accepted = load::run(&plan, &stop) => bail!("the load ended first: {}", accepted?.report().summary()),
    };
    drop(hostile);
    println!("{text}Screenshots are in {screenshots}.");
    Ok(())
}
