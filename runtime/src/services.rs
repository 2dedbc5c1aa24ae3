//! Services that every server has besides its data path: process metrics, file reloads, and the API port. The module
//! `admin` adds the admin port.

use std::{sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::{
    listen::{self, Activity, Limits, Proxies, Stage, WatchedStream},
    metrics::{Registry, register_process},
    reload::{self, Reloader, Source},
    settings::live_config,
};

/// Time for which the admin port stays open at the end of a drain.
const ADMIN_GRACE: Duration = Duration::from_millis(500);

/// The services of a server; clones share them.
#[derive(Debug, Clone)]
pub struct Services {
    pub(crate) process: &'static str,
    pub(crate) started: Instant,
    /// All metrics.
    pub registry: Registry,
    /// Metrics of configuration reloads.
    pub config_reloads: live_config::Metrics,
    files: reload::Metrics,
    /// Tasks of the services.
    pub stage: Stage,
}

impl Services {
    /// Registers the metrics that every server has. The prefix of their names is `process`.
    ///
    /// # Errors
    /// If a name is already registered.
    pub fn register(
        registry: &Registry,
        process: &'static str,
        has_certificates: bool,
    ) -> prometheus::Result<Self> {
        register_process(registry, process)?;
        Ok(Self {
            process,
            started: Instant::now(),
            registry: registry.clone(),
            config_reloads: live_config::Metrics::register(registry, process)?,
            files: reload::Metrics::register(registry, process, has_certificates)?,
            stage: Stage::default(),
        })
    }

    /// Registers the metrics of a port.
    ///
    /// # Errors
    /// If a name is already registered.
    pub fn connections(&self, port: &str) -> prometheus::Result<listen::Metrics> {
        listen::Metrics::register(&self.registry, self.process, port)
    }

    /// Reloads files when they change, until the stage stops.
    pub fn watch<S: Source>(&self, files: Option<&Arc<Reloader<S>>>, stage: &Stage) {
        self.watch_with(files, stage, |_| {});
    }

    /// Like [`watch`](Self::watch); calls `apply` with each new value.
    pub fn watch_with<S: Source>(
        &self,
        files: Option<&Arc<Reloader<S>>>,
        stage: &Stage,
        apply: impl Fn(Arc<S::Value>) + Send + 'static,
    ) {
        if let Some(files) = files {
            let (metrics, stop) = (self.files.clone(), stage.stop.clone());
            let watching = Arc::clone(files).watch(metrics, apply, stop);
            stage.tasks.spawn(watching);
        }
    }

    /// Serves a plain-text API in `stage`; `serve` serves a connection, as for [`listen::accept`].
    ///
    /// # Errors
    /// If the address is unknown, or a metric is already registered.
    pub fn serve_api<F>(
        &self,
        listener: TcpListener,
        limits: Limits,
        stage: &Stage,
        serve: impl Fn(WatchedStream<TcpStream>, Arc<Activity>) -> F + Send + Sync + 'static,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (address, metrics) = (listener.local_addr()?, self.connections("http")?);
        let (proxies, limits) = (Proxies::default(), limits.fixed());
        let accepting = listen::accept(listener, proxies, limits, metrics, stage.clone(), serve);
        stage.tasks.spawn(accepting);
        tracing::info!(%address, "API port is open");
        if !address.ip().is_loopback() {
            tracing::warn!(listen = %address, "tokens are sent in plain text and can be read in transit");
        }
        Ok(())
    }

    /// Stops the services at the end of a drain.
    pub async fn drain(&self) {
        self.stage.drain(Instant::now() + ADMIN_GRACE).await;
    }
}
