//! Puts the parts together, and takes them apart in the order the data flows.

mod files;
mod live;

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use runtime::{
    self,
    admin::{self, Answer, Pages, ready::Part},
    listen::{self, Listener, Stage},
    metrics::Registry,
    settings::renewal,
    status::{Board, page::Page},
};
use tokio::{
    net::TcpListener,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};

use self::files::FILES_MIN;
pub use self::live::Live;
use crate::{
    config::{Config, Drain},
    edge::{self, Edge},
    epoch,
    lives::{self, Lives},
    log::{self, Log},
    memory, metrics,
    readiness::{Accepting, Readiness},
    server::Server,
    status::{self, ProducerStatus},
    streams::{self, Streams, pinned::Pinned, refusals::Refusals, subscribers::Subscribers},
};

/// How often queues of departed subscribers are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Most of the drain that waiting for HTTP clients may take: one that holds half a request, or does not read its
/// answers, must not cost the subscribers their tail.
const EDGE_GRACE: Duration = Duration::from_millis(2500);

/// The last part of the drain, in which the admin port still answers.
const ADMIN_GRACE: Duration = Duration::from_millis(500);

/// A running producer.
#[derive(Debug)]
pub struct App {
    addresses: Addresses,
    log: Log,
    lives: Lives,
    subscribers: Subscribers,
    edge: Stage,
    streams: Stage,
    admin: Stage,
    draining: CancellationToken,
    live: Live,
    renewals: renewal::Metrics,
    health: HealthReporter,
    registry: Registry,
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

/// The ports a producer serves.
#[derive(Debug)]
pub struct Ports<L> {
    /// For sync requests.
    pub http: L,
    /// For subscribers.
    pub grpc: L,
    /// For operators.
    pub admin: L,
}

/// Some subscribers were not sent everything in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not everything was sent within {}; still behind: {}",
    humantime::format_duration(*.within),
    .behind.join(", ")
)]
pub struct DrainTimeout {
    within: Duration,
    behind: Vec<String>,
}

