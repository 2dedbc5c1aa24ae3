//! A keep-alive HTTP/1.1 client: small questions to a process, and for tests any bytes, well-formed or not.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// For a whole question and its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// For each step of a conversation that is led by hand, on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest body that is read.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// Whether the server says that it closes the connection.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.head.contains("\r\nconnection: close\r\n")
    }
}

/// A connection to an HTTP/1.1 server. It is of no use any more once something failed.
#[derive(Debug)]
pub struct HttpClient {
    address: String,
    stream: TcpStream,
    /// What has come and was not read yet.
    received: Vec<u8>,
}

impl HttpClient {
    /// Connects to `address`, a host and a port.
    ///
    /// # Errors
    /// When nobody listens there.
    pub async fn connect(address: &str) -> Result<Self> {
        let connecting = TcpStream::connect(address);
        let stream = timeout(ANSWER_TIMEOUT, connecting)
            .await
            .with_context(|| format!("{address} does not answer"))?
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            address: address.to_owned(),
            stream,
            received: Vec::new(),
        })
    }

    /// GETs `path_and_query`, with `headers` as name and value.
    ///
    /// # Errors
    /// When no whole answer comes within ten seconds.
    pub async fn get(&mut self, path_and_query: &str, headers: &[(&str, &str)]) -> Result<Answer> {
        self.ask("GET", path_and_query, headers, "").await
    }

    /// PUTs `body` to `path`.
    ///
    /// # Errors
    /// When no whole answer comes within ten seconds.
    pub async fn put(&mut self, path: &str, body: &str) -> Result<Answer> {
        self.ask("PUT", path, &[], body).await
    }

    /// POSTs `body`, which is JSON or nothing, with `headers` as name and value.
    ///
    /// # Errors
    /// When no whole answer comes within ten seconds.
    pub async fn post(
        &mut self,
        path_and_query: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer> {
        let json = [("Content-Type", "application/json")];
        let headers = [&json, headers].concat();
        self.ask("POST", path_and_query, &headers, body).await
    }

    async fn ask(
        &mut self,
        method: &str,
        path_and_query: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer> {
        let address = &self.address;
        let mut request = format!("{method} {path_and_query} HTTP/1.1\r\nHost: {address}\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        request.push_str(body);
        let asked = timeout(ANSWER_TIMEOUT, async {
            self.send(request.as_bytes()).await?;
            self.answer().await
        });
        asked
            .await
            .unwrap_or_else(|_| bail!("no answer in time"))
            .with_context(|| format!("{method} http://{}{path_and_query}", self.address))
    }

    /// Sends `bytes` as they are.
    ///
    /// # Errors
    /// When the server does not take them.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(in_time("sent", self.stream.write_all(bytes)).await??)
    }

    /// The next answer to a request that was not a HEAD.
    ///
    /// # Errors
    /// When none comes, or not a whole one, or one whose body is not text.
    pub async fn answer(&mut self) -> Result<Answer> {
        let answer = self.answer_to_head().await?;
        // These never have a body.
        if [204, 304].contains(&answer.status) {
            return Ok(answer);
        }
        let length: usize = answer
            .head
            .split("\r\n")
            .find_map(|line| line.strip_prefix("content-length:"))
            .with_context(|| format!("no length: {answer:?}"))?
            .trim()
            .parse()?;
        ensure!(length <= BODY_BYTES_MAX, "an answer of {length} bytes");
        while self.received.len() < length {
            ensure!(self.receive().await? > 0, "the connection ended in a body");
        }
        let body = String::from_utf8(self.received.drain(..length).collect())?;
        Ok(Answer { body, ..answer })
    }

    /// The next answer, which has no body.
    ///
    /// # Errors
    /// When none comes.
    pub async fn answer_to_head(&mut self) -> Result<Answer> {
        loop {
            let mut fours = self.received.windows(4);
            if let Some(end) = fours.position(|four| four == b"\r\n\r\n") {
                let head = self.received.drain(..end + 4).collect();
                let head = String::from_utf8(head)?.to_ascii_lowercase();
                let status = head
                    .strip_prefix("http/1.1 ")
                    .and_then(|rest| rest.get(..3)?.parse().ok())
                    .with_context(|| format!("not an HTTP answer: {head:?}"))?;
                return Ok(Answer {
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

    /// Waits until the server has ended the connection, after nothing more than was read.
    ///
    /// # Errors
    /// When something comes first, or it does not end.
    pub async fn wait_ended(&mut self) -> Result<()> {
        // A reset is an end, too.
        let read = self.stream.read_buf(&mut self.received);
        let more = in_time("the connection ends", read).await?.unwrap_or(0);
        ensure!(more == 0 && self.received.is_empty(), "there is more");
        Ok(())
    }

    /// Reads to the end of the connection, which may be a reset.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn rest(mut self) -> Result<String> {
        let reading =
            async { while self.stream.read_buf(&mut self.received).await.unwrap_or(0) > 0 {} };
        in_time("the connection ends", reading).await?;
        Ok(String::from_utf8_lossy(&self.received).into_owned())
    }

    async fn receive(&mut self) -> Result<usize> {
        let read = self.stream.read_buf(&mut self.received);
        Ok(in_time("something comes back", read).await??)
    }
}

async fn in_time<T>(what: &str, step: impl Future<Output = T>) -> Result<T> {
    let stepped = timeout(STEP_TIMEOUT, step).await;
    stepped.with_context(|| format!("{what}: not after {STEP_TIMEOUT:?}"))
}
