//! The limiter over gRPC, with health checks and reflection.

mod messages;
pub(super) mod status;
mod until;

use std::sync::Arc;

use http::{Request, Response, Version, header};
use http_body_util::Full;
use hyper::body::Incoming;
use limiter_proto::v1::{
    self, DelayRequest, DelayResponse, FeedbackRequest, FeedbackResponse, IncrementRequest,
    IncrementResponse, ReserveRequest, ReserveResponse,
    limiter_server::{Limiter, LimiterServer},
};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, server::NamedService as _, service::Routes};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tower::Service as _;

use self::until::UntilStop;
use super::{
    asked::{Asked, Call},
    metrics::Protocol,
    places::InFlight,
    problem::{self, Problem},
    service::{Answer, BODY_TIMEOUT, Caller, Service},
};

/// Longest request of health checks and reflection: it names a service or a symbol.
const SMALL_REQUEST_BYTES_MAX: usize = 4 << 10;

/// What a request of gRPC calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request that has one answer: of the limiter's calls, or another.
    Unary(Option<Call>),
    /// A health watch or reflection, which may last for as long as the client likes.
    Lasting,
}

impl Kind {
    pub(super) fn call(self) -> Option<Call> {
        match self {
            Self::Unary(call) => call,
            Self::Lasting => None,
        }
    }
}

/// What a request calls; `None` where it is not gRPC.
pub(super) fn kind<B>(request: &Request<B>) -> Option<Kind> {
    let media_type = request.headers().get(header::CONTENT_TYPE)?.as_bytes();
    if request.version() != Version::HTTP_2 || !media_type.starts_with(b"application/grpc") {
        return None;
    }
    let path = request.uri().path();
    if path == "/grpc.health.v1.Health/Watch" || path.starts_with("/grpc.reflection.") {
        return Some(Kind::Lasting);
    }
    let name = path.strip_prefix("/cookiesync.limiter.v1.Limiter/");
    Some(Kind::Unary(match name {
        Some("Delay") => Some(Call::Delay),
        Some("Reserve") => Some(Call::Reserve),
        Some("Increment") => Some(Call::Increment),
        Some("Feedback") => Some(Call::Feedback),
        _ => None,
    }))
}

/// What the health service says of the whole server and of the limiter's service; clones are of the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Health(HealthReporter);

impl Health {
    /// Says from now on whether it serves, also to those who watch.
    pub(super) async fn tell(&self, is_serving: bool) {
        let status = if is_serving {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for service in ["", LimiterServer::<Calls>::NAME] {
            self.0.set_service_status(service, status).await;
        }
    }
}

/// The services.
pub(super) struct Grpc {
    routes: Routes,
    service: Arc<Service>,
    stop: CancellationToken,
}

impl Grpc {
    /// Serves until `stop` is cancelled: lasting calls then end.
    ///
    /// # Errors
    /// When the compiled descriptors cannot be read.
    pub(super) async fn new(
        service: Arc<Service>,
        health: Health,
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let calls = Calls {
            service: Arc::clone(&service),
            stop: stop.clone(),
        };
        health.tell(true).await;
        let health = HealthServer::new(HealthService::from_health_reporter(health.0));
        let small = SMALL_REQUEST_BYTES_MAX;
        let routes = Routes::default()
            .add_service(LimiterServer::new(calls))
            .add_service(health.max_decoding_message_size(small))
            .add_service(reflection().build_v1()?.max_decoding_message_size(small))
            .add_service(
                reflection()
                    .build_v1alpha()?
                    .max_decoding_message_size(small),
            )
            .prepare();
        Ok(Self {
            routes,
            service,
            stop,
        })
    }

    pub(super) async fn answer(
        &self,
        kind: Kind,
        request: Request<Incoming>,
        in_flight: InFlight,
    ) -> Response<Body> {
        let answered = self.admitted(kind, request, in_flight).await;
        let metrics = &self.service.metrics;
        let answer = answered.unwrap_or_else(|problem| {
            metrics.problem(&problem);
            status::of(&problem).into_http()
        });
        let class = status::class(answer.headers());
        metrics.answered(Protocol::Grpc, kind.call(), class);
        answer
    }

    async fn admitted(
        &self,
        kind: Kind,
        request: Request<Incoming>,
        in_flight: InFlight,
    ) -> Result<Response<Body>, Problem> {
        let caller = self.service.admit(&request, Instant::now())?;
        let (mut head, body) = request.into_parts();
        let mut routes = self.routes.clone();
        if kind == Kind::Lasting {
            let answer = routes.call(Request::from_parts(head, body));
            let answer = timeout(BODY_TIMEOUT, answer);
            let Ok(answer) = match self.stop.run_until_cancelled(answer).await {
                None => return Err(Problem::new(problem::STOPPING, "")),
                Some(Err(_)) => return Err(Problem::new(problem::SLOW, "")),
                Some(Ok(answer)) => answer,
            };
            let stop = self.stop.clone();
            return Ok(answer.map(|body| Body::new(UntilStop::new(body, stop, in_flight))));
        }
        let body = self.service.body(body).await?;
        head.extensions.insert(caller);
        let request = Request::from_parts(head, Full::new(body));
        let Ok(answer) = routes.call(request).await;
        Ok(answer)
    }
}

/// The calls of the limiter.
struct Calls {
    service: Arc<Service>,
    stop: CancellationToken,
}

impl Calls {
    async fn answer<T>(&self, request: tonic::Request<T>) -> Result<Answer, Status>
    where
        Asked: TryFrom<T, Error = Problem>,
    {
        let (_, extensions, message) = request.into_parts();
        let caller = extensions.get::<Caller>();
        let caller = caller.expect("no call comes here that was not admitted");
        let answered = match Asked::try_from(message) {
            Ok(asked) => self.service.answer(&asked, caller, &self.stop).await,
            Err(problem) => Err(problem),
        };
        answered.map_err(|problem| {
            self.service.metrics.problem(&problem);
            status::of(&problem)
        })
    }
}

#[tonic::async_trait]
impl Limiter for Calls {
    async fn delay(
        &self,
        request: tonic::Request<DelayRequest>,
    ) -> Result<tonic::Response<DelayResponse>, Status> {
        let answer = self.answer(request).await?;
        Ok(tonic::Response::new(DelayResponse {
            slot: Some((&answer.slot).into()),
        }))
    }

    async fn reserve(
        &self,
        request: tonic::Request<ReserveRequest>,
    ) -> Result<tonic::Response<ReserveResponse>, Status> {
        let answer = self.answer(request).await?;
        Ok(tonic::Response::new(ReserveResponse {
            slot: Some((&answer.slot).into()),
        }))
    }

    async fn increment(
        &self,
        request: tonic::Request<IncrementRequest>,
    ) -> Result<tonic::Response<IncrementResponse>, Status> {
        let answer = self.answer(request).await?;
        Ok(tonic::Response::new(IncrementResponse {
            counted: answer.has_effect,
            next: Some((&answer.slot).into()),
        }))
    }

    async fn feedback(
        &self,
        request: tonic::Request<FeedbackRequest>,
    ) -> Result<tonic::Response<FeedbackResponse>, Status> {
        let answer = self.answer(request).await?;
        Ok(tonic::Response::new(FeedbackResponse {
            learned: answer.has_effect,
            next: Some((&answer.slot).into()),
        }))
    }
}
