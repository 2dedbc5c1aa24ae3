//! Queries the readiness of a running process, for containers without an HTTP client.

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

/// The setting with the address of the admin port.
pub(super) const ADDRESS: &str = "admin";

/// Maximum time of a probe.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum size of a response body.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Queries `/readyz` at `address`, an admin port. Returns the response body.
///
/// # Errors
/// The reason, if the process is not ready or does not respond.
pub fn run(address: &str) -> Result<String, String> {
    let address: SocketAddr = address
        .parse()
        .map_err(|_| format!("--admin: {address:?} is not an IP address with a port"))?;
    if address.port() == 0 {
        return Err("--admin: cannot probe port 0, because it is not a fixed port".to_owned());
    }
    let address = reachable(address);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let response = runtime.block_on(async { timeout(TIMEOUT, request(address)).await });
    let (status, body) = response
        .map_err(|_| format!("{address}: no response within {TIMEOUT:?}"))?
        .map_err(|error| format!("{address}: {error}"))?;
    let body = String::from_utf8_lossy(&body).trim().to_owned();
    if status == StatusCode::OK {
        Ok(body)
    } else {
        Err(format!("{address}: {status}: {body}"))
    }
}

/// The loopback address for a port that listens on all interfaces.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

async fn request(address: SocketAddr) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // An error of the connection also fails the request.
    let mut connecting = JoinSet::new();
    connecting.spawn(connection);
    let request = Request::get("/readyz")
        .header(header::HOST, address.to_string())
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX);
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

    /// The result of probing a port that responds with `bytes` to the first request and closes.
    fn probe(bytes: &'static [u8]) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).unwrap();
            assert!(request[..read].starts_with(b"GET /readyz HTTP/1.1\r\n"));
            stream.write_all(bytes).unwrap();
        });
        let result = run(&address);
        server.join().unwrap();
        result
    }

    #[test]
    fn probe_returns_readiness_or_its_reason() {
        let ready = probe(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nready\n");
        assert_eq!(ready, Ok("ready".to_owned()));
        let reason =
            probe(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\ndraining\n");
        let reason = reason.unwrap_err();
        assert!(
            reason.contains("503") && reason.contains("draining"),
            "{reason}"
        );
    }

    #[test]
    fn invalid_or_missing_response_is_not_ready() {
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
    fn unspecified_address_is_probed_on_loopback() {
        for (listening, probed) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("192.0.2.1:9090", "192.0.2.1:9090"),
        ] {
            assert_eq!(
                reachable(listening.parse().unwrap()),
                probed.parse().unwrap()
            );
        }
    }
}
