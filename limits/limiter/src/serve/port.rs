//! The port for calls: HTTP/1.1 and HTTP/2 in plain text, and over HTTP/2 gRPC beside HTTP.
//!
//! Everything that an outsider can do is bounded: connections in all and by address, the head of a request in bytes and time, its
//! body likewise, calls at a time on one connection, of one address and in all, how many reservations wait, how many counters there
//! are, how long a client may leave answers unread.
//!
//! Where no token is needed the port is on loopback, and pages of other sites are kept out as on the admin port: by the name that they
//! call, and because what changes something must be said to be JSON, which they may not send.

use std::{
    convert::Infallible,
    future::Future,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{Either, Full};
use hyper::{body::Incoming, rt::Executor, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use runtime::{
    listen::{self, Activity, ByteStream, InProgress, Listener, Stage, WatchedStream},
    rate_limit,
};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::body::Body;
use tower::{Layer as _, ServiceExt as _};

use super::{
    grpc::{self, Grpc},
    http::problem_answer,
    metrics::{Class, Protocol},
    places::{Counted, InFlight, Places},
    problem::{self, Problem},
    sent::Sent,
    service::Service,
};

/// Largest head of a request, and most bytes of answers that a connection keeps for a client that does not read.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Most calls at a time on one connection of HTTP/2.
const CALLS_OF_A_CONNECTION_MAX: u32 = 256;

/// HTTP/2's receive windows: the largest body comes in steps. A connection's cannot be smaller.
const STREAM_WINDOW_BYTES: u32 = 16 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 65_535;

/// Calls that a client resets before they are looked at, and resets that it forces by breaking the protocol, until its connection is
/// closed.
const RESETS_PENDING_MAX: usize = 20;
const RESETS_FORCED_MAX: usize = 100;

/// How often a connection of HTTP/2 is asked for a sign of life, and how long that may take.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Most health watches and reflection calls at a time: these may last.
const LASTING_CALLS_MAX: usize = 256;
const LASTING_CALLS_OF_AN_ADDRESS_MAX: usize = 64;
const LASTING_CALLS_OF_A_CONNECTION_MAX: usize = 8;

/// How long a client has to take the end of such calls when the port stops.
const LASTING_END: Duration = Duration::from_secs(1);

/// The limits of the port.
#[must_use]
pub fn limits(connections_max: usize, per_address_max: usize) -> listen::Limits {
    listen::Limits {
        connections_max,
        connections_per_address_max: Some(per_address_max),
        request_timeout: Some(Duration::from_secs(10)),
        idle_timeout: Duration::from_secs(300),
        write_timeout: Some(Duration::from_secs(30)),
    }
}

/// What answers on the port.
pub struct Port {
    service: Arc<Service>,
    grpc: Grpc,
    calls: Places,
    lasting: Places,
    stop: CancellationToken,
}

/// Whose connection it is.
#[derive(Clone)]
struct Client {
    address: IpAddr,
    activity: Arc<Activity>,
    lasting: Arc<AtomicUsize>,
}

impl Client {
    /// After the stop: waits until only calls are in progress that may last and whose end the client does not take.
    async fn takes_no_end(&self) {
        loop {
            sleep(LASTING_END).await;
            let lasting = self.lasting.load(Ordering::Relaxed);
            if lasting > 0 && lasting == self.activity.in_progress() {
                return;
            }
        }
    }
}

/// The body of an answer.
type AnswerBody = Sent<Either<Full<Bytes>, Body>>;

/// Runs the calls of HTTP/2; the drain waits for them.
#[derive(Clone)]
struct OnTracker(TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for OnTracker {
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

impl Port {
    /// With so many calls at a time, in all and of one address, beside those that wait for their slot. When `stop` is cancelled, those who wait get
    /// their answer at once, before their slot.
    ///
    /// # Errors
    /// When the compiled descriptors cannot be read.
    pub(super) async fn new(
        service: Service,
        health: grpc::Health,
        (calls_max, of_address_max): (usize, usize),
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        let service = Arc::new(service);
        Ok(Self {
            grpc: Grpc::new(Arc::clone(&service), health, stop.clone()).await?,
            service,
            calls: Places::new(calls_max, of_address_max),
            lasting: Places::new(LASTING_CALLS_MAX, LASTING_CALLS_OF_AN_ADDRESS_MAX),
            stop,
        })
    }

    /// Serves until the stage stops.
    pub async fn serve(
        self,
        listener: impl Listener,
        limits: listen::Limits,
        metrics: listen::Metrics,
        stage: Stage,
    ) {
        let (port, tasks) = (Arc::new(self), stage.tasks.clone());
        listen::accept(listener, limits, metrics, stage, move |stream, activity| {
            Arc::clone(&port).connection(stream, activity, tasks.clone())
        })
        .await;
    }

    async fn connection(
        self: Arc<Self>,
        stream: WatchedStream<impl ByteStream>,
        activity: Arc<Activity>,
        tasks: TaskTracker,
    ) {
        let stop = self.stop.clone();
        let fields = self.service.fields;
        let client = Client {
            address: stream.peer(),
            activity,
            lasting: Arc::default(),
        };
        let stopped = client.clone();
        let answering = tower::service_fn(move |(request, client, in_progress)| {
            let port = Arc::clone(&self);
            async move { Ok::<_, Infallible>(port.answer(request, client, in_progress).await) }
        });
        let answering = rate_limit::layer(fields).layer(answering);
        let answering = service_fn(move |request: Request<Incoming>| {
            let in_progress = client.activity.long_request();
            let asked = (request, client.clone(), in_progress);
            answering.clone().oneshot(asked)
        });
        let mut protocols = auto::Builder::new(OnTracker(tasks));
        protocols.http1().max_buf_size(HEAD_BYTES_MAX);
        protocols
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(CALLS_OF_A_CONNECTION_MAX)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).expect("a small number"))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
            .max_local_error_reset_streams(RESETS_FORCED_MAX)
            .max_send_buf_size(HEAD_BYTES_MAX)
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
        let connection =
            protocols.serve_connection(TokioIo::new(stream.may_be_http_2()), answering);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = stopped.takes_no_end() => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error, "connection ended");
        }
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        client: Client,
        in_progress: InProgress,
    ) -> Response<AnswerBody> {
        let is_beside_others = request.version() == Version::HTTP_2;
        let kind = grpc::kind(&request);
        let Some(in_flight) = self.enter(kind, &client, in_progress) else {
            // Nothing of it can be left unread.
            return self.full(kind, is_beside_others).map(Sent::alone);
        };
        let place = Arc::clone(&in_flight.place);
        request.extensions_mut().insert(Arc::clone(&place));
        let answer = match kind {
            None => {
                let answer = self.service.http(request, &self.stop).await;
                drop(in_flight);
                answer.map(Either::Left)
            }
            Some(kind) => {
                let answer = self.grpc.answer(kind, request, in_flight).await;
                answer.map(Either::Right)
            }
        };
        if is_beside_others {
            answer.map(|body| Sent::beside_others(body, client.activity, Some(place)))
        } else {
            answer.map(Sent::alone)
        }
    }

    /// A place for a call, if there is one.
    fn enter(
        &self,
        kind: Option<grpc::Kind>,
        client: &Client,
        in_progress: InProgress,
    ) -> Option<InFlight> {
        let is_lasting = kind == Some(grpc::Kind::Lasting);
        let (places, of_connection) = if is_lasting {
            let most = LASTING_CALLS_OF_A_CONNECTION_MAX;
            let of_connection = Counted::enter(&client.lasting, most)?;
            (&self.lasting, Some(of_connection))
        } else {
            (&self.calls, None)
        };
        let place = places.enter(client.address)?;
        Some(InFlight::new(place, of_connection, in_progress))
    }

    /// The answer where there is no place; over HTTP/2 without a body, which would have none either.
    fn full(
        &self,
        kind: Option<grpc::Kind>,
        is_beside_others: bool,
    ) -> Response<Either<Full<Bytes>, Body>> {
        let full = Problem::new(problem::TOO_MANY_CALLS, "");
        let metrics = &self.service.metrics;
        metrics.problem(&full);
        match kind {
            None => {
                metrics.answered(Protocol::Http, None, Class::Ours);
                let answer = problem_answer(&full);
                answer.map(|body| {
                    Either::Left(if is_beside_others {
                        Full::default()
                    } else {
                        body
                    })
                })
            }
            Some(kind) => {
                metrics.answered(Protocol::Grpc, kind.call(), Class::Ours);
                grpc::status::of(&full).into_http().map(Either::Right)
            }
        }
    }
}
