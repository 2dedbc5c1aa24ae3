//! Tests of sync plans in a real browser.

use std::fs;

use anyhow::Result;
use tempfile::TempDir;
use testkit::programs::free_address;

use super::security::certificates::Authority;
use crate::{
    browser,
    harness::{Addresses, Consumer, Producer, embedded},
};

/// What the partners of the script do, by group.
const PARTNERS: [(&str, &str, &str); 9] = [
    ("pixel", "image", "return"),
    ("nested", "iframe", "nested"),
    ("empty", "iframe", "empty"),
    ("slowpixel", "image", "hang"),
    ("slowframe", "iframe", "hang"),
    ("hops", "image", "hops/5"),
    ("nowhere", "image", "return"),
    ("direct", "iframe", "return"),
    ("last", "image", "return"),
];

/// Contracts of the partners, and of ten that never respond.
fn contracts(base: &str, port: u16) -> String {
    let dsp = |id: usize, name: &str, kind: &str, path: &str, more: &str| {
        let domain = if name == "nowhere" {
            "invalid"
        } else {
            "example"
        };
        format!(
            "[dsp.{id}]\nname = \"{name}\"\n[dsp.{id}.sync]\n{more}\n\
             {kind} = \"https://{name}.partner.{domain}:{port}/{path}?r={{RETURN}}\"\n"
        )
    };
    let partners = (1..)
        .zip(PARTNERS)
        .map(|(id, (name, kind, path))| dsp(id, name, kind, path, &format!("group = {id}")));
    let slow = (0..10).map(|it| dsp(20 + it, &format!("slow-{it}"), "image", "hang", ""));
    let dsps: String = partners.chain(slow).collect();
    format!(
        "[privacy]\ngdpr_when_absent = \"no\"\n[plan]\nbase = \"{base}\"\nlimit_max = 20\n\
         origins = [\"https://publisher.example:{port}\", \"https://*.paper.example:{port}\"]\n{dsps}"
    )
}

/// Runs a part of the script.
async fn run(part: &str) -> Result<()> {
    let Some(chromium) = browser::browser_or_skip() else {
        return Ok(());
    };
    let dir = TempDir::new()?;
    let (certificate, key) = Authority::new("test")?.write_identity(dir.path(), "edge")?;
    let partners = free_address()?.port();
    let start = async |name: &str, uid: &str| -> Result<_> {
        let addresses = Addresses::free()?;
        let port = addresses.http.rsplit(':').next().unwrap_or_default();
        let base = format!("https://{name}.example:{port}");
        let file = dir.path().join(format!("{name}.toml"));
        fs::write(&file, contracts(&base, partners))?;
        let file = file.display().to_string();
        let tls = ["--http-tls-cert", &certificate, "--http-tls-key", &key];
        let flags = ["--contracts", &file, "--uid", uid];
        let flags = [&tls[..], &flags].concat();
        Ok((Producer::start_at(&dir, &addresses, &flags).await?, base))
    };
    let (producer, edge) = start("exchange", "mint").await?;
    let (partitioned, separate) = start("partitioned", "mint-partitioned").await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer, &partitioned], &store, &[]).await?;
    let arguments = [
        part,
        &certificate,
        &key,
        &edge,
        &separate,
        &producer.admin,
        &partitioned.admin,
        &consumer.admin,
        &partners.to_string(),
    ];
    browser::run("plans.py", &chromium, &arguments).await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn prebid_calls_each_partner_once_if_the_browser_keeps_cookies() -> Result<()> {
    run("cookies").await
}

#[tokio::test]
async fn page_calls_one_partner_at_a_time_and_ends_whatever_they_do() -> Result<()> {
    run("page").await
}
