//! One request for the feed: HTTP/1.0, so that an answer ends with its connection, and bounded in bytes and time.

use std::time::Duration;

use http::Uri;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{timeout, timeout_at},
};

/// Most bytes of an answer: its limits have 2 MiB at most.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// How long a connection may take, and the answer beyond the time for which it is held.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Most headers of an answer.
const HEADERS_MAX: usize = 64;

/// Where the feed is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    host: String,
    port: u16,
}

/// A version, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Newest {
    pub(super) etag: Option<String>,
    pub(super) body: Vec<u8>,
}

impl std::fmt::Display for Url {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "http://{}:{}", self.host, self.port)
    }
}

impl Url {
    /// Reads the URL of a limiter: a host, and a port unless it is 9099.
    ///
    /// # Errors
    /// When it is anything else.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not the URL of a limiter, as in http://10.0.0.7:9099");
        let uri: Uri = text.trim().parse().map_err(|_| wrong())?;
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(wrong)?;
        let is_alone = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let has_user = uri.authority().is_some_and(|it| it.as_str().contains('@'));
        if uri.scheme_str() != Some("http") || !is_alone || has_user {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(9099),
        })
    }

    /// The host without its brackets.
    pub(crate) fn host(&self) -> &str {
        self.host.trim_matches(['[', ']'])
    }

    /// The newest version, if it is not the one that is `known`: then held for as long as `wait`.
    ///
    /// # Errors
    /// In words, when there is no answer that can be read.
    pub(super) async fn ask(
        &self,
        token: Option<&str>,
        known: Option<&str>,
        wait: Duration,
    ) -> Result<Option<Newest>, String> {
        let connecting = TcpStream::connect((self.host(), self.port));
        let connected = timeout(TIMEOUT, connecting).await;
        let mut stream = connected
            .map_err(|_| "no connection in time".to_owned())?
            .map_err(|error| error.to_string())?;
        let mut request = format!(
            "GET /v1/feed?wait={} HTTP/1.0\r\nHost: {}:{}\r\nAccept: application/json\r\n",
            wait.as_secs(),
            self.host,
            self.port
        );
        if let Some(token) = token {
            request.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if let Some(known) = known {
            request.push_str(&format!("If-None-Match: {known}\r\n"));
        }
        request.push_str("\r\n");
        let end = tokio::time::Instant::now() + wait + TIMEOUT;
        let asked = timeout_at(end, async {
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            let mut read = (&mut stream).take(ANSWER_BYTES_MAX + 1);
            read.read_to_end(&mut answer).await?;
            std::io::Result::Ok(answer)
        });
        let answer = asked
            .await
            .map_err(|_| "no answer in time".to_owned())?
            .map_err(|error| error.to_string())?;
        if answer.len() as u64 > ANSWER_BYTES_MAX {
            return Err("the answer is larger than 4 MiB".to_owned());
        }
        read(&answer)
    }
}

/// Reads a whole answer.
fn read(answer: &[u8]) -> Result<Option<Newest>, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let parsed = head.parse(answer);
    let Ok(httparse::Status::Complete(length)) = parsed else {
        return Err("the answer is not HTTP, or cut off".to_owned());
    };
    let body = &answer[length..];
    let header = |name: &str| {
        let mut all = head.headers.iter();
        let found = all.find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok().map(str::trim)
    };
    match head.code {
        Some(304) => Ok(None),
        Some(200) => {
            if header("transfer-encoding").is_some() {
                return Err("the answer is sent in chunks, which HTTP/1.0 does not know".to_owned());
            }
            let length = header("content-length").and_then(|length| length.parse().ok());
            let length: usize = length.ok_or("the answer has no length")?;
            if length != body.len() {
                return Err("the answer is cut off".to_owned());
            }
            Ok(Some(Newest {
                etag: header("etag").map(ToOwned::to_owned),
                body: body.to_vec(),
            }))
        }
        Some(401) => Err("the token is not taken (401)".to_owned()),
        Some(403) => Err("the token has no right to the feed (403)".to_owned()),
        Some(code) => Err(format!("the answer has status {code}")),
        None => Err("the answer has no status".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_a_host_and_a_port() {
        for (text, host, port) in [
            ("http://limiter", "limiter", 9099),
            ("http://10.0.0.7:80/", "10.0.0.7", 80),
            ("http://[::1]:9099", "::1", 9099),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.host(), url.port), (host, port));
        }
        for wrong in [
            "limits.toml",
            "https://limiter",
            "http://limiter/v1/feed",
            "http://me:secret@limiter",
            "http://",
        ] {
            assert!(Url::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn answer_is_whole_or_refused() {
        let whole = b"HTTP/1.0 200 OK\r\nETag: \"a\"\r\nContent-Length: 2\r\n\r\n{}";
        let newest = read(whole).unwrap().unwrap();
        assert_eq!(
            (newest.etag.as_deref(), &*newest.body),
            (Some("\"a\""), &b"{}"[..])
        );
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length}");
        }
        assert_eq!(read(b"HTTP/1.0 304 Not Modified\r\n\r\n"), Ok(None));
        for wrong in [
            &b"HTTP/1.1 403 Forbidden\r\n\r\n"[..],
            b"HTTP/1.1 500 Oh\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"SSH-2.0\r\n",
        ] {
            assert!(read(wrong).is_err());
        }
    }
}
