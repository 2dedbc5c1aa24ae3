//! The accept loop of every port. It bounds the number of connections, and drains them at shutdown.
//!
//! A connection is closed if its client sends request headers too slowly, is idle for too long, or does not read its
//! responses. These checks cost two relaxed atomic stores per request, and one coarse timer per connection. A timeout of
//! `n` seconds fires after `n` to `1.5 n` seconds.

mod activity;
pub mod addresses;
mod limits;
pub mod proxy;
mod stream;

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use metric_defs::MetricDef;
use prometheus::{IntCounter, IntCounterVec, IntGauge};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::metrics::Registry;
use activity::CloseReason;
pub use activity::{Activity, InProgress};
use addresses::{AddressPermit, Addresses};
pub use limits::Limits;
pub use proxy::Proxies;
pub use stream::WatchedStream;

/// Pause of the accept loop after an error, which is usually the open-file limit.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A source of connections: a TCP port, or a port of a simulated network.
pub trait Listener: Send + 'static {
    /// The connection type.
    type Stream: ByteStream;

    /// Waits for the next connection. Cancel safe.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// The listening address.
    ///
    /// # Errors
    /// If the system call fails.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, address) = TcpListener::accept(self).await?;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "failed to set TCP_NODELAY; connection already closed");
        }
        Ok((stream, address))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        TcpListener::local_addr(self)
    }
}

/// A bidirectional byte stream.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for T {}

/// The tasks of a port, and how to stop them.
#[derive(Debug, Clone, Default)]
pub struct Stage {
    /// All tasks of the port, including its connections.
    pub tasks: TaskTracker,
    /// Requests a graceful stop.
    pub stop: CancellationToken,
    close: CancellationToken,
}

impl Stage {
    /// A stage whose task tracker other stages may share.
    pub fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            tasks,
            stop,
            close: CancellationToken::new(),
        }
    }

    /// Stops all tasks and waits for them. Closes connections that are still open at `deadline`.
    ///
    /// Returns whether all tasks stopped before it.
    pub async fn drain(&self, deadline: Instant) -> bool {
        self.stop.cancel();
        self.tasks.close();
        if timeout_at(deadline, self.tasks.wait()).await.is_ok() {
            return true;
        }
        self.close.cancel();
        self.tasks.wait().await;
        false
    }
}

/// Divisor of the idle timeout while more than 80% of the connections are in use. The quotient has a minimum.
const SHORT_IDLE_DIVISOR: u32 = 16;
const SHORT_IDLE_MIN: Duration = Duration::from_secs(1);

/// Metrics of a port.
#[derive(Debug, Clone)]
pub struct Metrics {
    connections: IntGauge,
    accepted: IntCounter,
    closed: IntCounterVec,
}

impl Metrics {
    /// Registers `<process>_<port>_connections` and `<process>_<port>_connections_{accepted,closed}_total`.
    ///
    /// # Errors
    /// If a name is already registered.
    pub fn register(registry: &Registry, process: &str, port: &str) -> prometheus::Result<Self> {
        let of_port = |metric: MetricDef| metric.of(&format!("{process}_{port}"));
        let open = MetricDef::gauge("connections", "Open connections. The name states the port.");
        let accepted = MetricDef::counter(
            "connections_accepted_total",
            "Connections accepted. The name states the port.",
        );
        let closed = MetricDef::counter(
            "connections_closed_total",
            "Connections closed by this process, by reason. The name states the port.",
        );
        let metrics = Self {
            connections: registry.add(of_port(open))?,
            accepted: registry.add(of_port(accepted))?,
            closed: registry.add(of_port(closed.by(&["reason"])))?,
        };
        for reason in CloseReason::ALL {
            metrics.closed.with_label_values(&[reason.label()]);
        }
        Ok(metrics)
    }

    fn count_closed(&self, reason: CloseReason) {
        self.closed.with_label_values(&[reason.label()]).inc();
    }
}

/// Binds a listener with a backlog large enough for a burst of new connections.
///
/// # Errors
/// An error that names the address and the flag to change it.
pub fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let listen = || -> io::Result<TcpListener> {
        let listener = std::net::TcpListener::bind(address)?;
        // Calling `listen` again replaces the standard library's backlog of 128.
        rustix::net::listen(&listener, 4096)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    listen().map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            anyhow::anyhow!(
                "{address} is in use by another process; choose another address with {flag}"
            )
        }
        _ => anyhow::anyhow!(
            "failed to listen on {address} ({error}); choose another address with {flag}"
        ),
    })
}

