//! A keep-alive HTTP/1.1 client for small requests, which can also send arbitrary bytes for tests.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Timeout of a complete request and response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of each read or write of a manual exchange, on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a response body.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Response {
    /// Whether the server announces that it closes the connection.
    pub fn closes(&self) -> bool {
        self.head.contains("\r\nconnection: close\r\n")
    }
}

/// A connection to an HTTP/1.1 server. After an error it must not be used again.
#[derive(Debug)]
pub struct HttpClient {
    address: String,
    stream: TcpStream,
    /// Bytes received but not parsed yet.
    received: Vec<u8>,
}

impl HttpClient {
    /// Connects to `address`, a host and a port.
    ///
    /// # Errors
    /// If the connection fails.
    pub async fn connect(address: &str) -> Result<Self> {
        let connecting = TcpStream::connect(address);
        let stream = timeout(REQUEST_TIMEOUT, connecting)
            .await
            .with_context(|| format!("{address} does not respond"))?
            .with_context(|| format!("failed to connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            address: address.to_owned(),
            stream,
            received: Vec::new(),
        })
    }

    /// GETs `path`, with `headers` as name and value.
    ///
    /// # Errors
    /// If no complete response arrives within ten seconds.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Result<Response> {
        self.request("GET", path, headers, "").await
    }

    /// POSTs `body` (JSON or empty), with `headers` as name and value.
    ///
    /// # Errors
    /// If no complete response arrives within ten seconds.
    pub async fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Response> {
        let json = [("Content-Type", "application/json")];
        let headers = [&json, headers].concat();
        self.request("POST", path, &headers, body).await
    }

    /// Sends a request with this body, which may be empty, and returns the response.
    ///
    /// # Errors
    /// If the request fails, or the response does not arrive in time.
    pub async fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Response> {
        let address = &self.address;
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        request.push_str(body);
        let exchange = timeout(REQUEST_TIMEOUT, async {
            self.send(request.as_bytes()).await?;
            self.response().await
        });
        exchange
            .await
            .unwrap_or_else(|_| bail!("no response in time"))
            .with_context(|| format!("{method} http://{}{path}", self.address))
    }

    /// Sends `bytes` unchanged.
    ///
    /// # Errors
    /// If the write fails or times out.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(in_time("sending", self.stream.write_all(bytes)).await??)
    }

    /// Reads the next response, except to a HEAD request.
    ///
    /// # Errors
    /// If no complete response arrives, or its body is not UTF-8.
    pub async fn response(&mut self) -> Result<Response> {
        let response = self.head_response().await?;
        // These statuses have no body.
        if [204, 304].contains(&response.status) {
            return Ok(response);
        }
        let length: usize = response
            .head
            .split("\r\n")
            .find_map(|line| line.strip_prefix("content-length:"))
            .with_context(|| format!("missing content-length: {response:?}"))?
            .trim()
            .parse()?;
        ensure!(length <= BODY_BYTES_MAX, "body too large: {length} bytes");
        while self.received.len() < length {
            ensure!(
                self.receive().await? > 0,
                "connection closed before the end of the body"
            );
        }
        let body = String::from_utf8(self.received.drain(..length).collect())?;
        Ok(Response { body, ..response })
    }

    /// Reads the headers of the next response, which has no body, such as one to a HEAD request.
    ///
    /// # Errors
    /// If no response arrives.
    pub async fn head_response(&mut self) -> Result<Response> {
        loop {
            let mut fours = self.received.windows(4);
            if let Some(end) = fours.position(|four| four == b"\r\n\r\n") {
                let head = self.received.drain(..end + 4).collect();
                let head = String::from_utf8(head)?.to_ascii_lowercase();
                let status = head
                    .strip_prefix("http/1.1 ")
                    .and_then(|rest| rest.get(..3)?.parse().ok())
                    .with_context(|| format!("not an HTTP response: {head:?}"))?;
                return Ok(Response {
                    status,
                    head,
                    body: String::new(),
                });
            }
            if self.receive().await? == 0 {
                bail!("the server closed the connection");
            }
        }
    }

    /// Waits until the server closes the connection without sending anything more.
    ///
    /// # Errors
    /// If data arrives, or the connection stays open.
    pub async fn wait_ended(&mut self) -> Result<()> {
        // A reset counts as closed.
        let read = self.stream.read_buf(&mut self.received);
        let more = in_time("connection close", read).await?.unwrap_or(0);
        ensure!(more == 0 && self.received.is_empty(), "unexpected data");
        Ok(())
    }

    /// Reads until the connection closes or is reset.
    ///
    /// # Errors
    /// If the connection stays open.
    pub async fn rest(mut self) -> Result<String> {
        let reading =
            async { while self.stream.read_buf(&mut self.received).await.unwrap_or(0) > 0 {} };
        in_time("connection close", reading).await?;
        Ok(String::from_utf8_lossy(&self.received).into_owned())
    }

    async fn receive(&mut self) -> Result<usize> {
        let read = self.stream.read_buf(&mut self.received);
        Ok(in_time("receiving", read).await??)
    }
}

async fn in_time<T>(what: &str, step: impl Future<Output = T>) -> Result<T> {
    let stepped = timeout(STEP_TIMEOUT, step).await;
    stepped.with_context(|| format!("{what}: timed out after {STEP_TIMEOUT:?}"))
}
