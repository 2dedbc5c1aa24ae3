//! Puts the parts together, and takes them apart in the order the data flows.

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use cookiesync::process::{
    self,
    admin::{self, Answer, Pages},
    listen,
};
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::Config,
    edge::{self, Edge},
    log::{self, Log},
    metrics,
    server::Server,
    streams::{self, Streams, subscribers::Subscribers},
};

/// How often queues of departed subscribers are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// How long the admin port may take to answer its last requests.
const ADMIN_GRACE: Duration = Duration::from_secs(1);

/// A running producer.
#[derive(Debug)]
pub struct App {
    addresses: Addresses,
    log: Log,
    edge: Stage,
    streams: Stage,
    admin: Stage,
    draining: CancellationToken,
    drain_timeout: Duration,
}

/// Where a producer listens.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// For sync requests.
    pub http: SocketAddr,
    /// For subscribers.
    pub grpc: SocketAddr,
    /// For operators.
    pub admin: SocketAddr,
}

/// The tasks of one port, and how to stop them.
#[derive(Debug, Default)]
struct Stage {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Stage {
    async fn drain(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// The drain was not finished in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not everything was sent within {}", humantime::format_duration(*.0))]
pub struct DrainTimeout(Duration);

impl App {
    /// Binds all ports, then starts to serve.
    ///
    /// # Errors
    /// With the address and the flag, when a port cannot be bound.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let ports = Ports::bind(&config)?;
        let addresses = ports.addresses()?;
        let registry = Registry::new();
        let epoch = process::unix_micros();
        let log = Log::new(log::Config {
            epoch,
            bytes_max: config.log_bytes_max,
            chunk_bytes: config.chunk_bytes,
            chunk_age: config.chunk_age,
            idle_after: config.heartbeat,
        });
        let subscribers = Subscribers::new(config.subscriber_retention, config.subscribers_max);
        metrics::register(&registry, &log, &subscribers)?;
        let producer_id = config
            .id
            .clone()
            .unwrap_or_else(|| default_id(addresses.grpc));
        tracing::info!(%producer_id, epoch, ?addresses, "producer started");

        let app = Self {
            addresses,
            log,
            edge: Stage::default(),
            streams: Stage::default(),
            admin: Stage::default(),
            draining: CancellationToken::new(),
            drain_timeout: config.drain_timeout,
        };
        app.start_edge(ports.http, &config, &registry)?;
        app.start_streams(ports.grpc, &config, producer_id, subscribers, &registry)
            .await?;
        app.start_admin(ports.admin, registry)?;
        Ok(app)
    }

    fn start_edge(
        &self,
        listener: TcpListener,
        config: &Config,
        registry: &Registry,
    ) -> anyhow::Result<()> {
        let edge = Edge::new(
            self.log.clone(),
            config.ids,
            edge::Metrics::register(registry)?,
        );
        let connections = listen::Metrics::register(registry, "producer", "http")?;
        let (tasks, stop) = (self.edge.tasks.clone(), self.edge.stop.clone());
        let serving = edge.serve(listener, config.http_limits, connections, tasks, stop);
        self.edge.tasks.spawn(serving);
        Ok(())
    }

    async fn start_streams(
        &self,
        listener: TcpListener,
        config: &Config,
        producer_id: String,
        subscribers: Subscribers,
        registry: &Registry,
    ) -> anyhow::Result<()> {
        let streams_config = streams::Config {
            producer_id,
            queue_cookies_max: config.queue_cookies_max,
            rewind_bytes: config.rewind_bytes,
        };
        let streams = Streams::new(self.log.clone(), subscribers.clone(), streams_config);
        let stage = &self.streams;
        let server = Server::new(streams).await?;
        let connections = listen::Metrics::register(registry, "producer", "grpc")?;
        stage.tasks.spawn(server.serve(
            listener,
            config.grpc_connections_max,
            connections,
            stage.tasks.clone(),
            stage.stop.clone(),
        ));
        stage.tasks.spawn(log::keep_time(self.log.clone()));
        let stop = stage.stop.clone();
        stage.tasks.spawn(async move {
            let sweeping = async {
                loop {
                    tokio::time::sleep(SWEEP_INTERVAL).await;
                    subscribers.sweep();
                }
            };
            stop.run_until_cancelled(sweeping).await;
        });
        Ok(())
    }

    fn start_admin(&self, listener: TcpListener, registry: Registry) -> anyhow::Result<()> {
        let connections = listen::Metrics::register(&registry, "producer", "admin")?;
        let pages = Arc::new(AdminPages {
            draining: self.draining.clone(),
        });
        let (tasks, stop) = (self.admin.tasks.clone(), self.admin.stop.clone());
        let serving = admin::serve(listener, registry, connections, pages, tasks, stop);
        self.admin.tasks.spawn(serving);
        Ok(())
    }

    /// Where it listens; says which port the system chose where 0 was asked for.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Stops in the order the data flows: requests are finished, the log is closed, streams send the rest and
    /// say goodbye.
    ///
    /// # Errors
    /// When that took longer than the configured deadline; what was not sent is lost.
    pub async fn drain(self) -> Result<(), DrainTimeout> {
        self.draining.cancel();
        let finished = tokio::time::timeout(self.drain_timeout, async {
            self.edge.drain().await;
            self.log.close();
            self.streams.drain().await;
        })
        .await;
        let appended = self.log.stats().appended;
        if tokio::time::timeout(ADMIN_GRACE, self.admin.drain())
            .await
            .is_err()
        {
            tracing::debug!("admin requests were cut off");
        }
        match finished {
            Ok(()) => {
                tracing::info!(appended, "drained");
                Ok(())
            }
            Err(_) => Err(DrainTimeout(self.drain_timeout)),
        }
    }
}

struct Ports {
    http: TcpListener,
    grpc: TcpListener,
    admin: TcpListener,
}

impl Ports {
    fn bind(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            http: listen::bind(config.http, "--http")?,
            grpc: listen::bind(config.grpc, "--grpc")?,
            admin: listen::bind(config.admin, "--admin")?,
        })
    }

    fn addresses(&self) -> anyhow::Result<Addresses> {
        let address = |listener: &TcpListener| {
            listener
                .local_addr()
                .context("a bound listener has an address")
        };
        Ok(Addresses {
            http: address(&self.http)?,
            grpc: address(&self.grpc)?,
            admin: address(&self.admin)?,
        })
    }
}

fn default_id(grpc: SocketAddr) -> String {
    let host = gethostname::gethostname();
    format!("{}:{}", host.to_string_lossy(), grpc.port())
}

struct AdminPages {
    draining: CancellationToken,
}

impl Pages for AdminPages {
    fn ready(&self) -> Result<(), String> {
        if self.draining.is_cancelled() {
            Err("draining".to_owned())
        } else {
            Ok(())
        }
    }

    fn page<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = Option<Answer>> + Send + 'a>> {
        Box::pin(std::future::ready(None))
    }
}
