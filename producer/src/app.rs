//! Wires the components of a producer and starts them; `drain.rs` stops them.

mod config_reload;
mod drain;

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use runtime::{
    self,
    listen::{self, Listener, Stage},
    metrics::Registry,
    services::Services,
};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tonic_health::server::HealthReporter;

pub use self::config_reload::RuntimeConfig;
use crate::{
    api::{self, Api},
    archive::{self, Archiver, Publisher, ReportIntake},
    config::Config,
    contracts::Contracts,
    dsps::Dsps,
    edge::{self, Edge, cookie_sync::LARGE_ANSWERS_MAX, mint::UidMode, opt_out::OptOut},
    epoch_history::{self, EpochHistory},
    inlet::{self, Inlet},
    log::{self, Log},
    memory, metrics,
    readiness::{AcceptTask, Readiness},
    security::AccessControl,
    server::Server,
    streams::{
        self, Streams, in_flight::StreamBudget, subscribers::Subscribers,
        times_to_live::TimesToLive,
    },
};

/// Idle time after which a stream sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How often expired subscribers are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A running producer.
#[derive(Debug)]
pub struct App {
    /// The bound addresses, with the actual port if 0 was configured.
    pub addresses: Addresses,
    /// The log, for tests that append to it directly.
    pub log: Log,
    subscribers: Subscribers,
    /// The inlet.
    pub inlet: Inlet,
    /// A separate stage, which ends after the edge and before the log is closed.
    inlet_stage: Stage,
    edge: Stage,
    api: Stage,
    streams: Stage,
    /// Admin port, and metrics of the process.
    pub services: Services,
    draining: CancellationToken,
    /// The settings that a reload can change.
    pub runtime_config: RuntimeConfig,
    health: HealthReporter,
    dsps: Dsps,
    times_to_live: TimesToLive,
    archive: archive::Status,
    /// The archiver, which ends once the end of the log is archived; empty without an archive.
    archiving: JoinSet<()>,
}

/// The parts that the app does not need once they are started.
struct Parts {
    producer_id: String,
    edge: Edge,
    server: Server,
    access: AccessControl,
    archiver: Archiver,
}

/// Bound addresses.
pub type Addresses = Ports<SocketAddr>;

/// The ports, as listeners or addresses.
#[derive(Debug, Clone, Copy)]
pub struct Ports<T> {
    /// For sync requests.
    pub http: T,
    /// For subscribers.
    pub grpc: T,
    /// For operators.
    pub admin: T,
    /// For bulk input and deletions.
    pub api: Option<T>,
}

