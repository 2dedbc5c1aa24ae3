//! The TLS handshake with the server.

use std::{io, sync::Arc, time::Duration};

use runtime::{
    reload::Reloader,
    tls::client::{Files, Trust},
};
use rustls::{Error, pki_types::ServerName};
use tokio::{net::TcpStream, task::spawn_blocking, time::timeout};
use tokio_rustls::client::TlsStream;

/// Reads the files.
pub(super) fn load(files: &Files) -> Result<Arc<Trust>, String> {
    let files = Reloader::load(files.clone());
    let files = files.map_err(|errors| errors.join("; "))?;
    Ok(files.current())
}

/// Performs the handshake within `within`. The server's certificate must be valid for `host`.
pub(super) async fn handshake(
    files: &Files,
    host: &str,
    stream: TcpStream,
    within: Duration,
) -> Result<TlsStream<TcpStream>, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let files = files.clone();
    let trust = spawn_blocking(move || load(&files)).await;
    let trust = trust.map_err(|panic| panic.to_string())??;
    match timeout(within, trust.connect_without_alpn(name, stream)).await {
        Ok(stream) => stream.map_err(|error| explain(&error)),
        // A server without TLS parses the handshake as a command and waits for its end.
        Err(_) => Err(format!(
            "no response to the handshake within {within:?}: check that the port uses TLS"
        )),
    }
}

/// Explains a handshake error to the operator.
fn explain(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|it| it.downcast_ref::<Error>());
    match tls {
        Some(Error::InvalidMessage(_)) => {
            "the port does not use TLS: use redis:// instead of rediss://".to_owned()
        }
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "connection closed during the handshake: the port does not use TLS, or the server has reached its maxclients"
                .to_owned()
        }
        _ => error.to_string(),
    }
}
