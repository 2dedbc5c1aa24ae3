//! Test of the streams of rejected requests on the admin port.

use std::{cell::RefCell, fs};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{admin, http::HttpClient};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::harness::{DRAIN_TIMEOUT, Producer, TIMEOUT, expect_exit, wait_until, within_timeout};

/// The contracts of DSPs 17 and 42.
const CONTRACTS: &str = "[privacy]
country_header = 'x-country'
[dsp.17]
name = 'example'
uid_pattern = '^[a-z0-9]{8,64}$'
[dsp.42]
state = 'blocked'
";

/// Part of every user id and buyer uid of the test, in any case.
const SECRET: &str = "secret";

/// Headers of a request, as name and value.
type Headers<'a> = &'a [(&'a str, &'a str)];

/// A client that reads a stream.
struct Reader {
    connection: TcpStream,
    /// Everything received, including headers.
    received: String,
    lines_read: usize,
}

impl Reader {
    async fn open(admin: &str, dsp_id: u32) -> Result<Self> {
        let mut connection = TcpStream::connect(admin).await?;
        let request =
            format!("GET /debug/refusals?dsp={dsp_id} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut reader = Self {
            connection,
            received: String::new(),
            lines_read: 0,
        };
        while !reader.received.contains("\r\n\r\n") {
            ensure!(reader.receive().await?, "closed: {}", reader.received);
        }
        let head = reader.received.to_ascii_lowercase();
        ensure!(head.starts_with("http/1.1 200 "), "{head}");
        ensure!(head.contains("content-type: application/x-ndjson\r\n"));
        Ok(reader)
    }

    /// Receives more; returns false at the end of the connection.
    async fn receive(&mut self) -> Result<bool> {
        let mut bytes = [0; 4096];
        let read = within_timeout("a line", self.connection.read(&mut bytes)).await??;
        self.received.push_str(str::from_utf8(&bytes[..read])?);
        Ok(read > 0)
    }

    /// The next line.
    async fn line(&mut self) -> Result<Value> {
        loop {
            // Each line is a chunk, behind a line with its size.
            let complete = self.received.split_inclusive('\n');
            let mut lines = complete.filter(|it| it.starts_with('{') && it.ends_with('\n'));
            if let Some(line) = lines.nth(self.lines_read) {
                self.lines_read += 1;
                return Ok(serde_json::from_str(line)?);
            }
            ensure!(self.receive().await?, "closed: {}", self.received);
        }
    }

    /// The next refusal, without its time.
    async fn refusal(&mut self) -> Result<Value> {
        let mut line = self.line().await?;
        let time = line["time"].take();
        let time = time.as_str().context("missing time")?;
        time.parse::<jiff::Timestamp>()?;
        Ok(line)
    }
}

/// Sends a request to the edge.
async fn send(producer: &Producer, target: &str, headers: Headers<'_>) -> Result<()> {
    let mut connection = HttpClient::connect(&producer.http).await?;
    connection.get(target, headers).await?;
    Ok(())
}

fn refusal(
    reason: &str,
    parameter: &str,
    length: Option<usize>,
    classes: &[&str],
    signals: &[&str],
) -> Value {
    json!({
        "time": null,
        "reason": reason,
        "parameter": parameter,
        "length": length,
        "classes": classes,
        "signals": signals,
        "left_out": 0,
    })
}

