//! Connections from a client to a producer: network, credentials, and error messages for the operator.

mod connector;
pub mod credentials;

use std::{fmt, future::Future, io, net::SocketAddr, pin::Pin};

use tokio::net::{TcpStream, lookup_host};

use crate::listen::ByteStream;

pub use connector::Connector;

/// Maximum length of the text of an [`ArchiveError`], which may contain text of a server.
const ERROR_CHARS_MAX: usize = 500;

/// Why an archive cannot be read or written. The text is shortened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// It does not respond. A message that was sent may be stored.
    #[error("{0:.ERROR_CHARS_MAX$}")]
    Unavailable(String),
    /// Somebody must change a setting.
    #[error("{0:.ERROR_CHARS_MAX$}")]
    Refused(String),
}

/// The future of a [`Network`] operation.
pub type NetworkFuture<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// The network to the producers: TCP with the system's resolver, or a simulation.
pub trait Network: fmt::Debug + Send + Sync + 'static {
    /// Resolves a host name, or parses `host` as an address.
    fn lookup<'a>(&'a self, host: &'a str, port: u16) -> NetworkFuture<'a, Vec<SocketAddr>>;

    /// Opens a connection.
    fn connect(&self, address: SocketAddr) -> NetworkFuture<'static, Box<dyn ByteStream>>;
}

/// The network of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Network for Tcp {
    fn lookup<'a>(&'a self, host: &'a str, port: u16) -> NetworkFuture<'a, Vec<SocketAddr>> {
        Box::pin(async move { Ok(lookup_host((host, port)).await?.collect()) })
    }

    fn connect(&self, address: SocketAddr) -> NetworkFuture<'static, Box<dyn ByteStream>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
