//! An HTTP/1.1 client that sends any bytes, well-formed or not, and reads what comes back.

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::harness::in_time;

/// A connection to an HTTP server.
pub(crate) struct HttpConnection {
    stream: TcpStream,
    received: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct RawAnswer {
    pub(crate) status: u16,
    /// The status line and the headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl RawAnswer {
    /// Whether the server says that it closes the connection.
    pub(crate) fn closes(&self) -> bool {
        self.head.contains("\r\nconnection: close\r\n")
    }
}

impl HttpConnection {
    pub(crate) async fn open(address: &str) -> Result<Self> {
        let stream = in_time("connected", TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            received: Vec::new(),
        })
    }

    /// Like [`open`](Self::open), with hardly any room for what the server sends.
    pub(crate) async fn open_narrow(address: &str) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let stream = in_time("connected", socket.connect(address.parse()?)).await??;
        Ok(Self {
            stream,
            received: Vec::new(),
        })
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        in_time("sent", self.stream.write_all(bytes)).await??;
        Ok(())
    }

    /// Sends `bytes` over and over, reading nothing, until the server ends the connection.
    pub(crate) async fn send_until_cut(&mut self, bytes: &[u8]) -> Result<()> {
        let sending = async { while self.stream.write_all(bytes).await.is_ok() {} };
        in_time("the connection is cut", sending).await
    }

    /// The next answer to a request that was no HEAD.
    pub(crate) async fn answer(&mut self) -> Result<RawAnswer> {
        let mut answer = self.answer_to_head().await?;
        let length = answer
            .head
            .split("\r\n")
            .find_map(|line| line.strip_prefix("content-length: "))
            .with_context(|| format!("no length: {answer:?}"))?
            .parse()?;
        while self.received.len() < length {
            ensure!(self.receive().await? > 0, "the connection ended in a body");
        }
        let body = self.received.drain(..length).collect();
        answer.body = String::from_utf8(body)?;
        Ok(answer)
    }

    /// The next answer, which has no body.
    pub(crate) async fn answer_to_head(&mut self) -> Result<RawAnswer> {
        loop {
            let end = self
                .received
                .windows(4)
                .position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                let head = self.received.drain(..end + 4).collect();
                let head = String::from_utf8(head)?.to_ascii_lowercase();
                let status = head
                    .strip_prefix("http/1.1 ")
                    .and_then(|rest| rest.get(..3)?.parse().ok())
                    .with_context(|| format!("no HTTP answer: {head:?}"))?;
                return Ok(RawAnswer {
                    status,
                    head,
                    body: String::new(),
                });
            }
            if self.receive().await? == 0 {
                bail!("the connection ended instead of an answer");
            }
        }
    }

    /// The data of the next server-sent event of the answer whose head was read last; `None` when there is no more.
    pub(crate) async fn event(&mut self) -> Result<Option<String>> {
        loop {
            let text = String::from_utf8_lossy(&self.received);
            let event = text.split_once("\n\n").map(|(event, _)| event.to_owned());
            if let Some(event) = event {
                let (_, data) = event
                    .split_once("data: ")
                    .context("an event without data")?;
                let end = self.received.windows(2).position(|two| two == b"\n\n");
                self.received.drain(..end.context("it was there")? + 2);
                return Ok(Some(data.to_owned()));
            }
            // The end of a body that was sent in chunks.
            if text.ends_with("\r\n0\r\n\r\n") {
                return Ok(None);
            }
            ensure!(self.receive().await? > 0, "the stream broke off");
        }
    }

    /// Waits until the server has ended the connection, after nothing more than was read.
    pub(crate) async fn wait_ended(&mut self) -> Result<()> {
        // A reset is an end, too.
        let more = self.receive().await.unwrap_or(0);
        ensure!(more == 0 && self.received.is_empty(), "there is more");
        Ok(())
    }

    /// Reads to the end of the connection.
    pub(crate) async fn rest(mut self) -> Result<String> {
        while self.receive().await.unwrap_or(0) > 0 {}
        Ok(String::from_utf8_lossy(&self.received).into_owned())
    }

    async fn receive(&mut self) -> Result<usize> {
        let read = self.stream.read_buf(&mut self.received);
        Ok(in_time("something comes back", read).await??)
    }
}