impl App {
    /// Binds all ports and starts serving.
    ///
    /// # Errors
    /// When a port cannot be bound.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let contracts = config.dsps.contracts.clone();
        let (ports, nats) = (Ports::bind(&config)?, config.archive.nats.clone());
        let app = Box::pin(Self::start_on(ports, config, nats, log::run_timers)).await?;
        let (dsps, times_to_live) = (app.dsps.clone(), app.times_to_live.clone());
        let apply = move |contracts: Arc<Contracts>| {
            times_to_live.set(contracts.times_to_live());
            dsps.set_contracts(contracts);
        };
        app.services
            .watch_with(contracts.as_ref(), &app.edge, apply);
        Ok(app)
    }

    /// Starts serving on these ports instead of the configured addresses, with this archive instead of the configured one, without
    /// watching the contracts file. `timers` is [`log::run_timers`], or a wrapper of it.
    ///
    /// # Errors
    /// When the address of a listener is unavailable, a metric is registered already, or the spool is in use.
    pub async fn start_on<L: Listener, T: Future<Output = ()> + Send + 'static>(
        ports: Ports<L>,
        config: Config,
        archive: Option<impl Publisher>,
        timers: impl FnOnce(Log) -> T,
    ) -> anyhow::Result<Self> {
        let addresses = ports.addresses()?;
        let status = archive.as_ref().map(|_| archive::Status::begin());
        let status = status.unwrap_or_default();
        let (mut app, parts) = Self::build(&config, addresses, status).await?;
        let (stage, inlet) = (&app.inlet_stage, &app.inlet);
        stage.tasks.spawn(inlet.clone().run(stage.stop.clone()));
        stage.tasks.spawn(inlet.clone().share(stage.stop.clone()));
        app.streams.tasks.spawn(timers(app.log.clone()));
        if let Some(port) = ports.api {
            app.start_api(port, &parts, &config)?;
        }
        if let Some(archive) = archive {
            app.archiving.spawn(parts.archiver.run(archive));
        }
        if let Some(reports) = config.archive.node_reports.clone() {
            let intake = ReportIntake {
                producer_id: parts.producer_id.clone(),
                log: app.log.clone(),
                subscribers: app.subscribers.clone(),
                tokens: config.security.tokens(),
            };
            let (stage, reading) = (&app.streams, reports.run(intake));
            let reading = stage.stop.clone().run_until_cancelled_owned(reading);
            stage.tasks.spawn(reading);
        }
        let refusals = Arc::clone(&parts.edge.refusals);
        let http = app.edge.tasks.spawn(parts.edge.serve(
            ports.http,
            config.network.proxies(),
            parts.access.http_tls.clone(),
            app.runtime_config.http.subscribe(),
            app.services.connections("http")?,
            app.edge.clone(),
        ));
        let grpc = app.start_streams(ports.grpc, parts.server, parts.access)?;
        let exposure = config.security.exposure(addresses.grpc);
        if let Some(exposure) = exposure {
            tracing::warn!(grpc = %addresses.grpc, "{exposure}");
        }
        let readiness = Readiness {
            draining: app.draining.clone(),
            http: AcceptTask {
                address: addresses.http,
                exposure: None,
                task: http.abort_handle(),
            },
            grpc: AcceptTask {
                address: addresses.grpc,
                exposure,
                task: grpc,
            },
            dsps: app.dsps.clone(),
            inlet: app.inlet.clone(),
            archive: app.archive.clone(),
            refusals,
            producer_id: parts.producer_id.clone(),
            log: app.log.clone(),
            subscribers: app.subscribers.clone(),
        };
        app.services.serve_admin(ports.admin, readiness)?;
        tracing::info!(
            producer = %parts.producer_id, epoch = app.log.epoch().0,
            http = %addresses.http, grpc = %addresses.grpc, admin = %addresses.admin,
            api = addresses.api.map(tracing::field::display),
            memory_bytes_max = memory::bytes_max(&config),
            "producer started"
        );
        Ok(app)
    }

    /// Builds all parts and registers their metrics.
    async fn build(
        config: &Config,
        addresses: Addresses,
        archive: archive::Status,
    ) -> anyhow::Result<(Self, Parts)> {
        let registry = Registry::new();
        let id = config.network.id.clone();
        let producer_id = id.unwrap_or_else(|| default_id(addresses.grpc));
        let (log, epoch_history) = open_log(config, &producer_id, &registry)?;
        let retention = &config.retention;
        let subscribers =
            Subscribers::new(retention.subscriber_retention, config.limits.subscribers);
        let queue_cookies_max = retention.queue_cookies as u64;
        metrics::register(
            &registry,
            &log,
            &subscribers,
            queue_cookies_max,
            archive.clone(),
        )?;
        let file = config.dsps.contracts.clone();
        let spool = config.dsps.limits_spool.as_deref();
        let inlet = Inlet::start(&producer_id, file.clone(), spool, log.clone())?;
        inlet::register(&registry, inlet.clone())?;
        api::register_deletions(&registry, inlet.clone())?;
        let contracts = match &file {
            Some(file) => file.current(),
            None => Arc::new(Contracts::without_file(config.dsps.accept_placeholders)),
        };
        let times_to_live = TimesToLive::default();
        times_to_live.set(contracts.times_to_live());
        let archiver = archive::Config {
            log: log.clone(),
            chunk_bytes: retention.chunk_bytes,
            producer_id: producer_id.clone(),
            epoch_ends: epoch_history.ends(),
            times_to_live: times_to_live.clone(),
            bytes_per_second: config.archive.bytes_per_second as u64,
        };
        let archiver = Archiver::new(archiver, archive.clone(), &registry)?;
        let streams = Streams::new(streams::Config {
            log: log.clone(),
            subscribers: subscribers.clone(),
            budget: StreamBudget::register(&registry, config.limits.in_flight_bytes as u64)?,
            producer_id: producer_id.clone(),
            queue_cookies_max,
            rewind_bytes: retention.rewind_bytes,
            epoch_history,
            times_to_live: times_to_live.clone(),
        });
        let server = Server::new(streams, &registry).await?;
        let draining = CancellationToken::new();
        let edge = Edge {
            inlet: inlet.clone(),
            opt_out: opt_out(config),
            uid: config.network.uid,
            cookies: config.cookies.clone(),
            metrics: edge::Metrics::register(&registry, file, contracts)?,
            rejection_log: edge::rejection_log(),
            refusals: Arc::default(),
            large_answers: Arc::new(Semaphore::new(LARGE_ANSWERS_MAX)),
            draining: draining.clone(),
        };
        let app = Self {
            addresses,
            log,
            runtime_config: RuntimeConfig::new(config, subscribers.clone()),
            subscribers,
            inlet,
            inlet_stage: Stage::default(),
            edge: Stage::default(),
            api: Stage::default(),
            streams: Stage::default(),
            services: Services::register(&registry, "producer", true)?,
            draining,
            health: server.health.clone(),
            dsps: edge.metrics.dsps.clone(),
            times_to_live,
            archive,
            archiving: JoinSet::new(),
        };
        let http_connections = config.limits.http_connections;
        let access = config
            .security
            .open(&app.services, &app.streams, http_connections)?;
        let parts = Parts {
            producer_id,
            edge,
            server,
            access,
            archiver,
        };
        Ok((app, parts))
    }

    fn start_api(
        &self,
        listener: impl Listener,
        parts: &Parts,
        config: &Config,
    ) -> anyhow::Result<()> {
        let api = api::Parts {
            producer_id: parts.producer_id.clone(),
            inlet: self.inlet.clone(),
            dsps: self.dsps.clone(),
            subscribers: self.subscribers.clone(),
            node_reports: config.archive.node_reports.clone(),
            draining: self.draining.clone(),
            limits: config.api.limits,
            rows_per_second: api::ROWS_PER_SECOND,
            lag_max: api::LAG_MAX,
        };
        let api = Api::new(api, config.api.tokens.clone(), &self.services.registry)?;
        self.services.watch(config.api.tokens.as_ref(), &self.api);
        let tls = parts.access.api_tls.clone();
        let (limits, metrics) = (self.runtime_config.api, self.services.connections("api")?);
        let serving = api.serve(listener, tls, limits, metrics, self.api.clone());
        self.api.tasks.spawn(serving);
        Ok(())
    }

    fn start_streams(
        &self,
        listener: impl Listener,
        server: Server,
        access: AccessControl,
    ) -> anyhow::Result<AbortHandle> {
        let stage = &self.streams;
        let accepting = stage.tasks.spawn(server.serve(
            listener,
            access,
            self.runtime_config.grpc.subscribe(),
            self.services.connections("grpc")?,
            stage.clone(),
        ));
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
        Ok(accepting.abort_handle())
    }
}

