//! The gRPC server: serves the streams, health checks and reflection on HTTP/2 connections from the shared accept loop.

mod call;
mod calls;
mod connection;
mod pipe;
mod refusals;
mod request;
mod service;
mod status;
mod stream_body;

use std::{sync::Arc, time::Duration};

use proto::v1;
use runtime::{
    listen::{self, Limits, Listener, Proxies, Stage, WatchedStream},
    metrics::Registry,
};
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};

pub(crate) use self::{
    calls::BYTES_MAX as CALLS_BYTES_MAX,
    connection::{CONNECTION_BYTES, SEND_BUFFER_BYTES, TLS_BYTES},
};
use self::{
    calls::CallLimits, connection::GrpcConnection, refusals::Refusals, service::StreamService,
};
use crate::{security::AccessControl, streams::Streams};

/// Maximum size of health check and reflection requests, which name a service or a symbol.
const SMALL_REQUEST_BYTES_MAX: usize = 4 * 1024;

/// Idle timeout of connections without calls.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The services of one producer.
#[derive(Debug, Clone)]
pub struct Server {
    routes: Routes,
    /// The health service.
    pub health: HealthReporter,
    limits: CallLimits,
}

/// Reports that the producer drains.
pub async fn set_not_serving(health: &HealthReporter) {
    health.set_not_serving::<StreamService>().await;
    // For probes that do not specify a service.
    let overall = health.set_service_status("", ServingStatus::NotServing);
    overall.await;
}

impl Server {
    /// Serves `streams`, health checks and reflection.
    ///
    /// # Errors
    /// When the compiled descriptors cannot be read, or a metric is registered already.
    pub async fn new(streams: Streams, registry: &Registry) -> anyhow::Result<Self> {
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let (v1, v1alpha) = (reflection().build_v1()?, reflection().build_v1alpha()?);
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_serving::<StreamService>().await;
        let streams = StreamService::new(streams, Refusals::register(registry)?);
        let routes = Routes::default()
            .add_service(streams)
            .add_service(health.max_decoding_message_size(SMALL_REQUEST_BYTES_MAX))
            .add_service(v1.max_decoding_message_size(SMALL_REQUEST_BYTES_MAX))
            .add_service(v1alpha.max_decoding_message_size(SMALL_REQUEST_BYTES_MAX))
            .prepare();
        Ok(Self {
            routes,
            health: reporter,
            limits: CallLimits::register(registry)?,
        })
    }

    /// Accepts connections that pass `access` until the stage stops. Each connection then ends after its last call: streams end
    /// when the log is closed, all other calls immediately.
    pub async fn serve(
        self,
        listener: impl Listener,
        access: AccessControl,
        limits: watch::Receiver<Limits>,
        metrics: listen::Metrics,
        stage: Stage,
    ) {
        let (tasks, stopping) = (stage.tasks.clone(), stage.stop.clone());
        let serve = move |stream: WatchedStream<_>, activity| {
            let peer = stream.peer();
            let connection = GrpcConnection {
                routes: self.routes.clone(),
                limits: self.limits.of_connection(peer, access.tokens.clone()),
                activity: Arc::clone(&activity),
                tasks: tasks.clone(),
                stopping: stopping.clone(),
            };
            let (tls, stopping) = (access.tls.clone(), stopping.clone());
            async move {
                let Some(tls) = tls else {
                    return connection.run(stream).await;
                };
                if let Some(stream) = tls.accept(stream, &stopping).await {
                    Box::pin(connection.run(stream)).await;
                }
            }
        };
        listen::accept(listener, Proxies::default(), limits, metrics, stage, serve).await;
    }
}