impl App {
    /// Binds all ports, then starts to serve.
    ///
    /// # Errors
    /// With the address and the flag, when a port cannot be bound; or when the system allows too few open files.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let files = runtime::raise_open_files();
        ensure!(
            files >= FILES_MIN,
            "the system allows this process {files} open files, and a producer needs {FILES_MIN} at least, one for each \
             connection: raise the limit (ulimit -n, or LimitNOFILE= of its unit)"
        );
        Self::start_on(Ports::bind(&config)?, config).await
    }

    /// Starts to serve these ports; the addresses of the settings are not used.
    ///
    /// # Errors
    /// When a port does not know its own address.
    pub async fn start_on<L: Listener>(ports: Ports<L>, config: Config) -> anyhow::Result<Self> {
        let addresses = ports.addresses()?;
        let registry = Registry::new();
        let producer_id = config
            .id
            .clone()
            .unwrap_or_else(|| default_id(addresses.grpc));
        let (lives, life) = lives::begin(&config.state, &producer_id, epoch::begin(), &registry)?;
        let epoch = lives.epoch();
        let log_config = log::Config {
            epoch,
            bytes_max: config.log_bytes_max,
            chunk_bytes: config.chunk_bytes,
            chunk_age: config.chunk_age,
            idle_after: config.heartbeat,
        };
        let log = Log::with_progress(log_config, Some(Box::new(life)));
        let subscribers = Subscribers::new(config.subscriber_retention, config.subscribers_max);
        metrics::register(&registry, &log, &subscribers, config.queue_cookies_max)?;
        tracing::info!(?config, "settings");
        tracing::info!(
            producer = %producer_id, epoch, http = %addresses.http, grpc = %addresses.grpc, admin = %addresses.admin,
            memory_bytes_max = memory::bytes_max(&config),
            "producer started"
        );
        config.security.say(addresses.grpc);
        admin::say_if_open(addresses.admin);
        let streams = Streams::new(
            log.clone(),
            subscribers.clone(),
            streams::Config {
                producer_id: producer_id.clone(),
                queue_cookies_max: config.queue_cookies_max,
                rewind_bytes: config.rewind_bytes,
                lives: lives.clone(),
            },
            Pinned::register(&registry, config.pinned_bytes_max as u64)?,
            Refusals::register(&registry)?,
        );
        let server = Server::new(streams, &registry).await?;
        let edge = edge::Metrics::register(&registry, &config.dsps)?;
        let app = Self {
            addresses,
            log,
            lives,
            live: Live::new(&config, subscribers.clone(), edge.dsps()),
            renewals: renewal::Metrics::register(&registry, "producer")?,
            subscribers,
            edge: Stage::default(),
            streams: Stage::default(),
            admin: Stage::default(),
            draining: CancellationToken::new(),
            health: server.health(),
            registry: registry.clone(),
        };
        let readiness = Arc::new(Readiness {
            draining: app.draining.clone(),
            http: app.start_edge(ports.http, &config, edge)?,
            grpc: app.start_streams(ports.grpc, &config, server, &registry)?,
        });
        let status = ProducerStatus::new(status::Sources {
            name: producer_id,
            log: app.log.clone(),
            log_bytes_max: config.log_bytes_max,
            subscribers: app.subscribers.clone(),
            readiness: Arc::clone(&readiness),
        });
        app.start_admin(ports.admin, &config, readiness, status)?;
        Ok(app)
    }

    fn start_edge(
        &self,
        listener: impl Listener,
        config: &Config,
        metrics: edge::Metrics,
    ) -> anyhow::Result<Accepting> {
        let edge = Edge::new(self.log.clone(), config.ids, metrics, self.draining.clone());
        let connections = listen::Metrics::register(&self.registry, "producer", "http")?;
        let limits = self.live.http.subscribe();
        let serving = edge.serve(listener, limits, connections, self.edge.clone());
        Ok(Accepting {
            address: self.addresses.http,
            task: self.edge.tasks.spawn(serving).abort_handle(),
        })
    }

    fn start_streams(
        &self,
        listener: impl Listener,
        config: &Config,
        server: Server,
        registry: &Registry,
    ) -> anyhow::Result<Accepting> {
        let connections = listen::Metrics::register(registry, "producer", "grpc")?;
        let stage = &self.streams;
        let server = server.behind(config.security.open(registry, stage)?);
        let accepting = stage.tasks.spawn(server.serve(
            listener,
            self.live.grpc.subscribe(),
            connections,
            stage.clone(),
        ));
        stage.tasks.spawn(log::keep_time(self.log.clone()));
        let (subscribers, stop) = (self.subscribers.clone(), stage.stop.clone());
        stage.tasks.spawn(async move {
            let sweeping = async {
                loop {
                    tokio::time::sleep(SWEEP_INTERVAL).await;
                    subscribers.sweep();
                }
            };
            stop.run_until_cancelled(sweeping).await;
        });
        Ok(Accepting {
            address: self.addresses.grpc,
            task: accepting.abort_handle(),
        })
    }

    fn start_admin(
        &self,
        listener: impl Listener,
        config: &Config,
        readiness: Arc<Readiness>,
        status: ProducerStatus,
    ) -> anyhow::Result<()> {
        let registry = &self.registry;
        let connections = listen::Metrics::register(registry, "producer", "admin")?;
        let stage = &self.admin;
        let (page, stop) = (Page::new(status::PAGE), stage.stop.clone());
        let board = Board::register(registry, "producer", page, Box::new(status), stop)?;
        stage.tasks.spawn(board.clone().run());
        let pages = Arc::new(AdminPages {
            readiness,
            board,
            debug_endpoints: config.common.debug_endpoints,
        });
        let registry = registry.clone();
        let serving = admin::serve(listener, registry, connections, pages, stage.clone());
        stage.tasks.spawn(serving);
        Ok(())
    }

    /// Where it listens; says which port the system chose where 0 was asked for.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// What may change while it runs.
    #[must_use]
    pub fn live(&self) -> Live {
        self.live.clone()
    }

    /// Counts how often its settings are read again.
    #[must_use]
    pub fn renewals(&self) -> renewal::Metrics {
        self.renewals.clone()
    }

    /// All its metrics.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Stops in the order the data flows: load balancers are given the time to see that it is not ready, requests
    /// are finished, the log is closed, streams send the rest and say goodbye. Takes no longer than the configured
    /// times.
    ///
    /// # Errors
    /// When a subscriber that is connected was not sent everything in that time; it lost the rest.
    pub async fn drain(self) -> Result<(), DrainTimeout> {
        self.draining.cancel();
        self.health.set_not_serving::<Streams>().await;
        // What probes ask for that name no service.
        let overall = self
            .health
            .set_service_status("", ServingStatus::NotServing);
        overall.await;
        let Drain { delay, timeout } = *self.live.drain.borrow();
        tokio::time::sleep(delay).await;
        let end = Instant::now() + timeout;
        let edge_grace = EDGE_GRACE.min(timeout / 4);
        if !self.edge.drain(Instant::now() + edge_grace).await {
            tracing::info!("cut off HTTP clients that did not finish");
        }
        self.log.close();
        let admin_grace = ADMIN_GRACE.min(timeout / 4);
        let behind = self.drain_streams(end - admin_grace).await;
        let appended = self.log.stats().appended;
        let (_, recorded) = tokio::join!(self.admin.drain(end), timeout_at(end, self.lives.over()));
        if recorded.is_err() {
            tracing::warn!("the record of this producer's lives is not written in time");
        }
        if behind.is_empty() {
            tracing::info!(appended, "drained");
            return Ok(());
        }
        Err(DrainTimeout {
            within: timeout,
            behind,
        })
    }

    /// Returns the names of the subscribers that still were sent something when time was up.
    async fn drain_streams(&self, deadline: Instant) -> Vec<String> {
        // Asked just before the connections are cut off, which ends their streams.
        let look = async {
            tokio::time::sleep_until(deadline).await;
            let queues = self.subscribers.snapshot().into_iter();
            queues
                .filter(|queue| queue.connected)
                .map(|queue| queue.name)
                .collect()
        };
        tokio::select! {
            biased;
            behind = look => {
                self.streams.drain(deadline).await;
                behind
            }
            _ = self.streams.drain(deadline + Duration::from_secs(1)) => Vec::new(),
        }
    }
}

impl Ports<TcpListener> {
    fn bind(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            http: listen::bind(config.http, "--http")?,
            grpc: listen::bind(config.grpc, "--grpc")?,
            admin: listen::bind(config.admin, "--admin")?,
        })
    }
}

impl<L: Listener> Ports<L> {
    fn addresses(&self) -> anyhow::Result<Addresses> {
        let address = |listener: &L| {
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
    readiness: Arc<Readiness>,
    board: Board,
    debug_endpoints: bool,
}

impl Pages for AdminPages {
    fn parts(&self) -> Vec<Part> {
        self.readiness.parts()
    }

    fn board(&self) -> &Board {
        &self.board
    }

    fn debug_endpoints(&self) -> bool {
        self.debug_endpoints
    }

    fn page<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = Option<Answer>> + Send + 'a>> {
        Box::pin(std::future::ready(None))
    }
}
