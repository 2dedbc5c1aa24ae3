//! Test of syncs in a real browser.

use std::fs;

use anyhow::Result;
use tempfile::TempDir;
use testkit::{programs::free_address, scrape::names};

use super::security::certificates::Authority;
use crate::{
    browser,
    harness::{Consumer, Producer, embedded},
};

/// Contracts of three partners that redirect to the script's server, and of one with a pixel.
fn contracts(port: u16) -> String {
    let partner = |number| {
        format!(
            "[dsp.{number}]\nanswer = \"redirect\"\n\
             redirect = \"https://partner-{number}.example:{port}/done?u={{UID}}&x={{DSP_UID}}\"\n"
        )
    };
    let partners: String = (1..=3).map(partner).collect();
    format!("unknown_dsps = \"refuse\"\n[dsp.17]\nanswer = \"gif\"\n{partners}")
}

#[tokio::test]
async fn browser_follows_redirects_opts_out_and_keeps_minted_cookies_if_it_may() -> Result<()> {
    let Some(chromium) = browser::browser_or_skip() else {
        return Ok(());
    };
    let dir = TempDir::new()?;
    let (certificate, key) = Authority::new("test")?.write_identity(dir.path(), "edge")?;
    let partners = free_address()?.port();
    let file = dir.path().join("contracts.toml");
    fs::write(&file, contracts(partners))?;
    let file = file.display().to_string();
    let publisher = format!("https://publisher.example:{partners}");
    let start = async |uid: &str| {
        let tls = ["--http-tls-cert", &certificate, "--http-tls-key", &key];
        let flags = [
            "--contracts",
            &file,
            "--opt-out",
            "--uid",
            uid,
            "--opt-out-frame-origin",
            &publisher,
        ];
        Producer::start(&dir, &[&tls[..], &flags].concat()).await
    };
    let producer = start("mint").await?;
    let partitioned = start("mint-partitioned").await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer, &partitioned], &store, &[]).await?;
    let origin = |name: &str, producer: &Producer| {
        let port = producer.http.rsplit(':').next().unwrap_or_default();
        format!("https://{name}.example:{port}")
    };
    let arguments = [
        &*certificate,
        &key,
        &origin("exchange", &producer),
        &origin("partitioned", &partitioned),
        &producer.admin,
        &consumer.admin,
        &partners.to_string(),
    ];
    browser::run("browser.py", &chromium, &arguments).await?;
    // Eight matches and two deletions: matches that no browser confirms are not fanned out.
    let received = consumer.metrics().await?.count(names::RECEIVED, &[]);
    assert_eq!((received, consumer.lost().await?), (10, 0));
    Ok(())
}
