//! How a reader reaches a producer: over which network, with which credentials, and what went wrong in words.

mod connector;
pub mod credentials;

use std::{fmt, future::Future, io, net::SocketAddr, pin::Pin};

use tokio::net::{TcpStream, lookup_host};

use crate::listen::ByteStream;

pub use connector::Connector;

/// What a [`Network`] answers, in time.
pub type NetworkFuture<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// The way to producers: TCP and the system's name service, or a simulated network.
pub trait Network: fmt::Debug + Send + Sync + 'static {
    /// All addresses of a host name, or the address that `host` is.
    fn lookup<'a>(&'a self, host: &'a str, port: u16) -> NetworkFuture<'a, Vec<SocketAddr>>;

    /// Opens a connection.
    fn connect(&self, address: SocketAddr) -> NetworkFuture<'static, Box<dyn ByteStream>>;
}

/// This machine's network.
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
