//! One connection to one address: over any network, with TLS or without, and what went wrong on it in words.
//!
//! HTTP/2 on top of a connection reports little of what ended it. So what the TLS library says is kept here beside
//! the error, as is what only the first bytes tell: that a plain connection met a port that speaks TLS.

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
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use super::{
    Network,
    credentials::{Security, server_name},
};
use crate::{listen::ByteStream, tls::client as tls};

/// First byte of a TLS alert. As the first of an HTTP/2 frame it would announce one of more than a megabyte,
/// before settings.
const TLS_ALERT: u8 = 0x15;

/// Connects to one address, for one stream.
#[derive(Debug)]
pub struct Connector {
    network: Arc<dyn Network>,
    address: SocketAddr,
    tls: Option<(Arc<tls::Trust>, ServerName<'static>)>,
    token: Option<MetadataValue<Ascii>>,
    trouble: Trouble,
}

impl Connector {
    /// One to `address` as `host`, by TLS if `https`, with the files that are good now.
    ///
    /// # Errors
    /// In words, when there are no authorities for TLS, or the host is not a name a certificate could have.
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
            None if https => return Err("https:// needs --tls-ca".to_owned()),
            _ => None,
        };
        let token = security.token.as_ref().map(|file| {
            let value = format!("Bearer {}", file.current().first());
            let mut value = MetadataValue::try_from(value).expect("tokens are printable ASCII");
            value.set_sensitive(true);
            value
        });
        Ok(Self {
            network: Arc::clone(network),
            address,
            tls,
            token,
            trouble: Trouble::default(),
        })
    }

    /// Connects for one stream, whatever host `endpoint` names.
    ///
    /// # Errors
    /// When that cannot be done in time.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, tonic::transport::Error> {
        let (network, address) = (Arc::clone(&self.network), self.address);
        let (tls, trouble) = (self.tls.clone(), self.trouble.clone());
        let connector = tower::service_fn(move |_| {
            let connecting = network.connect(address);
            let (tls, trouble) = (tls.clone(), trouble.clone());
            async move {
                open(connecting.await?, tls, trouble)
                    .await
                    .map(TokioIo::new)
            }
        });
        // Boxed: Rust 1.90 does not see otherwise that futures which await this one are `Send`.
        let connecting: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(endpoint.connect_with_connector(connector));
        connecting.await
    }

    /// A request with the token, if there is one.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            let metadata = request.metadata_mut();
            metadata.insert("authorization", token.clone());
        }
        request
    }

    /// What went wrong with the connection, as far as it is known better than by the error of a call.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.0.get().map(String::as_str)
    }
}

async fn open(
    stream: Box<dyn ByteStream>,
    tls: Option<(Arc<tls::Trust>, ServerName<'static>)>,
    trouble: Trouble,
) -> io::Result<Watched> {
    let is_plain = tls.is_none();
    let stream: Box<dyn ByteStream> = match tls {
        None => stream,
        Some((trust, name)) => match trust.shake(name, stream).await {
            Ok(stream) => Box::new(stream),
            Err(error) => {
                trouble.note(&error);
                if error.kind() == io::ErrorKind::UnexpectedEof {
                    trouble.say("the connection was closed during the TLS handshake: no TLS at this port, or too many");
                }
                return Err(error);
            }
        },
    };
    Ok(Watched {
        stream,
        look_for_alert: is_plain,
        trouble,
    })
}

/// The first thing that went wrong, in words.
#[derive(Debug, Clone, Default)]
struct Trouble(Arc<OnceLock<String>>);

impl Trouble {
    fn note(&self, error: &io::Error) {
        if let Some(why) = tls::explain(error) {
            self.0.get_or_init(|| why);
        }
    }

    fn say(&self, why: &str) {
        self.0.get_or_init(|| why.to_owned());
    }
}

/// A connection whose troubles are noted.
///
/// The other side may have said why it closed the connection while we were writing. So an error of a write is left to the reader, who
/// gets what was said, and then the end of the connection.
struct Watched {
    stream: Box<dyn ByteStream>,
    /// Until the first bytes of a plain connection came.
    look_for_alert: bool,
    trouble: Trouble,
}

impl Watched {
    fn written<T>(&self, result: io::Result<T>, done: T) -> Poll<io::Result<T>> {
        Poll::Ready(Ok(result.unwrap_or_else(|error| {
            self.trouble.note(&error);
            done
        })))
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if let Err(error) = &result {
            self.trouble.note(error);
        }
        if self.look_for_alert
            && let Some(first) = buffer.filled().get(before)
        {
            self.look_for_alert = false;
            if *first == TLS_ALERT {
                let why = "TLS is spoken at this port: https:// instead of http://";
                self.trouble.say(why);
            }
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Watched {
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
