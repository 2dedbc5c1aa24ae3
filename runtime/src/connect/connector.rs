//! One connection to one address, with or without TLS, that records why it failed.
//!
//! An HTTP/2 error says little about the cause of a connection error. So this module records errors of the TLS library,
//! and detects by the first bytes that a plain connection reached a TLS port.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::{
    Request,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};

use super::{
    Network,
    credentials::{Security, server_name},
};
use crate::{listen::ByteStream, reload::Reloader, tls::client as tls, token};

/// First byte of a TLS alert. As the first byte of HTTP/2 it would start a frame of more than 1 MiB, before SETTINGS.
const TLS_ALERT: u8 = 0x15;

/// Connects to one address, for one stream.
#[derive(Debug)]
pub struct Connector {
    network: Arc<dyn Network>,
    address: SocketAddr,
    tls: Option<(Arc<tls::Trust>, ServerName<'static>)>,
    token: Option<Arc<Reloader<token::File>>>,
    failure: FailureReason,
}

impl Connector {
    /// A connector to `address` as `host`, with TLS if `https`. Uses the current certificates.
    ///
    /// # Errors
    /// A message for the operator, if `--tls-ca` is missing or the host is not a valid certificate name.
    pub fn new(
        network: &Arc<dyn Network>,
        address: SocketAddr,
        (host, https): (&str, bool),
        security: &Security,
    ) -> Result<Self, String> {
        let tls = match &security.tls {
            Some(files) if https => {
                let name = security.server_name.clone();
                let name = name.map_or_else(|| server_name(host), Ok)?;
                Some((files.current(), name))
            }
            None if https => return Err("https:// requires --tls-ca".to_owned()),
            _ => None,
        };
        Ok(Self {
            network: Arc::clone(network),
            address,
            tls,
            token: security.token.clone(),
            failure: FailureReason::default(),
        })
    }

    /// Connects for one stream. Ignores the host of `endpoint`.
    ///
    /// # Errors
    /// If the connection fails or times out.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, tonic::transport::Error> {
        let (network, address) = (Arc::clone(&self.network), self.address);
        let (tls, failure) = (self.tls.clone(), self.failure.clone());
        let connector = tower::service_fn(move |_| {
            let connecting = network.connect(address);
            let (tls, failure) = (tls.clone(), failure.clone());
            async move {
                open(connecting.await?, tls, failure)
                    .await
                    .map(TokioIo::new)
            }
        });
        // Boxed, because Rust 1.90 otherwise fails to prove that futures awaiting it are `Send`.
        let connecting: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(endpoint.connect_with_connector(connector));
        connecting.await
    }

    /// A request with the current token, if configured. An open connection outlives a rotation of the token.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(file) = &self.token {
            let value = format!("Bearer {}", file.current().first());
            let mut value = MetadataValue::try_from(value).expect("tokens are printable ASCII");
            value.set_sensitive(true);
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    /// Why the connection failed, if this is more specific than the error of the call.
    pub fn failure(&self) -> Option<&str> {
        self.failure.0.get().map(String::as_str)
    }
}

async fn open(
    stream: Box<dyn ByteStream>,
    tls: Option<(Arc<tls::Trust>, ServerName<'static>)>,
    failure: FailureReason,
) -> io::Result<RecordingStream> {
    let is_plain = tls.is_none();
    let stream: Box<dyn ByteStream> = match tls {
        None => stream,
        Some((trust, name)) => match trust.connect(name, stream).await {
            Ok(stream) => Box::new(stream),
            Err(error) => {
                failure.record(&error);
                if error.kind() == io::ErrorKind::UnexpectedEof {
                    failure.set("connection closed during the TLS handshake: the port does not use TLS, or has too many open connections");
                }
                return Err(error);
            }
        },
    };
    Ok(RecordingStream {
        stream,
        detects_alert: is_plain,
        failure,
    })
}

/// The first error of a connection, as a message.
#[derive(Debug, Clone, Default)]
struct FailureReason(Arc<OnceLock<String>>);

impl FailureReason {
    fn record(&self, error: &io::Error) {
        if let Some(reason) = tls::explain(error) {
            self.0.get_or_init(|| reason);
        }
    }

    fn set(&self, reason: &str) {
        self.0.get_or_init(|| reason.to_owned());
    }
}

/// A connection that records its errors.
///
/// The peer may have sent the reason before it closed the connection. So write errors are hidden: the reader then receives
/// this reason, followed by the end of the stream.
struct RecordingStream {
    stream: Box<dyn ByteStream>,
    /// True until the first bytes of a plain connection arrive.
    detects_alert: bool,
    failure: FailureReason,
}

impl RecordingStream {
    fn written<T>(&self, result: io::Result<T>, done: T) -> Poll<io::Result<T>> {
        Poll::Ready(Ok(result.unwrap_or_else(|error| {
            self.failure.record(&error);
            done
        })))
    }
}

impl AsyncRead for RecordingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if let Err(error) = &result {
            self.failure.record(error);
        }
        if self.detects_alert
            && let Some(first) = buffer.filled().get(before)
        {
            self.detects_alert = false;
            if *first == TLS_ALERT {
                let reason = "the port requires TLS: use https:// instead of http://";
                self.failure.set(reason);
            }
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for RecordingStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        self.written(result, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices));
        self.written(result, slices.iter().map(|slice| slice.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_flush(context));
        self.written(result, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