#[tokio::test]
async fn refusals_of_one_dsp_are_streamed_without_ids() -> Result<()> {
    let dir = TempDir::new()?;
    let contracts = dir.path().join("contracts.toml");
    fs::write(&contracts, CONTRACTS)?;
    let contracts = contracts.display().to_string();
    let mut producer = Producer::start(&dir, &["--contracts", &contracts]).await?;
    let user = [("Cookie", "uid=secret-user")];

    // Nobody reads this one.
    send(&producer, "/?d=17&b=secret.early", &user).await?;
    let mut of_17 = Reader::open(&producer.admin, 17).await?;
    let mut of_42 = Reader::open(&producer.admin, 42).await?;

    let all_signals = [
        ("Cookie", "uid=secret-user; cookiesync_optout=1"),
        ("Sec-GPC", "1"),
        ("X-Country", "DE"),
    ];
    let cases: [(&str, Headers<'_>, Value); 9] = [
        (
            "/?d=17&b=SECRET-Buyer1",
            &user,
            refusal(
                "uid_pattern",
                "b",
                Some(13),
                &["dash", "digit", "lower", "upper"],
                &[],
            ),
        ),
        (
            "/setuid?bidder=example&uid=secret&gdpr=0",
            &user,
            refusal("uid_pattern", "b", Some(6), &["lower"], &["gdpr"]),
        ),
        (
            "/sync?d=17&b=%%SECRET_ID%%",
            &user,
            refusal(
                "uid_macro",
                "b",
                Some(13),
                &["percent", "underscore", "upper"],
                &[],
            ),
        ),
        (
            "/?d=17&b=secret%ff",
            &user,
            refusal("b_not_utf8", "b", Some(9), &["lower", "percent"], &[]),
        ),
        ("/?d=17", &user, refusal("b_missing", "b", None, &[], &[])),
        (
            "/?d=17&b=secret123",
            &[],
            refusal("uid_missing", "cookie uid", None, &[], &[]),
        ),
        (
            "/?d=17&b=secret123",
            &[("Cookie", "uid=SECRET user")],
            refusal(
                "uid_invalid",
                "cookie uid",
                Some(11),
                &["lower", "other", "upper"],
                &[],
            ),
        ),
        (
            "/?d=17&b=secret123&gdpr=1",
            &user,
            refusal("privacy", "signals", None, &[], &["gdpr"]),
        ),
        (
            "/?d=17&b=secret123&gdpr=1&gdpr_consent=secret&gpp=secret&us_privacy=secret",
            &all_signals,
            refusal(
                "opted_out",
                "signals",
                None,
                &[],
                &[
                    "gdpr",
                    "gdpr_consent",
                    "gpp",
                    "us_privacy",
                    "sec_gpc",
                    "opt_out_cookie",
                    "country",
                ],
            ),
        ),
    ];
    for (target, headers, expected) in &cases {
        // No stream shows the first two: their DSP is unknown, or nobody reads it.
        send(&producer, "/?d=x&b=secret", &user).await?;
        send(&producer, "/?d=18&b=null", &user).await?;
        send(&producer, "/?d=42&b=secret", &user).await?;
        let expected_42 = refusal("dsp_blocked", "d", None, &[], &[]);
        assert_eq!(of_42.refusal().await?, expected_42);
        send(&producer, target, headers).await?;
        assert_eq!(of_17.refusal().await?, *expected, "{target}");
    }

    // Neither stream affects the other.
    drop(of_42);
    send(&producer, "/?d=17&b=secret-end", &user).await?;
    let expected = refusal("uid_pattern", "b", Some(10), &["dash", "lower"], &[]);
    assert_eq!(of_17.refusal().await?, expected);

    let status = producer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&producer.process, status, 0)?;
    let end = of_17.line().await?;
    assert_eq!(end, json!({ "end": "the producer is draining" }));
    while of_17.receive().await? {}
    ensure!(
        of_17.received.ends_with("\r\n0\r\n\r\n"),
        "{}",
        of_17.received
    );
    let received = of_17.received.to_ascii_lowercase();
    ensure!(!received.contains(SECRET), "{received}");
    Ok(())
}

#[tokio::test]
async fn number_of_streams_is_bounded_and_a_closed_one_makes_room() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut readers = Vec::new();
    for dsp_id in [17, 17, 18, 4_294_967_295] {
        readers.push(Reader::open(&producer.admin, dsp_id).await?);
    }
    let path = "/debug/refusals?dsp=17";
    let fifth = admin::get(&producer.admin, path).await?;
    assert_eq!(fifth.status, 429, "{fifth:?}");
    for invalid in ["", "?dsp=0", "?dsp=x", "?dsp=17&dsp=18", "?d=17"] {
        let response = admin::get(&producer.admin, &format!("/debug/refusals{invalid}")).await?;
        assert_eq!(response.status, 400, "{invalid}");
        ensure!(response.body.starts_with("use ?dsp=ID "), "{response:?}");
    }
    readers.remove(0);
    // The producer learns of the disconnect a little later.
    let opened = RefCell::new(None);
    wait_until(TIMEOUT, "a stream is opened", async || {
        opened.replace(Reader::open(&producer.admin, 19).await.ok());
        Ok(opened.borrow().is_some())
    })
    .await?;
    let fifth = admin::get(&producer.admin, path).await?;
    assert_eq!(fifth.status, 429, "{fifth:?}");

    // The streams of DSPs 17 and 18 show their refusals.
    for (reader, dsp_id) in readers.iter_mut().zip([17, 18]) {
        send(&producer, &format!("/?d={dsp_id}"), &[]).await?;
        let expected = refusal("b_missing", "b", None, &[], &[]);
        assert_eq!(reader.refusal().await?, expected);
    }
    Ok(())
}
