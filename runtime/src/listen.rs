//! The accept loop of every port: a bounded number of connections, each watched, all drained together.
//!
//! A connection is cut off when its client takes too long to finish a request head, leaves it idle for too
//! long, or does not read what was written to it. The watching costs a request two relaxed atomic stores and
//! no timer of its own: one coarse timer a connection compares counters, so a limit of `n` seconds acts
//! between `n` and `1.5 n` seconds.

mod activity;
pub mod addresses;
mod limits;
mod stream;

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use metric_defs::MetricDef;
use prometheus::{IntCounter, IntCounterVec, IntGauge};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::metrics::Registry;
use activity::Cut;
pub use activity::{Activity, InProgress};
use addresses::{AddressPermit, Addresses};
pub use limits::Limits;
pub use stream::WatchedStream;

/// How long the accept loop rests after the system refused it a connection (usually: no file left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where connections come from: a TCP port, or one of a simulated network.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: ByteStream;

    /// Waits for the next connection. Dropping the future loses none.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, address) = TcpListener::accept(self).await?;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "connection broke before its first request");
        }
        Ok((stream, address))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        TcpListener::local_addr(self)
    }
}

/// A connection's two directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for T {}

/// The tasks of one port, and how to end them.
#[derive(Debug, Clone, Default)]
pub struct Stage {
    /// Every task of the port, its connections among them.
    pub tasks: TaskTracker,
    /// Asks them to end in an orderly way.
    pub stop: CancellationToken,
    cut: CancellationToken,
}

impl Stage {
    /// A stage of tasks that may be others' too.
    #[must_use]
    pub fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            tasks,
            stop,
            cut: CancellationToken::new(),
        }
    }

    /// Asks all tasks to end and waits for them; connections that have not ended by `deadline` are cut off.
    ///
    /// True when none had to be.
    pub async fn drain(&self, deadline: Instant) -> bool {
        self.stop.cancel();
        self.tasks.close();
        if timeout_at(deadline, self.tasks.wait()).await.is_ok() {
            return true;
        }
        self.cut.cancel();
        self.tasks.wait().await;
        false
    }
}

/// Where more than four fifths of the places are taken, connections may be idle for this part of the time only, but for a second
/// at least.
const SHORT_IDLE_PART: u32 = 16;
const SHORT_IDLE_MIN: Duration = Duration::from_secs(1);

/// Counters of one port.
#[derive(Debug, Clone)]
pub struct Metrics {
    connections: IntGauge,
    accepted: IntCounter,
    cut: IntCounterVec,
}

impl Metrics {
    /// Registers `<process>_<port>_connections` and `<process>_<port>_connections_{accepted,cut}_total`.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn register(registry: &Registry, process: &str, port: &str) -> prometheus::Result<Self> {
        let own = |figure: MetricDef| figure.of(&format!("{process}_{port}"));
        let open = MetricDef::gauge("connections", "Connections open now.");
        let accepted = MetricDef::counter("connections_accepted_total", "Connections accepted.");
        let cut = MetricDef::counter(
            "connections_closed_total",
            "Connections cut off by this side, by reason.",
        );
        let metrics = Self {
            connections: registry.add(own(open))?,
            accepted: registry.add(own(accepted))?,
            cut: registry.add(own(cut.by(&["reason"])))?,
        };
        for cut in Cut::ALL {
            metrics.cut.with_label_values(&[cut.label()]);
        }
        Ok(metrics)
    }

    fn cut(&self, cut: Cut) {
        self.cut.with_label_values(&[cut.label()]).inc();
    }
}

/// Binds a listener with a backlog that outlasts a burst of new connections.
///
/// # Errors
/// With the address, and what to do, when it cannot be bound.
pub fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let listen = || -> io::Result<TcpListener> {
        let listener = std::net::TcpListener::bind(address)?;
        // Listening once more is the portable way to a backlog longer than the standard library's 128.
        rustix::net::listen(&listener, 4096)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    listen().map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            anyhow::anyhow!("{address} is taken by another process; choose another with {flag}")
        }
        _ => anyhow::anyhow!("cannot listen on {address} ({error}); choose another with {flag}"),
    })
}

/// Accepts connections until the stage stops, handing each to `serve` in a task of the stage.
///
/// `serve` gets the stream and the connection's [`Activity`]; it must report each request there, and end its
/// connection in an orderly way when the stage stops. Its future is dropped when a limit is exceeded.
///
/// The limits may change: numbers of connections hold for the next one, and close none; times hold from the next look at a connection,
/// which is due after half the shortest time that held before, or five seconds.
pub async fn accept<L, S, F>(
    mut listener: L,
    limits: watch::Receiver<Limits>,
    metrics: Metrics,
    stage: Stage,
    serve: S,
) where
    L: Listener,
    S: Fn(WatchedStream<L::Stream>, Arc<Activity>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let addresses = Addresses::default();
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
                    tracing::warn!(%error, "cannot accept connections");
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
        let granted = *limits.borrow();
        let open = usize::try_from(metrics.connections.get()).unwrap_or(0);
        if open >= granted.connections_max {
            metrics.cut(Cut::TooMany);
            continue;
        }
        let each_max = granted.connections_per_address_max.unwrap_or(usize::MAX);
        let Some(address) = addresses.enter(each_max, peer) else {
            metrics.cut(Cut::TooManyOfAddress);
            continue;
        };
        metrics.accepted.inc();
        let activity = Arc::new(Activity::default());
        let stream = WatchedStream {
            stream,
            peer,
            activity: Arc::clone(&activity),
        };
        let place = Place::take(metrics.connections.clone(), address);
        let served = serve(stream, Arc::clone(&activity));
        let (limits, metrics, cut) = (limits.clone(), metrics.clone(), stage.cut.clone());
        stage
            .tasks
            .spawn(run(served, activity, limits, metrics, place, cut));
    }
}

/// What a connection holds of the port's limits until it is dropped: only the accept loop takes places, so the gauge is exact there.
struct Place {
    open: IntGauge,
    _address: AddressPermit,
}

impl Place {
    fn take(open: IntGauge, address: AddressPermit) -> Self {
        open.inc();
        Self {
            open,
            _address: address,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// The limits where so many connections are open: who is idle has less time where others may need its place.
fn with_open(mut limits: Limits, open: usize) -> Limits {
    if open.saturating_mul(5) > limits.connections_max.saturating_mul(4) {
        let short = (limits.idle_timeout / SHORT_IDLE_PART).max(SHORT_IDLE_MIN);
        limits.idle_timeout = limits.idle_timeout.min(short);
    }
    limits
}

async fn run(
    served: impl Future<Output = ()>,
    activity: Arc<Activity>,
    limits: watch::Receiver<Limits>,
    metrics: Metrics,
    place: Place,
    cut_now: CancellationToken,
) {
    let granted = || {
        let open = usize::try_from(place.open.get()).unwrap_or(0);
        with_open(*limits.borrow(), open)
    };
    tokio::select! {
        biased;
        () = served => {}
        cut = activity.watch(granted) => metrics.cut(cut),
        () = cut_now.cancelled() => metrics.cut(Cut::Drained),
    }
}

#[cfg(test)]
mod tests;