/// Begins an epoch with an empty log.
fn open_log(
    config: &Config,
    producer_id: &str,
    registry: &Registry,
) -> anyhow::Result<(Log, EpochHistory)> {
    let (epoch_history, current_epoch) = epoch_history::begin(
        &config.network.state,
        producer_id,
        epoch_history::new_epoch(),
        registry,
    )?;
    let progress = current_epoch.map(|it| Box::new(it) as Box<dyn log::Progress>);
    let log = log::Config {
        epoch: epoch_history.epoch(),
        bytes_max: config.retention.log_bytes,
        chunk_bytes: config.retention.chunk_bytes,
        chunk_age: config.retention.chunk_age,
        idle_after: HEARTBEAT,
    };
    Ok((Log::with_progress(log, progress), epoch_history))
}

fn opt_out(config: &Config) -> Option<OptOut> {
    let opt_out = config.api.opt_out.clone()?;
    if config.network.uid == UidMode::MintPartitioned {
        tracing::warn!(
            frame_origins = opt_out.frame_origins.join(" "),
            "with --uid mint-partitioned, an opt-out holds only on websites that show the opt-out page in a frame"
        );
    }
    Some(OptOut::new(opt_out))
}

impl Ports<TcpListener> {
    fn bind(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            http: listen::bind(config.network.http, "--http")?,
            grpc: listen::bind(config.network.grpc, "--grpc")?,
            admin: listen::bind(config.network.admin, "--admin")?,
            api: config
                .api
                .address
                .map(|api| listen::bind(api, "--api"))
                .transpose()?,
        })
    }
}

impl<L: Listener> Ports<L> {
    fn addresses(&self) -> anyhow::Result<Addresses> {
        let address = |listener: &L| {
            listener
                .local_addr()
                .context("failed to read the address of a listener")
        };
        Ok(Addresses {
            http: address(&self.http)?,
            grpc: address(&self.grpc)?,
            admin: address(&self.admin)?,
            api: self.api.as_ref().map(address).transpose()?,
        })
    }
}

fn default_id(grpc: SocketAddr) -> String {
    let host = gethostname::gethostname();
    format!("{}:{}", host.to_string_lossy(), grpc.port())
}
