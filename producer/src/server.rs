//! The gRPC server: HTTP/2 connections in the watched accept loop, with reflection and health beside the
//! streams.

mod admission;
mod budget;
mod call;
mod connection;
mod pipe;
mod rates;

use std::{sync::Arc, time::Duration};

use proto::v1;
use runtime::{
    listen::{self, Limits, Listener, LiveLimits, Stage, WatchedStream},
    metrics::Registry,
};
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

use self::{admission::Admission, connection::Connection, rates::Calls};
pub(crate) use self::{
    budget::BYTES_MAX as CALLS_BYTES_MAX,
    connection::{CONNECTION_BYTES, SEND_BUFFER_BYTES, TLS_BYTES},
};
use crate::{security::Door, streams::Streams};

/// Longest message of health checks and reflection: the name of a service or of a symbol.
const QUESTION_BYTES_MAX: usize = 4 * 1024;

/// A connection without any call is closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// What the gRPC port grants its clients; half of the connections to one address where nothing else is said.
#[must_use]
pub(crate) fn limits(connections_max: usize, connections_per_address_max: Option<usize>) -> Limits {
    Limits {
        connections_max,
        connections_per_address_max: connections_per_address_max
            .or_else(|| Some(connections_max.div_ceil(2))),
        request_timeout: None,
        idle_timeout: IDLE_TIMEOUT,
        write_timeout: None,
    }
}

/// The services of one producer.
#[derive(Debug, Clone)]
pub struct Server {
    routes: Routes,
    door: Door,
    health: HealthReporter,
    calls: Calls,
}

impl Server {
    /// Puts health and reflection beside `streams`.
    ///
    /// # Errors
    /// When the compiled descriptors cannot be read, or a metric is registered already.
    pub async fn new(streams: Streams, registry: &Registry) -> anyhow::Result<Self> {
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_serving::<Streams>().await;
        let routes = Routes::default()
            .add_service(streams)
            .add_service(health.max_decoding_message_size(QUESTION_BYTES_MAX))
            .add_service(
                reflection()
                    .build_v1()?
                    .max_decoding_message_size(QUESTION_BYTES_MAX),
            )
            .add_service(
                reflection()
                    .build_v1alpha()?
                    .max_decoding_message_size(QUESTION_BYTES_MAX),
            )
            .prepare();
        Ok(Self {
            routes,
            door: Door::default(),
            health: reporter,
            calls: Calls::register(registry)?,
        })
    }

    /// The same behind `door`.
    #[must_use]
    pub fn behind(self, door: Door) -> Self {
        Self { door, ..self }
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
        limits: impl Into<LiveLimits>,
        metrics: listen::Metrics,
        stage: Stage,
    ) {
        let (tasks, stopping) = (stage.tasks.clone(), stage.stop.clone());
        let serve = move |stream: WatchedStream<_>, activity| {
            let peer = stream.peer();
            let connection = Connection {
                routes: self.routes.clone(),
                admission: Admission {
                    calls: self.calls.of_connection(peer),
                    guard: self.door.guard.clone(),
                    peer,
                },
                activity: Arc::clone(&activity),
                tasks: tasks.clone(),
                stopping: stopping.clone(),
            };
            let (tls, stopping) = (self.door.tls.clone(), stopping.clone());
            async move {
                let Some(tls) = tls else {
                    return connection.run(stream).await;
                };
                let shaking = tls.shake(stream, peer);
                if let Some(Some(stream)) = stopping.run_until_cancelled(shaking).await {
                    Box::pin(connection.run(stream)).await;
                }
            }
        };
        listen::accept(listener, limits, metrics, stage, serve).await;
    }
}
