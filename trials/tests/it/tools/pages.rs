//! The status pages in a real browser.

use std::{path::Path, process::Stdio};

use anyhow::{Result, bail, ensure};
use bench::{programs::target_dir, tools::installed_or_skip};
use tempfile::TempDir;

use crate::{
    harness::{Consumer, Producer, accept_all, embedded, numbered_cookie},
    stream_client::{Subscription, from_newest},
};

/// A name that would execute scripts if a page inserted it as HTML.
const HOSTILE: &str = "<img src=x onerror=alert(1)><script>alert(2)</script>";

/// Commands of browsers that support the DevTools protocol.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Writes screenshots of both pages to `target/pages`.
#[tokio::test]
#[ignore = "takes a minute, and needs Chromium"]
async fn status_pages_show_live_data_and_request_only_their_own_port() -> Result<()> {
    let Some(browser) = installed_or_skip(&BROWSERS) else {
        return Ok(());
    };
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer =
        Consumer::start(&dir, "node-1.exchange.example", &[&producer], &store, &[]).await?;
    let hostile = Subscription::open(&producer.grpc, from_newest(HOSTILE)).await?;
    drop(Subscription::open(&producer.grpc, from_newest("node-2.exchange.example")).await?);
    producer.accept_numbers(1..=10).await?;
    let (user, _, buyer) = numbered_cookie(7);

    let screenshots = target_dir().join("pages");
    std::fs::create_dir_all(&screenshots)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/pages.py");
    let [script, browser, screenshots] =
        [script, browser, screenshots].map(|path| path.display().to_string());
    let arguments = [
        &*script,
        &browser,
        &producer.admin,
        &consumer.admin,
        HOSTILE,
        &user,
        &buyer,
        &screenshots,
    ];
    let plan = producer.ordered_load(1, 1_000, 300_000)?;
    let check = tokio::process::Command::new("python3")
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::select! {
        output = check => output?,
        accepted = accept_all(&plan) => bail!("the load ended first: {}", accepted?.summary()),
    };
    drop(hostile);
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{text}");
    println!("{text}Screenshots are in {screenshots}.");
    Ok(())
}
