//! Opens the lookup port.
//!
//! Its connections have threads of their own, one for every four cores. So streams and writes do not delay lookups; and a thread that finds
//! several requests ready answers them one after the other, while the threads of a shared runtime would wake each other for each.

use std::{sync::Arc, thread, time::Duration};

use anyhow::Context as _;
use futures_util::FutureExt as _;
use runtime::{
    listen::{self, Proxies, Stage, WatchedStream},
    metrics::Registry,
    open_files,
    tls::server::Handshakes,
};
use tokio::{net::TcpListener, sync::oneshot, time::Instant};
use tokio_util::task::TaskTracker;

use super::App;
use crate::{
    config::Config,
    lookup::{
        Lookups,
        metrics::Metrics,
        port::{LIMITS, LookupPort},
    },
};

/// Cores per thread, and maximum number of threads.
const CORES_PER_THREAD: usize = 4;
const THREADS_MAX: usize = 8;

/// Maximum number of threads that read from the embedded store, for each thread of the port.
const BLOCKING_THREADS_MAX: usize = 16;

/// Time for requests in progress at the end of a drain.
const GRACE: Duration = Duration::from_millis(500);

impl App {
    /// Opens the lookup port, if there is one.
    pub(super) fn serve_lookups(
        &self,
        config: &Config,
        registry: &Registry,
        lookups: Lookups,
    ) -> anyhow::Result<()> {
        let services = &self.services;
        let Stage { tasks, stop, .. } = &services.stage;
        let security = &config.lookup_security;
        let metrics = Metrics::register(registry, &config.args.storage.dsps())?;
        let connections = services.connections("lookup")?;
        let open = |files: &Arc<_>| {
            let counter = "lookup_tls_handshakes_total";
            let handshakes = Handshakes::new(Arc::clone(files), registry, "consumer", counter);
            handshakes.map(Handshakes::for_http)
        };
        let tls = security.tls.as_ref().map(open).transpose()?;
        let Some(address) = config.args.lookup.lookup else {
            return Ok(());
        };
        services.watch(security.tls.as_ref(), &services.stage);
        services.watch(security.tokens.as_ref(), &services.stage);
        let listener = listen::bind(address, "--lookup")?.into_std()?;
        let address = listener.local_addr()?;
        let (is_loopback, has_tls) = (address.ip().is_loopback(), tls.is_some());
        let tokens = security.tokens.clone();
        let port = Arc::new(LookupPort::new(lookups, metrics, tokens, tls, is_loopback));
        let [connections_max] =
            open_files::connections(open_files::of_store(), [("lookup", LIMITS.connections_max)]);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(cores / CORES_PER_THREAD).clamp(1, THREADS_MAX) {
            let listener = listener.try_clone()?;
            let (port, connections) = (Arc::clone(&port), connections.clone());
            let stage = Stage::new(TaskTracker::new(), stop.clone());
            let (ended, has_ended) = oneshot::channel::<()>();
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }
                .enable_all()
                .max_blocking_threads(BLOCKING_THREADS_MAX)
                .build()?;
            let serving = async move {
                let stop = stage.stop.clone();
                let serve = move |stream: WatchedStream<_>, activity| {
                    Arc::clone(&port).serve(stream, activity, stop.clone())
                };
                match TcpListener::from_std(listener) {
                    Ok(listener) => {
                        let limits = LIMITS.with(connections_max).fixed();
                        let proxies = Proxies::default();
                        listen::accept(
                            listener,
                            proxies,
                            limits,
                            connections,
                            stage.clone(),
                            serve,
                        )
                        .await;
                        stage.drain(Instant::now() + GRACE).await;
                    }
                    Err(error) => tracing::error!(%error, "failed to open the lookup port"),
                }
                drop(ended);
            };
            let thread = thread::Builder::new().name("lookup".to_owned());
            let thread = thread.spawn(move || runtime.block_on(serving));
            thread.context("failed to start a thread")?;
            // The sender is dropped when the thread ends or panics.
            let serving = has_ended.map(|_| Ok(()));
            tasks.spawn(self.monitor.clone().run("lookup port", serving));
        }
        tracing::info!(%address, "lookup port is open");
        if !is_loopback && !has_tls {
            tracing::warn!(lookup = %address, "tokens and matches are unencrypted and can be read in transit (set --lookup-tls-cert)");
        }
        Ok(())
    }
}
