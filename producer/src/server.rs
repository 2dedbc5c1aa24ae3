//! The gRPC server: HTTP/2 connections in the watched accept loop, with reflection and health beside the
//! streams.
//!
//! hyper serves the connections, not tonic's own server, because the bound of what waits in an HTTP/2 send
//! buffer matters here: a stalled stream pins those bytes beyond the log's bound.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use cookiesync::{
    process::listen::{
        self, Activity, ByteStream, InProgress, Limits, Listener, Stage, WatchedStream,
    },
    v1,
};
use http::Request;
use http_body::{Body, Frame, SizeHint};
use hyper::{body::Incoming, rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{sleep, timeout};
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::TaskTracker,
};
use tonic::{Status, service::Routes};
use tonic_health::server::HealthReporter;
use tower::Service;

use crate::{
    security::{Door, guard::Guarded},
    streams::Streams,
};

/// Bytes in one stream's send buffer at which no further chunk is taken from the log: enough for the kernel never
/// to wait. A stalled stream pins these, one chunk more, and one in hand: 384 KiB at the default chunk size, or
/// 37 MiB for a hundred such streams, less where they stall at the same chunks.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// Most calls at once on one connection.
const CALLS_MAX: u32 = 64;

/// A connection without any call is closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// How long a connection is silent before it is asked for a sign of life, and how long that may take. Longer
/// than a reader may be stopped and still find its stream.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a client may take to close its connection after its last call, when the producer drains. Closing
/// first could destroy what is still on its way to the client: a kernel answers data on a closed connection with
/// a reset.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// How long an HTTP/2 connection may take to end after it was told to. Its calls are over by then, and all they
/// sent is in the kernel unless the client has stopped reading; such a client sees no `Goodbye`, and knows it.
const GOAWAY_GRACE: Duration = Duration::from_millis(500);

/// The services of one producer.
#[derive(Debug, Clone)]
pub struct Server {
    routes: Guarded,
    door: Door,
    health: HealthReporter,
}

impl Server {
    /// Puts health and reflection beside `streams`.
    ///
    /// # Errors
    /// When the compiled descriptors cannot be read.
    pub async fn new(streams: Streams) -> anyhow::Result<Self> {
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_serving::<Streams>().await;
        let routes = Routes::default()
            .add_service(streams)
            .add_service(health)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?)
            .prepare();
        Ok(Self {
            routes: Guarded::open(routes),
            door: Door::default(),
            health: reporter,
        })
    }

    /// The same behind `door`.
    #[must_use]
    pub fn behind(self, door: Door) -> Self {
        Self {
            routes: self.routes.behind(door.guard.clone()),
            door,
            ..self
        }
    }

    /// What tells health checks that the producer drains.
    #[must_use]
    pub fn health(&self) -> HealthReporter {
        self.health.clone()
    }

    /// Accepts connections until the stage stops; each then ends after its last call. Cookie streams end when
    /// the log is closed, all other calls at once.
    pub async fn serve(
        self,
        listener: impl Listener,
        connections_max: usize,
        connections_per_address_max: Option<usize>,
        metrics: listen::Metrics,
        stage: Stage,
    ) {
        let limits = Limits {
            connections_max,
            connections_per_address_max,
            request_timeout: IDLE_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            write_timeout: None,
        };
        let (tasks, stopping) = (stage.tasks.clone(), stage.stop.clone());
        let serve = move |stream: WatchedStream<_>, activity| {
            let peer = stream.peer();
            let mut server = self.clone();
            server.routes = self.routes.of(peer);
            let (tasks, stopping) = (tasks.clone(), stopping.clone());
            async move {
                let Some(tls) = server.door.tls.clone() else {
                    return server.connection(stream, activity, tasks, stopping).await;
                };
                let shaking = tls.shake(stream, peer);
                if let Some(Some(stream)) = stopping.run_until_cancelled(shaking).await {
                    let stopping = stopping.clone();
                    Box::pin(server.connection(stream, activity, tasks, stopping)).await;
                }
            }
        };
        listen::accept(listener, limits, metrics, stage, serve).await;
    }

    async fn connection(
        self,
        stream: impl ByteStream,
        activity: Arc<Activity>,
        tasks: TaskTracker,
        stopping: CancellationToken,
    ) {
        let service = service_fn(|request: Request<Incoming>| {
            let in_progress = activity.long_request();
            let stopping = stopping.clone();
            let until = (!request.uri().path().starts_with(STREAMS_PATH))
                .then(|| Box::pin(stopping.clone().cancelled_owned()));
            let answering = self.routes.clone().call(request);
            async move {
                let response = tokio::select! {
                    biased;
                    response = answering => response?,
                    () = stopping.cancelled() => draining().into_http(),
                };
                Ok::<_, Infallible>(response.map(|body| ResponseBody {
                    body,
                    until,
                    _in_progress: in_progress,
                }))
            }
        });
        let connection = http2::Builder::new(Tasks(tasks))
            .timer(TokioTimer::new())
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .max_concurrent_streams(CALLS_MAX)
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let closing = async {
            stopping.cancelled().await;
            activity.quiet().await;
            sleep(CLOSE_GRACE).await;
        };
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = closing => {
                connection.as_mut().graceful_shutdown();
                match timeout(GOAWAY_GRACE, connection).await {
                    Ok(ended) => ended,
                    Err(_) => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "gRPC connection ended");
        }
    }
}

fn draining() -> Status {
    Status::unavailable("the producer is shutting down")
}

const STREAMS_PATH: &str = "/cookiesync.v1.CookieStreamer/";

/// Spawns the tasks of a connection's calls where the drain waits for them.
#[derive(Debug, Clone)]
struct Tasks(TaskTracker);

impl<F> Executor<F> for Tasks
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// A response body that counts as a request in progress while it lives, and that ends with `until`: a health
/// watch or a reflection stream would otherwise hold up the drain for as long as its client likes.
struct ResponseBody {
    body: tonic::body::Body,
    until: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    _in_progress: InProgress,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let Some(until) = &mut self.until else {
            return Poll::Pending;
        };
        ready!(until.as_mut().poll(context));
        self.until = None;
        self.body = tonic::body::Body::empty();
        let mut trailers = http::HeaderMap::new();
        draining().add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
