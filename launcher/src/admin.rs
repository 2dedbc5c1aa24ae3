//! A keep-alive HTTP client for small questions: a process's admin port, and one sync at a time.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use crate::{ledger, scrape::Samples};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest body that is read.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// A connection to an HTTP/1.1 server.
#[derive(Debug)]
pub struct HttpClient {
    address: String,
    stream: BufReader<TcpStream>,
}

impl HttpClient {
    /// Connects to `address`, a host and a port.
    ///
    /// # Errors
    /// When nobody listens there.
    pub async fn connect(address: &str) -> Result<Self> {
        let stream = timeout(ANSWER_TIMEOUT, TcpStream::connect(address))
            .await
            .with_context(|| format!("{address} does not answer"))?
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            address: address.to_owned(),
            stream: BufReader::new(stream),
        })
    }

    /// GETs `path_and_query`, with `headers` as name and value.
    ///
    /// # Errors
    /// When no whole answer comes in time; the connection is then of no use any more.
    pub async fn get(&mut self, path_and_query: &str, headers: &[(&str, &str)]) -> Result<Answer> {
        self.ask("GET", path_and_query, headers, "").await
    }

    async fn ask(
        &mut self,
        method: &str,
        path_and_query: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer> {
        let mut request = format!(
            "{method} {path_and_query} HTTP/1.1\r\nHost: {}\r\n",
            self.address
        );
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        request.push_str(body);
        timeout(ANSWER_TIMEOUT, self.exchange(request))
            .await
            .unwrap_or_else(|_| bail!("no answer in time"))
            .with_context(|| format!("{method} http://{}{path_and_query}", self.address))
    }

    async fn exchange(&mut self, request: String) -> Result<Answer> {
        self.stream.write_all(request.as_bytes()).await?;

        let status_line = self.line().await?;
        let status = status_line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|status| status.parse().ok())
            .with_context(|| format!("not an HTTP answer: {status_line:?}"))?;
        let mut body_bytes = 0;
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').context("a header without a colon")?;
            if name.eq_ignore_ascii_case("content-length") {
                body_bytes = value.trim().parse()?;
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                bail!("chunked answers are not understood");
            }
        }
        if body_bytes > BODY_BYTES_MAX {
            bail!("an answer of {body_bytes} bytes");
        }
        let mut body = vec![0; body_bytes];
        self.stream.read_exact(&mut body).await?;
        let body = String::from_utf8(body)?;
        Ok(Answer { status, body })
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            bail!("the server closed the connection");
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}

/// GETs one path over a connection of its own.
///
/// # Errors
/// When no whole answer comes in time.
pub async fn get(address: &str, path_and_query: &str) -> Result<Answer> {
    HttpClient::connect(address)
        .await?
        .get(path_and_query, &[])
        .await
}

/// What the process with this admin port says at `/readyz`: `Ok` when it is ready, otherwise why not, as `part: why`, one
/// line for each part.
///
/// # Errors
/// When it does not answer, or not as it should.
pub async fn readiness(address: &str) -> Result<Result<(), String>> {
    #[derive(Deserialize)]
    struct Readiness {
        ready: bool,
        reasons: Vec<Reason>,
    }
    #[derive(Deserialize)]
    struct Reason {
        part: String,
        why: String,
    }
    let answer = get(address, "/readyz").await?;
    let said: Readiness = serde_json::from_str(&answer.body)
        .with_context(|| format!("http://{address}/readyz says {:?}", answer.body))?;
    let reasons = said.reasons.iter();
    let reasons: Vec<_> = reasons
        .map(|reason| format!("{}: {}", reason.part, reason.why))
        .collect();
    match (answer.status, said.ready, reasons.is_empty()) {
        (200, true, true) => Ok(Ok(())),
        (503, false, false) => Ok(Err(reasons.join("\n"))),
        (status, ..) => bail!(
            "http://{address}/readyz says {status} with {:?}",
            answer.body
        ),
    }
}

/// PUTs `body` to one path over a connection of its own.
///
/// # Errors
/// When no whole answer comes in time.
pub async fn put(address: &str, path: &str, body: &str) -> Result<Answer> {
    HttpClient::connect(address)
        .await?
        .ask("PUT", path, &[], body)
        .await
}

/// Sends one sync request to the edge at `address`. The ids go into the request as they are.
///
/// # Errors
/// When no whole answer comes in time.
pub async fn sync(address: &str, user_id: &str, dsp_id: u32, buyer_uid: &str) -> Result<Answer> {
    HttpClient::connect(address)
        .await?
        .get(
            &format!("/?d={dsp_id}&b={buyer_uid}"),
            &[("Cookie", &format!("uid={user_id}"))],
        )
        .await
}

/// The metrics of the process with this admin port, whose books balance.
///
/// # Errors
/// When it does not answer, or a [`ledger`] in it does not add up.
pub async fn metrics(address: &str) -> Result<Samples> {
    let answer = get(address, "/metrics").await?;
    if answer.status != 200 {
        bail!("http://{address}/metrics answers {}", answer.status);
    }
    let samples = Samples::parse(&answer.body);
    ledger::check(&samples).with_context(|| format!("http://{address}/metrics"))?;
    Ok(samples)
}
