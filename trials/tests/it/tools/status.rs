//! Tests of the status page and of `/readyz`: contents and access.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{
    admin,
    http::{HttpClient, Response},
};

use crate::harness::{Consumer, Producer, embedded, wait_logged};

async fn send(admin: &str, request: &str) -> Result<Response> {
    let mut connection = HttpClient::connect(admin).await?;
    connection.send(request.as_bytes()).await?;
    connection.head_response().await
}

async fn get(admin: &str, path: &str) -> Result<Response> {
    let mut connection = HttpClient::connect(admin).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\n\r\n");
    connection.send(request.as_bytes()).await?;
    connection.response().await
}

#[tokio::test]
async fn status_page_allows_only_its_own_script_and_inserts_no_html() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    for path in ["/metrics", "/readyz", "/nothing"] {
        let head = get(&producer.admin, path).await?.head;
        let no_frames = "\r\ncontent-security-policy: frame-ancestors 'none'";
        ensure!(head.contains(no_frames), "{path}: {head}");
    }
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
    ] {
        let page = get(&producer.admin, path).await?;
        for header in [
            &format!("content-type: {kind}; charset=utf-8"),
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'",
        ] {
            ensure!(
                page.head.contains(&format!("\r\n{header}")),
                "{header}: {}",
                page.head
            );
        }
        for source in ["unsafe-inline", "unsafe-eval", "http:", "https:"] {
            ensure!(!page.head.contains(source), "{}", page.head);
        }
        for sink in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            ensure!(
                !page.body.contains(sink),
                "{path}: {sink} inserts text as HTML or code"
            );
        }
    }
    Ok(())
}

/// Starts a consumer without waiting; its producer is unreachable.
async fn spawn(dir: &TempDir, name: &str, store: &str) -> Result<Consumer> {
    Consumer::spawn(dir, name, &["http://127.0.0.1:1"], store, &[]).await
}

#[tokio::test]
async fn readyz_explains_each_component() -> Result<()> {
    let dir = TempDir::new()?;
    let consumer = spawn(&dir, "node", &embedded(&dir.path().join("store"))).await?;
    consumer
        .wait_not_ready(
            "producers: no producer is connected; known addresses: 1; 127.0.0.1:1 of http://127.0.0.1:1",
        )
        .await?;
    let answer = admin::get(&consumer.admin, "/readyz").await?;
    let readiness: Value = serde_json::from_str(&answer.body)?;
    assert_eq!((answer.status, &readiness["ready"]), (503, &json!(false)));
    assert_eq!(readiness["reasons"][0]["component"], "producers");
    let up = json!({"component": "store", "ready": true, "state": "up"});
    ensure!(
        readiness["components"]
            .as_array()
            .is_some_and(|components| components.contains(&up)),
        "{readiness}"
    );
    Ok(())
}

#[tokio::test]
async fn unreachable_producer_and_store_are_logged_as_warnings() -> Result<()> {
    let dir = TempDir::new()?;
    let consumer = spawn(&dir, "node", &embedded(&dir.path().join("store"))).await?;
    let no_producer = "WARN consumer::subscription: no stream from this address, retrying";
    wait_logged(&consumer.process, no_producer).await?;
    let consumer = spawn(&dir, "other", "mongodb://127.0.0.1:1").await?;
    wait_logged(&consumer.process, "no response for 1s; check --store").await
}

#[tokio::test]
async fn admin_port_rejects_foreign_hosts_and_cross_site_requests() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let own = &*producer.admin;
    let link = "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    for (host, more, path, status) in [
        (own, "", "/metrics", 200),
        ("localhost:9090", "", "/metrics", 200),
        ("rebound.example:9090", "", "/metrics", 421),
        ("rebound.example:9090", "", "/", 421),
        (own, "Sec-Fetch-Site: cross-site\r\n", "/metrics", 403),
        (
            own,
            &format!("Sec-Fetch-Site: cross-site\r\n{link}"),
            "/metrics",
            200,
        ),
        (own, "Sec-Fetch-Site: same-origin\r\n", "/metrics", 200),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
        let answer = send(own, &request).await?;
        assert_eq!(answer.status, status, "{request}");
        ensure!(!answer.head.contains("access-control-"), "{}", answer.head);
    }
    let answer = send(own, &format!("POST / HTTP/1.1\r\nHost: {own}\r\n\r\n")).await?;
    assert_eq!(answer.status, 405);
    Ok(())
}
