//! A client for tests of the sync port over TLS.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustls::{
    ALL_VERSIONS, ClientConfig, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::harness::{sync_request, within_timeout};

pub(crate) struct HttpsClient(TlsStream<TcpStream>);

impl HttpsClient {
    /// Connects to a server with a certificate of the authority in the file `authority`.
    pub(crate) async fn connect(address: &str, authority: &str) -> Result<Self> {
        Self::connect_with(address, authority, ALL_VERSIONS, "http/1.1").await
    }

    /// Like [`connect`](Self::connect), with these versions of TLS and this application protocol.
    pub(crate) async fn connect_with(
        address: &str,
        authority: &str,
        versions: &[&'static SupportedProtocolVersion],
        protocol: &str,
    ) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority)?)?;
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.into()];
        let name = ServerName::try_from("127.0.0.1")?;
        let connection = TcpStream::connect(address).await?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, connection);
        let stream = within_timeout("the TLS handshake", connecting).await??;
        ensure!(stream.get_ref().1.alpn_protocol() == Some(protocol.as_bytes()));
        Ok(Self(stream))
    }

    /// Sends syncs of these users in one write. All must be accepted.
    pub(crate) async fn sync(&mut self, user_ids: &[&str]) -> Result<()> {
        let requests = user_ids
            .iter()
            .map(|user_id| sync_request(user_id, 17, "a-1"));
        self.0
            .write_all(requests.collect::<String>().as_bytes())
            .await?;
        let mut text = String::new();
        while text.matches("\r\n\r\n").count() < user_ids.len() {
            let mut bytes = [0; 4096];
            let reading = self.0.read(&mut bytes);
            let read = within_timeout("a response", reading).await??;
            ensure!(read > 0, "closed after {text:?}");
            text.push_str(str::from_utf8(&bytes[..read])?);
        }
        ensure!(
            text.matches("HTTP/1.1 200 OK\r\n").count() == user_ids.len(),
            "{text}"
        );
        Ok(())
    }

    /// Sends a last request, and checks that the server ends the TLS connection after its response.
    pub(crate) async fn close(mut self) -> Result<()> {
        let request = "GET /none HTTP/1.1\r\nConnection: close\r\n\r\n";
        self.0.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        let reading = self.0.read_to_string(&mut text);
        within_timeout("the end", reading)
            .await?
            .context("no close_notify")?;
        ensure!(text.starts_with("HTTP/1.1 404"), "{text}");
        Ok(())
    }
}
