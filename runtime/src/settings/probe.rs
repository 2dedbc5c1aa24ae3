//! Asks a running process whether it is ready, for containers that have no program to ask with.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, runtime::Builder, task::JoinSet, time::timeout};

/// The setting that says where the process answers.
pub(super) const ADDRESS: &str = "admin";

/// Longest time of a whole probe.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Asks the process whose admin port is at `address` whether it is ready; both answers are in words.
///
/// # Errors
/// Why it is not ready, or does not say so.
pub fn run(address: &str) -> Result<String, String> {
    let address: SocketAddr = address
        .parse()
        .map_err(|_| format!("--admin: {address:?} is not an IP address with a port"))?;
    if address.port() == 0 {
        return Err("--admin: port 0 is another one each time, so it cannot be asked".to_owned());
    }
    let address = reachable(address);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let asked = runtime.block_on(async { timeout(TIMEOUT, ask(address)).await });
    let (status, body) = asked
        .map_err(|_| format!("{address} does not answer within {TIMEOUT:?}"))?
        .map_err(|why| format!("{address}: {why}"))?;
    let body = String::from_utf8_lossy(&body).trim().to_owned();
    if status == StatusCode::OK {
        Ok(body)
    } else {
        Err(format!("{address}: {status}: {body}"))
    }
}

/// Where a port that listens everywhere is reached from this machine.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

async fn ask(address: SocketAddr) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The answer, or its absence, says what the connection would.
    let mut connecting = JoinSet::new();
    connecting.spawn(connection);
    let request = Request::get("/readyz")
        .header(header::HOST, address.to_string())
        .body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
    let body = body.collect().await.map_err(anyhow::Error::from_boxed)?;
    Ok((status, body.to_bytes()))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// The result of a probe of a port that answers `bytes` to the first request, and closes.
    fn probe(bytes: &'static [u8]) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).unwrap();
            assert!(request[..read].starts_with(b"GET /readyz HTTP/1.1\r\n"));
            stream.write_all(bytes).unwrap();
        });
        let said = run(&address);
        answering.join().unwrap();
        said
    }

    #[test]
    fn ready_is_said_and_so_is_why_not() {
        let ready = probe(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nready\n");
        assert_eq!(ready, Ok("ready".to_owned()));
        let why = probe(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\ndraining\n");
        let why = why.unwrap_err();
        assert!(why.contains("503") && why.contains("draining"), "{why}");
    }

    #[test]
    fn port_that_says_nothing_or_something_else_is_not_ready() {
        assert!(probe(b"").is_err());
        assert!(probe(b"SSH-2.0-OpenSSH_9.6\r\n").is_err());
        assert!(probe(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nready\n").is_err());
        let closed = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        assert!(run(&closed.to_string()).is_err());
        assert!(run("localhost:1").unwrap_err().contains("--admin"));
        assert!(run("127.0.0.1:0").unwrap_err().contains("port 0"));
    }

    #[test]
    fn port_that_listens_everywhere_is_asked_on_this_machine() {
        for (listens, asked) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("192.0.2.1:9090", "192.0.2.1:9090"),
        ] {
            assert_eq!(reachable(listens.parse().unwrap()), asked.parse().unwrap());
        }
    }
}
