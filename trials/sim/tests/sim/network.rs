//! The simulated network for the programs: listeners, connections and name lookup. The [`trace`](crate::trace) includes the bytes of
//! gRPC and HTTP connections.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use runtime::{
    connect::{Network, NetworkFuture},
    listen::{ByteStream, Listener},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

use crate::{stall::Stall, trace};

/// Ports, the same on every host.
pub(crate) const HTTP: u16 = 8080;
pub(crate) const GRPC: u16 = 7676;
pub(crate) const ADMIN: u16 = 9090;
pub(crate) const API: u16 = 8081;

/// A listening port of the current host.
pub(crate) struct SimListener {
    listener: TcpListener,
    port: u16,
    stall: Arc<Stall>,
}

impl SimListener {
    pub(crate) async fn bind(port: u16, stall: &Arc<Stall>) -> io::Result<Self> {
        let listener = TcpListener::bind(("0.0.0.0", port)).await?;
        let stall = Arc::clone(stall);
        Ok(Self {
            listener,
            port,
            stall,
        })
    }
}

impl Listener for SimListener {
    type Stream = SimStream;

    async fn accept(&mut self) -> io::Result<(SimStream, SocketAddr)> {
        let (stream, peer) = self.listener.accept().await?;
        let stall = Arc::clone(&self.stall);
        Ok((SimStream::new(stream, self.port, stall), peer))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A simulated connection.
pub(crate) struct SimStream {
    stream: TcpStream,
    /// False for the admin port, whose metrics depend on the real machine.
    is_traced: bool,
    stall: Arc<Stall>,
}

impl SimStream {
    fn new(stream: TcpStream, port: u16, stall: Arc<Stall>) -> Self {
        Self {
            stream,
            is_traced: port != ADMIN,
            stall,
        }
    }

    pub(crate) async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        Ok(Self::new(stream, address.port(), Arc::default()))
    }
}

impl AsyncRead for SimStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.stall.poll(context));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if self.is_traced {
            trace::record("read", &buffer.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.stall.poll(context));
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Outgoing connections of simulated hosts.
#[derive(Debug)]
pub(crate) struct SimNetwork;

impl Network for SimNetwork {
    fn lookup<'a>(&'a self, host: &'a str, port: u16) -> NetworkFuture<'a, Vec<SocketAddr>> {
        let address = SocketAddr::new(turmoil::lookup(host), port);
        Box::pin(std::future::ready(Ok(vec![address])))
    }

    fn connect(&self, address: SocketAddr) -> NetworkFuture<'static, Box<dyn ByteStream>> {
        Box::pin(async move {
            let stream = SimStream::connect(address).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