/// Accepts connections until the stage stops, and runs `serve` for each in a task of the stage.
///
/// `serve` receives the stream and the connection's [`Activity`]. It must report each request to the [`Activity`], and close the
/// connection gracefully when the stage stops. Its future is dropped when a limit is exceeded. A connection from one of the
/// `proxies` must begin with a PROXY header. The header is read before `serve` runs, and names the client's address.
///
/// `limits` may change. Connection limits apply only to new connections. Timeouts apply from the next check of a
/// connection: after half the shortest previous timeout, at most five seconds.
pub async fn accept<L, S, F>(
    mut listener: L,
    proxies: Proxies,
    limits: watch::Receiver<Limits>,
    metrics: Metrics,
    stage: Stage,
    serve: S,
) where
    L: Listener,
    S: Fn(WatchedStream<L::Stream>, Arc<Activity>) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let port = Arc::new(Port {
        proxies,
        limits,
        metrics,
        addresses: Addresses::default(),
        close: stage.close.clone(),
        serve,
    });
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            () = stage.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "failed to accept connections, retrying");
                    failing = true;
                }
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if failing {
            tracing::info!("accepting connections again");
            failing = false;
        }
        let permit = match port.admit(peer) {
            Ok(permit) => permit,
            Err(reason) => {
                port.metrics.count_closed(reason);
                continue;
            }
        };
        let stream = WatchedStream {
            stream,
            peer,
            activity: Arc::default(),
        };
        stage.tasks.spawn(Arc::clone(&port).run(stream, permit));
    }
}

/// State shared by the connections of a port.
struct Port<S> {
    proxies: Proxies,
    limits: watch::Receiver<Limits>,
    metrics: Metrics,
    addresses: Addresses,
    close: CancellationToken,
    serve: S,
}

impl<S> Port<S> {
    /// Admits a connection, unless it exceeds a limit. The limit per address applies to a client, not to its load balancer.
    fn admit(&self, peer: IpAddr) -> Result<ConnectionPermit, CloseReason> {
        if self.open() >= self.limits.borrow().connections_max {
            return Err(CloseReason::TooMany);
        }
        let is_client = !self.proxies.contains(peer);
        let address = is_client.then(|| self.admit_client(peer)).transpose()?;
        self.metrics.accepted.inc();
        Ok(ConnectionPermit::new(
            self.metrics.connections.clone(),
            address,
        ))
    }

    fn admit_client(&self, client: IpAddr) -> Result<AddressPermit, CloseReason> {
        let each_max = self.limits.borrow().connections_per_address_max;
        let permit = self
            .addresses
            .acquire(each_max.unwrap_or(usize::MAX), client);
        permit.ok_or(CloseReason::TooManyPerAddress)
    }

    fn open(&self) -> usize {
        usize::try_from(self.metrics.connections.get()).unwrap_or(0)
    }

    async fn run<B, F>(self: Arc<Self>, stream: WatchedStream<B>, mut permit: ConnectionPermit)
    where
        B: ByteStream,
        S: Fn(WatchedStream<B>, Arc<Activity>) -> F,
        F: Future<Output = ()>,
    {
        let activity = Arc::clone(&stream.activity);
        let current = || with_open(*self.limits.borrow(), self.open());
        let closed = tokio::select! {
            biased;
            closed = self.serve(stream, &mut permit) => closed,
            reason = activity.watch(current) => Err(reason),
            () = self.close.cancelled() => Err(CloseReason::Drained),
        };
        if let Err(reason) = closed {
            self.metrics.count_closed(reason);
        }
    }

    async fn serve<B, F>(
        &self,
        mut stream: WatchedStream<B>,
        permit: &mut ConnectionPermit,
    ) -> Result<(), CloseReason>
    where
        B: ByteStream,
        S: Fn(WatchedStream<B>, Arc<Activity>) -> F,
        F: Future<Output = ()>,
    {
        let activity = Arc::clone(&stream.activity);
        if permit.address.is_none() {
            let receiving = timeout(proxy::HEADER_TIMEOUT, proxy::receive(&mut stream));
            // Boxed, so that other connections reserve no memory for this future.
            match Box::pin(receiving).await {
                Ok(Ok(client)) => stream.peer = client.unwrap_or(stream.peer),
                // The client sent nothing, for instance a health check.
                Ok(Err(_)) if activity.bytes_read.load(Ordering::Relaxed) == 0 => return Ok(()),
                Ok(Err(_)) => return Err(CloseReason::InvalidProxyHeader),
                Err(_) => return Err(CloseReason::SlowRequest),
            }
            activity.request();
            permit.address = Some(self.admit_client(stream.peer)?);
        }
        (self.serve)(stream, activity).await;
        Ok(())
    }
}

/// Counts a connection as open until it is dropped. Only the accept loop creates permits, so it can rely on the gauge.
struct ConnectionPermit {
    open: IntGauge,
    /// `None` until the address of the client is known.
    address: Option<AddressPermit>,
}

impl ConnectionPermit {
    fn new(open: IntGauge, address: Option<AddressPermit>) -> Self {
        open.inc();
        Self { open, address }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// The limits while `open` connections are open: a nearly full port shortens the idle timeout.
fn with_open(mut limits: Limits, open: usize) -> Limits {
    if open.saturating_mul(5) > limits.connections_max.saturating_mul(4) {
        let short = (limits.idle_timeout / SHORT_IDLE_DIVISOR).max(SHORT_IDLE_MIN);
        limits.idle_timeout = limits.idle_timeout.min(short);
    }
    limits
}

#[cfg(test)]
mod tests;
