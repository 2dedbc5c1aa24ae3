//! The status pages in a real browser.

use std::{path::Path, process::Stdio};

use anyhow::{Result, bail, ensure};
use bench::{programs::target_dir, tools::installed_or_skip};
use tempfile::TempDir;

use crate::{
    harness::{Consumer, Producer, accept_all, embedded, numbered_cookie},
    stream_client::{Subscription, from_newest},
};

/// A name that would do things if a page took it for HTML.
const HOSTILE: &str = "<img src=x onerror=alert(1)><script>alert(2)</script>";

/// Browsers that speak the debugging protocol, as systems call them.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Leaves pictures of both pages in `target/pages`.
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

    let pictures = target_dir().join("pages");
    std::fs::create_dir_all(&pictures)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/pages.py");
    let [script, browser, pictures] =
        [script, browser, pictures].map(|path| path.display().to_string());
    let arguments = [
        &*script,
        &browser,
        &producer.admin,
        &consumer.admin,
        HOSTILE,
        &user,
        &buyer,
        &pictures,
    ];
    let plan = producer.ordered_load(1, 1_000, 300_000)?;
    let looks = tokio::process::Command::new("python3")
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let looked = tokio::select! {
        looked = looks => looked?,
        accepted = accept_all(&plan) => bail!("the load ended first: {}", accepted?.summary()),
    };
    drop(hostile);
    let mut words = String::from_utf8_lossy(&looked.stdout).into_owned();
    words.push_str(&String::from_utf8_lossy(&looked.stderr));
    ensure!(looked.status.success(), "{words}");
    println!("{words}Pictures are in {pictures}.");
    Ok(())
}
